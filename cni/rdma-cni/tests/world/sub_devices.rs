// SPDX-License-Identifier: Apache-2.0
//! Tests of multi-plane NICs, whose RDMA device has a sub-device for subnet management. The kernel's move would wait
//! for this sub-device for ever.

use crate::node::Node;
use rdma_netns::{Kernel as _, RdmaMode};

fn add_sub_device(node: &Node) {
    let add = |world: &mut fake_kernel::World| world.add_sub_device("smi1", "mlx5_2");
    node.kernel.with(add);
}

#[test]
fn a_device_with_a_sub_device_is_not_moved() {
    let node = Node::new(RdmaMode::Exclusive);
    add_sub_device(&node);
    let pod = node.pod("a");
    let before = node.snapshot();
    let message = node.add(&pod, &node.two_rails()).must_fail(102);
    assert!(message.contains("rdma dev delete smi1"), "{message}");
    node.must_be(&before, "nothing was changed");
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn in_shared_mode_a_sub_device_is_a_part_of_its_parent() {
    let node = Node::new(RdmaMode::Shared);
    add_sub_device(&node);
    let pod = node.pod("a");
    let before = node.snapshot();
    let seen = node.kernel.observe(None).expect("a state").host;
    let subs: Vec<_> = seen.sub_devices.iter().map(|it| &*it.name).collect();
    assert_eq!(subs, ["smi1"]);
    assert!(
        seen.rdma.iter().all(|it| it.name != "smi1"),
        "{:?}",
        seen.rdma
    );
    // the character devices that containers get with `umad: true` or by a claim
    let parent = seen.rdma.iter().find(|it| it.name == "mlx5_2");
    let nodes = parent.into_iter().flat_map(|it| &it.char_devices);
    let names: Vec<_> = nodes.map(|it| &*it.name).collect();
    assert_eq!(names, ["uverbs2", "umad0"]);
    let result = node.add(&pod, &node.two_rails()).must_succeed();
    assert!(!result.to_string().contains("smi1"), "{result}");
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "after DEL: the node's own sub-device stays");
}

/// A pod with NET_ADMIN makes a sub-device. The kernel makes it on the host.
#[test]
fn a_sub_device_that_a_pod_made_ends_with_the_attachment() {
    for dies in [false, true] {
        let node = Node::new(RdmaMode::Exclusive);
        let mut before = node.snapshot();
        let pod = node.pod("a");
        if !dies {
            before = node.snapshot();
        }
        node.add(&pod, &node.two_rails()).must_succeed();
        add_sub_device(&node);
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.del(&pod, &node.two_rails()).must_succeed();
        node.must_be(&before, &format!("namespace dies: {dies}"));
        let seen = node.kernel.observe(None).expect("a state").host;
        assert_eq!(seen.sub_devices, []);
    }
}
