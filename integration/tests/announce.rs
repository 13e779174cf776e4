// SPDX-License-Identifier: Apache-2.0
//! The announcement of a reused address. A neighbour that still caches the old MAC reaches the address at
//! its new MAC at once.

use integration::{Netns, Node, ipam, plugin::rdma_cni, wait};
use serde_json::{Value, json};
use std::path::Path;

const ADDRESSES: [&str; 2] = ["10.0.0.7", "fd00::7"];

/// A node with the rail `eth1`, and an IPAM plugin that assigns [`ADDRESSES`] to every caller. The rail's
/// switch is the neighbour. ADD moves `mac1` and `mac2`, whose switch port stays up during the move, as
/// for a VF. A veth's port would go down with the move, and could be up only after ADD has ended.
fn node() -> Node {
    let node = Node::with_rails(1);
    for name in ["mac1", "mac2"] {
        let host = &node.host;
        host.ip(&format!(
            "link add link eth1 name {name} type macvlan mode bridge"
        ));
        host.ip(&format!("link set dev {name} up"));
    }
    node.switch.ip("address add 10.0.0.254/24 dev br0");
    node.switch.ip("address add fd00::fe/64 dev br0 nodad");
    let ips = ADDRESSES.map(|address| match address.contains(':') {
        true => json!({"address": format!("{address}/64")}),
        false => json!({"address": format!("{address}/24")}),
    });
    node.ipam.answer("ADD", &json!({ "ips": ips }));
    node
}

fn configuration(node: &Node, netdev: &str, mode: &str) -> Value {
    let mut configuration = node.configuration(&[netdev]);
    configuration["mode"] = mode.into();
    configuration["ipam"] = json!({"type": ipam::NAME});
    configuration
}

/// Returns true if `address` answers the neighbour within five seconds.
fn is_reached(neighbour: &Netns, address: &str) -> bool {
    let mut ping = neighbour.command("ping");
    let output = ping.args(["-n", "-c", "1", "-W", "5", address]).output();
    output.expect("ping is installed").status.success()
}

/// The hardware address that the neighbour has cached for `address`.
fn known(neighbour: &Netns, address: &str) -> Value {
    let entries = neighbour.show(&format!("neighbour show {address} dev br0"));
    entries
        .first()
        .map_or(Value::Null, |entry| entry["lladdr"].clone())
}

fn mac(pod: &Netns) -> Value {
    pod.link("rdma0").expect("the rail")["address"].clone()
}

/// A pod on the first netdev ends, just after the neighbour received packets from it. A pod on the second netdev gets
/// the same addresses, and the neighbour reaches them.
fn followed(mode: &str, netdevs: [&str; 2]) {
    let node = node();
    let [first, second] = netdevs.map(|netdev| configuration(&node, netdev, mode));
    let old = node.pod("old");
    node.add(&first, "old", &old);
    let gone = mac(&old);
    for address in ADDRESSES {
        let reached = || is_reached(&node.switch, address);
        assert!(wait::within(wait::TIMEOUT, reached));
        assert_eq!(known(&node.switch, address), gone);
    }
    node.del(&first, "old", &old);
    let new = node.pod("new");
    node.add(&second, "new", &new);
    assert_ne!(mac(&new), gone, "nothing is to be announced");
    for address in ADDRESSES {
        assert!(
            is_reached(&node.switch, address),
            "{mode}: {address} is known at {}, and is at {}",
            known(&node.switch, address),
            mac(&new)
        );
        assert_eq!(known(&node.switch, address), mac(&new));
    }
}

#[test]
fn another_childs_announcement() {
    followed("share", ["eth1", "eth1"]);
}

#[test]
fn another_netdevs_announcement() {
    followed("move", ["mac1", "mac2"]);
}

/// Without `CAP_NET_RAW`, `rdma-cni` cannot open a packet socket. The pod starts, and the log has a warning with each
/// address.
#[test]
fn unannounced_addresses() {
    let node = node();
    for (mode, netdev) in [("share", "eth1"), ("move", "mac1")] {
        let configuration = configuration(&node, netdev, mode);
        let pod = node.pod(mode);
        let mut call = node.invoke("ADD", mode, pod.path());
        call = call.program(Path::new("setpriv"));
        for argument in ["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"] {
            call = call.argument(argument);
        }
        let plugin = rdma_cni().display().to_string();
        let outcome = call.argument(&plugin).input(&configuration).run();
        outcome.result();
        for address in ADDRESSES {
            let line = outcome.stderr.lines().find(|line| line.contains(address));
            let line = line.unwrap_or_else(|| panic!("{address} is not in {outcome}"));
            assert!(line.contains(" warn: "), "{line}");
        }
        node.del(&configuration, mode, &pod);
    }
}
