// SPDX-License-Identifier: Apache-2.0
//! The InfiniBand port of a function: its addresses, partitions, HCA vport context and management agent.

use super::{
    context,
    fields::{Field, field, paste},
    function::Function,
    place::Place,
    queue_pair,
    status::Status,
    vport::guid,
};

/// The LID of the subnet manager and administrator.
pub const MANAGER: u16 = 1;
/// The LID of the first function.
pub const FIRST_LID: u16 = 2;
/// The first LID of multicast groups.
pub const FIRST_GROUP: u16 = 0xc000;
/// The partition keys of each port, by index.
pub const PARTITIONS: [u16; 2] = [0xffff, 0x8001];
/// The prefix of the subnet's GIDs.
const PREFIX: u64 = 0xfe80 << 48;
/// The most multicast groups of a queue pair.
const MAX_GROUPS: usize = 1024;

/// The byte offset of a context or a table in input and output.
const AT: usize = 16;
const INDEX: Field = field(0x70, 16);
/// The index that selects all entries of a table.
const ALL: u64 = 0xffff;
const NUMBER: Field = field(0x48, 24);

/// `hca_vport_context`.
mod hca {
    use super::{Field, field};
    pub(super) const HAS_SMI: Field = field(0x101, 1);
    pub(super) const PHYSICAL_STATE: Field = field(0x110, 4);
    pub(super) const PORT_STATE: Field = field(0x118, 4);
    pub(super) const STATE: Field = field(0x11c, 4);
    pub(super) const SYSTEM_GUID: Field = field(0x140, 64);
    pub(super) const PORT_GUID: Field = field(0x180, 64);
    pub(super) const NODE_GUID: Field = field(0x1c0, 64);
    pub(super) const CAPABILITIES: Field = field(0x200, 32);
    pub(super) const CHANGEABLE: Field = field(0x220, 32);
    pub(super) const LID: Field = field(0x300, 16);
    pub(super) const TIMEOUT: Field = field(0x31b, 5);
    pub(super) const MANAGER_LID: Field = field(0x320, 16);
}

/// `IB_PORT_SYS_IMAGE_GUID_SUP`, `IB_PORT_CLIENT_REG_SUP`.
const CAPABILITIES: u32 = 1 << 11 | 1 << 25;
/// `IB_PORT_SM`, `IB_PORT_CM_SUP`, `IB_PORT_SNMP_TUNNEL_SUP`, `IB_PORT_DEVICE_MGMT_SUP`.
const CHANGEABLE: u32 = 1 << 1 | 1 << 16 | 1 << 17 | 1 << 19;
/// The time that the subnet needs to deliver a datagram, as an exponent.
const TIMEOUT: u64 = 18;

/// The states of a port and of its link, first without and then with carrier (`IB_PORT_DOWN`, `IB_PORT_ACTIVE`).
const STATES: [(u64, u64); 2] = [(1, 2), (4, 5)];

/// A management datagram (`struct ib_smp`).
mod smp {
    use super::{Field, field};
    pub(super) const SIZE: usize = 256;
    pub(super) const METHOD: Field = field(0x18, 8);
    pub(super) const STATUS: Field = field(0x20, 16);
    pub(super) const ATTRIBUTE: Field = field(0x80, 16);
    pub(super) const MODIFIER: Field = field(0xa0, 32);
    pub(super) const DATA: usize = 64;
    pub(super) const GET: u64 = 1;
    pub(super) const RESPONSE: u64 = 0x81;
    /// Status: the attribute does not support the method.
    pub(super) const UNSUPPORTED: u64 = 0xc;
    pub(super) const NODE_DESCRIPTION: u64 = 0x10;
    pub(super) const NODE_INFO: u64 = 0x11;
    pub(super) const GUID_INFO: u64 = 0x14;
    pub(super) const PORT_INFO: u64 = 0x15;
    pub(super) const PARTITION_TABLE: u64 = 0x16;
}

/// The GID of a port.
pub fn gid(place: &Place) -> [u8; 16] {
    (u128::from(PREFIX) << 64 | u128::from(guid(place.mac))).to_be_bytes()
}

/// Returns true if queue pairs with these two keys are in one partition, and at least one of the keys is a full
/// member's.
fn are_together(one: u16, other: u16) -> bool {
    (one ^ other) & 0x7fff == 0 && (one | other) & 0x8000 != 0
}

/// Returns true if one of the [`PARTITIONS`] matches `key`: same partition, and one of the two keys is a full member's.
pub fn has_partition(key: u16) -> bool {
    PARTITIONS.iter().any(|it| are_together(*it, key))
}

/// `QUERY_HCA_VPORT_PKEY`. An Ethernet port has only the default partition.
pub(super) fn query_partition_keys(is_ethernet: bool, input: &[u8], output: &mut [u8]) {
    let keys = if is_ethernet {
        &PARTITIONS[..1]
    } else {
        &PARTITIONS
    };
    let first = match INDEX.get(input) {
        ALL => 0,
        index => index as usize,
    };
    for (place, key) in keys.iter().skip(first).enumerate() {
        paste(output, AT + place * 4 + 2, &key.to_be_bytes());
    }
}

impl Function {
    fn states(&self) -> (u64, u64) {
        STATES[usize::from(self.has_carrier())]
    }

    /// `QUERY_HCA_VPORT_CONTEXT`.
    pub(super) fn query_hca_context(&self, lid: u16, output: &mut [u8]) {
        let (state, physical_state) = self.states();
        for (field, value) in [
            (hca::HAS_SMI, 1),
            (hca::PHYSICAL_STATE, physical_state),
            (hca::PORT_STATE, state),
            (hca::STATE, state),
            (hca::SYSTEM_GUID, guid(self.place.card)),
            (hca::PORT_GUID, guid(self.place.mac)),
            (hca::NODE_GUID, guid(self.place.mac)),
            (hca::CAPABILITIES, self.port_capabilities()),
            (hca::CHANGEABLE, CHANGEABLE.into()),
            (hca::LID, lid.into()),
            (hca::TIMEOUT, TIMEOUT),
            (hca::MANAGER_LID, MANAGER.into()),
        ] {
            field.within(AT * 8).put(output, value);
        }
    }

    fn port_capabilities(&self) -> u64 {
        (CAPABILITIES | self.added_capabilities).into()
    }

    /// `MODIFY_HCA_VPORT_CONTEXT`: changes the capabilities that the driver may change.
    pub(super) fn modify_hca_context(&mut self, input: &[u8]) {
        let [selected, value] = [hca::CHANGEABLE, hca::CAPABILITIES]
            .map(|it| it.within(AT * 8).get32(input) & CHANGEABLE);
        self.added_capabilities = self.added_capabilities & !selected | value & selected;
    }

    /// `QUERY_HCA_VPORT_GID`. A port has one GID. The other entries contain only the subnet's prefix, which a driver
    /// can read from any entry.
    pub(super) fn query_gid(&self, input: &[u8], output: &mut [u8]) {
        field(0x60, 16).put(output, 1);
        let room = output.len().saturating_sub(AT) / 16;
        for entry in 0..room {
            paste(output, AT + entry * 16, &PREFIX.to_be_bytes());
        }
        if [0, ALL].contains(&INDEX.get(input)) {
            paste(output, AT, &gid(&self.place));
        }
    }

    /// `MAD_IFC`: the subnet management agent. It can read attributes, and cannot change them.
    pub(super) fn mad_ifc(&self, lid: u16, input: &[u8], output: &mut [u8]) {
        let mut mad = [0; smp::SIZE];
        paste(&mut mad, 0, input.get(AT..).unwrap_or_default());
        mad[smp::DATA..].fill(0);
        let known = smp::METHOD.get(&mad) == smp::GET && self.attribute(lid, &mut mad);
        if !known {
            smp::STATUS.put(&mut mad, smp::UNSUPPORTED);
        }
        smp::METHOD.put(&mut mad, smp::RESPONSE);
        paste(output, AT, &mad);
    }

    /// Writes an attribute into a management datagram. Returns false if the agent does not have the attribute.
    fn attribute(&self, lid: u16, mad: &mut [u8; smp::SIZE]) -> bool {
        let block = smp::MODIFIER.get32(mad);
        let attribute = smp::ATTRIBUTE.get(mad);
        let data = &mut mad[smp::DATA..];
        if attribute == smp::NODE_DESCRIPTION {
            paste(data, 0, self.name.as_bytes());
            return true;
        }
        let mut put = |fields: &[(usize, usize, u64)]| {
            for (byte, width, value) in fields {
                field(byte * 8, *width).put(data, *value);
            }
        };
        let [node, system] = [self.place.mac, self.place.card].map(guid);
        let (state, physical_state) = self.states();
        match attribute {
            smp::NODE_INFO => put(&[
                // versions, the type "channel adapter", and the number of its ports
                (0, 32, 0x0101_0101),
                (4, 64, system),
                (12, 64, node),
                (20, 64, node),
                (28, 16, 128),
                (30, 16, 0x1017),
                (36, 32, 1 << 24 | 0x2c9),
            ]),
            smp::PORT_INFO => put(&[
                (8, 64, PREFIX),
                (16, 16, lid.into()),
                (18, 16, MANAGER.into()),
                (20, 32, self.port_capabilities()),
                // local port; width 4X is enabled, supported and active
                (28, 32, 0x0102_0202),
                (32, 8, state),
                (33, 8, physical_state << 4),
                // maximum MTU of 4096 bytes, and one data lane
                (36, 8, 5 << 4),
                (37, 8, 1 << 4),
                (41, 8, 5),
                (50, 8, 8),
                (51, 8, TIMEOUT),
            ]),
            smp::GUID_INFO if block == 0 => put(&[(0, 64, node)]),
            smp::GUID_INFO => {}
            smp::PARTITION_TABLE if block == 0 => {
                for (index, key) in PARTITIONS.into_iter().enumerate() {
                    put(&[(index * 2, 16, key.into())]);
                }
            }
            smp::PARTITION_TABLE => {}
            _ => return false,
        }
        true
    }

    /// `ATTACH_TO_MCG`, or `DETACH_FROM_MCG`.
    pub(super) fn attach(&mut self, input: &[u8], is_attached: bool) -> Result<(), Status> {
        let pair = self.pairs.get_mut(&NUMBER.get32(input));
        let groups = &mut pair.ok_or(Status::Resource)?.groups;
        let group = input.get(AT..).and_then(|it| it.first_chunk::<16>());
        let group = group.ok_or(Status::InputLength)?;
        if !is_attached {
            groups.remove(group);
        } else if groups.len() < MAX_GROUPS {
            groups.insert(*group);
        } else {
            return Err(Status::Limit);
        }
        Ok(())
    }

    /// Returns the partition key of a queue pair, or `None` if the queue pair does not exist or has no valid key.
    fn partition(&self, number: u32) -> Option<u16> {
        self.objects.get(queue_pair::CREATE, number)?;
        let index = self.pair(number, context::PARTITION) as usize;
        PARTITIONS.get(index).copied()
    }

    /// Returns true if datagrams pass between two queue pairs, that is, if their partition keys match
    /// ([`are_together`]).
    pub(super) fn shares_partition(&self, number: u32, other: &Function, theirs: u32) -> bool {
        let keys = self.partition(number).zip(other.partition(theirs));
        keys.is_some_and(|(one, other)| are_together(one, other))
    }
}
