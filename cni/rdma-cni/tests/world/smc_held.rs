// SPDX-License-Identifier: Apache-2.0
//! Tests of processes with open connections over an RDMA device: a move of the device would not
//! end.

use crate::{
    node::Node,
    smc::{one_rail_that_asks, one_rail_with_smc, seen},
};
use fake_kernel::world::HOST;
use rdma_netns::RdmaMode;

#[test]
fn a_device_that_a_pod_holds_stays_until_its_process_ends() {
    for config in [Node::one_rail, one_rail_with_smc] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let before = node.snapshot();
        let config = config(&node);
        node.add(&pod, &config).must_succeed();
        let netns = node.netns(&pod);
        let hold = |count| {
            node.kernel
                .with(|world| world.hold_connections(netns, "mlx5_2", count));
        };
        hold(3);
        for verb in ["DEL", "GC"] {
            let answer = match verb {
                "DEL" => node.del(&pod, &config),
                _ => node.gc(&[], &config),
            };
            let message = answer.must_fail(107);
            for words in [
                "mlx5_2",
                "connections over the device (3)",
                "a process of the pod",
                "try again",
            ] {
                assert!(message.contains(words), "{message}");
            }
        }
        // no new connection can use the device
        assert_eq!(seen(&node, Some(&pod)).pod, []);
        assert_eq!(node.records().len(), 2, "{:?}", node.records());
        hold(0);
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "when the process has ended");
    }
}

#[test]
fn one_held_device_does_not_keep_the_other_rail_away() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = node.two_rails();
    node.add(&pod, &config).must_succeed();
    let netns = node.netns(&pod);
    node.kernel
        .with(|world| world.hold_connections(netns, "mlx5_3", 1));
    let message = node.del(&pod, &config).must_fail(107);
    assert!(
        message.contains("mlx5_3") && !message.contains("mlx5_2"),
        "{message}"
    );
    let place = |device: &str| node.kernel.with(|world| world.place_of_rdma(device));
    assert_eq!(place("mlx5_2"), Some(HOST));
    assert_eq!(place("mlx5_3"), Some(netns));
    node.kernel
        .with(|world| world.hold_connections(netns, "mlx5_3", 0));
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "both on the host");
}

#[test]
fn a_device_that_the_host_holds_is_not_moved_into_a_pod() {
    for config in [Node::one_rail, one_rail_that_asks] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let config = config(&node);
        let before = node.snapshot();
        node.kernel
            .with(|world| world.hold_connections(HOST, "mlx5_2", 2));
        let message = node.add(&pod, &config).must_fail(101);
        for words in ["mlx5_2", "device (2)", "a process on the host"] {
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(node.changes(), 0);
        node.must_be(&before, "held by the host");
        node.kernel
            .with(|world| world.hold_connections(HOST, "mlx5_2", 0));
        node.add(&pod, &config).must_succeed();
    }
}

/// The earlier pod still has connections over the device. The next pod's ADD does not wait for their end, but fails.
#[test]
fn a_held_device_has_its_holder() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, other) = (node.pod("a"), node.pod("b"));
    let config = one_rail_with_smc(&node);
    node.add(&pod, &config).must_succeed();
    let netns = node.netns(&pod);
    node.kernel
        .with(|world| world.hold_connections(netns, "mlx5_2", 1));
    node.del(&pod, &config).must_fail(107);
    let message = node.add(&other, &config).must_fail(101);
    assert!(message.contains("container a"), "{message}");
    node.kernel
        .with(|world| world.hold_connections(netns, "mlx5_2", 0));
    node.add(&other, &config).must_succeed();
}

#[test]
fn where_smc_is_not_loaded_it_is_not_queried() {
    let node = Node::new(RdmaMode::Exclusive);
    node.kernel.with(|world| world.smc = None);
    let pod = node.pod("a");
    let before = node.snapshot();
    node.add(&pod, &node.one_rail()).must_succeed();
    node.del(&pod, &node.one_rail()).must_succeed();
    node.must_be(&before, "without SMC");
}
