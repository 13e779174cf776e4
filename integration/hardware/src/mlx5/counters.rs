// SPDX-License-Identifier: Apache-2.0
//! The counters of queue pairs (`query_q_counter_out`). A function has one set of counters, which all its queue
//! pairs share.

use super::fields::{field, paste};

/// `QUERY_Q_COUNTER`.
pub(super) const QUERY: u16 = 0x773;
/// Bytes of the answer.
const SIZE: usize = 0x100;
const AT: usize = 16;

/// Byte offsets of counters.
pub(super) mod counter {
    /// RDMA writes from peers.
    pub(in super::super) const WRITES: usize = 0x10;
    /// RDMA reads from peers.
    pub(in super::super) const READS: usize = 0x18;
    /// Atomic operations from peers.
    pub(in super::super) const ATOMICS: usize = 0x20;
    /// Messages from peers for which this function had no receive request.
    pub(in super::super) const OUT_OF_BUFFER: usize = 0x30;
    /// Messages for which a peer had no receive request.
    pub(in super::super) const RECEIVE_RETRIES: usize = 0x48;
    /// Timeouts of requests to which no peer responded.
    pub(in super::super) const TIMEOUTS: usize = 0x60;
}

#[derive(Debug)]
pub(super) struct Counters([u8; SIZE]);

impl Default for Counters {
    fn default() -> Counters {
        Counters([0; SIZE])
    }
}

impl Counters {
    /// Adds `more` to the counter at the offset `at`.
    pub(super) fn count(&mut self, at: usize, more: u32) {
        let number = field(at * 8, 32);
        let sum = number.get32(&self.0).wrapping_add(more);
        number.put(&mut self.0, sum.into());
    }

    /// The answer to `QUERY_Q_COUNTER` after its first 16 bytes.
    pub(super) fn query(&self, output: &mut [u8]) {
        paste(output, AT, &self.0[AT..]);
    }
}
