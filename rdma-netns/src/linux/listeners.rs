// SPDX-License-Identifier: Apache-2.0
//! Sockets that receive the events of netdevs, addresses and routes.

use nix::libc::{
    NETLINK_ROUTE, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE,
    RTMGRP_LINK,
};
use std::fs;

/// Table of the netlink sockets of the reading thread's namespace (`netlink_seq_show()`, `net/netlink/af_netlink.c`).
const SOCKETS: &str = "/proc/thread-self/net/netlink";

/// Multicast groups that a program joins if it configures netdevs when events occur.
const EVERYTHING: i32 =
    RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_IFADDR | RTMGRP_IPV6_ROUTE;

/// Returns true if a socket of this thread's namespace has joined all groups of [`EVERYTHING`]. Returns false if the
/// table of sockets cannot be read.
pub(super) fn of_everything() -> bool {
    let table = fs::read_to_string(SOCKETS).unwrap_or_else(|error| {
        log::debug!("{SOCKETS}: {error}");
        String::new()
    });
    has_one(&table)
}

/// Returns true if a socket in `table` has joined all groups of `EVERYTHING`, and so receives all events of netdevs,
/// addresses and routes. `table` has the format of `/proc/net/netlink`.
pub fn has_one(table: &str) -> bool {
    // columns: sk Eth Pid Groups …; `Eth` is the protocol, `Groups` the first 32 groups
    let mut sockets = table.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let protocol: i32 = words.nth(1)?.parse().ok()?;
        let groups = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        Some((protocol, groups.cast_signed()))
    });
    sockets.any(|(protocol, groups)| protocol == NETLINK_ROUTE && groups & EVERYTHING == EVERYTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header as Linux 6.12 prints it.
    const HEADER: &str = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n";

    fn table(sockets: &[(u32, &str)]) -> String {
        let lines = sockets.iter().map(|(protocol, groups)| {
            format!("00000000a1b2c3d4 {protocol:<3} 4711       {groups} 0        0        0     2        0        12345\n")
        });
        HEADER.to_owned() + &lines.collect::<String>()
    }

    #[test]
    fn a_network_manager_is_one_and_who_hears_of_less_is_none() {
        assert!(!has_one(""));
        assert!(!has_one(HEADER));
        // sockets that receive only events of devices (udevd), of links, or of addresses
        let others = [
            (15, "00000002"),
            (0, "00000001"),
            (0, "00000110"),
            (0, "00000000"),
        ];
        assert!(!has_one(&table(&others)));
        // all groups, but of the protocol for uevents
        assert!(!has_one(&table(&[(15, "00000551")])));
        assert!(has_one(&table(&[(0, "00000000"), (0, "800405d5")])));
    }
}
