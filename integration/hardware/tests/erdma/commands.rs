// SPDX-License-Identifier: Apache-2.0
//! The command queue, and the commands that do not involve a peer.

use crate::driver::{Bus, COMMAND_SLOTS, Command, Direct, Driver, MEMORY, le32, one, two, work::*};
use hardware::erdma::Protocol;

#[test]
fn capabilities_are_those_that_the_driver_reads() {
    let mut driver = one();
    let [first, second] = driver.command(Command::new(0, 0)).expect("QUERY_DEVICE");
    assert_eq!(first >> 48 & 0xf, 7, "128 GIDs");
    assert_eq!(first >> 40 & 0xff, 20, "CQEs");
    assert_eq!(
        first >> 24 & 0xff,
        1 << 7 | 1 << 3,
        "atomics, doorbells of programs"
    );
    assert_eq!(first >> 16 & 0xff, 14, "receive requests");
    assert_eq!(first & 0xff, 38, "size of a region");
    assert_eq!(second >> 16 & 0xfff, 4, "blocks of queue pairs");
    assert_eq!(second >> 32, 0xffff_ff00, "the key of all memory");
    assert!(driver.command(Command::new(1, 2)).is_ok(), "QUERY_FW_INFO");
}

#[test]
fn the_command_queue_goes_around() {
    let mut driver = one();
    // positions have 16 bits: post more than one lap of positions, in steps of 4
    for _ in 0..(1 << 16) / 4 + COMMAND_SLOTS {
        assert_eq!(driver.command(Command::new(1, 2)), Ok([0x0001_0203, 0]));
        assert_eq!(driver.answered(), None);
    }
}

#[test]
fn several_commands_are_answered_in_their_order() {
    let mut driver = one();
    driver.post(&Command::new(0, 0));
    driver.post(&Command::new(0, 99));
    driver.post(&Command::new(1, 2));
    let statuses: Vec<u8> = std::iter::from_fn(|| driver.answered())
        .map(|it| it.0)
        .collect();
    assert_eq!(statuses, [0, 1, 0]);
}

#[test]
fn unknown_commands_are_refused_and_the_next_is_executed() {
    let mut driver = one();
    let known = [0, 1, 2, 3, 4, 5, 6, 8, 9, 14, 15, 16, 17];
    let common = [0, 1, 2, 3, 4, 5, 8, 9];
    for module in 0..4 {
        for code in 0..=255 {
            let is_known = match module {
                0 => known.contains(&code),
                1 => common.contains(&code),
                _ => false,
            };
            if !is_known {
                assert_eq!(
                    driver.command(Command::new(module, code)),
                    Err(1),
                    "{module}.{code}"
                );
            }
        }
    }
    assert!(driver.command(Command::new(1, 2)).is_ok());
}

#[test]
fn unknown_objects_are_refused() {
    let mut driver = one();
    for (module, code, what) in [
        (0, 2, "queue pair"),
        (0, 5, "completion queue"),
        (0, 9, "memory region"),
        (0, 16, "address handle"),
        (0, 17, "state of a queue pair"),
        (0, 3, "queue pair to be changed"),
        (0, 6, "queue pair to be flushed"),
        (1, 1, "event queue"),
        (1, 9, "doorbells"),
    ] {
        let command = Command::new(module, code)
            .u32(8, 3)
            .u32(12, 3)
            .bytes(17, &[3]);
        assert_eq!(driver.command(command), Err(1), "{what}");
    }
}

#[test]
fn a_number_is_used_once() {
    let mut driver = one();
    driver.event_queue(1, 3);
    let queue = driver.completion_queue(2, 3);
    let pair = driver.pair(3, 3, &queue);
    driver.region(4, ALL, 1);
    let page = driver.pages(1);
    let again = Driver::<Direct>::create_pair(3, 3, 2, pair.send, pair.receive);
    assert_eq!(driver.command(again), Err(1));
    let again = Driver::<Direct>::region_command(4, ALL, page, 4096, &[page]);
    assert_eq!(driver.command(again.clone()), Err(1));
    let event_queue = Command::new(1, 0).u64(8, page).bytes(16, &[1, 1, 3, 1]);
    assert_eq!(driver.command(event_queue), Err(1));
    for (code, number) in [(2, 3), (5, 2), (9, 4)] {
        assert_eq!(
            driver.command(Command::new(0, code).u32(8, number)),
            Ok([0, 0])
        );
        assert_eq!(driver.command(Command::new(0, code).u32(8, number)), Err(1));
    }
    assert_eq!(
        driver.command(again),
        Ok([0, 0]),
        "its number is free again"
    );
}

#[test]
fn sizes_beyond_those_of_the_function_are_refused() {
    let mut driver = one();
    let page = driver.pages(1);
    let pair = |shift| Driver::<Direct>::create_pair(1, shift, 1, page, page);
    assert_eq!(driver.command(pair(16)), Err(1), "a queue of 65536");
    assert_eq!(driver.command(pair(0xfff)), Err(1));
    let queue = |first: u32| {
        Command::new(0, 4)
            .u32(8, first)
            .u32(12, page as u32)
            .u32(20, 1 << 16)
    };
    assert_eq!(driver.command(queue(21 << 24 | 1)), Err(1));
    assert_eq!(driver.command(queue(255 << 24 | 1)), Err(1));
    // more pages than a command can contain, without a table
    assert_eq!(driver.command(queue(3 << 24 | 1).u32(20, 5 << 16)), Err(1));
    for depth_shift in [17, 31, 32, 64, 255] {
        let events = Command::new(1, 0)
            .u64(8, page)
            .bytes(16, &[1, 1, depth_shift, 1]);
        assert_eq!(driver.command(events), Err(1), "{depth_shift}");
    }
    assert_eq!(
        driver.command(Command::new(0, 14).u32(8, 128)),
        Err(1),
        "the 129th GID"
    );
}

#[test]
fn a_function_does_not_start_with_queues_of_odd_depths() {
    let mut driver = one();
    for (register, depth) in [
        (0x30, 0),
        (0x30, 24),
        (0x30, 1 << 20),
        (0x34, 3),
        (0x48, 0),
        (0x48, u32::MAX),
    ] {
        driver.restart();
        driver.write32(0x10, 1);
        let values = [(0x30, COMMAND_SLOTS), (0x34, 8), (0x48, 8)];
        for (at, value) in values {
            driver.write32(at, if at == register { depth } else { value });
        }
        driver.write32(0x10, 2);
        assert_eq!(driver.read32(0x14), 1, "{register:#x} is {depth}");
        // a doorbell without a queue has no effect
        driver.write64(0x200, 4);
        driver.write64(0x300, 1 << 31);
    }
}

#[test]
fn a_doorbell_beyond_the_queue_is_ignored() {
    let mut driver = one();
    driver.write64(0x200, u64::from(COMMAND_SLOTS) + 1);
    assert_eq!(driver.answered(), None);
    // post half a command
    driver.write64(0x200, 2);
    driver.write64(0x200, 4);
    while driver.answered().is_some() {}
    driver.restart();
    assert!(driver.command(Command::new(1, 2)).is_ok());
}

#[test]
fn a_reset_leaves_nothing() {
    let mut driver = one();
    driver.event_queue(1, 3);
    let queue = driver.completion_queue(1, 3);
    driver.pair(1, 3, &queue);
    driver.region(1, ALL, 1);
    assert!(driver.command(Command::new(0, 14).u32(8, 0)).is_ok());
    driver.restart();
    {
        let fabric = driver.bus.fabric.borrow();
        let device = fabric.device(driver.bus.position);
        assert!(device.pairs.is_empty() && device.regions.is_empty() && device.gids.is_empty());
    }
    driver.event_queue(1, 3);
    let queue = driver.completion_queue(1, 3);
    driver.pair(1, 3, &queue);
    driver.region(1, ALL, 1);
}

#[test]
fn registers_say_what_the_function_is() {
    for (protocol, value) in [(Protocol::Iwarp, 0), (Protocol::Roce, 1)] {
        let (_, _, mut second) = two(protocol);
        assert_ne!(second.read32(0), 0, "a functional function");
        assert_eq!(second.read32(0xc), value);
        assert_eq!(
            (second.read32(0x1c), second.read32(0x18)),
            (0x0200, 2),
            "its MAC"
        );
        // these registers are read-only
        for register in [0, 0xc, 0x14, 0x18, 0x1c] {
            let before = second.read32(register);
            second.write32(register, !before);
            assert_eq!(second.read32(register), before, "{register:#x}");
        }
        second.bus.write(0x7_fffc, &[1; 8]);
        second.bus.write(u64::MAX, &[1; 8]);
        let mut beyond = [9; 8];
        second.bus.read(0x7_fffc, &mut beyond);
        assert_eq!(beyond, [0; 8]);
        second.bus.read(u64::MAX - 3, &mut beyond);
    }
}

#[test]
fn statistics_are_written_as_far_as_the_buffer_goes() {
    let mut driver = one();
    let buffer = driver.pages(1);
    let command = Command::new(1, 4).u64(16, buffer).u32(24, 256);
    assert!(driver.command(command.clone()).is_ok());
    assert_eq!(le32(&driver.load(buffer, 4), 0) & 0xffff, 0x5566);
    driver.bus.store(buffer, &[7; 256]);
    assert!(driver.command(command.clone().u32(24, 16)).is_ok());
    assert_eq!(
        driver.load(buffer + 16, 240),
        [7; 240],
        "bytes beyond the buffer stay"
    );
    for address in [0, MEMORY - 8, u64::MAX - 100] {
        let command = command.clone().u64(16, address);
        assert_eq!(driver.command(command), Err(1), "{address:#x}");
    }
}

#[test]
fn programs_get_doorbells_and_give_them_back() {
    let mut driver = one();
    let config = Command::new(1, 5).u32(8, 1 << 31 | 12);
    assert_eq!(driver.command(config), Ok([0, 0]), "CONF_DEVICE");
    let [pages, _] = driver
        .command(Command::new(1, 8).u32(8, 7))
        .expect("ALLOC_DB");
    // the driver uses RDB (63..48) for completion queues, and CDB (47..32) for receive queues
    assert_eq!((pages & 0xffff) << 12, 0x1000);
    assert_eq!((pages >> 32 & 0xffff) << 12, 0x61000);
    assert_eq!((pages >> 48) << 12, 0x79000);
    assert_eq!(driver.command(Command::new(1, 9)), Ok([0, 0]));
    assert_eq!(driver.command(Command::new(1, 9)), Err(1));
    assert_eq!(driver.command(Command::new(1, 3).u32(8, 8500)), Ok([0, 0]));
    assert_eq!(driver.bus.fabric.borrow().device(0).mtu, 8500);
}

#[test]
fn the_gid_table_and_address_handles_are_kept() {
    let (fabric, mut driver, _) = two(Protocol::Roce);
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let add = Command::new(0, 14).u32(8, 5 | 1 << 16).bytes(12, &gid);
    assert_eq!(driver.command(add), Ok([0, 0]));
    assert_eq!(fabric.borrow().device(0).gids.get(&5), Some(&gid));
    assert_eq!(
        driver.command(Command::new(0, 14).u32(8, 5 | 1 << 31)),
        Ok([0, 0])
    );
    assert!(fabric.borrow().device(0).gids.is_empty());
    for number in 0..1024 {
        let handle = Command::new(0, 15).u32(8, DOMAIN).u32(12, number);
        assert_eq!(driver.command(handle), Ok([0, 0]));
    }
    let handle = Command::new(0, 15).u32(8, DOMAIN).u32(12, 1024);
    assert_eq!(driver.command(handle), Err(1), "the function has 1024");
    assert_eq!(
        driver.command(Command::new(0, 16).u32(8, DOMAIN).u32(12, 3)),
        Ok([0, 0])
    );
}
