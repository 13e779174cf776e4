// SPDX-License-Identifier: Apache-2.0
//! Netdevs.

use super::*;
use rdma_netns::HardwareAddress;

fn mtu(link: &str, mtu: u32) -> Op {
    let link = name(link);
    Op::SetMtu { at: AT, link, mtu }
}

fn rename(from: &str, to: &str) -> Op {
    let (link, name) = (name(from), name(to));
    Op::RenameLink { at: AT, link, name }
}

fn alt_name(link: &str, name: &str, present: bool) -> Op {
    Op::SetAltName {
        at: AT,
        link: super::name(link),
        name: name.to_owned(),
        present,
    }
}

fn sysctl(link: &str, key: &str, value: i32) -> Op {
    Op::SetSysctl {
        at: AT,
        link: name(link),
        key: key.to_owned(),
        value,
    }
}

/// `netif_carrier_off()` of a driver; a netdev that is down tells of no carrier.
#[test]
fn a_carrier_is_there_with_the_cable_and_up() {
    let (mut world, _) = addressed();
    assert!(host(&world, "eth0").carrier);
    world.cable("eth0", false).unwrap();
    assert!(!host(&world, "eth0").carrier && host(&world, "eth0").up);
    let up = |up| Op::SetUp {
        at: AT,
        link: name("eth0"),
        up,
    };
    make(&mut world, up(false));
    world.cable("eth0", true).unwrap();
    assert!(!host(&world, "eth0").carrier);
    make(&mut world, up(true));
    assert!(host(&world, "eth0").carrier);
}

/// `dev_validate_mtu()`, `net/core/dev.c`.
#[test]
fn the_largest_mtu_is_told_and_kept() {
    let mut world = World::new(None);
    let nic = Nic::physical("0000:01:00.0", "eth0", "rdma0").with_max_mtu(8500);
    world.plug(nic);
    assert_eq!(host(&world, "eth0").max_mtu, Some(8500));
    make(&mut world, mtu("eth0", 8500));
    assert_eq!(errno(&mut world, mtu("eth0", 8501)), Errno::EINVAL);
}

#[test]
fn a_move_drops_addresses_routes_and_up() {
    let (mut world, pod) = addressed();
    make(&mut world, into_pod("eth0", "rdma0"));
    let link = world.link(pod, "rdma0").unwrap();
    assert!(!link.up && link.addresses.is_empty() && link.routes.is_empty());
    assert!(world.link(HOST, "eth0").is_none());
}

#[test]
fn a_move_resets_settings_to_those_of_the_namespace() {
    let (mut world, pod) = exclusive();
    make(&mut world, sysctl("eth0", "ipv6/accept_ra", 0));
    make(&mut world, into_pod("eth0", "eth0"));
    let link = world.link(pod, "eth0").unwrap();
    assert_eq!(link.sysctls["ipv6/accept_ra"], 1);
    assert_eq!(link.sysctls["ipv4/rp_filter"], 0);
    make(&mut world, host_link("eth0", "eth0"));
    assert_eq!(host(&world, "eth0").sysctls["ipv4/rp_filter"], 2);
}

#[test]
fn a_move_keeps_the_other_things() {
    let (mut world, pod) = exclusive();
    make(&mut world, mtu("eth0", 4200));
    make(&mut world, alt_name("eth0", "enp1s0", true));
    let before = host(&world, "eth0").clone();
    make(&mut world, into_pod("eth0", "eth0"));
    let after = Link {
        sysctls: before.sysctls.clone(),
        ..world.link(pod, "eth0").unwrap().clone()
    };
    assert_eq!(before, after);
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
        make(&mut world, host_link("eth0", "eth0"));
        assert_eq!(host(&world, "eth0").index != index, taken);
    }
}

#[test]
fn a_name_that_is_taken_stops_a_move() {
    let (mut world, _) = exclusive();
    make(&mut world, into_pod("eth1", "rdma0"));
    assert_eq!(errno(&mut world, into_pod("eth0", "rdma0")), Errno::EEXIST);
    host(&world, "eth0");
}

#[test]
fn an_alternative_name_that_is_taken_stops_a_move() {
    let (mut world, _) = exclusive();
    make(&mut world, alt_name("eth0", "x", true));
    make(&mut world, into_pod("eth0", "rdma0"));
    world.plug(Nic::virtual_link("x", "dummy"));
    assert_eq!(errno(&mut world, host_link("rdma0", "eth0")), Errno::EEXIST);
}

#[test]
fn names_and_alternative_names_are_one_set() {
    let (mut world, _) = exclusive();
    make(&mut world, alt_name("eth0", "x", true));
    assert_eq!(
        errno(&mut world, alt_name("eth1", "x", true)),
        Errno::EEXIST
    );
    assert_eq!(
        errno(&mut world, alt_name("eth1", "eth0", true)),
        Errno::EEXIST
    );
    assert_eq!(errno(&mut world, rename("eth1", "x")), Errno::EEXIST);
    // also its own
    assert_eq!(errno(&mut world, rename("eth0", "x")), Errno::EEXIST);
    assert_eq!(
        errno(&mut world, alt_name("eth0", "y", false)),
        Errno::ENOENT
    );
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
fn down_keeps_ipv4_addresses_only() {
    let (mut world, _) = addressed();
    make(
        &mut world,
        add_route("eth0", route("10.9.0.0/16", Some("10.0.0.1"))),
    );
    make(&mut world, up("eth0", false));
    let link = host(&world, "eth0");
    assert_eq!(texts(link), ["10.0.0.5/24"]);
    assert!(link.routes.is_empty());
    make(&mut world, up("eth0", true));
    assert_eq!(
        destinations(host(&world, "eth0")),
        ["10.0.0.0/24", "fe80::/64"]
    );
}

#[test]
fn an_mtu_below_1280_takes_ipv6() {
    let (mut world, _) = addressed();
    make(&mut world, sysctl("eth0", "ipv6/accept_ra", 0));
    make(&mut world, mtu("eth0", 1279));
    let link = host(&world, "eth0");
    assert_eq!(texts(link), ["10.0.0.5/24"]);
    assert!(link.sysctls.keys().all(|key| key.starts_with("ipv4/")));
    let set = sysctl("eth0", "ipv6/accept_ra", 0);
    assert_eq!(errno(&mut world, set), Errno::ENOENT);
    assert_eq!(
        errno(&mut world, add_address("eth0", "fd00::6/64")),
        Errno::EINVAL
    );
    make(&mut world, mtu("eth0", 1500));
    let link = host(&world, "eth0");
    assert_eq!(link.sysctls["ipv6/accept_ra"], 1);
    assert_eq!(link.addresses.iter().filter(|a| a.automatic).count(), 1);
}

#[test]
fn an_mtu_has_bounds() {
    let (mut world, _) = exclusive();
    for bytes in [67, 10_000] {
        assert_eq!(errno(&mut world, mtu("eth0", bytes)), Errno::EINVAL);
    }
}

#[test]
fn some_drivers_change_the_hardware_address_only_while_down() {
    let mut world = World::new(None);
    world.plug(Nic::physical("0000:01:00.0", "eth0", "mlx5_0").with_mac_only_while_down());
    let change = Op::SetMac {
        at: AT,
        link: name("eth0"),
        mac: HardwareAddress(vec![6; 6]),
    };
    make(&mut world, up("eth0", true));
    assert_eq!(errno(&mut world, change.clone()), Errno::EBUSY);
    make(&mut world, up("eth0", false));
    make(&mut world, change);
}

#[test]
fn disable_ipv6_takes_addresses_and_gives_the_link_local_one_back() {
    let (mut world, _) = addressed();
    make(&mut world, sysctl("eth0", "ipv6/disable_ipv6", 1));
    assert_eq!(texts(host(&world, "eth0")), ["10.0.0.5/24"]);
    assert_eq!(
        errno(&mut world, add_address("eth0", "fd00::6/64")),
        Errno::EACCES
    );
    make(&mut world, sysctl("eth0", "ipv6/disable_ipv6", 0));
    assert_eq!(host(&world, "eth0").addresses.len(), 2);
}
