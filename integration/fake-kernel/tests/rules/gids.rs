// SPDX-License-Identifier: Apache-2.0
//! GID tables.

use super::*;
use fake_kernel::FakeKernel;
use rdma_netns::{GidKind, Kernel as _, link::IFA_F_NOPREFIXROUTE};
use std::path::Path;

/// Returns a world with `bond0` and its RDMA device `mlx5_bond_0`. The bond's child `rdma0` is up in the pod.
fn shared() -> (World, NetnsId) {
    bonded(RdmaMode::Shared)
}

fn bonded(mode: RdmaMode) -> (World, NetnsId) {
    let mut world = World::new(Some(mode));
    world.plug_bond(0);
    let pod = world.create_namespace("/run/netns/pod");
    make(&mut world, add_child("bond0", BRIDGE, "rdma0"));
    make(&mut world, in_pod(up("rdma0", true)));
    (world, pod)
}

fn gids(world: &mut World, netns: NetnsId) -> Vec<(u32, String, Option<String>)> {
    let table = world.gids(netns, "mlx5_bond_0", 1).expect("a table");
    let gids = table.gids.into_iter();
    let gids = gids.filter(|gid| !gid.ip.is_unicast_link_local());
    gids.map(|gid| (gid.index, gid.address().to_string(), gid.netdev))
        .collect()
}

fn gid(index: u32, ip: &str, netdev: &str) -> (u32, String, Option<String>) {
    (index, ip.to_owned(), Some(netdev.to_owned()))
}

fn pod_address(text: &str) -> Op {
    in_pod(add_address("rdma0", text))
}

#[test]
fn a_bonds_and_its_childrens_addresses_have_the_first_free_places() {
    let (mut world, pod) = shared();
    let mut expected = vec![gid(1, "10.0.0.1", "bond0"), gid(2, "fd00::1", "bond0")];
    // entries 0 and 3 are link-local addresses of the bond and of its child
    assert_eq!(gids(&mut world, HOST), expected);
    make(&mut world, pod_address("10.0.0.5/16"));
    make(&mut world, pod_address("fd00::5/64"));
    expected.extend([gid(4, "10.0.0.5", "rdma0"), gid(5, "fd00::5", "rdma0")]);
    assert_eq!(gids(&mut world, HOST), expected);
    // in shared mode every namespace sees the table
    assert_eq!(gids(&mut world, pod), expected);
    let table = world.gids(HOST, "mlx5_bond_0", 1).expect("a table");
    let mut found = table.all("10.0.0.5".parse().unwrap(), GidKind::RoceV2);
    assert_eq!(found.next().map(|gid| gid.index), Some(4));
    assert_eq!((table.size, table.used()), (128, 6));
}

#[test]
fn a_place_is_free_when_the_address_goes() {
    let (mut world, pod) = shared();
    make(&mut world, pod_address("10.0.0.5/16"));
    make(&mut world, pod_address("10.0.0.6/16"));
    make(
        &mut world,
        Op::Link {
            at: NetnsSide::Host,
            link: name("bond0"),
            change: LinkChange::RemoveAddress(address("10.0.0.1/16")),
        },
    );
    make(&mut world, pod_address("10.0.0.7/16"));
    let of_child = |world: &mut World| {
        let mut all = gids(world, pod);
        all.retain(|gid| gid.2.as_deref() == Some("rdma0"));
        all.into_iter().map(|gid| gid.0).collect::<Vec<_>>()
    };
    assert_eq!(of_child(&mut world), [1, 4, 5]);
    make(&mut world, remove_link(NetnsSide::Pod, "rdma0"));
    assert_eq!(gids(&mut world, HOST), [gid(2, "fd00::1", "bond0")]);
}

#[test]
fn the_other_end_of_an_ipv4_address_has_the_gid() {
    let (mut world, pod) = shared();
    make(&mut world, pod_address("10.1.0.5/24"));
    let link = name("rdma0");
    let mut address = address("10.1.0.5/32");
    address.peer = "10.244.1.5".parse().ok();
    address.flags = IFA_F_NOPREFIXROUTE;
    let at = NetnsSide::Pod;
    let add = Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::AddAddress(address.clone()),
    };
    make(&mut world, add);
    let of_child = |world: &mut World| -> Vec<String> {
        let all = gids(world, pod).into_iter();
        let of_child = all.filter(|gid| gid.2.as_deref() == Some("rdma0"));
        of_child.map(|gid| gid.1).collect()
    };
    assert_eq!(of_child(&mut world), ["10.1.0.5", "10.244.1.5"]);
    let routes = world.link(pod, "rdma0").unwrap().routes.clone();
    make(
        &mut world,
        Op::Link {
            at,
            link,
            change: LinkChange::RemoveAddress(address),
        },
    );
    assert_eq!(of_child(&mut world), ["10.1.0.5"]);
    // `rdma0` still has `10.1.0.5/24`, so the routes with the source `10.1.0.5` stay
    assert_eq!(world.link(pod, "rdma0").unwrap().routes, routes);
    assert!(routes.iter().any(|it| it.source == "10.1.0.5".parse().ok()));
}

#[test]
fn gids_end_with_their_namespace() {
    let (mut world, _) = shared();
    let before = gids(&mut world, HOST);
    make(&mut world, pod_address("10.0.0.5/16"));
    assert_eq!(gids(&mut world, HOST).len(), before.len() + 1);
    world.unmount("/run/netns/pod");
    assert_eq!(gids(&mut world, HOST), before);
}

#[test]
fn a_full_table_takes_no_more_and_does_not_try_again() {
    let (mut world, pod) = shared();
    world.gid_table_size = 4;
    make(&mut world, pod_address("10.0.0.5/16"));
    assert!(texts(world.link(pod, "rdma0").unwrap()).contains(&"10.0.0.5/16".to_owned()));
    let has_it = |world: &mut World| gids(world, HOST).iter().any(|gid| gid.1 == "10.0.0.5");
    assert!(!has_it(&mut world));
    let remove = |at, link: &str, text: &str| {
        let (link, address) = (name(link), address(text));
        Op::Link {
            at,
            link,
            change: LinkChange::RemoveAddress(address),
        }
    };
    make(&mut world, remove(AT, "bond0", "10.0.0.1/16"));
    assert!(!has_it(&mut world));
    make(&mut world, remove(NetnsSide::Pod, "rdma0", "10.0.0.5/16"));
    make(&mut world, pod_address("10.0.0.5/16"));
    assert!(has_it(&mut world));
}

#[test]
fn a_gid_may_be_late() {
    let (mut world, _) = shared();
    world.gid_delay = 2;
    make(&mut world, pod_address("10.0.0.5/16"));
    let counts: Vec<usize> = (0..4).map(|_| gids(&mut world, HOST).len()).collect();
    assert_eq!(counts, [2, 2, 3, 3]);
}

#[test]
fn roce_v1_has_places_too() {
    let mut world = World::new(Some(RdmaMode::Shared));
    world.gids_of_roce_v1 = true;
    world.plug(Nic::physical("0000:01:00.0", "eth0", "mlx5_0"));
    make(&mut world, add_address("eth0", "10.0.0.5/24"));
    let table = world.gids(HOST, "mlx5_0", 1).expect("a table");
    let index = |kind| {
        let mut found = table.all("10.0.0.5".parse().unwrap(), kind);
        found.next().map(|gid| gid.index)
    };
    assert_eq!(index(GidKind::InfinibandOrRoceV1), Some(0));
    assert_eq!(index(GidKind::RoceV2), Some(1));
}

#[test]
fn an_infiniband_port_has_its_own() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::infiniband("0000:01:00.0", "mlx5_0"));
    let table = world.gids(HOST, "mlx5_0", 1).expect("a table");
    assert_eq!(table.gids[0].ip.to_string(), "fe80::1000");
    assert_eq!(table.used(), 1);
}

#[test]
fn behind_the_seam() {
    let kernel = FakeKernel::new(shared().0);
    let pod = Path::new("/run/netns/pod");
    let pod = kernel.open_pod(pod).expect("the pod");
    let table = kernel.gids(Some(&pod), "mlx5_bond_0", 1).expect("a table");
    assert_eq!(table, kernel.gids(None, "mlx5_bond_0", 1).expect("a table"));
    for (device, port) in [("mlx5_9", 1), ("mlx5_bond_0", 2)] {
        let error = kernel.gids(None, device, port).expect_err("an error");
        assert_eq!(error.source.kind(), std::io::ErrorKind::NotFound);
    }
}
