// SPDX-License-Identifier: Apache-2.0
//! Shared receive queues (`rmpc`), whose entries form a linked list.

use crate::{
    driver::{Driver, MEMORY, command, number, with},
    verbs::{DATA, DOMAIN, NAMED, Pair, RECEIVED, RELIABLE, REQUEST_ERROR, inline, made, pass},
};

const QUEUE: u64 = MEMORY + 0x8_8000;
const RECORD: u64 = MEMORY + 0x8_9000;
const SEND: u8 = 0xa;
const SHARED: u32 = 1 << 24;
const ERROR: u8 = 6;
/// Event types.
const LAST_REQUEST: u8 = 0x13;
const LIMIT: u8 = 0x14;

/// `CREATE_RMP`: 16 entries of 64 bytes, from [`QUEUE`] on.
fn create(domain: u32) -> Vec<u8> {
    let input = with(command(0x90c, 0, 0x118), 0x58, &domain.to_be_bytes());
    let input = with(input, 0x60, &RECORD.to_be_bytes());
    let input = with(input, 0x70, &[0, 6, 0, 4]);
    with(input, 0x110, &QUEUE.to_be_bytes())
}

/// Posts the entries of `order` as a linked list, each with 64 bytes of the memory of `key`.
fn post(it: &mut Driver, key: u32, order: &[u16]) {
    for (turn, slot) in order.iter().enumerate() {
        let next = order.get(turn + 1).copied().unwrap_or(9);
        let mut entry = [0; 64];
        entry[2..4].copy_from_slice(&next.to_be_bytes());
        entry[16..20].copy_from_slice(&64u32.to_be_bytes());
        entry[20..24].copy_from_slice(&key.to_be_bytes());
        entry[24..32].copy_from_slice(&(NAMED + turn as u64 * 64).to_be_bytes());
        entry[36..40].copy_from_slice(&0x100u32.to_be_bytes());
        it.store(QUEUE + u64::from(*slot) * 64, &entry);
    }
    it.store(RECORD, &(order.len() as u32).to_be_bytes());
}

/// Connects two queue pairs of function 0 to two of function 1, which share a receive queue. Returns also the number of
/// this queue.
fn shared(domain: u32) -> (Driver, [Pair; 2], [Pair; 2], u32) {
    let mut it = Driver::new();
    it.position = 1;
    it.set_queue();
    let queue = made(&mut it, &create(domain));
    let here = [0, 1].map(|slot| Pair::new(&mut it, 0, slot, RELIABLE));
    let there = [0, 1].map(|slot| Pair::with_receives(&mut it, 1, slot, RELIABLE, SHARED | queue));
    for (here, there) in here.iter().zip(&there) {
        here.connect(&mut it, 1, there.number);
        there.connect(&mut it, 0, here.number);
    }
    (it, here, there, queue)
}

/// Type and object number of the first event of the function in use.
fn number_event(it: &Driver) -> Option<(u8, u32)> {
    let (kind, _, data) = it.event(0, 0)?;
    Some((kind, number(&data[24..]) as u32))
}

#[test]
fn queue_pairs_take_the_entries_of_a_list() {
    let (mut it, mut here, mut there, _) = shared(DOMAIN);
    let key = there[0].key;
    post(there[0].enter(&mut it), key, &[0, 5, 3]);
    let indices = [(0, 0), (1, 5), (0, 3)];
    for (turn, (pair, index)) in (0..).zip(indices) {
        here[pair].send(&mut it, SEND, 0, &inline(&[turn + 1; 5]));
        let got = there[pair].next(&mut it, 1).expect("a completion");
        assert_eq!((got.kind, got.len, got.index), (RECEIVED, 5, index));
        let message = there[pair].enter(&mut it);
        let message = message.load(DATA + 0x123 + u64::from(turn) * 64, 5);
        assert_eq!(message, [turn + 1; 5]);
    }
    // no receive request is left
    here[1].send(&mut it, SEND, 0, &inline(b"x"));
    assert_eq!(there[1].next(&mut it, 1), None);
    // the third request names entry 9 as the next one
    let next = it.load(QUEUE, 64);
    it.store(QUEUE + 9 * 64, &next);
    it.store(RECORD, &4u32.to_be_bytes());
    pass(&mut it, 0, 1);
    assert_eq!(there[1].next(&mut it, 1).map(|it| it.index), Some(9));
}

#[test]
fn an_error_leaves_the_entries_to_the_others_and_is_reported() {
    let (mut it, mut here, mut there, _) = shared(DOMAIN);
    let key = there[0].key;
    post(there[0].enter(&mut it), key, &[0, 1]);
    there[0].modify(&mut it, 0x507, &[]);
    assert_eq!(there[0].state(&mut it), ERROR);
    pass(&mut it, 0, 1);
    assert_eq!(there[0].next(&mut it, 1), None);
    let event = number_event(there[0].enter(&mut it));
    assert_eq!(event, Some((LAST_REQUEST, there[0].number)));
    here[1].send(&mut it, SEND, 0, &inline(b"x"));
    assert_eq!(there[1].next(&mut it, 1).map(|it| it.kind), Some(RECEIVED));
}

#[test]
fn a_limit_is_reported_once() {
    let (mut it, mut here, mut there, queue) = shared(DOMAIN);
    let key = there[0].key;
    post(there[0].enter(&mut it), key, &[0, 1, 2, 3]);
    let arm = with(
        command(0x90d, 0, 0x110),
        8,
        &(1 << 28 | queue).to_be_bytes(),
    );
    let arm = with(arm, 0x56, &3u16.to_be_bytes());
    assert_eq!(it.execute(&arm, 16).status(), 0);
    let query = with(command(0x90f, 0, 16), 8, &queue.to_be_bytes());
    for (limit, is_reported) in [(3, false), (0, true), (0, true)] {
        here[0].send(&mut it, SEND, 0, &inline(b"x"));
        assert_eq!(there[0].next(&mut it, 1).map(|it| it.kind), Some(RECEIVED));
        let answer = there[0].enter(&mut it).execute(&query, 0x110);
        assert_eq!(answer.number(0x56, 2), limit);
        assert_eq!(number_event(&it), is_reported.then_some((LIMIT, queue)));
    }
    assert_eq!(it.event(0, 1), None);
}

#[test]
fn an_entry_needs_a_key_of_the_queue_s_domain() {
    let (mut it, mut here, there, queue) = shared(DOMAIN + 1);
    let key = there[0].key;
    post(there[0].enter(&mut it), key, &[0]);
    here[0].send(&mut it, SEND, 0, &inline(b"x"));
    let failed = here[0].next(&mut it, 0).expect("a completion");
    assert_eq!((failed.kind, failed.syndrome), (REQUEST_ERROR, 0x14));
    // a destroyed queue has no entries
    let destroy = with(command(0x90e, 0, 16), 8, &queue.to_be_bytes());
    assert_eq!(there[0].enter(&mut it).execute(&destroy, 16).status(), 0);
    here[1].send(&mut it, SEND, 0, &inline(b"x"));
    assert_eq!(here[1].next(&mut it, 0), None);
    pass(&mut it, 0, 50);
    let failed = here[1].next(&mut it, 0).expect("a completion");
    assert_eq!((failed.kind, failed.syndrome), (REQUEST_ERROR, 0x16));
}
