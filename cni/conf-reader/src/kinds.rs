// SPDX-License-Identifier: Apache-2.0
//! Types of fields.

use serde::{Deserialize, Deserializer, de::Error, de::Unexpected};
use serde_json::Value;
use std::path::PathBuf;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const MIN: u32, const MAX: u32>(pub u32);

impl<const MIN: u32, const MAX: u32> Number<MIN, MAX> {
    /// Reads `value`.
    ///
    /// # Errors
    /// It is something else.
    pub fn of<E: Error>(value: &Value) -> Result<Self, E> {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        number.map(Self).ok_or_else(|| {
            let expected = format!("a whole number from {MIN} to {MAX}");
            E::invalid_value(Unexpected::Other("value"), &expected.as_str())
        })
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(&Value::deserialize(deserializer)?)
    }
}

/// Texts: a list of them, or one alone; none where there is no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts(pub Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = match Value::deserialize(deserializer)? {
            Value::Null => Some(Vec::new()),
            Value::String(text) => Some(vec![text]),
            Value::Array(list) => list
                .iter()
                .map(|value| value.as_str().map(str::to_owned))
                .collect(),
            _ => None,
        };
        texts.map(Self).ok_or_else(|| {
            let expected = "a list of texts; put numbers in quotes";
            D::Error::invalid_value(Unexpected::Other("value"), &expected)
        })
    }
}

/// A path that starts with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsolutePath(pub PathBuf);

impl<'de> Deserialize<'de> for AbsolutePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, "an absolute path", |text| {
            text.starts_with('/').then(|| Self(PathBuf::from(text)))
        })
    }
}

/// A text that `parse` takes; another one, or none at all, "must be" what is `expected`.
///
/// # Errors
/// It is no text, or none that `parse` takes.
pub fn parsed<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let value = text.as_deref().and_then(parse);
    value.ok_or_else(|| D::Error::invalid_value(Unexpected::Other("text"), &expected))
}
