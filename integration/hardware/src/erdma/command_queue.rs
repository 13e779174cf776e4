// SPDX-License-Identifier: Apache-2.0
//! The command queue of a function.

use super::events::EventQueue;

/// The largest number of slots of a queue: ring positions have 16 bits.
const MAX_DEPTH: u32 = 1 << 15;

/// The command queue, with its completion queue and its event queue.
#[derive(Debug)]
pub struct CommandQueue {
    pub(super) requests: u64,
    pub(super) completions: u64,
    pub(super) depth: u32,
    pub(super) taken: u16,
    pub(super) completed: u32,
    pub(super) is_armed: bool,
    pub(super) events: EventQueue,
}

impl CommandQueue {
    /// Creates a queue of `depth` slots of 32 bytes at `requests`, and a completion queue with as many entries. Returns
    /// `None` if `depth` is not a power of two or is too large.
    pub fn new(
        requests: u64,
        completions: u64,
        depth: u32,
        events: EventQueue,
    ) -> Option<CommandQueue> {
        (depth.is_power_of_two() && depth <= MAX_DEPTH).then_some(CommandQueue {
            requests,
            completions,
            depth,
            taken: 0,
            completed: 0,
            is_armed: false,
            events,
        })
    }
}
