// SPDX-License-Identifier: Apache-2.0
//! A value of a configuration, at its place.

use crate::{Wrong, line::escaped};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A value of a configuration, or the place where one could be.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    pub(crate) value: Option<&'a Value>,
    pub(crate) object: Option<&'a Map<String, Value>>,
    pub(crate) place: Cow<'a, str>,
    pub(crate) any_case: bool,
}

impl<'a> Field<'a> {
    /// The whole configuration.
    pub fn root(object: &'a Map<String, Value>) -> Self {
        Self {
            value: None,
            object: Some(object),
            place: "".into(),
            any_case: false,
        }
    }

    /// The same, its names read in upper and lower case, as Go's decoder does.
    pub fn any_case(self) -> Self {
        Self {
            any_case: true,
            ..self
        }
    }

    /// The same, its names read as they are written.
    pub fn exact_case(self) -> Self {
        Self {
            any_case: false,
            ..self
        }
    }

    /// Where it is, `resourceList[1]`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether there is a value; `null` is none.
    pub fn is_there(&self) -> bool {
        self.value.is_some() || self.object.is_some()
    }

    /// It as it came; none: it is not there, or is the whole configuration.
    pub fn value(&self) -> Option<&'a Value> {
        self.value
    }

    /// It as JSON, for people too ([`json`](crate::json)); none: it is not there.
    pub fn json(&self) -> Option<String> {
        let object = || serde_json::to_string(self.object?).ok();
        self.value
            .map(Value::to_string)
            .or_else(object)
            .map(escaped)
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        self.value.is_some_and(Value::is_array)
    }

    /// Whether it is an object.
    pub fn is_object(&self) -> bool {
        self.object.is_some()
    }

    /// Whether this object has something called `name`, be it `null`.
    pub fn has(&self, name: &str) -> bool {
        self.object.is_some_and(|object| object.contains_key(name))
    }

    /// What is called `name` in this object.
    pub fn at(&self, name: &'a str) -> Self {
        let found = self.object.and_then(|object| {
            let folded = || object.iter().find(|(key, _)| self.is(key, name));
            let value = object
                .get(name)
                .or_else(|| folded().map(|(_, value)| value));
            value.filter(|value| !value.is_null())
        });
        let place = match &*self.place {
            "" => name.into(),
            place => format!("{place}.{name}").into(),
        };
        self.child(found, place)
    }

    /// Element `index` of this list.
    pub fn element(&self, index: usize) -> Self {
        let element = self.value.and_then(|value| value.get(index));
        self.child(element, format!("{}[{index}]", self.place).into())
    }

    fn child(&self, value: Option<&'a Value>, place: Cow<'a, str>) -> Self {
        Self {
            value,
            object: value.and_then(Value::as_object),
            place,
            any_case: self.any_case,
        }
    }

    /// The object called `name`, or the place where it could be. An error: it is something else.
    pub fn object(&self, name: &'a str) -> Result<Self, Wrong> {
        let field = self.at(name);
        match field.is_there() && !field.is_object() {
            true => Err(field.wrong("must be an object")),
            false => Ok(field),
        }
    }

    /// The elements of this list; none, where it is not there. An error: it is something else.
    pub fn list(&self) -> Result<Vec<Self>, Wrong> {
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok((0..list.len()).map(|it| self.element(it)).collect()),
            Some(_) => Err(self.wrong("must be a list")),
        }
    }

    /// The objects of the list called `name`; none, where it is not there. An error: it is something
    /// else.
    pub fn objects(&self, name: &'a str) -> Result<Vec<Self>, Wrong> {
        let elements = self.at(name).list()?;
        match elements.iter().find(|element| !element.is_object()) {
            None => Ok(elements),
            Some(other) => Err(other.wrong("must be an object")),
        }
    }

    /// Reads it. An error is of it, or of something in it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Wrong> {
        T::deserialize(self.clone()).map_err(|wrong| self.placed(wrong))
    }

    /// Reads what is called `name`; none: it is not there.
    pub fn get<T: DeserializeOwned>(&self, name: &'a str) -> Result<Option<T>, Wrong> {
        self.at(name).read()
    }

    /// What the word called `name` stands for, which has to be one of `choices`; none: it is not there.
    pub fn choice<T: Copy>(
        &self,
        name: &'a str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Wrong> {
        let Some(text) = self.get::<String>(name)? else {
            return Ok(None);
        };
        let found = choices.iter().find(|(word, _)| *word == text);
        found.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.at(name).wrong(one_of(&words))
        })
    }

    /// Each of `items`, which were read of this list, `checked` at its place.
    pub fn each<T, U>(
        &self,
        items: Vec<T>,
        checked: impl Fn(T, &Self) -> Result<U, Wrong>,
    ) -> Result<Vec<U>, Wrong> {
        let items = items.into_iter().enumerate();
        items
            .map(|(index, item)| checked(item, &self.element(index)))
            .collect()
    }

    /// The names that this object has and that are none of `known`.
    pub fn unknown(&self, known: &[&str]) -> Vec<&'a str> {
        let names = self
            .object
            .into_iter()
            .flat_map(Map::keys)
            .map(String::as_str);
        names
            .filter(|key| !known.iter().any(|name| self.is(key, name)))
            .collect()
    }

    /// The error that it is not as it `must` be; what it is comes behind that.
    pub fn wrong(&self, must: impl Into<String>) -> Wrong {
        self.placed(Wrong::must(must))
    }

    /// The error that it cannot be used; `sentence` says it all.
    pub fn refused(&self, sentence: impl Into<String>) -> Wrong {
        self.placed(Wrong::sentence(sentence))
    }

    /// `wrong` of this value, unless it is of one in it.
    pub(crate) fn placed(&self, wrong: Wrong) -> Wrong {
        match wrong.place.is_empty() {
            false => wrong,
            true => Wrong {
                place: self.place.to_string(),
                value: self.json(),
                ..wrong
            },
        }
    }

    /// Whether `key` is how `name` may be written here.
    fn is(&self, key: &str, name: &str) -> bool {
        key == name || (self.any_case && key.eq_ignore_ascii_case(name))
    }
}

pub(crate) fn one_of(words: &[&str]) -> String {
    format!("must be one of {}", words.join(", "))
}
