// SPDX-License-Identifier: Apache-2.0
//! Netdevs: up and down, MTU, names, flags, settings.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{Kernel, LinkFlag};

/// Sets `nic0` up, and adds an address of each family.
fn addressed(node: &Node<'_, impl Kernel>) {
    node.up("nic0");
    node.make(add("nic0", address("10.0.0.5/24")));
    node.make(add("nic0", nodad("fd00::5/64")));
}

/// A name or alternative name is unique among all names and alternative names of a namespace (`netdev_name_in_use()`,
/// `net/core/dev.c`).
pub fn names_and_alternative_names_are_one_set(node: &Node<'_, impl Kernel>) {
    node.make(alt_name("nic0", "x", true));
    for taken in ["x", "nic0"] {
        assert_eq!(node.refused(alt_name("nic1", taken, true)), Errno::EEXIST);
    }
    assert_eq!(node.refused(rename("nic1", "x")), Errno::EEXIST);
    // `nic0` cannot take its own alternative name either
    assert_eq!(node.refused(rename("nic0", "x")), Errno::EEXIST);
    assert_eq!(node.refused(alt_name("nic0", "y", false)), Errno::ENOENT);
    node.make(alt_name("nic0", "x", false));
    node.make(rename("nic1", "x"));
}

/// Setting a netdev down removes IPv6 addresses and all unicast routes (`addrconf_ifdown()`, `fib_disable_ip()`).
/// Setting it up does not restore routes that the kernel did not make.
pub fn down_keeps_ipv4_addresses_only(node: &Node<'_, impl Kernel>) {
    addressed(node);
    node.make(add_route("nic0", route("10.9.0.0/16", Some("10.0.0.1"))));
    node.make(up("nic0", false));
    let link = node.host("nic0");
    assert_eq!(texts(&link), ["10.0.0.5/24"]);
    assert!(link.routes.is_empty(), "{:?}", link.routes);
    node.up("nic0");
    assert_eq!(
        destinations(&node.host("nic0")),
        ["10.0.0.0/24", "fe80::/64"]
    );
}

/// Below an MTU of 1280 a netdev has no IPv6 (`addrconf_notify()`, `NETDEV_CHANGEMTU`).
pub fn an_mtu_below_1280_takes_ipv6(node: &Node<'_, impl Kernel>) {
    addressed(node);
    node.make(sysctl("nic0", "ipv6/accept_ra", 0));
    node.make(mtu(HOST, "nic0", 1279));
    let link = node.host("nic0");
    assert_eq!(texts(&link), ["10.0.0.5/24"]);
    let mut sysctls = link.sysctls.iter().peekable();
    assert!(sysctls.peek().is_some());
    assert!(sysctls.all(|(key, _)| key.starts_with("ipv4/")));
    let set = sysctl("nic0", "ipv6/accept_ra", 0);
    assert_eq!(node.refused(set), Errno::ENOENT);
    let added = node.refused(add("nic0", address("fd00::6/64")));
    assert_eq!(added, Errno::EINVAL);
    node.make(mtu(HOST, "nic0", 1500));
    let link = node.host("nic0");
    assert_eq!(link.sysctls.get("ipv6/accept_ra"), Some(&1));
    assert_eq!(link.addresses.iter().filter(|it| it.automatic).count(), 1);
}

/// The smallest MTU is 68, the largest the netdev's `max_mtu` (`dev_validate_mtu()`, `net/core/dev.c`).
pub fn an_mtu_has_bounds(node: &Node<'_, impl Kernel>) {
    let most = node.host("nic0").max_mtu.expect("a largest MTU");
    for bytes in [67, most + 1] {
        assert_eq!(node.refused(mtu(HOST, "nic0", bytes)), Errno::EINVAL);
    }
    node.make(mtu(HOST, "nic0", most));
    assert_eq!(node.host("nic0").mtu, most);
}

/// `addrconf_disable_ipv6()`, `net/ipv6/addrconf.c`.
pub fn disable_ipv6_takes_addresses_and_gives_the_link_local_one_back(
    node: &Node<'_, impl Kernel>,
) {
    addressed(node);
    node.make(sysctl("nic0", "ipv6/disable_ipv6", 1));
    assert_eq!(texts(&node.host("nic0")), ["10.0.0.5/24"]);
    let added = node.refused(add("nic0", address("fd00::6/64")));
    assert_eq!(added, Errno::EACCES);
    node.make(sysctl("nic0", "ipv6/disable_ipv6", 0));
    let link = node.host("nic0");
    assert_eq!(link.addresses.len(), 2);
    assert!(link.addresses[1].is_link_local() && link.addresses[1].automatic);
}

/// Since Linux 6.2 a netdev that is up can be renamed too.
pub fn a_link_that_is_down_is_renamed(node: &Node<'_, impl Kernel>) {
    let before = node.host("nic0");
    node.make(rename("nic0", "eth7"));
    assert_eq!(node.host("eth7").index, before.index);
    assert!(node.observe().host.link("nic0").is_none());
    assert_eq!(node.refused(rename("nic0", "eth8")), Errno::ENODEV);
}

/// Setting one flag changes no other flag.
pub fn every_flag_alone(node: &Node<'_, impl Kernel>) {
    for wanted in LinkFlag::ALL {
        for on in [true, false, true] {
            let before = node.host("nic0").flags;
            node.make(flag("nic0", wanted, on));
            let after = node.host("nic0");
            assert_eq!(after.has(wanted), on, "{wanted:?}");
            let others = |flags: &[LinkFlag]| -> Vec<LinkFlag> {
                flags.iter().copied().filter(|it| *it != wanted).collect()
            };
            assert_eq!(others(&after.flags), others(&before), "{wanted:?}");
        }
    }
}

/// The kernel refuses changes of a missing netdev with `ENODEV`, and of its sysctls with `ENOENT`.
pub fn what_is_not_there_is_refused(node: &Node<'_, impl Kernel>) {
    for op in [
        up("none", true),
        mtu(HOST, "none", 1500),
        add("none", address("10.0.0.5/24")),
        add_route("none", route("10.9.0.0/16", None)),
    ] {
        let text = op.to_string();
        assert_eq!(node.refused(op), Errno::ENODEV, "{text}");
    }
    let set = sysctl("none", "ipv6/accept_ra", 1);
    assert_eq!(node.refused(set), Errno::ENOENT);
}
