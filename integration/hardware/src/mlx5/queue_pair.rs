// SPDX-License-Identifier: Apache-2.0
//! The queues of queue pairs.

use super::{
    context, fields::Field, pages::Pages, requests::BLOCK, status::Status, work_queue::WorkQueue,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The smallest number of a queue pair. Ethernet send queues, which use the same doorbells, have lower numbers.
pub const FIRST: u32 = 0x1_0000;
/// `CREATE_QP`.
pub const CREATE: u16 = 0x500;
pub(super) const DESTROY: u16 = 0x501;
const PAGES: usize = 0x110;

/// A queue pair: the position of its function in the fabric, and its number.
pub(super) type Place = (usize, u32);

/// The reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The peer does not respond.
    Answer,
    /// The peer has no receive request.
    Receive,
}

/// The queues of a queue pair.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) send: Option<WorkQueue>,
    pub(super) receive: Option<WorkQueue>,
    /// The number of the shared receive queue.
    pub(super) shared: Option<u32>,
    /// The reason why the next request waits, and the time at which the wait began.
    pub(super) waits: Option<(Wait, Duration)>,
    /// The GIDs of the queue pair's multicast groups.
    pub(super) groups: BTreeSet<[u8; 16]>,
}

impl QueuePair {
    /// Creates the queues that `CREATE_QP` describes. If the queue pair has its own receive queue, this queue
    /// precedes the send queue in memory.
    pub fn new(input: &[u8]) -> Result<QueuePair, Status> {
        let log_page = context::LOG_PAGE.get32(input);
        if log_page > 20 {
            return Err(Status::Parameter);
        }
        let receive_kind = context::RECEIVE_KIND.get(input);
        let has_receives = receive_kind == 0;
        let log_stride = context::LOG_STRIDE.get32(input) + 4;
        let log_receives = context::LOG_RECEIVES.get32(input);
        let log_sends = context::LOG_SENDS.get32(input);
        let has_sends = context::NO_SENDS.get(input) == 0;
        let base = match has_receives {
            true => 1 << (log_receives + log_stride),
            false => 0,
        };
        let sends = match has_sends {
            true => (BLOCK as u64) << log_sends,
            false => 0,
        };
        let offset = context::OFFSET.get(input);
        let pages = Pages::new(input, PAGES, log_page, offset, base + sends);
        let pages = Arc::new(pages.ok_or(Status::InputLength)?);
        let queue = |base, log_size, log_stride, completions: Field| WorkQueue {
            pages: Arc::clone(&pages),
            base,
            log_size,
            completions: completions.get32(input),
            log_stride,
            record: context::RECORD.get(input),
            taken: 0,
            next: None,
        };
        Ok(QueuePair {
            send: has_sends.then(|| queue(base, log_sends, 6, context::SEND_COMPLETIONS)),
            receive: has_receives
                .then(|| queue(0, log_receives, log_stride, context::RECEIVE_COMPLETIONS)),
            shared: (receive_kind == context::SHARED).then(|| context::RECEIVES.get32(input)),
            waits: None,
            groups: BTreeSet::new(),
        })
    }

    /// Sets both queues to their first position.
    pub fn reset(&mut self) {
        for queue in [&mut self.send, &mut self.receive].into_iter().flatten() {
            queue.taken = 0;
        }
        self.waits = None;
    }
}
