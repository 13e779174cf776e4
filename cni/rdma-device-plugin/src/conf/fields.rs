// SPDX-License-Identifier: Apache-2.0
//! Reading fields of an object such that a wrong value is told by its place in the file.

use super::Wrong;
use serde_json::{Map, Value};

/// An object of the file, and where it is.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    place: String,
    any_case: bool,
}

impl<'a> Fields<'a> {
    /// The whole file. `any_case`: names count in upper and lower case, as for Go's decoder,
    /// which reads the other systems' files.
    pub(super) fn root(object: &'a Map<String, Value>, any_case: bool) -> Self {
        Self {
            object,
            place: String::new(),
            any_case,
        }
    }

    /// The object at `name`; none if there is no such field.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => self.child(value, self.place_of(name)).map(Some),
        }
    }

    /// The objects of the list at `name`.
    pub(super) fn objects(&self, name: &str) -> Result<Option<Vec<Self>>, Wrong> {
        let Some(list) = self.list(name)? else {
            return Ok(None);
        };
        let place = self.place_of(name);
        let objects = list
            .iter()
            .enumerate()
            .map(|(index, value)| self.child(value, format!("{place}[{index}]")));
        objects.collect::<Result<_, _>>().map(Some)
    }

    fn child(&self, value: &'a Value, place: String) -> Result<Self, Wrong> {
        match value {
            Value::Object(object) => Ok(Self {
                object,
                place,
                any_case: self.any_case,
            }),
            other => Err(Wrong::new(
                place,
                format!("must be an object, and is {other}"),
            )),
        }
    }

    /// Where this object is, `resourceList[1]`.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Where the field `name` of it is, `resourceList[1].resourceName`.
    pub(super) fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.place)
        }
    }

    /// The value at `name`; `null` is none.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        let folded = || {
            self.object
                .iter()
                .find(|(key, _)| self.any_case && key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value)
        };
        let value = self.object.get(name).or_else(folded);
        value.filter(|value| !value.is_null())
    }

    /// Whether there is something at `name`, be it `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    /// A text.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "must be a text")),
        }
    }

    /// Texts: a list of them, or one alone.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<&'a str>, Wrong> {
        let expected = "must be a list of texts; put numbers in quotes";
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(list)) => list
                .iter()
                .map(|value| value.as_str().ok_or_else(|| self.wrong(name, expected)))
                .collect(),
            Some(_) => Err(self.wrong(name, expected)),
        }
    }

    /// True or false.
    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(name, "must be true or false")),
        }
    }

    /// A whole number from `min` to `max`.
    pub(super) fn number(&self, name: &str, min: u32, max: u32) -> Result<Option<u32>, Wrong> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .map(Some)
            .ok_or_else(|| self.wrong(name, &format!("must be a whole number from {min} to {max}")))
    }

    /// One of `choices`, by its word.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Wrong> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let found = choices.iter().find(|(word, _)| *word == text);
        match found {
            Some((_, choice)) => Ok(Some(*choice)),
            None => Err(self.wrong(name, &one_of(choices.iter().map(|(word, _)| *word)))),
        }
    }

    /// A list.
    fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(name, "must be a list")),
        }
    }

    /// The fields that are none of `known`, by their places.
    pub(super) fn others(&self, known: &[&str]) -> Vec<String> {
        let is_known = |key: &str| {
            let same =
                |name: &&str| key == *name || (self.any_case && key.eq_ignore_ascii_case(name));
            known.iter().any(same)
        };
        let others = self.object.keys().filter(|key| !is_known(key));
        others.map(|key| self.place_of(key)).collect()
    }

    /// The error that `name` here has a value that is not as `expected`.
    pub(super) fn wrong(&self, name: &str, expected: &str) -> Wrong {
        let problem = match self.get(name) {
            Some(value) => format!("{expected}, and is {value}"),
            None => format!("{expected}, and is missing"),
        };
        Wrong::new(self.place_of(name), problem)
    }
}

/// "must be one of a, b"
pub(super) fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    format!("must be one of {}", words.join(", "))
}
