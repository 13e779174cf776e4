// SPDX-License-Identifier: Apache-2.0
//! Event queues (`struct mlx5_eqe`). An entry belongs to the driver if its owner bit equals the lap's bit.

use super::{
    commands::Status,
    fields::{Field, field, numbers},
    function::Function,
};
use crate::{interrupts::Vectors, memory::Memory};

/// Bytes of an entry.
const ENTRY: u64 = 64;
const TYPE: usize = 1;
const SUBTYPE: usize = 3;
const DATA: usize = 32;
const OWNER: usize = 63;

/// The numbers of event queues are 1 to `MAX_QUEUES - 1`.
const MAX_QUEUES: u32 = 128;
const MAX_LOG_SIZE: u32 = 18;

const CONTEXT: usize = 0x80;
const LOG_SIZE: Field = field(0x63, 5).within(CONTEXT);
const VECTOR: Field = field(0xb4, 12).within(CONTEXT);
const LOG_PAGE: Field = field(0xc3, 5).within(CONTEXT);
const OFFSET: Field = field(0x54, 6).within(CONTEXT);
const MASK: usize = 0x58;
const PAGES: usize = 0x110;
const NUMBER: Field = field(0x58, 8);

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

/// A list of pages of guest memory that contain the entries of an event, completion or work queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    addresses: Vec<u64>,
    log_page: u32,
    offset: u64,
}

impl Pages {
    /// Creates the list of pages for `size` bytes from the addresses in `input`, which begin at the byte `at`. The
    /// first entry is `offset` 64ths of a page after the start of the first page. Returns `None` if `input` has too few
    /// pages.
    pub fn new(input: &[u8], at: usize, log_page: u32, offset: u64, size: u64) -> Option<Pages> {
        let log_page = log_page + 12;
        let offset = offset << (log_page - 6);
        let count = (offset + size).div_ceil(1u64.checked_shl(log_page)?) as usize;
        let addresses: Vec<u64> = numbers(input, at)
            .take(count)
            .map(|it| it & !0xfff)
            .collect();
        (addresses.len() == count).then_some(Pages {
            addresses,
            log_page,
            offset,
        })
    }

    /// The address of the byte `at`. Returns an address outside the guest's memory if the list has no such page.
    pub fn address(&self, at: u64) -> u64 {
        let at = at.wrapping_add(self.offset);
        let page = (self.addresses).get((at >> self.log_page) as usize);
        page.map_or(u64::MAX, |page| {
            page.wrapping_add(at & ((1 << self.log_page) - 1))
        })
    }
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
    fn new(input: &[u8]) -> Result<EventQueue, Status> {
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
    fn has(&self, event: Event) -> bool {
        let bit = event as usize;
        (self.mask.get(bit / 64)).is_some_and(|word| word >> (bit % 64) & 1 == 1)
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

impl Function {
    /// `CREATE_EQ`.
    pub(super) fn create_event_queue(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Status> {
        let free = (1..MAX_QUEUES).find(|number| !self.events.contains_key(number));
        let number = free.ok_or(Status::Limit)?;
        self.events.insert(number, EventQueue::new(input)?);
        NUMBER.put(output, number.into());
        Ok(())
    }

    /// `DESTROY_EQ`.
    pub(super) fn destroy_event_queue(&mut self, input: &[u8]) -> Result<(), Status> {
        let gone = self.events.remove(&NUMBER.get32(input));
        gone.map(drop).ok_or(Status::Resource)
    }

    /// `QUERY_EQ`.
    pub(super) fn query_event_queue(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Status> {
        let queue = self.events.get(&NUMBER.get32(input));
        let queue = queue.ok_or(Status::Resource)?;
        LOG_SIZE.put(output, queue.log_size.into());
        VECTOR.put(output, queue.vector as u64);
        Ok(())
    }

    /// Reports an event to the queues that the driver subscribed to it.
    pub(super) fn report(&mut self, event: Event, subtype: u8, data: &[u8]) {
        for queue in self.events.values_mut().filter(|queue| queue.has(event)) {
            queue.push(&self.memory, &self.vectors, event, subtype, data);
        }
    }

    /// Reports the end of the command in `slot` to the queues that existed before the command. A new queue gets no
    /// event of its own creation: the driver polls for the end of that command.
    pub(super) fn command_event(&mut self, slot: u32, before: &[u32]) {
        for (number, queue) in &mut self.events {
            if before.contains(number) && queue.has(Event::Command) {
                let data = (1u32 << slot).to_be_bytes();
                queue.push(&self.memory, &self.vectors, Event::Command, 0, &data);
            }
        }
    }
}
