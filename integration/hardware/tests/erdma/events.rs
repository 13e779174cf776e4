// SPDX-License-Identifier: Apache-2.0
//! Completion events: when the driver gets an event, and how the event queues wrap around.

use crate::{
    connections::{Connection, connection},
    driver::{Bus, Command, Events, one, work::*},
};

/// Creates a connection whose completion queues report to event queue 1.
fn with_events() -> (Connection, Events) {
    let mut it = connection();
    let events = it.far.event_queue(1, 3);
    (it, events)
}

fn event(it: &Connection, events: &mut Events) -> Option<u32> {
    it.far.event(events).map(|event| event[0] & 0xf_ffff)
}

#[test]
fn an_event_is_written_once_for_each_request() {
    let (mut it, mut events) = with_events();
    let post = |it: &mut Connection| {
        it.receive(0, 64);
        it.post(&send(&[it.segment(0, 4)]));
        assert_eq!(it.near().map(|it| it.status), Some(0));
    };
    post(&mut it);
    assert_eq!(event(&it, &mut events), None, "it was not requested");
    assert!(it.far().is_some());
    it.far.arm(&it.far_queue, false);
    assert_eq!(event(&it, &mut events), None);
    post(&mut it);
    post(&mut it);
    assert_eq!(event(&it, &mut events), Some(1), "completion queue 1");
    assert_eq!(event(&it, &mut events), None);
}

#[test]
fn an_event_comes_for_completions_that_were_written_before_the_doorbell_arrived() {
    let (mut it, mut events) = with_events();
    it.receive(0, 64);
    it.post(&send(&[it.segment(0, 4)]));
    // the driver read the queue before this entry, but its doorbell arrives after the entry
    it.far.arm(&it.far_queue, false);
    assert_eq!(event(&it, &mut events), Some(1));
    assert!(it.far().is_some());
    it.far.arm(&it.far_queue, false);
    assert_eq!(event(&it, &mut events), None);
}

#[test]
fn a_sender_gets_an_event_for_the_first_request_that_is_signaled() {
    let mut it = connection();
    let mut events = it.near.event_queue(1, 3);
    it.near.arm(&it.near_queue, false);
    let unsignaled = write(it.there, &[it.segment(0, 4)]).flags(0);
    for _ in 0..99 {
        it.post(&unsignaled);
        assert_eq!(it.near.event(&mut events), None);
    }
    it.post(&write(it.there, &[it.segment(0, 4)]));
    let event = it.near.event(&mut events);
    assert_eq!(event.map(|event| event[0] & 0xf_ffff), Some(1));
    assert_eq!(it.near().map(|it| it.status), Some(0));
}

#[test]
fn a_solicited_event_is_for_solicited_messages_and_errors() {
    let (mut it, mut events) = with_events();
    it.far.arm(&it.far_queue, true);
    for (flags, expected) in [(SIGNALED, None), (SIGNALED | SOLICITED, Some(1))] {
        it.receive(0, 64);
        it.post(&send(&[it.segment(0, 4)]).flags(flags));
        assert_eq!(event(&it, &mut events), expected);
    }
    while it.far().is_some() {}
    it.far.arm(&it.far_queue, true);
    it.receive(0, 1);
    it.post(&send(&[it.segment(0, 4)]));
    assert_eq!(event(&it, &mut events), Some(1));
}

#[test]
fn event_queues_go_around() {
    let (mut it, mut events) = with_events();
    for round in 0..100 {
        it.far.arm(&it.far_queue, false);
        it.receive(0, 64);
        it.post(&send(&[it.segment(0, 4)]));
        assert_eq!(event(&it, &mut events), Some(1), "{round}");
        assert_eq!(event(&it, &mut events), None, "{round}");
        assert!(it.far().is_some() && it.near().is_some());
    }
}

#[test]
fn asynchronous_events_go_around() {
    let mut it = connection();
    for round in 0..20 {
        it.near
            .command(Command::new(0, 2).u32(8, 1))
            .expect("DESTROY_QP");
        it.pair = it.near.pair(1, 4, &it.near_queue);
        it.near.connect(&it.pair, it.other.cookie);
        it.far.connect(&it.other, it.pair.cookie);
        it.post(&Request::new(31));
        assert_eq!(it.near().map(|it| it.status), Some(8));
        assert_eq!(it.near.asynchronous(), Some((0, 1)), "{round}");
        assert_eq!(it.near.asynchronous(), None);
    }
}

#[test]
fn the_command_queue_reports_events() {
    let mut driver = one();
    let firmware = Command::new(1, 2);
    driver.command(firmware.clone()).expect("a command");
    assert!(!driver.command_event(), "it was not requested");
    // post a command that the driver does not read
    driver.post(&firmware);
    driver.write64(0x300, 1 << 31 | u64::from(driver.completed));
    assert!(driver.command_event());
    assert!(driver.answered().is_some());
    for _ in 0..20 {
        driver.write64(0x300, 1 << 31 | u64::from(driver.completed));
        assert!(!driver.command_event());
        driver.command(firmware.clone()).expect("a command");
        assert!(driver.command_event());
        driver.command(firmware.clone()).expect("a command");
        assert!(!driver.command_event());
    }
    driver.bus.write(0x300, &[0; 4]);
}
