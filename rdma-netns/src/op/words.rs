// SPDX-License-Identifier: Apache-2.0
//! Addresses, routes and settings in the syntax of equivalent commands.

use crate::{Address, DeviceAddress, LinkSetting, Route, link};
use std::net::IpAddr;

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
    let own = match address.peer {
        Some(peer) => format!("{ip} peer {peer}/{prefix}"),
        None => format!("{ip}/{prefix}"),
    };
    if !whole {
        return own;
    }
    let lifetime = address.lifetime;
    let words = [
        Some(own),
        address.broadcast.map(|it| format!("broadcast {it}")),
        (address.scope != 0).then(|| format!("scope {}", address.scope)),
        address.label.as_ref().map(|it| format!("label {it}")),
        address.metric.map(|it| format!("metric {it}")),
        lifetime.map(|(valid, preferred)| format!("valid_lft {valid} preferred_lft {preferred}")),
    ];
    let flags = [
        (link::IFA_F_HOMEADDRESS, "home"),
        (link::IFA_F_MANAGETEMPADDR, "mngtmpaddr"),
        (link::IFA_F_NODAD, "nodad"),
        (link::IFA_F_OPTIMISTIC, "optimistic"),
        (link::IFA_F_NOPREFIXROUTE, "noprefixroute"),
        (link::IFA_F_MCAUTOJOIN, "autojoin"),
    ];
    let flags = flags
        .into_iter()
        .filter(|(flag, _)| address.flags & flag != 0);
    let flags = flags.map(|(_, word)| word.to_owned());
    join(words.into_iter().flatten().chain(flags))
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<String>>().join(" ")
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

pub(super) fn route_command(ip: &str, verb: &str, route: &Route, link: &str) -> String {
    let ip = of_family(ip, route.destination);
    let family = match (route.destination, route.gateway) {
        (IpAddr::V4(_), Some(IpAddr::V6(_))) => "inet6 ",
        _ => "",
    };
    let words = [
        Some(match route.prefix {
            0 => "default".to_owned(),
            prefix => format!("{}/{prefix}", route.destination),
        }),
        (route.tos != 0).then(|| format!("tos {:#x}", route.tos)),
        route.gateway.map(|it| format!("via {family}{it}")),
        Some(format!("dev {link}")),
        route.onlink.then(|| "onlink".to_owned()),
        route.source.map(|it| format!("src {it}")),
        route.metric.map(|it| format!("metric {it}")),
        (route.table != link::MAIN_TABLE).then(|| format!("table {}", route.table)),
        (route.protocol != link::PROTOCOL_STATIC).then(|| format!("proto {}", route.protocol)),
        (route.scope != 0).then(|| format!("scope {}", route.scope)),
        route.mtu.map(|it| format!("mtu {it}")),
        route.advmss.map(|it| format!("advmss {it}")),
        route.expires.map(|it| format!("expires {it}")),
    ];
    let metrics = route.metrics.as_deref();
    let numbers = metrics.map_or(&[][..], |it| &it.numbers);
    let numbers = numbers.iter().filter_map(|(kind, value)| {
        let (_, name) = METRICS.iter().find(|(it, _)| it == kind)?;
        Some(format!("{name} {value}"))
    });
    let congestion = metrics.and_then(|it| it.congestion.as_ref());
    let congestion = congestion.map(|it| format!("congctl {it}"));
    let preference = match route.preference {
        link::HIGH_PREFERENCE => Some("pref high".to_owned()),
        link::LOW_PREFERENCE => Some("pref low".to_owned()),
        _ => None,
    };
    let words = words.into_iter().flatten().chain(numbers);
    let words = join(words.chain(congestion).chain(preference));
    format!("{ip} route {verb} {words}")
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
