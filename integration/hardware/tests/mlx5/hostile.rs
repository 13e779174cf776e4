// SPDX-License-Identifier: Apache-2.0
//! A hostile guest: the functions survive the guest's writes, and work after a reset.

use crate::driver::{Driver, INPUT, MEMORY, MEMORY_SIZE, OUTPUT, QUEUE, command};
use hardware::mlx5::{administrator::Administrator, fabric::LinkLayer, objects::KINDS};

/// Pseudorandom numbers. Each run gets the same numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
    /// Returns a number that is often at a limit of its range.
    fn odd(&mut self) -> u64 {
        match self.below(7) {
            0 => u64::MAX - self.below(4096),
            1 => 1 << self.below(64),
            2 => self.below(16),
            3 => MEMORY + self.below(MEMORY_SIZE as u64),
            4 => MEMORY + MEMORY_SIZE as u64 - self.below(128),
            5 => u64::from(self.next() as u32),
            _ => self.next(),
        }
    }
}

/// The opcodes of commands, also of unknown ones, without `TEARDOWN_HCA`.
fn opcodes() -> Vec<u16> {
    let known = (0x100..0xa10).filter(|it| *it != 0x103);
    let objects = KINDS.iter().flat_map(|kind| [kind.create, kind.destroy]);
    // commands that create or destroy objects are more frequent
    known.chain(objects.cycle().take(2000)).collect()
}

#[test]
fn random_commands_and_writes() {
    let opcodes = opcodes();
    let layers = [LinkLayer::Ethernet, LinkLayer::InfiniBand]
        .into_iter()
        .cycle();
    for (seed, layer) in (1..=4u64).zip(layers) {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut it = Driver::with(layer);
        it.event_queue(0, u64::MAX);
        for _ in 0..1_500 {
            it.position = numbers.below(2) as usize;
            it.set_queue();
            match numbers.below(8) {
                0..=4 => {
                    let len = [8, 16, 24, 0x110, 0x118, 0x210, 0x1010][numbers.below(7) as usize];
                    let opcode = opcodes[numbers.below(opcodes.len() as u64) as usize];
                    let modifier = numbers.below(8) as u16;
                    let mut input = command(opcode, modifier, len);
                    for _ in 0..numbers.below(24) {
                        let at = 8 + numbers.below(len as u64) as usize;
                        let value = numbers.odd().to_be_bytes();
                        if at + 8 <= len {
                            input[at..at + 8].copy_from_slice(&value);
                        }
                    }
                    let output = [8, 16, 17, 0x110, 0x1010][numbers.below(5) as usize];
                    it.execute(&input, output);
                }
                5 => {
                    let mut entry = Driver::entry(&command(0x100, 0, 600), 600);
                    for _ in 0..numbers.below(4) {
                        let at = numbers.below(56) as usize;
                        entry[at..at + 8].copy_from_slice(&numbers.odd().to_be_bytes());
                    }
                    it.store(QUEUE, &entry);
                    it.write(0x18, &(numbers.odd() as u32).to_be_bytes());
                }
                6 => {
                    let offset = match numbers.below(3) {
                        0 => numbers.below(0x2000),
                        1 => numbers.below(32 << 20),
                        _ => numbers.odd(),
                    };
                    let len = numbers.below(9) as usize;
                    it.write(offset, &numbers.odd().to_be_bytes()[..len]);
                    it.read(numbers.odd());
                }
                _ => {
                    let at = [QUEUE, INPUT, OUTPUT][numbers.below(3) as usize];
                    let value = numbers.odd().to_be_bytes();
                    it.store(at + numbers.below(1024), &value);
                }
            }
        }
        for position in 0..2 {
            it.position = position;
            it.fabric.function_mut(position).reset();
            it.set_queue();
            assert_eq!(it.execute(&command(0x80d, 0, 16), 16).status(), 0, "{seed}");
        }
    }
}

#[test]
fn random_datagrams_to_the_subnet_administrator() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut it = Administrator::default();
    let ports = [([1; 16], 2), ([0xff; 16], 3)];
    for _ in 0..20_000 {
        let mut mad: Vec<u8> = (0..32).flat_map(|_| numbers.odd().to_be_bytes()).collect();
        mad[..4].copy_from_slice(&[1, 3, 2, [1, 2, 0x15, 0x81][numbers.below(4) as usize]]);
        mad[16..18].copy_from_slice(&[0, [1, 0x35, 0x38, 0x31][numbers.below(4) as usize]]);
        // groups with few different GIDs, and known ports
        mad[56..72].fill(0xff);
        mad[58] = numbers.below(3) as u8;
        mad[72..88].copy_from_slice(&ports[numbers.below(2) as usize].0);
        let answer = it.answer(&mad, &ports);
        assert_eq!(answer.map(|it| it.len()), (mad[3] != 0x81).then_some(256));
    }
}

#[test]
fn objects_are_bounded() {
    let mut it = Driver::new();
    // queue counters, and protection domains
    for (create, most) in [(0x771, 255), (0x800, 1 << 14)] {
        let made = (0..=most).filter(|_| it.execute(&command(create, 0, 16), 16).status() == 0);
        assert_eq!(made.count(), most, "{create:#x}");
        assert_eq!(it.execute(&command(create, 0, 16), 16).status(), 8);
    }
}

#[test]
fn queues_that_are_not_in_memory() {
    let mut it = Driver::new();
    for address in [0u64, MEMORY - 64, !0xfff] {
        let mut input = command(0x301, 0, 0x118);
        input[0x1c] = 4;
        input[0x58..0x60].fill(0xff);
        input[0x110..].copy_from_slice(&address.to_be_bytes());
        assert_eq!(it.execute(&input, 16).status(), 0);
        assert_eq!(it.execute(&command(0x80d, 0, 16), 16).status(), 0);
    }
    // more entries than pages
    let mut input = command(0x301, 0, 0x118);
    input[0x1c] = 10;
    assert_eq!(it.execute(&input, 16).status(), 0x50);
    it.write(0x10, &[0xff; 4]);
    it.write(0x14, &[0xff; 4]);
    it.write(0x18, &[0xff; 4]);
    it.set_queue();
    assert_eq!(it.execute(&command(0x80d, 0, 16), 16).status(), 0);
}
