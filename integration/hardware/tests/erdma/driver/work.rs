// SPDX-License-Identifier: Apache-2.0
//! Queue pairs, completion queues and memory regions of the tests' driver.

use super::{Bus, Command, Completed, Completions, Driver, Events, be32};

/// Rights with the values of `REGMR_RIGHT`.
pub(crate) const RA: u32 = 1;
pub(crate) const LR: u32 = 2;
pub(crate) const LW: u32 = 4;
pub(crate) const RR: u32 = 8;
pub(crate) const RW: u32 = 16;
pub(crate) const ALL: u32 = RA | LR | LW | RR | RW;

pub(crate) const DOMAIN: u32 = 5;

/// Operation numbers of requests.
pub(crate) const WRITE: u64 = 0;
pub(crate) const READ: u64 = 1;
pub(crate) const SEND: u64 = 2;
pub(crate) const SEND_IMM: u64 = 3;
pub(crate) const WRITE_IMM: u64 = 9;
pub(crate) const SEND_INV: u64 = 13;
pub(crate) const REG_MR: u64 = 14;
pub(crate) const LOCAL_INV: u64 = 15;
pub(crate) const READ_INV: u64 = 16;
pub(crate) const CAS: u64 = 17;
pub(crate) const FAA: u64 = 18;

pub(crate) struct Pair {
    pub(crate) number: u32,
    pub(crate) cookie: u32,
    pub(crate) depth: u32,
    pub(crate) send: u64,
    pub(crate) receive: u64,
    pub(crate) sent: u16,
    pub(crate) received: u16,
}

/// A request of a send queue.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    pub(crate) flags: u64,
    pub(crate) opcode: u64,
    pub(crate) count: u64,
}

pub(crate) const SIGNALED: u64 = 1 << 22;
pub(crate) const SOLICITED: u64 = 1 << 23;
pub(crate) const INLINE: u64 = 1 << 25;

impl Request {
    pub(crate) fn new(opcode: u64) -> Request {
        Request {
            bytes: vec![0; 32],
            flags: SIGNALED,
            opcode,
            count: 0,
        }
    }
    pub(crate) fn put(mut self, at: usize, value: &[u8]) -> Request {
        if self.bytes.len() < at + value.len() {
            self.bytes.resize(at + value.len(), 0);
        }
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }
    pub(crate) fn u32(self, at: usize, value: u32) -> Request {
        self.put(at, &value.to_le_bytes())
    }
    pub(crate) fn u64(self, at: usize, value: u64) -> Request {
        self.put(at, &value.to_le_bytes())
    }
    pub(crate) fn segment(self, at: usize, (address, len, key): (u64, u32, u32)) -> Request {
        self.u64(at, address).u32(at + 8, len).u32(at + 12, key)
    }
    /// Adds segments from byte `at` on, and their total length to the header.
    pub(crate) fn segments(mut self, at: usize, segments: &[(u64, u32, u32)]) -> Request {
        self.count = segments.len() as u64;
        self = self.u32(12, segments.iter().map(|it| it.1).sum());
        for (i, it) in segments.iter().enumerate() {
            self = self.segment(at + 16 * i, *it);
        }
        self
    }
    pub(crate) fn inline(mut self, at: usize, data: &[u8]) -> Request {
        self.count = data.len() as u64;
        self.flags |= INLINE;
        self.u32(12, data.len() as u32).put(at, data)
    }
    pub(crate) fn flags(mut self, flags: u64) -> Request {
        self.flags = flags;
        self
    }
}

pub(crate) fn write(to: (u64, u32), segments: &[(u64, u32, u32)]) -> Request {
    remote(Request::new(WRITE), to).segments(32, segments)
}
/// Sets the peer's address and key at the offsets of write and read requests.
pub(crate) fn remote(request: Request, (address, key): (u64, u32)) -> Request {
    request
        .u32(16, key)
        .u32(20, address as u32)
        .u32(24, (address >> 32) as u32)
}
pub(crate) fn read(into: (u64, u32, u32), from: (u64, u32)) -> Request {
    let request = remote(Request::new(READ), (into.0, into.2)).u32(12, into.1);
    request.segment(32, (from.0, into.1, from.1))
}
pub(crate) fn send(segments: &[(u64, u32, u32)]) -> Request {
    Request::new(SEND).segments(16, segments)
}
pub(crate) fn atomic(
    opcode: u64,
    remote: (u64, u32),
    into: (u64, u32),
    operand: u64,
    compare: u64,
) -> Request {
    let request = Request::new(opcode).u64(16, operand).u64(24, compare);
    (request.segment(32, (remote.0, 8, remote.1))).segment(48, (into.0, 8, into.1))
}

impl<B: Bus> Driver<B> {
    pub(crate) fn event_queue(&mut self, number: u8, depth_shift: u8) -> Events {
        let address = self.pages(1);
        let command = Command::new(1, 0).u64(8, address);
        let command = command.bytes(16, &[number, number, depth_shift, 1]);
        assert_eq!(self.command(command), Ok([0, 0]));
        Events {
            address,
            depth: 1 << depth_shift,
            read: 0,
        }
    }

    /// Creates a completion queue in one page that reports to event queue 1.
    pub(crate) fn completion_queue(&mut self, number: u32, depth_shift: u32) -> Completions {
        let address = self.pages(1);
        let command = Command::new(0, 4)
            .u32(8, depth_shift << 24 | number)
            .u32(12, address as u32)
            .u32(16, (address >> 32) as u32)
            .u32(20, 1 << 16 | 1);
        assert_eq!(self.command(command), Ok([0, 0]));
        Completions {
            number,
            address,
            depth: 1 << depth_shift,
            read: 0,
        }
    }

    pub(crate) fn create_pair(
        number: u32,
        depth_shift: u32,
        queue: u32,
        send: u64,
        receive: u64,
    ) -> Command {
        Command::new(0, 1)
            .u32(8, depth_shift << 20 | number)
            .u32(12, depth_shift << 20 | DOMAIN)
            .u32(16, queue)
            .u32(20, queue)
            .u64(24, send)
            .u64(32, receive)
            .u32(40, 1 << 1)
            .u32(44, 1 << 1)
    }

    /// Creates a queue pair with one page for each queue.
    pub(crate) fn pair(&mut self, number: u32, depth_shift: u32, queue: &Completions) -> Pair {
        self.typed_pair(number, depth_shift, queue, 0)
    }

    /// Creates a queue pair. `service` is its type: 1 is UD, 0 is any other type. Drivers before Linux 6.14 do not set
    /// the type.
    pub(crate) fn typed_pair(
        &mut self,
        number: u32,
        depth_shift: u32,
        queue: &Completions,
        service: u32,
    ) -> Pair {
        let (send, receive) = (self.pages(1), self.pages(1));
        let command = Self::create_pair(number, depth_shift, queue.number, send, receive);
        let answer = self
            .command(command.u32(116, service))
            .expect("a queue pair");
        Pair {
            number,
            cookie: answer[0] as u32,
            depth: 1 << depth_shift,
            send,
            receive,
            sent: 0,
            received: 0,
        }
    }

    /// iWARP: sets the state after the MPA handshake.
    pub(crate) fn connect(&mut self, pair: &Pair, cookie: u32) {
        let command = Command::new(0, 3)
            .u32(8, 2 << 24 | pair.number)
            .u32(12, cookie);
        assert_eq!(self.command(command), Ok([0, 0]));
    }

    /// Changes only the state of a queue pair.
    pub(crate) fn state(&mut self, pair: &Pair, state: u32) {
        let command = Command::new(0, 3)
            .u32(8, state << 24 | pair.number)
            .u32(16, 1);
        assert_eq!(self.command(command), Ok([0, 0]));
    }

    /// The command for a region whose page addresses the command contains.
    pub(crate) fn region_command(
        index: u32,
        rights: u32,
        start: u64,
        size: u32,
        pages: &[u64],
    ) -> Command {
        let mut command = Command::new(0, 8)
            .u32(8, 1 << 31 | index)
            .u32(12, DOMAIN << 12 | rights << 1)
            .u64(16, start)
            .u32(24, size)
            .u32(28, 12 << 27 | pages.len() as u32);
        for (i, page) in pages.iter().enumerate() {
            command = command.u64(32 + 8 * i, *page);
        }
        command
    }

    /// Registers `count` pages of memory. Returns their address and the key. The region's start is the memory's own
    /// address.
    pub(crate) fn region(&mut self, index: u32, rights: u32, count: u64) -> (u64, u32) {
        let address = self.pages(count);
        let pages: Vec<u64> = (0..count).map(|it| address + (it << 12)).collect();
        let command = Self::region_command(index, rights, address, (count << 12) as u32, &pages);
        assert_eq!(self.command(command), Ok([0, 0]));
        (address, index << 8)
    }

    /// Writes a request to the send queue, and rings the doorbell.
    pub(crate) fn post_send(&mut self, pair: &mut Pair, request: &Request) {
        self.push_send(pair, request);
        self.ring_send(pair);
    }

    pub(crate) fn push_send(&mut self, pair: &mut Pair, request: &Request) {
        let slots = request.bytes.len().div_ceil(32) as u16;
        let position = pair.sent.wrapping_add(slots);
        let header = u64::from(pair.number) << 32
            | request.opcode << 27
            | request.flags
            | request.count << 56
            | u64::from(slots - 1) << 52
            | u64::from(position);
        let request = request.clone().u64(0, header);
        for (slot, bytes) in (0..).zip(request.bytes.chunks(32)) {
            let at = (u32::from(pair.sent) + slot) % pair.depth;
            self.bus.store(pair.send + u64::from(at) * 32, bytes);
        }
        pair.sent = position;
    }

    pub(crate) fn ring_send(&mut self, pair: &Pair) {
        self.write64(0x1000, u64::from(pair.number) << 32 | u64::from(pair.sent));
    }

    pub(crate) fn post_receive(&mut self, pair: &mut Pair, (address, len, key): (u64, u32, u32)) {
        let mut entry = [0; 32];
        let position = pair.received.wrapping_add(1);
        entry[..2].copy_from_slice(&position.to_le_bytes());
        entry[4..8].copy_from_slice(&pair.number.to_le_bytes());
        entry[16..24].copy_from_slice(&address.to_le_bytes());
        entry[24..28].copy_from_slice(&len.to_le_bytes());
        entry[28..].copy_from_slice(&key.to_le_bytes());
        let at = u64::from(u32::from(pair.received) % pair.depth) * 32;
        self.bus.store(pair.receive + at, &entry);
        pair.received = position;
        self.bus.write(0x61000, &entry[..8]);
    }

    /// The next completion.
    pub(crate) fn poll(&mut self, queue: &mut Completions) -> Option<Completed> {
        let entry = self.load(queue.address + u64::from(queue.read % queue.depth) * 32, 32);
        let header = be32(&entry, 0);
        if (header >> 31 == 1) == (queue.read & queue.depth != 0) {
            return None;
        }
        queue.read += 1;
        let raw = u32::from_le_bytes(entry[12..16].try_into().unwrap());
        Some(Completed {
            opcode: (header >> 16) as u8,
            is_receive: header >> 8 & 0xff == 1,
            status: header as u8,
            index: be32(&entry, 4),
            queue_pair: be32(&entry, 8),
            // cpu_to_be32(le32_to_cpu(cqe->imm_data))
            immediate: raw.to_be_bytes(),
            key: be32(&entry, 12),
            size: be32(&entry, 16),
            info: be32(&entry, 28),
        })
    }

    /// Requests an event of a completion queue.
    pub(crate) fn arm(&mut self, queue: &Completions, solicited: bool) {
        let value = u64::from(queue.number) << 32
            | 1 << 31
            | u64::from(solicited) << 30
            | u64::from(queue.read & 0xff_ffff);
        self.write64(0x79000, value);
    }
}
