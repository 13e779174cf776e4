// SPDX-License-Identifier: Apache-2.0
//! One function: a port of a card.

use super::{
    capabilities::Capabilities,
    completion_queue::CompletionQueue,
    counters::Counters,
    event_queue::EventQueue,
    keys::Keys,
    objects::Objects,
    place::Place,
    ports::Ports,
    queue_pair::QueuePair,
    registers::{self, Registers},
    vport::Vport,
    work_queue::WorkQueue,
};
use crate::{interrupts::Vectors, memory::Memory};
use std::{collections::BTreeMap, time::Instant};

const FIRST_DOORBELL: u64 = registers::FIRST_PAGE as u64 * registers::PAGE;

/// The state of the port's cable and of the function's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if frames pass through the cable.
    pub is_up: bool,
    /// True if the function responds on its bus. An absent function does not read or write memory, and does not raise
    /// an interrupt.
    pub is_present: bool,
}

/// A function.
#[derive(Debug)]
pub struct Function {
    /// The hardware address as text, for log messages.
    pub name: String,
    /// The function's place.
    pub place: Place,
    /// The function's link.
    pub link: Link,
    /// The function's registers.
    pub registers: Registers,
    /// The memory of the function's virtual machine.
    pub memory: Memory,
    /// The function's interrupts.
    pub vectors: Vectors,
    /// The function's virtual port.
    pub vport: Vport,
    /// The objects that the driver made.
    pub objects: Objects,
    /// The pages that the driver gave to the firmware.
    pub pages: Vec<u64>,
    /// True after `INIT_HCA`, until `TEARDOWN_HCA`.
    pub is_started: bool,
    /// The context of `CREATE_LAG` while the driver bonds the card's functions, else `None`.
    pub lag: Option<[u8; 8]>,
    /// True if the driver's LACPDUs request that the switch aggregate the function's link.
    pub(super) is_aggregated: bool,
    /// The capabilities that the driver added to the InfiniBand port.
    pub(super) added_capabilities: u32,
    pub(super) capabilities: Capabilities,
    pub(super) ports: Ports,
    pub(super) events: BTreeMap<u32, EventQueue>,
    pub(super) completions: BTreeMap<u32, CompletionQueue>,
    pub(super) sends: BTreeMap<u32, WorkQueue>,
    pub(super) receives: BTreeMap<u32, WorkQueue>,
    /// The shared receive queues.
    pub(super) shared: BTreeMap<u32, WorkQueue>,
    pub(super) counters: Counters,
    pub(super) keys: Keys,
    pub(super) pairs: BTreeMap<u32, QueuePair>,
    /// The queue pairs whose doorbells the driver rang, or that failed. The fabric removes them when it executes their
    /// requests.
    pub(super) rung: Vec<u32>,
    /// Frames that the function sent. The fabric removes them when it delivers them.
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
            shared: BTreeMap::new(),
            counters: Counters::default(),
            keys: Keys::default(),
            pairs: BTreeMap::new(),
            rung: Vec::new(),
            outgoing: Vec::new(),
            begin: Instant::now(),
        }
    }

    /// Resets the function and removes all objects that the driver made. Memory, interrupts and the link are kept.
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

    /// Writes to BAR 0: a register or a doorbell.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        match (offset, data.first_chunk()) {
            (registers::COMMAND_DOORBELL, Some(slots)) => {
                self.commands_posted(u32::from_be_bytes(*slots));
            }
            _ if offset >= FIRST_DOORBELL => self.doorbell(offset % registers::PAGE, data),
            _ => self.registers.write(offset, data),
        }
    }

    /// Handles the doorbell at `offset` of a doorbell page: two 32-bit numbers. Doorbells of event queues have no
    /// effect, because each event raises an interrupt.
    fn doorbell(&mut self, offset: u64, data: &[u8]) {
        let Some(bytes) = data.first_chunk::<8>() else {
            return;
        };
        let value = u64::from_be_bytes(*bytes);
        match offset {
            registers::COMPLETION_DOORBELL => {
                self.completions_armed((value >> 32) as u32, value as u32);
            }
            // a driver that writes a whole request into the doorbell page begins with the doorbell
            registers::SEND_DOORBELLS.. if offset.is_multiple_of(registers::SEND_DOORBELL) => {
                match value as u32 >> 8 {
                    number if self.pairs.contains_key(&number) => self.rung.push(number),
                    number => self.posted(number),
                }
            }
            _ => {}
        }
    }
}
