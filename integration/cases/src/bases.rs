// SPDX-License-Identifier: Apache-2.0
//! Finds base documents that neither a case nor another base names.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the name of a base below `bases` that neither one of `cases` nor another base names.
pub(crate) fn unused(bases: &Path, cases: &[PathBuf]) -> Option<String> {
    let mut files = vec![];
    find(bases, &mut files);
    let mut named = BTreeSet::new();
    for file in cases.iter().chain(&files) {
        let text = fs::read(file).unwrap_or_default();
        name(
            &serde_json::from_slice(&text).unwrap_or_default(),
            &mut named,
        );
    }
    let names = files.iter().filter_map(|file| {
        let name = file.strip_prefix(bases).ok()?.with_extension("");
        Some(name.to_str()?.to_owned())
    });
    names.into_iter().find(|name| !named.contains(name))
}

fn find(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => find(&path, files),
            false => files.push(path),
        }
    }
}

/// Adds the bases that `value` names, at any depth, to `named`.
fn name(value: &Value, named: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            named.extend(
                members
                    .get("base")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            members.values().for_each(|value| name(value, named));
        }
        Value::Array(list) => list.iter().for_each(|value| name(value, named)),
        _ => {}
    }
}
