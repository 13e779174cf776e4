// SPDX-License-Identifier: Apache-2.0
//! Requests that read or change netdevs (`RTM_*LINK`, `include/uapi/linux/if_link.h`), and parts of messages that several
//! modules use.

use crate::{
    LinkFlag, LinkSetting,
    netlink::{attribute, text},
};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage, Prop},
};
use nix::libc::{
    IFLA_ALT_IFNAME, IFLA_GROUP, IFLA_IFALIAS, IFLA_INFO_KIND, IFLA_LINKMODE, IFLA_OPERSTATE,
};

/// `sizeof(struct ifinfomsg)`
pub(super) const HEADER: usize = 16;

// `IF_OPER_*`
pub(super) const OPER_DORMANT: u8 = 5;
const OPER_UP: u8 = 6;

/// Settings with a value of type `u32`, each with its attribute.
pub(super) const NUMBERS: [(LinkSetting, u16); 6] = [
    (LinkSetting::Group, IFLA_GROUP),
    (LinkSetting::GsoMaxSize, 41),
    (LinkSetting::GsoMaxSegments, 40),
    (LinkSetting::GroMaxSize, 58),
    (LinkSetting::GsoIpv4MaxSize, 63),
    (LinkSetting::GroIpv4MaxSize, 64),
];

/// Builds the request for all netdevs, without their counters.
pub(super) fn dump() -> RouteNetlinkMessage {
    get(0, vec![])
}

/// Builds the request for all netdevs of the namespace with the number `nsid` in this namespace.
pub(super) fn dump_of(nsid: i32) -> RouteNetlinkMessage {
    get(0, vec![LinkAttribute::IfNetnsId(nsid)]) // IFLA_TARGET_NETNSID by its older name
}

/// Builds the request for the netdev with the name or alternative name `name`.
pub(super) fn find(name: &str) -> RouteNetlinkMessage {
    get(0, vec![LinkAttribute::IfName(name.to_owned())])
}

pub(super) fn by_index(index: u32) -> RouteNetlinkMessage {
    get(index, vec![])
}

/// Builds the request for the netdev `index` with the settings of its virtual functions.
pub(super) fn with_functions(index: u32) -> RouteNetlinkMessage {
    let mask = vec![LinkExtentMask::Vf, LinkExtentMask::SkipStats];
    let attributes = vec![LinkAttribute::ExtMask(mask)];
    RouteNetlinkMessage::GetLink(message(index, attributes))
}

fn get(index: u32, mut attributes: Vec<LinkAttribute>) -> RouteNetlinkMessage {
    attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    RouteNetlinkMessage::GetLink(message(index, attributes))
}

pub(super) fn message(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    message
}

/// Returns the netdev's index in an `RTM_NEWLINK`.
pub(super) fn index(body: &[u8]) -> Option<u32> {
    LinkHeader::parse(body).ok().map(|header| header.index)
}

/// Returns the bytes from which `links::text_of_bytes` made the text.
fn bytes_of_text(text: &str) -> Vec<u8> {
    match text.strip_prefix('\0') {
        Some(coded) => coded.chars().map(|byte| byte as u8).collect(),
        None => text.as_bytes().to_vec(),
    }
}

/// Returns the kind in an `IFLA_LINKINFO`.
pub(super) fn kind_of(info: &[u8]) -> Option<String> {
    attribute(info, IFLA_INFO_KIND)
        .and_then(text)
        .map(str::to_owned)
}

/// Returns an attribute with a number in host byte order.
pub(super) fn number(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

pub(super) fn setting(setting: LinkSetting, value: u32) -> LinkAttribute {
    LinkAttribute::Other(match NUMBERS.iter().find(|(it, _)| *it == setting) {
        Some((_, kind)) => number(*kind, value),
        // the operational state is a `u8`
        None if setting == LinkSetting::Dormant => {
            let state = if value == 0 { OPER_UP } else { OPER_DORMANT };
            DefaultNla::new(IFLA_OPERSTATE, vec![state])
        }
        None => DefaultNla::new(IFLA_LINKMODE, vec![value as u8]),
    })
}

/// Returns the attribute that sets an alias, without a NUL. An empty alias removes the alias.
pub(super) fn alias(alias: &str) -> LinkAttribute {
    LinkAttribute::Other(DefaultNla::new(IFLA_IFALIAS, bytes_of_text(alias)))
}

pub(super) fn set_flag(index: u32, flag: LinkFlag, on: bool) -> RouteNetlinkMessage {
    set_flags(index, bit(flag), on)
}

pub(super) fn bit(flag: LinkFlag) -> LinkFlags {
    LinkFlags::from_bits_retain(flag as u32)
}

pub(super) fn set_flags(index: u32, bits: LinkFlags, on: bool) -> RouteNetlinkMessage {
    let mut message = message(index, vec![]);
    message.header.flags = if on { bits } else { LinkFlags::empty() };
    message.header.change_mask = bits;
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn set(index: u32, attributes: Vec<LinkAttribute>) -> RouteNetlinkMessage {
    RouteNetlinkMessage::SetLink(message(index, attributes))
}

pub(super) fn remove(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelLink(message(index, vec![]))
}

/// Builds the request that deletes all netdevs of a group at once.
pub(super) fn remove_group(group: u32) -> RouteNetlinkMessage {
    let group = LinkAttribute::Other(number(IFLA_GROUP, group));
    RouteNetlinkMessage::DelLink(message(0, vec![group]))
}

/// Builds the message with an alternative name of a netdev.
pub(super) fn alt_name(index: u32, name: &str) -> LinkMessage {
    let mut name = bytes_of_text(name);
    name.push(0);
    let name = Prop::Other(DefaultNla::new(IFLA_ALT_IFNAME, name));
    message(index, vec![LinkAttribute::PropList(vec![name])])
}
