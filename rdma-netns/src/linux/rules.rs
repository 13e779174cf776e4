// SPDX-License-Identifier: Apache-2.0
//! Routing rules in rtnetlink (`RTM_*RULE`, `include/uapi/linux/fib_rules.h`). This module reports:
//!
//! - as [`Rule`]s: rules with a table that select by source, or by source and destination, and by nothing else
//! - as [`GeneralRule`]s: rules with a table other than `local` that select neither by source nor by netdev (except by
//!   the incoming netdev `lo`), and inverted rules
//! - the tables of all rules

use super::{family_of, ip_of, routes::LOCAL_TABLE, unspecified};
use crate::{
    GeneralRule, Rule,
    netlink::{attribute, attributes, text, u32_of},
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleHeader, RuleMessage},
};

/// `sizeof(struct fib_rule_hdr)`
const HEADER: usize = 12;

const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_OIFNAME: u16 = 17;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;

/// Incoming netdev of packets that this namespace itself sends.
const LOOPBACK: &str = "lo";

/// Builds the request for the rules of all families. A request for IPv6 alone would fail on a kernel without IPv6.
pub(super) fn dump() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetRule(RuleMessage::default())
}

/// Returns the rule of an `RTM_NEWRULE`, if a [`Rule`] can represent it.
pub(super) fn parse(body: &[u8]) -> Option<Rule> {
    let header = RuleHeader::parse(body).ok()?;
    let plain = matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6)
        && header.action == RuleAction::ToTable
        && header.src_len != 0
        && header.tos == 0
        && !header.flags.contains(RuleFlags::Invert);
    if !plain {
        return None;
    }
    let (mut from, mut to, mut table, mut priority) = (None, None, header.table.into(), 0);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            FRA_SRC => from = ip_of(value),
            FRA_DST => to = ip_of(value).map(|ip| (ip, header.dst_len)),
            FRA_TABLE => table = u32_of(value)?,
            FRA_PRIORITY => priority = u32_of(value)?,
            FRA_PROTOCOL => {}
            // the kernel always reports these attributes; -1 means that the rule suppresses no routes
            FRA_SUPPRESS_PREFIXLEN | FRA_SUPPRESS_IFGROUP if u32_of(value) == Some(u32::MAX) => {}
            _ => return None,
        }
    }
    Some(Rule {
        from: from?,
        prefix: header.src_len,
        to,
        table,
        priority,
    })
}

/// Returns the table of the rule of an `RTM_NEWRULE`, regardless of its selectors.
pub(super) fn table(body: &[u8]) -> Option<u32> {
    u32_of(attribute(body.get(HEADER..)?, FRA_TABLE)?)
}

/// Returns the rule of an `RTM_NEWRULE`, if it is a general rule whose table is not `local`.
pub(super) fn parse_general(body: &[u8]) -> Option<GeneralRule> {
    let header = RuleHeader::parse(body).ok()?;
    let to = unspecified(header.family)?;
    let inverted = header.flags.contains(RuleFlags::Invert);
    if header.action != RuleAction::ToTable || (header.src_len != 0 && !inverted) {
        return None;
    }
    let mut rule = GeneralRule {
        to,
        prefix: if inverted { 0 } else { header.dst_len },
        table: header.table.into(),
        suppressed: None,
        conditional: inverted || header.tos != 0,
    };
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            FRA_DST if !inverted => rule.to = ip_of(value)?,
            FRA_TABLE => rule.table = u32_of(value)?,
            // the rule leads to the table of a VRF's netdev
            FRA_L3MDEV if value != [0] => return None,
            FRA_IIFNAME | FRA_OIFNAME if inverted => {}
            FRA_IIFNAME if text(value) == Some(LOOPBACK) => {}
            FRA_IIFNAME | FRA_OIFNAME => return None,
            FRA_SUPPRESS_PREFIXLEN => {
                rule.suppressed = u32_of(value).and_then(|length| u8::try_from(length).ok());
            }
            FRA_SUPPRESS_IFGROUP if u32_of(value) == Some(u32::MAX) => {}
            FRA_DST | FRA_SRC | FRA_PRIORITY | FRA_PROTOCOL | FRA_L3MDEV => {}
            _ => rule.conditional = true,
        }
    }
    (rule.table != LOCAL_TABLE).then_some(rule)
}

pub(super) fn add(rule: &Rule) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewRule(message(rule))
}

pub(super) fn remove(rule: &Rule) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelRule(message(rule))
}

fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header = RuleHeader {
        family: family_of(rule.from),
        src_len: rule.prefix,
        dst_len: rule.to.map_or(0, |(_, prefix)| prefix),
        action: RuleAction::ToTable,
        ..RuleHeader::default()
    };
    message.attributes = vec![
        RuleAttribute::Source(rule.from),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Priority(rule.priority),
    ];
    let to = rule.to.map(|(ip, _)| RuleAttribute::Destination(ip));
    message.attributes.extend(to);
    message
}
