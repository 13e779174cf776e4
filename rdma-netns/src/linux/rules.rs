//! Routing rules in rtnetlink's words (`RTM_*RULE`, `include/uapi/linux/fib_rules.h`).
//!
//! Shown is what a [`Rule`] can say: a source and a table, and nothing else that selects or
//! restrains.

use super::ip_of;
use crate::{
    Rule,
    netlink::{attributes, u32_of},
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleHeader, RuleMessage},
};
use std::net::IpAddr;

/// `sizeof(struct fib_rule_hdr)`
const HEADER: usize = 12;

const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;

/// Asks for all rules, of all families: to ask for IPv6 alone is an error where there is none.
pub(super) fn dump() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetRule(RuleMessage::default())
}

/// The rule of an `RTM_NEWRULE`, if it is shown.
pub(super) fn parse(body: &[u8]) -> Option<Rule> {
    let header = RuleHeader::parse(body).ok()?;
    let plain = matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6)
        && header.action == RuleAction::ToTable
        && header.dst_len == 0
        && header.src_len != 0
        && header.tos == 0
        && !header.flags.contains(RuleFlags::Invert);
    if !plain {
        return None;
    }
    let (mut from, mut table, mut priority) = (None, header.table.into(), 0);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            FRA_SRC => from = ip_of(value),
            FRA_TABLE => table = u32_of(value)?,
            FRA_PRIORITY => priority = u32_of(value)?,
            FRA_PROTOCOL => {}
            // -1, which is always told: nothing is suppressed.
            FRA_SUPPRESS_PREFIXLEN | FRA_SUPPRESS_IFGROUP if u32_of(value) == Some(u32::MAX) => {}
            _ => return None,
        }
    }
    Some(Rule {
        from: from?,
        prefix: header.src_len,
        table,
        priority,
    })
}

/// Adds a rule.
pub(super) fn add(rule: &Rule) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewRule(message(rule))
}

/// Takes a rule away.
pub(super) fn remove(rule: &Rule) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelRule(message(rule))
}

fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header = RuleHeader {
        family: match rule.from {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        },
        src_len: rule.prefix,
        action: RuleAction::ToTable,
        ..RuleHeader::default()
    };
    message.attributes = vec![
        RuleAttribute::Source(rule.from),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Priority(rule.priority),
    ];
    message
}
