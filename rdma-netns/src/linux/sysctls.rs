// SPDX-License-Identifier: Apache-2.0
//! The settings below `/proc/sys/net/ipv{4,6}/conf/NETDEV`: read for all netdevs at once
//! from `IFLA_AF_SPEC`, written through `/proc`.

use crate::{
    link::{SYSCTLS, Sysctls},
    netlink::attributes,
};
use nix::libc;
use std::{fs, io};

/// `IFLA_INET_CONF` in `AF_INET`'s part.
const IFLA_INET_CONF: u16 = 1;
/// `IFLA_INET6_CONF` in `AF_INET6`'s part.
const IFLA_INET6_CONF: u16 = 2;

/// `IPV4_DEVCONF_*` (`include/uapi/linux/ip.h`), which count from 1; in the order of [`SYSCTLS`].
const IPV4: [(&str, usize); 19] = [
    ("ipv4/accept_local", 23),
    ("ipv4/accept_redirects", 4),
    ("ipv4/accept_source_route", 9),
    ("ipv4/arp_accept", 21),
    ("ipv4/arp_announce", 18),
    ("ipv4/arp_filter", 13),
    ("ipv4/arp_ignore", 19),
    ("ipv4/arp_notify", 22),
    ("ipv4/forwarding", 1),
    ("ipv4/log_martians", 11),
    ("ipv4/promote_secondaries", 20),
    ("ipv4/proxy_arp", 3),
    ("ipv4/proxy_arp_pvlan", 25),
    ("ipv4/route_localnet", 26),
    ("ipv4/rp_filter", 8),
    ("ipv4/secure_redirects", 5),
    ("ipv4/send_redirects", 6),
    ("ipv4/shared_media", 7),
    ("ipv4/src_valid_mark", 24),
];

/// `DEVCONF_*` (`include/uapi/linux/ipv6.h`), which count from 0; what follows there.
const IPV6: [(&str, usize); 16] = [
    ("ipv6/accept_dad", 27),
    ("ipv6/accept_ra", 3),
    ("ipv6/accept_ra_defrtr", 17),
    ("ipv6/accept_ra_pinfo", 18),
    ("ipv6/accept_redirects", 4),
    ("ipv6/addr_gen_mode", 47),
    ("ipv6/autoconf", 5),
    ("ipv6/dad_transmits", 6),
    ("ipv6/disable_ipv6", 26),
    ("ipv6/forwarding", 0),
    ("ipv6/max_addresses", 15),
    ("ipv6/ndisc_notify", 29),
    ("ipv6/optimistic_dad", 23),
    ("ipv6/proxy_ndp", 22),
    ("ipv6/router_solicitations", 7),
    ("ipv6/use_tempaddr", 10),
];

/// What `IFLA_AF_SPEC` says. A protocol that the netdev does not have (IPv6 on an MTU
/// below 1280) has no settings.
pub(super) fn parse(families: &[u8]) -> Sysctls {
    let (mut ipv4, mut ipv6): (&[[u8; 4]], &[[u8; 4]]) = (&[], &[]);
    for (family, list) in attributes(families) {
        let (values, wanted) = match i32::from(family) {
            libc::AF_INET => (&mut ipv4, IFLA_INET_CONF),
            libc::AF_INET6 => (&mut ipv6, IFLA_INET6_CONF),
            _ => continue,
        };
        if let Some((_, told)) = attributes(list).find(|(kind, _)| *kind == wanted) {
            (*values, _) = told.as_chunks();
        }
    }
    let mut settings = Sysctls::default();
    let ipv4 = IPV4.iter().map(|(_, index)| ipv4.get(index - 1));
    let ipv6 = IPV6.iter().map(|(_, index)| ipv6.get(*index));
    for (place, value) in ipv4.chain(ipv6).enumerate() {
        if let Some(value) = value {
            settings.set(place, i32::from_ne_bytes(*value));
        }
    }
    settings
}

/// Writes a setting of a netdev of the calling thread's namespace: what is below
/// `/proc/sys/net` follows the thread (`net_ctl_header_lookup()` in `net/sysctl_net.c`).
pub(super) fn write(link: &str, key: &str, value: i32) -> io::Result<()> {
    let Some((family, key)) = key.split_once('/').filter(|_| SYSCTLS.contains(&key)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a setting that is kept",
        ));
    };
    fs::write(
        format!("/proc/sys/net/{family}/conf/{link}/{key}"),
        format!("{value}\n"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_an_index() {
        let keys: Vec<_> = IPV4.iter().chain(&IPV6).map(|(key, _)| *key).collect();
        assert_eq!(keys, SYSCTLS);
    }

    #[test]
    fn families_may_come_in_any_order_and_twice() {
        let attribute = |kind: i32, value: &[u8]| {
            let length = u16::try_from(4 + value.len()).expect("short");
            let kind = u16::try_from(kind).expect("small");
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        // the first setting of each: ipv4/forwarding, ipv6/forwarding
        let family = |family, value: i32| {
            let values = attribute(
                1 + i32::from(family == libc::AF_INET6),
                &value.to_ne_bytes(),
            );
            attribute(family, &values)
        };
        let told = [
            family(libc::AF_INET6, 2),
            family(libc::AF_INET, 3),
            family(libc::AF_INET, 1),
        ];
        let settings = parse(&told.concat());
        assert_eq!(settings["ipv4/forwarding"], 1);
        assert_eq!(settings["ipv6/forwarding"], 2);
        assert_eq!(settings.iter().count(), 2);
    }

    #[test]
    fn only_known_settings_are_written() {
        for key in ["ipv6/../../../kernel/panic", "accept_ra", "ipv6/mtu"] {
            let error = write("lo", key, 0).expect_err(key);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{key}");
        }
    }
}
