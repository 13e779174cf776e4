// SPDX-License-Identifier: Apache-2.0
//! Tests of CHECK: the leases exist and belong to the attachment, and `prevResult` has no unleased address of the
//! plugin's ranges.

use super::node::{Node, call};
use serde_json::{Value, json};
use std::fs;

fn added(node: &Node) -> Value {
    let mut conf =
        node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}));
    call("ADD", "a", &conf).result();
    conf["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "cni0"},
            {"name": "eth0", "sandbox": "/run/netns/x"},
            {"name": "rdma0", "sandbox": "/run/netns/x"},
        ],
        "ips": [
            {"address": "10.77.0.2/24", "interface": 1},
            {"address": "fd77::2/64", "interface": 1},
            // a later plugin of the chain added this address
            {"address": "192.0.2.7/24", "interface": 1},
            {"address": "10.77.0.99/24", "interface": 2},
        ],
    });
    conf
}

#[test]
fn check_accepts_the_leases_of_add() {
    let node = Node::new();
    let mut conf = added(&node);
    call("CHECK", "a", &conf).ok();
    // the result of an IPAM plugin has no interfaces
    conf["prevResult"] = json!({"ips": [{"address": "10.77.0.2/24"}, {"address": "fd77::2/64"}]});
    call("CHECK", "a", &conf).ok();
    // a later plugin removed one address, or all addresses
    for ips in [json!([{"address": "fd77::2/64"}]), json!([])] {
        conf["prevResult"] = json!({"ips": ips});
        call("CHECK", "a", &conf).ok();
    }
    call("CHECK", "b", &conf).fails(999, "b eth0 holds no address");
    let gone = node.leases_dir().join("10.77.0.2");
    fs::remove_file(gone).unwrap();
    call("CHECK", "a", &conf).fails(999, "the lease of 10.77.0.2 is gone");
}

#[test]
fn drift_is_reported() {
    let node = Node::new();
    let conf = added(&node);
    fs::remove_file(node.leases_dir().join("fd77::2")).unwrap();
    call("CHECK", "a", &conf).fails(999, "the lease of fd77::2 is gone");
    node.write("fd77::2", "b\r\neth0");
    call("CHECK", "a", &conf).fails(999, "fd77::2 is held by b eth0, not by a eth0");
    let node = Node::new();
    let mut conf = added(&node);
    conf["prevResult"]["ips"][1]["address"] = "fd77::3/64".into();
    call("CHECK", "a", &conf).fails(
        999,
        "prevResult has on eth0 the address fd77::3, which is not leased",
    );
    node.write("fd77::3", "b\r\neth0");
    call("CHECK", "a", &conf).fails(999, "fd77::3 is held by b eth0, not by a eth0");
    // host-local assigned this address to the same attachment
    node.write("fd77::3", "a\r\neth0");
    call("CHECK", "a", &conf).ok();
}

#[test]
fn without_a_note_prevresult_shows_what_is_missing() {
    let node = Node::new();
    let conf = added(&node);
    fs::remove_file(node.leases_dir().join("rdma-ipam/attachments/a@eth0")).unwrap();
    call("CHECK", "a", &conf).ok();
    fs::remove_file(node.leases_dir().join("fd77::2")).unwrap();
    call("CHECK", "a", &conf).fails(
        999,
        "prevResult has on eth0 the address fd77::2, which is not leased",
    );
}
