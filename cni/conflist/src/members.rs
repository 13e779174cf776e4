// SPDX-License-Identifier: Apache-2.0
//! The members of a JSON object as they stand in the text: in order, each name as often as it is
//! there, and where the values are.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{fmt, ops::Range};

/// Names and values of an object.
#[derive(Debug)]
pub(crate) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The members of the object that is all of `text`.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The value of `name`; where the name is there twice, the last one counts, as it does for
    /// the runtimes.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().rfind(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    }

    /// A name that is there twice.
    pub(crate) fn twice(&self) -> Option<&str> {
        let names = self.0.iter().enumerate();
        names
            .filter(|(index, (name, _))| self.0[..*index].iter().any(|(other, _)| other == name))
            .map(|(_, (name, _))| name.as_str())
            .next()
    }
}

/// Where `part` is, which was read from `text`.
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
