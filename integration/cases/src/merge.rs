// SPDX-License-Identifier: Apache-2.0
//! Makes a document from its base and the case's changes.

use serde_json::{Map, Value};
use std::{fs, path::Path};

/// The members that can name an element of a list. An element's name is the value of the first of these that it has.
pub const NAMES: [&str; 8] = [
    "name",
    "address",
    "podName",
    "device",
    "number",
    "index",
    "ip",
    "destination",
];

const NOT_THERE: &str = "it is not there to be taken away";

/// The directory with the base documents.
pub(crate) struct Bases<'a>(pub(crate) &'a Path);

/// Returns the document in `file`, merged with its bases.
pub(crate) fn read(file: &Path, bases: &Bases<'_>) -> Result<Value, String> {
    let text = fs::read(file).map_err(|error| error.to_string())?;
    let patch = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let mut document = Value::Null;
    merge(&mut document, &patch, bases)?;
    Ok(document)
}

fn merge(target: &mut Value, patch: &Value, bases: &Bases<'_>) -> Result<(), String> {
    match patch {
        Value::Object(patch) => merge_members(target, patch, bases),
        Value::Array(patch) => {
            *target = vec![Value::Null; patch.len()].into();
            let elements = target.as_array_mut().into_iter().flatten();
            elements
                .zip(patch)
                .try_for_each(|(element, patch)| merge(element, patch, bases))
        }
        scalar => {
            *target = scalar.clone();
            Ok(())
        }
    }
}

fn merge_members(
    target: &mut Value,
    patch: &Map<String, Value>,
    bases: &Bases<'_>,
) -> Result<(), String> {
    let base = match patch.get("base") {
        None => None,
        Some(base) => Some(
            base.as_str()
                .ok_or("base: not the name of a base document")?,
        ),
    };
    if let Some(base) = base {
        let file = bases.0.join(base).with_extension("json");
        *target = read(&file, bases).map_err(|error| format!("base {base}: {error}"))?;
    }
    if !target.is_object() && !has_elements(target) {
        *target = Value::Object(Map::new());
    }
    for (name, patch) in patch.iter().filter(|(name, _)| *name != "base") {
        let merged = match target {
            Value::Array(list) => merge_element(list, name, patch, bases),
            _ => merge_member(target, name, patch, bases),
        };
        merged.map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Returns true if `target` is a list that begins with an object, so that its elements can have names.
fn has_elements(target: &Value) -> bool {
    let list = target.as_array();
    list.is_some_and(|list| list.first().is_some_and(Value::is_object))
}

fn merge_member(
    target: &mut Value,
    name: &str,
    patch: &Value,
    bases: &Bases<'_>,
) -> Result<(), String> {
    if !patch.is_null() {
        return merge(&mut target[name], patch, bases);
    }
    let members = target.as_object_mut().expect("no list");
    let removed = members.shift_remove(name);
    removed.map(drop).ok_or(NOT_THERE.into())
}

fn merge_element(
    list: &mut Vec<Value>,
    name: &str,
    patch: &Value,
    bases: &Bases<'_>,
) -> Result<(), String> {
    let names = list.iter().enumerate().map(|(at, it)| name_of(at, it).1);
    let found = (0..).zip(names).filter(|(_, it)| it == name);
    let found: Vec<usize> = found.map(|(at, _)| at).collect();
    match (found.as_slice(), patch) {
        ([at], Value::Null) => {
            list.remove(*at);
            Ok(())
        }
        ([at], patch) => merge(&mut list[*at], patch, bases),
        ([], Value::Null) => Err(NOT_THERE.into()),
        ([], patch) => {
            list.push(new_element(list, name, patch, bases)?);
            Ok(())
        }
        (several, _) => Err(format!("{} elements have this name", several.len())),
    }
}

/// Returns a new element called `name`. The member for the name is the member that names the first element of `list`.
fn new_element(
    list: &[Value],
    name: &str,
    patch: &Value,
    bases: &Bases<'_>,
) -> Result<Value, String> {
    let Some((Some(member), _)) = list.first().map(|it| name_of(0, it)) else {
        return Err("the list's elements have no names: write the whole list".into());
    };
    let mut element = Value::Null;
    merge(&mut element, patch, bases)?;
    let members = element.as_object_mut().ok_or("not an object")?;
    let name = match list[0][member] {
        Value::Number(_) => name
            .parse::<u64>()
            .map_err(|error| error.to_string())?
            .into(),
        _ => name.into(),
    };
    members.insert(member.to_owned(), name);
    Ok(element)
}

/// Returns the member that names `element`, and its name. Without such a member the name is the position `at`.
fn name_of(at: usize, element: &Value) -> (Option<&'static str>, String) {
    let named = NAMES.iter().find_map(|member| match &element[*member] {
        Value::String(name) => Some((Some(*member), name.clone())),
        Value::Number(number) => Some((Some(*member), number.to_string())),
        _ => None,
    });
    named.unwrap_or_else(|| (None, at.to_string()))
}
