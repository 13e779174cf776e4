// SPDX-License-Identifier: Apache-2.0
//! A value of a configuration, together with its path.

use crate::{Wrong, line::escaped, wrong::Kind};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A value of a configuration. A missing value has only its path.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    pub(crate) value: Option<&'a Value>,
    pub(crate) object: Option<&'a Map<String, Value>>,
    pub(crate) place: Cow<'a, str>,
    pub(crate) any_case: bool,
}

impl<'a> Field<'a> {
    /// Returns the whole configuration as a field.
    pub fn root(object: &'a Map<String, Value>) -> Self {
        Self {
            value: None,
            object: Some(object),
            place: "".into(),
            any_case: false,
        }
    }

    /// Returns this field, with member names that match in any case, as in Go's decoder.
    pub fn any_case(self) -> Self {
        Self {
            any_case: true,
            ..self
        }
    }

    /// Returns this field, with member names that match only exactly.
    pub fn exact_case(self) -> Self {
        Self {
            any_case: false,
            ..self
        }
    }

    /// Returns the path of the value, such as `resourceList[1]`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns true if the field has a value. `null` counts as no value.
    pub fn is_there(&self) -> bool {
        self.value.is_some() || self.object.is_some()
    }

    /// Returns the value. Returns `None` for a missing field, and for the whole configuration.
    pub fn value(&self) -> Option<&'a Value> {
        self.value
    }

    /// Returns the value as JSON in one line ([`json`](crate::json)). Returns `None` for a missing field.
    pub fn json(&self) -> Option<String> {
        let object = || serde_json::to_string(self.object?).ok();
        self.value
            .map(Value::to_string)
            .or_else(object)
            .map(escaped)
    }

    /// Returns true if the value is a list.
    pub fn is_list(&self) -> bool {
        self.value.is_some_and(Value::is_array)
    }

    /// Returns true if the value is an object.
    pub fn is_object(&self) -> bool {
        self.object.is_some()
    }

    /// Returns true if this object has a member with exactly the name `name`. The member may be `null`.
    pub fn has(&self, name: &str) -> bool {
        self.object.is_some_and(|object| object.contains_key(name))
    }

    /// Returns the member `name` of this object. A missing member has only its path.
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

    /// Returns the element `index` of this list.
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

    /// Returns the member `name`.
    ///
    /// # Errors
    /// The member has a value that is no object.
    pub fn object(&self, name: &'a str) -> Result<Self, Wrong> {
        let field = self.at(name);
        match field.is_there() && !field.is_object() {
            true => Err(field.wrong("must be an object")),
            false => Ok(field),
        }
    }

    /// Returns the elements of this list. Returns no elements if the list is missing.
    ///
    /// # Errors
    /// The value is no list.
    pub fn list(&self) -> Result<Vec<Self>, Wrong> {
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok((0..list.len()).map(|it| self.element(it)).collect()),
            Some(_) => Err(self.wrong("must be a list")),
        }
    }

    /// Returns the elements of the list `name`. Returns no elements if the list is missing.
    ///
    /// # Errors
    /// The value is no list, or an element is no object.
    pub fn objects(&self, name: &'a str) -> Result<Vec<Self>, Wrong> {
        let elements = self.at(name).list()?;
        match elements.iter().find(|element| !element.is_object()) {
            None => Ok(elements),
            Some(other) => Err(other.wrong("must be an object")),
        }
    }

    /// Reads the value as a `T`. The error contains the path of the value, or of the wrong value inside it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Wrong> {
        T::deserialize(self.clone()).map_err(|wrong| self.placed(wrong))
    }

    /// Reads the member `name` as a `T`. Returns `None` if the member is missing.
    pub fn get<T: DeserializeOwned>(&self, name: &'a str) -> Result<Option<T>, Wrong> {
        self.at(name).read()
    }

    /// Reads this string. Returns `None` if the string is missing or empty, as Go's decoders do.
    pub fn text(&self) -> Result<Option<String>, Wrong> {
        let text: Option<String> = self.read()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Reads the string `name`, and returns its value from `choices`. Returns `None` if the member is missing.
    ///
    /// # Errors
    /// The string is not in `choices`.
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

    /// Calls `checked` with each of `items`, the elements that were read from this list, and with the element's field.
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

    /// Returns the member names of this object that `known` does not contain.
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

    /// Returns an error for this value, with the rule `must` that the value breaks. The error's text ends with the
    /// value.
    pub fn wrong(&self, must: impl Into<String>) -> Wrong {
        self.placed(Wrong::must(must))
    }

    /// Returns an error for this value. `sentence` is the error's whole text.
    pub fn refused(&self, sentence: impl Into<String>) -> Wrong {
        self.placed(Wrong::sentence(sentence))
    }

    /// Returns an error for this value, a known word that the program does not support. `remedy` is the reason, and
    /// what to do instead.
    pub fn unsupported(&self, remedy: &str) -> Wrong {
        let word = self.value.and_then(Value::as_str).unwrap_or_default();
        Wrong {
            kind: Kind::Unsupported,
            ..self.refused(format!("{word} is not supported: {remedy}"))
        }
    }

    /// Adds this field's path and value to the error `wrong`, if the error has no path.
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

    /// Returns true if `key` matches `name` under this field's rule for upper and lower case.
    fn is(&self, key: &str, name: &str) -> bool {
        key == name || (self.any_case && key.eq_ignore_ascii_case(name))
    }
}

pub(crate) fn one_of(words: &[&str]) -> String {
    format!("must be one of {}", words.join(", "))
}
