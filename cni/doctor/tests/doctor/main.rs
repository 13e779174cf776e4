// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin doctor`'s judgement as data. Each file in `cases` has the name of a healthy node in
//! `bases`, and what is different there, as a JSON merge patch (RFC 7396); beside it is what is
//! told, with the exit code.
//!
//! `UPDATE_PLANS=1 cargo test -p doctor --test doctor` writes every text anew, to be read before
//! it is committed.

use doctor::{examine, facts::Facts};
use integration::golden;
use serde_json::{Map, Value};
use std::{fs, path::Path};

#[test]
fn nodes_are_judged_as_written() {
    let is_case = |path: &Path| path.extension().is_some_and(|it| it == "json");
    let cases = golden::cases(env!("CARGO_MANIFEST_DIR"), "tests/doctor/cases", is_case);
    assert!(cases.len() >= 30, "{}", cases.len());
    golden::assert_as_written(&cases, |case| case.with_extension("txt"), told_of);
}

#[test]
fn the_documentation_shows_what_is_told() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let case = manifest.join("tests/doctor/cases/as-in-the-documentation.json");
    let told = told_of(&case);
    let (told, _) = told.split_once("exit code").expect("an exit code");
    let page = fs::read_to_string(manifest.join("../../docs/doctor.md")).expect("a page");
    assert!(page.contains(told), "docs/doctor.md does not have:\n{told}");
}

#[test]
fn facts_come_back_as_they_were_printed() {
    for base in ["bonded", "exclusive"] {
        let facts: Facts = serde_json::from_value(base_of(base)).expect("facts");
        let printed = serde_json::to_value(&facts).expect("JSON");
        let read: Facts = serde_json::from_value(printed).expect("facts");
        assert_eq!(read, facts, "{base}");
    }
}

fn told_of(case: &Path) -> String {
    let value = read(case);
    let mut facts = base_of(value["base"].as_str().expect("a base"));
    merge(&mut facts, &value["patch"]);
    let facts: Facts =
        serde_json::from_value(facts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let findings = examine::examine(&facts);
    let code = doctor::code(&facts, &findings, false);
    format!("{}exit code {code}\n", doctor::report(&facts, &findings))
}

fn base_of(name: &str) -> Value {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor/bases");
    read(&directory.join(name).with_extension("json"))
}

fn read(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// RFC 7396; besides, an object with numbers as names changes single elements of a list.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if let Value::Array(list) = target {
        for (index, patch) in patch {
            let index: usize = index.parse().expect("an index");
            merge(&mut list[index], patch);
        }
        return;
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        unreachable!("it is one now");
    };
    for (name, patch) in patch {
        match patch {
            Value::Null => {
                target.remove(name);
            }
            patch => merge(target.entry(name.clone()).or_insert(Value::Null), patch),
        }
    }
}
