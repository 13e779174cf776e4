// SPDX-License-Identifier: Apache-2.0
//! The members of a JSON object in the order of the text, with repeated names. Each value has its position in the
//! text.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{fmt, ops::Range};

/// Names and values of an object, in order.
#[derive(Debug)]
pub(crate) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Parses `text`, which must be one object.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the value of `name`. If the name is repeated, returns the last value, as runtimes do.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().rfind(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    }

    /// Returns the first name that is repeated.
    pub(crate) fn twice(&self) -> Option<&str> {
        let names = self.0.iter().enumerate();
        names
            .filter(|(index, (name, _))| self.0[..*index].iter().any(|(other, _)| other == name))
            .map(|(_, (name, _))| name.as_str())
            .next()
    }
}

/// Returns the position of `part` in `text`. `part` must come from parsing `text`.
pub(crate) fn span(text: &str, part: &RawValue) -> Range<usize> {
    let start = part.get().as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.get().len()
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = vec![];
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}
