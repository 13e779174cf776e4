// SPDX-License-Identifier: Apache-2.0
//! One change to a network namespace, and its equivalent command.

mod change;
mod words;

use crate::{
    Child, DeviceAddress, InterfaceName, Observed, Rule, VfSetting,
    smc::{PnetEntry, PnetId},
};
pub use change::LinkChange;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use words::{device_setting, drivers, of_family};

/// The namespace in which an operation makes its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetnsSide {
    /// The namespace in which this program runs.
    Host,
    /// The pod's namespace.
    Pod,
}

/// One change. The kernel makes most changes whole or not at all. [`Self::AddPnet`], [`Self::RebindDriver`],
/// [`Self::SetDeviceSetting`] and a change of [`LinkSetting::Xdp`](crate::LinkSetting::Xdp) can end after a part of the
/// change.
///
/// `Display` prints the equivalent `ip`/`rdma`/`sysctl` command, with `pod` as the name of the pod's namespace.
/// [`Op::command`] uses the namespace's real name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the fields are the capital words of their variant's command"
)]
pub enum Op {
    /// `rdma dev set DEVICE netns NS` (`RDMA_NLDEV_CMD_SET` with `NET_NS_FD`). A thread inside `from` sends the
    /// request, because the kernel checks the thread's namespace and not the socket's.
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
    /// `rdma dev delete DEVICE`: deletes a [sub-device](crate::SubDevice) (`RDMA_NLDEV_CMD_DELDEV`).
    DeleteSubDevice { at: NetnsSide, device: String },
    /// `ip link set dev LINK netns NS name NAME`: moves and renames in one step, so that the old name cannot collide in
    /// the new namespace. The kernel sets the netdev down, and removes its addresses and routes.
    MoveLink {
        link: InterfaceName,
        from: NetnsSide,
        to: NetnsSide,
        name: InterfaceName,
    },
    /// `ip link add link PARENT name NAME netns NS mtu BYTES type macvlan|ipvlan mode MODE`: one request makes the
    /// child in the pod, on a netdev of the host. The child is never on the host, so a killed process cannot leave it
    /// on the host.
    ///
    /// `ip link add link PARENT name NAME type ipoib pkey PKEY`: makes the child on the host, in datagram mode and with
    /// the port's MTU. The child cannot be made in the pod: mlx5 searches for the parent in the child's namespace
    /// (`mlx5i_parent_get()`, `drivers/net/ethernet/mellanox/mlx5/core/ipoib/ipoib.c`). IPoIB accepts no MTU in the
    /// request (`ipoib_ndo_init()`).
    AddChild {
        at: NetnsSide,
        parent: InterfaceName,
        child: Child,
        name: InterfaceName,
        mtu: u32,
    },
    /// Changes one netdev.
    Link {
        at: NetnsSide,
        link: InterfaceName,
        change: LinkChange,
    },
    /// `ip link del group GROUP` in the pod: one deletion removes all netdevs of the group. The kernel waits only once,
    /// until all these netdevs are unused (`rtnl_group_dellink()`, `net/core/rtnetlink.c`). An empty group is no error.
    /// If the kernel cannot delete one of the netdevs, it deletes none.
    RemoveGroup { group: u32 },
    /// `echo VALUE > /sys/class/net/LINK/KEY`, on the host. [`DeviceSettings`](crate::DeviceSettings) describes the
    /// keys that are no files there, such as `ethtool/…` and `tcx/…`. Removes rules and programs that VALUE does not
    /// list.
    SetDeviceSetting {
        link: InterfaceName,
        key: String,
        value: String,
    },
    /// `ip link set dev PF vf NUMBER vlan|mac|max_tx_rate|spoofchk|trust|state|node_guid|port_guid VALUE`, on the host
    SetVf {
        pf: InterfaceName,
        number: u32,
        setting: VfSetting,
    },
    /// `echo DEVICE > /sys/bus/pci/drivers/DRIVER/unbind`, then `bind`. The kernel removes the device's netdevs and
    /// RDMA devices from their namespaces, and makes new ones on the host with the configured GUIDs. If this operation
    /// ends after `unbind`, [`Op::BindDriver`] completes it.
    RebindDriver {
        device: DeviceAddress,
        driver: String,
    },
    /// `echo DEVICE > /sys/bus/pci/drivers/DRIVER/bind`; a bound driver is no error.
    BindDriver {
        device: DeviceAddress,
        driver: String,
    },
    /// `ip rule add RULE`; an existing rule is no error.
    AddRule { at: NetnsSide, rule: Rule },
    /// `ip rule del RULE`; a missing rule is no error.
    RemoveRule { at: NetnsSide, rule: Rule },
    /// `smc_pnet -a ID -I NETDEV`. For an RDMA port: `smc_pnet -a ID -D DEVICE -P PORT`, which the kernel accepts only
    /// in the initial namespace. An existing entry is no error.
    AddPnet { at: NetnsSide, entry: PnetEntry },
    /// `smc_pnet -d ID`: removes all entries with this id in the namespace. A missing entry is no error.
    RemovePnet { at: NetnsSide, id: PnetId },
    /// `smcr ueid add UEID`, for the whole node; an existing EID is no error.
    AddUeid { ueid: String },
    /// `smcr ueid del UEID`; a missing EID is no error.
    RemoveUeid { ueid: String },
    /// `sysctl -w net.smc.tcp2smc=0|1` in the pod. With 1, TCP sockets that programs open later become SMC sockets.
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
    /// Returns the change of the netdev `link`.
    pub fn link(at: NetnsSide, link: &InterfaceName, change: LinkChange) -> Self {
        Self::Link {
            at,
            link: link.clone(),
            change,
        }
    }

    /// Returns the operation with the index of the pod's netdev in `observed` in place of the netdev's name. A process
    /// in the pod can give the name to another netdev after the observation. Returns the operation unchanged if the
    /// operation names no netdev of the pod, or if the kernel finds the changed object only by the netdev's name.
    pub fn by_index(&self, observed: &Observed) -> Self {
        let mut op = self.clone();
        let link = match &mut op {
            Self::MoveLink {
                link,
                from: NetnsSide::Pod,
                ..
            } => link,
            Self::Link {
                at: NetnsSide::Pod,
                link,
                change,
            } if !change.needs_name() => link,
            _ => return op,
        };
        let mut links = observed.pod.iter().flat_map(|pod| &pod.links);
        if let Some(known) = links.find(|it| it.name == *link) {
            *link = InterfaceName::of_index(known.index);
        }
        op
    }

    /// Returns the equivalent command for an administrator on the host. `pod` is the name of the pod's namespace.
    /// `rdma dev set` accepts only a namespace's name: a move to the host needs the name `host`, which
    /// `ip netns attach host 1` makes.
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
        let smc = |key: &str, value: u8| {
            format!("{}sysctl -w net.smc.{key}={value}", exec(&NetnsSide::Pod))
        };
        match self {
            Self::MoveRdma { device, from, to } => {
                let to = match to {
                    NetnsSide::Host => "host",
                    NetnsSide::Pod => pod,
                };
                format!("{}rdma dev set {device} netns {to}", exec(from))
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
                let (ip, to) = (ip(from), netns(to));
                format!("{ip} link set dev {link} netns {to} name {name}")
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
            Self::Link { at, link, change } => change.command(&ip(at), &exec(at), link),
            Self::RemoveGroup { group } => {
                format!("{} link del group {group}", ip(&NetnsSide::Pod))
            }
            Self::SetDeviceSetting { link, key, value } => device_setting(link, key, value),
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
            Self::AddRule { at, rule } => {
                format!("{} rule add {rule}", of_family(&ip(at), rule.from))
            }
            Self::RemoveRule { at, rule } => {
                format!("{} rule del {rule}", of_family(&ip(at), rule.from))
            }
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
