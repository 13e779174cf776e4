// SPDX-License-Identifier: Apache-2.0
//! Requests that end with an error: the statuses, the state afterwards, and the flushed requests.

use crate::{
    connections::{Connection, connection},
    driver::{Bus, Command, at, work::*},
};
use hardware::erdma::fabric::Next;
use std::time::Duration;

fn order(it: &Connection, line: &str) {
    let mut fabric = it.fabric.borrow_mut();
    hardware::erdma::control::order(&mut fabric, line).expect("an order");
}

#[test]
fn a_send_waits_for_a_receive_request() {
    let mut it = connection();
    it.near.bus.store(it.here.0, b"patient");
    it.post(&send(&[it.segment(0, 7)]));
    assert_eq!(
        at(&it.fabric, 3_600_000),
        Next::Idle,
        "RNR: as long as it takes"
    );
    assert_eq!(it.near(), None);
    it.receive(0, 100);
    assert_eq!(it.near().map(|done| done.status), Some(0));
    assert_eq!(it.far().map(|it| it.size), Some(7));
}

#[test]
fn a_send_waits_as_long_as_a_test_orders() {
    let mut it = connection();
    order(&it, "no-receive 500");
    it.post(&send(&[it.segment(0, 7)]));
    assert_eq!(at(&it.fabric, 499), Next::At(Duration::from_millis(500)));
    assert_eq!(it.near(), None);
    at(&it.fabric, 500);
    assert_eq!(it.near().map(|done| done.status), Some(16));
    assert_eq!(
        it.near.asynchronous(),
        Some((0, 1)),
        "a fatal event of queue pair 1"
    );
}

#[test]
fn a_receive_request_that_is_too_small_ends_the_connection_at_both_ends() {
    let mut it = connection();
    it.receive(0, 6);
    it.receive(100, 100);
    it.post(&send(&[it.segment(0, 7)]));
    it.post(&send(&[it.segment(0, 7)]));
    assert_eq!(it.near().map(|done| done.status), Some(4));
    assert_eq!(it.near().map(|done| done.status), Some(15), "flushed");
    let received = it.far().expect("a completion");
    assert_eq!(
        (received.status, received.index, received.is_receive),
        (4, 0, true)
    );
    assert_eq!(it.far().map(|it| (it.status, it.index)), Some((15, 1)));
    assert_eq!(it.far.load(it.there.0, 6), [0; 6]);
    assert_eq!(
        (it.near.asynchronous(), it.far.asynchronous()),
        (Some((0, 1)), Some((0, 1)))
    );
}

#[test]
fn a_receive_request_with_a_bad_key() {
    for (key, status) in [(7 << 8, 3), (2 << 8 | 1, 3), (3 << 8, 5)] {
        let mut it = connection();
        it.far.region(3, ALL & !LW, 1);
        let there = it.there.0;
        let address = if key == 3 << 8 {
            there + (2 << 12)
        } else {
            there
        };
        it.far.post_receive(&mut it.other, (address, 100, key));
        it.post(&send(&[it.segment(0, 7)]));
        assert_eq!(it.far().map(|it| it.status), Some(status), "{key:#x}");
        assert_eq!(it.near().map(|it| it.status), Some(status), "{key:#x}");
    }
}

#[test]
fn the_requests_after_a_failed_one_are_flushed() {
    let mut it = connection();
    let bad = write((it.there.0, 99 << 8), &[it.segment(0, 4)]);
    let good = write(it.there, &[it.segment(0, 4)]);
    for request in [&good, &bad, &good.clone().flags(0), &good] {
        it.near.push_send(&mut it.pair, request);
    }
    it.near.post_receive(&mut it.pair, (0, 0, 0));
    it.near.ring_send(&it.pair);
    let statuses: Vec<_> = std::iter::from_fn(|| it.near())
        .map(|it| (it.is_receive, it.status, it.index))
        .collect();
    // the flush of an unsignaled request creates a completion, too
    assert_eq!(
        statuses,
        [
            (false, 0, 0),
            (false, 3, 2),
            (false, 15, 4),
            (false, 15, 6),
            (true, 15, 0)
        ]
    );
    // requests that are posted later are flushed as well
    it.post(&good);
    it.near.post_receive(&mut it.pair, (0, 0, 0));
    let statuses: Vec<_> = std::iter::from_fn(|| it.near())
        .map(|it| (it.is_receive, it.status, it.index))
        .collect();
    assert_eq!(statuses, [(false, 15, 8), (true, 15, 1)]);
}

#[test]
fn the_driver_closes_a_connection() {
    for state in [3, 4, 5] {
        let mut it = connection();
        it.near.post_receive(&mut it.pair, (0, 0, 0));
        let (number, queue) = (it.pair.number, &mut it.near_queue);
        it.near
            .command(Command::new(0, 3).u32(8, state << 24 | number))
            .expect("MODIFY_QP");
        assert_eq!(
            it.near.poll(queue).map(|it| (it.is_receive, it.status)),
            Some((true, 15))
        );
        assert_eq!(it.near.asynchronous(), None, "the driver knows");
        // kernel consumers flush again by a command, which contains the positions of the queues
        it.near.push_send(&mut it.pair, &write(it.there, &[]));
        let reflush = Command::new(0, 6)
            .u32(8, number)
            .u32(12, it.pair.sent.into())
            .u32(16, 1);
        it.near.command(reflush.clone()).expect("REFLUSH");
        assert_eq!(
            it.near().map(|it| (it.is_receive, it.status)),
            Some((false, 15))
        );
        assert_eq!(
            it.near.command(reflush.u32(12, 40)),
            Err(1),
            "more than the queue has"
        );
        // the peer no longer responds
        it.far.post_send(&mut it.other, &write(it.here, &[]));
        assert_eq!(it.far().map(|it| it.status), Some(16));
    }
}

#[test]
fn a_peer_that_is_destroyed_does_not_answer() {
    let mut it = connection();
    it.far
        .command(Command::new(0, 2).u32(8, 1))
        .expect("DESTROY_QP");
    it.post(&write(it.there, &[it.segment(0, 4)]));
    assert_eq!(at(&it.fabric, 9_999), Next::At(Duration::from_secs(10)));
    assert_eq!(it.near(), None);
    at(&it.fabric, 10_000);
    assert_eq!(it.near().map(|it| it.status), Some(16));
}

#[test]
fn a_send_that_waits_for_a_receive_request_learns_that_its_peer_failed() {
    let mut it = connection();
    it.post(&send(&[it.segment(0, 4)]));
    // the peer's third request has an unknown opcode
    let good = write(it.here, &[]);
    for request in [&good, &good, &Request::new(31)] {
        it.far.push_send(&mut it.other, request);
    }
    it.far.ring_send(&it.other);
    assert_eq!(it.near().map(|it| it.status), Some(16));
}

#[test]
fn a_send_that_waits_for_a_receive_request_learns_that_its_peer_is_gone() {
    let mut it = connection();
    it.post(&send(&[it.segment(0, 4)]));
    it.far
        .command(Command::new(0, 2).u32(8, 1))
        .expect("DESTROY_QP");
    assert_eq!(at(&it.fabric, 9_999), Next::At(Duration::from_secs(10)));
    at(&it.fabric, 10_000);
    assert_eq!(it.near().map(|it| it.status), Some(16));
    let mut it = connection();
    it.post(&send(&[it.segment(0, 4)]));
    it.far.restart();
    at(&it.fabric, 10_000);
    assert_eq!(it.near().map(|it| it.status), Some(16));
}

#[test]
fn requests_wait_until_the_peer_is_connected() {
    let mut it = connection();
    it.far
        .command(Command::new(0, 2).u32(8, 1))
        .expect("DESTROY_QP");
    it.post(&write(it.there, &[it.segment(0, 4)]));
    let other = it.far.pair(2, 4, &it.far_queue);
    it.near.connect(&it.pair, other.cookie);
    assert_eq!(it.near(), None);
    it.far.connect(&other, it.pair.cookie);
    assert_eq!(it.near().map(|it| it.status), Some(0));
}

#[test]
fn requests_that_have_no_form() {
    let segments = [(0, 1, 0); 6];
    for (request, why) in [
        (Request::new(4), "a receive"),
        (Request::new(7), "reserved"),
        (Request::new(31), "no operation"),
        (
            Request {
                count: 7,
                ..send(&segments)
            },
            "seven segments",
        ),
        (
            Request {
                count: 255,
                ..send(&segments)
            },
            "255 segments",
        ),
        (
            Request {
                count: 113,
                ..Request::new(SEND).flags(SIGNALED | INLINE)
            },
            "more inline data than a request has",
        ),
        (
            Request {
                count: 255,
                ..Request::new(WRITE).flags(SIGNALED | INLINE)
            },
            "255 bytes inline",
        ),
        (read((0, u32::MAX, 0), (0, 0)), "a message of 4 GiB"),
        (send(&[(0, 1 << 31, 0), (0, 1, 0)]), "more than 2 GiB"),
    ] {
        let mut it = connection();
        it.receive(0, 100);
        it.post(&request);
        assert_eq!(it.near().map(|it| it.status), Some(8), "{why}");
    }
}

#[test]
fn a_request_that_is_not_posted_as_a_whole() {
    let mut it = connection();
    let request = write(it.there, &[it.segment(0, 4); 4]);
    it.near.push_send(&mut it.pair, &request);
    it.pair.sent = 2;
    it.near.ring_send(&it.pair);
    assert_eq!(it.near().map(|it| (it.status, it.index)), Some((8, 0)));
    assert_eq!(it.near.asynchronous(), Some((0, 1)));
    // a request of eight slots, the most that the header can express
    let mut it = connection();
    for _ in 0..8 {
        it.near.push_send(&mut it.pair, &Request::new(SEND));
    }
    let header = 1 << 32 | SEND << 27 | SIGNALED | 7 << 52;
    it.near.bus.store(it.pair.send, &u64::to_le_bytes(header));
    it.near.ring_send(&it.pair);
    assert_eq!(it.near().map(|it| (it.status, it.index)), Some((8, 0)));
}

#[test]
fn atomic_operations_need_aligned_addresses() {
    let mut it = connection();
    it.post(&atomic(FAA, (it.there.0 + 4, it.there.1), it.here, 1, 0));
    assert_eq!(it.near().map(|it| it.status), Some(4));
    assert_eq!(it.far.load(it.there.0, 16), [0; 16]);
}

#[test]
fn doorbells_of_no_queue_and_beyond_a_queue_do_nothing() {
    let mut it = connection();
    it.near.write64(0x1000, 99 << 32 | 4);
    it.near.write64(0x61000, 99 << 32 | 4);
    it.near.write64(0x1000, 1 << 32 | 17);
    it.near.write64(0x61000, 1 << 32 | 17);
    it.near.write64(0x79000, 99 << 32 | 1 << 31);
    it.near.bus.write(0x1000, &[1, 0, 0, 0]);
    assert_eq!(it.near(), None);
    it.post(&write(it.there, &[it.segment(0, 4)]));
    assert_eq!(it.near().map(|it| it.status), Some(0));
}
