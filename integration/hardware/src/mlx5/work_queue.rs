// SPDX-License-Identifier: Apache-2.0
//! Send and receive queues.

use super::{
    fields::{Field, field},
    pages::Pages,
    status::Status,
};
use crate::memory::{Memory, Unmapped};
use std::sync::Arc;

const PAGES: usize = 0x110;

/// `sqc`, `rqc` and `rmpc`, in the input of `CREATE_SQ`, `CREATE_RQ` and `CREATE_RMP`.
pub(super) mod work {
    use super::{Field, field};
    const AT: usize = 0x100;
    const WQ: usize = AT + 0x180;
    pub(super) const COMPLETIONS: Field = field(0x48, 24).within(AT);
    pub(in super::super) const KIND: Field = field(0x0, 4).within(WQ);
    pub(super) const OFFSET: Field = field(0x2b, 5).within(WQ);
    /// The limit of a shared receive queue.
    pub(in super::super) const LIMIT: Field = field(0x30, 16).within(WQ);
    pub(in super::super) const DOMAIN: Field = field(0x48, 24).within(WQ);
    pub(super) const RECORD: Field = field(0x80, 64).within(WQ);
    pub(super) const LOG_STRIDE: Field = field(0x10c, 4).within(WQ);
    pub(super) const LOG_PAGE: Field = field(0x113, 5).within(WQ);
    pub(super) const LOG_SIZE: Field = field(0x11b, 5).within(WQ);
}

/// Bytes of a segment of a request.
pub const SEGMENT: usize = 16;
/// Bytes for the longest request, which has 63 segments.
const MAX_REQUEST: usize = 1024;
const SEGMENTS: Field = field(32 + 26, 6);
/// The type of a queue whose entries form a linked list.
const LIST: u64 = 0;
const NEXT_ENTRY: Field = field(16, 16);
const MAX_LOG_PAGE: u32 = 20;

/// The opcodes of commands that make and destroy send and receive queues.
pub mod opcode {
    /// `CREATE_SQ`.
    pub const CREATE_SQ: u16 = 0x904;
    pub(in super::super) const DESTROY_SQ: u16 = 0x906;
    /// `CREATE_RQ`.
    pub const CREATE_RQ: u16 = 0x908;
    pub(in super::super) const DESTROY_RQ: u16 = 0x90a;
    /// `CREATE_RMP`.
    pub const CREATE_RMP: u16 = 0x90c;
    pub(in super::super) const DESTROY_RMP: u16 = 0x90e;
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
    /// Creates the queue that `CREATE_SQ`, `CREATE_RQ` or `CREATE_RMP` describes.
    pub(super) fn new(input: &[u8]) -> Result<WorkQueue, Status> {
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
