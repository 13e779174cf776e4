// SPDX-License-Identifier: Apache-2.0
//! Tests of namespaces that end, nodes that reboot, and records that cannot be used.

use crate::{
    node::{Node, name, settle},
    smc::one_rail_with_smc,
};
use fake_kernel::{Nic, Verdict, World, world::HOST};
use rdma_netns::{NetnsSide, Op, RdmaMode};
use std::fs;

#[test]
fn the_path_goes_at_any_change_of_add_or_del() {
    let configs = [Node::two_rails, one_rail_with_smc];
    for (verb, config) in ["ADD", "DEL"]
        .map(|verb| configs.map(|it| (verb, it)))
        .as_flattened()
    {
        for at in 1.. {
            let node = Node::new(RdmaMode::Exclusive);
            let before = node.snapshot();
            let pod = node.pod("a");
            let config = config(&node);
            if *verb == "DEL" {
                node.add(&pod, &config).must_succeed();
            }
            let path = pod.netns.clone();
            node.kernel.begin();
            node.kernel.intercept(move |world, step| {
                if step.number == at {
                    world.unmount(&path);
                }
                Verdict::Proceed
            });
            node.run(verb, Some(&pod), &config).must_succeed();
            if node.kernel.journal().len() < at {
                assert!(at > 10);
                break;
            }
            node.kernel.begin();
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, &format!("path gone at change {at} of {verb}"));
        }
    }
}

#[test]
fn names_of_the_pod_are_taken_on_the_host() {
    let node = Node::new(RdmaMode::Exclusive);
    for taken in ["rdma0", "rdma1", "dev5"] {
        node.kernel
            .with(|world| world.plug(Nic::virtual_link(taken, "dummy")));
    }
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let on_the_host = node.kernel.with(|world| {
        let links = world.links(HOST);
        links
            .iter()
            .map(|link| link.name.to_string())
            .collect::<Vec<_>>()
    });
    assert!(on_the_host.contains(&"dev4".to_owned()), "{on_the_host:?}");
    assert!(on_the_host.contains(&"dev0".to_owned()), "{on_the_host:?}");
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "back from dev<index> and dev0");
}

#[test]
fn a_virtual_netdev_ends_with_its_namespace() {
    let node = Node::new(RdmaMode::Shared);
    let before = node.snapshot();
    node.kernel
        .with(|world| world.plug(Nic::virtual_link("veth0", "veth")));
    let config = node.config(serde_json::json!({
        "devices": [{ "netdev": "veth0" }, { "netdev": "eth2" }], "requireRdma": false,
    }));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "without the veth");
}

#[test]
fn a_record_of_an_earlier_boot_blocks_nothing() {
    for (restorer, config) in [
        ("DEL", Node::two_rails as fn(&Node) -> _),
        ("ADD", Node::two_rails),
        ("GC", Node::two_rails),
        ("DEL", one_rail_with_smc),
        ("ADD", one_rail_with_smc),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let before = node.snapshot();
        let old = node.pod("a");
        let config = config(&node);
        node.add(&old, &config).must_succeed();
        node.kernel.with(|world| {
            world.reboot();
            settle(world);
        });
        // after a reboot, a new namespace can get the id of a namespace before the reboot
        let new = match restorer {
            "ADD" => node.pod("a"),
            _ => node.pod("b"),
        };
        node.kernel.begin();
        match restorer {
            "GC" => drop(node.gc(&[], &config).must_succeed()),
            "DEL" => drop(node.del(&old, &config).must_succeed()),
            _ => {
                node.add(&new, &config).must_succeed();
                node.del(&new, &config).must_succeed();
            }
        }
        if restorer != "ADD" {
            assert!(
                node.kernel.journal().is_empty(),
                "{:?}",
                node.kernel.journal()
            );
        }
        node.kernel.with(|world| world.unmount(&new.netns));
        node.must_be(&before, restorer);
    }
}

#[test]
fn a_device_that_was_pulled_out_keeps_nothing_from_being_restored() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    node.kernel.with(|world| world.unplug("0000:3b:00.2"));
    node.del(&pod, &node.two_rails()).must_succeed();
    assert_eq!(node.records(), [] as [&str; 0]);
    let is_on_host = node.kernel.with(|world| world.link(HOST, "eth3").is_some());
    assert!(is_on_host, "{:?}", node.snapshot());
}

/// Whatever part of the record remains, DEL succeeds, and the devices are on the host. Administrators or the node's
/// set-up can then restore the devices' attributes.
#[test]
fn a_record_is_truncated_anywhere() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::physical("0000:3b:00.2", "eth2", "mlx5_2"));
    let node = Node::with(world);
    let pod = node.pod("a");
    node.add(&pod, &node.one_rail()).must_succeed();
    let record = fs::read(node.record_of(&pod)).unwrap();
    let attached = node.kernel.with(|world| world.clone());
    for length in 0..record.len() {
        node.kernel.with(|world| *world = attached.clone());
        fs::write(node.record_of(&pod), &record[..length]).unwrap();
        node.del(&pod, &node.one_rail()).must_succeed();
        node.kernel.with(|world| {
            assert_eq!(world.place_of_rdma("mlx5_2"), Some(HOST), "{length}");
            let links = world.links(HOST);
            let function = Some("0000:3b:00.2");
            assert!(
                links.iter().any(|link| link.parent.as_deref() == function),
                "{length}"
            );
        });
        assert_eq!(node.records(), ["a@eth0.corrupt"], "{length}");
    }
    node.del(&pod, &node.one_rail()).must_succeed();
}

#[test]
fn the_wrong_record_is_no_record() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, other) = (node.pod("a"), node.pod("b"));
    node.add(&pod, &node.one_rail()).must_succeed();
    let held = node.snapshot();
    fs::copy(node.record_of(&pod), node.record_of(&other)).unwrap();
    node.del(&other, &node.one_rail()).must_succeed();
    assert_eq!(node.snapshot(), held);
    node.del(&pod, &node.one_rail()).must_succeed();
}

#[test]
fn a_rail_that_a_person_moved_elsewhere_is_reported() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, other) = (node.pod("a"), node.pod("b"));
    node.add(&pod, &node.one_rail()).must_succeed();
    let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
    node.change(
        Some(&pod),
        &Op::MoveLink {
            link: name("rdma0"),
            from,
            to,
            name: name("eth2"),
        },
    );
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    node.change(
        Some(&other),
        &Op::MoveLink {
            link: name("eth2"),
            from,
            to,
            name: name("eth2"),
        },
    );
    let message = node.gc(&[], &node.one_rail()).must_fail(107);
    assert!(message.contains("eth2"), "{message}");
    node.change(
        Some(&other),
        &Op::MoveLink {
            link: name("eth2"),
            from: NetnsSide::Pod,
            to: NetnsSide::Host,
            name: name("eth2"),
        },
    );
    node.del(&pod, &node.one_rail()).must_succeed();
}
