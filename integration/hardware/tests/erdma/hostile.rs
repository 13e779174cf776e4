// SPDX-License-Identifier: Apache-2.0
//! A hostile guest: the function survives the guest's writes, and works after a reset.

use crate::{
    connections::connection,
    driver::{
        Bus, COMMAND_SLOTS, Command, Direct, Driver, MEMORY, MEMORY_SIZE, at, settle, work::*,
    },
};

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
        match self.below(8) {
            0 => u64::MAX,
            1 => u64::MAX - self.below(4096),
            2 => 1 << self.below(64),
            3 => self.below(16),
            4 => MEMORY + self.below(MEMORY_SIZE as u64),
            5 => MEMORY + MEMORY_SIZE as u64 - self.below(128),
            6 => u64::from(self.next() as u32),
            _ => self.next(),
        }
    }
}

#[test]
fn random_commands_requests_and_doorbells() {
    for seed in 1..=8u64 {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut it = connection();
        it.near.event_queue(1, 3);
        for round in 0..4_000u64 {
            match numbers.below(10) {
                0..=3 => {
                    // a command with unusual field values
                    let codes = [0, 1, 2, 3, 4, 5, 6, 8, 9, 14, 15, 16, 17];
                    let mut command = match numbers.below(3) {
                        0 => Command::new(1, numbers.below(10)),
                        _ => Command::new(0, codes[numbers.below(13) as usize]),
                    };
                    for _ in 0..numbers.below(12) {
                        let value = numbers.odd();
                        command = command.u32(8 + 4 * numbers.below(30) as usize, value as u32);
                    }
                    it.near.post(&command);
                    while it.near.answered().is_some() {}
                    // creates queue pair 1 again, which a command may have destroyed
                    if numbers.below(4) == 0 {
                        let again =
                            Driver::<Direct>::create_pair(1, 4, 1, it.pair.send, it.pair.receive);
                        it.near.post(&again);
                        while it.near.answered().is_some() {}
                        (it.pair.sent, it.pair.received) = (0, 0);
                        let cookie = it
                            .near
                            .bus
                            .fabric
                            .borrow()
                            .device(0)
                            .pairs
                            .get(&1)
                            .map(|it| it.cookie);
                        let (pair, other) = (&it.pair, it.other.cookie);
                        it.near.post(
                            &Command::new(0, 3)
                                .u32(8, 2 << 24 | pair.number)
                                .u32(12, other),
                        );
                        while it.near.answered().is_some() {}
                        if let Some(cookie) = cookie {
                            it.far.connect(&it.other, cookie);
                        }
                    }
                }
                4..=6 => {
                    let mut request = Request::new(numbers.below(20));
                    request.count = numbers.odd() & 0xff;
                    request.flags = (numbers.next() & 0x1f) << 22;
                    request = request.put(127, &[0]);
                    for _ in 0..numbers.below(16) {
                        let value = numbers.odd();
                        request = request.u64(8 + 8 * numbers.below(15) as usize, value);
                    }
                    if numbers.below(2) == 0 {
                        request = request
                            .u32(16, it.there.1)
                            .u64(20, it.there.0)
                            .segment(32, it.segment(0, 9));
                        request.count = 1;
                    }
                    it.post(&request);
                }
                7 => {
                    let segment = (numbers.odd(), numbers.odd() as u32, numbers.odd() as u32);
                    it.far.post_receive(&mut it.other, segment);
                    it.near.post_receive(&mut it.pair, segment);
                }
                8 => {
                    let offset = match numbers.below(3) {
                        0 => numbers.below(0x400),
                        1 => numbers.below(0x8_0000),
                        _ => numbers.odd(),
                    };
                    let value = numbers.odd();
                    let len = numbers.below(9) as usize;
                    it.near.bus.write(offset, &value.to_le_bytes()[..len]);
                }
                _ => {
                    let address = MEMORY + numbers.below(MEMORY_SIZE as u64 / 4);
                    let value = numbers.odd();
                    it.near.bus.store(address, &value.to_le_bytes());
                    at(&it.fabric, round * 10);
                }
            }
            settle(&it.fabric);
        }
        // the memory of the model is bounded, whatever the guest created
        {
            let fabric = it.fabric.borrow();
            let device = fabric.device(0);
            assert!(
                device.pairs.len() <= 4096
                    && device.gids.len() <= 128
                    && device.handles.len() <= 1024
            );
        }
        it.near.restart();
        it.far.restart();
        let queues = (
            it.near.completion_queue(1, 4),
            it.far.completion_queue(1, 4),
        );
        let (mut pair, other) = (it.near.pair(1, 4, &queues.0), it.far.pair(1, 4, &queues.1));
        it.near.connect(&pair, other.cookie);
        it.far.connect(&other, pair.cookie);
        let (here, there) = (it.near.region(1, ALL, 1), it.far.region(1, ALL, 1));
        it.near.bus.store(here.0, b"alive");
        it.near
            .post_send(&mut pair, &write(there, &[(here.0, 5, here.1)]));
        assert_eq!(it.far.load(there.0, 5), b"alive", "seed {seed}");
    }
}

#[test]
fn a_function_has_bounded_objects() {
    let mut it = connection();
    let page = it.near.pages(1);
    let made =
        |it: &mut crate::connections::Connection, command: &dyn Fn(u32) -> Command, most: u32| {
            (100..100 + most)
                .filter(|number| it.near.command(command(*number)).is_ok())
                .count()
        };
    let pair = |number| Driver::<Direct>::create_pair(number, 15, 1, page, page);
    assert_eq!(made(&mut it, &pair, 5_000), 4_095);
    let queue = |number| {
        Command::new(0, 4)
            .u32(8, 20 << 24 | number)
            .u32(12, page as u32)
            .u32(20, 1 << 16)
    };
    assert_eq!(made(&mut it, &queue, 9_000), 8_191);
    let region = |number| Driver::<Direct>::region_command(number, ALL, 0, 1, &[page]);
    assert_eq!(made(&mut it, &region, 9_000), 8_191);
}

#[test]
fn queues_that_are_not_in_memory() {
    for address in [
        0,
        MEMORY - 16,
        MEMORY + MEMORY_SIZE as u64 - 16,
        u64::MAX - 15,
        u64::MAX,
    ] {
        let mut it = connection();
        let pair = Driver::<Direct>::create_pair(7, 4, 1, address, address);
        let [cookie, _] = it.near.command(pair).expect("a queue pair");
        let number = it.other.number;
        it.near
            .command(
                Command::new(0, 3)
                    .u32(8, 2 << 24 | 7)
                    .u32(12, it.other.cookie),
            )
            .expect("RTS");
        it.far
            .command(
                Command::new(0, 3)
                    .u32(8, 2 << 24 | number)
                    .u32(12, cookie as u32),
            )
            .expect("RTS");
        // the request cannot be read
        it.near.write64(0x1000, 7 << 32 | 4);
        assert_eq!(it.near().map(|it| it.status), Some(8), "{address:#x}");
        // the receive request cannot be read either
        it.near
            .command(Command::new(0, 2).u32(8, 7))
            .expect("DESTROY_QP");
        let pair = Driver::<Direct>::create_pair(7, 4, 1, it.pair.send, address);
        let [cookie, _] = it.near.command(pair).expect("a queue pair");
        it.near
            .command(
                Command::new(0, 3)
                    .u32(8, 2 << 24 | 7)
                    .u32(12, it.other.cookie),
            )
            .expect("RTS");
        it.far
            .command(
                Command::new(0, 3)
                    .u32(8, 2 << 24 | number)
                    .u32(12, cookie as u32),
            )
            .expect("RTS");
        it.near.write64(0x61000, 7 << 32 | 1);
        it.far.post_send(&mut it.other, &send(&[]));
        assert_eq!(it.far().map(|it| it.status), Some(2), "{address:#x}");
        // completion and event queues
        let queue = Command::new(0, 4)
            .u32(8, 4 << 24 | 9)
            .u32(12, address as u32)
            .u32(16, (address >> 32) as u32);
        it.near
            .command(queue.u32(20, 1 << 16 | 3))
            .expect("a completion queue");
        let events = Command::new(1, 0).u64(8, address).bytes(16, &[3, 3, 3, 1]);
        it.near.command(events).expect("an event queue");
        let pair = Driver::<Direct>::create_pair(8, 4, 9, it.pair.send, it.pair.receive);
        it.near.command(pair).expect("a queue pair");
        it.near.write64(0x79000, 9 << 32 | 1 << 31);
        it.near
            .command(Command::new(0, 3).u32(8, 5 << 24 | 8))
            .expect("an error");
        while it.near.asynchronous().is_some() {}
        it.near.write64(0x61000, 8 << 32 | 1);
        let event = it.near.asynchronous();
        assert_eq!(event, Some((3, 9)), "ERDMA_AE_TYPE_CQ_ERR of queue 9");
    }
}

#[test]
fn the_command_queue_is_not_in_memory() {
    let mut it = connection();
    for register in [0x20, 0x28, 0x38, 0x40] {
        it.near.restart();
        it.near.write32(0x10, 1);
        for at in [0x20, 0x28, 0x38, 0x40] {
            it.near.write32(
                at,
                if at == register {
                    u32::MAX
                } else {
                    MEMORY as u32
                },
            );
            it.near
                .write32(at + 4, if at == register { u32::MAX } else { 0 });
        }
        for (at, depth) in [(0x30, COMMAND_SLOTS), (0x34, 8), (0x48, 8)] {
            it.near.write32(at, depth);
        }
        it.near.write32(0x10, 2);
        it.near.write64(0x300, 1 << 31);
        it.near.write64(0x200, 4);
        it.near.write64(0x200, 8);
    }
    it.near.restart();
    assert!(it.near.command(Command::new(1, 2)).is_ok());
}
