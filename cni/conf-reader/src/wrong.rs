// SPDX-License-Identifier: Apache-2.0
//! The error for a wrong value.

use crate::{nearest::not_known, one_line};
use serde::de::{self, Expected, Unexpected};
use std::fmt;

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Path of the value, such as `resourceList[1].resourceName`. Empty: the path is not known yet.
    pub place: String,
    /// Rule that the value breaks, or a sentence with the problem and the next step.
    pub problem: String,
    /// The value as JSON. `None`: the value is missing.
    pub value: Option<String>,
    /// Meaning of `problem`.
    pub kind: Kind,
}

/// The meaning of [`Wrong::problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A rule that the value breaks. The error's text appends the value.
    Rule,
    /// The whole text of the error.
    Sentence,
    /// The whole text of the error about a known value that the program does not support.
    Unsupported,
}

impl Wrong {
    /// Returns an error for `value`, which is JSON, at `place`. `must` is the rule that the value breaks.
    pub fn value(
        place: impl Into<String>,
        value: impl Into<String>,
        must: impl Into<String>,
    ) -> Self {
        Self {
            place: place.into(),
            value: Some(value.into()),
            ..Self::must(must)
        }
    }

    /// Returns an error for the value at `place`. `sentence` is the error's whole text.
    pub fn of(place: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            ..Self::sentence(sentence)
        }
    }

    /// Returns an error whose `problem` is a rule. The error's text appends the value.
    pub(crate) fn must(problem: impl Into<String>) -> Self {
        Self {
            place: String::new(),
            problem: problem.into(),
            value: None,
            kind: Kind::Rule,
        }
    }

    /// Returns an error whose `problem` is the error's whole text.
    pub(crate) fn sentence(problem: impl Into<String>) -> Self {
        Self {
            kind: Kind::Sentence,
            ..Self::must(problem)
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", one_line(&self.place), self.problem)?;
        match &self.value {
            _ if self.kind != Kind::Rule => Ok(()),
            Some(value) => write!(f, ", and is {value}"),
            None => f.write_str(", and is missing"),
        }
    }
}

impl std::error::Error for Wrong {}

/// Converts the errors of `Deserialize` implementations. For an invalid value, the text says what the value "must be".
/// For any other error, its message becomes the whole text.
impl de::Error for Wrong {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self::sentence(problem.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_value(unexpected, expected)
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::must(format!("must be {expected}"))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::sentence(not_known(name, known))
    }
}
