// SPDX-License-Identifier: Apache-2.0
//! One change of a netdev, and its equivalent command.

use super::words::{address_words, route_command, setting_words};
use crate::{Address, HardwareAddress, InterfaceName, IpoibMode, LinkFlag, LinkSetting, Route};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A change of the netdev LINK ([`Op::Link`](super::Op::Link)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the command in each variant's comment shows the meaning of the fields"
)]
pub enum LinkChange {
    /// `ip link del dev LINK`; a missing netdev is no error.
    Remove,
    /// `ip link set dev LINK name NAME`. Kernels before 6.2 accept it only while the netdev is down.
    Rename(InterfaceName),
    /// `ip link set dev LINK up|down`. Down removes the netdev's IPv6 addresses and all its unicast routes.
    Up(bool),
    /// `ip link set dev LINK mtu BYTES`
    Mtu(u32),
    /// `ip link set dev LINK address MAC`
    Mac(HardwareAddress),
    /// `ip link set dev LINK broadcast MAC`
    Broadcast(HardwareAddress),
    /// `ip link set dev LINK txqueuelen PACKETS`
    TxQueueLen(u32),
    /// `ip link set dev LINK mode default|dormant`, `state up|dormant`, `group NUMBER`, `gso_max_size BYTES`,
    /// `gso_max_segs COUNT`, `gro_max_size BYTES`, `gso_ipv4_max_size BYTES`, `gro_ipv4_max_size BYTES`, `xdp off`. XDP
    /// programs can only be detached, not attached.
    Setting(LinkSetting, u32),
    /// `ip link set dev LINK type ipoib mode datagram|connected`. The kernel also sets the MTU to the largest MTU of
    /// the mode.
    IpoibMode(IpoibMode),
    /// `ip link set dev LINK type ipoib umcast 0|1`
    Umcast(bool),
    /// `ip link set dev LINK promisc|allmulticast|multicast|arp|trailers|dynamic on|off`. `ip` has no keywords for
    /// debug, portsel and automedia.
    Flag(LinkFlag, bool),
    /// `ip link set dev LINK alias TEXT`; an empty text removes the alias.
    Alias(String),
    /// `ip link property add|del dev LINK altname NAME`
    AltName { name: String, present: bool },
    /// `sysctl -w net/FAMILY/conf/LINK/NAME=VALUE`. `key` is `FAMILY/NAME`, one of [`SYSCTLS`](crate::link::SYSCTLS).
    Sysctl { key: String, value: i32 },
    /// `ip address replace ADDRESS dev LINK`
    AddAddress(Address),
    /// `ip address del ADDRESS dev LINK`
    RemoveAddress(Address),
    /// `ip route append ROUTE dev LINK`; an existing route is no error.
    AddRoute(Route),
    /// `ip route del ROUTE dev LINK`; a missing route is no error.
    RemoveRoute(Route),
    /// `arping -c 1 -U -I LINK ADDRESS`, for IPv6 `ndsend ADDRESS LINK`: announces the hardware address of ADDRESS
    /// once, so that neighbours update their caches. The operation changes no state, so no plan contains it. It does
    /// nothing if the netdev is down, has `IFF_NOARP`, or is not Ethernet.
    Announce(IpAddr),
}

impl LinkChange {
    /// Returns true if the kernel finds the changed object by the netdev's name, in sysfs or below `/proc/sys`.
    pub(super) fn needs_name(&self) -> bool {
        matches!(self, Self::Sysctl { .. } | Self::IpoibMode(_))
    }

    /// Returns the command for `link`. `ip` and `exec` are the first words of the command: `ip` for commands of `ip`,
    /// `exec` for other programs in the netdev's namespace.
    pub(super) fn command(&self, ip: &str, exec: &str, link: &InterfaceName) -> String {
        let words = match self {
            Self::Remove => return format!("{ip} link del dev {link}"),
            Self::AltName { name, present } => {
                let verb = if *present { "add" } else { "del" };
                return format!("{ip} link property {verb} dev {link} altname {name}");
            }
            Self::Sysctl { key, value } => {
                let (family, key) = key.split_once('/').unwrap_or(("", key));
                return format!("{exec}sysctl -w net/{family}/conf/{link}/{key}={value}");
            }
            Self::AddAddress(it) => {
                let words = address_words(it, true);
                return format!("{ip} address replace {words} dev {link}");
            }
            Self::RemoveAddress(it) => {
                let words = address_words(it, false);
                return format!("{ip} address del {words} dev {link}");
            }
            Self::AddRoute(it) => return route_command(ip, "append", it, link),
            Self::RemoveRoute(it) => return route_command(ip, "del", it, link),
            Self::Announce(IpAddr::V4(it)) => {
                return format!("{exec}arping -c 1 -U -I {link} {it}");
            }
            Self::Announce(IpAddr::V6(it)) => return format!("{exec}ndsend {it} {link}"),
            Self::Rename(name) => format!("name {name}"),
            Self::Up(up) => if *up { "up" } else { "down" }.to_owned(),
            Self::Mtu(mtu) => format!("mtu {mtu}"),
            Self::Mac(mac) => format!("address {mac}"),
            Self::Broadcast(mac) => format!("broadcast {mac}"),
            Self::TxQueueLen(packets) => format!("txqueuelen {packets}"),
            Self::Setting(setting, value) => setting_words(*setting, *value),
            Self::IpoibMode(mode) => format!("type ipoib mode {}", mode.name()),
            Self::Umcast(on) => format!("type ipoib umcast {}", u8::from(*on)),
            Self::Flag(flag, on) => {
                let (flag, on) = match flag {
                    LinkFlag::AllMulti => ("allmulticast", *on),
                    LinkFlag::NoArp => ("arp", !on),
                    LinkFlag::NoTrailers => ("trailers", !on),
                    flag => (&*flag.to_string(), *on),
                };
                format!("{flag} {}", if on { "on" } else { "off" })
            }
            Self::Alias(alias) => format!("alias {alias:?}"),
        };
        format!("{ip} link set dev {link} {words}")
    }
}
