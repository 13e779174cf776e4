// SPDX-License-Identifier: Apache-2.0
//! One function: a port of a card.

use super::{
    Mac,
    capabilities::Capabilities,
    counters::Counters,
    events::{Event, EventQueue, port_change},
    keys::Keys,
    objects::Objects,
    pairs::QueuePair,
    ports::Ports,
    queues::{CompletionQueue, WorkQueue},
    registers::{self, Registers},
    vport::Vport,
};
use crate::{interrupts::Vectors, memory::Memory};
use std::{collections::BTreeMap, time::Instant};

const FIRST_DOORBELL: u64 = registers::FIRST_PAGE as u64 * registers::PAGE;

/// The place of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function's hardware address.
    pub mac: Mac,
    /// The hardware address of the first function of its card.
    pub card: Mac,
    /// The function's port of the card, from 1 on.
    pub port: u8,
    /// The ports of the card.
    pub ports: u8,
    /// The LID of an InfiniBand port. None if the port is one of Ethernet.
    pub lid: Option<u16>,
    /// The function is virtual: the driver does not switch its port.
    pub is_virtual: bool,
}

/// The port's cable and the function's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if frames pass.
    pub is_up: bool,
    /// True if the function answers on its bus. A function that does not answer neither reads nor writes memory, and
    /// raises no interrupt.
    pub is_present: bool,
}

/// A function.
#[derive(Debug)]
pub struct Function {
    /// For messages: the hardware address.
    pub name: String,
    /// The function's place.
    pub place: Place,
    /// The function's link.
    pub link: Link,
    /// The function's registers.
    pub registers: Registers,
    /// The memory of its virtual machine.
    pub memory: Memory,
    /// The function's interrupts.
    pub vectors: Vectors,
    /// The function's virtual port.
    pub vport: Vport,
    /// The objects that the driver made.
    pub objects: Objects,
    /// The pages that the driver gave.
    pub pages: Vec<u64>,
    /// `INIT_HCA` was executed, and `TEARDOWN_HCA` was not.
    pub is_started: bool,
    /// The context of `CREATE_LAG`, while the driver bonds the card's functions.
    pub lag: Option<[u8; 8]>,
    /// The driver asked the switch to aggregate its link.
    pub(super) is_aggregated: bool,
    /// The capabilities of its InfiniBand port that the driver added.
    pub(super) added_capabilities: u32,
    pub(super) capabilities: Capabilities,
    pub(super) ports: Ports,
    pub(super) events: BTreeMap<u32, EventQueue>,
    pub(super) completions: BTreeMap<u32, CompletionQueue>,
    pub(super) sends: BTreeMap<u32, WorkQueue>,
    pub(super) receives: BTreeMap<u32, WorkQueue>,
    pub(super) counters: Counters,
    pub(super) keys: Keys,
    pub(super) pairs: BTreeMap<u32, QueuePair>,
    /// The queue pairs whose doorbells were rung or that failed, and that the fabric has not executed.
    pub(super) rung: Vec<u32>,
    /// Frames that it sent, and that the fabric has not taken.
    pub(super) outgoing: Vec<Vec<u8>>,
    begin: Instant,
}

impl Function {
    /// A function after power-on.
    pub fn new(place: Place) -> Function {
        Function {
            name: place.mac.map(|byte| format!("{byte:02x}")).join(":"),
            place,
            link: Link {
                is_up: true,
                is_present: true,
            },
            registers: Registers::default(),
            memory: Memory::default(),
            vectors: Vectors::default(),
            vport: Vport::new(place.mac, place.card),
            objects: Objects::default(),
            pages: Vec::new(),
            is_started: false,
            lag: None,
            is_aggregated: false,
            added_capabilities: 0,
            capabilities: Capabilities::new(place),
            ports: Ports::default(),
            events: BTreeMap::new(),
            completions: BTreeMap::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            counters: Counters::default(),
            keys: Keys::default(),
            pairs: BTreeMap::new(),
            rung: Vec::new(),
            outgoing: Vec::new(),
            begin: Instant::now(),
        }
    }

    /// Resets it: nothing that the driver made is left. Memory, interrupts and the link stay.
    pub fn reset(&mut self) {
        let kept = Function {
            link: self.link,
            memory: std::mem::take(&mut self.memory),
            vectors: std::mem::take(&mut self.vectors),
            ..Function::new(self.place)
        };
        *self = kept;
    }

    /// Reads from BAR 0. Doorbells read as zero.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.registers.read(self.begin.elapsed(), offset, data);
    }

    /// Writes to BAR 0: a register, or a doorbell.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        match (offset, data.first_chunk()) {
            (registers::COMMAND_DOORBELL, Some(slots)) => {
                self.commands_posted(u32::from_be_bytes(*slots));
            }
            _ if offset >= FIRST_DOORBELL => self.doorbell(offset % registers::PAGE, data),
            _ => self.registers.write(offset, data),
        }
    }

    /// A doorbell at `offset` of its page: two 32-bit numbers. Doorbells of event queues have no effect, as each event
    /// raises an interrupt.
    fn doorbell(&mut self, offset: u64, data: &[u8]) {
        let Some(bytes) = data.first_chunk::<8>() else {
            return;
        };
        let value = u64::from_be_bytes(*bytes);
        match offset {
            registers::COMPLETION_DOORBELL => {
                self.completions_armed((value >> 32) as u32, value as u32);
            }
            // a request that is written as a whole begins here, too
            registers::SEND_DOORBELLS.. if offset.is_multiple_of(registers::SEND_DOORBELL) => {
                match value as u32 >> 8 {
                    number if self.pairs.contains_key(&number) => self.rung.push(number),
                    number => self.posted(number),
                }
            }
            _ => {}
        }
    }

    /// Changes what the carrier depends on. The driver gets an event if the carrier changes.
    pub fn change_link(&mut self, change: impl FnOnce(&mut Function)) {
        let before = self.has_carrier();
        change(self);
        let subtype = match self.has_carrier() {
            now if now == before => return,
            true => port_change::ACTIVE,
            false => {
                self.is_aggregated = false;
                port_change::DOWN
            }
        };
        // the number of the port is in the upper half of byte 8
        self.report(Event::Port, subtype, &[0, 0, 0, 0, 0, 0, 0, 0, 1 << 4]);
    }
}
