// SPDX-License-Identifier: Apache-2.0
//! One change to a network namespace, and its equivalent command.

mod words;

use crate::{
    Address, Child, DeviceAddress, HardwareAddress, InterfaceName, IpoibMode, LinkFlag,
    LinkSetting, Route, Rule, VfSetting,
    smc::{PnetEntry, PnetId},
};
use serde::{Deserialize, Serialize};
use std::{
    fmt::{self, Write as _},
    net::IpAddr,
};
use words::{address_words, device_setting, drivers, of_family, route_words, setting_words};

/// Side of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetnsSide {
    /// The namespace that this program runs in.
    Host,
    /// The pod's namespace.
    Pod,
}

/// A change that the kernel makes whole or not at all.
///
/// `Display` gives its `ip`/`rdma`/`sysctl` equivalent with the pod's namespace called `pod`; [`Op::command`] takes the
/// namespace's real name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the fields are the capital words of their variant's command"
)]
pub enum Op {
    /// `rdma dev set DEVICE netns NS` (`RDMA_NLDEV_CMD_SET` with `NET_NS_FD`). A thread inside `from` makes it: the
    /// kernel checks the caller's namespace, not the socket's.
    MoveRdma {
        device: String,
        from: NetnsSide,
        to: NetnsSide,
    },
    /// `rdma dev set DEVICE name NAME`
    RenameRdma {
        at: NetnsSide,
        device: String,
        name: String,
    },
    /// `rdma dev delete DEVICE`: a [sub-device](crate::SubDevice) (`RDMA_NLDEV_CMD_DELDEV`).
    DeleteSubDevice { at: NetnsSide, device: String },
    /// `ip link set dev LINK netns NS name NAME`: moves and renames in one step, so that the netdev never meets a
    /// netdev with its old name. The netdev loses addresses, routes and up.
    MoveLink {
        link: InterfaceName,
        from: NetnsSide,
        to: NetnsSide,
        name: InterfaceName,
    },
    /// `ip link add link PARENT name NAME netns NS mtu BYTES type macvlan|ipvlan mode MODE`: one request makes the
    /// child in the pod from a netdev of the host, so that the child is never on the host and cannot be left there.
    ///
    /// `ip link add link PARENT name NAME type ipoib pkey PKEY`: makes the child on the host, in datagram mode, and
    /// with the MTU of the port. mlx5 searches for the parent in the child's own namespace (`mlx5i_parent_get()`,
    /// `drivers/net/ethernet/mellanox/mlx5/core/ipoib/ipoib.c`), and IPoIB accepts no MTU in the request
    /// (`ipoib_ndo_init()`).
    AddChild {
        at: NetnsSide,
        parent: InterfaceName,
        child: Child,
        name: InterfaceName,
        mtu: u32,
    },
    /// `ip link del dev LINK`; a missing netdev is no error.
    RemoveLink { at: NetnsSide, link: InterfaceName },
    /// `ip link del group GROUP` in the pod: one deletion removes all netdevs of the group. The kernel waits once until
    /// all are unused, and not for each (`rtnl_group_dellink()`, `net/core/rtnetlink.c`). An empty group is no error.
    /// If one netdev cannot be deleted, the kernel deletes none.
    RemoveGroup { group: u32 },
    /// `ip link set dev LINK name NAME`; before Linux 6.2 only while the netdev is down.
    RenameLink {
        at: NetnsSide,
        link: InterfaceName,
        name: InterfaceName,
    },
    /// `ip link set dev LINK up|down`. Down removes IPv6 addresses and all routes.
    SetUp {
        at: NetnsSide,
        link: InterfaceName,
        up: bool,
    },
    /// `ip link set dev LINK mtu BYTES`
    SetMtu {
        at: NetnsSide,
        link: InterfaceName,
        mtu: u32,
    },
    /// `ip link set dev LINK address MAC`
    SetMac {
        at: NetnsSide,
        link: InterfaceName,
        mac: HardwareAddress,
    },
    /// `ip link set dev LINK broadcast MAC`
    SetBroadcast {
        at: NetnsSide,
        link: InterfaceName,
        mac: HardwareAddress,
    },
    /// `ip link set dev LINK txqueuelen PACKETS`
    SetTxQueueLen {
        at: NetnsSide,
        link: InterfaceName,
        packets: u32,
    },
    /// `ip link set dev LINK mode default|dormant`, `state up|dormant`, `group NUMBER`, `gso_max_size BYTES`,
    /// `gso_max_segs COUNT`, `gro_max_size BYTES`, `gso_ipv4_max_size BYTES`, `gro_ipv4_max_size BYTES`, `xdp off`. XDP
    /// programs can only be detached, not attached.
    SetLinkSetting {
        at: NetnsSide,
        link: InterfaceName,
        setting: LinkSetting,
        value: u32,
    },
    /// `echo VALUE > /sys/class/net/LINK/KEY`, on the host; for `ethtool/…` and `tcx/…` see
    /// [`DeviceSettings`](crate::DeviceSettings). Rules and programs that VALUE does not list are removed.
    SetDeviceSetting {
        link: InterfaceName,
        key: String,
        value: String,
    },
    /// `ip link set dev LINK type ipoib mode datagram|connected`. The MTU becomes the largest of the mode.
    SetIpoibMode {
        at: NetnsSide,
        link: InterfaceName,
        mode: IpoibMode,
    },
    /// `ip link set dev LINK type ipoib umcast 0|1`
    SetUmcast {
        at: NetnsSide,
        link: InterfaceName,
        on: bool,
    },
    /// `ip link set dev LINK promisc|allmulticast|multicast|arp|trailers|dynamic on|off`; `ip` has no words for debug,
    /// portsel and automedia.
    SetFlag {
        at: NetnsSide,
        link: InterfaceName,
        flag: LinkFlag,
        on: bool,
    },
    /// `ip link set dev PF vf NUMBER vlan|mac|max_tx_rate|spoofchk|trust|state|node_guid|port_guid VALUE`, on the host
    SetVf {
        pf: InterfaceName,
        number: u32,
        setting: VfSetting,
    },
    /// `echo DEVICE > /sys/bus/pci/drivers/DRIVER/unbind`, then `bind`. The device's netdevs and RDMA devices end,
    /// wherever they are, and new ones appear on the host with the configured GUIDs. Only this operation can be left
    /// half done: [`Op::BindDriver`] then completes it.
    RebindDriver {
        device: DeviceAddress,
        driver: String,
    },
    /// `echo DEVICE > /sys/bus/pci/drivers/DRIVER/bind`; a bound driver is no error.
    BindDriver {
        device: DeviceAddress,
        driver: String,
    },
    /// `ip link set dev LINK alias TEXT`; an empty text removes the alias.
    SetAlias {
        at: NetnsSide,
        link: InterfaceName,
        alias: String,
    },
    /// `ip link property add|del dev LINK altname NAME`
    SetAltName {
        at: NetnsSide,
        link: InterfaceName,
        name: String,
        present: bool,
    },
    /// `sysctl -w net.ipv6.conf.LINK.KEY=VALUE`; `key` is one of [`SYSCTLS`](crate::link::SYSCTLS).
    SetSysctl {
        at: NetnsSide,
        link: InterfaceName,
        key: String,
        value: i32,
    },
    /// `ip address replace ADDRESS dev LINK`
    AddAddress {
        at: NetnsSide,
        link: InterfaceName,
        address: Address,
    },
    /// `ip address del ADDRESS dev LINK`
    RemoveAddress {
        at: NetnsSide,
        link: InterfaceName,
        address: Address,
    },
    /// `ip route append ROUTE dev LINK`; an existing route is no error.
    AddRoute {
        at: NetnsSide,
        link: InterfaceName,
        route: Route,
    },
    /// `ip route del ROUTE dev LINK`; a missing route is no error.
    RemoveRoute {
        at: NetnsSide,
        link: InterfaceName,
        route: Route,
    },
    /// `ip rule add RULE`; an existing rule is no error.
    AddRule { at: NetnsSide, rule: Rule },
    /// `ip rule del RULE`; a missing rule is no error.
    RemoveRule { at: NetnsSide, rule: Rule },
    /// `arping -c 1 -U -I LINK ADDRESS`, for IPv6 `ndsend ADDRESS LINK`: announces the hardware address of ADDRESS
    /// once, so that neighbours update their caches. The operation changes nothing, so no plan contains it. On links
    /// without hardware addresses like Ethernet's (NOARP, InfiniBand), and on links that are down, it sends nothing and
    /// returns no error.
    Announce {
        at: NetnsSide,
        link: InterfaceName,
        address: IpAddr,
    },
    /// `smc_pnet -a ID -I NETDEV`, for an RDMA port `-D DEVICE -P PORT`, which the kernel accepts only in the initial
    /// namespace; an existing entry is no error.
    AddPnet { at: NetnsSide, entry: PnetEntry },
    /// `smc_pnet -d ID`: removes every entry of the id in the namespace; no entry is no error.
    RemovePnet { at: NetnsSide, id: PnetId },
    /// `smcr ueid add UEID`, for the whole node; an existing EID is no error.
    AddUeid { ueid: String },
    /// `smcr ueid del UEID`; a missing EID is no error.
    RemoveUeid { ueid: String },
    /// `sysctl -w net.smc.tcp2smc=0|1` in the pod: with 1, TCP sockets that are opened later are SMC sockets.
    SetTcp2Smc { on: bool },
    /// `sysctl -w net.smc.smcr_max_links_per_lgr=LINKS` in the pod, for later link groups.
    SetMaxLinks { links: u8 },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.command("pod"))
    }
}

impl Op {
    /// Returns the command that a person would type on the host, with `pod` as the name of the pod's namespace.
    pub fn command(&self, pod: &str) -> String {
        let ip = |at: &NetnsSide| match at {
            NetnsSide::Host => "ip".to_owned(),
            NetnsSide::Pod => format!("ip -n {pod}"),
        };
        let exec = |at: &NetnsSide| match at {
            NetnsSide::Host => String::new(),
            NetnsSide::Pod => format!("ip netns exec {pod} "),
        };
        let netns = |to: &NetnsSide| match to {
            NetnsSide::Host => "1",
            NetnsSide::Pod => pod,
        };
        let set = |at: &NetnsSide, link: &InterfaceName, words: &dyn fmt::Display| {
            format!("{} link set dev {link} {words}", ip(at))
        };
        let smc = |key: &str, value: u8| {
            format!("{}sysctl -w net.smc.{key}={value}", exec(&NetnsSide::Pod))
        };
        let address = |at: &NetnsSide, verb: &str, address: String, link: &InterfaceName| {
            format!("{} address {verb} {address} dev {link}", ip(at))
        };
        let route = |at: &NetnsSide, verb: &str, route: &Route, link: &InterfaceName| {
            let ip = of_family(&ip(at), route.destination);
            format!("{ip} route {verb} {}", route_words(route, link))
        };
        match self {
            Self::MoveRdma { device, from, to } => {
                format!("{}rdma dev set {device} netns {}", exec(from), netns(to))
            }
            Self::RenameRdma { at, device, name } => {
                format!("{}rdma dev set {device} name {name}", exec(at))
            }
            Self::DeleteSubDevice { at, device } => format!("{}rdma dev delete {device}", exec(at)),
            Self::MoveLink {
                link,
                from,
                to,
                name,
            } => {
                let words = format_args!("netns {} name {name}", netns(to));
                set(from, link, &words)
            }
            Self::AddChild {
                at,
                parent,
                child,
                name,
                mtu,
            } => {
                let netns = match at {
                    NetnsSide::Host => String::new(),
                    NetnsSide::Pod => format!(" netns {pod}"),
                };
                let kind = match child {
                    Child::Ipoib { pkey, .. } => format!("type ipoib pkey {pkey}"),
                    child => format!("mtu {mtu} type {child}"),
                };
                format!("ip link add link {parent} name {name}{netns} {kind}")
            }
            Self::RemoveLink { at, link } => format!("{} link del dev {link}", ip(at)),
            Self::RemoveGroup { group } => {
                format!("{} link del group {group}", ip(&NetnsSide::Pod))
            }
            Self::RenameLink { at, link, name } => set(at, link, &format_args!("name {name}")),
            Self::SetUp { at, link, up } => set(at, link, &if *up { "up" } else { "down" }),
            Self::SetMtu { at, link, mtu } => set(at, link, &format_args!("mtu {mtu}")),
            Self::SetMac { at, link, mac } => set(at, link, &format_args!("address {mac}")),
            Self::SetBroadcast { at, link, mac } => set(at, link, &format_args!("broadcast {mac}")),
            Self::SetTxQueueLen { at, link, packets } => {
                set(at, link, &format_args!("txqueuelen {packets}"))
            }
            Self::SetLinkSetting {
                at,
                link,
                setting,
                value,
            } => set(at, link, &setting_words(*setting, *value)),
            Self::SetDeviceSetting { link, key, value } => device_setting(link, key, value),
            Self::SetIpoibMode { at, link, mode } => {
                set(at, link, &format_args!("type ipoib mode {}", mode.name()))
            }
            Self::SetUmcast { at, link, on } => set(
                at,
                link,
                &format_args!("type ipoib umcast {}", u8::from(*on)),
            ),
            Self::SetFlag { at, link, flag, on } => {
                let (flag, on) = match flag {
                    LinkFlag::AllMulti => ("allmulticast", *on),
                    LinkFlag::NoArp => ("arp", !on),
                    LinkFlag::NoTrailers => ("trailers", !on),
                    flag => (flag.name(), *on),
                };
                let on = if on { "on" } else { "off" };
                set(at, link, &format_args!("{flag} {on}"))
            }
            Self::SetVf {
                pf,
                number,
                setting,
            } => format!("ip link set dev {pf} vf {number} {setting}"),
            Self::RebindDriver { device, driver } => {
                let directory = drivers(device, driver);
                format!("echo {device} > {directory}/unbind; echo {device} > {directory}/bind")
            }
            Self::BindDriver { device, driver } => {
                format!("echo {device} > {}/bind", drivers(device, driver))
            }
            Self::SetAlias { at, link, alias } => set(at, link, &format_args!("alias {alias:?}")),
            Self::SetAltName {
                at,
                link,
                name,
                present,
            } => {
                let verb = if *present { "add" } else { "del" };
                format!("{} link property {verb} dev {link} altname {name}", ip(at))
            }
            Self::SetSysctl {
                at,
                link,
                key,
                value,
            } => {
                let (family, key) = key.split_once('/').unwrap_or(("", key));
                format!(
                    "{}sysctl -w net/{family}/conf/{link}/{key}={value}",
                    exec(at)
                )
            }
            Self::AddAddress {
                at,
                link,
                address: it,
            } => address(at, "replace", address_words(it, true), link),
            Self::RemoveAddress {
                at,
                link,
                address: it,
            } => address(at, "del", address_words(it, false), link),
            Self::AddRoute {
                at,
                link,
                route: it,
            } => route(at, "append", it, link),
            Self::RemoveRoute {
                at,
                link,
                route: it,
            } => route(at, "del", it, link),
            Self::AddRule { at, rule } => {
                format!("{} rule add {rule}", of_family(&ip(at), rule.from))
            }
            Self::RemoveRule { at, rule } => {
                format!("{} rule del {rule}", of_family(&ip(at), rule.from))
            }
            Self::Announce { at, link, address } => match address {
                IpAddr::V4(_) => format!("{}arping -c 1 -U -I {link} {address}", exec(at)),
                IpAddr::V6(_) => format!("{}ndsend {address} {link}", exec(at)),
            },
            Self::AddPnet { at, entry } => {
                let mut words = format!("{}smc_pnet -a {}", exec(at), entry.name);
                if let Some(netdev) = &entry.netdev {
                    let _ = write!(words, " -I {netdev}");
                }
                if let Some((device, port)) = &entry.rdma {
                    let _ = write!(words, " -D {device} -P {port}");
                }
                words
            }
            Self::RemovePnet { at, id } => format!("{}smc_pnet -d {id}", exec(at)),
            Self::AddUeid { ueid } => format!("smcr ueid add {ueid}"),
            Self::RemoveUeid { ueid } => format!("smcr ueid del {ueid}"),
            Self::SetMaxLinks { links } => smc("smcr_max_links_per_lgr", *links),
            Self::SetTcp2Smc { on } => smc("tcp2smc", (*on).into()),
        }
    }
}

#[cfg(test)]
#[path = "op_tests.rs"]
mod tests;
