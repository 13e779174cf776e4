// SPDX-License-Identifier: Apache-2.0
//! Reliable connections between the functions of a card.

use crate::{
    driver::{Driver, command, number, with},
    verbs::{
        ALL_RIGHTS, DATA, DOMAIN, Done, NAMED, Pair, RECEIVE_ERROR, RECEIVED,
        RECEIVED_WITH_IMMEDIATE, RECEIVED_WITH_WRITE, RELIABLE, REQUEST, REQUEST_ERROR, gid,
        inline, key, pass, remote, segment, tagged_address,
    },
};

const WRITE: u8 = 8;
const WRITE_IMMEDIATE: u8 = 9;
const SEND: u8 = 0xa;
const SEND_IMMEDIATE: u8 = 0xb;
const READ: u8 = 0x10;
const COMPARE_AND_SWAP: u8 = 0x11;
const FETCH_AND_ADD: u8 = 0x12;

const ERROR: u8 = 6;
const LOCAL_PROTECTION: u8 = 4;
const FLUSHED: u8 = 5;

fn connected() -> (Driver, Pair, Pair) {
    let mut it = Driver::new();
    let here = Pair::new(&mut it, 0, 0, RELIABLE);
    let there = Pair::new(&mut it, 1, 0, RELIABLE);
    here.connect(&mut it, 1, there.number);
    there.connect(&mut it, 0, here.number);
    (it, here, there)
}

/// Reads a counter of the queue pair's function: `query_q_counter_out`.
fn counted(pair: &Pair, it: &mut Driver, at: usize) -> u64 {
    let set = pair.enter(it).execute(&command(0x771, 0, 16), 16).output[11];
    let query = with(command(0x773, 0, 32), 0x1f, &[set]);
    let answer = pair.enter(it).execute(&query, 0x100);
    assert_eq!(answer.status(), 0);
    answer.number(at, 4)
}

/// Stores bytes in the memory of the address `NAMED + at`. `NAMED` is at byte 0x123 of the first
/// page.
fn store(pair: &Pair, it: &mut Driver, at: u64, bytes: &[u8]) {
    pair.enter(it).store(DATA + 0x123 + at, bytes);
}

fn load(pair: &Pair, it: &mut Driver, at: u64, len: usize) -> Vec<u8> {
    pair.enter(it).load(DATA + 0x123 + at, len)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|it| (it * 7 + it / 256) as u8).collect()
}

fn done(opcode: u8, index: u16, len: u32) -> Option<Done> {
    Some(Done {
        kind: REQUEST,
        syndrome: 0,
        opcode,
        index,
        len,
        extra: 0,
        sender: 0,
        lid: 0,
        vlan: None,
    })
}

fn failed(opcode: u8, index: u16, syndrome: u8) -> Option<Done> {
    Some(Done {
        kind: REQUEST_ERROR,
        syndrome,
        ..done(opcode, index, 0)?
    })
}

#[test]
fn a_message_fills_the_segments_of_a_receive_request() {
    let (mut it, mut here, mut there) = connected();
    let sent = bytes(9000);
    store(&here, &mut it, 0, &sent);
    there.receive(&mut it, &[(NAMED, 5), (NAMED + 0x2000, 10000)]);
    let data = [
        segment(here.key, NAMED, 4000),
        segment(here.key, NAMED + 4000, 5000),
    ]
    .concat();
    here.send(&mut it, SEND, 0, &data);
    assert_eq!(here.next(&mut it, 0), done(SEND, 0, 9000));
    let got = there.next(&mut it, 1).expect("a completion");
    assert_eq!((got.kind, got.len, got.index), (RECEIVED, 9000, 0));
    assert_eq!(load(&there, &mut it, 0, 5), sent[..5]);
    assert_eq!(load(&there, &mut it, 0x2000, 8995), sent[5..]);

    // a request of two blocks with inline data
    there.receive(&mut it, &[(NAMED, 200)]);
    here.send(&mut it, SEND_IMMEDIATE, 0x1234_5678, &inline(&sent[..100]));
    assert_eq!(here.next(&mut it, 0), done(SEND_IMMEDIATE, 1, 100));
    let got = there.next(&mut it, 1).expect("a completion");
    assert_eq!(
        (got.kind, got.extra, got.len),
        (RECEIVED_WITH_IMMEDIATE, 0x1234_5678, 100)
    );
    assert_eq!(load(&there, &mut it, 0, 100), sent[..100]);
    // the counters of received messages include both messages
    let counters = there.enter(&mut it).execute(&command(0x770, 0, 32), 0x210);
    assert_eq!(
        (counters.number(0x30, 8), counters.number(0x38, 8)),
        (2, 9100)
    );
}

/// UCX puts the header of a message into the request itself, and the payload into memory segments.
#[test]
fn bytes_of_a_request_are_before_those_of_memory() {
    let (mut it, mut here, mut there) = connected();
    let sent = bytes(50);
    store(&here, &mut it, 0, &sent[10..]);
    there.receive(&mut it, &[(NAMED, 200)]);
    let request = [inline(&sent[..10]), segment(here.key, NAMED, 40)].concat();
    here.send(&mut it, SEND, 0, &request);
    assert_eq!(here.next(&mut it, 0), done(SEND, 0, 50));
    assert_eq!(there.next(&mut it, 1).map(|got| got.len), Some(50));
    assert_eq!(load(&there, &mut it, 0, 50), sent);
}

#[test]
fn the_queues_are_rings() {
    let (mut it, mut here, mut there) = connected();
    for round in 0..50u16 {
        there.receive(&mut it, &[(NAMED, 200)]);
        let data = bytes(usize::from(round) + 60);
        here.send(&mut it, SEND, 0, &inline(&data));
        let sent = here.next(&mut it, 0).expect("a completion");
        assert_eq!((sent.kind, sent.index), (REQUEST, round * 2), "{round}");
        let got = there.next(&mut it, 1).expect("a completion");
        assert_eq!((got.kind, got.index), (RECEIVED, round), "{round}");
        assert_eq!(load(&there, &mut it, 0, data.len()), data);
    }
}

#[test]
fn writes_and_reads_reach_the_pages_of_a_key() {
    let (mut it, mut here, mut there) = connected();
    // the second page before the first, so that the bytes are not contiguous
    let swapped = key(there.enter(&mut it), ALL_RIGHTS, &[3, 2]);
    let sent = bytes(6000);
    store(&here, &mut it, 0, &sent);
    let data = [remote(swapped, NAMED), segment(here.key, NAMED, 6000)].concat();
    here.send(&mut it, WRITE, 0, &data);
    assert_eq!(here.next(&mut it, 0), done(WRITE, 0, 6000));
    let first = 4096 - 0x123;
    assert_eq!(it_page(&there, &mut it, 3)[0x123..], sent[..first]);
    assert_eq!(it_page(&there, &mut it, 2)[..6000 - first], sent[first..]);

    let data = [
        remote(swapped, NAMED + 1),
        segment(here.key, NAMED + 0x3000, 5999),
    ]
    .concat();
    here.send(&mut it, READ, 0, &data);
    assert_eq!(here.next(&mut it, 0), done(READ, 1, 5999));
    assert_eq!(load(&here, &mut it, 0x3000, 5999), sent[1..]);

    there.receive(&mut it, &[]);
    let data = [remote(swapped, NAMED), inline(b"immediate")].concat();
    here.send(&mut it, WRITE_IMMEDIATE, 77, &data);
    let got = there.next(&mut it, 1).expect("a completion");
    assert_eq!((got.kind, got.extra, got.len), (RECEIVED_WITH_WRITE, 77, 9));
    for (at, expected) in [(0x10, 2), (0x18, 1), (0x20, 0), (0x30, 0)] {
        assert_eq!(counted(&there, &mut it, at), expected, "{at:#x}");
    }
    assert_eq!(it_page(&there, &mut it, 3)[0x123..0x123 + 9], *b"immediate");
}

fn it_page(pair: &Pair, it: &mut Driver, page: u64) -> Vec<u8> {
    pair.enter(it).load(DATA + page * 4096, 4096)
}

#[test]
fn atomic_operations_return_the_former_value() {
    let (mut it, mut here, there) = connected();
    // the program's address, and not the address in memory, is a multiple of 8
    let at = 8 - 0x123 % 8;
    store(&there, &mut it, at, &40u64.to_le_bytes());
    let words =
        |operand: u64, compare: u64| [operand.to_be_bytes(), compare.to_be_bytes()].concat();
    for (round, (opcode, words, before, after)) in (0u16..).zip([
        (FETCH_AND_ADD, words(2, 0), 40u64, 42u64),
        (COMPARE_AND_SWAP, words(7, 41), 42, 42),
        (COMPARE_AND_SWAP, words(7, 42), 42, 7),
    ]) {
        let target = segment(here.key, NAMED + 0x1000, 8);
        let rest = [remote(there.key, NAMED + at), words, target].concat();
        here.send(&mut it, opcode, 0, &rest);
        assert_eq!(here.next(&mut it, 0), done(opcode, round, 8));
        assert_eq!(load(&here, &mut it, 0x1000, 8), before.to_le_bytes());
        assert_eq!(load(&there, &mut it, at, 8), after.to_le_bytes());
    }
}

#[test]
fn a_key_that_does_not_allow_it_ends_both() {
    let read_only = 0x1400;
    let other_domain = DOMAIN + 1;
    for wrong in ["rights", "variant", "bounds", "key", "domain"] {
        let (mut it, mut here, mut there) = connected();
        let mut remote_key = there.key;
        let mut at = NAMED;
        match wrong {
            "rights" => remote_key = key(there.enter(&mut it), read_only, &[0, 1]),
            "variant" => remote_key ^= 1,
            "bounds" => at = NAMED + 16 * 4096 - 0x123 - 4,
            "key" => remote_key += 0x10_0000,
            _ => {
                let peer = there.number.to_be_bytes();
                let query = with(command(0x50b, 0, 16), 8, &peer);
                let context = there.enter(&mut it).execute(&query, 0x110).output;
                assert_eq!(context[0x1f], DOMAIN as u8);
                let foreign = command(0x200, 0, 0x110);
                let foreign = with(foreign, 0x12, &(ALL_RIGHTS).to_be_bytes());
                let foreign = with(foreign, 0x1c, &(1 << 31 | other_domain).to_be_bytes());
                let answer = there.enter(&mut it).execute(&foreign, 16);
                remote_key = (answer.number(9, 3) as u32) << 8;
            }
        }
        there.receive(&mut it, &[(NAMED, 8)]);
        let data = [remote(remote_key, at), inline(&[1; 8])].concat();
        here.post(&mut it, WRITE, 0, &data);
        here.send(&mut it, SEND, 0, &inline(&[2; 8]));
        assert_eq!(here.next(&mut it, 0), failed(WRITE, 0, 0x13), "{wrong}");
        assert_eq!(here.next(&mut it, 0), failed(SEND, 1, FLUSHED), "{wrong}");
        assert_eq!(here.state(&mut it), ERROR);
        assert_eq!(there.state(&mut it), ERROR);
        // the peer's driver gets an event, and the flushed receive request
        let (kind, _, data) = there.enter(&mut it).event(0, 0).expect("an event");
        assert_eq!((kind, number(&data[24..])), (0x11, u64::from(there.number)));
        let flushed = there.next(&mut it, 1).expect("a completion");
        assert_eq!((flushed.kind, flushed.syndrome), (RECEIVE_ERROR, FLUSHED));
    }
}

#[test]
fn a_queue_pair_refuses_what_it_was_not_set_to() {
    for (opcode, right, rest) in [(WRITE, 0xa0, inline(&[1; 8])), (READ, 0x60, Vec::new())] {
        let (mut it, mut here, there) = connected();
        let mask = 0xeu32.to_be_bytes();
        there.modify(&mut it, 0x505, &[(0x10, &mask), (0xaa, &[right])]);
        let rest = match opcode {
            READ => segment(here.key, NAMED, 8),
            _ => rest,
        };
        here.send(
            &mut it,
            opcode,
            0,
            &[remote(there.key, NAMED), rest].concat(),
        );
        assert_eq!(here.next(&mut it, 0), failed(opcode, 0, 0x12));
    }
}

#[test]
fn a_wrong_request_ends_its_own_queue_pair() {
    for (opcode, rest, syndrome) in [
        (SEND, segment(0x77, NAMED, 8), LOCAL_PROTECTION),
        (0x25, vec![0; 48], 2),
        (READ, [remote(0, NAMED), inline(&[0; 8])].concat(), 2),
        (SEND, [segment(0x77, NAMED, 8), inline(&[0; 8])].concat(), 2),
    ] {
        let (mut it, mut here, mut there) = connected();
        there.receive(&mut it, &[(NAMED, 100)]);
        here.send(&mut it, opcode, 0, &rest);
        assert_eq!(here.next(&mut it, 0), failed(opcode, 0, syndrome));
        assert_eq!(there.next(&mut it, 1), None);
        assert_ne!(there.state(&mut it), ERROR);
        // later requests are flushed, even if the driver rings no doorbell for them
        here.receive(&mut it, &[(NAMED, 8)]);
        pass(&mut it, 1, 2);
        let flushed = here.next(&mut it, 1).expect("a completion");
        assert_eq!((flushed.kind, flushed.syndrome), (RECEIVE_ERROR, FLUSHED));
    }
}

#[test]
fn a_receive_request_that_is_too_small_or_wrong_ends_both() {
    for (list, here_syndrome, there_syndrome) in
        [([(NAMED, 7)], 0x12, 1), ([(NAMED + (1 << 20), 8)], 0x14, 4)]
    {
        let (mut it, mut here, mut there) = connected();
        there.receive(&mut it, &list);
        here.send(&mut it, SEND, 0, &inline(&[1; 8]));
        assert_eq!(here.next(&mut it, 0), failed(SEND, 0, here_syndrome));
        let got = there.next(&mut it, 1).expect("a completion");
        assert_eq!((got.kind, got.syndrome), (RECEIVE_ERROR, there_syndrome));
        assert_eq!(there.state(&mut it), ERROR);
    }
}

#[test]
fn a_message_waits_for_a_receive_request() {
    let (mut it, mut here, mut there) = connected();
    here.send(&mut it, SEND, 0, &inline(&[1; 8]));
    // two retries, 10.24 ms each
    pass(&mut it, 1, 20);
    assert_eq!(here.next(&mut it, 0), None);
    there.receive(&mut it, &[(NAMED, 8)]);
    pass(&mut it, 20, 21);
    assert_eq!(here.next(&mut it, 0), done(SEND, 0, 8));
    assert!(there.next(&mut it, 1).is_some());
    here.send(&mut it, SEND, 0, &inline(&[1; 8]));
    pass(&mut it, 21, 50);
    assert_eq!(here.next(&mut it, 0), failed(SEND, 1, 0x16));
    assert_eq!(counted(&here, &mut it, 0x48), 2, "rnr_nak_retry_err");
    assert_eq!(counted(&there, &mut it, 0x30), 2, "out_of_buffer");
    assert_ne!(there.state(&mut it), ERROR);
}

#[test]
fn a_peer_that_does_not_answer_ends_the_retries() {
    for how in [
        "link 52:54:00:bb:00:02 down",
        "unplug 52:54:00:bb:00:02",
        "reset",
    ] {
        let (mut it, mut here, there) = connected();
        match how {
            "reset" => there.modify(&mut it, 0x50a, &[]),
            order => {
                hardware::mlx5::control::order(&mut it.fabric, order).expect("an order");
            }
        }
        here.send(
            &mut it,
            WRITE,
            0,
            &[remote(there.key, NAMED), inline(&[1; 8])].concat(),
        );
        pass(&mut it, 1, 8);
        assert_eq!(here.next(&mut it, 0), None, "{how}");
        pass(&mut it, 8, 10);
        assert_eq!(here.next(&mut it, 0), failed(WRITE, 0, 0x15), "{how}");
        assert_eq!(counted(&here, &mut it, 0x60), 2, "local_ack_timeout_err");
    }
}

#[test]
fn both_ends_are_in_one_vlan() {
    let (mut it, mut here, mut there) = connected();
    tagged_address(here.enter(&mut it), gid(0), 2, [0x10, 7]);
    there.receive(&mut it, &[(NAMED, 64)]);
    here.send(&mut it, SEND, 0, &inline(b"x"));
    assert_eq!(there.next(&mut it, 1), None, "it is in another network");
    tagged_address(there.enter(&mut it), gid(1), 2, [0x10, 7]);
    pass(&mut it, 0, 1);
    assert_eq!(there.next(&mut it, 1).map(|it| it.kind), Some(RECEIVED));
    assert_eq!(here.next(&mut it, 0).map(|it| it.kind), Some(REQUEST));
}

#[test]
fn a_link_that_comes_back_in_time_loses_nothing() {
    let (mut it, mut here, there) = connected();
    hardware::mlx5::control::order(&mut it.fabric, "link all down").expect("an order");
    here.send(
        &mut it,
        WRITE,
        0,
        &[remote(there.key, NAMED), inline(&[9; 8])].concat(),
    );
    pass(&mut it, 1, 5);
    assert_eq!(here.next(&mut it, 0), None);
    hardware::mlx5::control::order(&mut it.fabric, "link all up").expect("an order");
    pass(&mut it, 5, 6);
    assert_eq!(here.next(&mut it, 0), done(WRITE, 0, 8));
    assert_eq!(load(&there, &mut it, 0, 8), [9; 8]);
}

#[test]
fn a_bond_has_the_links_of_its_card() {
    let mut it = Driver::new();
    let mut pairs = [0, 1].map(|slot| Pair::new(&mut it, 0, slot, RELIABLE));
    let numbers = pairs.each_ref().map(|it| it.number);
    pairs[0].connect(&mut it, 0, numbers[1]);
    pairs[1].connect(&mut it, 0, numbers[0]);
    let lag = command(0x840, 0, 16);
    assert_eq!(pairs[0].enter(&mut it).execute(&lag, 16).status(), 0);
    let [first, second] = &mut pairs;
    for (round, (order, is_there)) in (0..).zip([
        ("link 52:54:00:bb:00:01 down", true),
        ("link all down", false),
    ]) {
        hardware::mlx5::control::order(&mut it.fabric, order).expect("an order");
        let data = [remote(second.key, NAMED), inline(&[1; 8])].concat();
        first.send(&mut it, WRITE, 0, &data);
        let expected = done(WRITE, round, 8).filter(|_| is_there);
        assert_eq!(first.next(&mut it, 0), expected, "{order}");
    }
}

#[test]
fn a_connection_is_mutual_and_may_be_within_a_function() {
    let mut it = Driver::new();
    let mut pairs = [0, 1].map(|slot| Pair::new(&mut it, 0, slot, RELIABLE));
    let other = Pair::new(&mut it, 1, 0, RELIABLE);
    let numbers = pairs.each_ref().map(|it| it.number);
    assert_eq!(
        other.number, numbers[0],
        "each function counts from the same number"
    );
    pairs[0].connect(&mut it, 0, numbers[1]);
    pairs[1].connect(&mut it, 0, numbers[0]);
    other.connect(&mut it, 0, numbers[0]);
    let [first, second] = &mut pairs;
    second.receive(&mut it, &[(NAMED, 8)]);
    first.send(&mut it, SEND, 0, &inline(&[3; 8]));
    assert!(second.next(&mut it, 1).is_some());
    let mut other = other;
    other.send(&mut it, SEND, 0, &inline(&[3; 8]));
    pass(&mut it, 1, 10);
    assert_eq!(
        other.next(&mut it, 0),
        failed(SEND, 0, 0x15),
        "the peer has another one"
    );
    assert_eq!(gid(0)[15], 1);
}

#[test]
fn a_reset_begins_anew_and_an_error_flushes_what_is_posted() {
    let (mut it, mut here, mut there) = connected();
    for _ in 0..3 {
        here.receive(&mut it, &[(NAMED, 8)]);
    }
    here.modify(&mut it, 0x507, &[]);
    for index in 0..3 {
        let flushed = here.next(&mut it, 1).expect("a completion");
        assert_eq!(
            (flushed.kind, flushed.syndrome, flushed.index),
            (RECEIVE_ERROR, FLUSHED, index)
        );
    }
    here.modify(&mut it, 0x50a, &[]);
    here.restart(&mut it);
    here.connect(&mut it, 1, there.number);
    there.receive(&mut it, &[(NAMED, 8)]);
    here.send(&mut it, SEND, 0, &inline(&[1; 8]));
    assert_eq!(here.next(&mut it, 0), done(SEND, 0, 8));
}

#[test]
fn a_queue_reports_solicited_completions_and_errors() {
    let (mut it, mut here, mut there) = connected();
    for solicits in [false, true] {
        there.receive(&mut it, &[(NAMED, 8)]);
        there.arm(&mut it, 1, true);
        assert_eq!(there.enter(&mut it).event(0, 0), None);
        here.post_silent(&mut it, SEND, solicits, &inline(&[1; 8]));
        let event = there.enter(&mut it).event(0, 0);
        assert_eq!(event.is_some(), solicits);
        there.next(&mut it, 1).expect("a completion");
    }
    assert_eq!(here.next(&mut it, 0), None, "none was requested");
    there.arm(&mut it, 1, true);
    there.receive(&mut it, &[(NAMED, 8)]);
    there.modify(&mut it, 0x507, &[]);
    assert!(there.enter(&mut it).event(0, 1).is_some());
}
