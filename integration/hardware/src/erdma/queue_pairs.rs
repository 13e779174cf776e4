// SPDX-License-Identifier: Apache-2.0
//! Queue pairs: their queues, states and peers.

use super::{Mac, translation::Pages};
use crate::memory::Memory;
use std::time::Duration;

/// Bytes of a slot of the send or the receive queue (`SQEBB_SIZE`, `RQE_SIZE`).
pub const SLOT: u64 = 32;

/// The most slots of a request (`ERDMA_MAX_WQEBB_PER_SQE`).
pub const MAX_SLOTS: u16 = 4;

/// The largest depth of a queue, as a power of two: ring positions have 16 bits.
pub const MAX_DEPTH_SHIFT: u32 = 15;

/// A ring of a guest. The guest posts slots, and the function consumes them.
#[derive(Debug)]
pub struct Ring {
    pages: Pages,
    depth: u32,
    taken: u16,
    posted: u16,
}

impl Ring {
    /// Creates a ring of `1 << depth_shift` slots. Returns `None` if `depth_shift` is above [`MAX_DEPTH_SHIFT`].
    pub fn new(pages: Pages, depth_shift: u32) -> Option<Ring> {
        (depth_shift <= MAX_DEPTH_SHIFT).then(|| Ring {
            pages,
            depth: 1 << depth_shift,
            taken: 0,
            posted: 0,
        })
    }

    /// Removes all slots.
    pub fn clear(&mut self) {
        (self.taken, self.posted) = (0, 0);
    }

    /// Handles a doorbell: the guest has posted all slots before `position`. Returns false if more slots are pending
    /// than the ring has.
    pub fn post(&mut self, position: u16) -> bool {
        let is_possible = u32::from(position.wrapping_sub(self.taken)) <= self.depth;
        if is_possible {
            self.posted = position;
        }
        is_possible
    }

    /// The position of the next slot that the function has not consumed.
    pub fn position(&self) -> u16 {
        self.taken
    }

    /// Number of slots that the guest posted and the function has not consumed.
    pub fn pending(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Consumes `slots` slots, at most the number of pending ones.
    pub fn take(&mut self, slots: u16) {
        self.taken = self.taken.wrapping_add(slots.min(self.pending()));
    }

    /// Reads the slot that is `slot` positions after the next unconsumed one. Returns `None` if its memory is not
    /// mapped.
    pub fn read(&self, memory: &Memory, slot: u16) -> Option<[u8; SLOT as usize]> {
        let index = u32::from(self.taken.wrapping_add(slot)) & (self.depth - 1);
        let address = self.pages.entry(memory, u64::from(index), SLOT)?;
        let mut bytes = [0; SLOT as usize];
        memory.read(address, &mut bytes).ok()?;
        Some(bytes)
    }
}

/// The state of a queue pair. RoCE v2 has all states, iWARP only `Init`, `ReadyToSend` and `Error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The state after creation.
    Reset = 0,
    /// Requests may be posted to its receive queue.
    Init = 1,
    /// The queue pair receives.
    ReadyToReceive = 2,
    /// The queue pair sends and receives.
    ReadyToSend = 3,
    /// The queue pair receives, and executes no new send request.
    SendQueueDrained = 4,
    /// The queue pair receives; its send queue is in error.
    SendQueueError = 5,
    /// All requests are flushed.
    Error = 6,
}

impl State {
    /// Converts a state of RoCE v2, `ERDMA_QPS_ROCEV2_*`. Returns `None` for other numbers.
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
    /// Reliable connection (RC).
    Reliable,
    /// Unreliable datagrams (UD), and QP 1.
    Datagram,
}

/// The address of another function on a RoCE v2 fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The index of the sender's GID in its GID table.
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

/// The peer to which a reliable queue pair is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Not connected yet.
    None,
    /// iWARP: the queue pair with this cookie.
    Cookie(u32),
    /// RoCE v2: the queue pair with this number, on the function with the address.
    Address(AddressVector, u32),
}

/// The progress of the next request of a send queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempt {
    /// Time of the first attempt.
    pub since: Option<Duration>,
    /// Time of the next attempt.
    pub not_before: Option<Duration>,
    /// Number of times that the request's message was lost.
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
    /// iWARP: the queue pair's cookie, which identifies it on the fabric.
    pub cookie: u32,
    /// The queue pair's state.
    pub state: State,
    /// The peer to which the queue pair is connected.
    pub peer: Peer,
    /// The queue key that a datagram to this queue pair must contain.
    pub key: u32,
    /// First packet sequence numbers of the send and the receive queue. The model stores them but has no packets.
    pub sequence: (u32, u32),
    /// The next request of the send queue.
    pub attempt: Attempt,
    /// True if the fabric has the queue pair in its list of queue pairs that can continue.
    pub is_ready: bool,
    /// Time at which the fabric wakes the queue pair.
    pub timer: Option<Duration>,
}
