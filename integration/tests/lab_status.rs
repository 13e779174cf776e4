// SPDX-License-Identifier: Apache-2.0
//! In the lab, a runtime's calls of STATUS and GC of CNI 1.1: `integration/lab/vm --tier full --shared --memory 4096`,
//! on containerd 2 and CRI-O. The primary network uses the CNI project's own plugins, because those of Debian 12
//! support CNI only up to 1.0.

use integration::{
    Attachment, Conflist, Netns, Runtime, Snapshot,
    container_runtime::{
        Engine, SharedNode,
        shared::{HCA, has_all_rails, links},
    },
    nics, wait,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A range with addresses for two pods with two rails each.
const POOL: [&str; 2] = ["fd00:88::10", "fd00:88::13"];

/// CRI-O calls STATUS twice a second until the network is ready.
const OBSERVATION_TIME: Duration = Duration::from_secs(5);

const NETWORK: &str = "NetworkReady";

/// The list: a primary network, followed by `chain`.
fn list(node: &SharedNode, mut chain: Value) -> Conflist {
    chain["ipam"] = json!({
        "type": "rdma-ipam", "dataDir": node.node.path("leases"),
        "ranges": [[{"subnet": "fd00:88::/64", "rangeStart": POOL[0], "rangeEnd": POOL[1]}]],
    });
    let bridge = json!({
        "type": "bridge", "bridge": "cni0",
        "ipam": {"type": "host-local", "dataDir": node.node.path("networks"),
                 "ranges": [[{"subnet": "10.88.0.0/16"}]]},
    });
    Conflist::new("1.1.0", vec![bridge, chain])
}

/// Returns the list of the manifests: kubelet's allocation selects a pod's devices.
fn by_allocation(node: &SharedNode) -> Conflist {
    list(node, node.node.chain(&[HCA]))
}

/// Returns a list as an operator writes it for a network whose pods all get the same devices.
fn by_name(node: &SharedNode) -> Conflist {
    let devices = json!([{"rdma": nics::rdma(0)}, {"rdma": nics::rdma(1)}]);
    let state = node.node.path("state");
    list(
        node,
        json!({"type": "rdma-cni", "devices": devices, "stateDir": state}),
    )
}

/// Restarts the runtime with `list`.
#[track_caller]
fn start_anew(node: &mut SharedNode, list: &Conflist) {
    node.runtime.go(Signal::SIGTERM);
    node.runtime.network.set(list);
    node.runtime.come();
}

/// A node without a pod, on which the bridge of the primary network remains.
#[track_caller]
fn node() -> SharedNode {
    let node = SharedNode::new();
    node.runtime.network.knows_cni_1_1();
    node.runtime.network.set(&by_allocation(&node));
    let first = node.plain("first");
    node.remove(first);
    node
}

#[test]
fn a_full_pool_concerns_the_pods_that_request_it() {
    let mut node = node();
    let before = Snapshot::of(&node.nics.host);
    let pods = ["one", "two"].map(|name| node.runtime.pod(&node.pod_with_hca(name)));
    let refused = node.runtime.run(&node.pod_with_hca("three"));
    let refused = refused.expect_err("the pool has room for two");
    assert!(refused.message().contains(POOL[1]), "{refused:?}");
    node.node.free("three");

    let list = by_allocation(&node);
    start_anew(&mut node, &list);
    wait::until("the network is ready", || {
        node.runtime.cri().is_ready(NETWORK)
    });
    let plain = node.plain("plain");
    assert_eq!(links(&plain.netns()), ["lo", "eth0"]);
    for pod in &pods {
        has_all_rails(pod);
    }
    for pod in pods.into_iter().chain([plain]) {
        node.remove(pod);
    }
    before.assert_restored(&node.nics.host);
    assert_eq!(node.records(), 0);
}

#[test]
fn a_network_that_all_pods_request_is_not_ready_and_is_cleaned_up_where_gc_is_called() {
    let mut node = node();
    let before = Snapshot::of(&node.nics.host);
    let list = by_name(&node);
    node.runtime.go(Signal::SIGTERM);
    // attachments of pods that are not the runtime's
    let left = ["one", "two"].map(Netns::new);
    let attachments = [0, 1].map(|pod: usize| {
        let name = format!("left-{pod}");
        Attachment::new(&name, left[pod].path(), "eth0").of_pod("default", &name)
    });
    let host = Netns::own();
    let plugins = node.runtime.network.plugins().display().to_string();
    let by_hand = Runtime::new(&host, &plugins, &node.node.path("results"));
    for attachment in &attachments {
        by_hand.add(&list, attachment).expect("there is room");
    }
    assert_eq!(node.records(), 2);

    node.runtime.network.set(&list);
    node.runtime.come();
    let condition = || node.runtime.cri().condition(NETWORK);
    wait::until("the network is not ready, and why", || {
        condition().1.contains(POOL[1])
    });
    let end = Instant::now() + OBSERVATION_TIME;
    while Instant::now() < end {
        let (is_ready, reason) = condition();
        assert!(!is_ready && reason.contains(POOL[1]), "{reason}");
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(node.records(), 2);
    by_hand.del(&list, &attachments[0]).expect("it goes");
    wait::until("the network is ready", || {
        node.runtime.cri().is_ready(NETWORK)
    });
    // containerd does not call GC
    if node.runtime.engine() == Engine::Crio {
        wait::until("GC has taken the other one back", || node.records() == 0);
    } else {
        assert_eq!(node.records(), 1);
        by_hand.del(&list, &attachments[1]).expect("it goes");
    }
    drop(left);
    before.assert_restored(&node.nics.host);
}
