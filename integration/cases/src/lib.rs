// SPDX-License-Identifier: Apache-2.0
//! Test cases as data. A JSON file says how its case differs from a base document, and a text file next to it has the
//! expected result. [`golden`] compares the result with this text.
//!
//! A case is `NAME.json`, its text `NAME.txt`. An object with a member `base` stands for the document of that name; its
//! other members change this document, as a JSON merge patch does (RFC 7396). `"base": "link/vf"` is the file
//! `bases/link/vf.json`, with `bases` next to the directory of the cases. A base can have a base too.
//!
//! A merge patch cannot change single elements of a list. So here, as in Kubernetes' strategic merge patch, an object
//! can change a list of objects: its members are the list's elements by name:
//!
//! ```json
//! {"base": "observed/vf", "host": {"links": {"eth2": {"up": false}, "eth3": null}}}
//! ```
//!
//! This sets `eth2` down and removes `eth3`. A name that is not in the list adds an element at the end. An element's
//! name is the value of the first of [`NAMES`] that is among its members. The name of any other element is its position,
//! from 0.

mod bases;
pub mod golden;
mod merge;

pub use merge::NAMES;

use merge::Bases;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns the cases in `directory` of the package at `manifest`, sorted.
///
/// # Panics
/// The directory cannot be read, a text has no case, or neither a case nor another base names one of the bases.
#[track_caller]
pub fn list(manifest: &str, directory: &str) -> Vec<PathBuf> {
    let is_case = |path: &Path| path.extension().is_some_and(|it| it == "json");
    let cases = golden::cases(manifest, directory, is_case);
    let others = golden::cases(manifest, directory, |path| !is_case(path));
    let stray = others
        .iter()
        .find(|it| !cases.contains(&it.with_extension("json")));
    assert_eq!(stray, None, "this text has no case");
    let bases = Path::new(manifest).join(directory).with_file_name("bases");
    let unused = bases::unused(&bases, &cases);
    assert_eq!(unused, None, "no case is made from this base");
    cases
}

/// Asserts that the text that `made` returns for each case is the text next to the case
/// ([`golden::assert_as_written`]).
///
/// # Panics
/// A text differs.
#[track_caller]
pub fn assert_as_written(cases: &[PathBuf], made: impl Fn(&Path) -> String) {
    golden::assert_as_written(cases, |case| case.with_extension("txt"), made);
}

/// Returns the document that the case at `path` stands for, with its bases merged.
///
/// # Panics
/// The file cannot be read, one of its bases is missing, or its changes do not fit its base.
#[track_caller]
pub fn read(path: &Path) -> Value {
    let bases = path.parent().and_then(Path::parent).expect("a directory");
    let read = merge::read(path, &Bases(&bases.join("bases")));
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the document of [`read`] as a `T`.
///
/// # Panics
/// As in [`read`]; also if the document is no `T`.
#[track_caller]
pub fn read_as<T: DeserializeOwned>(path: &Path) -> T {
    parse(path, read(path))
}

/// Deserializes `value`, which is from the case at `path`, to `T`.
///
/// # Panics
/// `value` is no `T`.
#[track_caller]
pub fn parse<T: DeserializeOwned>(path: &Path, value: Value) -> T {
    let text = value.to_string();
    let parsed = serde_json::from_value(value);
    parsed.unwrap_or_else(|error| panic!("{}: {error}: {text}", path.display()))
}
