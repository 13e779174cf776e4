// SPDX-License-Identifier: Apache-2.0
//! RDMA devices in exclusive mode.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{Kernel, Namespace, RdmaDevice};
use std::io;

fn names(namespace: &Namespace) -> Vec<&str> {
    namespace.rdma.iter().map(|it| &*it.name).collect()
}

fn device(namespace: Option<Namespace>) -> RdmaDevice {
    let devices = namespace.expect("a namespace").rdma.into_iter();
    let mut found = devices.filter(|it| it.name == "rxe0");
    found.next().expect("rxe0")
}

/// A move to the pod and back keeps the device's index, GUID and character devices.
pub fn in_exclusive_mode_one_namespace_sees_it(node: &Node<'_, impl Kernel>) {
    let before = device(Some(node.observe().host));
    node.make(move_rdma("rxe0", HOST, POD));
    let moved = node.observe();
    assert!(!names(&moved.host).contains(&"rxe0"));
    assert_eq!(names(moved.pod.as_ref().expect("the pod")), ["rxe0"]);
    let there = device(moved.pod);
    assert_eq!(
        (there.index, &there.node_guid),
        (before.index, &before.node_guid)
    );
    assert!(!there.char_devices.is_empty());
    assert!(there.char_devices.iter().all(|it| it.is_in_place()));
    node.make(move_rdma("rxe0", POD, HOST));
    let after = node.observe();
    assert_eq!(device(Some(after.host)), before);
    assert_eq!(names(&after.pod.expect("the pod")), [""; 0]);
}

/// The kernel looks up the device in the caller's namespace (`nldev_set_doit()`, `drivers/infiniband/core/nldev.c`).
pub fn the_caller_has_to_be_where_the_device_is(node: &Node<'_, impl Kernel>) {
    assert_eq!(node.refused(move_rdma("rxe0", POD, HOST)), Errno::ENODEV);
    node.make(move_rdma("rxe0", HOST, POD));
    assert_eq!(node.refused(move_rdma("rxe0", HOST, POD)), Errno::ENODEV);
    assert_eq!(node.refused(move_rdma("none", HOST, POD)), Errno::ENODEV);
}

/// The kernel reports a port's netdev only while RDMA device and netdev are in one namespace (`fill_port_info()`,
/// `drivers/infiniband/core/nldev.c`).
pub fn a_port_reports_its_netdev_where_both_are(node: &Node<'_, impl Kernel>) {
    let index = node.host("nic0").index;
    let netdev = |it: Option<Namespace>| device(it).ports[0].netdev;
    assert_eq!(netdev(Some(node.observe().host)), Some(index));
    node.make(move_rdma("rxe0", HOST, POD));
    assert_eq!(netdev(node.observe().pod), None);
    node.make(into_pod("nic0", "rdma0"));
    assert_eq!(netdev(node.observe().pod), Some(node.pod("rdma0").index));
}

/// A device that is in another namespace or does not exist has no GID table, and neither has a missing port.
pub fn what_is_not_there_has_no_gids(node: &Node<'_, impl Kernel>) {
    node.kernel.gids(None, "rxe0", 1).expect("a table");
    node.make(move_rdma("rxe0", HOST, POD));
    node.kernel
        .gids(Some(node.pod), "rxe0", 1)
        .expect("a table");
    for (device, port) in [("rxe0", 1), ("none", 1), ("rxe1", 2)] {
        let error = node.kernel.gids(None, device, port).expect_err("none");
        assert_eq!(
            error.source.kind(),
            io::ErrorKind::NotFound,
            "{device} {port}"
        );
    }
}
