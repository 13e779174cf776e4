// SPDX-License-Identifier: Apache-2.0
//! Event queues (`struct mlx5_eqe`). An entry belongs to the driver if its owner bit equals the lap's bit.

use super::{
    fields::{Field, field, numbers},
    pages::Pages,
    status::Status,
};
use crate::{interrupts::Vectors, memory::Memory};

/// Bytes of an entry.
const ENTRY: u64 = 64;
const TYPE: usize = 1;
const SUBTYPE: usize = 3;
const DATA: usize = 32;
const OWNER: usize = 63;

const MAX_LOG_SIZE: u32 = 18;

const CONTEXT: usize = 0x80;
const LOG_SIZE: Field = field(0x63, 5).within(CONTEXT);
const VECTOR: Field = field(0xb4, 12).within(CONTEXT);
const LOG_PAGE: Field = field(0xc3, 5).within(CONTEXT);
const OFFSET: Field = field(0x54, 6).within(CONTEXT);
const MASK: usize = 0x58;
const PAGES: usize = 0x110;

/// `MLX5_EVENT_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion queue has an entry for which the driver requested an event.
    Completion = 0,
    /// The state of the port changed.
    Port = 9,
    /// A command has ended.
    Command = 0xa,
    /// The peer of a queue pair named memory to which the peer has no access.
    Access = 0x11,
    /// A queue pair in error takes no more requests of its shared receive queue.
    LastRequest = 0x13,
    /// A shared receive queue has fewer requests than its limit.
    Limit = 0x14,
}

/// `MLX5_PORT_CHANGE_SUBTYPE_*`.
pub mod port_change {
    /// The link is down.
    pub const DOWN: u8 = 1;
    /// The link is up.
    pub const ACTIVE: u8 = 4;
}

/// An event queue.
#[derive(Debug)]
pub struct EventQueue {
    pages: Pages,
    log_size: u32,
    vector: usize,
    mask: Vec<u64>,
    produced: u64,
}

impl EventQueue {
    /// The queue that `CREATE_EQ` describes.
    pub(super) fn new(input: &[u8]) -> Result<EventQueue, Status> {
        let (log_size, log_page) = (LOG_SIZE.get32(input), LOG_PAGE.get32(input));
        if log_size > MAX_LOG_SIZE || log_page > 20 {
            return Err(Status::Parameter);
        }
        let pages = Pages::new(input, PAGES, log_page, OFFSET.get(input), ENTRY << log_size);
        Ok(EventQueue {
            pages: pages.ok_or(Status::InputLength)?,
            log_size,
            vector: VECTOR.get(input) as usize,
            mask: numbers(input, MASK).take(4).collect(),
            produced: 0,
        })
    }

    /// Returns true if the driver subscribed this queue to the event.
    pub(super) fn has(&self, event: Event) -> bool {
        let bit = event as usize;
        (self.mask.get(bit / 64)).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Writes the answer to `QUERY_EQ`.
    pub(super) fn query(&self, output: &mut [u8]) {
        LOG_SIZE.put(output, self.log_size.into());
        VECTOR.put(output, self.vector as u64);
    }

    /// Writes an entry, and raises the interrupt.
    pub(super) fn push(
        &mut self,
        memory: &Memory,
        vectors: &Vectors,
        event: Event,
        subtype: u8,
        data: &[u8],
    ) {
        let mut entry = [0; ENTRY as usize];
        entry[TYPE] = event as u8;
        entry[SUBTYPE] = subtype;
        entry[DATA..DATA + data.len()].copy_from_slice(data);
        entry[OWNER] = (self.produced >> self.log_size & 1) as u8;
        let slot = self.produced & ((1 << self.log_size) - 1);
        let address = self.pages.address(slot * ENTRY);
        let written = memory.publish_by_end(address, &entry);
        if written.is_err() {
            log::warn!("an event queue is not in memory");
        }
        self.produced += 1;
        vectors.raise(self.vector);
    }
}
