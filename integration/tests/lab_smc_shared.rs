// SPDX-License-Identifier: Apache-2.0
//! In the lab, SMC-R of pods that share RDMA devices: `integration/lab/vm --tier full --shared --rocev1`, one test at a
//! time. Two state directories act as two nodes: there are one kernel and two sets of records.

use integration::{
    Netns, Runtime, Snapshot,
    nics::BondedNics,
    plugin::{self, rdma_cni},
    smc::{
        SmcPeer,
        pods::{PRIMARY, SmcPod, UEID, bridge, exchange, make_bridge},
        shown,
    },
};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Two bonds, and a bridge for the pods' primary interfaces.
struct Scene {
    nics: BondedNics,
    directory: TempDir,
    before: Snapshot,
}

impl Scene {
    fn new() -> Self {
        let nics = BondedNics::new();
        let directory = TempDir::new().expect("a directory");
        make_bridge(
            &runtime(&nics.host, &directory),
            &directory.path().join("leases"),
        );
        let before = Snapshot::of(&nics.host);
        Self {
            nics,
            directory,
            before,
        }
    }

    fn runtime(&self) -> Runtime<'_> {
        runtime(&self.nics.host, &self.directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// An annotated pod of `node` with a rail on `bond` and an address of `subnet`.
    fn pod(&self, name: &str, node: &str, bond: &str, subnet: &str, more: Value) -> SmcPod {
        let mut plugin = json!({
            "type": "rdma-cni", "stateDir": self.path(node), "devices": [{"netdev": bond}],
            "ipam": {"type": "host-local", "dataDir": self.path("rails"),
                     "ranges": [[{"subnet": subnet}]]},
        });
        for (key, value) in more.as_object().expect("an object") {
            plugin[key] = value.clone();
        }
        SmcPod::new(name, [bridge(&self.path("leases")), plugin], Some("true"))
    }

    /// Runs DEL of all pods. Asserts that the host is as before.
    #[track_caller]
    fn end(&self, pods: &[&SmcPod]) {
        for pod in pods {
            pod.del(&self.runtime());
        }
        self.before.assert_restored(&self.nics.host);
    }

    /// Returns the SMC-R part of the pod's record.
    #[track_caller]
    fn smc(&self, node: &str, pod: &SmcPod) -> Value {
        let name = format!("{}@{PRIMARY}.json", pod.attachment.container);
        let file = self.path(node).join("attachments/net").join(name);
        let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let record: Value = serde_json::from_slice(&text).expect("JSON");
        println!("{:#}", record["smc"]);
        record["smc"].clone()
    }
}

fn runtime<'a>(host: &'a Netns, directory: &TempDir) -> Runtime<'a> {
    let path = plugin::cni_path(&rdma_cni(), &[]);
    Runtime::new(host, &path, &directory.path().join("cache"))
}

fn peer() -> SmcPeer {
    SmcPeer(env!("CARGO_BIN_EXE_smc-peer").into())
}

/// Asserts that both ends report the expected transport for connections to `address` of the first pod.
#[track_caller]
fn assert_carried(pods: [&SmcPod; 2], address: &str, how: &str) {
    let (listener, client) = exchange(&peer(), pods, address, (2, MIB));
    for pod in pods {
        let carried = pod.carried();
        let is_so = carried.len() == 1 && carried[0].starts_with(how);
        assert!(is_so, "{address}: {carried:?}, {}", shown(&pod.netns));
    }
    client.end();
    listener.end();
}

/// SMC-Rv1 would use the GIDs of the bonds themselves.
#[test]
fn pods_without_a_user_eid_stay_with_tcp() {
    let scene = Scene::new();
    let pods = [("one", "bond0"), ("two", "bond1")]
        .map(|(name, bond)| scene.pod(name, "node", bond, "10.31.0.0/24", json!({})));
    for (pod, bond) in pods.iter().zip(["bond0", "bond1"]) {
        pod.add(&scene.runtime());
        pod.check(&scene.runtime());
        let smc = scene.smc("node", pod);
        assert_eq!(smc["state"], "off");
        let reason = smc["reason"].as_str().unwrap_or_default();
        assert!(
            reason.contains("SMC-Rv1") && reason.contains(bond),
            "{reason}"
        );
    }
    let [one, two] = &pods;
    for interface in [PRIMARY, "rdma0"] {
        assert_carried([one, two], &one.ipv4(interface), "tcp: ");
    }
    scene.end(&[one, two]);
}

#[test]
fn one_pod_of_each_node_has_smc_r_by_its_own_address() {
    let scene = Scene::new();
    let with_ueid = json!({ "smcUeid": UEID });
    let one = scene.pod("one", "a", "bond0", "10.31.0.0/24", with_ueid.clone());
    let two = scene.pod("two", "b", "bond1", "10.31.0.0/24", with_ueid.clone());
    for pod in [&one, &two] {
        pod.add(&scene.runtime());
        pod.check(&scene.runtime());
    }
    // for the primary interface the kernel has only the RoCE v1 GIDs of the parents
    for (interface, how) in [("rdma0", "smcr"), (PRIMARY, "tcp: ")] {
        assert_carried([&one, &two], &one.ipv4(interface), how);
        assert_carried([&two, &one], &two.ipv4(interface), how);
    }

    // a second pod of a node would share the first pod's link groups
    let crowd = scene.pod("crowd", "a", "bond0", "10.32.0.0/24", with_ueid.clone());
    crowd.add(&scene.runtime());
    let smc = scene.smc("a", &crowd);
    assert_eq!(smc["state"], "off");
    assert!(
        smc["reason"]
            .as_str()
            .is_some_and(|it| it.contains("team/one")),
        "{smc}"
    );
    assert_carried([&crowd, &two], &crowd.ipv4(PRIMARY), "tcp: ");
    let mut required = with_ueid.clone();
    required["smcr"] = "on".into();
    let refused = scene.pod("refused", "a", "bond0", "10.33.0.0/24", required);
    let added = scene.runtime().add(&refused.list, &refused.attachment);
    let message = added.expect_err("it is required").error(106);
    assert!(message.contains("team/one"), "{message}");
    refused.del(&scene.runtime());
    scene.end(&[&crowd, &one, &two]);
}

#[test]
fn an_interface_for_which_the_kernel_would_take_the_parents_address_stays_with_tcp() {
    let scene = Scene::new();
    let with_ueid = json!({ "smcUeid": UEID });
    // bond0 itself has an address in this network
    let one = scene.pod("one", "a", "bond0", "10.20.0.0/24", with_ueid.clone());
    let two = scene.pod("two", "b", "bond1", "10.20.0.0/24", with_ueid);
    for pod in [&one, &two] {
        pod.add(&scene.runtime());
    }
    let smc = scene.smc("a", &one);
    let reason = smc["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("rdma0") && reason.contains("bond0"),
        "{smc}"
    );
    assert_carried([&one, &two], &one.ipv4("rdma0"), "tcp: ");
    scene.end(&[&one, &two]);
}
