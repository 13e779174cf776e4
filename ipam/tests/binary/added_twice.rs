// SPDX-License-Identifier: Apache-2.0
//! Tests of an attachment that has an address from host-local and another one from `rdma-ipam`, without a DEL between
//! the two ADDs.

use super::node::{Node, call};
use serde_json::{Value, json};

/// Returns the node and the configuration. The attachment `c` has 10.77.0.2 from host-local, and 10.77.0.3 from
/// `rdma-ipam` with a note.
fn twice() -> (Node, Value) {
    let node = Node::new();
    let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    assert_eq!(call("ADD", "c", &conf).host_local().address(), "10.77.0.2");
    assert_eq!(call("ADD", "c", &conf).address(), "10.77.0.3");
    assert_eq!(node.leases(), ["10.77.0.2", "10.77.0.3"]);
    (node, conf)
}

#[test]
fn del_frees_what_is_noted_and_the_next_one_the_rest() {
    let (node, conf) = twice();
    call("DEL", "c", &conf).ok();
    assert_eq!(node.leases(), ["10.77.0.2"]);
    assert_eq!(node.notes(), [""; 0]);
    call("DEL", "c", &conf).ok();
    assert_eq!(node.leases(), [""; 0]);
}

/// GC runs after the first DEL, or without a DEL.
#[test]
fn gc_frees_both() {
    for has_del in [false, true] {
        let (node, mut conf) = twice();
        if has_del {
            call("DEL", "c", &conf).ok();
        }
        conf["cni.dev/valid-attachments"] = json!([]);
        call("GC", "", &conf).ok();
        assert_eq!(node.leases(), [""; 0]);
    }
}

/// The two DELs of a migration: DEL of `rdma-ipam` releases host-local's addresses, and host-local's DEL releases the
/// addresses of both plugins.
#[test]
fn a_del_between_the_two_frees_all() {
    let node = Node::new();
    let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    call("ADD", "c", &conf).host_local().result();
    call("DEL", "c", &conf).ok();
    assert_eq!(call("ADD", "c", &conf).address(), "10.77.0.3");
    call("DEL", "c", &conf).ok();
    assert_eq!(node.leases(), [""; 0]);
    let (node, conf) = twice();
    assert!(call("DEL", "c", &conf).host_local().run().success);
    assert_eq!(node.leases(), [""; 0]);
}
