// SPDX-License-Identifier: Apache-2.0
//! Reading fields of a JSON object such that a wrong value is told by its full name.

use crate::ConfError;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// An object of the configuration and the name it has there.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of the whole configuration.
    pub fn root(object: &'a Map<String, Value>) -> Self {
        Self {
            object: Some(object),
            path: "",
        }
    }

    /// The fields of `object`, which is called `path`.
    pub fn at(object: &'a Map<String, Value>, path: &'a str) -> Self {
        Self {
            object: Some(object),
            path,
        }
    }

    /// The object called `name`; one that is not there has no fields.
    pub fn object(self, name: &'a str) -> Result<Self, ConfError> {
        let object = match self.get(name) {
            None => None,
            Some(Value::Object(object)) => Some(object),
            Some(_) => return Err(self.wrong(name, "must be an object")),
        };
        Ok(Self { object, path: name })
    }

    /// The value called `name`; `null` counts as not there, as for Go's decoders.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.object?.get(name).filter(|value| !value.is_null())
    }

    /// Whether there is a value called `name`, `null` included.
    pub fn has(self, name: &str) -> bool {
        self.object.is_some_and(|object| object.contains_key(name))
    }

    /// A text.
    pub fn string(self, name: &str) -> Result<Option<&'a str>, ConfError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "must be a text")),
        }
    }

    /// True or false.
    pub fn boolean(self, name: &str) -> Result<Option<bool>, ConfError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(name, "must be true or false")),
        }
    }

    /// A whole number from `min` to `max`.
    pub fn number(self, name: &str, min: u32, max: u32) -> Result<Option<u32>, ConfError> {
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

    /// A list.
    pub fn list(self, name: &str) -> Result<Option<&'a Vec<Value>>, ConfError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(name, "must be a list")),
        }
    }

    /// A path that starts with `/`.
    pub fn absolute_path(self, name: &str) -> Result<Option<PathBuf>, ConfError> {
        match self.string(name)? {
            None => Ok(None),
            Some(text) if text.starts_with('/') => Ok(Some(PathBuf::from(text))),
            Some(_) => Err(self.wrong(name, "must be an absolute path")),
        }
    }

    /// One of `choices`, by its word.
    pub fn choice<T: Copy>(
        self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfError> {
        let Some(text) = self.string(name)? else {
            return Ok(None);
        };
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        choices
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, choice)| Some(*choice))
            .ok_or_else(|| self.wrong(name, &format!("must be one of {}", words.join(", "))))
    }

    /// The error that `name` here has a value that is not as `expected`.
    pub fn wrong(self, name: &str, expected: &str) -> ConfError {
        ConfError::Value {
            field: self.name_of(name),
            value: self.get(name).cloned().unwrap_or(Value::Null).to_string(),
            expected: expected.to_owned(),
        }
    }

    fn name_of(self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }
}
