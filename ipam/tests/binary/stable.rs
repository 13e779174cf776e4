// SPDX-License-Identifier: Apache-2.0
//! Tests of `strategy: stable`: the same pod gets the same address again.

use super::node::{Call, Node, call};
use serde_json::{Value, json};
use std::{collections::HashSet, fs, process::Child};

/// Time for which the plugin avoids an address after a conflict, seconds.
const HOUR: u64 = 3600;

fn pod(command: &str, container: &str, name: &str, conf: &Value) -> Call {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={name}");
    call(command, container, conf).env("CNI_ARGS", &args)
}

fn conf(node: &Node) -> Value {
    let mut conf = node.conf(json!({"from": "parent", "strategy": "stable"}));
    conf["master"] = "bond1".into();
    conf["masterAddresses"] = json!(["2001:db8:1::10/64"]);
    conf
}

#[test]
fn the_same_pod_gets_the_same_address() {
    let node = Node::new();
    let conf = conf(&node);
    let first = pod("ADD", "c1", "web-0", &conf).address();
    let other = pod("ADD", "c2", "web-1", &conf).address();
    assert_ne!(first, other);
    let rail = pod("ADD", "c1", "web-0", &conf)
        .env("CNI_IFNAME", "rdma1")
        .address();
    assert_ne!(first, rail);
    pod("DEL", "c1", "web-0", &conf).ok();
    // another container of the same pod
    assert_eq!(pod("ADD", "c3", "web-0", &conf).address(), first);
    // while the first address is leased, the same pod gets its second address
    let second = pod("ADD", "c4", "web-0", &conf).address();
    assert_ne!(second, first);
    for container in ["c3", "c4"] {
        pod("DEL", container, "web-0", &conf).ok();
    }
    assert_eq!(pod("ADD", "c5", "web-0", &conf).address(), first);
    let elsewhere = Node::new();
    let same = self::conf(&elsewhere);
    assert_ne!(
        pod("ADD", "c1", "web-0", &same).address(),
        first,
        "another node's secret"
    );
}

#[test]
fn routes_of_the_parent_do_not_move_it() {
    let node = Node::new();
    let mut without = conf(&node);
    without["ipam"]["family"] = "both".into();
    // the prefix is small: for one pod in fifteen, the first try is the prefix's first address or the gateway's
    // address
    without["masterAddresses"] = json!(["10.77.0.20/27", "2001:db8:1::10/64"]);
    let mut with = without.clone();
    with["masterRoutes"] = json!([
        {"dst": "0.0.0.0/0", "gw": "10.77.0.30"},
        {"dst": "::/0", "gw": "2001:db8:1::1"},
    ]);
    let mut same = 0;
    for index in 0..40 {
        let name = format!("web-{index}");
        let [without, with] = [&without, &with].map(|conf| {
            let addresses = pod("ADD", "c1", &name, conf).addresses();
            pod("DEL", "c1", &name, conf).ok();
            addresses
        });
        // with a gateway at another address, ADD can assign the first address, and cannot assign the gateway's
        if without[0] == "10.77.0.30/27" || with[0] == "10.77.0.1/27" {
            assert_ne!(without[0], with[0], "{name}");
        } else {
            assert_eq!(without[0], with[0], "{name}");
            same += 1;
        }
        assert_eq!(without[1], with[1], "{name}");
        assert_ne!(without[0], "10.77.0.1/27", "{name}");
    }
    assert!(same >= 20, "{same} of 40");
}

#[test]
fn a_pod_without_a_name_is_its_container() {
    let node = Node::new();
    let conf = conf(&node);
    let outcome = call("ADD", "c1", &conf).run();
    assert!(
        outcome.stderr.contains("stable for this container only"),
        "{outcome:?}"
    );
    let address = node.leases();
    call("DEL", "c1", &conf).ok();
    call("ADD", "c1", &conf).result();
    assert_eq!(node.leases(), address);
}

#[test]
fn a_conflict_is_avoided_for_an_hour() {
    let node = Node::new();
    let mut conf = conf(&node);
    let first = pod("ADD", "c1", "web-0", &conf).address();
    let other = pod("ADD", "c2", "web-1", &conf).address();
    // `rdma-cni` reports two duplicates; `rdma-ipam` records only the address that the attachment has
    conf["conflicts"] = json!([first, other]);
    pod("DEL", "c1", "web-0", &conf).ok();
    conf.as_object_mut().unwrap().remove("conflicts");
    let second = pod("ADD", "c3", "web-0", &conf).address();
    assert_ne!(second, first);
    pod("DEL", "c2", "web-1", &conf).ok();
    assert_eq!(pod("ADD", "c2", "web-1", &conf).address(), other);
    let add = pod("ADD", "c4", "web-2", &conf).env("CNI_ARGS", &format!("IP={first}"));
    let error = format!(
        "the requested address {first} is in use by another machine, as duplicate address detection \
         found; request another one, or retry in an hour"
    );
    add.fails(11, &error);
    let mark = node.age_conflict(&first, HOUR);
    pod("DEL", "c3", "web-0", &conf).ok();
    assert_eq!(pod("ADD", "c5", "web-0", &conf).address(), first);
    conf["cni.dev/valid-attachments"] = json!([]);
    call("GC", "", &conf).ok();
    assert!(fs::symlink_metadata(mark).is_err(), "GC forgets it");
}

#[test]
fn old_marks_of_conflicts_go_with_the_next_one() {
    let node = Node::new();
    let mut conf = conf(&node);
    let given = ["c1", "c2", "c3"].map(|id| pod("ADD", id, &format!("web-{id}"), &conf).address());
    let [first, second, third] = &given;
    let mut conflict = |id: &str, address: &str| {
        conf["conflicts"] = json!([address]);
        pod("DEL", id, &format!("web-{id}"), &conf).ok();
    };
    conflict("c1", first);
    conflict("c2", second);
    let old = node.age_conflict(first, HOUR);
    conflict("c3", third);
    let marks = old.parent().unwrap();
    assert!(fs::symlink_metadata(&old).is_err(), "it stays for good");
    for address in [second, third] {
        fs::read_link(marks.join(address)).unwrap();
    }
}

#[test]
fn conflicts_that_make_no_sense_do_not_stop_del() {
    let node = Node::new();
    let mut conf = conf(&node);
    pod("ADD", "c1", "web-0", &conf).result();
    conf["conflicts"] = json!(["x"]);
    pod("DEL", "c1", "web-0", &conf).ok();
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn any_range_works_and_all_of_it_is_used() {
    let node = Node::new();
    let conf = node.conf(json!({
        "strategy": "stable",
        "ranges": [[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.10", "rangeEnd": "10.77.0.109"}]],
    }));
    let given: HashSet<String> = (0..100)
        .map(|index| pod("ADD", &format!("c{index}"), &format!("p{index}"), &conf).address())
        .collect();
    assert_eq!(given.len(), 100);
    pod("ADD", "d", "d", &conf).fails(
        11,
        "no address is free in 10.77.0.10-10.77.0.109 of 10.77.0.0/24: 100 addresses are in use, and the others are never assigned",
    );
}

#[test]
fn first_users_of_a_node_agree_on_its_secret() {
    let node = Node::new();
    let conf = conf(&node);
    let adds: Vec<Child> = (0..12)
        .map(|index| pod("ADD", &format!("c{index}"), &format!("p{index}"), &conf).start())
        .collect();
    for add in adds {
        assert!(add.wait_with_output().unwrap().status.success());
    }
    let given = node.leases();
    for index in 0..12 {
        pod("DEL", &format!("c{index}"), &format!("p{index}"), &conf).ok();
        pod("ADD", &format!("c{index}"), &format!("p{index}"), &conf).result();
    }
    assert_eq!(node.leases(), given);
}

#[test]
fn a_damaged_secret_is_reported() {
    let node = Node::new();
    let conf = conf(&node);
    fs::create_dir_all(node.data_dir()).unwrap();
    fs::write(node.data_dir().join(".rdma-ipam.secret"), "short").unwrap();
    let (code, message) = pod("ADD", "c1", "web-0", &conf).error();
    assert_eq!(code, 5);
    assert!(
        message.contains("has 5 bytes, not 32: restore it, or remove it"),
        "{message}"
    );
    assert_eq!(call("STATUS", "", &conf).error().0, 50);
}
