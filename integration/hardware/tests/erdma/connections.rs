// SPDX-License-Identifier: Apache-2.0
//! Reliable connections between two functions, and their operations.

use crate::driver::{Bus, Completed, Completions, Direct, Driver, Fabrics, two, work::*};
use hardware::erdma::Protocol;

pub(crate) struct Connection {
    pub(crate) fabric: Fabrics,
    pub(crate) near: Driver<Direct>,
    pub(crate) far: Driver<Direct>,
    pub(crate) near_queue: Completions,
    pub(crate) far_queue: Completions,
    pub(crate) pair: Pair,
    pub(crate) other: Pair,
    /// A region of two pages on each side.
    pub(crate) here: (u64, u32),
    pub(crate) there: (u64, u32),
}

impl Connection {
    pub(crate) fn near(&mut self) -> Option<Completed> {
        self.near.poll(&mut self.near_queue)
    }
    pub(crate) fn far(&mut self) -> Option<Completed> {
        self.far.poll(&mut self.far_queue)
    }
    pub(crate) fn post(&mut self, request: &Request) {
        self.near.post_send(&mut self.pair, request);
    }
    /// Returns `len` bytes of the near region as a segment.
    pub(crate) fn segment(&self, at: u64, len: u32) -> (u64, u32, u32) {
        (self.here.0 + at, len, self.here.1)
    }
    pub(crate) fn receive(&mut self, at: u64, len: u32) {
        let segment = (self.there.0 + at, len, self.there.1);
        self.far.post_receive(&mut self.other, segment);
    }
}

/// Creates a connection whose queues have 16 slots.
pub(crate) fn connection() -> Connection {
    let (fabric, mut near, mut far) = two(Protocol::Iwarp);
    let (near_queue, far_queue) = (near.completion_queue(1, 4), far.completion_queue(1, 4));
    let (pair, other) = (near.pair(1, 4, &near_queue), far.pair(1, 4, &far_queue));
    near.connect(&pair, other.cookie);
    far.connect(&other, pair.cookie);
    let (here, there) = (near.region(1, ALL, 2), far.region(2, ALL, 2));
    Connection {
        fabric,
        near,
        far,
        near_queue,
        far_queue,
        pair,
        other,
        here,
        there,
    }
}

#[test]
fn write_from_six_segments() {
    let mut it = connection();
    it.near.bus.store(it.here.0, b"abcdefghijklmnopqrstuvwxyz");
    let segments: Vec<_> = (0..6).map(|i| it.segment(i * 4, 3)).collect();
    it.post(&write(it.there, &segments));
    let done = it.near().expect("a completion");
    assert_eq!(
        (done.status, done.opcode, done.index, done.size),
        (0, 0, 0, 18)
    );
    assert_eq!(it.far.load(it.there.0, 19), b"abcefgijkmnoqrsuvw\0");
    assert_eq!(it.far(), None, "the peer does not learn of it");
}

#[test]
fn inline_data_are_in_the_request() {
    let mut it = connection();
    // inline data have at most 96 bytes: the request has 4 slots
    let data: Vec<u8> = (0..96).collect();
    it.post(&remote(Request::new(WRITE), it.there).inline(32, &data));
    assert_eq!(it.near().expect("a completion").status, 0);
    assert_eq!(it.far.load(it.there.0, 97), [&data[..], &[0]].concat());
    it.receive(4096, 200);
    it.post(&Request::new(SEND).inline(16, b"inline"));
    assert_eq!(it.far().expect("a message").size, 6);
    assert_eq!(it.far.load(it.there.0 + 4096, 6), b"inline");
}

#[test]
fn send_goes_to_receive_requests_in_their_order() {
    let mut it = connection();
    it.receive(0, 100);
    it.receive(1000, 100);
    for text in [b"first.", b"second"] {
        it.near.bus.store(it.here.0, text);
        it.post(&send(&[it.segment(0, 6)]));
    }
    for (index, text) in [b"first.", b"second"].into_iter().enumerate() {
        let received = it.far().expect("a message");
        assert_eq!(
            (received.opcode, received.is_receive, received.status),
            (4, true, 0)
        );
        assert_eq!(
            (received.index, received.size, received.queue_pair),
            (index as u32, 6, 1)
        );
        assert_eq!(it.far.load(it.there.0 + 1000 * index as u64, 6), text);
        assert!(
            it.near()
                .is_some_and(|done| done.status == 0 && !done.is_receive)
        );
    }
}

#[test]
fn immediate_data_are_the_same_at_both_ends() {
    let mut it = connection();
    // in network byte order, as in the verbs interface
    let immediate = [1, 2, 3, 4];
    it.receive(0, 100);
    it.post(
        &Request {
            opcode: SEND_IMM,
            ..send(&[it.segment(0, 5)])
        }
        .put(8, &immediate),
    );
    let received = it.far().expect("a message");
    assert_eq!(
        (received.opcode, received.immediate, received.size),
        (12, immediate, 5)
    );
    it.receive(0, 100);
    it.near.bus.store(it.here.0, b"written");
    let there = (it.there.0 + 4096, it.there.1);
    it.post(
        &Request {
            opcode: WRITE_IMM,
            ..write(there, &[it.segment(0, 7)])
        }
        .put(8, &immediate),
    );
    let received = it.far().expect("a message");
    assert_eq!(
        (received.opcode, received.immediate, received.size),
        (5, immediate, 7)
    );
    assert_eq!(it.far.load(it.there.0 + 4096, 7), b"written");
    assert_eq!(
        it.far.load(it.there.0, 7),
        [0; 7],
        "its receive request has no data"
    );
}

#[test]
fn a_message_invalidates_a_key_of_its_receiver() {
    use crate::driver::Command;
    let mut it = connection();
    let table = it.far.pages(1);
    let page = it.far.pages(1);
    let fast = Command::new(0, 8)
        .u32(8, 9)
        .u32(12, DOMAIN << 12 | 1 << 6 | ALL << 1)
        .u32(28, 12 << 27 | 1 << 20 | 4)
        .u64(32, table);
    it.far.command(fast).expect("a region");
    let register = Request::new(REG_MR)
        .u64(8, page)
        .u32(16, 4096)
        .u32(20, 9 << 8);
    let register = register.u32(24, ALL << 1 | 1 << 12).u64(32, page);
    it.far.post_send(&mut it.other, &register);
    assert_eq!(it.far().expect("a completion").status, 0);
    it.receive(0, 100);
    it.post(&write((page, 9 << 8), &[it.segment(0, 1)]));
    assert_eq!(it.near().expect("a completion").status, 0);
    it.post(
        &Request {
            opcode: SEND_INV,
            ..send(&[it.segment(0, 1)])
        }
        .u32(8, 9 << 8),
    );
    let received = it.far().expect("a message");
    assert_eq!(
        (received.opcode, received.key, received.status),
        (6, 9 << 8, 0)
    );
    assert_eq!(it.near().expect("a completion").status, 0);
    it.post(&write((page, 9 << 8), &[it.segment(0, 1)]));
    assert_eq!(
        it.near().expect("a completion").status,
        3,
        "the key is no longer valid"
    );
}

#[test]
fn read_takes_the_peers_memory() {
    let mut it = connection();
    it.far.bus.store(it.there.0 + 4090, b"over pages");
    it.post(&read(it.segment(3, 10), (it.there.0 + 4090, it.there.1)));
    let done = it.near().expect("a completion");
    assert_eq!((done.status, done.opcode, done.size), (0, 1, 10));
    assert_eq!(it.near.load(it.here.0 + 3, 10), b"over pages");
}

#[test]
fn a_read_invalidates_a_key_of_its_own() {
    use crate::driver::Command;
    let mut it = connection();
    let (table, page) = (it.near.pages(1), it.near.pages(1));
    let fast = Command::new(0, 8)
        .u32(8, 9)
        .u32(12, DOMAIN << 12 | 1 << 6 | ALL << 1)
        .u32(28, 12 << 27 | 1 << 20 | 4)
        .u64(32, table);
    it.near.command(fast).expect("a region");
    let register = Request::new(REG_MR)
        .u64(8, page)
        .u32(16, 4096)
        .u32(20, 9 << 8);
    it.post(&register.u32(24, ALL << 1 | 1 << 12).u64(32, page));
    assert_eq!(it.near().map(|it| it.status), Some(0));
    it.far.bus.store(it.there.0, b"read");
    let request = read((page, 4, 9 << 8), it.there);
    let invalidating = Request {
        opcode: READ_INV,
        ..request
    };
    it.post(&invalidating.clone().u32(8, 9 << 8));
    assert_eq!(it.near().map(|it| (it.status, it.opcode)), Some((0, 16)));
    assert_eq!(it.near.load(page, 4), b"read");
    it.post(&invalidating.u32(8, 9 << 8));
    assert_eq!(
        it.near().map(|it| it.status),
        Some(10),
        "the key is no longer valid"
    );
}

#[test]
fn atomic_operations_return_the_value_before() {
    let mut it = connection();
    it.far.bus.store(it.there.0, &7u64.to_le_bytes());
    let value = |driver: &Driver<Direct>, at| {
        u64::from_le_bytes(driver.load(at, 8).try_into().expect("8 bytes"))
    };
    it.post(&atomic(FAA, it.there, it.here, u64::MAX, 0));
    assert_eq!(
        it.near().map(|done| (done.status, done.opcode)),
        Some((0, 18))
    );
    assert_eq!(
        (value(&it.near, it.here.0), value(&it.far, it.there.0)),
        (7, 6),
        "it wraps around"
    );
    it.post(&atomic(CAS, it.there, it.here, 100, 5));
    assert_eq!(
        it.near().map(|done| (done.status, done.opcode)),
        Some((0, 17))
    );
    assert_eq!(
        (value(&it.near, it.here.0), value(&it.far, it.there.0)),
        (6, 6),
        "it was not 5"
    );
    it.post(&atomic(CAS, it.there, it.here, 100, 6));
    assert_eq!(
        (value(&it.near, it.here.0), value(&it.far, it.there.0)),
        (6, 100)
    );
}

#[test]
fn messages_may_be_empty() {
    let mut it = connection();
    it.post(&write((0, 0), &[]));
    it.post(&read((0, 0, 0), (0, 0)));
    it.far.post_receive(&mut it.other, (0, 0, 0));
    it.post(&send(&[]));
    for opcode in [0, 1, 2] {
        let done = it.near().expect("a completion");
        assert_eq!((done.opcode, done.status), (opcode, 0));
    }
    assert_eq!(it.far().map(|it| (it.status, it.size)), Some((0, 0)));
}

#[test]
fn all_queues_go_around() {
    let mut it = connection();
    // requests of 3 slots in a queue of 16: they wrap around the queue, and its positions overflow
    for round in 0..30_000u32 {
        it.receive(4096, 64);
        it.near.bus.store(it.here.0, &round.to_le_bytes());
        let segments = [
            it.segment(0, 1),
            it.segment(1, 1),
            it.segment(2, 1),
            it.segment(3, 1),
        ];
        it.post(&send(&segments));
        let done = it.near().expect("a completion");
        assert_eq!(
            (done.status, done.index),
            (0, (round * 3) & 0xffff),
            "{round}"
        );
        let received = it.far().expect("a message");
        assert_eq!(
            (received.status, received.index),
            (0, round & 0xffff),
            "{round}"
        );
        assert_eq!(it.far.load(it.there.0 + 4096, 4), round.to_le_bytes());
    }
}

#[test]
fn a_queue_may_be_full() {
    let mut it = connection();
    for _ in 0..8 {
        // 2 slots per request, and one doorbell for all requests
        it.near.push_send(
            &mut it.pair,
            &remote(Request::new(WRITE), it.there).inline(32, b"x"),
        );
    }
    it.near.ring_send(&it.pair);
    assert_eq!(
        std::iter::from_fn(|| it.near())
            .filter(|it| it.status == 0)
            .count(),
        8
    );
}

#[test]
fn unsignaled_requests_have_no_completion() {
    let mut it = connection();
    it.post(&write(it.there, &[it.segment(0, 4)]).flags(0));
    assert_eq!(it.near(), None);
    it.post(&write(it.there, &[it.segment(0, 4)]));
    assert_eq!(it.near().map(|done| done.index), Some(2));
}

#[test]
fn a_message_of_many_pages_is_copied_as_a_whole() {
    let mut it = connection();
    let (here, there) = (it.near.pages(300), it.far.pages(300));
    let table = |driver: &mut Driver<Direct>, at: u64| {
        let table = driver.pages(1);
        let bytes: Vec<u8> = (0..300)
            .rev()
            .flat_map(|it| (at + (it << 12)).to_le_bytes())
            .collect();
        driver.bus.store(table, &bytes);
        let command = Driver::<Direct>::region_command(9, ALL, 0, 300 << 12, &[table]);
        driver
            .command(command.u32(28, 12 << 27 | 1 << 20 | 300))
            .expect("a region");
    };
    table(&mut it.near, here);
    let command = Driver::<Direct>::region_command(9, ALL, 0, 300 << 12, &[there]);
    (it.far.command(command.u32(28, 21 << 27 | 1))).expect("a region in a large page");
    for page in 0..300u64 {
        it.near
            .bus
            .store(here + (page << 12) + 100, &page.to_le_bytes());
    }
    it.post(&write((0, 9 << 8), &[(0, 300 << 12, 9 << 8)]));
    assert_eq!(it.near().expect("a completion").status, 0);
    for page in 0..300u64 {
        let at = there + ((299 - page) << 12) + 100;
        assert_eq!(it.far.load(at, 8), page.to_le_bytes());
    }
}

#[test]
fn a_connection_within_one_function() {
    let (_, mut driver, _) = two(Protocol::Iwarp);
    let mut queue = driver.completion_queue(1, 4);
    let (mut pair, other) = (driver.pair(1, 4, &queue), driver.pair(2, 4, &queue));
    driver.connect(&pair, other.cookie);
    driver.connect(&other, pair.cookie);
    let (here, key) = driver.region(1, ALL, 1);
    driver.bus.store(here, b"loop");
    driver.post_send(&mut pair, &write((here + 100, key), &[(here, 4, key)]));
    assert_eq!(driver.poll(&mut queue).map(|it| it.status), Some(0));
    assert_eq!(driver.load(here + 100, 4), b"loop");
}

#[test]
fn statistics_count_messages() {
    use crate::driver::Command;
    let mut it = connection();
    it.post(&write(it.there, &[it.segment(0, 1000)]));
    it.post(&read(it.segment(0, 24), it.there));
    let counters = |driver: &mut Driver<Direct>| {
        let buffer = driver.pages(1);
        driver
            .command(Command::new(1, 4).u64(16, buffer).u32(24, 256))
            .expect("GET_STATS");
        let bytes = driver.load(buffer + 16, 88);
        bytes
            .chunks(8)
            .map(|it| u64::from_le_bytes(it.try_into().expect("8 bytes")))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        counters(&mut it.near),
        [2, 1, 1000, 0, 0, 0, 1, 24, 0, 0, 0]
    );
    assert_eq!(counters(&mut it.far), [0, 1, 24, 0, 0, 0, 1, 1000, 0, 0, 0]);
    assert_eq!(it.near.read32(0x90), 1000, "the same as registers");
    assert_eq!(it.near.read32(0xc8), 24);
}

/// RoCE v2: each function has a GID, and queue pairs change through the states of the verbs
/// interface.
#[test]
fn connections_by_gid_and_number() {
    use crate::driver::{Command, MACS};
    let (_, mut near, mut far) = two(Protocol::Roce);
    let gid = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
    for (driver, last) in [(&mut near, 1), (&mut far, 2)] {
        driver
            .command(Command::new(0, 14).u32(8, 1).bytes(12, &gid(last)))
            .expect("a GID");
    }
    let (mut near_queue, far_queue) = (near.completion_queue(1, 4), far.completion_queue(1, 4));
    let (mut pair, other) = (near.pair(2, 4, &near_queue), far.pair(9, 4, &far_queue));
    let query = |driver: &mut Driver<Direct>, number| {
        let [answer, _] = driver
            .command(Command::new(0, 17).u32(8, number))
            .expect("QUERY_QP");
        (
            answer >> 48 & 0xff,
            answer >> 24 & 0xff_ffff,
            answer & 0xff_ffff,
            answer >> 56,
        )
    };
    assert_eq!(query(&mut near, 2), (0, 0, 0, 0));
    near.state(&pair, 1);
    far.state(&other, 1);
    let ready_to_receive = |number: u32, peer: u32, mac: [u8; 6], last| {
        let command = Command::new(0, 3).u32(8, 2 << 24 | number).u32(12, peer);
        let command = command
            .u32(16, 1 | 1 << 2 | 1 << 4 | 1 << 5)
            .u32(24, 0x123456);
        command.bytes(44, &mac).bytes(52, &gid(last))
    };
    near.command(ready_to_receive(2, 9, MACS[1], 2))
        .expect("RTR");
    far.command(ready_to_receive(9, 2, MACS[0], 1))
        .expect("RTR");
    let (here, key) = near.region(1, ALL, 1);
    let (there, far_key) = far.region(1, ALL, 1);
    near.bus.store(here, b"data");
    let request = write((there, far_key), &[(here, 4, key)]);
    near.post_send(&mut pair, &request);
    assert_eq!(near.poll(&mut near_queue), None, "it does not send yet");
    // the sequence number of the send queue, together with the state
    let ready_to_send = Command::new(0, 3)
        .u32(8, 3 << 24 | 2)
        .u32(16, 1 | 1 << 3)
        .u32(28, 0x654321);
    near.command(ready_to_send).expect("RTS");
    assert_eq!(near.poll(&mut near_queue).map(|it| it.status), Some(0));
    assert_eq!(far.load(there, 4), b"data");
    assert_eq!(query(&mut near, 2), (3, 0x123456, 0x654321, 0));
    near.state(&pair, 4);
    near.post_send(&mut pair, &request);
    assert_eq!(near.poll(&mut near_queue), None, "SQD");
    assert_eq!(
        query(&mut near, 2),
        (4, 0x123456, 0x654321, 1),
        "requests wait"
    );
    near.state(&pair, 0);
    assert_eq!(query(&mut near, 2).0, 0);
    assert_eq!(
        near.command(Command::new(0, 3).u32(8, 7 << 24 | 2).u32(16, 1)),
        Err(1),
        "no state"
    );
}
