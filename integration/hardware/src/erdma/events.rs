// SPDX-License-Identifier: Apache-2.0
//! Event queues: entries of 16 bytes, with an interrupt for each entry (`struct erdma_aeqe`, `ERDMA_CEQE_*`).

use crate::{interrupts::Vectors, memory::Memory};

/// Bytes of an entry.
pub const ENTRY: u64 = 16;

/// The most entries of a queue; the driver uses at most 4096.
pub const MAX_DEPTH: u32 = 1 << 16;

/// The type of an asynchronous event, `ERDMA_AE_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asynchronous {
    /// A queue pair is in error.
    QueuePairFatal = 0,
    /// The memory of a completion queue is not mapped.
    CompletionQueue = 3,
}

/// An event queue.
#[derive(Debug)]
pub struct EventQueue {
    address: u64,
    depth: u32,
    produced: u32,
    vector: usize,
}

impl EventQueue {
    /// Creates a queue of `depth` entries at `address` that raises `vector`. Returns `None` if `depth` is not a
    /// power of two or is above [`MAX_DEPTH`].
    pub fn new(address: u64, depth: u32, vector: usize) -> Option<EventQueue> {
        (depth.is_power_of_two() && depth <= MAX_DEPTH).then_some(EventQueue {
            address,
            depth,
            produced: 0,
            vector,
        })
    }

    /// Writes an entry and raises the interrupt. The owner bit, bit 31, is 1 in the first lap, and changes with each
    /// lap.
    pub fn push(&mut self, memory: &Memory, vectors: &Vectors, first: u32, data: [u32; 3]) {
        let lap = u32::from(self.produced & self.depth == 0);
        let mut entry = [0; ENTRY as usize];
        let words = [first & !(1 << 31) | lap << 31, data[0], data[1], data[2]];
        for (bytes, word) in entry.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let slot = u64::from(self.produced & (self.depth - 1));
        if memory
            .publish(self.address.wrapping_add(slot * ENTRY), &entry)
            .is_err()
        {
            log::warn!("an event queue at {:#x} is not in memory", self.address);
        }
        self.produced = self.produced.wrapping_add(1);
        vectors.raise(self.vector);
    }
}
