// SPDX-License-Identifier: Apache-2.0
//! Upgrades in both directions: one version attaches, and another one checks and restores. The other version is a real
//! one, the commit that `scripts/versions` builds.

use integration::{Invocation, Node, Snapshot, ipam};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// `rdma-cni` of this tree, and of the earlier version.
struct Two {
    node: Node,
    other: PathBuf,
    before: Snapshot,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    This,
    Other,
}

impl Two {
    #[track_caller]
    fn versions() -> Self {
        let other = integration::earlier_rdma_cni();
        let node = Node::furnished();
        let before = Snapshot::of(&node.host);
        Self {
            node,
            other,
            before,
        }
    }

    fn call(&self, who: Who, command: &str, netns: &Path) -> Invocation<'_> {
        let call = self.node.invoke(command, "a", netns);
        match who {
            Who::This => call,
            Who::Other => call.program(&self.other),
        }
    }

    /// ADD by one, CHECK and DEL by the other; then the same with the pod gone before.
    fn attach_and_restore(&self, configuration: &Value, first: Who, second: Who) {
        let mut checked = configuration.clone();
        for gone in [false, true] {
            let pod = self.node.pod("pod");
            let run = |who, command: &str, configuration: &Value| {
                self.call(who, command, pod.path())
                    .input(configuration)
                    .run()
            };
            checked["prevResult"] = run(first, "ADD", configuration).result();
            assert_eq!(self.node.records().len(), 1, "{first:?} wrote a record");
            run(second, "CHECK", &checked).silent();
            let netns = if gone { Path::new("") } else { pod.path() };
            self.call(second, "DEL", netns)
                .input(configuration)
                .run()
                .silent();
            self.before.assert_restored(&self.node.host);
            let left = self.node.records();
            assert!(left.is_empty(), "{second:?} left {left:?} of {first:?}");
        }
    }

    fn both_ways(&self, configuration: &Value) {
        self.attach_and_restore(configuration, Who::Other, Who::This);
        self.attach_and_restore(configuration, Who::This, Who::Other);
    }
}

#[test]
fn pods_with_moved_rails_outlive_upgrades_in_both_directions() {
    let two = Two::versions();
    two.both_ways(&two.node.configuration(&["eth1", "eth2"]));
}

#[test]
fn pods_with_shared_rails_outlive_upgrades_in_both_directions() {
    let two = Two::versions();
    let mut configuration = two.node.configuration(&["eth1", "eth2"]);
    configuration["mode"] = json!("share");
    two.both_ways(&configuration);
}

#[test]
fn pods_with_addresses_by_ipam_outlive_upgrades_in_both_directions() {
    for mode in ["move", "share"] {
        let two = Two::versions();
        let answer = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] });
        two.node.ipam.answer("ADD", &answer);
        let mut configuration = two.node.configuration(&["eth1"]);
        configuration["mode"] = json!(mode);
        configuration["ipam"] = json!({ "type": ipam::NAME });
        two.both_ways(&configuration);
        let [given, back] = ["ADD", "DEL"].map(|command| two.node.ipam.interfaces(command));
        assert_eq!(given.len(), 4, "{mode}");
        assert_eq!(back, given, "{mode}: every address was released");
    }
}
