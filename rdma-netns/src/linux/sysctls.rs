// SPDX-License-Identifier: Apache-2.0
//! The settings below `/proc/sys/net/ipv{4,6}/conf/NETDEV`: read for all netdevs at once
//! from `IFLA_AF_SPEC`, written through `/proc`.

use crate::{
    link::{SYSCTLS, Sysctls},
    netlink::{attribute, attributes},
};
use nix::libc;
use std::{fs, io};

/// `IFLA_INET_CONF` in `AF_INET`'s part.
const IFLA_INET_CONF: u16 = 1;
/// `IFLA_INET6_CONF` in `AF_INET6`'s part.
const IFLA_INET6_CONF: u16 = 2;

/// `IPV4_DEVCONF_*` (`include/uapi/linux/ip.h`), which count from 1; in the order of [`SYSCTLS`].
const IPV4: [(&str, usize); 32] = [
    ("ipv4/accept_local", 23),
    ("ipv4/accept_redirects", 4),
    ("ipv4/accept_source_route", 9),
    ("ipv4/arp_accept", 21),
    ("ipv4/arp_announce", 18),
    ("ipv4/arp_evict_nocarrier", 33),
    ("ipv4/arp_filter", 13),
    ("ipv4/arp_ignore", 19),
    ("ipv4/arp_notify", 22),
    ("ipv4/bc_forwarding", 32),
    ("ipv4/bootp_relay", 10),
    ("ipv4/disable_policy", 16),
    ("ipv4/disable_xfrm", 15),
    ("ipv4/drop_gratuitous_arp", 31),
    ("ipv4/drop_unicast_in_l2_multicast", 30),
    ("ipv4/force_igmp_version", 17),
    ("ipv4/forwarding", 1),
    ("ipv4/igmpv2_unsolicited_report_interval", 27),
    ("ipv4/igmpv3_unsolicited_report_interval", 28),
    ("ipv4/ignore_routes_with_linkdown", 29),
    ("ipv4/log_martians", 11),
    ("ipv4/medium_id", 14),
    ("ipv4/promote_secondaries", 20),
    ("ipv4/proxy_arp", 3),
    ("ipv4/proxy_arp_pvlan", 25),
    ("ipv4/route_localnet", 26),
    ("ipv4/rp_filter", 8),
    ("ipv4/secure_redirects", 5),
    ("ipv4/send_redirects", 6),
    ("ipv4/shared_media", 7),
    ("ipv4/src_valid_mark", 24),
    ("ipv4/tag", 12),
];

/// `DEVCONF_*` (`include/uapi/linux/ipv6.h`), which count from 0; in the order of [`SYSCTLS`], behind those of IPv4.
const IPV6: [(&str, usize); 56] = [
    ("ipv6/accept_dad", 27),
    ("ipv6/accept_ra", 3),
    ("ipv6/accept_ra_defrtr", 17),
    ("ipv6/accept_ra_from_local", 33),
    ("ipv6/accept_ra_min_hop_limit", 38),
    ("ipv6/accept_ra_min_lft", 58),
    ("ipv6/accept_ra_mtu", 35),
    ("ipv6/accept_ra_pinfo", 18),
    ("ipv6/accept_ra_rt_info_max_plen", 21),
    ("ipv6/accept_ra_rt_info_min_plen", 49),
    ("ipv6/accept_ra_rtr_pref", 19),
    ("ipv6/accept_redirects", 4),
    ("ipv6/accept_source_route", 24),
    ("ipv6/accept_untracked_na", 57),
    ("ipv6/addr_gen_mode", 47),
    ("ipv6/autoconf", 5),
    ("ipv6/dad_transmits", 6),
    ("ipv6/disable_ipv6", 26),
    ("ipv6/disable_policy", 48),
    ("ipv6/drop_unicast_in_l2_multicast", 40),
    ("ipv6/drop_unsolicited_na", 41),
    ("ipv6/enhanced_dad", 46),
    ("ipv6/force_forwarding", 59),
    ("ipv6/force_mld_version", 16),
    ("ipv6/force_tllao", 28),
    ("ipv6/forwarding", 0),
    ("ipv6/hop_limit", 1),
    ("ipv6/ignore_routes_with_linkdown", 39),
    ("ipv6/ioam6_enabled", 53),
    ("ipv6/ioam6_id", 54),
    ("ipv6/keep_addr_on_down", 42),
    ("ipv6/max_addresses", 15),
    ("ipv6/max_desync_factor", 14),
    ("ipv6/mldv1_unsolicited_report_interval", 30),
    ("ipv6/mldv2_unsolicited_report_interval", 31),
    ("ipv6/ndisc_evict_nocarrier", 56),
    ("ipv6/ndisc_notify", 29),
    ("ipv6/ndisc_tclass", 50),
    ("ipv6/optimistic_dad", 23),
    ("ipv6/proxy_ndp", 22),
    ("ipv6/ra_defrtr_metric", 52),
    ("ipv6/regen_max_retry", 13),
    ("ipv6/router_probe_interval", 20),
    ("ipv6/router_solicitation_delay", 9),
    ("ipv6/router_solicitation_interval", 8),
    ("ipv6/router_solicitation_max_interval", 43),
    ("ipv6/router_solicitations", 7),
    ("ipv6/rpl_seg_enabled", 51),
    ("ipv6/seg6_enabled", 44),
    ("ipv6/seg6_require_hmac", 45),
    ("ipv6/suppress_frag_ndisc", 32),
    ("ipv6/temp_prefered_lft", 12),
    ("ipv6/temp_valid_lft", 11),
    ("ipv6/use_oif_addrs_only", 37),
    ("ipv6/use_optimistic", 34),
    ("ipv6/use_tempaddr", 10),
];

/// Indices of the times that netlink reports in milliseconds and `/proc` in seconds (`ipv6_store_devconf()`,
/// `net/ipv6/addrconf.c`).
const TIMES: [usize; 4] = [20, 9, 8, 43];

/// Parses `IFLA_AF_SPEC`. A protocol that the netdev does not have (IPv6 on an MTU below 1280) has no settings.
pub(super) fn parse(families: &[u8]) -> Sysctls {
    let (mut ipv4, mut ipv6): (&[[u8; 4]], &[[u8; 4]]) = (&[], &[]);
    for (family, list) in attributes(families) {
        let (values, wanted) = match i32::from(family) {
            libc::AF_INET => (&mut ipv4, IFLA_INET_CONF),
            libc::AF_INET6 => (&mut ipv6, IFLA_INET6_CONF),
            _ => continue,
        };
        if let Some(told) = attribute(list, wanted) {
            (*values, _) = told.as_chunks();
        }
    }
    let mut settings = Sysctls::default();
    let value =
        |values: &[[u8; 4]], index: usize| values.get(index).copied().map(i32::from_ne_bytes);
    let ipv4 = IPV4.iter().map(|(_, index)| value(ipv4, index - 1));
    let ipv6 = IPV6.iter().map(|(_, index)| {
        let value = value(ipv6, *index)?;
        Some(match TIMES.contains(index) {
            true => value / 1000,
            false => value,
        })
    });
    for (place, value) in ipv4.chain(ipv6).enumerate() {
        if let Some(value) = value {
            settings.set(place, value);
        }
    }
    settings
}

/// Writes a setting of a netdev of the calling thread's namespace: the files below `/proc/sys/net` depend on the thread
/// (`net_ctl_header_lookup()` in `net/sysctl_net.c`).
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
        // the first setting of each family: ipv4/forwarding, ipv6/forwarding
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
