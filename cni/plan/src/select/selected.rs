// SPDX-License-Identifier: Apache-2.0
//! Result of a selection, with remarks for the log.

use attachments::Rail;

/// The rails that a selection found, with remarks. One ADD selects several times, and logs only the remarks of the
/// selection that it uses.
#[derive(Debug)]
pub struct Selected {
    /// The rails, in the order of their numbers.
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
