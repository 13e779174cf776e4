// SPDX-License-Identifier: Apache-2.0
//! Duplicate address detection (DAD), and the link-local address that the kernel makes.

use crate::{Node, ops::*};
use rdma_netns::{Address, Kernel, link::IFA_F_OPTIMISTIC};

/// Returns the tentative addresses of `nic0`: their detection has not ended.
fn tentative(node: &Node<'_, impl Kernel>) -> Vec<String> {
    let link = node.host("nic0");
    let tentative = link.addresses.iter().filter(|it| it.tentative);
    tentative.map(|it| it.ip.to_string()).collect()
}

/// The kernel derives the link-local address from the netdev's hardware address (RFC 4291, appendix A), and adds its
/// route.
pub fn up_makes_the_link_local_address(node: &Node<'_, impl Kernel>) {
    node.make(up("nic0", true));
    let link = node.wait("nic0", |link| !link.addresses.is_empty());
    let [own] = &link.addresses[..] else {
        panic!("{:?}", link.addresses);
    };
    let mac = &link.mac.0;
    let own_mac = [
        mac[0] ^ 2,
        mac[1],
        mac[2],
        0xff,
        0xfe,
        mac[3],
        mac[4],
        mac[5],
    ];
    let ip = [[0xfe, 0x80, 0, 0, 0, 0, 0, 0], own_mac].concat();
    let ip: [u8; 16] = ip.try_into().expect("16 bytes");
    assert_eq!((own.ip, own.prefix), (ip.into(), 64));
    assert_eq!((own.scope, own.automatic), (253, true));
    assert_eq!(destinations(&link), ["fe80::/64"]);
}

/// With `addr_gen_mode` 1 (`IN6_ADDR_GEN_MODE_NONE`) the kernel makes no link-local address.
pub fn there_is_no_link_local_address_where_none_is_wanted(node: &Node<'_, impl Kernel>) {
    node.make(sysctl("nic0", "ipv6/addr_gen_mode", 1));
    node.make(up("nic0", true));
    node.up("nic1");
    assert_eq!(node.host("nic0").addresses, []);
}

/// An added address is tentative until its detection ends. An address with `nodad` is never tentative.
pub fn detection_takes_its_time(node: &Node<'_, impl Kernel>) {
    node.up("nic0");
    node.make(add("nic0", address("fd00::6/64")));
    node.make(add("nic0", nodad("fd00::7/64")));
    assert_eq!(tentative(node), ["fd00::6"]);
    assert_eq!(given(&node.settle("nic0")), ["fd00::7/64", "fd00::6/64"]);
}

/// The kernel drops the flag `optimistic` while the sysctl `optimistic_dad` is 0, its default. Otherwise the end of the
/// detection clears the flag.
pub fn optimistic_is_dropped_in_silence(node: &Node<'_, impl Kernel>) {
    node.up("nic0");
    for (setting, flags) in [(0, 0), (1, IFA_F_OPTIMISTIC)] {
        let text = format!("fd00:{setting}::6/64");
        let optimistic = Address {
            flags: IFA_F_OPTIMISTIC,
            ..address(&text)
        };
        node.make(sysctl("nic0", "ipv6/optimistic_dad", setting));
        node.make(add("nic0", optimistic.clone()));
        let shown = || {
            let link = node.host("nic0");
            link.address(&optimistic).expect("the address").clone()
        };
        let added = shown();
        assert!(added.tentative && added.flags == flags, "{added:?}");
        node.settle("nic0");
        let detected = shown();
        assert!(!detected.tentative && detected.flags == 0, "{detected:?}");
    }
}

/// Replacing a `nodad` address by the address without the flag clears the flag, and starts no detection
/// (`inet6_addr_modify()`, `net/ipv6/addrconf.c`).
pub fn replacing_nodad_by_nothing_starts_no_detection(node: &Node<'_, impl Kernel>) {
    node.up("nic0");
    node.make(add("nic0", nodad("fd00::6/64")));
    node.make(add("nic0", address("fd00::6/64")));
    let link = node.host("nic0");
    let added = link.address(&address("fd00::6/64")).expect("the address");
    assert!(!added.tentative && added.flags == 0, "{added:?}");
}

/// When the netdev goes up, the kernel adds the addresses' prefix routes and the link-local address
/// (`addrconf_dad_run()`, `net/ipv6/addrconf.c`).
pub fn an_address_that_was_set_while_down_works_once_up(node: &Node<'_, impl Kernel>) {
    node.make(add("nic0", address("fd00::5/64")));
    node.make(add("nic0", address("10.0.0.5/24")));
    assert_eq!(node.host("nic0").routes, []);
    node.up("nic0");
    let link = node.host("nic0");
    let expected = ["10.0.0.0/24", "fd00::/64", "fe80::/64"];
    assert_eq!(destinations(&link), expected);
}
