// SPDX-License-Identifier: Apache-2.0
//! Bonds with one RDMA device.

use super::*;

fn bonds() -> (World, NetnsId) {
    let mut world = World::new(Some(RdmaMode::Shared));
    world.plug_bond(0);
    world.plug_bond(1);
    let pod = world.create_namespace("/run/netns/pod");
    (world, pod)
}

#[test]
fn an_rdma_device_is_its_bonds_though_its_netdev_is_a_port() {
    let (world, _) = bonds();
    let seen = world.observe(None).host;
    for (bond, rdma) in [("bond0", "mlx5_bond_0"), ("bond1", "mlx5_bond_1")] {
        let bond = seen.link(bond).expect("the bond");
        assert_eq!(seen.rdma_of(bond).map(|rdma| &*rdma.name), Some(rdma));
        assert!(!seen.rdma_of(bond).expect("a device").has_netdev(bond.index));
    }
    let bond = host(&world, "bond1");
    assert!(
        bond.up && bond.mac == host(&world, "eth2").mac && bond.mac == host(&world, "eth3").mac
    );
    assert_eq!(texts(bond)[..2], ["10.1.0.1/16", "fd00:1::1/64"]);
    assert_eq!(texts(host(&world, "eth2")), Vec::<String>::new());
    assert!(bond.addresses.iter().all(|address| !address.tentative));
}

#[test]
fn a_bond_and_its_ports_do_not_move_but_a_child_can_be_made() {
    let (mut world, pod) = bonds();
    for link in ["bond0", "eth0"] {
        assert_eq!(errno(&mut world, into_pod(link, "rdma0")), Errno::EINVAL);
    }
    make(&mut world, add_child("bond0", BRIDGE, "rdma0"));
    assert!(world.link(pod, "rdma0").is_some());
    // the bond already receives the port's frames
    assert_eq!(
        errno(&mut world, add_child("eth2", BRIDGE, "rdma1")),
        Errno::EBUSY
    );
}

#[test]
fn a_bond_that_goes_leaves_its_ports_and_takes_its_children() {
    let (mut world, pod) = bonds();
    make(&mut world, add_child("bond0", BRIDGE, "rdma0"));
    make(&mut world, remove_link(AT, "bond0"));
    assert_eq!(host(&world, "eth0").master, None);
    assert!(host(&world, "eth2").master.is_some());
    assert!(world.link(pod, "rdma0").is_none());
}
