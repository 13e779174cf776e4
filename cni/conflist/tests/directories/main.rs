// SPDX-License-Identifier: Apache-2.0
//! Tests of the file that a runtime uses, and of changes of the directory.

mod attaching;
mod picking;
mod programs;
mod without_plugins;

use conflist::{Directory, File, Placed, Programs, Runtime};
use serde_json::Value;
use std::collections::BTreeSet;

const FLANNEL: &str = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;

const TERWAY: &str = r#"{"cniVersion":"0.4.0","name":"terway","type":"terway"}"#;

fn directory(files: &[(&str, &str)]) -> Directory {
    let files = files.iter().map(|(name, text)| File {
        name: (*name).to_owned(),
        text: Ok((*text).to_owned()),
    });
    Directory::new(files.collect())
}

fn set(files: &[&str]) -> BTreeSet<String> {
    files.iter().map(|file| (*file).to_owned()).collect()
}

/// Returns a record of `entry`, which this project added to `file`.
fn placed(file: &str, entry: Value) -> Placed {
    let entry = serde_json::from_value(entry).expect("an object");
    Placed::from([(file.to_owned(), vec![entry])])
}

/// Returns the runtime's plugin directory with these programs.
fn present(names: &[&str]) -> Programs {
    Programs {
        dirs: vec!["/opt/cni/bin".into()],
        names: Ok(set(names)),
    }
}

fn crio(network: Option<&str>) -> Runtime {
    Runtime::Crio {
        network: network.map(str::to_owned),
    }
}
