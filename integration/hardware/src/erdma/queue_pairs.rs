// SPDX-License-Identifier: Apache-2.0
//! Queue pairs: their queues, their states, and the peers that they are connected to.

use super::{Mac, translation::Pages};
use crate::memory::Memory;
use std::time::Duration;

/// Bytes of a slot of either queue (`SQEBB_SIZE`, `RQE_SIZE`).
pub const SLOT: u64 = 32;

/// The most slots of a request (`ERDMA_MAX_WQEBB_PER_SQE`).
pub const MAX_SLOTS: u16 = 4;

/// The largest queue, as a power of two: positions have 16 bits.
pub const MAX_DEPTH_SHIFT: u32 = 15;

/// The queue of a guest. The guest posts, and the function takes.
#[derive(Debug)]
pub struct Ring {
    pages: Pages,
    depth: u32,
    taken: u16,
    posted: u16,
}

impl Ring {
    /// A queue of `1 << depth_shift` slots. None above [`MAX_DEPTH_SHIFT`].
    pub fn new(pages: Pages, depth_shift: u32) -> Option<Ring> {
        (depth_shift <= MAX_DEPTH_SHIFT).then(|| Ring {
            pages,
            depth: 1 << depth_shift,
            taken: 0,
            posted: 0,
        })
    }

    /// Empties it.
    pub fn clear(&mut self) {
        (self.taken, self.posted) = (0, 0);
    }

    /// Handles a doorbell: the guest has posted all slots before `position`. False if there are more than the queue has.
    pub fn post(&mut self, position: u16) -> bool {
        let is_possible = u32::from(position.wrapping_sub(self.taken)) <= self.depth;
        if is_possible {
            self.posted = position;
        }
        is_possible
    }

    /// The position of the next slot that is not taken.
    pub fn position(&self) -> u16 {
        self.taken
    }

    /// The slots that are posted and not taken.
    pub fn pending(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Takes `slots` slots, at most those that are pending.
    pub fn take(&mut self, slots: u16) {
        self.taken = self.taken.wrapping_add(slots.min(self.pending()));
    }

    /// Reads the `slot`th slot from the next that is not taken. None if it is not in memory.
    pub fn read(&self, memory: &Memory, slot: u16) -> Option<[u8; SLOT as usize]> {
        let index = u32::from(self.taken.wrapping_add(slot)) & (self.depth - 1);
        let address = self.pages.entry(memory, u64::from(index), SLOT)?;
        let mut bytes = [0; SLOT as usize];
        memory.read(address, &mut bytes).ok()?;
        Some(bytes)
    }
}

/// The state of a queue pair: those of RoCE v2. iWARP has `Init`, `ReadyToSend` and `Error` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Made.
    Reset = 0,
    /// Requests may be posted to its receive queue.
    Init = 1,
    /// Receives.
    ReadyToReceive = 2,
    /// Sends and receives.
    ReadyToSend = 3,
    /// Receives, and executes no new request.
    SendQueueDrained = 4,
    /// Receives; its send queue is in error.
    SendQueueError = 5,
    /// All requests are flushed.
    Error = 6,
}

impl State {
    /// A state of RoCE v2, `ERDMA_QPS_ROCEV2_*`. None for other numbers.
    pub fn of_roce(number: u32) -> Option<State> {
        let states = [
            State::Reset,
            State::Init,
            State::ReadyToReceive,
            State::ReadyToSend,
            State::SendQueueDrained,
            State::SendQueueError,
            State::Error,
        ];
        states.get(number as usize).copied()
    }

    /// Returns true if the queue pair receives.
    pub fn receives(self) -> bool {
        !matches!(self, State::Reset | State::Init | State::Error)
    }
}

/// The type of a queue pair, `enum erdma_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// RC.
    Reliable,
    /// UD, and QP 1.
    Datagram,
}

/// The address of another function on a RoCE v2 fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The position of the sender's GID in its table.
    pub source: u16,
    /// The hardware address of the destination, or of a router.
    pub mac: Mac,
    /// The GID of the destination.
    pub gid: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Who a reliable queue pair is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// None yet.
    None,
    /// iWARP: the one with this cookie.
    Cookie(u32),
    /// RoCE v2: that with this number, on the function with the address.
    Address(AddressVector, u32),
}

/// The progress of the next request of a send queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempt {
    /// When it was tried first.
    pub since: Option<Duration>,
    /// When it is tried again.
    pub not_before: Option<Duration>,
    /// Number of times that it was lost.
    pub lost: u32,
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    /// The queue pair's number.
    pub number: u32,
    /// The queue pair's type.
    pub service: Service,
    /// The queue pair's protection domain.
    pub domain: u32,
    /// The send queue.
    pub send: Ring,
    /// The receive queue.
    pub receive: Ring,
    /// The completion queue of the send queue.
    pub send_completions: u32,
    /// The completion queue of the receive queue.
    pub receive_completions: u32,
    /// iWARP: its identity on the fabric.
    pub cookie: u32,
    /// The queue pair's state.
    pub state: State,
    /// Who it is connected to.
    pub peer: Peer,
    /// The key that datagrams to it have.
    pub key: u32,
    /// First packet sequence numbers, of the send and of the receive queue. The model has no packets.
    pub sequence: (u32, u32),
    /// The next request of the send queue.
    pub attempt: Attempt,
    /// True if the fabric has it in its list of queue pairs that may go on.
    pub is_ready: bool,
    /// When the fabric wakes it.
    pub timer: Option<Duration>,
}
