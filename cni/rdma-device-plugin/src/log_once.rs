// SPDX-License-Identifier: Apache-2.0
//! What goes on is said once in the log: what is tried again fails for the same reason, as a rule.

/// What was said last, and is not over.
#[derive(Debug, Default)]
pub(crate) struct Said(Option<String>);

impl Said {
    /// Whether `sentence` is to be said: it is another one than the last, and is the last from here on.
    pub(crate) fn is_news(&mut self, sentence: &str) -> bool {
        let is_news = self.0.as_deref() != Some(sentence);
        if is_news {
            self.0 = Some(sentence.to_owned());
        }
        is_news
    }

    /// It is over, and news if it comes again. Whether there was something.
    pub(crate) fn ends(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Whether something was said that is not over.
    pub(crate) fn is_something(&self) -> bool {
        self.0.is_some()
    }
}
