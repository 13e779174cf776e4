// SPDX-License-Identifier: Apache-2.0
//! Tests of addresses of other nodes. The plugin remembers them while a node is off.

use super::{
    node::{Node, apart, call, shell},
    parent::parent_conf,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, os::unix::fs::symlink, path::PathBuf};

const MONTH: u64 = 30 * 24 * 60 * 60;

fn note(node: &Node, address: &str) -> PathBuf {
    node.leases_dir().join("rdma-ipam/nodes").join(address)
}

fn age(node: &Node, address: &str, seconds: u64) {
    let note = note(node, address);
    let seen = fs::read_link(&note).unwrap();
    let seen: u64 = seen.to_str().unwrap().parse().unwrap();
    fs::remove_file(&note).unwrap();
    symlink((seen - seconds).to_string(), &note).unwrap();
}

/// Returns two configurations of a node with four addresses for pods, `.3` to `.6`. The first has neighbours: another
/// node at `.3`, and a pod at `.4`. The second has none.
fn met(node: &Node, strategy: &str) -> (Value, Value) {
    let ipam = json!({"family": "ipv4", "strategy": strategy});
    let off = parent_conf(node, ipam, &["10.77.0.2/29"]);
    let mut on = off.clone();
    on["neighbourAddresses"] = json!(["10.77.0.3", "10.77.0.4"]);
    on["nodeAddresses"] = json!(["10.77.0.3"]);
    (on, off)
}

#[test]
fn a_node_that_is_off_keeps_its_address() {
    for strategy in ["stable", "sequential"] {
        let node = Node::new();
        let (on, off) = met(&node, strategy);
        let given = [("a", &on), ("b", &off), ("c", &off)];
        let given = given.map(|(container, conf)| call("ADD", container, conf).address());
        let expected = ["10.77.0.4", "10.77.0.5", "10.77.0.6"];
        let given = BTreeSet::from(given);
        assert_eq!(given, expected.map(str::to_owned).into(), "{strategy}");
        assert!(!note(&node, "10.77.0.4").is_symlink());
        // no other address is free
        assert_eq!(call("ADD", "d", &off).address(), "10.77.0.3");
    }
}

/// A NIC that moved into a pod also has its maker's hardware address. The plugin must not take it for another node:
/// the pod gets its stable address again.
#[test]
fn a_pod_of_this_node_is_no_other_node() {
    let node = Node::new();
    let (_, conf) = met(&node, "stable");
    let given = call("ADD", "a", &conf).address();
    let mut seen = conf.clone();
    seen["neighbourAddresses"] = json!([given]);
    seen["nodeAddresses"] = json!([given]);
    call("ADD", "b", &seen).result();
    assert!(!note(&node, &given).is_symlink());
    call("DEL", "a", &conf).ok();
    assert_eq!(call("ADD", "a", &conf).address(), given);
}

#[test]
fn a_node_is_forgotten_after_a_month() {
    let node = Node::new();
    let (on, off) = met(&node, "sequential");
    call("ADD", "a", &on).result();
    age(&node, "10.77.0.3", MONTH - 60);
    assert_eq!(call("ADD", "b", &off).address(), "10.77.0.6");
    assert_eq!(call("ADD", "c", &off).address(), "10.77.0.4");
    call("DEL", "c", &off).ok();
    // the host has seen the other node again
    let mut on = on;
    on["neighbourAddresses"] = json!(["10.77.0.3"]);
    assert_eq!(call("ADD", "c", &on).address(), "10.77.0.4");
    age(&node, "10.77.0.3", MONTH - 60);
    call("DEL", "c", &off).ok();
    age(&node, "10.77.0.3", 120);
    assert_eq!(call("ADD", "c", &off).address(), "10.77.0.3");
    let mut gc = off.clone();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "c", "ifname": "eth0"}]);
    assert!(note(&node, "10.77.0.3").is_symlink());
    call("GC", "", &gc).ok();
    assert!(!note(&node, "10.77.0.3").is_symlink());
}

/// One neighbour has the hardware address of a NIC, the other the hardware address of a macvlan.
#[test]
fn neighbours_with_a_nics_address_are_nodes() {
    apart(|| {
        shell(
            "ip link add bond1 type veth peer name far
             ip link set bond1 up; ip link set far up
             ip addr add 10.77.0.2/24 dev bond1
             ip neigh add 10.77.0.3 lladdr 0c:42:a1:00:99:03 nud stale dev bond1
             ip neigh add 10.77.0.4 lladdr 02:00:00:00:99:04 nud stale dev bond1",
        );
        let node = Node::new();
        let mut conf =
            node.conf(json!({"from": "parent", "family": "ipv4", "strategy": "sequential"}));
        conf["master"] = "bond1".into();
        assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.5");
        call("DEL", "a", &conf).ok();
        fs::remove_file(node.leases_dir().join("last_reserved_ip.10.77.0.0_24")).unwrap();
        shell("ip neigh del 10.77.0.3 dev bond1; ip neigh del 10.77.0.4 dev bond1");
        assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.4");
        assert_eq!(call("ADD", "b", &conf).address(), "10.77.0.5");
    });
}

/// A machine that answers for every address cannot fill the disk. The removal of expired notes makes space for new
/// notes.
#[test]
fn the_number_of_notes_is_limited() {
    let node = Node::new();
    let (on, off) = met(&node, "sequential");
    call("ADD", "a", &on).result();
    let first = note(&node, "10.77.0.3");
    let now = fs::read_link(&first).unwrap();
    fs::remove_file(&first).unwrap();
    let others: Vec<PathBuf> = (0..4096_u32)
        .map(|it| note(&node, &format!("10.78.{}.{}", it / 256, it % 256)))
        .collect();
    others.iter().for_each(|it| symlink(&now, it).unwrap());
    call("DEL", "a", &off).ok();
    call("ADD", "a", &on).result();
    assert!(!first.is_symlink(), "a note beyond the limit");
    age(&node, "10.78.0.0", MONTH + 60);
    call("DEL", "a", &off).ok();
    call("ADD", "a", &on).result();
    assert!(first.is_symlink(), "no note in spite of an expired one");
    assert!(!others[0].is_symlink(), "an expired note");
}
