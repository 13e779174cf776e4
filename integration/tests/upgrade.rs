// SPDX-License-Identifier: Apache-2.0
//! Upgrades: an earlier version runs ADD, and this version runs CHECK and DEL. The earlier version is the real program
//! of a commit, which `scripts/versions` builds.

use integration::{Node, Snapshot, ipam};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A node, a snapshot of its first state, and `rdma-cni` of the earlier version.
struct Upgrade {
    node: Node,
    earlier: PathBuf,
    before: Snapshot,
}

impl Upgrade {
    #[track_caller]
    fn new() -> Self {
        let earlier = integration::earlier_rdma_cni();
        let node = Node::furnished();
        let before = Snapshot::of(&node.host);
        Self {
            node,
            earlier,
            before,
        }
    }

    /// Runs ADD with the earlier version, and CHECK and DEL with this version. Then does the same with a DEL without a
    /// namespace, as after the end of the pod.
    fn check(&self, configuration: &Value) {
        let mut checked = configuration.clone();
        for gone in [false, true] {
            let pod = self.node.pod("pod");
            let call = |command: &str, netns| self.node.invoke(command, "a", netns);
            let add = call("ADD", pod.path()).program(&self.earlier);
            checked["prevResult"] = add.input(configuration).run().result();
            assert_eq!(
                self.node.records().len(),
                1,
                "the earlier version wrote a record"
            );
            call("CHECK", pod.path()).input(&checked).run().silent();
            let netns = if gone { Path::new("") } else { pod.path() };
            call("DEL", netns).input(configuration).run().silent();
            self.before.assert_restored(&self.node.host);
            let left = self.node.records();
            assert!(left.is_empty(), "{left:?} is left");
        }
    }
}

#[test]
fn pods_with_moved_rails_outlive_an_upgrade() {
    let upgrade = Upgrade::new();
    upgrade.check(&upgrade.node.configuration(&["eth1", "eth2"]));
}

#[test]
fn pods_with_shared_rails_outlive_an_upgrade() {
    let upgrade = Upgrade::new();
    let mut configuration = upgrade.node.configuration(&["eth1", "eth2"]);
    configuration["mode"] = json!("share");
    upgrade.check(&configuration);
}

#[test]
fn pods_with_addresses_by_ipam_outlive_an_upgrade() {
    for mode in ["move", "share"] {
        let upgrade = Upgrade::new();
        let answer = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] });
        upgrade.node.ipam.answer("ADD", &answer);
        let mut configuration = upgrade.node.configuration(&["eth1"]);
        configuration["mode"] = json!(mode);
        configuration["ipam"] = json!({ "type": ipam::NAME });
        upgrade.check(&configuration);
        let [given, back] = ["ADD", "DEL"].map(|command| upgrade.node.ipam.interfaces(command));
        assert_eq!(given.len(), 2, "{mode}");
        assert_eq!(back, given, "{mode}: every address was released");
    }
}
