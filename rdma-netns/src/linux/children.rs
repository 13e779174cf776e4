// SPDX-License-Identifier: Apache-2.0
//! Macvlan, ipvlan and IPoIB children in rtnetlink's words (`IFLA_LINKINFO`,
//! `include/uapi/linux/if_link.h`).

use super::links::{self, IFLA_INFO_DATA, IFLA_INFO_KIND};
use crate::{
    Child, IpvlanMode, MacvlanMode,
    netlink::{attributes, text, u32_of},
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        InfoData, InfoIpVlan, InfoIpoib, InfoKind, InfoMacVlan, IpVlanMode, LinkAttribute,
        LinkInfo, MacVlanMode,
    },
};
use std::os::fd::{AsRawFd, BorrowedFd};

const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_MODE: u16 = 1;

/// What `IFLA_LINKINFO` says, if it is a macvlan or ipvlan in a mode that is known here. (Not a macvlan
/// of mode `source`.)
pub(super) fn parse(info: &[u8]) -> Option<Child> {
    let (mut kind, mut data) = (None, None);
    for (attribute, value) in attributes(info) {
        match attribute {
            IFLA_INFO_KIND => kind = text(value),
            IFLA_INFO_DATA => data = Some(value),
            _ => {}
        }
    }
    let value = |wanted| {
        attributes(data?)
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    match kind? {
        "macvlan" => match MacVlanMode::from(u32_of(value(IFLA_MACVLAN_MODE)?)?) {
            MacVlanMode::Bridge => Some(Child::Macvlan(MacvlanMode::Bridge)),
            MacVlanMode::Private => Some(Child::Macvlan(MacvlanMode::Private)),
            MacVlanMode::Vepa => Some(Child::Macvlan(MacvlanMode::Vepa)),
            MacVlanMode::Passthrough => Some(Child::Macvlan(MacvlanMode::Passthru)),
            _ => None,
        },
        "ipvlan" => {
            let mode = value(IFLA_IPVLAN_MODE)?.try_into().ok()?;
            match IpVlanMode::from(u16::from_ne_bytes(mode)) {
                IpVlanMode::L2 => Some(Child::Ipvlan(IpvlanMode::L2)),
                IpVlanMode::L3 => Some(Child::Ipvlan(IpvlanMode::L3)),
                IpVlanMode::L3S => Some(Child::Ipvlan(IpvlanMode::L3s)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The kernel chooses the index.
pub(super) const ANY_INDEX: u32 = 0;

/// The cutoff by which broadcasts and multicasts are handed to all children as they come. Else a kernel thread
/// does it, which waits for its turn on a busy machine, for longer than a probe waits for its answer
/// (`macvlan_recompute_bc_filter()`, `drivers/net/macvlan.c`). It is the lower netdev's, and ends with its last
/// child. Linux before 6.4 passes over it.
const AS_THEY_COME: i32 = -1;

/// A child to be made.
pub(super) struct NewChild<'a> {
    /// Index of the netdev below it, in the namespace of the socket.
    pub(super) lower: u32,
    pub(super) child: Child,
    /// The namespace to make it in.
    pub(super) target: BorrowedFd<'a>,
    pub(super) name: &'a str,
    /// Bytes.
    pub(super) mtu: u32,
}

impl NewChild<'_> {
    /// The request that makes it as number `index`.
    pub(super) fn request(&self, index: u32) -> RouteNetlinkMessage {
        let (kind, data) = match self.child {
            Child::Macvlan(mode) => {
                let mode = match mode {
                    MacvlanMode::Bridge => MacVlanMode::Bridge,
                    MacvlanMode::Private => MacVlanMode::Private,
                    MacvlanMode::Vepa => MacVlanMode::Vepa,
                    MacvlanMode::Passthru => MacVlanMode::Passthrough,
                };
                let cutoff = InfoMacVlan::BcCutoff(AS_THEY_COME);
                let data = InfoData::MacVlan(vec![InfoMacVlan::Mode(mode), cutoff]);
                (InfoKind::MacVlan, data)
            }
            Child::Ipvlan(mode) => {
                let mode = match mode {
                    IpvlanMode::L2 => IpVlanMode::L2,
                    IpvlanMode::L3 => IpVlanMode::L3,
                    IpvlanMode::L3s => IpVlanMode::L3S,
                };
                let data = InfoData::IpVlan(vec![InfoIpVlan::Mode(mode)]);
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
        RouteNetlinkMessage::NewLink(links::message(index, attributes))
    }
}
