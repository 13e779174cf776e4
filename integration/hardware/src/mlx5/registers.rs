// SPDX-License-Identifier: Apache-2.0
//! BAR 0: the initialization segment (`struct mlx5_init_seg`), followed by the doorbell pages (UAR).

use super::fields::{Field, field};
use crate::pci;
use std::time::Duration;

/// The size of BAR 0.
pub const BAR_SIZE: u64 = 32 << 20;
/// The bytes of the initialization segment.
pub const SIZE: usize = 0x2000;
/// The bytes of a doorbell page.
pub const PAGE: u64 = 4096;
/// The number of the first doorbell page that a driver can allocate.
pub const FIRST_PAGE: u32 = 16;
/// The offset of the completion queues' doorbell in a doorbell page.
pub const COMPLETION_DOORBELL: u64 = 0x20;
/// The offset of the send queues' doorbells in a doorbell page. They extend to the end of the page.
pub const SEND_DOORBELLS: u64 = 0x800;
/// The bytes of each doorbell of a send queue.
pub const SEND_DOORBELL: u64 = 0x100;
/// The number of pages of BAR 0.
pub const PAGES: u32 = (BAR_SIZE / PAGE) as u32;

/// The firmware's version: 16.35.1012.
const FIRMWARE: u32 = 35 << 16 | 16;
const SUBMINOR: u32 = 1012;
const COMMAND_INTERFACE: u32 = 5;
const QUEUE_HIGH: usize = 0x10;
const QUEUE_LOW: usize = 0x14;
/// The logarithms of the number of command queue entries and of the bytes of each entry.
const QUEUE_SIZES: u32 = 5 << 4 | 6;
const INTERFACE: Field = field(21, 3);
/// The doorbell of the command queue.
pub const COMMAND_DOORBELL: u64 = 0x18;
const HEALTH_FIRMWARE: usize = 0x230;
/// `synd` of the health buffer, between `irisc_index` and `ext_synd`.
const HEALTH_SYNDROME: usize = 0x23d;
const TIMER: usize = 0x1000;
const HEALTH_COUNTER: usize = 0x1010;

/// The registers of a function.
#[derive(Debug)]
pub struct Registers {
    bytes: Box<[u8; SIZE]>,
}

impl Default for Registers {
    /// The registers after a reset, with the firmware started.
    fn default() -> Registers {
        let mut registers = Registers {
            bytes: Box::new([0; SIZE]),
        };
        registers.put(0, FIRMWARE);
        registers.put(4, COMMAND_INTERFACE << 16 | SUBMINOR);
        registers.put(QUEUE_LOW, QUEUE_SIZES);
        registers.put(HEALTH_FIRMWARE, FIRMWARE);
        registers
    }
}

impl Registers {
    fn put(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Sets the syndrome that the firmware reports in the health buffer. 0 means no syndrome.
    pub fn set_syndrome(&mut self, syndrome: u8) {
        self.bytes[HEALTH_SYNDROME] = syndrome;
    }

    /// The address of the command queue.
    pub fn command_queue(&self) -> u64 {
        field(QUEUE_HIGH * 8, 52).get(&*self.bytes) << 12
    }

    /// Reads registers at `offset`. The timer and the health counter grow with `uptime`.
    pub fn read(&mut self, uptime: Duration, offset: u64, data: &mut [u8]) {
        let ticks = uptime.as_nanos() as u64;
        self.put(TIMER, (ticks >> 32) as u32);
        self.put(TIMER + 4, ticks as u32);
        self.put(HEALTH_COUNTER, (uptime.as_millis() / 100) as u32);
        pci::read(&*self.bytes, offset, data);
    }

    /// Writes registers. The driver can write the address of the command queue and the type of the interface. A
    /// write to another register has no effect.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in pci::positions(offset, data) {
            if (QUEUE_HIGH..QUEUE_LOW + 4).contains(&at) {
                self.bytes[at] = byte;
            }
        }
        let low = self.bytes[QUEUE_LOW..QUEUE_LOW + 4].to_vec();
        let interface = INTERFACE.get32(&low) << 8;
        let address = (u32::from_be_bytes([low[0], low[1], low[2], 0])) & !0xfff;
        self.put(QUEUE_LOW, address | interface | QUEUE_SIZES);
    }
}
