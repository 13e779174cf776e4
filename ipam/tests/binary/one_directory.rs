// SPDX-License-Identifier: Apache-2.0
//! Tests of two plugins of one list. They share a directory if their `dataDir` is the same.

use super::node::{Call, Node, call};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns ADD of the pod's own network and ADD of a rail, as a list's plugins call them. `theirs` is true for
/// host-local.
fn pod(container: &str, primary: &Value, rail: &Value, theirs: [bool; 2]) -> [Call; 2] {
    let call = |interface: &str, conf: &Value, is_theirs: bool| {
        let call = call("ADD", container, conf).env("CNI_IFNAME", interface);
        if is_theirs { call.host_local() } else { call }
    };
    [
        call("eth0", primary, theirs[0]),
        call("rdma0", rail, theirs[1]),
    ]
}

/// The range sets of both plugins have the number 0. host-local uses the pointer file with this number even if
/// `rdma-ipam` wrote it. In this case `rdma-ipam` starts its round robin again once.
#[test]
fn each_of_two_sets_of_one_number_goes_round() {
    for (theirs, primaries) in [
        ([false, false], [2, 3, 4, 5]),
        ([true, false], [2, 3, 4, 5]),
        ([false, true], [2, 2, 3, 4]),
    ] {
        let node = Node::new();
        let primary = node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}]]}));
        let rail = node.conf(json!({"ranges": [[{"subnet": "fd77::/64"}]]}));
        for (rails, primarys) in (2..).zip(primaries) {
            let pod = pod(&format!("c{rails}"), &primary, &rail, theirs);
            let given = pod.clone().map(|add| add.address());
            let expected = [format!("10.77.0.{primarys}"), format!("fd77::{rails}")];
            assert_eq!(given, expected, "host-local: {theirs:?}");
            for add in pod {
                add.env("CNI_COMMAND", "DEL").ok();
            }
        }
        assert_eq!(node.leases(), [""; 0]);
    }
}

/// The round robin continues in the range that an operator changed. It also continues in the previous range if the
/// operator restores it.
#[test]
fn a_range_that_was_changed_is_gone_round() {
    let node = Node::new();
    let of = |subnet: &str| node.conf(json!({"subnet": subnet}));
    let mut container = 0;
    let mut next = |subnet: &str| {
        container += 1;
        let add = call("ADD", &format!("c{container}"), &of(subnet));
        let address = add.address();
        add.env("CNI_COMMAND", "DEL").ok();
        address
    };
    let given = ["10.77.0.0/24", "10.78.0.0/24"].map(|subnet| [next(subnet), next(subnet)]);
    assert_eq!(
        given,
        [["10.77.0.2", "10.77.0.3"], ["10.78.0.2", "10.78.0.3"]]
    );
    assert_eq!(next("10.77.0.0/24"), "10.77.0.4");
    assert_eq!(next("10.78.0.0/24"), "10.78.0.4");
}

fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files(&path, ending)),
            false if path.to_string_lossy().ends_with(ending) => found.push(path),
            false => {}
        }
    }
    found
}

/// Returns the blocks of `page` that follow a line ending with `start`. A block ends before the first line for which
/// `is_end` returns true.
fn blocks(page: &str, start: &str, is_end: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = page.lines();
    let mut found = vec![];
    while lines.by_ref().any(|line| line.ends_with(start)) {
        let block: Vec<&str> = lines.by_ref().take_while(|line| !is_end(line)).collect();
        found.push(block.join("\n"));
    }
    found
}

/// Returns the JSON examples in `conf` and `docs`, each with its file: CNI lists, entries of a list, and others.
fn examples() -> Vec<(PathBuf, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (conf, docs) = (root.join("conf"), root.join("docs"));
    let mut examples = vec![];
    for path in files(&conf, ".conflist") {
        let text = fs::read_to_string(&path).expect("a list");
        examples.push((path, text));
    }
    for path in files(&conf, ".yaml") {
        let text = fs::read_to_string(&path).expect("a manifest");
        let literals = blocks(&text, "config: |", |line| line == "---");
        examples.extend(literals.into_iter().map(|it| (path.clone(), it)));
    }
    for path in files(&docs, ".md") {
        let text = fs::read_to_string(&path).expect("a page");
        let fenced = blocks(&text, "```json", |line| line == "```");
        examples.extend(fenced.into_iter().map(|it| (path.clone(), it)));
    }
    let parsed = examples.into_iter().filter_map(|(path, text)| {
        // reads only the first document: a manifest's file may have more
        let value = serde_json::Deserializer::from_str(&text).into_iter().next();
        Some((path, value?.ok()?))
    });
    parsed.collect()
}

/// A pod's own network and its rails have separate directories for their round robins.
#[test]
fn no_example_has_two_ipam_plugins_in_one_directory() {
    let mut seen = 0;
    for (path, example) in examples() {
        // an entry belongs to a list that also has the plugin of the pod's own network
        let own = json!({"ipam": {"type": "host-local"}});
        let plugins: Vec<&Value> = match example["plugins"].as_array() {
            Some(plugins) => plugins.iter().collect(),
            None if example["ipam"]["ranges"].is_array() => vec![&own, &example],
            None => continue,
        };
        let mut directories = BTreeSet::new();
        for ipam in plugins.iter().map(|plugin| &plugin["ipam"]) {
            if ipam.is_object() {
                seen += 1;
                let directory = ipam["dataDir"].as_str().unwrap_or("the default");
                assert!(directories.insert(directory), "{path:?}: {directory}");
            }
        }
    }
    assert_eq!(seen, 13, "IPAM plugins");
}
