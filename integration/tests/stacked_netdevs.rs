// SPDX-License-Identifier: Apache-2.0
//! Stacked netdevs in different namespaces: the plugin returns each rail to the host, and removes no netdev of another
//! owner. The tests use real namespaces and macvlans.

use integration::{Netns, Node, Snapshot};
use serde_json::{Value, json};

/// A configuration that moves the host's `netdevs`, although another netdev uses one of them as its lower netdev.
fn moved(node: &Node, network: &str, netdevs: &[&str]) -> Value {
    let mut configuration = node.configuration(netdevs);
    configuration["name"] = json!(network);
    configuration["mode"] = json!("move");
    configuration
}

/// Asserts that ADD of `configuration` fails with `code` and `words`, and changes neither the host nor the pod.
#[track_caller]
fn is_refused(node: &Node, pod: &Netns, configuration: &Value, (code, words): (u64, &str)) {
    let before = [&node.host, pod].map(Snapshot::of);
    let added = node
        .invoke("ADD", "b", pod.path())
        .input(configuration)
        .run();
    let message = added.error(code);
    assert!(message.contains(words), "{message}");
    for (before, netns) in before.iter().zip([&node.host, pod]) {
        before.assert_restored(netns);
    }
}

/// ADD refuses the NIC below the pod's `eth0`: otherwise the undo of a failed ADD, or DEL, would delete the pod's
/// network.
#[test]
fn a_nic_is_not_moved_while_the_pods_eth0_lies_on_it() {
    let node = Node::with_macvlan();
    let pod = node.pod("pod");
    node.host
        .ip(&format!("link set eth1 netns {} name eth0", pod.name()));
    let words = "nic0 is not moved into a pod: eth0 of this pod lies on it";
    is_refused(&node, &pod, &moved(&node, "rails", &["nic0"]), (102, words));
}

/// ADD refuses a NIC below a rail, because DEL could not distinguish that rail from a netdev that the pod created.
#[test]
fn a_nic_is_not_moved_while_a_netdev_on_it_is_a_rail() {
    let node = Node::with_macvlan();
    let (pod, other) = (node.pod("pod"), node.pod("other"));
    let before = Snapshot::of(&node.host);
    let upper = moved(&node, "upper", &["eth1"]);
    node.add(&upper, "a", &pod);
    let mut lower = moved(&node, "lower", &["nic0"]);
    lower["interfaceName"] = json!("lower%d");
    is_refused(&node, &other, &lower, (101, "nic0 is in use by"));
    is_refused(&node, &pod, &lower, (101, "nic0 is in use by"));
    node.del(&upper, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn a_nic_and_a_netdev_on_it_are_not_moved_together() {
    let node = Node::with_macvlan();
    let pod = node.pod("pod");
    for netdevs in [["nic0", "eth1"], ["eth1", "nic0"]] {
        let words = "nic0 is not moved into a pod: eth1, which is moved as well, lies on it";
        is_refused(&node, &pod, &moved(&node, "rails", &netdevs), (102, words));
    }
}

/// DEL restores the rail, although the kernel reports another lower netdev for the rail after the lower netdev has
/// moved (`IFLA_LINK`, `IFLA_LINK_NETNSID`).
#[test]
fn a_rail_comes_home_whose_lower_netdev_somebody_moved() {
    let node = Node::with_macvlan();
    let (pod, elsewhere) = (node.pod("pod"), node.pod("elsewhere"));
    let rails = moved(&node, "rails", &["eth1"]);
    node.add(&rails, "a", &pod);
    node.host
        .ip(&format!("link set nic0 netns {}", elsewhere.name()));
    node.del(&rails, "a", &pod);
    assert!(node.host.has_link("eth1"), "{}", pod.ip("link show"));
}

/// ADD refuses a netdev whose lower netdev is in another namespace, also if the lower netdev is another pod's rail. The
/// kernel reports another lower netdev in each namespace, so DEL would report that the pod deleted the rail.
#[test]
fn a_netdev_is_not_moved_while_the_nic_below_is_in_another_namespace() {
    const WORDS: &str =
        "eth1 cannot be moved into a pod: its lower netdev is in another network namespace";
    let node = Node::with_macvlan();
    let (pod, elsewhere) = (node.pod("pod"), node.pod("elsewhere"));
    let rails = moved(&node, "rails", &["eth1"]);
    for netns in [&elsewhere, &pod] {
        node.host
            .ip(&format!("link set nic0 netns {}", netns.name()));
        is_refused(&node, &pod, &rails, (102, WORDS));
        netns.ip(&format!("link set nic0 netns {}", node.host.name()));
    }
    let mut lower = moved(&node, "lower", &["nic0"]);
    lower["interfaceName"] = json!("lower%d");
    node.add(&lower, "a", &elsewhere);
    is_refused(&node, &pod, &rails, (102, WORDS));
    node.del(&lower, "a", &elsewhere);
    node.add(&rails, "b", &pod);
    node.del(&rails, "b", &pod);
    assert!(node.host.has_link("eth1"), "{}", pod.ip("link show"));
}

/// The pod's `eth0` lies on a netdev of a third namespace, which has the rail's index. The id of this namespace differs
/// between the pod and the host.
#[test]
fn a_netdev_on_the_same_index_of_a_third_namespace_stays() {
    let node = Node::with_rails(1);
    let (pod, third) = (node.pod("pod"), node.pod("third"));
    let rails = node.configuration(&["eth1"]);
    let index = node.host.link("eth1").expect("there")["ifindex"].clone();
    third.ip(&format!(
        "link add name lower0 index {index} type veth peer name lower1 index 91"
    ));
    third.ip("link add link lower0 name eth0 type macvlan mode bridge");
    third.ip(&format!("link set eth0 netns {}", pod.name()));
    node.add(&rails, "a", &pod);
    node.del(&rails, "a", &pod);
    assert!(pod.has_link("eth0"), "the pod's network was deleted");
    assert!(node.host.has_link("eth1"));
}
