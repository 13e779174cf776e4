// SPDX-License-Identifier: Apache-2.0
//! BAR 0: registers (`ERDMA_REGS_*`) and doorbells (`ERDMA_BAR_*`).

use super::{Mac, Protocol, fields::le32};
use crate::pci;
use std::ops::Range;

/// The size of BAR 0 in bytes.
pub const BAR_SIZE: u64 = 512 << 10;

/// The size in bytes of the registers, which precede the doorbells in BAR 0.
pub const SIZE: usize = 0x1000;

const VERSION: usize = 0;
const PROTOCOL: usize = 0xc;
/// Resets or starts the function.
pub const CONTROL: u64 = 0x10;
const STATUS: usize = 0x14;
const MAC_LOW: usize = 0x18;
const MAC_HIGH: usize = 0x1c;

/// The low half of the address of the command send queue. The next register contains the high half.
pub const COMMAND_SEND: usize = 0x20;
/// The low half of the address of the command completion queue. The next register contains the high
/// half.
pub const COMMAND_COMPLETIONS: usize = 0x28;
/// The depth of the command send queue and the command completion queue.
pub const COMMAND_DEPTH: usize = 0x30;
/// The depth of the command event queue.
pub const COMMAND_EVENTS_DEPTH: usize = 0x34;
/// The low half of the address of the command event queue. The next register contains the high half.
pub const COMMAND_EVENTS: usize = 0x38;
/// The low half of the address of the asynchronous event queue. The next register contains the high half.
pub const ASYNCHRONOUS: usize = 0x40;
/// The depth of the asynchronous event queue.
pub const ASYNCHRONOUS_DEPTH: usize = 0x48;
/// The registers that contain counters: offset, and the counter's position in the answer to `GET_STATS`.
const COUNTERS: [(u64, usize); 10] = [
    (0x88, 1),
    (0x90, 2),
    (0x98, 3),
    (0xa0, 4),
    (0xa8, 5),
    (0xc0, 6),
    (0xc8, 7),
    (0xd0, 8),
    (0xd8, 9),
    (0xe0, 10),
];

/// The doorbell of the command send queue.
pub const COMMAND_SEND_DOORBELL: u64 = 0x200;
/// The doorbell of the command completion queue.
pub const COMMAND_COMPLETIONS_DOORBELL: u64 = 0x300;
/// Doorbells of send queues.
pub const SEND_DOORBELLS: Range<u64> = 0x1000..0x61000;
/// Doorbells of receive queues.
pub const RECEIVE_DOORBELLS: Range<u64> = 0x61000..0x79000;
/// Doorbells of completion queues.
pub const COMPLETION_DOORBELLS: Range<u64> = 0x79000..BAR_SIZE;

/// The values of [`CONTROL`].
pub mod control {
    /// Resets the function.
    pub const RESET: u32 = 1;
    /// Starts the function with the queues that the registers name.
    pub const INIT: u32 = 2;
}

const RESET_DONE: u32 = 1;
const INIT_DONE: u32 = 2;

/// The registers of a function.
#[derive(Debug)]
pub struct Registers {
    bytes: Box<[u8; SIZE]>,
}

impl Registers {
    /// The registers after a reset.
    pub fn new(mac: Mac, protocol: Protocol) -> Registers {
        let mut registers = Registers {
            bytes: Box::new([0; SIZE]),
        };
        registers.put(VERSION, 1);
        registers.put(PROTOCOL, (protocol == Protocol::Roce).into());
        let [a, b, c, d, e, f] = mac;
        registers.put(MAC_LOW, u32::from_be_bytes([c, d, e, f]));
        registers.put(MAC_HIGH, u32::from_be_bytes([0, 0, a, b]));
        registers.put(STATUS, RESET_DONE);
        registers
    }

    fn put(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets the bit that shows the driver that the function has started.
    pub fn set_started(&mut self) {
        self.put(STATUS, RESET_DONE | INIT_DONE);
    }

    /// The register at offset `at`.
    pub fn get(&self, at: usize) -> u32 {
        le32(&*self.bytes, at)
    }

    /// Returns the address whose low half is in the register at offset `low`.
    pub fn address(&self, low: usize) -> u64 {
        u64::from(self.get(low + 4)) << 32 | u64::from(self.get(low))
    }

    /// Reads registers. Doorbells read as zero.
    pub fn read(&self, counters: &[u64], offset: u64, data: &mut [u8]) {
        pci::read(&*self.bytes, offset, data);
        let counter = COUNTERS
            .iter()
            .find(|(at, _)| (*at..*at + 8).contains(&offset));
        if let Some((at, position)) = counter {
            let value = counters.get(*position).copied().unwrap_or(0);
            pci::read(&value.to_le_bytes(), offset - at, data);
        }
    }

    /// Writes registers. A write to a read-only register has no effect.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in pci::positions(offset, data) {
            let is_read_only = (VERSION..COMMAND_SEND).contains(&at);
            if at < SIZE && !is_read_only {
                self.bytes[at] = byte;
            }
        }
    }
}
