// SPDX-License-Identifier: Apache-2.0
//! Netdevs.

use super::*;
use rdma_netns::HardwareAddress;

fn mtu(link: &str, mtu: u32) -> Op {
    let link = name(link);
    Op::Link {
        at: AT,
        link,
        change: LinkChange::Mtu(mtu),
    }
}

fn rename(from: &str, to: &str) -> Op {
    let (link, name) = (name(from), name(to));
    Op::Link {
        at: AT,
        link,
        change: LinkChange::Rename(name),
    }
}

/// A netdev has a carrier only if the netdev is up and its cable is plugged in. Without a cable the driver calls
/// `netif_carrier_off()`.
#[test]
fn a_carrier_is_there_with_the_cable_and_up() {
    let (mut world, _) = addressed();
    assert!(host(&world, "eth0").carrier);
    world.cable(None, "eth0", false).unwrap();
    assert!(!host(&world, "eth0").carrier && host(&world, "eth0").up);
    let up = |up| Op::Link {
        at: AT,
        link: name("eth0"),
        change: LinkChange::Up(up),
    };
    make(&mut world, up(false));
    world.cable(None, "eth0", true).unwrap();
    assert!(!host(&world, "eth0").carrier);
    make(&mut world, up(true));
    assert!(host(&world, "eth0").carrier);
}

/// `dev_validate_mtu()`, `net/core/dev.c`.
#[test]
fn the_largest_mtu_is_reported_and_kept() {
    let mut world = World::new(None);
    let nic = Nic::physical("0000:01:00.0", "eth0", "rdma0").with_max_mtu(8500);
    world.plug(nic);
    assert_eq!(host(&world, "eth0").max_mtu, Some(8500));
    make(&mut world, mtu("eth0", 8500));
    assert_eq!(errno(&mut world, mtu("eth0", 8501)), Errno::EINVAL);
}

#[test]
fn an_index_is_kept_unless_it_is_taken() {
    for taken in [false, true] {
        let mut world = World::new(None);
        world.plug(Nic::physical("0000:01:00.0", "eth0", "none").without_rdma());
        let pod = world.create_namespace("/run/netns/pod");
        let index = host(&world, "eth0").index;
        make(&mut world, into_pod("eth0", "eth0"));
        assert_eq!(world.link(pod, "eth0").unwrap().index, index);
        if taken {
            world.plug(Nic::virtual_link("dummy0", "dummy"));
            assert_eq!(host(&world, "dummy0").index, index);
        }
        make(&mut world, to_host("eth0", "eth0"));
        assert_eq!(host(&world, "eth0").index != index, taken);
    }
}

#[test]
fn older_kernels_rename_no_netdev_that_is_up() {
    let (mut world, _) = exclusive();
    make(&mut world, up("eth0", true));
    assert_eq!(errno(&mut world, rename("eth0", "x")), Errno::EBUSY);
    world.renames_while_up = true;
    make(&mut world, rename("eth0", "x"));
}

#[test]
fn a_bond_and_its_ports_stay() {
    let mut world = World::new(None);
    world.plug(Nic::virtual_link("bond0", "bond"));
    world.create_namespace("/run/netns/pod");
    assert_eq!(errno(&mut world, into_pod("bond0", "bond0")), Errno::EINVAL);
}

#[test]
fn some_drivers_change_the_hardware_address_only_while_down() {
    let mut world = World::new(None);
    world.plug(Nic::physical("0000:01:00.0", "eth0", "mlx5_0").with_mac_only_while_down());
    let change = Op::Link {
        at: AT,
        link: name("eth0"),
        change: LinkChange::Mac(HardwareAddress(vec![6; 6])),
    };
    make(&mut world, up("eth0", true));
    assert_eq!(errno(&mut world, change.clone()), Errno::EBUSY);
    make(&mut world, up("eth0", false));
    make(&mut world, change);
}
