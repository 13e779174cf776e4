// SPDX-License-Identifier: Apache-2.0
//! The error.

use crate::one_line;
use serde::de::{self, Expected, Unexpected};
use std::fmt;

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where it is: `resourceList[1].resourceName`; empty: not known yet.
    pub place: String,
    /// What it must be, or what is wrong with it; and what to do.
    pub problem: String,
    /// The value, as JSON; none: it is missing.
    pub value: Option<String>,
    /// Whether the problem says it all, without the value.
    pub says_all: bool,
}

impl Wrong {
    /// What is at `place` cannot be used; `sentence` says it all.
    pub fn of(place: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            ..Self::sentence(sentence)
        }
    }

    /// `problem` says what the value must be: what it is comes behind it.
    pub(crate) fn must(problem: impl Into<String>) -> Self {
        Self {
            place: String::new(),
            problem: problem.into(),
            value: None,
            says_all: false,
        }
    }

    /// `problem` says it all.
    pub(crate) fn sentence(problem: impl Into<String>) -> Self {
        Self {
            says_all: true,
            ..Self::must(problem)
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", one_line(&self.place), self.problem)?;
        match &self.value {
            _ if self.says_all => Ok(()),
            Some(value) => write!(f, ", and is {value}"),
            None => f.write_str(", and is missing"),
        }
    }
}

impl std::error::Error for Wrong {}

/// What types say in their `Deserialize`: an invalid value "must be" what is expected, and anything
/// else says it all.
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

    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Self::sentence(format!(
            "not known; the fields here are {}",
            known.join(", ")
        ))
    }
}
