// SPDX-License-Identifier: Apache-2.0
//! One eRDMA function: its registers, its queues and its objects.

use super::{
    Mac, Protocol,
    command_queue::CommandQueue,
    completions::{Completion, CompletionQueue, Status},
    events::{Asynchronous, EventQueue},
    faults::Link,
    fields::{bits, le32, le64},
    queue_pairs::{AddressVector, QueuePair, SLOT, State},
    regions::Regions,
    registers::{self, Registers},
    requests::{self, Header, opcode},
};
use crate::{
    interrupts::Vectors,
    memory::{Memory, Unmapped},
};
use std::collections::{BTreeMap, HashMap};

/// Counters, in the order of the answer to `GET_STATS` (`struct erdma_cmdq_query_stats_resp`).
pub mod counter {
    #![expect(missing_docs, reason = "the names of the fields")]
    pub const SENT_REQUESTS: usize = 0;
    pub const SENT_PACKETS: usize = 1;
    pub const SENT_BYTES: usize = 2;
    pub const SENT_DROPPED: usize = 3;
    pub const RECEIVED_PACKETS: usize = 6;
    pub const RECEIVED_BYTES: usize = 7;
    pub const RECEIVED_DROPPED: usize = 8;
    pub const COUNT: usize = 11;
}

/// The model cannot read a request: its memory is not mapped, the driver has posted only a part of it, or it has more
/// slots than the model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A function.
#[derive(Debug)]
pub struct Device {
    /// The hardware address as text, for log messages.
    pub name: String,
    /// The hardware address of the netdev with which the driver pairs the function.
    pub mac: Mac,
    /// The function's protocol.
    pub protocol: Protocol,
    /// The function's port of the fabric.
    pub link: Link,
    /// The function's registers.
    pub registers: Registers,
    /// The memory of the function's virtual machine.
    pub memory: Memory,
    /// The function's interrupts.
    pub vectors: Vectors,
    /// The function's counters: [`counter`].
    pub counters: [u64; counter::COUNT],
    pub(super) commands: Option<CommandQueue>,
    pub(super) asynchronous: Option<EventQueue>,
    pub(super) events: HashMap<u32, EventQueue>,
    pub(super) completions: HashMap<u32, CompletionQueue>,
    /// The function's queue pairs by number.
    pub pairs: BTreeMap<u32, QueuePair>,
    /// The function's memory regions.
    pub regions: Regions,
    /// The function's GID table.
    pub gids: BTreeMap<u16, [u8; 16]>,
    /// The function's address handles, with their protection domains.
    pub handles: HashMap<u32, (u32, AddressVector)>,
    /// Number of programs to which the function has given doorbells.
    pub(super) contexts: u32,
    /// The MTU of the function's netdev.
    pub mtu: u32,
    /// The upper 8 bits of the function's connection cookies. Cookies are unique on the fabric.
    pub(super) cookies: u32,
    pub(super) next_cookie: u32,
    /// Queue pairs that can continue. The fabric removes them from this list.
    pub(super) woken: Vec<u32>,
    /// True if queue pairs failed or were destroyed. The peers of these queue pairs may wait for them.
    pub(super) has_lost_pairs: bool,
}

impl Device {
    /// Returns a function after power-on.
    pub fn new(mac: Mac, protocol: Protocol) -> Device {
        let name = mac.map(|byte| format!("{byte:02x}")).join(":");
        Device {
            name,
            mac,
            protocol,
            link: Link::default(),
            registers: Registers::new(mac, protocol),
            memory: Memory::default(),
            vectors: Vectors::default(),
            counters: [0; counter::COUNT],
            commands: None,
            asynchronous: None,
            events: HashMap::new(),
            completions: HashMap::new(),
            pairs: BTreeMap::new(),
            regions: Regions::default(),
            gids: BTreeMap::new(),
            handles: HashMap::new(),
            contexts: 0,
            mtu: 0,
            cookies: 0,
            next_cookie: 0,
            woken: Vec::new(),
            has_lost_pairs: false,
        }
    }

    /// Resets the function and removes all objects that the driver made. Memory, interrupts and the fabric port stay.
    pub fn reset(&mut self) {
        let kept = Device {
            link: self.link,
            memory: std::mem::take(&mut self.memory),
            vectors: std::mem::take(&mut self.vectors),
            cookies: self.cookies,
            next_cookie: self.next_cookie,
            has_lost_pairs: true,
            ..Device::new(self.mac, self.protocol)
        };
        *self = kept;
    }

    /// Reads from BAR 0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        self.registers.read(&self.counters, offset, data);
    }

    /// Writes to BAR 0: a register or a doorbell. The driver writes a doorbell in one access.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.len() < 4 {
            return;
        }
        let value = le64(data, 0);
        match offset {
            registers::CONTROL => match le32(data, 0) {
                registers::control::RESET => self.reset(),
                registers::control::INIT => self.start(),
                other => log::warn!("{}: control {other:#x}", self.name),
            },
            registers::COMMAND_SEND_DOORBELL => self.commands_posted(value as u16),
            registers::COMMAND_COMPLETIONS_DOORBELL => self.commands_armed(value),
            _ if registers::SEND_DOORBELLS.contains(&offset) => {
                self.posted(bits(value, 51, 32) as u32, value as u16, true);
            }
            _ if registers::RECEIVE_DOORBELLS.contains(&offset) => {
                self.posted((value >> 32) as u32, value as u16, false);
            }
            _ if registers::COMPLETION_DOORBELLS.contains(&offset) => self.armed(value),
            _ => self.registers.write(offset, data),
        }
    }

    fn posted(&mut self, number: u32, position: u16, is_send: bool) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return log::debug!(
                "{}: a doorbell of queue pair {number}, which is none",
                self.name
            );
        };
        let ring = if is_send {
            &mut pair.send
        } else {
            &mut pair.receive
        };
        if ring.post(position) {
            self.woken.push(number);
        } else {
            log::warn!(
                "{}: queue pair {number}: more is posted than its queue has",
                self.name
            );
        }
    }

    fn armed(&mut self, value: u64) {
        let number = bits(value, 55, 32) as u32;
        if let Some(queue) = self.completions.get_mut(&number)
            && queue.doorbell(value)
        {
            self.completion_event(number);
        }
    }

    fn completion_event(&mut self, number: u32) {
        let Some(queue) = self.completions.get(&number) else {
            return;
        };
        if let Some(events) = self.events.get_mut(&queue.events) {
            // the first word contains the number and the owner bit
            events.push(&self.memory, &self.vectors, number, [0; 3]);
        }
    }

    /// Reports an asynchronous event.
    pub fn report(&mut self, kind: Asynchronous, number: u32) {
        if let Some(events) = &mut self.asynchronous {
            events.push(
                &self.memory,
                &self.vectors,
                (kind as u32) << 16,
                [number, 0, 0],
            );
        }
    }

    /// Writes a completion to the completion queue `number`.
    pub fn complete(&mut self, number: u32, completion: &Completion) {
        let Some(queue) = self.completions.get_mut(&number) else {
            return;
        };
        match queue.push(&self.memory, completion) {
            Ok(false) => {}
            Ok(true) => self.completion_event(number),
            Err(Unmapped) => self.report(Asynchronous::CompletionQueue, number),
        }
    }

    /// Returns the next request of a send queue, or `None` if no request is pending.
    ///
    /// # Errors
    /// The request's memory is not mapped, the driver has posted only a part of the request, or the request has too
    /// many slots.
    pub fn next_send(
        &self,
        pair: &QueuePair,
    ) -> Result<Option<(Header, [u8; requests::SIZE])>, Unreadable> {
        let pending = pair.send.pending();
        if pending == 0 {
            return Ok(None);
        }
        let mut request = [0; requests::SIZE];
        for (slot, bytes) in (0..pending).zip(request.chunks_exact_mut(SLOT as usize)) {
            bytes.copy_from_slice(&pair.send.read(&self.memory, slot).ok_or(Unreadable)?);
        }
        let header = Header::read(&request);
        match header.slots <= pending && usize::from(header.slots) <= requests::SIZE / SLOT as usize
        {
            true => Ok(Some((header, request))),
            false => Err(Unreadable),
        }
    }

    /// Puts a queue pair into the error state because of a request: reports a fatal event, and flushes the
    /// send and the receive queue.
    pub fn fail(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.state = State::Error;
            self.has_lost_pairs = true;
            self.flush(number);
            self.report(Asynchronous::QueuePairFatal, number);
        }
    }

    /// Completes the pending requests of a queue pair with the status [`Status::Flushed`].
    pub fn flush(&mut self, number: u32) {
        let Some(mut pair) = self.pairs.remove(&number) else {
            return;
        };
        let flushed = Completion {
            opcode: opcode::RECEIVE,
            is_receive: true,
            status: Status::Flushed,
            index: 0,
            queue_pair: number,
            extra: 0,
            size: 0,
            datagram: 0,
            is_solicited: true,
        };
        while let Ok(Some((header, _))) = self.next_send(&pair) {
            let completion = Completion {
                opcode: header.opcode,
                is_receive: false,
                index: pair.send.position(),
                ..flushed
            };
            pair.send.take(header.slots);
            self.complete(pair.send_completions, &completion);
        }
        // discards a request that cannot be read, and the requests after it
        pair.send.take(pair.send.pending());
        while pair.receive.pending() > 0 {
            let index = pair.receive.position();
            pair.receive.take(1);
            self.complete(pair.receive_completions, &Completion { index, ..flushed });
        }
        pair.attempt = Default::default();
        self.pairs.insert(number, pair);
    }
}
