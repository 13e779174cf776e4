// SPDX-License-Identifier: Apache-2.0
//! The subnet administrator: paths between ports, and multicast groups. The layout of its records is that of the
//! InfiniBand Architecture Specification, volume 1, chapter 15.2 (`include/rdma/ib_sa.h`).

use super::{
    fields::{Field, field, paste},
    infiniband::{FIRST_GROUP, has_partition},
};
use std::collections::BTreeMap;

/// Bytes of a management datagram.
const MAD: usize = 256;
/// Base version 1, and the class and class version of subnet administration.
const BEGIN: [u8; 3] = [1, 3, 2];
const METHOD: Field = field(0x18, 8);
const STATUS: Field = field(0x20, 16);
const ATTRIBUTE: Field = field(0x80, 16);
const MASK: Field = field(48 * 8, 64);
const DATA: usize = 56;

/// Methods. A response has the method of the request with the upper bit set, except for a response to SET: it has the
/// method of a response to GET.
const GET: u64 = 1;
const SET: u64 = 2;
const DELETE: u64 = 0x15;
const IS_ANSWER: u64 = 0x80;

const CLASS_PORT_INFO: u64 = 1;
const PATH_RECORD: u64 = 0x35;
const GROUP_RECORD: u64 = 0x38;

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The attribute does not support the method.
    Unsupported = 0x000c,
    NoResources = 0x0100,
    InvalidRequest = 0x0200,
    NoRecords = 0x0300,
    InvalidGid = 0x0500,
}

/// `PathRecord`.
mod path {
    use super::{Field, field};
    pub(super) const TO: usize = 8;
    pub(super) const FROM: usize = 24;
    pub(super) const TO_LID: Field = field(40 * 8, 16);
    pub(super) const FROM_LID: Field = field(42 * 8, 16);
    pub(super) const IS_REVERSIBLE: Field = field(49 * 8, 1);
    pub(super) const PARTITION: Field = field(50 * 8, 16);
    pub(super) const MTU: Field = field(54 * 8, 8);
    pub(super) const RATE: Field = field(55 * 8, 8);
    pub(super) const LIFE_TIME: Field = field(56 * 8, 8);
    pub(super) const HAS_PARTITION: u64 = 1 << 13;
}

/// `MCMemberRecord`.
mod group {
    use super::{Field, field};
    pub(super) const SIZE: usize = 52;
    pub(super) const PORT: usize = 16;
    pub(super) const KEY: Field = field(32 * 8, 32);
    pub(super) const LID: Field = field(36 * 8, 16);
    pub(super) const MTU: Field = field(38 * 8, 8);
    pub(super) const PARTITION: Field = field(40 * 8, 16);
    pub(super) const RATE: Field = field(42 * 8, 8);
    pub(super) const LIFE_TIME: Field = field(43 * 8, 8);
    pub(super) const JOINS: Field = field(48 * 8 + 4, 4);
    pub(super) const FULL_MEMBER: u64 = 1;
    /// The components that a request must have to create a group, except for a broadcast group: key, traffic class,
    /// partition, service level and flow label.
    pub(super) const NEW: u64 = 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
}

/// The selector that requires exactly the given value.
const EXACTLY: u64 = 2 << 6;
/// Groups have an MTU of 2048 bytes and 10 Gbit/s, paths 4096 bytes and 100 Gbit/s. Both have [`LIFE_TIME`].
const GROUP_MTU: u64 = EXACTLY | 4;
const PATH_MTU: u64 = EXACTLY | 5;
const GROUP_RATE: u64 = EXACTLY | 3;
const PATH_RATE: u64 = EXACTLY | 16;
const LIFE_TIME: u64 = EXACTLY | 18;
/// The queue key of the broadcast groups.
const BROADCAST_KEY: u64 = 0xb1b;
const MAX_GROUPS: u16 = 256;

/// A GID.
pub type Gid = [u8; 16];

#[derive(Debug)]
struct Group {
    lid: u16,
    record: [u8; group::SIZE],
    /// The join state of each port.
    members: BTreeMap<Gid, u64>,
}

/// The subnet administrator.
#[derive(Debug, Default)]
pub struct Administrator {
    groups: BTreeMap<Gid, Group>,
}

/// The partition of an IPv4 broadcast group (`ff12:401b:PKEY::ffff:ffff`). Returns `None` for any other GID.
fn broadcast_partition(gid: &Gid) -> Option<u16> {
    let is_it = gid[0] == 0xff
        && gid[2..4] == [0x40, 0x1b]
        && gid[6..12] == [0; 6]
        && gid[12..] == [0xff; 4];
    is_it.then(|| u16::from_be_bytes([gid[4], gid[5]]))
}

impl Administrator {
    /// Returns true if a port is a full member of a group with this LID.
    pub fn is_member(&self, lid: u16, port: &Gid) -> bool {
        let mut groups = self.groups.values().filter(|it| it.lid == lid);
        groups.any(|it| (it.members.get(port)).is_some_and(|it| it & group::FULL_MEMBER != 0))
    }

    /// Returns the answer to a datagram, or `None` if the datagram is not a request to the administrator. `ports` lists
    /// the active ports of the subnet, with their LIDs.
    pub fn answer(&mut self, request: &[u8], ports: &[(Gid, u16)]) -> Option<Vec<u8>> {
        let mut mad = request.first_chunk::<MAD>()?.to_vec();
        let method = METHOD.get(&mad);
        if !mad.starts_with(&BEGIN) || method & IS_ANSWER != 0 {
            return None;
        }
        let mask = MASK.get(&mad);
        let data = &mut mad[DATA..];
        let done = match (ATTRIBUTE.get(request), method) {
            (CLASS_PORT_INFO, GET) => {
                data.fill(0);
                paste(data, 0, &[1, 2]);
                // the time that the administrator needs for an answer
                data[7] = 18;
                Ok(())
            }
            (PATH_RECORD, GET) => path(mask, data, ports),
            (GROUP_RECORD, SET) => self.join(mask, data, ports),
            (GROUP_RECORD, DELETE) => self.leave(data),
            _ => Err(Refusal::Unsupported),
        };
        let status = done.map_or_else(|it| it as u64, |()| 0);
        STATUS.put(&mut mad, status);
        let answered = if method == SET { GET } else { method };
        METHOD.put(&mut mad, answered | IS_ANSWER);
        Some(mad)
    }

    fn join(&mut self, mask: u64, data: &mut [u8], ports: &[(Gid, u16)]) -> Result<(), Refusal> {
        let [gid, port] = gids(data, 0, group::PORT);
        if gid[0] != 0xff || !ports.iter().any(|it| it.0 == port) {
            return Err(Refusal::InvalidGid);
        }
        let joins = group::JOINS.get(data);
        if !self.groups.contains_key(&gid) {
            let made = self.make(gid, mask, data)?;
            self.groups.insert(gid, made);
        }
        let group = self.groups.get_mut(&gid).ok_or(Refusal::NoResources)?;
        let state = group.members.entry(port).or_default();
        *state |= joins;
        paste(data, 0, &group.record);
        paste(data, group::PORT, &port);
        group::JOINS.put(data, *state);
        Ok(())
    }

    /// Creates a group. A broadcast group gets a fixed queue key, and the partition in its GID.
    fn make(&self, gid: Gid, mask: u64, data: &[u8]) -> Result<Group, Refusal> {
        let is_full = group::JOINS.get(data) & group::FULL_MEMBER != 0;
        let mut record = [0; group::SIZE];
        let partition = match broadcast_partition(&gid) {
            Some(partition) => {
                group::KEY.put(&mut record, BROADCAST_KEY);
                group::PARTITION.put(&mut record, partition.into());
                partition
            }
            None if is_full && mask & group::NEW == group::NEW => {
                record.copy_from_slice(&data[..group::SIZE]);
                group::PARTITION.get(data) as u16
            }
            None => return Err(Refusal::InvalidRequest),
        };
        if !has_partition(partition) {
            return Err(Refusal::InvalidRequest);
        }
        let mut lids = FIRST_GROUP..FIRST_GROUP + MAX_GROUPS;
        let is_free = |lid: &u16| self.groups.values().all(|it| it.lid != *lid);
        let lid = lids.find(is_free).ok_or(Refusal::NoResources)?;
        paste(&mut record, 0, &gid);
        for (field, value) in [
            (group::LID, lid.into()),
            (group::MTU, GROUP_MTU),
            (group::RATE, GROUP_RATE),
            (group::LIFE_TIME, LIFE_TIME),
        ] {
            field.put(&mut record, value);
        }
        Ok(Group {
            lid,
            record,
            members: BTreeMap::new(),
        })
    }

    /// Removes join states of a port. Removes the group if it has no member left.
    fn leave(&mut self, data: &mut [u8]) -> Result<(), Refusal> {
        let [gid, port] = gids(data, 0, group::PORT);
        let group = self.groups.get_mut(&gid).ok_or(Refusal::InvalidRequest)?;
        let state = group.members.get_mut(&port);
        *state.ok_or(Refusal::InvalidRequest)? &= !group::JOINS.get(data);
        group.members.retain(|_, state| *state != 0);
        if group.members.is_empty() {
            self.groups.remove(&gid);
        }
        Ok(())
    }
}

/// Returns the two GIDs at the offsets `one` and `other` of a datagram's data.
fn gids(data: &[u8], one: usize, other: usize) -> [Gid; 2] {
    [one, other].map(|at| {
        let mut gid = Gid::default();
        gid.copy_from_slice(&data[at..at + 16]);
        gid
    })
}

/// Completes `data`, the record of the path between two ports.
fn path(mask: u64, data: &mut [u8], ports: &[(Gid, u16)]) -> Result<(), Refusal> {
    let [to, from] = gids(data, path::TO, path::FROM).map(|gid| {
        let port = ports.iter().find(|it| it.0 == gid);
        port.map(|it| u64::from(it.1)).ok_or(Refusal::NoRecords)
    });
    if mask & path::HAS_PARTITION == 0 {
        path::PARTITION.put(data, 0xffff);
    } else if !has_partition(path::PARTITION.get(data) as u16) {
        return Err(Refusal::NoRecords);
    }
    for (field, value) in [
        (path::TO_LID, to?),
        (path::FROM_LID, from?),
        (path::IS_REVERSIBLE, 1),
        (path::MTU, PATH_MTU),
        (path::RATE, PATH_RATE),
        (path::LIFE_TIME, LIFE_TIME),
    ] {
        field.put(data, value);
    }
    Ok(())
}
