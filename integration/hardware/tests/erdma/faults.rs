// SPDX-License-Identifier: Apache-2.0
//! Faults that a test sets.

use crate::{
    connections::{Connection, connection},
    driver::{Bus, Command, at, settle, work::*},
};
use hardware::erdma::{control, fabric::Next};
use std::time::Duration;

fn order(it: &Connection, line: &str) -> String {
    let answer = control::order(&mut it.fabric.borrow_mut(), line).expect("an order");
    settle(&it.fabric);
    answer
}

const NEAR: &str = "02:00:00:00:00:01";
const FAR: &str = "02:00:00:00:00:02";

#[test]
fn a_link_that_comes_up_in_time_loses_nothing() {
    for mac in [NEAR, FAR] {
        let mut it = connection();
        order(&it, &format!("link {mac} down"));
        it.post(&write(it.there, &[it.segment(0, 4)]));
        at(&it.fabric, 9_000);
        assert_eq!(it.near(), None);
        order(&it, &format!("link {mac} up"));
        assert_eq!(it.near().map(|it| it.status), Some(0));
    }
}

#[test]
fn a_link_that_stays_down_ends_the_connection() {
    let mut it = connection();
    order(&it, "no-answer 2000");
    order(&it, &format!("link {FAR} down"));
    it.post(&write(it.there, &[it.segment(0, 4)]));
    assert_eq!(at(&it.fabric, 1_999), Next::At(Duration::from_secs(2)));
    at(&it.fabric, 2_000);
    assert_eq!(it.near().map(|it| it.status), Some(16));
    assert_eq!(it.near.asynchronous(), Some((0, 1)));
}

#[test]
fn a_delay_is_that_of_each_message() {
    let mut it = connection();
    order(&it, &format!("delay {NEAR} 30"));
    it.near.bus.store(it.here.0, b"late");
    it.post(&write(it.there, &[it.segment(0, 4)]));
    assert_eq!(at(&it.fabric, 29), Next::At(Duration::from_millis(30)));
    assert_eq!(it.far.load(it.there.0, 4), [0; 4]);
    at(&it.fabric, 30);
    assert_eq!(it.far.load(it.there.0, 4), b"late");
    assert!(it.near().is_some());
    // the messages of the other direction are not delayed
    it.far.post_send(&mut it.other, &write(it.here, &[]));
    assert_eq!(it.far().map(|it| it.status), Some(0));
}

#[test]
fn lost_messages_are_sent_again() {
    let mut it = connection();
    order(&it, "loss all 50");
    let mut time = 0;
    for round in 0..200u32 {
        it.near.bus.store(it.here.0, &round.to_le_bytes());
        it.post(&write(it.there, &[it.segment(0, 4)]));
        let done = loop {
            match (it.near(), time) {
                (Some(done), _) => break done,
                (None, _) => time += 20,
            }
            at(&it.fabric, time);
        };
        if done.status == 16 {
            // eight losses in a row
            return;
        }
        assert_eq!(it.far.load(it.there.0, 4), round.to_le_bytes());
    }
    let dropped = it.fabric.borrow().device(0).counters[3];
    assert!((100..400).contains(&dropped), "{dropped}");
}

#[test]
fn a_message_that_is_always_lost_ends_the_connection() {
    let mut it = connection();
    order(&it, &format!("loss {NEAR} 100"));
    it.post(&write(it.there, &[it.segment(0, 4)]));
    // the message is sent again seven times
    for time in (0..140).step_by(20) {
        at(&it.fabric, time);
        assert_eq!(it.near(), None, "{time}");
    }
    at(&it.fabric, 140);
    assert_eq!(it.near().map(|it| it.status), Some(16));
    assert_eq!(it.near.read32(0x98), 8, "each try was counted");
}

#[test]
fn a_function_that_fell_off_its_bus_touches_no_memory() {
    let mut it = connection();
    it.near
        .post_receive(&mut it.pair, (it.here.0, 100, it.here.1));
    order(&it, &format!("unplug {NEAR}"));
    it.post(&write(it.there, &[it.segment(0, 4)]));
    assert_eq!(it.near(), None);
    it.far.bus.store(it.there.0, b"data");
    it.far
        .post_send(&mut it.other, &send(&[(it.there.0, 4, it.there.1)]));
    assert_eq!(it.far(), None);
    at(&it.fabric, 10_000);
    assert_eq!(
        it.far().map(|it| it.status),
        Some(16),
        "the peer does not answer"
    );
    assert_eq!(it.near(), None);
    assert_eq!(it.near.load(it.here.0, 4), [0; 4]);
    order(&it, "plug all");
    assert_eq!(it.near.read32(0x14), 1, "as after power-on");
    assert_eq!(it.far.read32(0x14), 3, "the other one was not touched");
    it.near.restart();
    assert!(it.near.command(Command::new(1, 2)).is_ok());
}

#[test]
fn functions_are_reset_under_traffic() {
    let mut it = connection();
    order(&it, &format!("delay {NEAR} 30"));
    it.post(&write(it.there, &[it.segment(0, 4)]));
    it.far.restart();
    at(&it.fabric, 9_999);
    assert_eq!(it.near(), None);
    at(&it.fabric, 20_000);
    assert_eq!(it.near().map(|it| it.status), Some(16));
    it.near.restart();
    assert_eq!(at(&it.fabric, 30_000), Next::Idle);
}

#[test]
fn the_status_has_a_line_for_each_function() {
    let it = connection();
    order(&it, &format!("link {FAR} down"));
    order(&it, &format!("loss {NEAR} 7"));
    let counters = [0; 11];
    let expected = format!(
        "{NEAR} up loss=7 delay=0 queue-pairs=1 counters={counters:?}\n\
         {FAR} down loss=0 delay=0 queue-pairs=1 counters={counters:?}\n\n"
    );
    assert_eq!(order(&it, "status"), expected);
}
