// SPDX-License-Identifier: Apache-2.0
//! Treatment of wrong values in a configuration. Most verbs return an error for a wrong value. DEL and GC ignore wrong
//! values of fields that they do not need. Otherwise a typing error would prevent the deletion of all pods of the
//! network.

use crate::{Command, ConfError};

/// The wrong values in one configuration that a verb has ignored.
#[derive(Debug)]
pub struct Mistakes {
    command: Option<Command>,
    passed_over: Vec<ConfError>,
}

impl Mistakes {
    /// Returns a collection that ignores nothing: the first wrong value is an error.
    pub fn refused() -> Self {
        Self {
            command: None,
            passed_over: vec![],
        }
    }

    /// Returns a collection with the rules of `command`.
    pub fn of(command: Command) -> Self {
        Self {
            command: Some(command),
            ..Self::refused()
        }
    }

    /// Returns the value in `read`. If `read` is an error and the verb is DEL or GC, records the error and returns
    /// `default`.
    ///
    /// # Errors
    /// The error of `read`, if the verb does not ignore it.
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

    /// Returns the value like [`Mistakes::or`], but ignores a wrong value only for DEL, because GC needs the field.
    ///
    /// # Errors
    /// The error of `read`, if the verb does not ignore it.
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

    /// Returns true if the verb ignored the value of `field`. `field` is the field's full name.
    pub fn has(&self, field: &str) -> bool {
        let is_it =
            |error: &ConfError| matches!(error, ConfError::Wrong(wrong) if wrong.place == field);
        self.passed_over.iter().any(is_it)
    }

    /// Logs a warning for each ignored value.
    pub fn warn(&self) {
        let command = self.command.map_or("", Command::as_str);
        for error in &self.passed_over {
            log::warn!("{error}; {command} ignores this value, but ADD would fail");
        }
    }
}
