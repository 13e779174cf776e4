// SPDX-License-Identifier: Apache-2.0
//! Two hostile guests with modelled eRDMA functions. They write registers, doorbells, commands, requests, and their own
//! memory in any order.
//!
//! An input is a list of actions. A number of an action is literal, or useful: near a known address, a known key, or
//! the end of a range. With useful numbers, a fuzzer soon finds requests that succeed.

use hardware::erdma::{
    Protocol, control,
    device::Device,
    fabric::{Fabric, Next},
    objects::MAX_QUEUE_PAIRS,
};
use std::time::Duration;

pub(crate) const MEMORY: u64 = 0x10_0000;
pub(crate) const SIZE: usize = 0x2_0000;
const PAGE: u64 = 4096;
/// Addresses of a guest's queues and data.
const COMMANDS: u64 = MEMORY;
const COMMAND_COMPLETIONS: u64 = MEMORY + PAGE;
const EVENTS: u64 = MEMORY + 2 * PAGE;
const COMPLETIONS: u64 = MEMORY + 3 * PAGE;
const SEND: u64 = MEMORY + 4 * PAGE;
const RECEIVE: u64 = MEMORY + 5 * PAGE;
const DATA: u64 = MEMORY + 6 * PAGE;
const COMMAND_SLOTS: u16 = 64;
const DEPTH: u16 = 64;
const DOMAIN: u32 = 5;
const ALL_RIGHTS: u32 = 31;
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

/// The unread bytes of an input. Reads beyond the end return zeroes.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            0 => u64::from_le_bytes(self.bytes()),
            1 => u64::from(u32::from_le_bytes(self.bytes())),
            2 => u64::MAX - u64::from(self.byte()),
            3 => MEMORY + SIZE as u64 - u64::from(self.byte()),
            4 => DATA + u64::from(u16::from_le_bytes(self.bytes())),
            5 => 1 << (self.byte() % 64),
            6 => 1 << 8,
            7 => 0xffff_ff00,
            8 => 12 << 27 | u64::from(self.byte()),
            9 => MEMORY + PAGE * u64::from(self.byte() % 32),
            it => u64::from(it),
        }
    }
}

/// A guest with its eRDMA function.
struct Guest {
    position: usize,
    commands: u16,
    sent: u16,
    received: u16,
}

impl Guest {
    fn write(&self, fabric: &mut Fabric, offset: u64, value: u64) {
        fabric.write(self.position, offset, &value.to_le_bytes());
    }

    fn store(&self, fabric: &Fabric, address: u64, bytes: &[u8]) {
        let stored = fabric.device(self.position).memory.write(address, bytes);
        // an address outside of the guest's memory is no error of the model
        let _ = stored;
    }

    /// Starts the function, and makes queues, a queue pair and a memory region.
    fn start(&mut self, fabric: &mut Fabric) {
        (self.commands, self.sent, self.received) = (0, 0, 0);
        let registers = [
            (0x10, 1),
            (0x20, COMMANDS),
            (0x28, COMMAND_COMPLETIONS),
            (0x38, EVENTS),
            (0x40, EVENTS + 2048),
            (0x30, u64::from(COMMAND_SLOTS)),
            (0x34, 16),
            (0x48, 16),
            (0x10, 2),
        ];
        for (register, value) in registers {
            fabric.write(self.position, register, &(value as u32).to_le_bytes());
            if matches!(register, 0x20..0x30 | 0x38..0x44) {
                fabric.write(self.position, register + 4, &[0; 4]);
            }
        }
        let words = |module: u32, code: u32, rest: &[u32]| {
            let mut command = [0; 128];
            let all = [&[module << 24 | code << 16, 0], rest].concat();
            for (bytes, word) in command.chunks_exact_mut(4).zip(all) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            command
        };
        let (depth, low) = (6, |address: u64| address as u32);
        for command in [
            words(
                1,
                0,
                &[low(EVENTS) + 1024, 0, 1 | 1 << 8 | 4 << 16 | 1 << 24],
            ),
            words(0, 4, &[depth << 24 | 1, low(COMPLETIONS), 0, 1 << 16 | 1]),
            words(
                0,
                1,
                &[
                    depth << 20 | 1,
                    depth << 20 | DOMAIN,
                    1,
                    1,
                    low(SEND),
                    0,
                    low(RECEIVE),
                    0,
                    2,
                    2,
                ],
            ),
            words(
                0,
                8,
                &[
                    1 << 31 | 1,
                    DOMAIN << 12 | ALL_RIGHTS << 1,
                    low(DATA),
                    0,
                    8192,
                    12 << 27 | 2,
                    low(DATA),
                    0,
                ]
                .into_iter()
                .chain([low(DATA + PAGE), 0])
                .collect::<Vec<_>>(),
            ),
        ] {
            self.command(fabric, &command);
        }
    }

    fn command(&mut self, fabric: &mut Fabric, command: &[u8; 128]) {
        let position = self.commands.wrapping_add(4);
        let mut command = *command;
        let header = u64::from_le_bytes(*command.first_chunk().expect("128 bytes"));
        let header = header & !(7 << 52) | 3 << 52 | u64::from(position);
        command[..8].copy_from_slice(&header.to_le_bytes());
        let at = COMMANDS + u64::from(self.commands % COMMAND_SLOTS) * 32;
        self.store(fabric, at, &command);
        self.commands = position;
        self.write(fabric, 0x200, u64::from(position));
    }

    /// Connects queue pair 1 of the guest to queue pair 1 of the guest at position `peer`.
    fn connect(&mut self, fabric: &mut Fabric, peer: usize) {
        let pair = fabric.device(peer).pairs.get(&1);
        let cookie = pair.map_or(0, |pair| pair.cookie);
        let mut command = [0; 128];
        command[2] = 3;
        let words = [2 << 24 | 1, cookie, 1 | 1 << 2 | 1 << 5];
        for (bytes, word) in command[8..].chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&u32::to_le_bytes(word));
        }
        if fabric.device(peer).protocol == Protocol::Roce {
            command[12..16].copy_from_slice(&[1, 0, 0, 0]);
            command[44..50].copy_from_slice(&fabric.device(peer).mac);
            command[52..68].copy_from_slice(&gid(peer));
            let mut set = [0; 128];
            (set[2], set[8]) = (14, 1);
            set[12..28].copy_from_slice(&gid(self.position));
            self.command(fabric, &set);
            self.command(fabric, &command);
            command[11] = 3;
            command[16] = 1;
        }
        self.command(fabric, &command);
    }

    fn send(&mut self, fabric: &mut Fabric, input: &mut Input) {
        let [opcode, flags, count, slots, changes] = input.bytes();
        let slots = u16::from(slots % 4) + 1;
        let mut request = [0; 128];
        let header = u64::from(opcode) << 27
            | u64::from(flags & 0x1f) << 22
            | u64::from(count) << 56
            | u64::from(slots - 1) << 52
            | 1 << 32;
        request[..8].copy_from_slice(&header.to_le_bytes());
        for _ in 0..changes % 16 {
            change(&mut request, input);
        }
        for (slot, bytes) in (0..slots).zip(request.chunks_exact(32)) {
            let at = SEND + u64::from(self.sent.wrapping_add(slot) % DEPTH) * 32;
            self.store(fabric, at, bytes);
        }
        self.sent = self.sent.wrapping_add(slots);
        self.write(fabric, 0x1000, 1 << 32 | u64::from(self.sent));
    }

    fn receive(&mut self, fabric: &mut Fabric, input: &mut Input) {
        let (address, len, key) = (input.number(), input.number() as u32, input.number() as u32);
        let mut entry = [0; 32];
        entry[16..24].copy_from_slice(&address.to_le_bytes());
        entry[24..28].copy_from_slice(&len.to_le_bytes());
        entry[28..].copy_from_slice(&key.to_le_bytes());
        let at = RECEIVE + u64::from(self.received % DEPTH) * 32;
        self.store(fabric, at, &entry);
        self.received = self.received.wrapping_add(1);
        self.write(fabric, 0x61000, 1 << 32 | u64::from(self.received));
    }
}

fn gid(position: usize) -> [u8; 16] {
    let mut gid = GID;
    gid[15] = position as u8 + 1;
    gid
}

/// Overwrites a number in a request or a command, but not in the header.
fn change(bytes: &mut [u8; 128], input: &mut Input) {
    let at = usize::from(input.byte()) % 120;
    let value = input.number().to_le_bytes();
    let len = if at.is_multiple_of(8) { 8 } else { 4 };
    // the caller sets the header
    if at >= 8 {
        bytes[at..at + len].copy_from_slice(&value[..len]);
    }
}

/// Runs two guests.
///
/// # Panics
/// The model has more objects than its limits allow, or no longer works after a reset.
pub fn guest(input: &[u8]) {
    let mut input = Input(input);
    let protocol = match input.byte() & 1 {
        0 => Protocol::Iwarp,
        _ => Protocol::Roce,
    };
    let mut fabric = Fabric::default();
    let mut guests = [1, 2].map(|last| {
        let mut device = Device::new([2, 0, 0, 0, 0, last], protocol);
        device.memory.map_anonymous(MEMORY, SIZE).expect("memory");
        let position = fabric.add(device);
        let (commands, sent, received) = (0, 0, 0);
        Guest {
            position,
            commands,
            sent,
            received,
        }
    });
    for guest in &mut guests {
        guest.start(&mut fabric);
    }
    let [near, far] = &mut guests;
    near.connect(&mut fabric, 1);
    far.connect(&mut fabric, 0);
    let mut time = 0;
    while !input.0.is_empty() {
        let action = input.byte();
        let guest = if action & 0x80 == 0 {
            &mut *near
        } else {
            &mut *far
        };
        match action & 0x7f {
            0 => {
                let offset = input.number();
                let (value, len) = (input.number(), usize::from(input.byte() % 9));
                fabric.write(guest.position, offset, &value.to_le_bytes()[..len]);
            }
            1 => {
                let [module, code, changes] = input.bytes();
                let mut command = [0; 128];
                (command[2], command[3]) = (code, module);
                for _ in 0..changes % 16 {
                    change(&mut command, &mut input);
                }
                guest.command(&mut fabric, &command);
            }
            2 => guest.send(&mut fabric, &mut input),
            3 => guest.receive(&mut fabric, &mut input),
            4 => {
                let at = MEMORY + u64::from(u16::from_le_bytes(input.bytes())) * 2;
                let value = input.number();
                guest.store(&fabric, at, &value.to_le_bytes());
            }
            5 => time += u64::from(input.byte()) * 100,
            6 => guest.start(&mut fabric),
            7 => near.connect(&mut fabric, 1),
            8 => far.connect(&mut fabric, 0),
            9 => {
                let orders = [
                    "link all down",
                    "link all up",
                    "loss all 50",
                    "loss all 0",
                    "delay all 100",
                    "delay all 0",
                    "unplug 02:00:00:00:00:02",
                    "plug all",
                    "no-receive 100",
                    "status",
                ];
                let order = orders[usize::from(input.byte()) % orders.len()];
                control::order(&mut fabric, order).expect("an order");
            }
            10 => {
                let mut data = [0; 16];
                let len = usize::from(input.byte() % 17);
                fabric
                    .device(guest.position)
                    .read(input.number(), &mut data[..len]);
            }
            _ => {}
        }
        settle(&mut fabric, time);
    }
    for device in fabric.devices() {
        assert!(device.pairs.len() <= MAX_QUEUE_PAIRS);
        assert!(device.gids.len() <= 128 && device.handles.len() <= 1024);
    }
    control::order(&mut fabric, "plug all").expect("an order");
    near.start(&mut fabric);
    assert!(
        fabric.device(0).pairs.contains_key(&1),
        "it works after a reset"
    );
}

fn settle(fabric: &mut Fabric, time: u64) {
    while fabric.advance(Duration::from_millis(time), 64) == Next::Now {}
}
