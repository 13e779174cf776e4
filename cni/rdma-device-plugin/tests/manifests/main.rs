// SPDX-License-Identifier: Apache-2.0
//! Tests of the files in `conf/` for a cluster: Kubernetes, the daemon and the plugins accept them, and the daemon gets
//! the necessary permissions and no more. `scripts/manifests --check` compares `conf/manifests` and
//! `integration/manifests/rendered` with Helm's output of the chart.

mod chain;
mod claims;
mod cluster;
mod examples;
mod fabric;
mod kubernetes;
mod monitoring;
mod networks;
mod paths;
mod platforms;
mod refused;
mod report;
mod running;
mod wanted;

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the documents of a YAML file. Leaves out documents that have only comments.
fn documents(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let documents: Vec<Value> = documents.into_iter().filter(|it| !it.is_null()).collect();
    assert!(!documents.is_empty(), "{file:?} is empty");
    documents
}

fn yaml_files(directory: &str) -> Vec<PathBuf> {
    let directory = root().join(directory);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(yaml_files(&path.to_string_lossy()));
        } else if path.extension().is_some_and(|it| it == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    files
}
