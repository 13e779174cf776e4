// SPDX-License-Identifier: Apache-2.0
//! Tests `type` `rdma` after a plugin that moves the netdev itself. ADD moves only the RDMA device, which returns to
//! the host in either order of the two plugins' DELs.

use crate::node::{Node, Pod, name};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{InterfaceName, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};

fn config(node: &Node, pod: &Pod) -> Value {
    let mut config = node.one_rail();
    config["type"] = "rdma".into();
    config["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "net1", "sandbox": pod.netns }],
        "ips": [],
    });
    config
}

/// Moves the netdev as host-device does at ADD and DEL.
fn move_netdev(node: &Node, pod: &Pod, from: NetnsSide, to: NetnsSide) {
    let names: [InterfaceName; 2] = match to {
        NetnsSide::Pod => [name("eth2"), name("net1")],
        NetnsSide::Host => [name("net1"), name("eth2")],
    };
    let [link, name] = names;
    let op = Op::MoveLink {
        link,
        from,
        to,
        name,
    };
    node.change(Some(pod), &op);
}

#[test]
fn the_rdma_device_follows_and_returns_to_the_host() {
    for order in ["ours first", "theirs first", "ours alone", "namespace gone"] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        move_netdev(&node, &pod, NetnsSide::Host, NetnsSide::Pod);
        let before = node.snapshot();
        let config = config(&node, &pod);
        node.kernel.begin();
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["interfaces"], config["prevResult"]["interfaces"]);
        assert_eq!(
            node.kernel.journal().len(),
            1,
            "{:?}",
            node.kernel.journal()
        );
        let netns = node.netns(&pod);
        let side = node.kernel.with(|world| world.place_of_rdma("mlx5_2"));
        assert_eq!(side, Some(netns));
        match order {
            "theirs first" => move_netdev(&node, &pod, NetnsSide::Pod, NetnsSide::Host),
            "namespace gone" => node.kernel.with(|world| world.unmount(&pod.netns)),
            _ => {}
        }
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        let changes = node.kernel.journal();
        assert!(changes.len() <= 1, "{order}: {changes:?}");
        if order == "ours first" {
            move_netdev(&node, &pod, NetnsSide::Pod, NetnsSide::Host);
        }
        if order == "ours alone" {
            node.must_be(&before, order);
        }
        let side = node.kernel.with(|world| world.place_of_rdma("mlx5_2"));
        assert_eq!(side, Some(fake_kernel::world::HOST), "{order}");
        assert_eq!(node.records(), [] as [&str; 0], "{order}");
    }
}

#[test]
fn a_move_that_is_refused_leaves_the_netdev_to_its_plugin() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    move_netdev(&node, &pod, NetnsSide::Host, NetnsSide::Pod);
    let before = node.snapshot();
    node.script(|_| Verdict::Refuse(Errno::EBUSY));
    node.add(&pod, &config(&node, &pod)).must_fail(106);
    node.must_be(&before, "undone");
}

/// A move of only the RDMA device would leave the host a NIC without RDMA, and the pod an RDMA device without
/// addresses.
#[test]
fn the_rdma_device_of_a_netdev_on_the_host_stays_with_it() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = config(&node, &pod);
    let message = node.add(&pod, &config).must_fail(100);
    assert!(message.contains("eth2 is on the host"), "{message}");
    node.must_be(&before, "refused");
    assert_eq!(node.records(), [] as [&str; 0]);
}

#[test]
fn a_drop_in_needs_the_result_of_who_moved_the_netdev() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    move_netdev(&node, &pod, NetnsSide::Host, NetnsSide::Pod);
    let before = node.snapshot();
    let mut config = config(&node, &pod);
    config.as_object_mut().unwrap().remove("prevResult");
    let message = node.add(&pod, &config).must_fail(7);
    assert!(message.contains("prevResult"), "{message}");
    node.must_be(&before, "refused");
}
