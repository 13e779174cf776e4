// SPDX-License-Identifier: Apache-2.0
//! The requests and completions of queue pairs.

use super::{
    completion_queue::COMPLETION,
    context::{self, state},
    event_queue::Event,
    fields::Field,
    function::Function,
    keys::{Extent, Refusal, Segment, rights},
    queue_pair::CREATE,
    requests::Header,
    work_queue::{SEGMENT, WorkQueue, opcode, work},
};
use crate::memory::Unmapped;

/// `l4_l3_hdr_type`: the datagram arrived with a VLAN tag.
const HAS_VLAN: u8 = 1;
/// The largest number of requests of a queue that are flushed in one step.
const FLUSHED: usize = 1 << 15;

/// `MLX5_CQE_*`: the type of a completion.
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
    /// The opcode of the completed request.
    pub(super) opcode: u8,
    pub(super) index: u16,
    pub(super) len: u32,
    /// Immediate data, or the partition key.
    pub(super) extra: u32,
    /// For a datagram: the network header's type, and the sender's queue pair number.
    pub(super) sender: u32,
    /// For a datagram on InfiniBand: the sender's LID.
    pub(super) lid: u16,
    /// The VLAN of the tag with which a datagram arrived.
    pub(super) vlan: Option<u16>,
    pub(super) is_solicited: bool,
}

impl Completion {
    /// The completion of a successful receive request.
    pub(super) const RECEIVED: Completion = Completion {
        kind: Kind::Receive,
        syndrome: None,
        opcode: 0,
        index: 0,
        len: 0,
        extra: 0,
        sender: 0,
        lid: 0,
        vlan: None,
        is_solicited: false,
    };

    /// Creates the completion of a send request.
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
        if let Some(vlan) = self.vlan {
            entry[29] = HAS_VLAN;
            entry[30..32].copy_from_slice(&vlan.to_be_bytes());
        }
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
    /// A field of a queue pair's context. Returns zero if the queue pair does not exist.
    pub(super) fn pair(&self, number: u32, field: Field) -> u64 {
        let context = self.objects.get(CREATE, number);
        context.map_or(0, |it| field.get(it))
    }

    /// Returns true if a queue pair accepts messages.
    pub(super) fn receives(&self, number: u32) -> bool {
        let states = [
            state::READY_TO_RECEIVE,
            state::READY_TO_SEND,
            state::DRAINED,
        ];
        self.pairs.contains_key(&number) && states.contains(&self.pair(number, context::STATE))
    }

    /// The guest memory of the segments of a queue pair's request.
    pub(super) fn memory_of(
        &self,
        number: u32,
        segments: &[Segment],
        needed: u64,
    ) -> Result<Vec<Extent>, Refusal> {
        let domain = self.pair(number, context::DOMAIN) as u32;
        self.keys.find(segments, domain, needed)
    }

    /// The queue from which a queue pair takes receive requests.
    fn receive_queue(&self, number: u32) -> Option<&WorkQueue> {
        let pair = self.pairs.get(&number)?;
        match pair.shared {
            Some(shared) => self.shared.get(&shared),
            None => pair.receive.as_ref(),
        }
    }

    /// Returns true if a queue pair has a receive request.
    pub(super) fn has_receive(&self, number: u32) -> bool {
        let queue = self.receive_queue(number);
        queue.is_some_and(|it| it.pending(&self.memory, false) > 0)
    }

    /// The guest memory of the next receive request, for a message of `len` bytes.
    pub(super) fn receive_memory(&self, number: u32, len: u64) -> Result<Vec<Extent>, Syndrome> {
        let queue = (self.receive_queue(number)).ok_or(Syndrome::LocalOperation)?;
        let mut list = vec![0; 1 << queue.log_stride];
        let read = queue.read(&self.memory, &mut list);
        read.map_err(|Unmapped| Syndrome::LocalProtection)?;
        // in a linked list, a request begins with the number of the next entry
        let header = if queue.next.is_some() { SEGMENT } else { 0 };
        let segments: Vec<Segment> = Segment::list(&list[header..]).collect();
        if segments.iter().map(|it| u64::from(it.len)).sum::<u64>() < len {
            return Err(Syndrome::LocalLength);
        }
        let shared = self.pairs.get(&number).and_then(|it| it.shared);
        let domain = match shared.and_then(|it| self.objects.get(opcode::CREATE_RMP, it)) {
            Some(context) => work::DOMAIN.get32(context),
            None => self.pair(number, context::DOMAIN) as u32,
        };
        let extents = self.keys.find(&segments, domain, rights::LOCAL_WRITE);
        extents.map_err(|Refusal| Syndrome::LocalProtection)
    }

    /// Completes the next receive request.
    pub(super) fn received(&mut self, number: u32, completion: Completion) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        let shared = pair.shared;
        let queue = match shared {
            Some(shared) => self.shared.get_mut(&shared),
            None => pair.receive.as_mut(),
        };
        let Some(queue) = queue else {
            return;
        };
        let index = queue.index();
        queue.take(&self.memory);
        let pending = queue.pending(&self.memory, false);
        let completions = self.pair(number, context::RECEIVE_COMPLETIONS) as u32;
        self.complete_pair(
            number,
            completions,
            Completion {
                index,
                ..completion
            },
        );
        if let Some(shared) = shared {
            self.limit_event(shared, pending);
        }
    }

    /// Reports one event to the driver when a shared receive queue has fewer requests than its limit.
    fn limit_event(&mut self, shared: u32, pending: u16) {
        let context = self.objects.get_mut(opcode::CREATE_RMP, shared);
        if let Some(context) = context.filter(|it| work::LIMIT.get(it) > pending.into()) {
            work::LIMIT.put(context, 0);
            self.number_event(Event::Limit, shared);
        }
    }

    /// Ends the next send request, and writes `completion` if it is given.
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

    /// Sets a queue pair to the error state. Its requests are flushed later.
    pub(super) fn fail_pair(&mut self, number: u32) {
        if let Some(context) = self.objects.get_mut(CREATE, number) {
            context::STATE.put(context, state::ERROR);
            log::debug!("{}: queue pair {number:#x} fails", self.name);
            self.pair_failed(number);
        }
    }

    /// Handles a queue pair that entered the error state. If it has a shared receive queue, the driver gets an event,
    /// because the queue pair uses no more requests of this queue.
    pub(super) fn pair_failed(&mut self, number: u32) {
        self.rung.push(number);
        if (self.pairs.get(&number)).is_some_and(|it| it.shared.is_some()) {
            self.number_event(Event::LastRequest, number);
        }
    }

    /// Reports to the driver that a queue pair failed because its peer named memory to which the peer has no access.
    pub(super) fn access_event(&mut self, number: u32) {
        self.number_event(Event::Access, number);
    }

    fn number_event(&mut self, event: Event, number: u32) {
        let mut data = [0; 28];
        data[24..].copy_from_slice(&number.to_be_bytes());
        self.report(event, 0, &data);
    }

    /// Flushes the requests of a queue pair that is in error, at most [`FLUSHED`] of each queue. The requests of a
    /// shared receive queue stay.
    pub(super) fn flush(&mut self, number: u32) {
        let flushed = Some(Syndrome::Flushed);
        let is_shared = (self.pairs.get(&number)).is_some_and(|it| it.shared.is_some());
        for _ in 0..FLUSHED {
            if is_shared || !self.has_receive(number) {
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

    /// The header and bytes of the next send request. If the request cannot be read, the bytes are `None`. Returns
    /// `None` if no request is pending.
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
        // a request that cannot be read has one block, at the queue's current position
        header.blocks = header.blocks.clamp(1, pending);
        if request.is_none() {
            header.index = queue.taken;
        }
        Some((header, request))
    }
}
