// SPDX-License-Identifier: Apache-2.0
//! Nexthop objects in rtnetlink (`RTM_*NEXTHOP`, `include/uapi/linux/nexthop.h`; Linux 5.3). A route can refer to such
//! an object instead of naming its next hops.

use crate::netlink::{Request, attributes, u32_of};
use std::collections::{BTreeMap, BTreeSet};

/// `RTM_GETNEXTHOP`
const GET: u16 = 106;
/// `sizeof(struct nhmsg)`
const HEADER: usize = 8;
/// `sizeof(struct nexthop_grp)`. The member's id comes first in the structure.
const MEMBER: usize = 8;

const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;

/// Builds the request for all nexthop objects, of IPv4 and IPv6.
pub(super) fn dump() -> Request {
    Request::new(GET, &[0; HEADER])
}

/// Destination of a nexthop object: a netdev, or a group of nexthop objects.
enum Object {
    Netdev(u32),
    Group(Vec<u32>),
}

/// The nexthop objects of a namespace.
pub(super) struct Nexthops(BTreeMap<u32, Object>);

impl Nexthops {
    pub(super) fn of<'a>(bodies: impl Iterator<Item = &'a [u8]>) -> Self {
        Self(bodies.filter_map(parse).collect())
    }

    /// Returns the indexes of the netdevs that the nexthop object `id` uses. Returns none if the object is a black hole
    /// or does not exist any more.
    pub(super) fn netdevs(&self, id: u32) -> BTreeSet<u32> {
        match self.0.get(&id) {
            None => BTreeSet::new(),
            Some(Object::Netdev(index)) => BTreeSet::from([*index]),
            // a group is never a member of another group (`valid_group_nh()`, `net/ipv4/nexthop.c`)
            Some(Object::Group(members)) => members
                .iter()
                .filter_map(|member| match self.0.get(member) {
                    Some(Object::Netdev(index)) => Some(*index),
                    _ => None,
                })
                .collect(),
        }
    }
}

fn parse(body: &[u8]) -> Option<(u32, Object)> {
    let (mut id, mut object) = (None, None);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            NHA_ID => id = u32_of(value),
            NHA_OIF => object = u32_of(value).map(Object::Netdev),
            NHA_GROUP => {
                let members = value.chunks_exact(MEMBER);
                let ids = members.filter_map(|member| u32_of(member.get(..4)?));
                object = Some(Object::Group(ids.collect()));
            }
            _ => {}
        }
    }
    id.zip(object)
}
