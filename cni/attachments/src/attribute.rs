// SPDX-License-Identifier: Apache-2.0
//! Optional attributes of a netdev on the host.

use rdma_netns::{LinkChange, LinkFlag, LinkSetting, Op, Route, VfSettingKind};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// An attribute of a netdev on the host, which is restored if possible. Namespace, name and RDMA device are not
/// attributes: a netdev counts as restored only with these three.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Attribute {
    /// The hardware address. A VF's PF can have set it.
    Mac,
    /// The broadcast address.
    Broadcast,
    /// The MTU. A lower device can have limited it.
    Mtu,
    /// The transmit queue length.
    TxQueueLen,
    /// A numeric setting of rtnetlink.
    LinkSetting(LinkSetting),
    /// A setting of [`rdma_netns::DeviceSettings`]: key and recorded value.
    DeviceSetting(String, String),
    /// The send mode of an IPoIB netdev: datagram or connected.
    IpoibMode,
    /// The flag by which an IPoIB netdev ignores multicast groups that programs join (`umcast`).
    Umcast,
    /// A flag.
    Flag(LinkFlag),
    /// A setting of a virtual function that its physical function sets.
    Vf(VfSettingKind),
    /// The rebound driver of the function. The driver reads GUIDs when it is bound.
    Rebound,
    /// The alias.
    Alias,
    /// An alternative name. Another netdev can have it by now.
    AltName(String),
    /// The name of the RDMA device, which another RDMA device may have now.
    RdmaName(String),
    /// A setting by its key in [`rdma_netns::link::SYSCTLS`].
    Sysctl(String),
    /// The administrative state, up or down.
    Up,
    /// An address, with the length of its prefix.
    Address(IpAddr, u8),
    /// A route. Its gateway can be unreachable by now.
    Route(Box<Route>),
    /// A route that the record describes only in part, so that `rdma-cni` does not set it again.
    UnkeptRoute(Box<Route>),
    /// The netdev itself: the pod deleted it, and `rdma-cni` cannot create it again.
    Netdev,
}

impl Attribute {
    /// Returns the attribute that `op` restores. `None`: the operation is mandatory.
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
