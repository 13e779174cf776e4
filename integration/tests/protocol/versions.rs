// SPDX-License-Identifier: Apache-2.0
//! VERSION, the supported versions, and output for an operator.

use crate::untouched_node;
use integration::Node;
use serde_json::json;

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

#[test]
fn version_needs_no_input_and_nothing_but_the_command() {
    let node = Node::new();
    let answer = node.bare().env("CNI_COMMAND", "VERSION").run().result();
    assert_eq!(answer["supportedVersions"], json!(VERSIONS));
    assert!(VERSIONS.contains(&answer["cniVersion"].as_str().expect("a cniVersion")));
}

#[test]
fn version_answers_in_the_requested_version() {
    let node = Node::new();
    for version in VERSIONS {
        let input = json!({"cniVersion": version});
        let answer = node
            .bare()
            .env("CNI_COMMAND", "VERSION")
            .input(&input)
            .run()
            .result();
        assert_eq!(answer["cniVersion"], version);
        assert_eq!(answer["supportedVersions"], json!(VERSIONS));
    }
}

#[test]
fn versions_that_are_not_spoken_are_incompatible() {
    let (node, pod, before) = untouched_node();
    let mut configuration = node.configuration(&["eth1"]);
    for version in ["0.1.0", "0.2.0", "0.3.2", "1.2.0", "2.0.0", "one"] {
        configuration["cniVersion"] = version.into();
        let text = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(1);
        assert!(text.contains(version) && text.contains("1.1.0"), "{text}");
    }
    configuration
        .as_object_mut()
        .expect("an object")
        .remove("cniVersion");
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(1);
    assert!(
        text.contains("cniVersion is missing, which means 0.1.0"),
        "{text}"
    );
    node.assert_restored(&before);
}

#[test]
fn the_program_prints_its_version() {
    let node = Node::new();
    let outcome = node.bare().argument("--version").run();
    assert!(outcome.status.success(), "{outcome}");
    assert!(outcome.stdout.starts_with("rdma-cni 0."), "{outcome}");
}

#[test]
fn an_unknown_command_is_named_with_the_known_ones() {
    let node = Node::new();
    for (words, wrong) in [(&["pln"][..], "\"pln\""), (&["plan", "x"], "\"plan x\"")] {
        let call = words
            .iter()
            .fold(node.bare(), |call, word| call.argument(word));
        let outcome = call.run();
        assert_eq!(outcome.status.code(), Some(2), "{outcome}");
        assert!(outcome.stderr.contains(wrong), "{outcome}");
        assert!(outcome.stderr.contains("rdma-cni plan"), "{outcome}");
    }
}
