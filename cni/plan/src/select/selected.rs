// SPDX-License-Identifier: Apache-2.0
//! The result of a selection, with remarks for the log.

use attachments::Rail;

/// The rails of a plan, and its remarks. One ADD plans several times, and logs only the remarks of the plan that it
/// executes.
#[derive(Debug)]
pub struct Selected {
    /// The rails, in order.
    pub rails: Vec<Rail>,
    /// Sentences for the log.
    pub remarks: Vec<Remark>,
}

/// A sentence for the log.
#[derive(Debug)]
pub struct Remark {
    pub(super) level: log::Level,
    pub(super) text: String,
}

impl Remark {
    pub(super) fn info(text: String) -> Self {
        let level = log::Level::Info;
        Self { level, text }
    }

    /// Writes the remark to the log.
    pub fn log(&self) {
        log::log!(self.level, "{}", self.text);
    }
}
