// SPDX-License-Identifier: Apache-2.0
//! Logs a lasting problem once, although each retry fails for the same reason.

/// Last logged problem. `None`: the problem has ended.
#[derive(Clone, Debug, Default)]
pub struct LogOnce(Option<String>);

impl LogOnce {
    /// Stores `sentence`. Returns true if `sentence` differs from the last stored sentence.
    pub fn is_news(&mut self, sentence: &str) -> bool {
        let is_news = self.0.as_deref() != Some(sentence);
        if is_news {
            self.0 = Some(sentence.to_owned());
        }
        is_news
    }

    /// Logs `sentence` as a warning if it differs from the last sentence.
    pub fn warn(&mut self, sentence: &str) {
        if self.is_news(sentence) {
            log::warn!("{sentence}");
        }
    }

    /// Marks the problem as ended: [`LogOnce`] logs the problem again if it recurs. Returns true if there was a
    /// problem.
    pub fn ends(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Returns true if a logged problem has not ended.
    pub fn is_something(&self) -> bool {
        self.0.is_some()
    }
}
