// SPDX-License-Identifier: Apache-2.0
//! Addresses, routes and settings in the syntax of equivalent commands.

use crate::{Address, DeviceAddress, LinkSetting, Route, link};
use std::{fmt::Write as _, net::IpAddr};

pub(super) fn drivers(device: &DeviceAddress, driver: &str) -> String {
    format!("/sys/bus/{}/drivers/{driver}", device.bus())
}

/// Returns the command that sets a device setting. Two kinds of settings have a description instead: settings of
/// ethtool and tcx, because neither ethtool nor bpftool accepts the record's format, and attributes of a link's kind,
/// which the record has by number.
pub(super) fn device_setting(link: &str, key: &str, value: &str) -> String {
    match key.split_once('/') {
        Some((tool @ ("ethtool" | "tcx"), setting)) => {
            format!("{tool} of {link}: {setting} [{value}]")
        }
        Some(("kind", attribute)) => {
            format!("IFLA_INFO_DATA of {link}: {attribute} [{value}]")
        }
        Some(("sysctl", setting)) => {
            let (table, name) = setting.rsplit_once('/').unwrap_or_default();
            format!("echo {value} > /proc/sys/net/{table}/{link}/{name}")
        }
        _ => format!("echo {value} > /sys/class/net/{link}/{key}"),
    }
}

pub(super) fn setting_words(setting: LinkSetting, value: u32) -> String {
    let word = match setting {
        LinkSetting::Mode => "mode",
        LinkSetting::Group => "group",
        LinkSetting::GsoMaxSize => "gso_max_size",
        LinkSetting::GsoMaxSegments => "gso_max_segs",
        LinkSetting::GroMaxSize => "gro_max_size",
        LinkSetting::GsoIpv4MaxSize => "gso_ipv4_max_size",
        LinkSetting::GroIpv4MaxSize => "gro_ipv4_max_size",
        LinkSetting::Dormant => "state",
        LinkSetting::Xdp => "xdp",
    };
    match (setting, value) {
        (LinkSetting::Mode, 0) => format!("{word} default"),
        (LinkSetting::Dormant, 0) => format!("{word} up"),
        (LinkSetting::Mode, 1) | (LinkSetting::Dormant, _) => format!("{word} dormant"),
        (LinkSetting::Xdp, 0) => format!("{word} off"),
        (LinkSetting::Xdp, program) => format!("{word} id {program}"),
        (_, value) => format!("{word} {value}"),
    }
}

/// Returns `ip` with the flag for the family of `address`. `ip route` and `ip rule` need the flag for IPv6 if their
/// arguments begin with no IPv6 address.
pub(super) fn of_family(ip: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => ip.to_owned(),
        IpAddr::V6(_) => format!("{ip} -6"),
    }
}

pub(super) fn address_words(address: &Address, whole: bool) -> String {
    let Address { ip, prefix, .. } = address;
    let mut words = match address.peer {
        Some(peer) => format!("{ip} peer {peer}/{prefix}"),
        None => format!("{ip}/{prefix}"),
    };
    if !whole {
        return words;
    }
    if let Some(broadcast) = address.broadcast {
        let _ = write!(words, " broadcast {broadcast}");
    }
    if address.scope != 0 {
        let _ = write!(words, " scope {}", address.scope);
    }
    if let Some(label) = &address.label {
        let _ = write!(words, " label {label}");
    }
    if let Some(metric) = address.metric {
        let _ = write!(words, " metric {metric}");
    }
    if let Some((valid, preferred)) = address.lifetime {
        let _ = write!(words, " valid_lft {valid} preferred_lft {preferred}");
    }
    for (flag, word) in [
        (link::IFA_F_HOMEADDRESS, "home"),
        (link::IFA_F_MANAGETEMPADDR, "mngtmpaddr"),
        (link::IFA_F_NODAD, "nodad"),
        (link::IFA_F_OPTIMISTIC, "optimistic"),
        (link::IFA_F_NOPREFIXROUTE, "noprefixroute"),
        (link::IFA_F_MCAUTOJOIN, "autojoin"),
    ] {
        if address.flags & flag != 0 {
            let _ = write!(words, " {word}");
        }
    }
    words
}

/// Names of [`link::RouteMetrics::numbers`] in iproute2 (`RTAX_*`, `include/uapi/linux/rtnetlink.h`). Omits the mask of
/// locked metrics and the features, because iproute2 writes them in another form.
const METRICS: [(u16, &str); 12] = [
    (3, "window"),
    (4, "rtt"),
    (5, "rttvar"),
    (6, "ssthresh"),
    (7, "cwnd"),
    (9, "reordering"),
    (10, "hoplimit"),
    (11, "initcwnd"),
    (13, "rto_min"),
    (14, "initrwnd"),
    (15, "quickack"),
    (17, "fastopen_no_cookie"),
];

pub(super) fn route_words(route: &Route, link: &str) -> String {
    let mut words = match route.prefix {
        0 => "default".to_owned(),
        prefix => format!("{}/{prefix}", route.destination),
    };
    if route.tos != 0 {
        let _ = write!(words, " tos {:#x}", route.tos);
    }
    if let Some(gateway) = route.gateway {
        let family = match (route.destination, gateway) {
            (IpAddr::V4(_), IpAddr::V6(_)) => "inet6 ",
            _ => "",
        };
        let _ = write!(words, " via {family}{gateway}");
    }
    let _ = write!(words, " dev {link}");
    if route.onlink {
        words.push_str(" onlink");
    }
    if let Some(source) = route.source {
        let _ = write!(words, " src {source}");
    }
    if let Some(metric) = route.metric {
        let _ = write!(words, " metric {metric}");
    }
    if route.table != link::MAIN_TABLE {
        let _ = write!(words, " table {}", route.table);
    }
    if route.protocol != link::PROTOCOL_STATIC {
        let _ = write!(words, " proto {}", route.protocol);
    }
    if route.scope != 0 {
        let _ = write!(words, " scope {}", route.scope);
    }
    for (name, value) in [
        ("mtu", route.mtu),
        ("advmss", route.advmss),
        ("expires", route.expires),
    ] {
        if let Some(value) = value {
            let _ = write!(words, " {name} {value}");
        }
    }
    if let Some(metrics) = &route.metrics {
        for (kind, value) in &metrics.numbers {
            if let Some((_, name)) = METRICS.iter().find(|(it, _)| it == kind) {
                let _ = write!(words, " {name} {value}");
            }
        }
        if let Some(congestion) = &metrics.congestion {
            let _ = write!(words, " congctl {congestion}");
        }
    }
    match route.preference {
        1 => words.push_str(" pref high"),
        3 => words.push_str(" pref low"),
        _ => {}
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_named_by_its_file_or_its_tool() {
        let words = |key| device_setting("eth1", key, "7");
        assert_eq!(
            words("sysctl/ipv4/neigh/locktime"),
            "echo 7 > /proc/sys/net/ipv4/neigh/eth1/locktime"
        );
        assert_eq!(words("threaded"), "echo 7 > /sys/class/net/eth1/threaded");
        let queue = "queues/rx-0/rps_cpus";
        assert_eq!(
            words(queue),
            "echo 7 > /sys/class/net/eth1/queues/rx-0/rps_cpus"
        );
        assert_eq!(words("ethtool/rings"), "ethtool of eth1: rings [7]");
        assert_eq!(words("kind/1"), "IFLA_INFO_DATA of eth1: 1 [7]");
    }
}
