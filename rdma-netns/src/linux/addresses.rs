// SPDX-License-Identifier: Apache-2.0
//! Addresses in rtnetlink messages (`RTM_*ADDR`, `include/uapi/linux/if_addr.h`).

use super::{family_of, ip_of};
use crate::{
    Address, Link,
    link::{FOR_EVER, GIVEN_FLAGS},
    netlink::{Answers, attributes, text, u32_of},
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeader, AddressMessage, CacheInfo},
};
use nix::libc::{IFA_ADDRESS, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_LABEL, IFA_LOCAL};
use std::net::IpAddr;

/// `sizeof(struct ifaddrmsg)`
const HEADER: usize = 8;

const IFA_RT_PRIORITY: u16 = 9;
const IFA_PROTO: u16 = 11;

/// `IFA_F_TEMPORARY` of IPv6 (`IFA_F_SECONDARY` of IPv4).
const TEMPORARY: u32 = 0x01;
/// `IFA_F_DADFAILED`
const DAD_FAILED: u32 = 0x08;
/// `IFA_F_*`
const TENTATIVE: u32 = 0x40;
const PERMANENT: u32 = 0x80;

/// `IFAPROT_KERNEL_LO`, `_RA` and `_LL` (Linux 5.18).
const MADE_BY_KERNEL: std::ops::RangeInclusive<u8> = 1..=3;

pub(super) fn dump() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// An address as an `RTM_NEWADDR` reports it.
pub(super) struct Seen {
    pub(super) index: u32,
    pub(super) address: Address,
    flags: u32,
    protocol: Option<u8>,
}

/// Adds each address of a dump to its netdev among `links`.
pub(super) fn distribute(answers: &Answers, links: &mut [Link]) {
    let seen: Vec<Seen> = answers.bodies().filter_map(parse).collect();
    // true if this kernel reports who made an address: since Linux 5.18 it reports this at least for the addresses
    // of `lo`
    let reports_protocol = seen.iter().any(|seen| seen.protocol.is_some());
    for mut it in seen {
        let Some(link) = links.iter_mut().find(|link| link.index == it.index) else {
            continue;
        };
        let address = &mut it.address;
        address.automatic = match address.ip {
            IpAddr::V4(_) => false,
            IpAddr::V6(_) if address.temporary => true,
            IpAddr::V6(_) => match it.protocol {
                Some(protocol) => MADE_BY_KERNEL.contains(&protocol),
                None => !reports_protocol && address.is_link_local() && it.flags & PERMANENT != 0,
            },
        };
        address.label.take_if(|label| **label == *link.name);
        link.addresses.push(it.address);
    }
}

/// Parses an `RTM_NEWADDR`.
pub(super) fn parse(body: &[u8]) -> Option<Seen> {
    let header = AddressHeader::parse(body).ok()?;
    let (mut local, mut end, mut protocol) = (None, None, None);
    let mut flags = u32::from(header.flags.bits());
    let mut address = Address::new(IpAddr::from([0; 4]), header.prefix_len);
    address.scope = header.scope.into();
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            IFA_ADDRESS => end = ip_of(value),
            IFA_LOCAL => local = ip_of(value),
            IFA_BROADCAST => address.broadcast = ip_of(value),
            IFA_LABEL => address.label = text(value).map(str::to_owned),
            IFA_FLAGS => flags = u32_of(value)?,
            IFA_RT_PRIORITY => address.metric = u32_of(value),
            IFA_PROTO => protocol = value.first().copied(),
            IFA_CACHEINFO => {
                let lifetime = CacheInfo::parse(value).ok()?;
                let lifetime = (lifetime.ifa_valid, lifetime.ifa_preferred);
                address.lifetime = (lifetime != (FOR_EVER, FOR_EVER)).then_some(lifetime);
            }
            _ => {}
        }
    }
    // IFA_ADDRESS is the peer, or the address itself if there is no peer; an IPv6 address has IFA_LOCAL only with a
    // peer
    address.ip = local.or(end)?;
    address.peer = end.filter(|end| *end != address.ip);
    address.flags = flags & GIVEN_FLAGS;
    address.tentative = flags & TENTATIVE != 0;
    address.dad_failed = flags & DAD_FAILED != 0;
    address.temporary = address.ip.is_ipv6() && flags & TEMPORARY != 0;
    Some(Seen {
        index: header.index,
        address,
        flags,
        protocol,
    })
}

pub(super) fn add(index: u32, address: &Address) -> RouteNetlinkMessage {
    let mut message = message(index, address);
    message.header.scope = address.scope.into();
    let flags = AddressFlags::from_bits_retain(address.flags & GIVEN_FLAGS);
    let attributes = &mut message.attributes;
    attributes.push(AddressAttribute::Flags(flags));
    if let Some(IpAddr::V4(broadcast)) = address.broadcast {
        attributes.push(AddressAttribute::Broadcast(broadcast));
    }
    attributes.extend(address.metric.map(AddressAttribute::RoutePriority));
    if let Some((valid, preferred)) = address.lifetime {
        let mut lifetime = CacheInfo::default();
        (lifetime.ifa_valid, lifetime.ifa_preferred) = (valid, preferred);
        attributes.push(AddressAttribute::CacheInfo(lifetime));
    }
    RouteNetlinkMessage::NewAddress(message)
}

pub(super) fn remove(index: u32, address: &Address) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelAddress(message(index, address))
}

fn message(index: u32, address: &Address) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family_of(address.ip);
    message.header.prefix_len = address.prefix;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.ip),
        AddressAttribute::Address(address.peer.unwrap_or(address.ip)),
    ];
    let label = address.label.clone().map(AddressAttribute::Label);
    message.attributes.extend(label);
    message
}
