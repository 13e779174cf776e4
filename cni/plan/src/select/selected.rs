// SPDX-License-Identifier: Apache-2.0
//! What is selected, and what is to be said of it.

use attachments::Rail;

/// The rails of an ADD, and what is to be logged of them when they are made: plans are made several times for one ADD.
#[derive(Debug)]
pub struct Selected {
    /// In order.
    pub rails: Vec<Rail>,
    /// Sentences.
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

    /// Writes it.
    pub fn log(&self) {
        log::log!(self.level, "{}", self.text);
    }
}
