// SPDX-License-Identifier: Apache-2.0
//! GID tables: when the kernel adds the GIDs of an address, and which namespaces see the table.

use crate::{Node, ops::*};
use rdma_netns::{Gid, GidKind, Kernel, LinkChange, Op};
use std::{io, time::Duration};

const ADDRESSES: [&str; 2] = ["10.9.0.5/24", "fd09::5/64"];

fn set_up(node: &Node<'_, impl Kernel>) {
    node.make(up_at(POD, "rdma0", true));
    for text in ADDRESSES {
        let (at, link) = (POD, name("rdma0"));
        let address = if text.contains(':') {
            nodad(text)
        } else {
            address(text)
        };
        node.make(Op::Link {
            at,
            link,
            change: LinkChange::AddAddress(address),
        });
    }
}

/// Returns the GIDs of [`ADDRESSES`] on `rxe0` as soon as the table has `count` of them.
#[track_caller]
fn wait(node: &Node<'_, impl Kernel>, in_pod: bool, count: usize) -> Vec<Gid> {
    for _ in 0..500 {
        let pod = in_pod.then_some(node.pod);
        let table = node.kernel.gids(pod, "rxe0", 1).expect("a table");
        let find = |text: &&str| {
            let mut gids = table.all(address(text).ip, GidKind::RoceV2);
            gids.next().cloned()
        };
        let found: Vec<Gid> = ADDRESSES.iter().filter_map(find).collect();
        if found.len() == count {
            return found;
        }
        node.kernel.pause(Duration::from_millis(20));
    }
    panic!("the table does not get {count} of the GIDs");
}

#[track_caller]
fn has_no_table(node: &Node<'_, impl Kernel>, in_pod: bool) {
    let pod = in_pod.then_some(node.pod);
    let error = node.kernel.gids(pod, "rxe0", 1).expect_err("none");
    assert_eq!(error.source.kind(), io::ErrorKind::NotFound, "{error}");
}

/// The GIDs of a child are in the table of its parent's RDMA device (`enum_netdev_ipv4_ips()`,
/// `drivers/infiniband/core/roce_gid_mgmt.c`). The pod sees no GIDs of a device that is on the host.
pub fn a_childs_gids_are_in_its_parents_table(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    let table = || node.kernel.gids(None, "rxe0", 1).expect("a table");
    wait(node, false, 0);
    let taken = table().gids;
    set_up(node);
    for gid in wait(node, false, 2) {
        assert_eq!(gid.netdev.as_deref(), Some("rdma0"));
        assert!(taken.iter().all(|it| it.index != gid.index), "{gid:?}");
    }
    has_no_table(node, true);
    node.make(remove_link(POD, "rdma0"));
    wait(node, false, 0);
}

/// An RDMA device's table has the GIDs of all upper netdevs of its netdev, also of indirect ones
/// (`is_eth_port_of_netdev_filter()`).
pub fn those_of_a_vlans_child_are_in_the_table_of_its_lower(node: &Node<'_, impl Kernel>) {
    (node.add_vlan)("nic0", 7);
    node.make(up("nic0.7", true));
    node.make(add_child("nic0.7", BRIDGE, "rdma0"));
    set_up(node);
    for gid in wait(node, false, 2) {
        assert_eq!(gid.netdev.as_deref(), Some("rdma0"));
    }
    node.make(remove_link(POD, "rdma0"));
    wait(node, false, 0);
}

/// Each netdev with an address has its own GID (`ib_cache_gid_add()`, `drivers/infiniband/core/cache.c`). An entry
/// keeps its place when the entry of another netdev ends.
pub fn two_netdevs_with_one_address_have_a_gid_each(node: &Node<'_, impl Kernel>) {
    let table = || node.kernel.gids(None, "rxe0", 1).expect("a table");
    let of = |link: &str| {
        let ip = address(ADDRESSES[0]).ip;
        let gids = table()
            .all(ip, GidKind::RoceV2)
            .cloned()
            .collect::<Vec<_>>();
        let mut gids = gids.into_iter();
        gids.find(|gid| gid.netdev.as_deref() == Some(link))
            .map(|gid| gid.index)
    };
    let wait_for = |link: &str, present: bool| {
        for _ in 0..500 {
            let found = of(link);
            if found.is_some() == present {
                return found;
            }
            node.kernel.pause(Duration::from_millis(20));
        }
        panic!("the table does not change for {link}: {:?}", table());
    };
    let mut places = vec![];
    for link in ["rdma0", "rdma1"] {
        node.make(add_child("nic0", BRIDGE, link));
        node.make(up_at(POD, link, true));
        node.make(Op::Link {
            at: POD,
            link: name(link),
            change: LinkChange::AddAddress(address(ADDRESSES[0])),
        });
        places.push(wait_for(link, true));
    }
    assert_ne!(places[0], places[1]);
    assert_eq!(of("rdma0"), places[0]);
    node.make(remove_link(POD, "rdma0"));
    wait_for("rdma0", false);
    assert_eq!(of("rdma1"), places[1]);
    node.make(remove_link(POD, "rdma1"));
    wait_for("rdma1", false);
}

/// A moved RDMA device has the GIDs of its netdev in the pod, and the host no longer sees its table.
pub fn a_moved_device_has_those_of_its_netdev_there(node: &Node<'_, impl Kernel>) {
    node.make(move_rdma("rxe0", HOST, POD));
    node.make(into_pod("nic0", "rdma0"));
    set_up(node);
    for gid in wait(node, true, 2) {
        assert_eq!(gid.netdev.as_deref(), Some("rdma0"));
    }
    has_no_table(node, false);
    node.kernel.gids(None, "rxe1", 1).expect("the other one");
}
