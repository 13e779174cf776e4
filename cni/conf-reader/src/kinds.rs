// SPDX-License-Identifier: Apache-2.0
//! Types for values of fields.

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};
use serde_json::Value;
use std::{fmt, ops::RangeInclusive, path::PathBuf};

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const MIN: u32, const MAX: u32>(pub u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(Range::<MIN, MAX>)
    }
}

struct Range<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Visitor<'_> for Range<MIN, MAX> {
    type Value = Number<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let number = u32::try_from(number).ok();
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        let unexpected = Unexpected::Other("value");
        number
            .map(Number)
            .ok_or_else(|| E::invalid_value(unexpected, &self))
    }
}

/// A list of strings. The value may be a list or one string. A missing value is an empty list.
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
        texts
            .map(Self)
            .ok_or_else(|| must_be("a string or a list of strings, with numbers in quotes"))
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

/// Parses a number such as `5`, or a range such as `0-3`. Returns `None` if the text has another form, or if the range
/// is empty.
pub fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok()?..=last.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

/// Reads a string and parses it. Returns the error that the value must be `expected` if the string is missing or
/// `parse` returns `None`.
pub fn parsed<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    optional(deserializer, expected, parse)?.ok_or_else(|| must_be(expected))
}

/// Reads an optional string and parses it. Returns the error that the value must be `expected` if `parse` returns
/// `None`.
pub fn optional<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let value = text.map(|text| parse(&text).ok_or_else(|| must_be(expected)));
    value.transpose()
}

fn must_be<E: Error>(expected: &str) -> E {
    E::invalid_value(Unexpected::Other("value"), &expected)
}
