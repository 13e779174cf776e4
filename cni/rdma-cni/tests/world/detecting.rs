// SPDX-License-Identifier: Apache-2.0
//! Tests of an entry with `detect`: `rdma-cni` records the runtime's calls, and does nothing else.

use crate::node::{Node, Pod};
use rdma_netns::RdmaMode;
use serde_json::{Value, json};
use std::fs;

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0";

struct Detected {
    node: Node,
    pod: Pod,
}

impl Detected {
    fn new() -> Self {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        Self { node, pod }
    }

    /// Creates the directory by which the daemon requests records of calls.
    fn ask(&self) {
        fs::create_dir_all(self.node.state.path().join("state/detected")).expect("a directory");
    }

    fn run(&self, command: &str, result: Option<&Value>, args: Option<&str>) -> Value {
        self.run_of(&self.pod, command, result, args)
    }

    fn run_of(
        &self,
        pod: &Pod,
        command: &str,
        result: Option<&Value>,
        args: Option<&str>,
    ) -> Value {
        let mut config = self.node.config(json!({ "detect": true }));
        if let Some(result) = result {
            config["prevResult"] = result.clone();
        }
        let (mut output, kernel) = (vec![], &self.node.kernel);
        self.node
            .run_on(kernel, command, Some(pod), &config, args, &mut output);
        serde_json::from_slice(&output).unwrap_or(Value::Null)
    }

    fn notes(&self) -> Vec<String> {
        let directory = self.node.state.path().join("state/detected");
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|it| it.file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        names
    }
}

fn previous() -> Value {
    json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0" }], "dns": {} })
}

#[test]
fn the_detecting_entry_logs_pods_and_changes_nothing() {
    let it = Detected::new();
    let before = it.node.snapshot();
    it.ask();
    let result = previous();
    assert_eq!(it.run("ADD", Some(&result), Some(POD)), result);
    assert_eq!(it.notes(), ["ADD@rails"]);
    for verb in ["CHECK", "STATUS", "GC"] {
        assert_eq!(
            it.run(verb, Some(&result), Some(POD)),
            Value::Null,
            "{verb}"
        );
    }
    assert_eq!(it.notes(), ["ADD@rails"]);
    // CRI-O calls DEL after a boot, for a pod of the previous boot
    let gone = Pod {
        netns: "/run/netns/gone".into(),
        ..it.pod.clone()
    };
    assert_eq!(
        it.run_of(&gone, "DEL", Some(&result), Some(POD)),
        Value::Null
    );
    assert_eq!(it.notes(), ["ADD@rails"]);
    for _ in 0..2 {
        assert_eq!(it.run("DEL", Some(&result), Some(POD)), Value::Null);
        assert_eq!(it.notes(), ["ADD@rails", "DEL@rails"]);
    }
    it.node.must_be(&before, "nothing is attached");
    assert_eq!(it.node.kernel.observations(), 0);
}

/// Calls without a pod's name are not recorded, and neither is a DEL after a failed start: CRI-O then calls plugins
/// that it does not call at a pod's end.
#[test]
fn a_call_without_signs_of_the_runtime_is_not_noted() {
    let it = Detected::new();
    it.ask();
    it.run("ADD", Some(&previous()), None);
    it.run("DEL", Some(&previous()), None);
    it.run("DEL", None, Some(POD));
    assert_eq!(it.notes(), [] as [&str; 0]);
}

#[test]
fn without_a_request_nothing_is_written() {
    let it = Detected::new();
    let result = it.run("ADD", None, Some(POD));
    assert_eq!(result, json!({ "cniVersion": "1.1.0", "dns": {} }));
    assert!(!it.node.state.path().join("state").exists());
}
