// SPDX-License-Identifier: Apache-2.0
//! What becomes of a wrong value: most verbs refuse it; DEL and GC pass over what they do not need,
//! so that one typing error does not keep every pod of the node from being deleted.

use crate::{Command, ConfError};

/// The wrong values of one configuration.
#[derive(Debug)]
pub struct Mistakes {
    command: Option<Command>,
    passed_over: Vec<ConfError>,
}

impl Mistakes {
    /// The first is the verb's error.
    pub fn refused() -> Self {
        Self {
            command: None,
            passed_over: vec![],
        }
    }

    /// As `command` treats them.
    pub fn of(command: Command) -> Self {
        Self {
            command: Some(command),
            ..Self::refused()
        }
    }

    /// What was `read`. A value that is wrong and need not be known counts as `default`.
    ///
    /// # Errors
    /// The value is wrong, and the verb does not pass over it.
    pub fn or<T, E: Into<ConfError>>(
        &mut self,
        read: Result<T, E>,
        default: T,
    ) -> Result<T, ConfError> {
        match read.map_err(Into::into) {
            Err(error) if matches!(self.command, Some(Command::Del | Command::Gc)) => {
                self.passed_over.push(error);
                Ok(default)
            }
            read => read,
        }
    }

    /// As [`Mistakes::or`], for what GC alone cannot do without.
    ///
    /// # Errors
    /// The value is wrong, and the verb does not pass over it.
    pub fn or_for_del<T, E: Into<ConfError>>(
        &mut self,
        read: Result<T, E>,
        default: T,
    ) -> Result<T, ConfError> {
        match self.command {
            Some(Command::Gc) => read.map_err(Into::into),
            _ => self.or(read, default),
        }
    }

    /// Whether the value of `field`, by its full name, was passed over.
    pub fn has(&self, field: &str) -> bool {
        let is_it = |error: &ConfError| matches!(error, ConfError::Value { field: name, .. } if name == field);
        self.passed_over.iter().any(is_it)
    }

    /// Tells what was passed over.
    pub fn warn(&self) {
        let command = self.command.map_or("", Command::as_str);
        for error in &self.passed_over {
            log::warn!("{error}; {command} goes on without it, ADD will not");
        }
    }
}
