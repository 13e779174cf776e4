// SPDX-License-Identifier: Apache-2.0
//! Commands: delivery, capabilities, objects and events.

use crate::driver::{Driver, INPUT, MACS, OUTPUT, command, number, with};

#[test]
fn the_firmware_is_ready_and_states_its_queue() {
    let mut it = Driver::new();
    assert_eq!(it.read(0x1fc) >> 31, 0, "initializing");
    assert_eq!(it.read(0) & 0xffff, 16, "the major version");
    assert_eq!(it.read(4) >> 16, 5, "the revision of the command interface");
    assert_eq!(it.read(0x14) & 0xff, 0x56, "32 entries of 64 bytes");
    it.write(0x14, &0x7654_3300u32.to_be_bytes());
    assert_eq!(it.read(0x14), 0x7654_3356, "the sizes stay");
    let before = it.read(0x1004);
    assert_ne!(it.read(0x1004), before, "the clock goes on");
}

#[test]
fn commands_with_mailboxes_are_executed() {
    let mut it = Driver::new();
    for (modifier, values) in [
        // log_max_qp, port_type, num_lag_ports
        (0, &[(0x13, 0x1f, 18), (0x36, 3, 1), (0x4f, 0xf, 2)][..]),
        // roce_version
        (4 << 1, &[(0x13, 0xff, 5)]),
        // ft_support of received packets
        (7 << 1, &[(0x40, 0x80, 0x80)]),
        // an unknown type
        (0x3f << 1, &[(0, 0xff, 0)]),
    ] {
        let answer = it.execute(&command(0x100, modifier, 16), 16 + 4096);
        assert_eq!(answer.status(), 0);
        for (at, mask, value) in values {
            assert_eq!(answer.output[16 + at] & mask, *value, "{modifier} {at:#x}");
        }
        for block in 0..8 {
            let mailbox = it.load(OUTPUT + block * 1024, 576);
            assert_eq!(mailbox.iter().fold(0, |all, byte| all ^ byte), 0xff);
        }
    }
    // the values that the driver sets become the current values
    let set = with(command(0x109, 0, 16 + 4096), 16, &[0xab; 4096]);
    assert_eq!(it.execute(&set, 16).status(), 0);
    let current = it.execute(&command(0x100, 1, 16), 16 + 4096);
    assert_eq!(current.output[16..], [0xab; 4096]);
    assert_eq!(it.execute(&set[..100], 16).status(), 0x50);
}

#[test]
fn wrong_entries_are_not_delivered() {
    let mut it = Driver::new();
    let input = command(0x109, 0, 16 + 4096);
    let good = Driver::entry(&input, 16);
    let change = |at: usize, bytes: &[u8]| {
        let mut entry = good;
        entry[at..at + bytes.len()].copy_from_slice(bytes);
        entry
    };
    it.execute(&input, 16);
    for (entry, delivery) in [
        (change(0, &[6]), 0x10),
        (change(4, &[0, 0, 0, 4]), 7),
        (change(4, &[0xff; 4]), 7),
        (change(56, &[0; 4]), 8),
        (change(56, &[0xff; 4]), 8),
        (change(60, &[1]), 2),
        (change(8, &(INPUT + 1024).to_be_bytes()), 3),
        (change(8, &(INPUT + 4).to_be_bytes()), 5),
        (change(8, &[0xff; 8]), 5),
        (change(8, &[0; 8]), 5),
    ] {
        assert_eq!(it.post(&entry, 16).delivery, delivery, "{entry:x?}");
    }
    let mut entry = Driver::entry(&command(0x100, 0, 16), 16 + 4096);
    entry[48..56].copy_from_slice(&0x1000u64.to_be_bytes());
    assert_eq!(
        it.post(&entry, 16).delivery,
        4,
        "the output is not in memory"
    );
    // an entry that is not owned by the hardware is left unchanged
    it.store(crate::driver::QUEUE, &change(63, &[0]));
    it.write(0x18, &1u32.to_be_bytes());
    assert_eq!(it.load(crate::driver::QUEUE, 64), change(63, &[0]));
}

#[test]
fn objects_have_ids_until_they_are_destroyed() {
    let mut it = Driver::new();
    for (create, destroy, query) in [
        (0x200u16, 0x202u16, 0x201u16),
        (0x700, 0x701, 0x702),
        (0x900, 0x902, 0x903),
        (0x912, 0x914, 0x915),
        (0x705, 0x706, 0x707),
    ] {
        let context = [0x12; 0x80];
        let input = with(command(create, 0, 0x110), 0x20, &context);
        let made = it.execute(&input, 16);
        assert_eq!(made.status(), 0, "{create:#x}");
        let id = &made.output[9..12];
        let of = |opcode| with(command(opcode, 0, 16), 9, id);
        let queried = it.execute(&of(query), 0x110);
        assert_eq!(queried.status(), 0, "{query:#x}");
        assert_eq!(queried.output[0x20..0xa0], context);
        assert_eq!(it.execute(&of(destroy), 16).status(), 0);
        assert_eq!(it.execute(&of(destroy), 16).status(), 5, "{destroy:#x}");
        assert_eq!(it.execute(&of(query), 0x110).status(), 5);
    }
    assert_eq!(it.execute(&command(0xbad, 0, 16), 16).status(), 2);
}

#[test]
fn pages_of_doorbells_are_behind_the_registers_and_end() {
    let mut it = Driver::new();
    let mut pages = Vec::new();
    let last = loop {
        let answer = it.execute(&command(0x802, 0, 16), 16);
        match answer.status() {
            0 => pages.push(answer.number(9, 3)),
            status => break status,
        }
    };
    assert_eq!(last, 8);
    assert_eq!(pages, (16..8192).collect::<Vec<u64>>());
}

#[test]
fn pages_are_given_and_taken_back() {
    let mut it = Driver::new();
    let mut give = with(command(0x108, 1, 16 + 16), 12, &2u32.to_be_bytes());
    give = with(give, 16, &0x1000u64.to_be_bytes());
    give = with(give, 24, &0x2000u64.to_be_bytes());
    assert_eq!(it.execute(&give, 16).status(), 0);
    let take = with(command(0x108, 2, 16), 12, &9u32.to_be_bytes());
    let taken = it.execute(&take, 16 + 9 * 8);
    assert_eq!(taken.number(8, 4), 2);
    assert_eq!(taken.number(16, 8), 0x1000);
    assert_eq!(taken.number(24, 8), 0x2000);
    assert_eq!(it.execute(&take, 16 + 9 * 8).number(8, 4), 0);
}

#[test]
fn commands_end_with_an_event_where_the_driver_subscribed() {
    let mut it = Driver::new();
    let number = it.event_queue(0, 1 << 0xa);
    assert_eq!(it.event(0, 0), None, "none of its own creation");
    it.event_queue(1, 1 << 9);
    let (kind, _, data) = it.event(0, 0).expect("of the second queue's creation");
    assert_eq!((kind, super::driver::number(&data[..4])), (0xa, 1));
    it.execute(&command(0x80d, 0, 16), 16);
    assert!(it.event(0, 1).is_some());
    assert_eq!(it.event(1, 0), None, "it has another mask");
    let destroy = with(command(0x302, 0, 16), 11, &[number as u8]);
    assert_eq!(it.execute(&destroy, 16).status(), 0);
    assert_eq!(it.event(0, 2), None, "a queue that is gone gets no event");
    assert_eq!(it.execute(&destroy, 16).status(), 5);
}

#[test]
fn functions_of_a_card_have_one_system_guid_and_their_own_addresses() {
    let mut it = Driver::new();
    let mut guids = Vec::new();
    for (position, mac) in MACS.into_iter().enumerate() {
        it.position = position;
        it.set_queue();
        let context = it.execute(&command(0x754, 0, 16), 0x110).output;
        assert_eq!(context[16 + 0xf6..16 + 0xfc], mac);
        guids.push((number(&context[0x38..0x40]), number(&context[0x48..0x50])));
        let capabilities = it.execute(&command(0x100, 0, 16), 16 + 4096).output;
        assert_eq!(
            capabilities[16 + 0xc1],
            position as u8 + 1,
            "native_port_num"
        );
    }
    assert_eq!(guids[0].0, guids[1].0);
    assert_ne!(guids[0].1, guids[1].1);
}
