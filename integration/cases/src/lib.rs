// SPDX-License-Identifier: Apache-2.0
//! Test cases as data: a file says what is special in its case, and a file of text beside it what
//! comes of it. [`golden`] compares what is made with what was written.
//!
//! A case is `NAME.json`, the text `NAME.txt`. An object in a case that has a member `base` is the
//! document of that name, and the other members are what differs from it: a JSON merge patch
//! (RFC 7396). `"base": "link/vf"` is `bases/link/vf.json`, where `bases` is beside the directory of
//! the cases. A base can have a base of its own.
//!
//! A merge patch cannot change single elements of a list. So here, as in Kubernetes' strategic
//! merge patch, an object in the place of a list of objects has the list's elements by name:
//!
//! ```json
//! {"base": "observed/vf", "host": {"links": {"eth2": {"up": false}, "eth3": null}}}
//! ```
//!
//! `eth2` is down, `eth3` is not there; a name that the list does not have is a new element at its
//! end. An element's name is the first of [`NAMES`] that it has. Elements without one are counted
//! from 0.

mod bases;
pub mod golden;
mod merge;

pub use merge::NAMES;

use merge::Bases;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The cases in `directory`, below a package's `manifest` directory; sorted.
///
/// # Panics
/// The directory cannot be read, or has a text without a case; or there is a base that nothing is
/// made from.
#[track_caller]
pub fn list(manifest: &str, directory: &str) -> Vec<PathBuf> {
    let is_case = |path: &Path| path.extension().is_some_and(|it| it == "json");
    let cases = golden::cases(manifest, directory, is_case);
    let others = golden::cases(manifest, directory, |path| !is_case(path));
    let stray = others
        .iter()
        .find(|it| !cases.contains(&it.with_extension("json")));
    assert_eq!(stray, None, "it is of no case");
    let bases = Path::new(manifest).join(directory).with_file_name("bases");
    let unused = bases::unused(&bases, &cases);
    assert_eq!(unused, None, "no case is made from this base");
    cases
}

/// Asserts that `made` of every case is the text beside it ([`golden::assert_as_written`]).
///
/// # Panics
/// Something differs.
#[track_caller]
pub fn assert_as_written(cases: &[PathBuf], made: impl Fn(&Path) -> String) {
    golden::assert_as_written(cases, |case| case.with_extension("txt"), made);
}

/// The document that the file at `path` stands for.
///
/// # Panics
/// The file cannot be read, a base of it is not there, or it removes what is not there.
#[track_caller]
pub fn read(path: &Path) -> Value {
    let bases = path.parent().and_then(Path::parent).expect("a directory");
    let read = merge::read(path, &Bases(&bases.join("bases")));
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// [`read`], as what it is.
///
/// # Panics
/// As [`read`] does; or the document is no `T`.
#[track_caller]
pub fn read_as<T: DeserializeOwned>(path: &Path) -> T {
    parse(path, read(path))
}

/// `value`, which is from the case at `path`, as what it is.
///
/// # Panics
/// It is no `T`.
#[track_caller]
pub fn parse<T: DeserializeOwned>(path: &Path, value: Value) -> T {
    let text = value.to_string();
    let parsed = serde_json::from_value(value);
    parsed.unwrap_or_else(|error| panic!("{}: {error}: {text}", path.display()))
}
