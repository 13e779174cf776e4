// SPDX-License-Identifier: Apache-2.0
//! Settings below `/proc/sys/net/ipv{4,6}/conf/NETDEV`. The module reads them for all netdevs at once from
//! `IFLA_AF_SPEC`, and writes them through `/proc`.

use crate::{
    link::{SYSCTLS, Sysctls},
    netlink::{attribute, attributes},
};
use nix::libc;
use std::{fs, io};

/// `IFLA_INET_CONF`, in the `AF_INET` part of the attribute.
const IFLA_INET_CONF: u16 = 1;
/// `IFLA_INET6_CONF`, in the `AF_INET6` part of the attribute.
const IFLA_INET6_CONF: u16 = 2;

/// Indexes of times. Netlink reports these times in milliseconds, `/proc` in seconds (`ipv6_store_devconf()`,
/// `net/ipv6/addrconf.c`).
const TIMES: [usize; 4] = [20, 9, 8, 43];

/// Parses `IFLA_AF_SPEC`. A netdev has no settings of a protocol that it does not support: for example, of IPv6 with
/// an MTU below 1280.
pub(super) fn parse(families: &[u8]) -> Sysctls {
    let (mut ipv4, mut ipv6): (&[[u8; 4]], &[[u8; 4]]) = (&[], &[]);
    for (family, list) in attributes(families) {
        let (values, wanted) = match i32::from(family) {
            libc::AF_INET => (&mut ipv4, IFLA_INET_CONF),
            libc::AF_INET6 => (&mut ipv6, IFLA_INET6_CONF),
            _ => continue,
        };
        if let Some(list) = attribute(list, wanted) {
            (*values, _) = list.as_chunks();
        }
    }
    Sysctls::by_place(|(name, index)| {
        let is_ipv4 = name.starts_with("ipv4/");
        let value = match is_ipv4 {
            true => ipv4.get(index - 1),
            false => ipv6.get(index),
        };
        let value = i32::from_ne_bytes(*value?);
        Some(match !is_ipv4 && TIMES.contains(&index) {
            true => value / 1000,
            false => value,
        })
    })
}

/// Writes a setting of a netdev in the calling thread's namespace. The files below `/proc/sys/net` show the namespace
/// of the thread (`net_ctl_header_lookup()` in `net/sysctl_net.c`).
pub(super) fn write(link: &str, key: &str, value: i32) -> io::Result<()> {
    let Some((family, key)) = key.split_once('/').filter(|_| SYSCTLS.contains(&key)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a setting that this crate restores",
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
    fn families_may_come_in_any_order_and_twice() {
        let attribute = |kind: i32, value: &[u8]| {
            let length = u16::try_from(4 + value.len()).expect("short");
            let kind = u16::try_from(kind).expect("small");
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        // the first setting of each family: ipv4/forwarding, ipv6/forwarding
        let family = |family, value: i32| {
            let values = attribute(
                1 + i32::from(family == libc::AF_INET6),
                &value.to_ne_bytes(),
            );
            attribute(family, &values)
        };
        let families = [
            family(libc::AF_INET6, 2),
            family(libc::AF_INET, 3),
            family(libc::AF_INET, 1),
        ];
        let settings = parse(&families.concat());
        assert_eq!(settings.get("ipv4/forwarding"), Some(&1));
        assert_eq!(settings.get("ipv6/forwarding"), Some(&2));
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
