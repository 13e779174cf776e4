// SPDX-License-Identifier: Apache-2.0
//! Attributes of a netdev on the host. A restore succeeds even if it cannot set some of them.

use rdma_netns::{LinkChange, LinkFlag, LinkSetting, Op, Route, VfSettingKind};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// An attribute of a netdev on the host. A restore restores it if possible, and reports it otherwise. The namespaces of
/// netdev and RDMA device, and the name of the netdev, are not attributes: if a restore cannot restore them, it fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Attribute {
    /// The hardware address. A VF's address may be impossible to restore if the PF has set it.
    Mac,
    /// The broadcast address.
    Broadcast,
    /// The MTU. It may be impossible to restore if a lower netdev limits it.
    Mtu,
    /// The transmit queue length.
    TxQueueLen,
    /// A numeric setting that rtnetlink reports.
    LinkSetting(LinkSetting),
    /// A setting of [`rdma_netns::DeviceSettings`]: its key and its recorded value.
    DeviceSetting(String, String),
    /// The send mode of an IPoIB netdev: datagram or connected.
    IpoibMode,
    /// The flag `umcast` of an IPoIB netdev. With this flag the netdev ignores multicast groups that programs join.
    Umcast,
    /// A flag of the netdev.
    Flag(LinkFlag),
    /// A setting of a virtual function. Its physical function makes the setting.
    Vf(VfSettingKind),
    /// A new bind of the function's driver. The driver reads GUIDs only when it is bound.
    Rebound,
    /// The alias.
    Alias,
    /// An alternative name. It may be impossible to restore if another netdev has it now.
    AltName(String),
    /// The name of the RDMA device. It may be impossible to restore if another RDMA device has it now.
    RdmaName(String),
    /// A setting by its key in [`rdma_netns::link::SYSCTLS`].
    Sysctl(String),
    /// The administrative state, up or down.
    Up,
    /// An address, with the length of its prefix.
    Address(IpAddr, u8),
    /// A route. It may be impossible to restore if its gateway is unreachable now.
    Route(Box<Route>),
    /// A route. The record has only a part of the route, so `rdma-cni` does not set the route again.
    UnkeptRoute(Box<Route>),
    /// The netdev itself. It no longer exists, and `rdma-cni` cannot create it again.
    Netdev,
}

impl Attribute {
    /// Returns the attribute that `op` restores. Returns `None` for any other operation.
    pub fn of(op: &Op) -> Option<Self> {
        let attribute = match op {
            Op::Link { change, .. } => match change {
                LinkChange::Mac(_) => Self::Mac,
                LinkChange::Broadcast(_) => Self::Broadcast,
                LinkChange::Mtu(_) => Self::Mtu,
                LinkChange::TxQueueLen(_) => Self::TxQueueLen,
                LinkChange::Setting(setting, _) => Self::LinkSetting(*setting),
                LinkChange::IpoibMode(_) => Self::IpoibMode,
                LinkChange::Umcast(_) => Self::Umcast,
                LinkChange::Flag(flag, _) => Self::Flag(*flag),
                LinkChange::Alias(_) => Self::Alias,
                LinkChange::AltName { name, .. } => Self::AltName(name.clone()),
                LinkChange::Sysctl { key, .. } => Self::Sysctl(key.clone()),
                LinkChange::Up(_) => Self::Up,
                LinkChange::AddAddress(address) => Self::Address(address.ip, address.prefix),
                LinkChange::AddRoute(route) => Self::Route(Box::new(Route {
                    expires: None,
                    ..route.clone()
                })),
                _ => return None,
            },
            Op::SetDeviceSetting { key, value, .. } => {
                Self::DeviceSetting(key.clone(), value.clone())
            }
            Op::SetVf { setting, .. } => Self::Vf(setting.kind()),
            Op::RebindDriver { .. } => Self::Rebound,
            Op::RenameRdma { name, .. } => Self::RdmaName(name.clone()),
            _ => return None,
        };
        Some(attribute)
    }
}
