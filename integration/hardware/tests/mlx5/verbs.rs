// SPDX-License-Identifier: Apache-2.0
//! Queue pairs, memory keys and completions of a driver, in the layout of the header.

use crate::driver::{Driver, MACS, MEMORY, command, number, with};
use std::time::Duration;

const PAGES: u64 = MEMORY + 0x9_0000;
const RECORDS: u64 = MEMORY + 0xa_0000;
/// The memory to which keys refer: 16 pages.
pub(crate) const DATA: u64 = MEMORY + 0xb_0000;
/// The address by which programs name [`DATA`]. It is not at a page boundary.
pub(crate) const NAMED: u64 = 0x7f00_0000_0123;
const UAR: u64 = 17 * 4096;
/// The offset of the send requests, after 16 receive requests of 64 bytes each.
const SENDS: u64 = 16 * 64;

pub(crate) const ALL_RIGHTS: u16 = 0x7c00;
/// `MLX5_CQE_*`.
pub(crate) const REQUEST: u8 = 0;
pub(crate) const RECEIVED_WITH_WRITE: u8 = 1;
pub(crate) const RECEIVED: u8 = 2;
pub(crate) const RECEIVED_WITH_IMMEDIATE: u8 = 3;
pub(crate) const REQUEST_ERROR: u8 = 13;
pub(crate) const RECEIVE_ERROR: u8 = 14;

/// `MLX5_QP_ST_*`.
pub(crate) const RELIABLE: u8 = 0;
pub(crate) const DATAGRAM: u8 = 2;
pub(crate) const QP1: u8 = 8;
pub(crate) const DOMAIN: u32 = 7;

pub(crate) const fn gid(position: usize) -> [u8; 16] {
    [
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xff,
        0xff,
        10,
        0,
        0,
        position as u8 + 1,
    ]
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) kind: u8,
    pub(crate) syndrome: u8,
    pub(crate) opcode: u8,
    pub(crate) index: u16,
    pub(crate) len: u32,
    pub(crate) extra: u32,
    pub(crate) sender: u32,
    pub(crate) lid: u16,
    /// The VLAN of a datagram, or `None` if the datagram has no tag.
    pub(crate) vlan: Option<u16>,
}

/// A queue pair with completion queues, and a key for [`DATA`].
pub(crate) struct Pair {
    pub(crate) position: usize,
    pub(crate) number: u32,
    pub(crate) key: u32,
    completions: [u32; 2],
    /// Selects the pages and the doorbell record that the queue pair uses.
    slot: u64,
    posted: [u16; 2],
    read: [u64; 2],
}

pub(crate) fn made(it: &mut Driver, input: &[u8]) -> u32 {
    let answer = it.execute(input, 16);
    assert_eq!(answer.status(), 0, "{:x?}", &input[..2]);
    answer.number(9, 3) as u32
}

/// Creates a key for the given pages of [`DATA`], in this order. Programs name the first page by [`NAMED`].
pub(crate) fn key(it: &mut Driver, rights: u16, pages: &[u64]) -> u32 {
    let input = with(
        command(0x200, 0, 0x110),
        0x12,
        &(rights | 0x100).to_be_bytes(),
    );
    let input = with(input, 0x14, &[0xff, 0xff, 0xff, 0x5a]);
    let input = with(input, 0x1c, &DOMAIN.to_be_bytes());
    let input = with(input, 0x20, &NAMED.to_be_bytes());
    let size = pages.len() as u64 * 4096 - (NAMED & 0xfff);
    let input = with(input, 0x28, &size.to_be_bytes());
    let mut input = with(input, 0x48, &[0, 0, 0, 12]);
    input[0x60..0x64].copy_from_slice(&(pages.len() as u32 / 2).to_be_bytes());
    for page in pages {
        // with the bits that mark a page as present
        input.extend((DATA + page * 4096 + 3).to_be_bytes());
    }
    made(it, &input) << 8 | 0x5a
}

/// Sets RoCE address 0 of the function in use.
pub(crate) fn address(it: &mut Driver, gid: [u8; 16], version: u8) {
    tagged_address(it, gid, version, [0; 2]);
}

/// Sets RoCE address 0 of the function in use, with the VLAN's valid bit and number.
pub(crate) fn tagged_address(it: &mut Driver, gid: [u8; 16], version: u8, vlan: [u8; 2]) {
    let input = with(command(0x761, 0, 0x30), 0x10, &gid);
    let input = with(input, 0x20, &vlan);
    let input = with(input, 0x22, &MACS[it.position]);
    assert_eq!(it.execute(&with(input, 0x2b, &[version]), 16).status(), 0);
}

impl Pair {
    /// Creates a queue pair of the function `position`, in the reset state. A function has up to 4 queue pairs, by
    /// `slot`.
    pub(crate) fn new(it: &mut Driver, position: usize, slot: u64, service: u8) -> Pair {
        Pair::with_receives(it, position, slot, service, 0)
    }

    /// Creates a queue pair like [`Pair::new`]. `receives` contains the kind of its receive queue, and the number of a
    /// shared receive queue.
    pub(crate) fn with_receives(
        it: &mut Driver,
        position: usize,
        slot: u64,
        service: u8,
        receives: u32,
    ) -> Pair {
        it.position = position;
        it.set_queue();
        if slot == 0 {
            it.event_queue(0, 1 << 0x11 | 1 << 0x13 | 1 << 0x14);
            address(it, gid(position), 2);
        }
        let mut pair = Pair {
            position,
            number: 0,
            key: key(
                it,
                ALL_RIGHTS,
                &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            ),
            completions: [0; 2],
            slot,
            posted: [0; 2],
            read: [0; 2],
        };
        for index in 0..2 {
            // the entries begin half a page after the page's start
            let input = with(command(0x400, 0, 0x118), 0x1a, &[8]);
            let input = with(input, 0x1c, &[4]);
            let input = with(input, 0x24, &1u32.to_be_bytes());
            let page = pair.page(index as u64);
            it.store(page, &[0xf1; 4096]);
            pair.completions[index] = made(it, &with(input, 0x110, &page.to_be_bytes()));
        }
        it.store(pair.record(), &[0; 8]);
        let input = with(command(0x500, 0, 0x118), 0x19, &[service]);
        let input = with(input, 0x1c, &DOMAIN.to_be_bytes());
        // 16 receive requests of 64 bytes, 32 blocks of send requests
        let input = with(input, 0x21, &[4 << 3 | 2, 5 << 3]);
        let input = with(input, 0x28, &0xabcdu32.to_be_bytes());
        let input = with(input, 0x94, &pair.completions[0].to_be_bytes());
        let input = with(input, 0xb4, &pair.completions[1].to_be_bytes());
        let input = with(input, 0xb8, &pair.record().to_be_bytes());
        let input = with(input, 0xc4, &receives.to_be_bytes());
        let page = pair.page(2).to_be_bytes();
        pair.number = made(it, &with(input, 0x110, &page));
        pair
    }

    fn page(&self, index: u64) -> u64 {
        PAGES + (self.slot * 3 + index) * 4096
    }

    fn record(&self) -> u64 {
        RECORDS + self.slot * 8
    }

    pub(crate) fn enter<'a>(&self, it: &'a mut Driver) -> &'a mut Driver {
        it.position = self.position;
        it.set_queue();
        it
    }

    /// Executes a command on the queue pair.
    pub(crate) fn modify(&self, it: &mut Driver, opcode: u16, fields: &[(usize, &[u8])]) {
        let mut input = with(command(opcode, 0, 0x110), 8, &self.number.to_be_bytes());
        for (at, bytes) in fields {
            input = with(input, *at, bytes);
        }
        let answer = self.enter(it).execute(&input, 16);
        assert_eq!(answer.status(), 0, "{opcode:#x}");
    }

    pub(crate) fn state(&self, it: &mut Driver) -> u8 {
        let query = with(command(0x50b, 0, 16), 8, &self.number.to_be_bytes());
        self.enter(it).execute(&query, 0x110).output[0x18] >> 4
    }

    /// Connects a reliable queue pair to the queue pair `to` of the function `there`.
    ///
    /// - It accepts requests according to the rights `rre`, `rwe` and `rae`.
    /// - It waits 4.096 µs * 2^10 for an answer, and retries twice.
    /// - It waits 10.24 ms for a receive request of the peer, and retries twice.
    pub(crate) fn connect(&self, it: &mut Driver, there: usize, to: u32) {
        self.modify(it, 0x502, &[]);
        let mask = 0xeu32.to_be_bytes();
        let to = to.to_be_bytes();
        let (gid, mac) = (gid(there), MACS[there]);
        let rights: (usize, &[u8]) = (0xaa, &[0xe0]);
        self.modify(
            it,
            0x503,
            &[
                (0x10, &mask),
                (0x2c, &to),
                (0x40, &gid),
                (0x56, &mac),
                rights,
                (0xac, &[20]),
            ],
        );
        self.modify(it, 0x504, &[(0x38, &[10 << 3]), (0x89, &[1, 1 << 5])]);
    }

    /// Sets a datagram queue pair with a key to the ready state.
    pub(crate) fn ready(&self, it: &mut Driver, key: u32) {
        self.modify(it, 0x502, &[(0xc0, &key.to_be_bytes())]);
        self.modify(it, 0x503, &[]);
        self.modify(it, 0x504, &[]);
    }

    /// Posts a receive request with these segments. Rings no doorbell.
    pub(crate) fn receive(&mut self, it: &mut Driver, segments: &[(u64, u32)]) {
        let mut request = [0; 64];
        let end = (0u64, 0u32, 0x100u32);
        let all = segments.iter().map(|it| (it.0, it.1, self.key));
        for (slot, (address, len, key)) in request.chunks_mut(16).zip(all.chain([end])) {
            slot[..4].copy_from_slice(&len.to_be_bytes());
            slot[4..8].copy_from_slice(&key.to_be_bytes());
            slot[8..].copy_from_slice(&address.to_be_bytes());
        }
        let at = self.page(2) + u64::from(self.posted[0] % 16) * 64;
        self.enter(it).store(at, &request);
        self.posted[0] += 1;
        it.store(self.record(), &u32::from(self.posted[0]).to_be_bytes());
    }

    /// Empties both queues, as a driver does after it resets the queue pair.
    pub(crate) fn restart(&mut self, it: &mut Driver) {
        self.posted = [0; 2];
        self.enter(it).store(self.record(), &[0; 8]);
    }

    /// Does the same as [`Pair::send`], for a request that requests no completion.
    pub(crate) fn post_silent(&mut self, it: &mut Driver, opcode: u8, solicits: bool, rest: &[u8]) {
        let slot = u64::from(self.posted[1] % 32) * 64;
        self.post(it, opcode, 0, rest);
        let flags = [u8::from(solicits) * 2];
        it.store(self.page(2) + SENDS + slot + 11, &flags);
        self.ring(it, opcode);
    }

    /// Posts a send request that requests a completion, and rings the doorbell. `rest` follows the control segment.
    pub(crate) fn send(&mut self, it: &mut Driver, opcode: u8, immediate: u32, rest: &[u8]) {
        self.post(it, opcode, immediate, rest);
        self.ring(it, opcode);
    }

    pub(crate) fn post(&mut self, it: &mut Driver, opcode: u8, immediate: u32, rest: &[u8]) {
        let mut request = vec![0; 16];
        request[1..3].copy_from_slice(&self.posted[1].to_be_bytes());
        request[3] = opcode;
        let segments = 1 + rest.len().div_ceil(16) as u32;
        request[4..8].copy_from_slice(&(self.number << 8 | segments).to_be_bytes());
        request[11] = 8 | 2;
        request[12..16].copy_from_slice(&immediate.to_be_bytes());
        request.extend(rest);
        self.enter(it);
        for block in request.chunks(64) {
            let slot = u64::from(self.posted[1] % 32) * 64;
            it.store(self.page(2) + SENDS + slot, block);
            self.posted[1] += 1;
        }
        let counter = u32::from(self.posted[1]).to_be_bytes();
        it.store(self.record() + 4, &counter);
    }

    pub(crate) fn ring(&self, it: &mut Driver, opcode: u8) {
        let doorbell = [u32::from(opcode), self.number << 8].map(u32::to_be_bytes);
        self.enter(it).write(UAR + 0x900, &doorbell.concat());
    }

    /// The next completion of the send queue (0) or of the receive queue (1).
    pub(crate) fn next(&mut self, it: &mut Driver, queue: usize) -> Option<Done> {
        let slot = self.read[queue] % 16;
        let at = self.page(queue as u64) + 2048 + slot * 64;
        let entry = self.enter(it).load(at, 64);
        let is_new = entry[63] >> 4 != 15 && u64::from(entry[63] & 1) == self.read[queue] / 16 % 2;
        if !is_new {
            return None;
        }
        self.read[queue] += 1;
        assert_eq!(number(&entry[32..36]), 0xabcd, "the program's index");
        assert_eq!(number(&entry[57..60]), u64::from(self.number));
        let word = |at: usize| number(&entry[at..at + 4]) as u32;
        Some(Done {
            kind: entry[63] >> 4,
            syndrome: entry[55],
            opcode: entry[56],
            index: number(&entry[60..62]) as u16,
            len: word(44),
            extra: word(36),
            sender: word(24),
            lid: word(20) as u16,
            vlan: (entry[29] & 1 == 1).then(|| word(28) as u16),
        })
    }

    /// Requests an event for the next completion of a queue.
    pub(crate) fn arm(&self, it: &mut Driver, queue: usize, only_solicited: bool) {
        let read = self.read[queue] as u32 | u32::from(only_solicited) << 24;
        let doorbell = [read, self.completions[queue]].map(u32::to_be_bytes);
        self.enter(it).write(UAR + 0x20, &doorbell.concat());
    }
}

/// A data segment.
pub(crate) fn segment(key: u32, address: u64, len: u32) -> Vec<u8> {
    [
        &len.to_be_bytes()[..],
        &key.to_be_bytes(),
        &address.to_be_bytes(),
    ]
    .concat()
}

/// A segment with inline data.
pub(crate) fn inline(data: &[u8]) -> Vec<u8> {
    let len = 1 << 31 | data.len() as u32;
    let mut segment = [&len.to_be_bytes()[..], data].concat();
    segment.resize(segment.len().next_multiple_of(16), 0);
    segment
}

/// A segment with an address of the peer.
pub(crate) fn remote(key: u32, address: u64) -> Vec<u8> {
    [&address.to_be_bytes()[..], &key.to_be_bytes(), &[0; 4]].concat()
}

/// Advances the time in steps of a millisecond.
pub(crate) fn pass(it: &mut Driver, from: u64, to: u64) {
    for millisecond in from..to {
        it.fabric.advance(Duration::from_millis(millisecond));
    }
}
