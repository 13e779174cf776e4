// SPDX-License-Identifier: Apache-2.0
//! Completion queues (`struct erdma_cqe`, `ERDMA_CQDB_*`).

use super::{fields::bits, translation::Pages};
use crate::{
    arming::Arming,
    memory::{Memory, Unmapped},
};

/// Bytes of an entry.
pub const ENTRY: u64 = 32;

/// The largest depth of a completion queue, as a power of two (`ERDMA_CMD_DEV_CAP_MAX_CQE`).
pub const MAX_DEPTH_SHIFT: u32 = 20;

/// Status of a completed request, `enum erdma_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request succeeded.
    Success = 0,
    /// The peer's receive request cannot be read.
    ReceiveFormat = 2,
    /// The peer does not have the key.
    ReceiveKey = 3,
    /// The addresses are outside the peer's memory region.
    ReceiveBounds = 4,
    /// The peer's key does not allow the access.
    ReceiveRights = 5,
    /// The peer's key belongs to another protection domain.
    ReceiveDomain = 6,
    /// The addresses in the peer's memory wrap around.
    ReceiveWrap = 7,
    /// The function cannot read or decode the request, or the queue pair cannot execute its operation.
    SendFormat = 8,
    /// The function does not have the key of the request.
    SendKey = 10,
    /// The addresses are outside the requester's memory region.
    SendBounds = 11,
    /// The requester's key does not allow the access.
    SendRights = 12,
    /// The requester's key belongs to another protection domain.
    SendDomain = 13,
    /// The addresses in the requester's memory wrap around.
    SendWrap = 14,
    /// The queue pair was in error before the request was executed.
    Flushed = 15,
    /// The peer did not answer in time, or a message was lost too often.
    RetryExceeded = 16,
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// `enum erdma_opcode`.
    pub opcode: u8,
    /// True if the request was posted to the receive queue.
    pub is_receive: bool,
    /// Status of the request.
    pub status: Status,
    /// The position of the request in its queue.
    pub index: u16,
    /// The queue pair.
    pub queue_pair: u32,
    /// The immediate data, or the key that the peer invalidated.
    pub extra: u32,
    /// Bytes of the message.
    pub size: u32,
    /// For a datagram: network header type, service level, and the sender's queue pair number.
    pub datagram: u32,
    /// True if the peer solicits an event.
    pub is_solicited: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pages: Pages,
    depth: u32,
    arming: Arming,
    /// The number of the event queue that gets this queue's events.
    pub events: u32,
}

impl CompletionQueue {
    /// Creates a queue of `1 << depth_shift` entries. Returns `None` if `depth_shift` is above [`MAX_DEPTH_SHIFT`].
    pub fn new(pages: Pages, depth_shift: u32, events: u32) -> Option<CompletionQueue> {
        (depth_shift <= MAX_DEPTH_SHIFT).then(|| CompletionQueue {
            pages,
            depth: 1 << depth_shift,
            arming: Arming::default(),
            events,
        })
    }

    /// Writes an entry. Its owner bit is 1 in the first lap, and changes with each lap. Returns true if the function
    /// must raise an event.
    ///
    /// # Errors
    /// The queue's memory is not mapped.
    pub fn push(&mut self, memory: &Memory, completion: &Completion) -> Result<bool, Unmapped> {
        let produced = self.arming.produced();
        let lap = u32::from(produced & self.depth == 0);
        let header = lap << 31
            | u32::from(completion.opcode) << 16
            | u32::from(completion.is_receive) << 8
            | completion.status as u32;
        let words = [
            header,
            u32::from(completion.index),
            completion.queue_pair,
            completion.extra,
            completion.size,
            0,
            0,
            completion.datagram,
        ];
        let entry = entry(words);
        let slot = u64::from(produced & (self.depth - 1));
        let address = self.pages.entry(memory, slot, ENTRY).ok_or(Unmapped)?;
        memory.publish(address, &entry)?;
        let is_solicited = completion.is_solicited || completion.status != Status::Success;
        self.arming.add(is_solicited);
        Ok(self.arming.take())
    }

    /// Handles a doorbell, by which the driver states how many entries it has read, and can request an event. Returns
    /// true if the function must raise an event at once, because an entry of the requested kind is unread.
    pub fn doorbell(&mut self, value: u64) -> bool {
        if bits(value, 31, 31) == 0 {
            return false;
        }
        let read = bits(value, 23, 0) as u32;
        self.arming.arm(bits(value, 30, 30) != 0, read)
    }
}

/// Encodes an entry: its words are big-endian.
pub fn entry(words: [u32; 8]) -> [u8; ENTRY as usize] {
    let mut entry = [0; ENTRY as usize];
    for (bytes, word) in entry.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    entry
}
