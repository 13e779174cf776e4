// SPDX-License-Identifier: Apache-2.0
//! What a pod with `NET_ADMIN` does to its rail ends with the pod: real namespaces, netdevs of the kinds that this
//! kernel has (veth, macvlan, bridge).

use integration::{Netns, Node, Snapshot};
use serde_json::Value;
use std::fs;

/// The index of the link `name`.
#[track_caller]
fn index(netns: &Netns, name: &str) -> u64 {
    let link = netns.link(name);
    let link = link.unwrap_or_else(|| panic!("no {name} in {netns:?}"));
    link["ifindex"].as_u64().expect("an index")
}

/// DEL of `rails` when the pod has another netdev with the index of `eth1`: it stays where it is, the log and the note
/// for `doctor` report that `eth1` is gone.
#[track_caller]
fn is_gone(node: &Node, pod: &Netns, rails: &Value) {
    let deleted = node.invoke("DEL", "a", pod.path()).input(rails).run();
    assert!(deleted.status.success(), "{deleted}");
    assert!(
        !node.host.has_link("eth1"),
        "the pod's netdev has the name of the host's: {}",
        node.host.ip("-d link show dev eth1")
    );
    assert!(pod.has_link("rdma0"), "the pod's own netdev was taken");
    let told = "eth1 is gone: its pod deleted it";
    assert!(deleted.stderr.contains(told), "{deleted}");
    let note = node.state().join("given-up/eth1.json");
    let note = fs::read_to_string(note).expect("a note that eth1 is gone");
    assert!(note.contains(told), "{note}");
    assert!(node.records().is_empty(), "the record stayed");
}

/// One whose other end is in the pod: the host's traffic would go to the pod.
#[test]
fn a_veth_of_the_pod_in_the_place_of_its_rail_is_not_taken_to_the_host() {
    let node = Node::with_rails(1);
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let pod = node.pod("pod");
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    let index = index(&pod, "rdma0");
    pod.ip("link del dev rdma0");
    pod.ip(&format!(
        "link add name rdma0 index {index} type veth peer name tap index 90"
    ));
    is_gone(&node, &pod, &rails);
}

/// The other end in a namespace of the pod's own, with the index that the rail's had.
#[test]
fn a_veth_into_a_namespace_of_the_pods_own_is_not_taken_to_the_host() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let nested = Netns::new("nested");
    let rails = node.configuration(&["eth1"]);
    let other = index(&node.switch, "to-eth1");
    node.add(&rails, "a", &pod);
    let index = index(&pod, "rdma0");
    pod.ip("link del dev rdma0");
    pod.ip(&format!(
        "link add name rdma0 index {index} type veth peer name tap index {other} netns {}",
        nested.name()
    ));
    is_gone(&node, &pod, &rails);
}

/// A macvlan of the pod's `eth0`, which has the index that the rail's lower netdev has on the host.
#[test]
fn a_macvlan_of_the_pods_own_netdev_is_not_taken_to_the_host() {
    let node = Node::with_rails(0);
    node.add_rail("nic0");
    node.host
        .ip("link add link nic0 name eth1 type macvlan mode bridge");
    let pod = node.pod("pod");
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    let (rail, lower) = (index(&pod, "rdma0"), index(&node.host, "nic0"));
    pod.ip("link del dev rdma0");
    pod.ip(&format!(
        "link add name eth0 index {lower} type veth peer name tap index 90"
    ));
    pod.ip(&format!(
        "link add link eth0 name rdma0 index {rail} type macvlan mode bridge"
    ));
    is_gone(&node, &pod, &rails);
}

/// The pod's namespace outlives DEL: its process would hear the next pod's frames and send its own.
#[test]
fn a_netdev_of_the_pod_on_its_rail_ends_with_del() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1", "eth2"]);
    node.add(&rails, "a", &pod);
    pod.ip("link add name own0 type veth peer name own1");
    for line in [
        "link add link rdma0 name upper0 type macvlan mode bridge",
        "link add link rdma0 name upper1 type macvtap mode bridge",
        "link add link upper0 name upper2 type macvlan mode bridge",
        "link add link rdma1 name upper3 type macvlan mode passthru",
        "link add link own0 name kept0 type macvlan mode bridge",
        "link set dev upper0 up",
    ] {
        pod.ip(line);
    }
    node.del(&rails, "a", &pod);
    for upper in ["upper0", "upper1", "upper2", "upper3"] {
        assert!(!pod.has_link(upper), "{upper}: {}", pod.ip("link show"));
    }
    assert!(
        pod.has_link("kept0"),
        "it lies on a netdev of the pod's own"
    );
    before.assert_restored(&node.host);
}

/// A pod can move its rail to the host itself, and leave behind what lies on it.
#[test]
fn a_netdev_of_the_pod_on_a_rail_that_it_moved_itself_ends_with_del() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    pod.ip("link add link rdma0 name upper0 type macvlan mode bridge");
    pod.ip(&format!("link set dev rdma0 netns {}", node.host.name()));
    node.del(&rails, "a", &pod);
    assert!(!pod.has_link("upper0"), "{}", pod.ip("link show"));
    before.assert_restored(&node.host);
}

/// The kernel releases it with the move.
#[test]
fn a_bridge_of_the_pod_releases_its_rail() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "a", &pod);
    pod.ip("link add name br0 type bridge");
    pod.ip("link set dev rdma0 master br0");
    pod.ip("link set dev br0 up");
    node.del(&rails, "a", &pod);
    assert!(pod.has_link("br0"), "it is the pod's");
    before.assert_restored(&node.host);
}
