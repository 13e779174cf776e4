// SPDX-License-Identifier: Apache-2.0
//! Tests of share mode: the pod gets a child of a netdev that stays on the host.

use crate::{
    leases::{Leases, answer, bonds, has_link, link_of, run_named},
    node::{Node, Pod},
};
use fake_kernel::world::HOST;
use rdma_netns::{Child, Link, LinkChange, MacvlanMode, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::{fs, slice};

const BRIDGE: Child = Child::Macvlan {
    mode: MacvlanMode::Bridge,
};

fn on_host(node: &Node, name: &str) -> Option<Link> {
    node.kernel.with(|world| world.link(HOST, name).cloned())
}

/// Returns the configuration of the plain NIC, without IPAM.
fn plain(node: &Node, mode: &str) -> Value {
    node.config(json!({ "deviceID": "0000:3b:00.0", "mode": mode }))
}

#[test]
fn two_bonds_are_shared_and_nothing_is_left() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    for rail in [0, 1] {
        let link = link_of(node, &pod, &format!("rdma{rail}"));
        let bond = on_host(node, &format!("bond{rail}")).unwrap();
        assert_eq!(link.child, Some(BRIDGE));
        assert_eq!((link.lower, link.mtu), (Some(bond.index), bond.mtu));
        assert!(link.up && link.mac != bond.mac);
        let interface = &result["interfaces"][rail];
        assert_eq!(interface["name"], format!("rdma{rail}"));
        assert_eq!(interface["mac"], link.mac.to_string());
        assert_eq!(interface["sandbox"], pod.netns.display().to_string());
    }
    assert_eq!(result["ips"].as_array().unwrap().len(), 4);
    assert_eq!(leases.held(), ["a@rdma0", "a@rdma1"]);
    leases.check(&pod, &config, &result).must_succeed();
    for _ in 0..2 {
        node.del(&pod, &config).must_succeed();
        leases.must_be(&before, "after DEL");
    }
}

#[test]
fn every_record_has_the_one_format() {
    for (netdev, is_shared) in [("bond0", true), ("eth8", false)] {
        let node = Node::with(bonds(1));
        let pod = node.pod("a");
        let config = node.config(json!({ "devices": [{ "netdev": netdev }] }));
        node.add(&pod, &config).must_succeed();
        let record = fs::read(node.record_of(&pod)).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["format"], attachments::FORMAT, "{netdev}");
        assert_eq!(record["rails"][0]["shared"].is_object(), is_shared);
    }
}

#[test]
fn twenty_pods_share_a_bond() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let pods: Vec<Pod> = (0..20).map(|n| node.pod(&format!("pod{n}"))).collect();
    let mut addresses = vec![];
    for (pod, host) in pods.iter().zip(30..) {
        leases.gives(&format!("{}.rdma0", pod.container), &answer(0, host));
        node.add(pod, &config).must_succeed();
        addresses.push(link_of(node, pod, "rdma0").mac);
    }
    addresses.sort_by_key(ToString::to_string);
    addresses.dedup();
    assert_eq!((addresses.len(), leases.held().len()), (20, 20));
    assert_eq!(leases.rails_files().len(), 20);
    // the pods end by DEL, or by GC after or before the end of their namespaces
    for (number, pod) in pods.iter().enumerate() {
        match number % 3 {
            0 => drop(node.del(pod, &config).must_succeed()),
            1 => node.kernel.with(|world| world.unmount(&pod.netns)),
            _ => {}
        }
    }
    let living: Vec<&Pod> = pods.iter().skip(2).step_by(3).collect();
    node.gc(&living, &config).must_succeed();
    assert_eq!(leases.held().len(), living.len());
    living
        .iter()
        .for_each(|pod| assert!(has_link(node, pod, "rdma0")));
    node.gc(&[], &config).must_succeed();
    pods.iter()
        .for_each(|pod| node.kernel.with(|world| world.unmount(&pod.netns)));
    leases.must_be(&before, "after GC");
}

#[test]
fn auto_shares_what_cannot_be_moved_and_moves_the_rest() {
    let node = Node::with(bonds(1));
    let pod = node.pod("a");
    let before = node.snapshot();
    // a port selects its bond, and two ports select one bond
    for devices in [
        json!([{ "netdev": "bond0" }, { "netdev": "eth8" }]),
        json!([{ "netdev": "eth1" }, { "pci": "0000:3b:00.0" }]),
        json!([{ "rdma": "mlx5*" }]),
        json!([{ "vendor": "15b3" }]),
    ] {
        let config = node.config(json!({ "devices": devices }));
        node.add(&pod, &config).must_succeed();
        assert_eq!(link_of(&node, &pod, "rdma0").child, Some(BRIDGE));
        assert_eq!(link_of(&node, &pod, "rdma1").child, None);
        assert!(on_host(&node, "bond0").is_some() && on_host(&node, "eth8").is_none());
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, &devices.to_string());
    }
}

#[test]
fn a_shared_device_is_shared_with_the_next_pod() {
    let node = Node::with(bonds(0));
    let (first, second) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    node.add(&first, &plain(&node, "share")).must_succeed();
    node.add(&second, &plain(&node, "auto")).must_succeed();
    for pod in [&first, &second] {
        assert_eq!(link_of(&node, pod, "rdma0").child, Some(BRIDGE));
    }
    node.del(&first, &plain(&node, "share")).must_succeed();
    // the second pod still has a child
    let third = node.pod("c");
    let message = node.add(&third, &plain(&node, "move")).must_fail(101);
    assert!(message.contains("container b"), "{message}");
    node.kernel.with(|world| world.unmount(&third.netns));
    node.del(&second, &plain(&node, "auto")).must_succeed();
    node.must_be(&before, "after both");
    node.add(&first, &plain(&node, "auto")).must_succeed();
    assert_eq!(
        link_of(&node, &first, "rdma0").child,
        None,
        "it is free: moved"
    );
}

#[test]
fn shared_and_moved_devices_exclude_each_other() {
    let node = Node::with(bonds(0));
    let (first, second) = (node.pod("a"), node.pod("b"));
    let add =
        |pod: &Pod, name: &str, mode: &str| run_named(&node, "ADD", pod, name, &plain(&node, mode));
    add(&first, "trainer-0", "share");
    let by_name = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    for refused in [
        add(&second, "trainer-1", "move"),
        node.add(&second, &by_name).value,
    ] {
        assert_eq!(refused["code"], 101, "{refused}");
        let message = refused["msg"].as_str().unwrap();
        assert!(message.contains("ns/trainer-0"), "{message}");
    }
    assert!(on_host(&node, "eth8").is_some() && has_link(&node, &first, "rdma0"));
    node.del(&first, &plain(&node, "share")).must_succeed();
    add(&first, "trainer-0", "move");
    for mode in ["share", "auto", "move"] {
        let refused = add(&second, "trainer-1", mode);
        assert_eq!(refused["code"], 101, "{mode}: {refused}");
        assert!(
            refused["msg"].as_str().unwrap().contains("ns/trainer-0"),
            "{refused}"
        );
    }
}

#[test]
fn refused_before_anything_is_changed() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let down = |up| Op::Link {
        at: NetnsSide::Host,
        link: crate::node::name("bond0"),
        change: LinkChange::Up(up),
    };
    let before = node.snapshot();
    for (fields, code, word) in [
        (json!({ "mtu": 9000 }), 7, "1500"),
        (json!({ "mode": "move" }), 102, "share"),
        (json!({ "child": { "mode": "passthru" } }), 2, "passthru"),
        (
            json!({ "child": { "type": "ipvlan", "mode": "l3" } }),
            2,
            "l2",
        ),
    ] {
        let message = node
            .add(&pod, &leases.config(fields.clone()))
            .must_fail(code);
        assert!(message.contains(word), "{fields}: {message}");
        leases.must_be(&before, word);
    }
    assert_eq!(node.kernel.journal(), [] as [Op; 0]);
    assert_eq!(leases.take_call_names(), [""; 0]);
    node.change(None, &down(false));
    let message = node.add(&pod, &leases.config(json!({}))).must_fail(100);
    assert!(message.contains("bond0 is down"), "{message}");
}

#[test]
fn exclusive_mode_shares_only_what_has_no_rdma_device() {
    let mut world = bonds(1);
    world.set_rdma_mode(RdmaMode::Exclusive).unwrap();
    world.plug(fake_kernel::Nic::virtual_link("dummy0", "dummy"));
    let node = Node::with(world);
    node.change(
        None,
        &Op::Link {
            at: NetnsSide::Host,
            link: crate::node::name("dummy0"),
            change: LinkChange::Up(true),
        },
    );
    let pod = node.pod("a");
    let before = node.snapshot();
    let bond = node.config(json!({ "devices": [{ "netdev": "bond0" }] }));
    let message = node.add(&pod, &bond).must_fail(102);
    assert!(message.contains("netns_mode=1"), "{message}");
    let config = node.config(json!({
        "devices": [{ "netdev": "dummy0" }], "mode": "share", "requireRdma": false,
    }));
    node.add(&pod, &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn an_ipvlan_child_has_its_parents_address() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let (pod, other) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    let config = leases.config(json!({ "child": { "type": "ipvlan" } }));
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(
        link_of(node, &pod, "rdma0").mac,
        on_host(node, "bond0").unwrap().mac
    );
    leases.check(&pod, &config, &result).must_succeed();
    // the kernel allows only one kind of children on one parent
    let message = node.add(&other, &leases.config(json!({}))).must_fail(102);
    assert!(message.contains("bond0"), "{message}");
    assert!(message.contains("container a"), "{message}");
    assert_eq!(leases.held(), ["a@rdma0"]);
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
}

/// A pod with `NET_ADMIN` can have as many routes as its memory permits. ADD of another pod compares only the netdevs of
/// the ipvlan port, and must not need this memory.
#[test]
fn add_reads_no_routes_of_other_pods_on_an_ipvlan_port() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({ "child": { "type": "ipvlan" } }));
    let [first, second] = ["a", "b"].map(|it| node.pod(it));
    node.add(&first, &config).must_succeed();
    leases.gives("rdma0", &crate::leases::answer(0, 8));
    node.kernel.begin();
    node.add(&second, &config).must_succeed();
    assert_eq!(node.kernel.routes_read(), slice::from_ref(&second.netns));
    // ADD needs the routes of its own pod
    let result = link_of(node, &second, "rdma0");
    assert!(!result.routes.is_empty());
}

/// A pod renames its netdev. CHECK and DEL find it under the new name.
#[test]
fn a_child_is_found_by_more_than_its_name() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    let (at, link) = (NetnsSide::Pod, crate::node::name("rdma0"));
    let up = Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::Up(false),
    };
    node.change(Some(&pod), &up);
    let name = crate::node::name("net7");
    node.change(
        Some(&pod),
        &Op::Link {
            at,
            link,
            change: LinkChange::Rename(name),
        },
    );
    let message = leases.check(&pod, &config, &result).must_fail(999);
    assert!(message.contains("rdma0 is called net7 now"), "{message}");
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
}

#[test]
fn a_corrupt_record_keeps_no_child() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    fs::write(node.record_of(&pod), "{").unwrap();
    let mut with_result = config.clone();
    with_result["prevResult"] = result;
    node.del(&pod, &with_result).must_succeed();
    assert_eq!(before.differences(&node.snapshot()), [""; 0]);
    assert_eq!((leases.held(), leases.rails_files()), (vec![], vec![]));
}
