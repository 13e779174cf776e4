// SPDX-License-Identifier: Apache-2.0
//! Datagrams between the functions of a card.

use crate::{
    driver::{Driver, MACS},
    verbs::{
        DATA, DATAGRAM, NAMED, Pair, QP1, RECEIVE_ERROR, RECEIVED, RECEIVED_WITH_IMMEDIATE,
        REQUEST, REQUEST_ERROR, address, gid, inline, tagged_address,
    },
};

const SEND: u8 = 0xa;
const SEND_IMMEDIATE: u8 = 0xb;
/// The queue key of management datagrams (`IB_QP1_QKEY`).
const MANAGEMENT: u32 = 0x8001_0000;

fn both(service: u8, key: u32) -> (Driver, Pair, Pair) {
    let mut it = Driver::new();
    let pairs = [0, 1].map(|position| Pair::new(&mut it, position, 0, service));
    pairs.iter().for_each(|pair| pair.ready(&mut it, key));
    let [here, there] = pairs;
    (it, here, there)
}

/// An address vector: RoCE address 0 of the sender, hop limit 64, traffic class 8.
fn to(position: usize, number: u32, key: u32) -> Vec<u8> {
    let mut vector = vec![0; 48];
    vector[..4].copy_from_slice(&key.to_be_bytes());
    vector[8..12].copy_from_slice(&(1 << 31 | number).to_be_bytes());
    vector[20..26].copy_from_slice(&MACS[position]);
    (vector[26], vector[27], vector[28]) = (8, 64, 1 << 6);
    vector[32..48].copy_from_slice(&gid(position));
    vector
}

#[test]
fn a_datagram_comes_with_its_network_header() {
    let (mut it, mut here, mut there) = both(DATAGRAM, 0x1234);
    there.receive(&mut it, &[(NAMED, 100)]);
    let rest = [to(1, there.number, 0x1234), inline(b"hello")].concat();
    here.send(&mut it, SEND_IMMEDIATE, 99, &rest);
    let sent = here.next(&mut it, 0).expect("a completion");
    assert_eq!((sent.kind, sent.opcode), (REQUEST, SEND_IMMEDIATE));
    let got = there.next(&mut it, 1).expect("a completion");
    assert_eq!(
        (got.kind, got.len, got.extra),
        (RECEIVED_WITH_IMMEDIATE, 45, 99)
    );
    // the buffer contains the header, which is IPv4
    assert_eq!(got.sender, 1 << 28 | 2 << 24 | here.number);
    let message = there.enter(&mut it).load(DATA + 0x123, 45);
    assert_eq!(message[..20], [0; 20]);
    assert_eq!(message[20..24], [0x45, 8, 0, 25]);
    assert_eq!(message[28..30], [64, 17]);
    assert_eq!(message[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = (message[20..40].chunks(2))
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum");
    assert_eq!(message[40..], *b"hello");
}

#[test]
fn the_type_of_the_header_is_that_of_the_sender_s_address() {
    let v6 = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    for (gid, version, kind) in [(v6, 2, 1), (v6, 0, 0), (gid(0), 0, 0)] {
        let (mut it, mut here, mut there) = both(DATAGRAM, 5);
        address(here.enter(&mut it), gid, version);
        there.receive(&mut it, &[(NAMED, 100)]);
        let rest = [to(1, there.number, 5), inline(b"x")].concat();
        here.send(&mut it, SEND, 0, &rest);
        let got = there.next(&mut it, 1).expect("a completion");
        assert_eq!(got.sender >> 24, 1 << 4 | kind);
    }
}

#[test]
fn a_datagram_has_the_vlan_of_the_sender_s_address() {
    let (mut it, mut here, mut there) = both(DATAGRAM, 5);
    let vlan = [0x10 | 1, 0x23];
    tagged_address(here.enter(&mut it), gid(0), 2, vlan);
    there.receive(&mut it, &[(NAMED, 100)]);
    let rest = [to(1, there.number, 5), inline(b"x")].concat();
    here.send(&mut it, SEND, 0, &rest);
    assert_eq!(there.next(&mut it, 1), None, "it is in another network");
    tagged_address(there.enter(&mut it), gid(1), 2, vlan);
    here.send(&mut it, SEND, 0, &rest);
    let got = there.next(&mut it, 1).expect("a completion");
    assert_eq!(got.vlan, Some(0x123));
}

#[test]
fn management_datagrams_go_to_queue_pair_1() {
    let (mut it, mut here, mut there) = both(QP1, MANAGEMENT);
    there.receive(&mut it, &[(NAMED, 300)]);
    // bit 31 selects the sender's own key
    let rest = [to(1, 1, 1 << 31), inline(&[7; 200])].concat();
    here.send(&mut it, SEND, 0, &rest);
    let got = there.next(&mut it, 1).expect("a completion");
    assert_eq!((got.kind, got.len), (RECEIVED, 240));
    assert_eq!((got.extra, got.sender & 0xff_ffff), (0xffff, 1));
}

#[test]
fn a_datagram_without_a_receiver_is_lost() {
    let (mut it, mut here, mut there) = both(DATAGRAM, 5);
    let wrong = [
        to(1, there.number, 6),
        to(1, there.number + 1, 5),
        to(1, 1, 5),
        [&to(1, there.number, 5)[..32], &[1; 16]].concat(),
    ];
    let requests = wrong.into_iter().chain([to(1, there.number, 5)]);
    for (round, address) in (0..).zip(requests) {
        if round < 4 {
            there.receive(&mut it, &[(NAMED, 100)]);
        } else {
            hardware::mlx5::control::order(&mut it.fabric, "link all down").expect("an order");
        }
        here.send(&mut it, SEND, 0, &[address, inline(b"x")].concat());
        assert_eq!(
            here.next(&mut it, 0).map(|it| it.kind),
            Some(REQUEST),
            "{round}"
        );
        assert_eq!(there.next(&mut it, 1), None, "{round}");
    }
}

#[test]
fn a_wrong_datagram_ends_its_queue_pair() {
    let (mut it, mut here, _) = both(DATAGRAM, 5);
    let mut vector = to(1, 64, 5);
    // an unset RoCE address
    vector[28] |= 1;
    here.send(&mut it, SEND, 0, &[vector, inline(b"x")].concat());
    let failed = here.next(&mut it, 0).expect("a completion");
    assert_eq!((failed.kind, failed.syndrome), (REQUEST_ERROR, 2));

    let (mut it, mut here, mut there) = both(DATAGRAM, 5);
    there.receive(&mut it, &[(NAMED, 40)]);
    here.send(
        &mut it,
        SEND,
        0,
        &[to(1, there.number, 5), inline(b"x")].concat(),
    );
    assert_eq!(here.next(&mut it, 0).map(|it| it.kind), Some(REQUEST));
    let failed = there.next(&mut it, 1).expect("a completion");
    assert_eq!((failed.kind, failed.syndrome), (RECEIVE_ERROR, 1));
}
