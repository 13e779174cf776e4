// SPDX-License-Identifier: Apache-2.0
//! Completion queues (`struct mlx5_cqe64`), and the send and receive queues of Ethernet.

use super::{
    commands::Status,
    context,
    events::{Event, Pages},
    fields::{Field, field},
    function::Function,
    keys,
    pairs::{self, QueuePair},
};
use crate::{
    arming::Arming,
    memory::{Memory, Unmapped},
};
use std::sync::Arc;

const PAGES: usize = 0x110;
const NUMBER: Field = field(0x48, 24);

/// `cqc`, in the input of `CREATE_CQ`.
mod completion {
    use super::{Field, field};
    const AT: usize = 0x80;
    pub(super) const ENTRY_SIZE: Field = field(0x8, 3).within(AT);
    pub(super) const LOG_SIZE: Field = field(0x63, 5).within(AT);
    pub(super) const EVENTS: Field = field(0xa0, 32).within(AT);
    pub(super) const LOG_PAGE: Field = field(0xc3, 5).within(AT);
    pub(super) const OFFSET: Field = field(0x54, 6).within(AT);
}

/// `sqc`, `rqc` and `rmpc`, in the input of `CREATE_SQ`, `CREATE_RQ` and `CREATE_RMP`.
pub(super) mod work {
    use super::{Field, field};
    const AT: usize = 0x100;
    const WQ: usize = AT + 0x180;
    pub(super) const COMPLETIONS: Field = field(0x48, 24).within(AT);
    pub(super) const KIND: Field = field(0x0, 4).within(WQ);
    pub(super) const OFFSET: Field = field(0x2b, 5).within(WQ);
    /// The limit of a shared receive queue.
    pub(in super::super) const LIMIT: Field = field(0x30, 16).within(WQ);
    pub(in super::super) const DOMAIN: Field = field(0x48, 24).within(WQ);
    pub(super) const RECORD: Field = field(0x80, 64).within(WQ);
    pub(super) const LOG_STRIDE: Field = field(0x10c, 4).within(WQ);
    pub(super) const LOG_PAGE: Field = field(0x113, 5).within(WQ);
    pub(super) const LOG_SIZE: Field = field(0x11b, 5).within(WQ);
}

/// The state of a send or receive queue in the context that [`super::objects`] stores.
const STATE: Field = field(0x108, 4);
const READY: u64 = 1;
const FAILED: u64 = 3;

/// Bytes of a segment of a request.
pub const SEGMENT: usize = 16;
/// Bytes for the longest request, which has 63 segments.
const MAX_REQUEST: usize = 1024;
const SEGMENTS: Field = field(32 + 26, 6);
/// The doorbell bit with which the driver requests an event only for a solicited completion (`MLX5_CQ_DB_REQ_NOT_SOL`).
const ONLY_SOLICITED: u32 = 1 << 24;

/// Bytes of a completion.
pub const COMPLETION: usize = 64;
/// The type of a cyclic queue. Its entries consist only of data segments.
const CYCLIC: u64 = 1;
/// The type of a queue whose entries form a linked list.
const LIST: u64 = 0;
const NEXT_ENTRY: Field = field(16, 16);
const MAX_LOG_SIZE: u32 = 22;
const MAX_LOG_PAGE: u32 = 20;

/// The opcodes of commands that make and destroy queues.
pub mod opcode {
    /// `CREATE_CQ`.
    pub const CREATE_CQ: u16 = 0x400;
    pub(super) const DESTROY_CQ: u16 = 0x401;
    /// `CREATE_SQ`.
    pub const CREATE_SQ: u16 = 0x904;
    pub(super) const DESTROY_SQ: u16 = 0x906;
    /// `CREATE_RQ`.
    pub const CREATE_RQ: u16 = 0x908;
    pub(super) const DESTROY_RQ: u16 = 0x90a;
    /// `CREATE_RMP`.
    pub const CREATE_RMP: u16 = 0x90c;
    pub(super) const DESTROY_RMP: u16 = 0x90e;
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pages: Pages,
    log_size: u32,
    /// The size of an entry: 64 bytes, or 128 bytes with the contents in the second half.
    entry: u64,
    events: u32,
    arming: Arming,
}

impl CompletionQueue {
    fn new(input: &[u8]) -> Result<CompletionQueue, Status> {
        let log_size = completion::LOG_SIZE.get32(input);
        let log_page = completion::LOG_PAGE.get32(input);
        if log_size > MAX_LOG_SIZE || log_page > MAX_LOG_PAGE {
            return Err(Status::Parameter);
        }
        let entry = match completion::ENTRY_SIZE.get(input) {
            0 => 64,
            _ => 128,
        };
        let offset = completion::OFFSET.get(input);
        let pages = Pages::new(input, PAGES, log_page, offset, entry << log_size);
        Ok(CompletionQueue {
            pages: pages.ok_or(Status::InputLength)?,
            log_size,
            entry,
            events: completion::EVENTS.get32(input),
            arming: Arming::default(),
        })
    }

    fn push(
        &mut self,
        memory: &Memory,
        mut entry: [u8; COMPLETION],
        is_solicited: bool,
    ) -> Result<(), Unmapped> {
        let produced = self.arming.produced();
        entry[COMPLETION - 1] |= (produced >> self.log_size & 1) as u8;
        let slot = u64::from(produced & ((1 << self.log_size) - 1));
        let at = slot * self.entry + self.entry - COMPLETION as u64;
        self.arming.add(is_solicited);
        memory.publish_by_end(self.pages.address(at), &entry)
    }
}

/// A send or receive queue.
#[derive(Clone, Debug)]
pub struct WorkQueue {
    /// The memory of the queue. The two queues of a queue pair share it.
    pub pages: Arc<Pages>,
    /// The offset of the queue in its memory.
    pub base: u64,
    /// The number of entries, as a logarithm to base 2.
    pub log_size: u32,
    /// The number of the completion queue that gets this queue's completions.
    pub completions: u32,
    /// The size of an entry in bytes, as a logarithm to base 2.
    pub log_stride: u32,
    /// The address of this queue's doorbell record.
    pub record: u64,
    /// The number of completed entries.
    pub taken: u16,
    /// The number of the next entry, if the entries form a linked list (shared receive queue).
    pub next: Option<u16>,
}

impl WorkQueue {
    fn new(input: &[u8]) -> Result<WorkQueue, Status> {
        let (log_size, log_page) = (work::LOG_SIZE.get32(input), work::LOG_PAGE.get32(input));
        let log_stride = work::LOG_STRIDE.get32(input);
        if log_size > 16 || log_page > MAX_LOG_PAGE || !(4..=12).contains(&log_stride) {
            return Err(Status::Parameter);
        }
        let offset = work::OFFSET.get(input);
        let pages = Pages::new(input, PAGES, log_page, offset, 1 << (log_size + log_stride));
        Ok(WorkQueue {
            pages: Arc::new(pages.ok_or(Status::InputLength)?),
            base: 0,
            log_size,
            completions: work::COMPLETIONS.get32(input),
            log_stride,
            record: work::RECORD.get(input),
            taken: 0,
            next: (work::KIND.get(input) == LIST).then_some(0),
        })
    }

    /// The position of the next entry, as a completion reports it.
    pub fn index(&self) -> u16 {
        self.next.unwrap_or(self.taken)
    }

    /// Advances by one entry (`struct mlx5_wqe_srq_next_seg`).
    pub fn take(&mut self, memory: &Memory) {
        let mut segment = [0; SEGMENT];
        if self.next.is_some() && self.read(memory, &mut segment).is_ok() {
            self.next = Some(NEXT_ENTRY.get(&segment) as u16);
        }
        self.taken = self.taken.wrapping_add(1);
    }

    /// Number of entries that the driver posted and the function has not completed. The doorbell record contains the
    /// receive counter, followed by the send counter.
    pub fn pending(&self, memory: &Memory, is_send: bool) -> u16 {
        let at = self.record.wrapping_add(if is_send { 4 } else { 0 });
        let mut counter = [0; 4];
        match memory.read(at, &mut counter) {
            Ok(()) => {
                let posted = (u32::from_be_bytes(counter) as u16).wrapping_sub(self.taken);
                u32::from(posted).min(1 << self.log_size) as u16
            }
            Err(Unmapped) => 0,
        }
    }

    /// The next request of a send queue, with all its segments. Returns `None` if its memory is not mapped, or the
    /// request has no segment.
    pub fn next_request(&self, memory: &Memory) -> Option<Vec<u8>> {
        let mut request = [0; MAX_REQUEST];
        self.read(memory, &mut request[..SEGMENT]).ok()?;
        let len = SEGMENTS.get(&request) as usize * SEGMENT;
        self.read(memory, &mut request[..len]).ok()?;
        (len >= SEGMENT).then(|| request[..len].to_vec())
    }

    /// Reads the next entries into `into`, whose length is a multiple of 16.
    pub fn read(&self, memory: &Memory, into: &mut [u8]) -> Result<(), Unmapped> {
        let mask = (1u64 << (self.log_size + self.log_stride)) - 1;
        let start = u64::from(self.index()) << self.log_stride;
        for (offset, part) in (0..).step_by(16).zip(into.chunks_mut(16)) {
            let at = self.base + ((start + offset) & mask);
            memory.read(self.pages.address(at), part)?;
        }
        Ok(())
    }
}

impl Function {
    /// Creates, changes or destroys the queue, key or queue pair to which a successful command refers.
    pub(super) fn queues_changed(
        &mut self,
        code: u16,
        input: &[u8],
        output: &[u8],
    ) -> Result<(), Status> {
        let (made, gone) = (NUMBER.get32(output), NUMBER.get32(input));
        match code {
            opcode::CREATE_CQ => {
                self.completions.insert(made, CompletionQueue::new(input)?);
            }
            opcode::CREATE_SQ => {
                self.sends.insert(made, WorkQueue::new(input)?);
            }
            // the model has no queues of other kinds, and drops their data
            opcode::CREATE_RQ if work::KIND.get(input) == CYCLIC => {
                self.receives.insert(made, WorkQueue::new(input)?);
            }
            opcode::CREATE_RMP => {
                self.shared.insert(made, WorkQueue::new(input)?);
            }
            keys::CREATE => self.keys.add(made, input)?,
            keys::DESTROY => self.keys.remove(gone),
            pairs::CREATE => {
                self.pairs.insert(made, QueuePair::new(input)?);
            }
            pairs::DESTROY => drop(self.pairs.remove(&gone)),
            context::TO_ERROR => self.pair_failed(gone),
            context::TO_RESET => {
                if let Some(pair) = self.pairs.get_mut(&gone) {
                    pair.reset();
                }
            }
            opcode::DESTROY_CQ => drop(self.completions.remove(&gone)),
            opcode::DESTROY_SQ => drop(self.sends.remove(&gone)),
            opcode::DESTROY_RQ => drop(self.receives.remove(&gone)),
            opcode::DESTROY_RMP => drop(self.shared.remove(&gone)),
            _ => {}
        }
        Ok(())
    }

    /// Returns true if the driver has set the queue to the ready state. `create` is the opcode of the command that
    /// created the queue.
    pub(super) fn is_ready(&self, create: u16, number: u32) -> bool {
        let context = self.objects.get(create, number);
        context.is_some_and(|it| STATE.get(it) == READY)
    }

    /// Sets the queue to the error state because of one of its entries.
    pub(super) fn fail_queue(&mut self, create: u16, number: u32) {
        if let Some(context) = self.objects.get_mut(create, number) {
            STATE.put(context, FAILED);
        }
    }

    /// Writes a completion, and an event if the driver requested one. `is_solicited` is true for a solicited completion
    /// and for an error: a driver can request an event for these only.
    pub(super) fn complete(&mut self, number: u32, entry: [u8; COMPLETION], is_solicited: bool) {
        let Some(queue) = self.completions.get_mut(&number) else {
            return;
        };
        if queue.push(&self.memory, entry, is_solicited).is_err() {
            log::warn!("{}: completion queue {number} is not in memory", self.name);
        }
        if queue.arming.take() {
            self.completion_event(number);
        }
    }

    fn completion_event(&mut self, number: u32) {
        let Some(queue) = self.completions.get(&number) else {
            return;
        };
        if let Some(events) = self.events.get_mut(&queue.events) {
            let mut data = [0; 28];
            data[24..].copy_from_slice(&number.to_be_bytes());
            events.push(&self.memory, &self.vectors, Event::Completion, 0, &data);
        }
    }

    /// Handles the doorbell with which the driver requests an event of a completion queue. `position` is the number of
    /// completions that the driver has read.
    pub(super) fn completions_armed(&mut self, position: u32, number: u32) {
        let number = number & 0xff_ffff;
        let Some(queue) = self.completions.get_mut(&number) else {
            return;
        };
        if queue.arming.arm(position & ONLY_SOLICITED != 0, position) {
            self.completion_event(number);
        }
    }
}
