// SPDX-License-Identifier: Apache-2.0
//! Completion queues (`struct mlx5_cqe64`).

use super::{
    fields::{Field, field},
    pages::Pages,
    status::Status,
};
use crate::{
    arming::Arming,
    memory::{Memory, Unmapped},
};

/// `CREATE_CQ`.
pub const CREATE: u16 = 0x400;
pub(super) const DESTROY: u16 = 0x401;

const PAGES: usize = 0x110;

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

/// Bytes of a completion.
pub const COMPLETION: usize = 64;
const MAX_LOG_SIZE: u32 = 22;
const MAX_LOG_PAGE: u32 = 20;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pages: Pages,
    log_size: u32,
    /// The size of an entry: 64 bytes, or 128 bytes with the contents in the second half.
    entry: u64,
    /// The number of the event queue.
    pub(super) events: u32,
    pub(super) arming: Arming,
}

impl CompletionQueue {
    /// Creates the queue that `CREATE_CQ` describes.
    pub(super) fn new(input: &[u8]) -> Result<CompletionQueue, Status> {
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

    /// Writes a completion into the next entry.
    pub(super) fn push(
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
