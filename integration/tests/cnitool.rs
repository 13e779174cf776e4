// SPDX-License-Identifier: Apache-2.0
//! libcni itself, by its `cnitool`: `scripts/cnitool` builds it.

use integration::{Invocation, Netns, Node, Outcome, Snapshot};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// A node with one rail, and the list that `cnitool` finds.
struct Libcni {
    node: Node,
    pod: Netns,
}

impl Libcni {
    /// `name` is the network's: libcni keeps what it knows of networks in one place.
    fn new(name: &str, version: &str, plugins: &[Value]) -> Self {
        let node = Node::with_rails(1);
        let list = json!({ "cniVersion": version, "name": name, "plugins": plugins });
        let directory = node.directory().join("net.d");
        fs::create_dir(&directory).expect("a directory");
        fs::write(directory.join("10-net.conflist"), list.to_string()).expect("a list");
        let pod = node.pod("pod");
        Self { node, pod }
    }

    fn run(&self, command: &str, network: &str) -> Outcome {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cnitool");
        assert!(
            program.exists(),
            "there is no {program:?}: run scripts/cnitool"
        );
        let pod = self.pod.path().to_str().expect("UTF-8");
        let call = Invocation::new(&self.node.host, &program);
        [command, network, pod]
            .iter()
            .fold(call, |call, word| call.argument(word))
            .env("CNI_PATH", self.node.cni_path())
            .env("NETCONFPATH", self.node.directory().join("net.d"))
            .run()
    }
}

#[track_caller]
fn succeeds(outcome: &Outcome) {
    assert!(outcome.status.success(), "{outcome}");
}

fn ours() -> Value {
    let addresses = json!([{ "address": "192.0.2.10/24" }, { "address": "2001:db8:1::10/64" }]);
    json!({
        "type": "rdma-cni", "requireRdma": false, "devices": [{ "netdev": "eth1" }],
        "ipam": { "type": "static", "addresses": addresses },
    })
}

/// Without a list of what is valid, as `cnitool gc` has none: nothing is known, nothing is dropped.
#[test]
fn gc_without_a_list_succeeds_and_drops_nothing() {
    let mut plugin = ours();
    plugin.as_object_mut().expect("an object").remove("ipam");
    let state = tempfile::tempdir().expect("a directory");
    plugin["stateDir"] = state.path().to_str().expect("UTF-8").into();
    let libcni = Libcni::new("cnitool-gc", "1.1.0", &[plugin.clone()]);
    let node = &libcni.node;
    let before = Snapshot::of(&node.host);
    succeeds(&libcni.run("status", "cnitool-gc"));
    // libcni deletes by itself what it has added: this one it knows nothing of
    plugin["cniVersion"] = "1.1.0".into();
    plugin["name"] = "cnitool-gc".into();
    node.add(&plugin, "a", &libcni.pod);
    succeeds(&libcni.run("gc", "cnitool-gc"));
    assert!(libcni.pod.has_link("eth0"), "the pod's rail was taken away");
    node.del(&plugin, "a", &libcni.pod);
    before.assert_restored(&node.host);
}

/// Behind the reference `bridge`, whose CHECK looks on its own interface for every address of the
/// result. libcni hands on what it knows of a result: `rails` is lost.
#[test]
fn check_succeeds_behind_the_reference_bridge() {
    let state = tempfile::tempdir().expect("a directory");
    let mut plugin = ours();
    plugin["stateDir"] = state.path().to_str().expect("UTF-8").into();
    let leases = state.path().join("leases");
    let bridge = json!({
        "type": "bridge", "bridge": "cni0",
        "ipam": { "type": "host-local", "subnet": "10.9.0.0/24", "dataDir": leases },
    });
    let libcni = Libcni::new("cnitool-check", "1.0.0", &[bridge, plugin]);
    let outcome = libcni.run("add", "cnitool-check");
    succeeds(&outcome);
    let result = outcome.result();
    assert_eq!(result["ips"].as_array().expect("ips").len(), 1, "{result}");
    assert_eq!(result["interfaces"][3]["name"], "rdma0", "{result}");
    succeeds(&libcni.run("check", "cnitool-check"));
    libcni.pod.ip("address del 192.0.2.10/24 dev rdma0");
    let outcome = libcni.run("check", "cnitool-check");
    assert!(!outcome.status.success(), "{outcome}");
    succeeds(&libcni.run("del", "cnitool-check"));
    assert!(libcni.node.host.has_link("eth1"));
}
