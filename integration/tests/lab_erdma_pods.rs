// SPDX-License-Identifier: Apache-2.0
//! In the lab, pods with eRDMA NICs under the kernel's own driver, and under its variant with a parent:
//! `integration/lab/vm --tier erdma`, one test at a time. Driver and provider are real, the functions are models.

use integration::{
    Netns, Node, Snapshot,
    daemon::rdma_device_plugin,
    erdma_functions::{Driver, ErdmaFunctions, NICS, links},
    traffic::{self, End},
    wait,
};
use serde_json::Value;
use std::{fs, process::Command};

const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

/// A node with both NICs up and addressed, in exclusive mode.
struct Scene {
    node: Node,
    // unloaded after the node's namespaces are gone
    erdma: ErdmaFunctions,
}

impl Scene {
    #[track_caller]
    fn new(driver: Driver) -> Self {
        let erdma = ErdmaFunctions::new(driver, "exclusive");
        let node = Node::on(Netns::own());
        for (nic, address) in NICS.into_iter().zip(ADDRESSES) {
            // the NICs were there before the node set its defaults
            for key in ["dad_transmits", "router_solicitation_delay"] {
                node.host.set_sysctl(&format!("ipv6/conf/{nic}/{key}"), "0");
            }
            node.host.ip(&format!("link set dev {nic} up"));
            node.host.ip(&format!("address add {address}/24 dev {nic}"));
        }
        wait::until("the ports are active", || {
            let links = links(&node.host);
            links.len() == 2 && links.iter().all(|link| link["state"] == "ACTIVE")
        });
        Self { node, erdma }
    }

    /// `rdma-cni` with the NIC and its RDMA device.
    fn configuration(&self, nic: usize) -> Value {
        let mut configuration = self.node.configuration(&[NICS[nic]]);
        configuration["requireRdma"] = true.into();
        configuration
    }
}

#[track_caller]
fn both_are_offered(driver: Driver) {
    let scene = Scene::new(driver);
    let file = scene.node.directory().join("config.json");
    fs::write(&file, r#"{"erdma": {}}"#).expect("written");
    let mut check = Command::new(rdma_device_plugin());
    let check = check.arg("--config").arg(&file).arg("--check-config");
    let done = check.output().expect("the daemon's program");
    let table = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{done:?}");
    let line = table.lines().find(|line| line.starts_with("aliyun/erdma"));
    let line = line.unwrap_or_else(|| panic!("{table}"));
    assert!(line.contains("400"), "{table}");
    for (nic, netdev) in NICS.into_iter().enumerate() {
        let rdma = scene.erdma.rdma(nic);
        assert!(table.contains(&rdma), "{rdma}: {table}");
        assert!(table.contains(netdev), "{table}");
    }
}

#[test]
fn both_devices_are_offered_without_a_parent() {
    both_are_offered(Driver::Kernel);
}

#[test]
fn both_devices_are_offered_with_a_parent() {
    both_are_offered(Driver::WithParent);
}

#[track_caller]
fn pods_have_their_devices(driver: Driver) {
    let scene = Scene::new(driver);
    let node = &scene.node;
    let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
    let before = Snapshot::of(&node.host);
    let pods = ["server", "client"].map(|label| node.pod(label));
    for nic in 0..2 {
        let configuration = scene.configuration(nic);
        node.add(&configuration, &format!("c{nic}"), &pods[nic]);
        let shown = links(&pods[nic]);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(shown[0]["ifname"], devices[nic].as_str());
        assert_eq!(shown[0]["netdev"], "rdma0");
        assert_eq!(
            pods[nic].addresses("rdma0"),
            [format!("{}/24", ADDRESSES[nic])]
        );
    }
    assert!(links(&node.host).is_empty());
    let [server, client] = [0, 1].map(|it: usize| End {
        pod: &pods[it],
        rdma: &devices[it],
        address: ADDRESSES[it],
    });
    traffic::rping(server, client);
    traffic::by_connection_manager("ib_write_bw", server, client);

    // one pod is removed in order, the other one after its end
    node.del(&scene.configuration(0), "c0", &pods[0]);
    pods[1].die();
    wait::until("the kernel gave the RDMA device back", || {
        links(&node.host).len() == 2
    });
    node.del(&scene.configuration(1), "c1", &pods[1]);
    node.assert_restored(&before);
}

#[test]
fn pods_have_devices_without_a_parent_and_the_host_is_as_before() {
    pods_have_their_devices(Driver::Kernel);
}

#[test]
fn pods_have_devices_with_a_parent_and_the_host_is_as_before() {
    pods_have_their_devices(Driver::WithParent);
}
