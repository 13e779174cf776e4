// SPDX-License-Identifier: Apache-2.0
//! Macvlan, ipvlan and IPoIB children in rtnetlink messages (`IFLA_LINKINFO`, `include/uapi/linux/if_link.h`).

use super::link_messages;
use crate::{
    Child, IpvlanMode, MacvlanMode,
    netlink::{attribute, text, u16_of, u32_of},
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        InfoData, InfoIpVlan, InfoIpoib, InfoKind, InfoMacVlan, IpVlanFlags, LinkAttribute,
        LinkInfo,
    },
};
use nix::libc::{IFLA_INFO_DATA, IFLA_INFO_KIND};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `IFLA_MACVLAN_MODE` and `IFLA_IPVLAN_MODE`
const MODE: u16 = 1;
/// `IFLA_MACVLAN_FLAGS` and `IFLA_IPVLAN_FLAGS`
const FLAGS: u16 = 2;

/// Parses `IFLA_LINKINFO` of a macvlan or ipvlan.
pub(super) fn parse(info: &[u8]) -> Option<Child> {
    let value = |wanted| attribute(attribute(info, IFLA_INFO_DATA)?, wanted);
    let number = |wanted| u16_of(value(wanted)?);
    // Linux before 4.15 reports no flags of ipvlan
    let flags = number(FLAGS).unwrap_or_default();
    match text(attribute(info, IFLA_INFO_KIND)?)? {
        "macvlan" => {
            let mode = MacvlanMode::of(u32_of(value(MODE)?)?, flags);
            Some(Child::Macvlan { mode })
        }
        "ipvlan" => {
            let mode = IpvlanMode::of(number(MODE)?.into(), flags);
            Some(Child::Ipvlan { mode })
        }
        _ => None,
    }
}

/// Index in a request that lets the kernel choose the child's index.
pub(super) const ANY_INDEX: u32 = 0;

/// Value of the broadcast cutoff that makes the kernel pass broadcasts and multicasts to all children at once. With
/// other values a kernel thread passes some of them, and on a busy machine the thread is too late for a probe
/// (`macvlan_recompute_bc_filter()`, `drivers/net/macvlan.c`). The lower netdev has the cutoff until its last child is
/// removed. Linux before 6.4 ignores the cutoff.
const BC_CUTOFF_DISABLED: i32 = -1;

/// A child that a request makes.
pub(super) struct NewChild<'a> {
    /// Index of the lower netdev, in the namespace of the socket.
    pub(super) lower: u32,
    pub(super) child: Child,
    /// Namespace of the new child.
    pub(super) target: BorrowedFd<'a>,
    pub(super) name: &'a str,
    /// MTU, bytes.
    pub(super) mtu: u32,
}

impl NewChild<'_> {
    /// Builds the request that makes the child with the index `index`.
    pub(super) fn request(&self, index: u32) -> RouteNetlinkMessage {
        let (kind, data) = match self.child {
            Child::Macvlan { mode } => {
                let mode = mode.numbers().0.into();
                let cutoff = InfoMacVlan::BcCutoff(BC_CUTOFF_DISABLED);
                let data = InfoData::MacVlan(vec![InfoMacVlan::Mode(mode), cutoff]);
                (InfoKind::MacVlan, data)
            }
            Child::Ipvlan { mode } => {
                let (mode, flags) = mode.numbers();
                let flags = InfoIpVlan::Flags(IpVlanFlags::from_bits_retain(flags));
                // mode and flags apply to all children of the parent: the request overwrites values that a pod has set
                let mode = InfoIpVlan::Mode((mode as u16).into());
                let data = InfoData::IpVlan(vec![mode, flags]);
                (InfoKind::IpVlan, data)
            }
            Child::Ipoib { pkey, .. } => {
                let data = InfoData::Ipoib(vec![InfoIpoib::Pkey(pkey.0)]);
                (InfoKind::Ipoib, data)
            }
        };
        let mut attributes = vec![
            LinkAttribute::Link(self.lower),
            LinkAttribute::NetNsFd(self.target.as_raw_fd()),
            LinkAttribute::IfName(self.name.to_owned()),
        ];
        if !matches!(self.child, Child::Ipoib { .. }) {
            attributes.push(LinkAttribute::Mtu(self.mtu));
        }
        let info = vec![LinkInfo::Kind(kind), LinkInfo::Data(data)];
        attributes.push(LinkAttribute::LinkInfo(info));
        RouteNetlinkMessage::NewLink(link_messages::message(index, attributes))
    }
}
