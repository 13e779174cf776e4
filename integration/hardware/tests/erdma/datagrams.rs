// SPDX-License-Identifier: Apache-2.0
//! Datagrams of RoCE v2, as drivers from Linux 6.14 on send them.

use crate::driver::{Bus, Command, Completions, Direct, Driver, MACS, two, work::*};
use hardware::erdma::Protocol;

const KEY: u32 = 0x8001_0000;
const HANDLE: u32 = 3;

struct Datagrams {
    near: Driver<Direct>,
    far: Driver<Direct>,
    near_queue: Completions,
    far_queue: Completions,
    pair: Pair,
    other: Pair,
    here: (u64, u32),
    there: (u64, u32),
}

fn mapped(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

/// Creates QP 1 on both functions. The near function has an address handle for the far function's GID.
fn datagrams(gid: fn(u8) -> [u8; 16]) -> Datagrams {
    let (_, mut near, mut far) = two(Protocol::Roce);
    for (driver, last) in [(&mut near, 1), (&mut far, 2)] {
        let set = Command::new(0, 14).u32(8, 4).bytes(12, &gid(last));
        driver.command(set).expect("a GID");
    }
    let (near_queue, far_queue) = (near.completion_queue(1, 4), far.completion_queue(1, 4));
    let pair = near.typed_pair(1, 4, &near_queue, 1);
    let other = far.typed_pair(1, 4, &far_queue, 1);
    for (driver, pair) in [(&mut near, &pair), (&mut far, &other)] {
        let init = Command::new(0, 3).u32(8, 1 << 24 | pair.number);
        (driver.command(init.u32(16, 3).u32(20, KEY))).expect("INIT with a key");
        driver.state(pair, 2);
        driver.state(pair, 3);
    }
    // flow label, traffic class, hop limit, service level, position of the GID, MAC, GID
    let handle = Command::new(0, 15)
        .u32(8, DOMAIN)
        .u32(12, HANDLE)
        .u32(16, 0xabcde)
        .bytes(20, &[0x60, 64, 5])
        .bytes(26, &[4, 0])
        .bytes(28, &MACS[1])
        .bytes(36, &gid(2));
    near.command(handle).expect("CREATE_AH");
    let (here, there) = (near.region(1, ALL, 2), far.region(1, ALL, 2));
    Datagrams {
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

fn datagram(number: u32, key: u32, handle: u32, segments: &[(u64, u32, u32)]) -> Request {
    let request = Request::new(SEND).u32(16, key).u32(20, number);
    request.u32(24, handle).segments(32, segments)
}

impl Datagrams {
    fn receive(&mut self, len: u32) {
        let segment = (self.there.0, len, self.there.1);
        self.far.post_receive(&mut self.other, segment);
    }
    fn post(&mut self, request: &Request) -> u8 {
        self.near.post_send(&mut self.pair, request);
        let done = self.near.poll(&mut self.near_queue);
        done.expect("a completion").status
    }
}

#[test]
fn a_datagram_over_ipv4() {
    let mut it = datagrams(mapped);
    it.receive(256);
    it.near.bus.store(it.here.0, b"management");
    let request = datagram(1, KEY, HANDLE, &[(it.here.0, 10, it.here.1)]);
    let request = Request {
        opcode: SEND_IMM,
        ..request
    };
    assert_eq!(it.post(&request.put(8, &[9, 8, 7, 6])), 0);
    let received = it.far.poll(&mut it.far_queue).expect("a datagram");
    assert_eq!(
        (received.status, received.size, received.opcode),
        (0, 50, 12)
    );
    assert_eq!(received.immediate, [9, 8, 7, 6]);
    assert_eq!(received.info >> 31, 0, "ERDMA_NETWORK_TYPE_IPV4");
    assert_eq!(received.info >> 20 & 0xff, 5, "the service level");
    assert_eq!(received.info & 0xf_ffff, 1, "the sender");
    let message = it.far.load(it.there.0, 50);
    assert_eq!(&message[40..], b"management");
    let ipv4 = &message[20..40];
    assert_eq!(ipv4[0], 0x45);
    assert_eq!(ipv4[9], 17);
    assert_eq!(ipv4[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = ipv4
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
        .sum();
    assert_eq!(
        (sum & 0xffff) + (sum >> 16),
        0xffff,
        "the checksum, as ib_get_rdma_header_version checks it"
    );
}

#[test]
fn a_datagram_over_ipv6() {
    fn gid(last: u8) -> [u8; 16] {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
    }
    let mut it = datagrams(gid);
    it.receive(256);
    it.near.bus.store(it.here.0, b"management");
    assert_eq!(
        it.post(&datagram(1, KEY, HANDLE, &[(it.here.0, 10, it.here.1)])),
        0
    );
    let received = it.far.poll(&mut it.far_queue).expect("a datagram");
    assert_eq!((received.info >> 31, received.opcode), (1, 4));
    let message = it.far.load(it.there.0, 50);
    assert_eq!(message[..8], [0x66, 0x0a, 0xbc, 0xde, 0, 10, 17, 64]);
    assert_eq!(message[8..24], gid(1));
    assert_eq!(message[24..40], gid(2));
    assert_eq!(&message[40..], b"management");
}

#[test]
fn datagrams_without_a_receiver_are_dropped() {
    let mut it = datagrams(mapped);
    let segments = [(it.here.0, 10, it.here.1)];
    assert_eq!(
        it.post(&datagram(1, KEY, HANDLE, &segments)),
        0,
        "no receive request"
    );
    it.receive(256);
    for (number, key, why) in [(1, KEY + 1, "another key"), (2, KEY, "no queue pair")] {
        assert_eq!(
            it.post(&datagram(number, key, HANDLE, &segments)),
            0,
            "{why}"
        );
        assert_eq!(it.far.poll(&mut it.far_queue), None, "{why}");
    }
    assert_eq!(it.far.read32(0xd0), 3, "packets that were dropped");
    assert_eq!(it.post(&datagram(1, KEY, HANDLE, &segments)), 0);
    assert!(it.far.poll(&mut it.far_queue).is_some());
}

#[test]
fn datagrams_that_cannot_be_sent() {
    type Change = fn(Request) -> Request;
    for (change, status, why) in [
        ((|it| it.u32(24, 99)) as Change, 8, "no handle"),
        (|it| it.u32(44, 1), 10, "no region"),
        (|it| it.u32(40, 4097), 8, "more than 4096 bytes"),
        (
            |it| Request {
                opcode: WRITE,
                ..it
            },
            8,
            "a write",
        ),
        (
            |it| Request {
                opcode: SEND_INV,
                ..it
            },
            8,
            "with a key to be invalidated",
        ),
    ] {
        let mut it = datagrams(mapped);
        let request = datagram(1, KEY, HANDLE, &[(it.here.0, 10, it.here.1)]);
        assert_eq!(it.post(&change(request)), status, "{why}");
    }
    let mut it = datagrams(mapped);
    let foreign = Command::new(0, 15)
        .u32(8, DOMAIN + 1)
        .u32(12, 7)
        .bytes(36, &mapped(2));
    it.near.command(foreign).expect("a handle");
    assert_eq!(
        it.post(&datagram(1, KEY, 7, &[])),
        13,
        "a handle of another domain"
    );
    let mut it = datagrams(mapped);
    it.near
        .command(Command::new(0, 14).u32(8, 4 | 1 << 31))
        .expect("DEL_GID");
    assert_eq!(
        it.post(&datagram(1, KEY, HANDLE, &[])),
        8,
        "the sender has no such GID"
    );
}

#[test]
fn a_receive_request_that_is_too_small() {
    let mut it = datagrams(mapped);
    it.receive(49);
    assert_eq!(
        it.post(&datagram(1, KEY, HANDLE, &[(it.here.0, 10, it.here.1)])),
        0
    );
    assert_eq!(it.far.poll(&mut it.far_queue).map(|it| it.status), Some(4));
    assert_eq!(it.far.asynchronous(), Some((0, 1)));
}

#[test]
fn iwarp_has_no_datagrams() {
    let (fabric, mut driver, _) = two(Protocol::Iwarp);
    let queue = driver.completion_queue(1, 4);
    // drivers before Linux 6.14 do not write this field
    driver.typed_pair(1, 4, &queue, 1);
    let service = fabric.borrow().device(0).pairs[&1].service;
    assert_eq!(service, hardware::erdma::queue_pairs::Service::Reliable);
}
