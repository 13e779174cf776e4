// SPDX-License-Identifier: Apache-2.0
//! What a netdev can do without.

use rdma_netns::{LinkFlag, LinkSetting, Op, Route, VfSettingKind};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Something of a netdev on the host that is restored if it can be. Place, name and RDMA device are
/// none: a netdev without those is not restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Attribute {
    /// Its hardware address, which a VF's PF can have set.
    Mac,
    /// Where it sends broadcasts to.
    Broadcast,
    /// Its MTU, which a lower device can have limited.
    Mtu,
    /// Its transmit queue length.
    TxQueueLen,
    /// One of its numbers.
    LinkSetting(LinkSetting),
    /// One of its [`rdma_netns::DeviceSettings`], by its key, with the value that it had.
    DeviceSetting(String, String),
    /// How an IPoIB netdev sends.
    IpoibMode,
    /// Whether an IPoIB netdev passes over multicast groups of programs.
    Umcast,
    /// One of its flags.
    Flag(LinkFlag),
    /// Something that its physical function sets of it.
    Vf(VfSettingKind),
    /// Its function's driver bound anew, which takes GUIDs over.
    Rebound,
    /// Its alias.
    Alias,
    /// An alternative name, which another netdev can have by now.
    AltName(String),
    /// The name of its RDMA device, which another one can have by now.
    RdmaName(String),
    /// A setting by its key in [`rdma_netns::link::SYSCTLS`].
    Sysctl(String),
    /// Up or down.
    Up,
    /// An address, with the length of its prefix.
    Address(IpAddr, u8),
    /// A route, whose gateway can be out of reach by now.
    Route(Box<Route>),
    /// A route that its record does not say wholly, so that nobody sets it.
    UnkeptRoute(Box<Route>),
    /// The netdev itself, which its pod deleted: nobody makes it again.
    Netdev,
}

impl Attribute {
    /// The attribute that `op` restores. None: what `op` does is mandatory.
    pub fn of(op: &Op) -> Option<Self> {
        let attribute = match op {
            Op::SetMac { .. } => Self::Mac,
            Op::SetBroadcast { .. } => Self::Broadcast,
            Op::SetDeviceSetting { key, value, .. } => {
                Self::DeviceSetting(key.clone(), value.clone())
            }
            Op::SetMtu { .. } => Self::Mtu,
            Op::SetTxQueueLen { .. } => Self::TxQueueLen,
            Op::SetLinkSetting { setting, .. } => Self::LinkSetting(*setting),
            Op::SetIpoibMode { .. } => Self::IpoibMode,
            Op::SetUmcast { .. } => Self::Umcast,
            Op::SetFlag { flag, .. } => Self::Flag(*flag),
            Op::SetVf { setting, .. } => Self::Vf(setting.kind()),
            Op::RebindDriver { .. } => Self::Rebound,
            Op::SetAlias { .. } => Self::Alias,
            Op::SetAltName { name, .. } => Self::AltName(name.clone()),
            Op::RenameRdma { name, .. } => Self::RdmaName(name.clone()),
            Op::SetSysctl { key, .. } => Self::Sysctl(key.clone()),
            Op::SetUp { .. } => Self::Up,
            Op::AddAddress { address, .. } => Self::Address(address.ip, address.prefix),
            // what is left of its time says nothing of which one it is
            Op::AddRoute { route, .. } => Self::Route(Box::new(Route {
                expires: None,
                ..route.clone()
            })),
            _ => return None,
        };
        Some(attribute)
    }
}
