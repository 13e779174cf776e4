// SPDX-License-Identifier: Apache-2.0
//! Upgrades in both directions: what one version attached, another one checks and restores. The
//! other versions are real ones, built by `scripts/versions`.

use integration::{Invocation, Netns, Node, Snapshot, ipam};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Versions by what their records could say for the first time: format 1, 2, 3.
const ALL: [&str; 3] = ["moves", "shares", "smc"];

/// `rdma-cni` of this tree, and of another version.
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
    fn versions(other: &str) -> Self {
        let directory = std::env::var_os("RDMA_CNI_VERSIONS").map_or_else(
            || Path::new(&std::env::var_os("HOME").expect("HOME")).join(".cache/rdma-cni-versions"),
            PathBuf::from,
        );
        let other = directory.join(other).join("rdma-cni");
        assert!(
            other.exists(),
            "there is no {other:?}: run scripts/versions first"
        );
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

    /// Pod and record as after an ADD of a version that set the rail's own address once more, with that
    /// of `net0` as the other end: no machine without RDMA gets that far.
    fn set_peer_address(&self, pod: &Netns) {
        let file = self.node.record("net", "a");
        let text = fs::read_to_string(&file).expect("a record");
        let mut record: Value = serde_json::from_str(&text).expect("JSON");
        let rail = record["rails"][0]["podName"].clone();
        let addresses = record["rails"][0]["given"]["addresses"].as_array();
        let mut addresses = addresses.into_iter().flatten();
        let own = addresses.find(|it| it["ip"] == "192.0.2.5");
        let mut address = own.expect("the rail's own address").clone();
        address["prefix"] = json!(32);
        address["peer"] = json!("10.244.1.5");
        record["smc"] = json!({
            "state": "active",
            "interfaces": [{
                "interface": "net0", "pnetId": "RAIL1", "rdmaDevice": "mlx5_0", "port": 1, "by": "v2",
            }],
            "lent": { "rail": rail, "address": address },
            "entries": [{ "at": "pod", "name": "RAIL1", "netdev": "net0" }],
        });
        record["format"] = json!(3);
        fs::write(&file, record.to_string()).expect("the record");
        let rail = rail.as_str().expect("a name");
        pod.ip(&format!(
            "address add 192.0.2.5 peer 10.244.1.5/32 noprefixroute dev {rail}"
        ));
    }

    fn both_ways(&self, configuration: &Value) {
        self.attach_and_restore(configuration, Who::Other, Who::This);
        self.attach_and_restore(configuration, Who::This, Who::Other);
    }
}

#[test]
fn pods_with_moved_rails_outlive_upgrades_in_both_directions() {
    for version in ALL {
        let two = Two::versions(version);
        two.both_ways(&two.node.configuration(&["eth1", "eth2"]));
    }
}

#[test]
fn pods_with_shared_rails_outlive_upgrades_in_both_directions() {
    for version in &ALL[1..] {
        let two = Two::versions(version);
        let mut configuration = two.node.configuration(&["eth1", "eth2"]);
        configuration["mode"] = json!("share");
        two.both_ways(&configuration);
    }
}

#[test]
fn pods_with_addresses_by_ipam_outlive_upgrades_in_both_directions() {
    for (version, mode) in [("moves", "move"), ("shares", "share"), ("smc", "share")] {
        let two = Two::versions(version);
        let answer = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] });
        two.node.ipam.answer("ADD", &answer);
        let mut configuration = two.node.configuration(&["eth1"]);
        configuration["mode"] = json!(mode);
        configuration["ipam"] = json!({ "type": ipam::NAME });
        two.both_ways(&configuration);
        let [given, back] = ["ADD", "DEL"].map(|command| two.node.ipam.interfaces(command));
        assert_eq!(given.len(), 4, "{version}");
        assert_eq!(back, given, "{version}: what was given came back");
    }
}

/// The part of the record that tells of it is known neither to this version nor to an older one.
#[test]
fn an_address_set_for_smc_r_goes_with_the_rail_by_whichever_version_ends_the_pod() {
    for (who, gone) in [
        (Who::Other, false),
        (Who::Other, true),
        (Who::This, false),
        (Who::This, true),
    ] {
        let two = Two::versions("smc");
        let configuration = two.node.configuration(&["eth1"]);
        let pod = two.node.pod("pod");
        two.call(Who::This, "ADD", pod.path())
            .input(&configuration)
            .run()
            .result();
        two.set_peer_address(&pod);
        let netns = if gone { Path::new("") } else { pod.path() };
        two.call(who, "DEL", netns)
            .input(&configuration)
            .run()
            .silent();
        two.before.assert_restored(&two.node.host);
        let left = two.node.records();
        assert!(left.is_empty(), "{who:?} left {left:?}");
        // the namespace lives on
        assert!(!pod.ip("address show").contains("192.0.2.5"), "{who:?}");
    }
}

#[test]
fn a_version_that_cannot_read_a_record_leaves_it_and_the_pod() {
    let two = Two::versions("moves");
    let mut configuration = two.node.configuration(&["eth1"]);
    configuration["mode"] = json!("share");
    let pod = two.node.pod("pod");
    let pod = pod.path();
    two.call(Who::This, "ADD", pod)
        .input(&configuration)
        .run()
        .result();
    let records = two.node.records();
    // the configuration as that version knows it
    let old = two.node.configuration(&["eth1"]);
    let outcome = two.call(Who::Other, "DEL", pod).input(&old).run();
    let failure = outcome.failure();
    assert_eq!(two.node.records(), records, "{failure:?}");
    two.call(Who::This, "DEL", pod)
        .input(&configuration)
        .run()
        .silent();
    two.before.assert_restored(&two.node.host);
}
