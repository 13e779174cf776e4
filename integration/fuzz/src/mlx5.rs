// SPDX-License-Identifier: Apache-2.0
//! A hostile guest of a modelled ConnectX card. It writes registers, doorbells, commands, requests, and its own memory
//! at any time.

use crate::hardware::{Input, MEMORY, SIZE};
use hardware::mlx5::{
    control,
    fabric::{Card, Fabric, LinkLayer},
    objects::KINDS,
};
use std::time::Duration;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const QUEUE: u64 = MEMORY;
const INPUT: u64 = MEMORY + 0x1000;
const OUTPUT: u64 = MEMORY + 0x4000;
const PAGES: u64 = MEMORY + 0x8000;
/// Address of the doorbell records.
const RECORDS: u64 = MEMORY + 0x1_0000;
const BLOCK: usize = 512;
const MAILBOX: u64 = 1024;
const UAR: u64 = 16 * 4096;
/// The first queue pair of each function, and the memory key of its requests.
const PAIR: [u8; 3] = [1, 0, 0];
const KEY: u32 = 65 << 8;
const PAIR_PAGE: u64 = PAGES + 4 * 4096;
/// Address of the send requests, which follow the receive requests.
const SENDS: u64 = PAIR_PAGE + 4 * 64;
const PAIR_RECORD: u64 = RECORDS + 16;
/// A shared receive queue, and the queue pair that uses it.
const SHARED: [u8; 3] = [3, 0, 0];
const SHARED_PAGE: u64 = PAGES + 5 * 4096;
const SHARED_RECORD: u64 = RECORDS + 24;
const SHARING_PAIR: [u8; 3] = [1, 0, 1];
const SHARING_PAGE: u64 = PAGES + 6 * 4096;
const SHARING_RECORD: u64 = RECORDS + 32;

struct Guest {
    fabric: Fabric,
    position: usize,
}

impl Guest {
    fn store(&self, address: u64, bytes: &[u8]) {
        let memory = &self.fabric.functions()[self.position].memory;
        // an address outside of the guest's memory is no error of the model
        let _stored = memory.write(address, bytes);
    }

    fn chain(&self, first: u64, data: &[u8]) {
        for (number, part) in (0u32..).zip(data.chunks(BLOCK)) {
            let at = first + u64::from(number) * MAILBOX;
            let mut mailbox = [0; 576];
            mailbox[..part.len()].copy_from_slice(part);
            mailbox[560..568].copy_from_slice(&(at + MAILBOX).to_be_bytes());
            mailbox[568..572].copy_from_slice(&number.to_be_bytes());
            self.store(at, &mailbox);
        }
    }

    /// Executes a command with at most 12 mailboxes for each direction. Returns the status.
    fn execute(&mut self, input: &[u8], output: usize) -> u8 {
        self.chain(INPUT, input.get(16..).unwrap_or_default());
        self.chain(OUTPUT, &vec![0; output.saturating_sub(16)]);
        let mut entry = [0; 64];
        (entry[0], entry[63]) = (7, 1);
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&INPUT.to_be_bytes());
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        entry[48..56].copy_from_slice(&OUTPUT.to_be_bytes());
        entry[56..60].copy_from_slice(&(output as u32).to_be_bytes());
        self.store(QUEUE, &entry);
        self.fabric.write(self.position, 0x18, &[0, 0, 0, 1]);
        let mut status = [0xff];
        let memory = &self.fabric.functions()[self.position].memory;
        // the guest may have moved the command queue
        let _read = memory.read(QUEUE + 32, &mut status);
        status[0]
    }

    /// Sets the address of the command queue.
    fn start(&mut self) {
        let address = (QUEUE as u32).to_be_bytes();
        self.fabric.write(self.position, 0x10, &[0; 4]);
        self.fabric.write(self.position, 0x14, &address);
    }

    /// Makes an event queue, a completion queue, two keys, a send and a receive queue, a table with the receive queue,
    /// a shared receive queue, and two queue pairs, which are connected to the other function's queue pairs.
    fn queues(&mut self) {
        let made = |opcode: u16, fields: &[(usize, &[u8])]| {
            let mut command = vec![0; 0x118];
            command[..2].copy_from_slice(&opcode.to_be_bytes());
            for (at, bytes) in fields {
                command[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            command
        };
        let page = |index: u64| (PAGES + index * 4096).to_be_bytes();
        let record = |index: u64| (RECORDS + index * 8).to_be_bytes();
        for command in [
            made(
                0x301,
                &[(0x1c, &[4]), (0x58, &[0xff; 8]), (0x110, &page(0))],
            ),
            made(0x400, &[(0x1c, &[4]), (0x27, &[1]), (0x110, &page(1))]),
            made(0x200, &[]),
            made(
                0x904,
                &[
                    (0x2b, &[1]),
                    (0x60, &record(0)),
                    (0x71, &[6, 0, 4]),
                    (0x110, &page(2)),
                ],
            ),
            made(0x905, &[(0xb, &[1]), (0x21, &[0x10])]),
            made(
                0x908,
                &[
                    (0x2b, &[1]),
                    (0x50, &[0x10]),
                    (0x60, &record(1)),
                    (0x71, &[5, 0, 4]),
                    (0x110, &page(3)),
                ],
            ),
            made(0x909, &[(0xb, &[1]), (0x21, &[0x10])]),
            made(0x916, &[(0x3b, &[1]), (0x113, &[1])]),
            made(0x200, &[(0x12, &[0x7c]), (0x1c, &[0x80])]),
            made(0x761, &[(0x10, &gid(self.position)), (0x2b, &[2])]),
            made(
                0x500,
                &[
                    (0x21, &[2 << 3 | 2, 4 << 3]),
                    (0x97, &[1]),
                    (0xb7, &[1]),
                    (0xb8, &PAIR_RECORD.to_be_bytes()),
                    (0x110, &PAIR_PAGE.to_be_bytes()),
                ],
            ),
            made(
                0x90c,
                &[
                    (0x60, &SHARED_RECORD.to_be_bytes()),
                    (0x71, &[6, 0, 4]),
                    (0x110, &SHARED_PAGE.to_be_bytes()),
                ],
            ),
            made(
                0x500,
                &[
                    (0x22, &[4 << 3]),
                    (0x97, &[1]),
                    (0xb7, &[1]),
                    (0xb8, &SHARING_RECORD.to_be_bytes()),
                    (0xc4, &[1]),
                    (0xc5, &SHARED),
                    (0x110, &SHARING_PAGE.to_be_bytes()),
                ],
            ),
        ] {
            self.execute(&command, 16);
        }
        for pair in [PAIR, SHARING_PAIR] {
            for command in [
                made(0x502, &[(9, &pair)]),
                made(
                    0x503,
                    &[
                        (9, &pair),
                        (0x13, &[0xe]),
                        (0x2d, &pair),
                        (0x37, &[3 - self.position as u8]),
                        (0x40, &gid(1 - self.position)),
                        (0xaa, &[0xe0]),
                    ],
                ),
                made(
                    0x504,
                    &[(9, &pair), (0x38, &[10 << 3]), (0x89, &[1, 1 << 5])],
                ),
            ] {
                self.execute(&command, 16);
            }
        }
    }
}

fn gid(position: usize) -> [u8; 16] {
    [position as u8 + 1; 16]
}

/// Overwrites numbers in a command or a request.
fn change(bytes: &mut [u8], input: &mut Input<'_>) {
    for _ in 0..input.byte() % 16 {
        let at = usize::from(input.byte()) * 4 % bytes.len().max(1);
        let value = input.number().to_be_bytes();
        let len = value.len().min(bytes.len() - at);
        bytes[at..at + len].copy_from_slice(&value[..len]);
    }
}

/// Runs a guest on each link layer.
///
/// # Panics
/// A function has more objects than its limits allow, or no longer works after a reset.
pub fn guest(input: &[u8]) {
    guest_of(LinkLayer::Ethernet, Input(input));
    guest_of(LinkLayer::InfiniBand, Input(input));
}

fn guest_of(layer: LinkLayer, mut input: Input<'_>) {
    let card = Card {
        macs: MACS.to_vec(),
        is_virtual: false,
    };
    let mut guest = Guest {
        fabric: Fabric::new(layer, &[card]),
        position: 0,
    };
    for position in 0..2 {
        guest.position = position;
        let memory = &mut guest.fabric.function_mut(position).memory;
        memory.map_anonymous(MEMORY, SIZE).expect("memory");
        guest.start();
        guest.queues();
    }
    while !input.0.is_empty() {
        let action = input.byte();
        guest.position = usize::from(action >> 7);
        match action & 0x7f {
            0 => {
                let (offset, value) = (input.number(), input.number());
                let len = usize::from(input.byte() % 9);
                let data = &value.to_be_bytes()[..len];
                guest.fabric.write(guest.position, offset, data);
            }
            1 | 2 => {
                let [high, low, length, output] = input.bytes();
                let mut command = vec![0; 16 + usize::from(length) * 16];
                let opcode = match action & 1 {
                    0 => u16::from_be_bytes([high & 0xf, low]),
                    _ => KINDS[usize::from(high) % KINDS.len()].create,
                };
                change(&mut command, &mut input);
                command[..2].copy_from_slice(&opcode.to_be_bytes());
                guest.execute(&command, 8 + usize::from(output) * 16);
            }
            3 => {
                let mut request = [0; 64];
                (request[3], request[7], request[11]) = (input.byte(), 4, 8);
                request[6] = 1;
                change(&mut request[8..], &mut input);
                let slot = u64::from(input.byte() % 16);
                guest.store(PAGES + 2 * 4096 + slot * 64, &request);
                let counter = (slot as u32 + 1).to_be_bytes();
                guest.store(RECORDS + 4, &counter);
                let ring = [0, 0, 0, 0, 0, 0, 1, 4];
                guest.fabric.write(guest.position, UAR + 0x800, &ring);
            }
            4 => {
                let at = MEMORY + u64::from(u16::from_le_bytes(input.bytes())) * 2;
                let value = input.number();
                guest.store(at, &value.to_be_bytes());
            }
            5 => {
                let mut data = [0; 16];
                let len = usize::from(input.byte() % 17);
                let offset = input.number();
                let function = guest.fabric.function_mut(guest.position);
                function.read(offset, &mut data[..len]);
            }
            6 => {
                let orders = ["link all down", "link all up", "unplug all", "plug all"];
                let order = orders[usize::from(input.byte()) % orders.len()];
                control::order(&mut guest.fabric, order).expect("an order");
            }
            7 => guest.queues(),
            8 => {
                let mut request = [0; 128];
                let [opcode, segments, slot] = input.bytes();
                (request[3], request[7], request[11]) = (opcode % 0x28, segments & 0x3f, 8);
                request[4..7].copy_from_slice(&PAIR);
                for segment in request[16..].chunks_exact_mut(16) {
                    segment[3] = 64;
                    segment[4..8].copy_from_slice(&KEY.to_be_bytes());
                    segment[8..].copy_from_slice(&MEMORY.to_be_bytes());
                }
                change(&mut request[8..], &mut input);
                guest.store(SENDS + u64::from(slot % 16) * 64, &request);
                guest.store(PAIR_RECORD + 7, &[slot.wrapping_add(1)]);
                let ring = [&[0; 4], &PAIR[..], &[segments]].concat();
                guest.fabric.write(guest.position, UAR + 0x800, &ring);
            }
            9 => {
                let mut list = [0; 64];
                change(&mut list, &mut input);
                let posted = input.byte();
                guest.store(PAIR_PAGE + u64::from(posted % 4) * 64, &list);
                guest.store(PAIR_RECORD + 3, &[posted.wrapping_add(1)]);
                let time = Duration::from_millis(u64::from(input.byte()));
                guest.fabric.advance(time);
            }
            10 => {
                let mut frame = [0; 128];
                frame[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 2]);
                frame[12..16].copy_from_slice(&[0x88, 9, 1, 1]);
                change(&mut frame[16..], &mut input);
                let [slot, len] = input.bytes();
                let mut request = [0; 64];
                (request[3], request[6], request[7], request[11]) = (0xa, 1, 4, 8);
                request[29] = 16;
                request[30..46].copy_from_slice(&frame[..16]);
                request[51] = len % 113;
                request[52..56].copy_from_slice(&KEY.to_be_bytes());
                request[56..].copy_from_slice(&MEMORY.to_be_bytes());
                guest.store(MEMORY, &frame[16..]);
                guest.store(PAGES + 2 * 4096 + u64::from(slot % 16) * 64, &request);
                guest.store(RECORDS + 7, &[slot % 16 + 1]);
                let ring = [0, 0, 0, 0, 0, 0, 1, 4];
                guest.fabric.write(guest.position, UAR + 0x800, &ring);
            }
            11 => {
                let mut list = [0; 64];
                (list[19], list[38]) = (64, 1);
                list[20..24].copy_from_slice(&KEY.to_be_bytes());
                list[24..32].copy_from_slice(&MEMORY.to_be_bytes());
                change(&mut list, &mut input);
                let [slot, posted, limit] = input.bytes();
                guest.store(SHARED_PAGE + u64::from(slot % 16) * 64, &list);
                guest.store(SHARED_RECORD + 3, &[posted]);
                let mut arm = vec![0; 0x110];
                (arm[..2]).copy_from_slice(&[0x9, 0xd]);
                (arm[9..12]).copy_from_slice(&SHARED);
                arm[0x57] = limit;
                guest.execute(&arm, 16);
                let mut request = [0; 64];
                (request[3], request[7], request[11]) = (0xa, 2, 8);
                request[4..7].copy_from_slice(&SHARING_PAIR);
                request[16..20].copy_from_slice(&[0x80, 0, 0, 4]);
                change(&mut request[8..], &mut input);
                guest.store(SHARING_PAGE + u64::from(slot % 16) * 64, &request);
                guest.store(SHARING_RECORD + 7, &[slot.wrapping_add(1)]);
                let ring = [&[0; 4], &SHARING_PAIR[..], &[2]].concat();
                guest.fabric.write(guest.position, UAR + 0x800, &ring);
            }
            _ => guest.start(),
        }
    }
    for position in 0..2 {
        guest.position = position;
        for kind in KINDS {
            let count = guest.fabric.functions()[position].objects.ids(kind.create);
            assert!(count.count() <= kind.most);
        }
        guest.fabric.function_mut(position).reset();
        guest.start();
        let nop = [0x08, 0x0d, 0, 0, 0, 0, 0, 0];
        assert_eq!(guest.execute(&nop, 16), 0, "it works after a reset");
    }
}
