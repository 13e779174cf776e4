// SPDX-License-Identifier: Apache-2.0
//! Upgrades: an earlier version attaches, and this one checks and restores. The earlier version is a real one, the
//! commit that `scripts/versions` builds. It refuses the records of this version, whose format is higher.

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

    /// ADD by the earlier version, CHECK and DEL by this one; then the same with the pod gone before.
    fn upgrade(&self, configuration: &Value) {
        let mut checked = configuration.clone();
        for gone in [false, true] {
            let pod = self.node.pod("pod");
            let run = |who, command: &str, configuration: &Value| {
                self.call(who, command, pod.path())
                    .input(configuration)
                    .run()
            };
            checked["prevResult"] = run(Who::Other, "ADD", configuration).result();
            assert_eq!(
                self.node.records().len(),
                1,
                "the earlier version wrote a record"
            );
            run(Who::This, "CHECK", &checked).silent();
            let netns = if gone { Path::new("") } else { pod.path() };
            self.call(Who::This, "DEL", netns)
                .input(configuration)
                .run()
                .silent();
            self.before.assert_restored(&self.node.host);
            let left = self.node.records();
            assert!(left.is_empty(), "{left:?} is left");
        }
    }
}

#[test]
fn pods_with_moved_rails_outlive_an_upgrade() {
    let two = Two::versions();
    two.upgrade(&two.node.configuration(&["eth1", "eth2"]));
}

#[test]
fn pods_with_shared_rails_outlive_an_upgrade() {
    let two = Two::versions();
    let mut configuration = two.node.configuration(&["eth1", "eth2"]);
    configuration["mode"] = json!("share");
    two.upgrade(&configuration);
}

#[test]
fn pods_with_addresses_by_ipam_outlive_an_upgrade() {
    for mode in ["move", "share"] {
        let two = Two::versions();
        let answer = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] });
        two.node.ipam.answer("ADD", &answer);
        let mut configuration = two.node.configuration(&["eth1"]);
        configuration["mode"] = json!(mode);
        configuration["ipam"] = json!({ "type": ipam::NAME });
        two.upgrade(&configuration);
        let [given, back] = ["ADD", "DEL"].map(|command| two.node.ipam.interfaces(command));
        assert_eq!(given.len(), 2, "{mode}");
        assert_eq!(back, given, "{mode}: every address was released");
    }
}

#[test]
fn an_earlier_version_leaves_a_record_of_this_one() {
    let two = Two::versions();
    let configuration = two.node.configuration(&["eth1"]);
    let pod = two.node.pod("pod");
    let call = |who, command| {
        let call = two.call(who, command, pod.path());
        call.input(&configuration).run()
    };
    call(Who::This, "ADD").result();
    let records = two.node.records();
    let refusal = call(Who::Other, "DEL").failure();
    assert!(format!("{refusal:?}").contains("newer"), "{refusal:?}");
    assert_eq!(two.node.records(), records);
    call(Who::This, "DEL").silent();
    two.before.assert_restored(&two.node.host);
}
