// SPDX-License-Identifier: Apache-2.0
//! A value of a configuration, at its place.

use crate::Wrong;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A value of a configuration, or the place where one could be.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    pub(crate) value: Option<&'a Value>,
    pub(crate) object: Option<&'a Map<String, Value>>,
    pub(crate) place: String,
    pub(crate) any_case: bool,
}

impl<'a> Field<'a> {
    /// The whole configuration.
    pub fn root(object: &'a Map<String, Value>) -> Self {
        Self {
            value: None,
            object: Some(object),
            place: String::new(),
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

    /// Where it is, `resourceList[1]`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether there is a value; `null` is none.
    pub fn is_there(&self) -> bool {
        self.value.is_some() || self.object.is_some()
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        self.value.is_some_and(Value::is_array)
    }

    /// Whether this object has something called `name`, be it `null`.
    pub fn has(&self, name: &str) -> bool {
        self.object.is_some_and(|object| object.contains_key(name))
    }

    /// What is called `name` in this object.
    pub fn at(&self, name: &str) -> Self {
        let found = self.object.and_then(|object| {
            let folded = || object.iter().find(|(key, _)| self.is(key, name));
            let value = object
                .get(name)
                .or_else(|| folded().map(|(_, value)| value));
            value.filter(|value| !value.is_null())
        });
        let place = match self.place.as_str() {
            "" => name.to_owned(),
            place => format!("{place}.{name}"),
        };
        self.child(found, place)
    }

    /// Element `index` of this list.
    pub fn element(&self, index: usize) -> Self {
        let element = self.value.and_then(|value| value.get(index));
        self.child(element, format!("{}[{index}]", self.place))
    }

    fn child(&self, value: Option<&'a Value>, place: String) -> Self {
        Self {
            value,
            object: value.and_then(Value::as_object),
            place,
            any_case: self.any_case,
        }
    }

    /// The object called `name`, or the place where it could be.
    ///
    /// # Errors
    /// It is something else.
    pub fn object(&self, name: &str) -> Result<Self, Wrong> {
        let field = self.at(name);
        match field.is_there() {
            true => field.an_object(),
            false => Ok(field),
        }
    }

    /// The objects of the list called `name`; none: it is not there.
    ///
    /// # Errors
    /// It is something else.
    pub fn objects(&self, name: &str) -> Result<Option<Vec<Self>>, Wrong> {
        let field = self.at(name);
        match field.value {
            None => Ok(None),
            Some(Value::Array(list)) => {
                let elements = (0..list.len()).map(|index| field.element(index));
                elements
                    .map(Self::an_object)
                    .collect::<Result<_, _>>()
                    .map(Some)
            }
            Some(_) => Err(field.wrong("must be a list")),
        }
    }

    fn an_object(self) -> Result<Self, Wrong> {
        match self.object {
            Some(_) => Ok(self),
            None => Err(self.wrong("must be an object")),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is wrong, or something in it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Wrong> {
        T::deserialize(self.clone()).map_err(|wrong| self.placed(wrong))
    }

    /// Reads what is called `name`; none: it is not there.
    ///
    /// # Errors
    /// It is wrong, or something in it.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Wrong> {
        self.at(name).read()
    }

    /// Where this object has fields that are none of `known`.
    pub fn unknown(&self, known: &[&str]) -> Vec<String> {
        let keys = self.object.into_iter().flat_map(Map::keys);
        let unknown = keys.filter(|key| !known.iter().any(|name| self.is(key, name)));
        unknown.map(|key| self.at(key).place).collect()
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
        if !wrong.place.is_empty() {
            return wrong;
        }
        let object = || serde_json::to_string(self.object?).ok();
        let value = self.value.map(Value::to_string).or_else(object);
        wrong.at(self.place.clone(), value)
    }

    /// Whether `key` is how `name` may be written here.
    pub(crate) fn is(&self, key: &str, name: &str) -> bool {
        key == name || (self.any_case && key.eq_ignore_ascii_case(name))
    }
}
