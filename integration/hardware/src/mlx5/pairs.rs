// SPDX-License-Identifier: Apache-2.0
//! Queue pairs: their queues and their completions.

use super::{
    commands::Status,
    context::{self, state},
    events::{Event, Pages},
    fields::Field,
    function::Function,
    keys::{Extent, Refusal, Segment, rights},
    queues::{COMPLETION, WorkQueue},
    requests::{BLOCK, Header},
};
use crate::memory::Unmapped;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The first number. Below it are those of Ethernet's send queues, which have the same doorbells.
pub const FIRST: u32 = 0x1_0000;
/// `CREATE_QP`.
pub const CREATE: u16 = 0x500;
pub(super) const DESTROY: u16 = 0x501;
const PAGES: usize = 0x110;
/// The most requests of a queue that are flushed at a time.
const FLUSHED: usize = 1 << 15;

/// The reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The peer does not answer.
    Answer,
    /// The peer has no receive request.
    Receive,
}

/// The queues of a queue pair.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) send: Option<WorkQueue>,
    pub(super) receive: Option<WorkQueue>,
    /// Reason why its next request waits, and the time since when it waits.
    pub(super) waits: Option<(Wait, Duration)>,
    /// The GIDs of its multicast groups.
    pub(super) groups: BTreeSet<[u8; 16]>,
}

impl QueuePair {
    /// The queues that `CREATE_QP` describes: the receive queue comes first in memory, if the queue pair has its own.
    pub fn new(input: &[u8]) -> Result<QueuePair, Status> {
        let log_page = context::LOG_PAGE.get32(input);
        if log_page > 20 {
            return Err(Status::Parameter);
        }
        let has_receives = context::RECEIVE_KIND.get(input) == 0;
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
        };
        Ok(QueuePair {
            send: has_sends.then(|| queue(base, log_sends, 6, context::SEND_COMPLETIONS)),
            receive: has_receives
                .then(|| queue(0, log_receives, log_stride, context::RECEIVE_COMPLETIONS)),
            waits: None,
            groups: BTreeSet::new(),
        })
    }

    /// Begins at the begin of both queues.
    pub fn reset(&mut self) {
        for queue in [&mut self.send, &mut self.receive].into_iter().flatten() {
            queue.taken = 0;
        }
        self.waits = None;
    }
}

/// `MLX5_CQE_*`: the kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request = 0,
    ReceiveWriteImmediate = 1,
    Receive = 2,
    ReceiveImmediate = 3,
    RequestError = 13,
    ReceiveError = 14,
}

/// `MLX5_CQE_SYNDROME_*`: the reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syndrome {
    LocalLength = 0x01,
    LocalOperation = 0x02,
    LocalProtection = 0x04,
    Flushed = 0x05,
    RemoteRequest = 0x12,
    RemoteAccess = 0x13,
    RemoteOperation = 0x14,
    RetriesExceeded = 0x15,
    ReceiveRetriesExceeded = 0x16,
}

/// A completion (`struct mlx5_cqe64`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) kind: Kind,
    pub(super) syndrome: Option<Syndrome>,
    /// Opcode of a request.
    pub(super) opcode: u8,
    pub(super) index: u16,
    pub(super) len: u32,
    /// Immediate data, or the partition's key.
    pub(super) extra: u32,
    /// Type of the network header and number of the sender, for a datagram.
    pub(super) sender: u32,
    /// LID of the sender, for a datagram on InfiniBand.
    pub(super) lid: u16,
    pub(super) is_solicited: bool,
}

impl Completion {
    /// One of a receive request that succeeded, at the position that it gets later.
    pub(super) const RECEIVED: Completion = Completion {
        kind: Kind::Receive,
        syndrome: None,
        opcode: 0,
        index: 0,
        len: 0,
        extra: 0,
        sender: 0,
        lid: 0,
        is_solicited: false,
    };

    /// One of a send request.
    pub(super) fn of_request(header: Header, syndrome: Option<Syndrome>, len: u32) -> Completion {
        Completion {
            kind: match syndrome {
                None => Kind::Request,
                Some(_) => Kind::RequestError,
            },
            syndrome,
            opcode: header.opcode,
            index: header.index,
            len,
            ..Completion::RECEIVED
        }
    }

    fn entry(&self, number: u32, user_index: u32) -> [u8; COMPLETION] {
        let mut entry = [0; COMPLETION];
        for (at, value) in [
            (24, self.sender),
            (32, user_index),
            (36, self.extra),
            (44, self.len),
            (56, u32::from(self.opcode) << 24 | number),
        ] {
            entry[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        entry[22..24].copy_from_slice(&self.lid.to_be_bytes());
        if let Some(syndrome) = self.syndrome {
            entry[44..48].fill(0);
            entry[55] = syndrome as u8;
        }
        entry[60..62].copy_from_slice(&self.index.to_be_bytes());
        entry[COMPLETION - 1] = (self.kind as u8) << 4;
        entry
    }
}

impl Function {
    /// A field of a queue pair's context. Zero if there is none.
    pub(super) fn pair(&self, number: u32, field: Field) -> u64 {
        let context = self.objects.get(CREATE, number);
        context.map_or(0, |it| field.get(it))
    }

    /// Returns true if a queue pair takes messages.
    pub(super) fn receives(&self, number: u32) -> bool {
        let states = [
            state::READY_TO_RECEIVE,
            state::READY_TO_SEND,
            state::DRAINED,
        ];
        self.pairs.contains_key(&number) && states.contains(&self.pair(number, context::STATE))
    }

    /// The memory of the segments of a queue pair's request.
    pub(super) fn memory_of(
        &self,
        number: u32,
        segments: &[Segment],
        needed: u64,
    ) -> Result<Vec<Extent>, Refusal> {
        let domain = self.pair(number, context::DOMAIN) as u32;
        self.keys.find(segments, domain, needed)
    }

    /// Returns true if a queue pair has a receive request.
    pub(super) fn has_receive(&self, number: u32) -> bool {
        let queue = (self.pairs.get(&number)).and_then(|it| it.receive.as_ref());
        queue.is_some_and(|it| it.pending(&self.memory, false) > 0)
    }

    /// The memory of the next receive request. It takes `len` bytes.
    pub(super) fn receive_memory(&self, number: u32, len: u64) -> Result<Vec<Extent>, Syndrome> {
        let queue = (self.pairs.get(&number)).and_then(|it| it.receive.as_ref());
        let queue = queue.ok_or(Syndrome::LocalOperation)?;
        let mut list = vec![0; 1 << queue.log_stride];
        let read = queue.read(&self.memory, &mut list);
        read.map_err(|Unmapped| Syndrome::LocalProtection)?;
        let segments: Vec<Segment> = Segment::list(&list).collect();
        if segments.iter().map(|it| u64::from(it.len)).sum::<u64>() < len {
            return Err(Syndrome::LocalLength);
        }
        let extents = self.memory_of(number, &segments, rights::LOCAL_WRITE);
        extents.map_err(|Refusal| Syndrome::LocalProtection)
    }

    /// Completes the next receive request.
    pub(super) fn received(&mut self, number: u32, completion: Completion) {
        let pair = self.pairs.get_mut(&number);
        let Some(queue) = pair.and_then(|it| it.receive.as_mut()) else {
            return;
        };
        let (completions, index) = (queue.completions, queue.taken);
        queue.taken = queue.taken.wrapping_add(1);
        self.complete_pair(
            number,
            completions,
            Completion {
                index,
                ..completion
            },
        );
    }

    /// Ends the next send request, which `completion` reports if there is one.
    pub(super) fn sent(&mut self, number: u32, blocks: u16, completion: Option<Completion>) {
        let pair = self.pairs.get_mut(&number);
        let Some(queue) = pair.and_then(|it| it.send.as_mut()) else {
            return;
        };
        queue.taken = queue.taken.wrapping_add(blocks);
        let completions = queue.completions;
        if let Some(completion) = completion {
            self.complete_pair(number, completions, completion);
        }
    }

    fn complete_pair(&mut self, number: u32, completions: u32, completion: Completion) {
        let entry = completion.entry(number, self.pair(number, context::USER_INDEX) as u32);
        let is_solicited = completion.is_solicited || completion.syndrome.is_some();
        self.complete(completions, entry, is_solicited);
    }

    /// A queue pair does not work any more. Its requests are flushed later.
    pub(super) fn fail_pair(&mut self, number: u32) {
        if let Some(context) = self.objects.get_mut(CREATE, number) {
            context::STATE.put(context, state::ERROR);
            log::debug!("{}: queue pair {number:#x} fails", self.name);
            self.rung.push(number);
        }
    }

    /// Tells the driver that a queue pair failed as its peer named memory that it may not reach.
    pub(super) fn access_event(&mut self, number: u32) {
        let mut data = [0; 28];
        data[24..].copy_from_slice(&number.to_be_bytes());
        self.report(Event::Access, 0, &data);
    }

    /// Completes all requests of a queue pair in error.
    pub(super) fn flush(&mut self, number: u32) {
        let flushed = Some(Syndrome::Flushed);
        for _ in 0..FLUSHED {
            if !self.has_receive(number) {
                break;
            }
            let completion = Completion {
                kind: Kind::ReceiveError,
                syndrome: flushed,
                ..Completion::RECEIVED
            };
            self.received(number, completion);
        }
        for _ in 0..FLUSHED {
            let Some((header, _)) = self.next_send(number) else {
                break;
            };
            let completion = Completion::of_request(header, flushed, 0);
            self.sent(number, header.blocks, Some(completion));
        }
    }

    /// The next send request, and its header. A request that cannot be read has one block. None if there is none.
    pub(super) fn next_send(&self, number: u32) -> Option<(Header, Option<Vec<u8>>)> {
        let queue = self.pairs.get(&number)?.send.as_ref()?;
        let pending = queue.pending(&self.memory, true);
        if pending == 0 {
            return None;
        }
        let request = queue.next_request(&self.memory);
        let mut header = request
            .as_deref()
            .map_or_else(Header::default, Header::read);
        // one that cannot be read is where the queue is
        header.blocks = header.blocks.clamp(1, pending);
        if request.is_none() {
            header.index = queue.taken;
        }
        Some((header, request))
    }
}
