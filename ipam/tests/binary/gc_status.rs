// SPDX-License-Identifier: Apache-2.0
//! Tests that GC releases addresses of attachments that the runtime no longer has, and that STATUS reports the error
//! that ADD would have.

use super::node::{Node, call};
use serde_json::json;
use std::fs;

#[test]
fn gc_frees_all_but_the_valid() {
    let node = Node::new();
    let mut conf =
        node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}));
    for (container, interface) in [
        ("a", "rdma0"),
        ("a", "rdma1"),
        ("b", "rdma0"),
        ("c", "eth0"),
    ] {
        call("ADD", container, &conf)
            .env("CNI_IFNAME", interface)
            .result();
    }
    // an old host-local did not write the interface
    node.write("10.77.0.50", "b");
    node.write("10.77.0.51", "gone");
    node.write("10.77.0.52", "gone\r\neth0");
    // a note whose leases host-local removed
    std::os::unix::fs::symlink(
        "10.77.0.60",
        node.leases_dir().join("rdma-ipam/attachments/x@y"),
    )
    .unwrap();
    conf["cni.dev/valid-attachments"] = json!([
        {"containerID": "a", "ifname": "rdma1"},
        {"containerID": "b", "ifname": "rdma0"},
    ]);
    let gc = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]
        .iter()
        .fold(call("GC", "", &conf), |call, name| call.without(name));
    gc.ok();
    assert_eq!(
        node.leases(),
        ["10.77.0.3", "10.77.0.4", "10.77.0.50", "fd77::3", "fd77::4"]
    );
    assert_eq!(node.notes(), ["a@rdma1", "b@rdma0"]);
    conf.as_object_mut()
        .unwrap()
        .remove("cni.dev/valid-attachments");
    let held = node.leases();
    call("GC", "", &conf).ok();
    assert_eq!(node.leases(), held, "no list is not an empty list");
    conf["cni.dev/valid-attachments"] = json!("all");
    assert_eq!(call("GC", "", &conf).error().0, 7);
    assert_eq!(node.leases(), held);
    // Go marshals a nil slice as null
    conf["cni.dev/valid-attachments"] = json!(null);
    gc_all(&node, &conf);
}

/// DEL and GC release an address although a field that they do not need has a wrong value.
#[test]
fn del_and_gc_pass_over_a_wrong_value_that_they_do_not_need() {
    let node = Node::new();
    let right = node.conf(json!({"subnet": "10.77.0.0/24"}));
    for (field, value) in [
        ("cniVersion", json!("1.2.0")),
        ("log", json!({"level": "loud"})),
        ("prevResult", json!("text")),
    ] {
        let mut wrong = right.clone();
        wrong[field] = value;
        wrong["cni.dev/valid-attachments"] = json!([]);
        for command in ["DEL", "GC"] {
            call("ADD", "a", &right).result();
            call(command, "a", &wrong).ok();
            assert_eq!(node.leases(), [""; 0], "{command}, {field}");
        }
        call("ADD", "a", &wrong).error();
    }
}

fn gc_all(node: &Node, conf: &serde_json::Value) {
    let mut other = conf.clone();
    other["name"] = "other".into();
    call("ADD", "z", &other).result();
    call("GC", "", conf).ok();
    assert_eq!(node.leases(), [""; 0]);
    assert_eq!(node.notes(), [""; 0]);
    assert!(
        node.data_dir().join("other/10.77.0.2").exists(),
        "another network's"
    );
}

#[test]
fn gc_of_a_network_that_never_was() {
    let node = Node::new();
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["cni.dev/valid-attachments"] = json!([]);
    call("GC", "", &conf).ok();
    assert!(!node.data_dir().exists());
}

#[test]
fn status_writes_nothing() {
    let node = Node::new();
    for strategy in ["sequential", "stable"] {
        let conf = node.conf(json!({"subnet": "10.77.0.0/24", "strategy": strategy}));
        call("STATUS", "", &conf).ok();
        assert!(!node.data_dir().exists(), "{strategy}");
    }
    // STATUS does not wait for the holder of the lock either
    let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    call("ADD", "a", &conf).result();
    let lock = fs::File::open(node.leases_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    call("STATUS", "", &conf).ok();
}

#[test]
fn status_names_every_reason() {
    let node = Node::new();
    let conf = node.conf(json!({
        "strategy": "stable",
        "ranges": [[{"subnet": "10.77.0.0/30"}], [{"subnet": "10.78.0.0/30"}]],
    }));
    call("ADD", "a", &conf).result();
    fs::write(node.data_dir().join(".rdma-ipam.secret"), "").unwrap();
    let (code, message) = call("STATUS", "", &conf).error();
    assert_eq!(code, 50);
    for reason in [
        "of 10.77.0.0/30: 1 addresses are in use",
        "of 10.78.0.0/30: 1 addresses are in use",
        "has 0 bytes",
    ] {
        assert!(message.contains(reason), "{message}");
    }
}
