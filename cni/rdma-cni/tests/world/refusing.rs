// SPDX-License-Identifier: Apache-2.0
//! Tests of ADD's refusals before any change, and of failures to write its result.

use crate::node::{Node, furnished};
use fake_kernel::{Nic, World};
use nix::errno::Errno;
use rdma_netns::{Op, RdmaMode};
use serde_json::{Value, json};
use std::{fs, io};

/// Asserts that ADD with `config` fails with `code` and changes nothing. Returns the message.
#[track_caller]
fn refused(node: &Node, config: &Value, code: u64) -> String {
    let pod = node.pod("a");
    let before = node.snapshot();
    let message = node.add(&pod, config).must_fail(code);
    assert_eq!(node.kernel.journal(), [] as [Op; 0]);
    node.must_be(&before, &message);
    message
}

#[test]
fn no_such_device() {
    let node = Node::new(RdmaMode::Exclusive);
    refused(
        &node,
        &node.config(json!({ "deviceID": "0000:01:00.0" })),
        100,
    );
}

#[test]
fn a_netdev_without_rdma() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::physical("0000:01:00.0", "eth9", "none").without_rdma());
    let node = Node::with(world);
    let mut config = node.config(json!({ "deviceID": "0000:01:00.0" }));
    refused(&node, &config, 100);
    config["requireRdma"] = false.into();
    let pod = node.pod("b");
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "without RDMA");
}

#[test]
fn no_rdma_subsystem() {
    let mut world = World::new(None);
    world.plug(Nic::physical("0000:01:00.0", "eth9", "none").without_rdma());
    let node = Node::with(world);
    let config = node.config(json!({ "deviceID": "0000:01:00.0" }));
    let message = refused(&node, &config, 102);
    assert!(message.contains("ib_core"), "{message}");
}

#[test]
fn a_driver_that_cannot_move() {
    let mut world = furnished(RdmaMode::Exclusive);
    world.plug(Nic::physical("0000:01:00.0", "eth9", "rxe0").immovable());
    let node = Node::with(world);
    let pod = node.pod("a");
    let before = node.snapshot();
    let answer = node.add(&pod, &node.config(json!({ "deviceID": "0000:01:00.0" })));
    let details = answer.value["details"].to_string();
    answer.must_fail(102);
    assert!(details.contains("disassociate_ucontext"), "{details}");
    node.must_be(&before, "undone");
}

#[test]
fn the_drop_in_needs_exclusive_mode() {
    let node = Node::new(RdmaMode::Shared);
    let mut config = node.one_rail();
    config["type"] = "rdma".into();
    config["prevResult"] = json!({ "cniVersion": "1.1.0", "interfaces": [] });
    let message = refused(&node, &config, 102);
    assert!(message.contains("exclusive"), "{message}");
}

#[test]
fn a_namespace_that_is_none() {
    let node = Node::new(RdmaMode::Exclusive);
    let mut pod = node.pod("a");
    let before = node.snapshot();
    node.kernel
        .with(|world| world.create_file("/run/netns/file"));
    for path in ["/run/netns/missing", "/run/netns/file", "/proc/1/ns/net"] {
        pod.netns = path.into();
        node.add(&pod, &node.one_rail()).must_fail(4);
        node.must_be(&before, path);
        node.del(&pod, &node.one_rail());
        node.must_be(&before, path);
    }
}

/// An output that is full after `room` bytes.
struct Full {
    room: usize,
}

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.room.min(bytes.len()) {
            0 => Err(io::Error::from_raw_os_error(Errno::ENOSPC as i32)),
            written => {
                self.room -= written;
                Ok(written)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_answer_that_cannot_be_given_is_taken_back() {
    for room in [0, 1, 100] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.run_into("ADD", Some(&pod), &node.two_rails(), &mut Full { room });
        assert!(node.kernel.journal().len() > 10);
        node.must_be(&before, "taken back");
    }
}

#[test]
fn a_state_directory_that_takes_nothing() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    fs::write(node.state.path().join("state"), "").unwrap();
    node.add(&pod, &node.two_rails()).must_fail(105);
    assert_eq!(node.kernel.journal(), [] as [Op; 0]);
    node.must_be(&before, "refused");
}

/// The second write of the record fails, when all devices are in the pod.
#[test]
fn a_state_directory_that_takes_nothing_more() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let obstacle = node.record_of(&pod).with_extension("json.new");
    node.kernel.intercept(move |_, _| {
        fs::create_dir_all(&obstacle).unwrap();
        fake_kernel::Verdict::Proceed
    });
    node.add(&pod, &node.two_rails()).must_fail(106);
    let left = node.records();
    assert_eq!(left, ["a@eth0.json.new"]);
    assert_eq!(before.differences(&node.snapshot()), [] as [&str; 0]);
}

#[test]
fn any_observation_of_add_fails() {
    let node = Node::new(RdmaMode::Exclusive);
    node.add(&node.pod("a"), &node.two_rails()).must_succeed();
    for at in 1..=node.kernel.observations() {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.kernel.begin();
        node.kernel
            .blind(move |_, number| (number == at).then_some(Errno::ENOBUFS));
        let answer = node.add(&pod, &node.two_rails());
        assert!([5, 106].contains(&answer.code()), "{}", answer.value);
        node.must_be(&before, &format!("observation {at}"));
    }
}
