// SPDX-License-Identifier: Apache-2.0
//! The virtual port of a function: its NIC context, table of RoCE addresses, state and counters.

use super::{
    Mac,
    fields::{Field, field, paste},
    status::Status,
};

/// Number of entries of the table of RoCE addresses.
pub const ROCE_ADDRESSES: usize = 255;
/// Bytes of a RoCE address (`roce_addr_layout`).
const ROCE_ADDRESS: usize = 32;
/// The offset of the context, RoCE address or counters in an output, and of the RoCE address in the input of
/// `SET_ROCE_ADDRESS`.
const AT: usize = 16;
/// The offset of the context in the input of `MODIFY_NIC_VPORT_CONTEXT`.
const AT_OF_CHANGE: usize = 0x100;
/// Bytes of the context without its lists of addresses.
const CONTEXT: usize = 0x100;

const ROCE_INDEX: Field = field(0x40, 16);
const ROCE_VERSION: Field = field(0xd8, 8);
const ROCE_MAC: Field = field(0x90, 48);
const ROCE_HAS_VLAN: Field = field(0x83, 1);
const ROCE_VLAN: Field = field(0x84, 12);

/// `nic_vport_context`.
mod nic {
    use super::{Field, field};
    pub(super) const MIN_INLINE: Field = field(0x5, 3);
    pub(super) const NO_MULTICAST_LOOPBACK: Field = field(0x1d, 1);
    pub(super) const NO_UNICAST_LOOPBACK: Field = field(0x1e, 1);
    pub(super) const ROCE: Field = field(0x1f, 1);
    pub(super) const EVENTS: Field = field(0x20, 32);
    pub(super) const MTU: Field = field(0x130, 16);
    pub(super) const SYSTEM_GUID: Field = field(0x140, 64);
    pub(super) const PORT_GUID: Field = field(0x180, 64);
    pub(super) const NODE_GUID: Field = field(0x1c0, 64);
    pub(super) const PROMISCUOUS: Field = field(0x780, 3);
    pub(super) const LIST_TYPE: Field = field(0x785, 3);
    pub(super) const LIST_SIZE: Field = field(0x794, 12);
    pub(super) const ADDRESS: Field = field(0x7b0, 48);
    pub(super) const LIST: usize = 0x100;
}

/// `modify_nic_vport_field_select`: the fields that a change contains.
const SELECTORS: [(Field, &[Field]); 9] = [
    (field(0x74, 1), &[nic::NO_UNICAST_LOOPBACK]),
    (field(0x75, 1), &[nic::NO_MULTICAST_LOOPBACK]),
    (field(0x76, 1), &[nic::NODE_GUID]),
    (field(0x77, 1), &[nic::PORT_GUID]),
    (field(0x78, 1), &[nic::MIN_INLINE]),
    (field(0x79, 1), &[nic::MTU]),
    (field(0x7a, 1), &[nic::EVENTS]),
    (field(0x7b, 1), &[nic::PROMISCUOUS]),
    (field(0x7c, 1), &[nic::ADDRESS]),
];
const SELECTS_ROCE: Field = field(0x7e, 1);
const SELECTS_LIST: Field = field(0x7d, 1);
/// The list type of unicast addresses; 1 is multicast, 2 is VLANs.
const UNICAST: u64 = 0;
/// The largest number of addresses of a list.
const MAX_LIST: usize = 1 << 12;

/// The administrative state of a port that the driver has switched off.
pub(super) const ADMIN_DOWN: u64 = 0;
const ADMIN_FOLLOWS: u64 = 2;

/// `query_vport_counter_out`: packet counters, each followed by its octet counter.
mod counters {
    pub(super) const RECEIVED_MESSAGES: usize = 0x30;
    pub(super) const SENT_MESSAGES: usize = 0x40;
    pub(super) const RECEIVED_BROADCAST: usize = 0x70;
    pub(super) const SENT_BROADCAST: usize = 0x80;
    pub(super) const RECEIVED_UNICAST: usize = 0x90;
    pub(super) const SENT_UNICAST: usize = 0xa0;
    pub(super) const RECEIVED_MULTICAST: usize = 0xb0;
    pub(super) const SENT_MULTICAST: usize = 0xc0;
}

/// Bytes of `query_vport_counter_out`.
const COUNTERS: usize = 0x210;

/// The virtual port of a function.
#[derive(Debug)]
pub struct Vport {
    context: [u8; CONTEXT],
    unicast: Vec<Mac>,
    pub(super) admin_state: u64,
    counters: [u8; COUNTERS],
    roce: Vec<[u8; ROCE_ADDRESS]>,
}

/// An entry of the table of RoCE addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceAddress {
    /// The GID.
    pub gid: [u8; 16],
    /// 0 for RoCE v1, 2 for v2.
    pub version: u8,
    /// The hardware address.
    pub mac: Mac,
    /// The VLAN of the address: frames from and to the address have its tag.
    pub vlan: Option<u16>,
}

/// The EUI-64 of a hardware address.
pub fn guid(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

impl Vport {
    /// Creates the port of a function with the hardware address `mac`. `card` is the hardware address of the
    /// first function of the card.
    pub fn new(mac: Mac, card: Mac) -> Vport {
        let mut context = [0; CONTEXT];
        let [a, b, c, d, e, f] = mac;
        for (field, value) in [
            (nic::MTU, 1500),
            (nic::SYSTEM_GUID, guid(card)),
            (nic::PORT_GUID, guid(mac)),
            (nic::NODE_GUID, guid(mac)),
            (nic::ADDRESS, u64::from_be_bytes([0, 0, a, b, c, d, e, f])),
        ] {
            field.put(&mut context, value);
        }
        Vport {
            context,
            unicast: vec![mac],
            admin_state: ADMIN_FOLLOWS,
            counters: [0; COUNTERS],
            roce: vec![[0; ROCE_ADDRESS]; ROCE_ADDRESSES],
        }
    }

    /// The RoCE addresses that the driver set, by index.
    pub fn roce_addresses(&self) -> impl Iterator<Item = (usize, RoceAddress)> {
        (0..ROCE_ADDRESSES).filter_map(|index| Some((index, self.roce_address(index)?)))
    }

    /// The RoCE address at `index`.
    pub fn roce_address(&self, index: usize) -> Option<RoceAddress> {
        let entry = self.roce.get(index)?;
        let gid = *entry.first_chunk::<16>()?;
        (gid != [0; 16]).then(|| {
            let [_, _, mac @ ..] = ROCE_MAC.get(entry).to_be_bytes();
            let version = ROCE_VERSION.get(entry) as u8;
            let vlan = (ROCE_HAS_VLAN.get(entry) == 1).then(|| ROCE_VLAN.get(entry) as u16);
            RoceAddress {
                gid,
                version,
                mac,
                vlan,
            }
        })
    }

    /// The VLAN of the RoCE address at `index`.
    pub fn vlan(&self, index: usize) -> Option<u16> {
        self.roce_address(index)?.vlan
    }

    /// Returns true if the function accepts a frame to `target`.
    pub fn accepts(&self, target: Mac) -> bool {
        let is_group = target[0] & 1 == 1;
        is_group || nic::PROMISCUOUS.get(&self.context) & 1 == 1 || self.unicast.contains(&target)
    }

    /// Counts a frame to `target`.
    pub fn count(&mut self, is_received: bool, target: Mac, octets: usize) {
        let at = match (is_received, target == [0xff; 6], target[0] & 1 == 1) {
            (true, true, _) => counters::RECEIVED_BROADCAST,
            (false, true, _) => counters::SENT_BROADCAST,
            (true, _, true) => counters::RECEIVED_MULTICAST,
            (false, _, true) => counters::SENT_MULTICAST,
            (true, ..) => counters::RECEIVED_UNICAST,
            (false, ..) => counters::SENT_UNICAST,
        };
        self.add(at, octets as u64);
    }

    /// Counts a message of a queue pair.
    pub fn count_message(&mut self, is_received: bool, octets: u64) {
        let at = match is_received {
            true => counters::RECEIVED_MESSAGES,
            false => counters::SENT_MESSAGES,
        };
        self.add(at, octets);
    }

    fn add(&mut self, at: usize, octets: u64) {
        for (at, more) in [(at, 1), (at + 8, octets)] {
            let number = field(at * 8, 64);
            let sum = number.get(&self.counters).wrapping_add(more);
            number.put(&mut self.counters, sum);
        }
    }

    /// `QUERY_NIC_VPORT_CONTEXT`.
    pub fn query(&self, input: &[u8], output: &mut [u8]) {
        paste(output, AT, &self.context);
        let kind = field(0x65, 3).get(input);
        nic::LIST_TYPE.within(AT * 8).put(output, kind);
        if kind == UNICAST {
            let room = output.len().saturating_sub(AT + nic::LIST) / 8;
            for (at, mac) in (AT + nic::LIST..)
                .step_by(8)
                .zip(self.unicast.iter().take(room))
            {
                paste(output, at + 2, mac);
            }
            let len = self.unicast.len().min(room);
            nic::LIST_SIZE.within(AT * 8).put(output, len as u64);
        }
    }

    /// `MODIFY_NIC_VPORT_CONTEXT`.
    pub fn modify(&mut self, input: &[u8]) -> Result<(), Status> {
        let change = input.get(AT_OF_CHANGE..).ok_or(Status::InputLength)?;
        if change.len() < CONTEXT {
            return Err(Status::InputLength);
        }
        for (selector, fields) in SELECTORS {
            if selector.get(input) == 1 {
                (fields.iter()).for_each(|field| field.copy(&mut self.context, change));
            }
        }
        if SELECTS_ROCE.get(input) == 1 {
            nic::ROCE.copy(&mut self.context, change);
        }
        if SELECTS_LIST.get(input) == 1 && nic::LIST_TYPE.get(change) == UNICAST {
            let size = (nic::LIST_SIZE.get(change) as usize).min(MAX_LIST);
            let list = change[nic::LIST..].chunks_exact(8).take(size);
            let macs = list.filter_map(|it| it[2..].try_into().ok());
            self.unicast = macs.collect();
        }
        Ok(())
    }

    /// `SET_ROCE_ADDRESS`.
    pub fn set_roce_address(&mut self, input: &[u8]) -> Result<(), Status> {
        let entry = (self.roce.get_mut(ROCE_INDEX.get(input) as usize)).ok_or(Status::Index)?;
        let value = input.get(AT..AT + ROCE_ADDRESS);
        entry.copy_from_slice(value.ok_or(Status::InputLength)?);
        Ok(())
    }

    /// `QUERY_ROCE_ADDRESS`.
    pub fn query_roce_address(&self, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
        let entry = self.roce.get(ROCE_INDEX.get(input) as usize);
        paste(output, AT, entry.ok_or(Status::Index)?);
        Ok(())
    }

    /// `QUERY_VPORT_COUNTER`.
    pub fn query_counters(&self, output: &mut [u8]) {
        paste(output, AT, &self.counters[AT..]);
    }
}
