// SPDX-License-Identifier: Apache-2.0
//! Ethernet between the functions of a card: send and receive queues, and their completions.

use crate::driver::{Driver, MACS, MEMORY, command, number, with};
use hardware::mlx5::{
    control::order,
    fabric::{Card, LinkLayer},
};

const PAGES: u64 = MEMORY + 0x9_0000;
const RECORDS: u64 = MEMORY + 0xa_0000;
const DATA: u64 = MEMORY + 0xb_0000;
const UAR: u64 = 16 * 4096;

/// The pages of a function: send completions, receive completions, send queue, receive queue.
const fn page(index: u64) -> u64 {
    PAGES + index * 4096
}

/// A function with a send queue, and a receive queue with four buffers.
struct Queues {
    key: u32,
    sends: u32,
    completions: [u32; 2],
    posted: u16,
}

fn made(it: &mut Driver, input: &[u8]) -> u32 {
    let answer = it.execute(input, 16);
    assert_eq!(answer.status(), 0, "{:x?}", &input[..2]);
    answer.number(9, 3) as u32
}

fn completion_queue(it: &mut Driver, index: u64, events: u32) -> u32 {
    let input = with(command(0x400, 0, 0x118), 0x1c, &[4]);
    let input = with(input, 0x24, &events.to_be_bytes());
    for entry in 0..16 {
        it.store(page(index) + entry * 64 + 63, &[0xf1]);
    }
    made(it, &with(input, 0x110, &page(index).to_be_bytes()))
}

/// Creates a queue of 16 entries of `1 << stride` bytes, in the ready state.
fn work_queue(it: &mut Driver, create: u16, completions: u32, index: u64, stride: u8) -> u32 {
    let input = with(command(create, 0, 0x118), 0x28, &completions.to_be_bytes());
    let input = with(input, 0x50, &[0x10]);
    let record = RECORDS + index * 8;
    it.store(record, &[0; 8]);
    let input = with(input, 0x60, &record.to_be_bytes());
    let input = with(input, 0x71, &[stride, 0, 4]);
    let queue = made(it, &with(input, 0x110, &page(index).to_be_bytes()));
    let ready = with(command(create + 1, 0, 0x110), 8, &queue.to_be_bytes());
    let ready = with(ready, 0x21, &[0x10]);
    assert_eq!(it.execute(&ready, 16).status(), 0);
    queue
}

impl Queues {
    fn new(it: &mut Driver, position: usize) -> Queues {
        it.position = position;
        it.set_queue();
        let events = it.event_queue(0, 0);
        let key = made(it, &command(0x200, 0, 0x110)) << 8;
        let completions = [0, 1].map(|index| completion_queue(it, index, events));
        let sends = work_queue(it, 0x904, completions[0], 2, 6);
        let receives = work_queue(it, 0x908, completions[1], 3, 5);
        for buffer in 0..4u64 {
            let at = DATA + 0x4000 + buffer * 0x1000;
            // two segments: 64 bytes, and the rest of the frame
            for (index, (len, address)) in [(64u32, at), (2048, at + 0x100)].into_iter().enumerate()
            {
                let entry = page(3) + buffer * 32 + index as u64 * 16;
                it.store(entry, &len.to_be_bytes());
                it.store(entry + 4, &key.to_be_bytes());
                it.store(entry + 8, &address.to_be_bytes());
            }
        }
        it.store(RECORDS + 3 * 8, &4u32.to_be_bytes());
        // a table that names the receive queue
        let input = with(command(0x916, 0, 0x114), 0x3a, &[0, 1]);
        made(it, &with(input, 0x110, &receives.to_be_bytes()));
        Queues {
            key,
            sends,
            completions,
            posted: 0,
        }
    }

    /// Posts a request of one block, and rings the doorbell.
    fn post(&mut self, it: &mut Driver, mut request: [u8; 64], segments: u8) {
        request[1..3].copy_from_slice(&self.posted.to_be_bytes());
        request[4..8].copy_from_slice(&(self.sends << 8 | u32::from(segments)).to_be_bytes());
        let slot = u64::from(self.posted % 16) * 64;
        it.store(page(2) + slot, &request);
        self.posted += 1;
        it.store(RECORDS + 2 * 8 + 4, &u32::from(self.posted).to_be_bytes());
        it.write(UAR + 0x800, &request[..8]);
    }

    /// A request that sends `frame`: the first 16 bytes inline, the others from [`DATA`].
    fn send(&self, frame: &[u8], it: &mut Driver) -> [u8; 64] {
        let mut request = [0; 64];
        (request[3], request[11]) = (0xa, 8);
        request[29] = 16;
        request[30..46].copy_from_slice(&frame[..16]);
        it.store(DATA, &frame[16..]);
        request[48..52].copy_from_slice(&(frame.len() as u32 - 16).to_be_bytes());
        request[52..56].copy_from_slice(&self.key.to_be_bytes());
        request[56..].copy_from_slice(&DATA.to_be_bytes());
        request
    }
}

/// The completion `index` of a queue in its first lap. Returns `None` if the PCI function has
/// not written the completion.
fn completion(it: &Driver, queue: u64, index: u64) -> Option<Vec<u8>> {
    let entry = it.load(page(queue) + index * 64, 64);
    (entry[63] & 1 == 0).then_some(entry)
}

fn frame(target: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|it| it as u8).collect();
    frame[..6].copy_from_slice(&target);
    frame[6..12].copy_from_slice(&MACS[0]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn both() -> (Driver, Queues, Queues) {
    let mut it = Driver::new();
    let there = Queues::new(&mut it, 1);
    let here = Queues::new(&mut it, 0);
    (it, here, there)
}

#[test]
fn a_nop_has_a_completion_and_an_event_where_the_queue_is_armed() {
    let (mut it, mut here, _) = both();
    let mut nop = [0; 64];
    nop[11] = 8;
    here.post(&mut it, nop, 1);
    let done = completion(&it, 0, 0).expect("a completion");
    assert_eq!((done[63], number(&done[60..62])), (0, 0));
    assert_eq!(number(&done[56..60]), u64::from(here.sends));
    assert_eq!(it.event(0, 0), None);
    // the driver has not read the completion: the event is due
    let number = here.completions[0];
    let armed = [0u32, number].map(u32::to_be_bytes).concat();
    it.write(UAR + 0x20, &armed);
    let (kind, _, data) = it.event(0, 0).expect("an event");
    assert_eq!(
        (kind, super::driver::number(&data[24..])),
        (0, u64::from(number))
    );
    // the driver has read it: the next completion raises one event
    it.write(UAR + 0x20, &[1u32, number].map(u32::to_be_bytes).concat());
    assert_eq!(it.event(0, 1), None);
    here.post(&mut it, nop, 1);
    here.post(&mut it, nop, 1);
    assert!(it.event(0, 1).is_some() && it.event(0, 2).is_none());
    assert_eq!(
        super::driver::number(&completion(&it, 0, 2).expect("done")[60..62]),
        2
    );
    // a request without the completion flag gets no completion
    nop[11] = 0;
    here.post(&mut it, nop, 1);
    assert_eq!(completion(&it, 0, 3), None);
}

#[test]
fn frames_reach_the_function_of_their_target() {
    let (mut it, mut here, _) = both();
    let sent = [
        frame(MACS[1], 200),
        frame([0xff; 6], 60),
        frame([2, 0, 0, 0, 0, 9], 60),
    ];
    for (index, frame) in (0..).zip(&sent) {
        let request = here.send(frame, &mut it);
        here.post(&mut it, request, 4);
        assert!(completion(&it, 0, index).is_some_and(|it| it[63] == 0));
    }
    assert_eq!(completion(&it, 1, 0), None, "the sender gets none");
    it.position = 1;
    for (index, frame) in (0..2).zip(&sent) {
        let got = completion(&it, 1, index).expect("a completion");
        assert_eq!(got[63] >> 4, 2, "MLX5_CQE_RESP_SEND");
        assert_eq!(number(&got[44..48]), frame.len() as u64);
        assert_eq!(number(&got[60..62]), index);
        let sum = frame[14..].chunks(2).fold(0u32, |sum, it| {
            let sum = sum + (u32::from(it[0]) << 8) + u32::from(*it.get(1).unwrap_or(&0));
            (sum & 0xffff) + (sum >> 16)
        });
        assert_eq!(number(&got[20..22]), u64::from(sum));
        let at = DATA + 0x4000 + index * 0x1000;
        let first = frame.len().min(64);
        assert_eq!(it.load(at, first), frame[..first]);
        assert_eq!(it.load(at + 0x100, frame.len() - first), frame[first..]);
    }
    assert_eq!(completion(&it, 1, 2), None, "another function's frame");
    let counters = it.execute(&command(0x770, 0, 32), 0x210);
    assert_eq!(counters.number(0x90, 8), 1, "received_eth_unicast.packets");
    assert_eq!(counters.number(0x98, 8), 200);
    assert_eq!(
        counters.number(0x70, 8),
        1,
        "received_eth_broadcast.packets"
    );
}

#[test]
fn frames_are_lost_without_carrier_or_buffers() {
    let (mut it, mut here, _) = both();
    let request = here.send(&frame(MACS[1], 100), &mut it);
    for line in ["link 52:54:00:bb:00:02 down", "link all down"] {
        order(&mut it.fabric, line).expect("an order");
        here.post(&mut it, request, 4);
    }
    order(&mut it.fabric, "link all up").expect("an order");
    for _ in 0..6 {
        here.post(&mut it, request, 4);
    }
    it.position = 1;
    assert!(completion(&it, 1, 3).is_some());
    assert_eq!(completion(&it, 1, 4), None, "it has four buffers");
}

/// A LACPDU whose actor has the state `state`.
fn lacpdu(state: u8) -> Vec<u8> {
    let mut frame = frame([1, 0x80, 0xc2, 0, 0, 2], 124);
    frame[12..18].copy_from_slice(&[0x88, 9, 1, 1, 1, 20]);
    frame[32] = state;
    frame
}

/// The lengths of the frames that a function received.
fn received(it: &mut Driver, position: usize) -> Vec<u64> {
    it.position = position;
    let completions = (0..4).map_while(|index| completion(it, 1, index));
    completions.map(|it| number(&it[44..48])).collect()
}

#[test]
fn the_functions_that_ask_for_it_are_one_aggregate_of_the_switch() {
    let other = [0x52, 0x54, 0, 0xbb, 1, 1];
    let cards = [MACS.to_vec(), vec![other]].map(|macs| Card {
        macs,
        is_virtual: false,
    });
    let mut it = Driver::of(LinkLayer::Ethernet, &cards);
    let mut queues = [0, 1, 2].map(|position| Queues::new(&mut it, position));
    let mut send = |it: &mut Driver, position: usize, frame: &[u8]| {
        it.position = position;
        let request = queues[position].send(frame, it);
        queues[position].post(it, request, 4);
    };
    send(&mut it, 0, &lacpdu(0x0d));
    send(&mut it, 0, &lacpdu(0x0d)[..120]);
    send(&mut it, 1, &lacpdu(0x0d));
    for position in [0, 1] {
        assert_eq!(received(&mut it, position), [124], "the switch's answer");
        let at = DATA + 0x4000;
        let answer = [it.load(at, 64), it.load(at + 0x100, 60)].concat();
        assert_eq!(answer[..6], [1, 0x80, 0xc2, 0, 0, 2]);
        assert_eq!(answer[12..18], [0x88, 9, 1, 1, 1, 20]);
        let system = [0xff, 0xff, 0x52, 0x54, 0, 0xbb, 0xff, 0xff];
        assert_eq!(
            (&answer[18..26], &answer[26..28]),
            (&system[..], &[0, 1][..])
        );
        assert_eq!(number(&answer[30..32]), position as u64 + 1, "the port");
        assert_eq!(answer[32], 0x3f, "in the aggregate, and fast");
        assert_eq!(answer[36..38], [2, 20]);
        assert_eq!(answer[38..53], lacpdu(0x0d)[18..33], "the partner");
    }
    assert_eq!(received(&mut it, 2), [0; 0], "no function's frame");

    send(&mut it, 0, &frame([0xff; 6], 60));
    send(&mut it, 2, &frame([0xff; 6], 70));
    assert_eq!(received(&mut it, 0), [124, 70]);
    assert_eq!(received(&mut it, 1), [124], "the other one got it");
    assert_eq!(received(&mut it, 2), [60]);

    // a function leaves its aggregate if it loses carrier, or sends a LACPDU without the aggregation bit
    order(&mut it.fabric, "link 52:54:00:bb:00:01 down").expect("an order");
    order(&mut it.fabric, "link all up").expect("an order");
    send(&mut it, 1, &lacpdu(0x09));
    send(&mut it, 2, &frame([0xff; 6], 80));
    assert_eq!(received(&mut it, 0), [124, 70, 80]);
    assert_eq!(received(&mut it, 1), [124, 124, 80]);
}

#[test]
fn a_wrong_request_ends_its_queue() {
    let change: [(usize, &[u8]); 4] = [
        (3, &[0x77]),
        (52, &[0xff, 0xff, 0xff, 0xff]),
        (56, &[0xff; 8]),
        (48, &[0x7f, 0xff, 0xff, 0xff]),
    ];
    for (at, bytes) in change {
        let (mut it, mut here, _) = both();
        let mut request = here.send(&frame(MACS[1], 100), &mut it);
        request[at..at + bytes.len()].copy_from_slice(bytes);
        here.post(&mut it, request, 4);
        let failed = completion(&it, 0, 0).expect("a completion");
        assert_eq!((failed[63] >> 4, failed[55]), (13, 4), "{at}");
        let query = with(command(0x907, 0, 16), 8, &here.sends.to_be_bytes());
        assert_eq!(it.execute(&query, 0x110).output[0x21] >> 4, 3, "in error");
        here.post(&mut it, request, 4);
        assert_eq!(completion(&it, 0, 1), None);
    }
}
