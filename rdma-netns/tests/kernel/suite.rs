// SPDX-License-Identifier: Apache-2.0
//! Runs on the real kernel the rules that also apply to the fake kernel.

use crate::world::{Named, ip};
use conformance::Node;
use rdma_netns::{Kernel as _, Linux, netns::Netns};
use std::fs;

conformance::suite!(crate::suite::with_node);

/// Reduces the time of duplicate address detection from one or two seconds to 0.2 s.
fn detect_soon() {
    for nic in ["nic0", "nic1"] {
        for (file, value) in [
            (format!("neigh/{nic}/retrans_time_ms"), "200"),
            (format!("conf/{nic}/router_solicitation_delay"), "0"),
        ] {
            let path = format!("/proc/sys/net/ipv6/{file}");
            fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
}

fn add_vlan(node: &str, nic: &str, id: u16) {
    let line = format!("-n {node} link add link {nic} name {nic}.{id} type vlan id {id}");
    ip(&line.split(' ').collect::<Vec<_>>());
}

/// Runs `rule` with a node. The other ends of its veth pairs are up, in a separate namespace.
fn with_node(rule: impl FnOnce(&Node<'_, Linux>) + Send) {
    let [node, pod, fabric] = ["node", "pod", "fabric"].map(Named::new);
    for nic in ["nic0", "nic1"] {
        let (node, fabric) = (node.name(), fabric.name());
        let line = format!("-n {node} link add {nic} type veth peer name {nic} netns {fabric}");
        ip(&line.split(' ').collect::<Vec<_>>());
        ip(&["-n", fabric, "link", "set", nic, "up"]);
    }
    let inside = || {
        detect_soon();
        let kernel = Linux::new();
        let pod = kernel.open_pod(&pod.path()).expect("the pod");
        rule(&Node {
            kernel: &kernel,
            pod: &pod,
            add_vlan: &|nic, id| add_vlan(node.name(), nic, id),
        });
    };
    let node = Netns::open(&node.path()).expect("the node");
    node.run(inside).expect("to enter the node");
}
