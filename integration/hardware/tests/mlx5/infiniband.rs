// SPDX-License-Identifier: Apache-2.0
//! InfiniBand ports: the attributes that the driver reads, and datagrams and connections by LID.

use crate::{
    administrator::{BROADCAST, join},
    driver::{Answer, Driver, command, with},
    verbs::{
        ALL_RIGHTS, DATA, DATAGRAM, NAMED, Pair, QP1, RECEIVED, RELIABLE, REQUEST, inline, key,
        remote, segment,
    },
};
use hardware::mlx5::{control::order, fabric::LinkLayer};

pub(crate) const SEND: u8 = 0xa;
/// The queue key of management datagrams (`IB_QP1_QKEY`).
pub(crate) const MANAGEMENT: u32 = 0x8001_0000;
const WRITE: u8 = 8;
/// GUIDs of the functions.
pub(crate) const GUIDS: [u64; 2] = [0x5054_00ff_febb_0001, 0x5054_00ff_febb_0002];

pub(crate) fn gid(position: usize) -> [u8; 16] {
    (0xfe80 << 112 | u128::from(GUIDS[position])).to_be_bytes()
}

pub(crate) fn card() -> Driver {
    Driver::with(LinkLayer::InfiniBand)
}

/// `QUERY_HCA_VPORT_CONTEXT`. The answer contains the context from byte 16 on.
fn context(it: &mut Driver) -> Answer {
    let answer = it.execute(&command(0x762, 0, 16), 0x210);
    assert_eq!(answer.status(), 0);
    answer
}

/// Sends a management datagram of class 1 with a method and an attribute. The answer's data begin at byte 16 + 64.
fn management(it: &mut Driver, method: u8, attribute: u16, modifier: u32) -> Answer {
    let input = with(command(0x50d, 3, 0x110), 16, &[1, 1, 1, method]);
    let input = with(input, 16 + 16, &attribute.to_be_bytes());
    let answer = it.execute(&with(input, 16 + 20, &modifier.to_be_bytes()), 0x110);
    assert_eq!((answer.status(), answer.number(16 + 3, 1)), (0, 0x81));
    answer
}

#[test]
fn a_port_has_lid_guids_gid_and_partitions() {
    let mut it = card();
    // cmd_hca_cap: port type 0, ib_virt, and no RoCE
    let general = it.execute(&command(0x100, 0, 16), 0x1010).output;
    assert_eq!(general[16 + 0x36] & 3, 0);
    assert_eq!(general[16 + 0x34] >> 5 & 1, 1);
    assert_eq!(general[16 + 0x43] >> 2 & 1, 0);
    for (position, guid) in GUIDS.into_iter().enumerate() {
        it.position = position;
        it.set_queue();
        let answer = context(&mut it);
        // the port is active, and the link is up
        assert_eq!(answer.number(16 + 0x22, 2), 0x5004 | 4 << 4);
        assert_eq!(answer.number(16 + 0x28, 8), GUIDS[0], "the card's");
        assert_eq!(answer.number(16 + 0x30, 8), guid);
        assert_eq!(answer.number(16 + 0x38, 8), guid);
        assert_eq!(answer.number(16 + 0x60, 2), 2 + position as u64, "the LID");
        assert_eq!(answer.number(16 + 0x64, 2), 1, "the manager's");
        let gids = it.execute(&command(0x764, 0, 16), 32);
        assert_eq!(gids.output[16..], gid(position));
        let second = with(command(0x764, 0, 16), 14, &[0, 1]);
        assert_eq!(it.execute(&second, 32).number(16, 8), 0xfe80 << 48);
    }
    for (index, key) in [(0, 0xffff), (1, 0x8001), (2, 0)] {
        let query = with(command(0x765, 0, 16), 14, &[0, index]);
        assert_eq!(it.execute(&query, 20).number(16, 4), key);
    }
    let all = with(command(0x765, 0, 16), 14, &[0xff, 0xff]);
    assert_eq!(
        it.execute(&all, 28).output[16..],
        [0, 0, 0xff, 0xff, 0, 0, 0x80, 1, 0, 0, 0, 0]
    );
    // PTYS: 4X EDR; PMTU: 4096
    let width = with(command(0x805, 1, 80), 10, &[0x50, 4]);
    assert_eq!(it.execute(&width, 80).number(16 + 0x28, 4), 4 << 16 | 32);
    let mtu = with(command(0x805, 1, 80), 10, &[0x50, 3]);
    assert_eq!(it.execute(&mtu, 80).number(16 + 0xc, 2), 4096);
}

#[test]
fn an_ethernet_port_has_no_such_context() {
    let mut it = Driver::new();
    for opcode in [0x50d, 0x762, 0x763, 0x764] {
        assert_eq!(it.execute(&command(opcode, 0, 0x110), 16).status(), 2);
    }
    let all = with(command(0x765, 0, 16), 14, &[0xff, 0xff]);
    assert_eq!(
        it.execute(&all, 24).output[16..],
        [0, 0, 0xff, 0xff, 0, 0, 0, 0]
    );
}

#[test]
fn the_state_follows_the_link() {
    let mut it = card();
    it.event_queue(0, 1 << 9);
    order(&mut it.fabric, "link all down").expect("an order");
    assert_eq!(context(&mut it).number(16 + 0x22, 2), 0x2001 | 1 << 4);
    assert_eq!(
        management(&mut it, 1, 0x15, 1).number(16 + 64 + 32, 2),
        0x120
    );
    let (kind, subtype, _) = it.event(0, 0).expect("an event");
    assert_eq!((kind, subtype), (9, 1));
}

#[test]
fn a_driver_changes_capabilities_of_the_port() {
    let mut it = card();
    let before = context(&mut it).number(16 + 0x40, 4);
    // IB_PORT_CM_SUP, and a capability that cannot be changed
    let input = with(command(0x763, 0, 0x210), 16 + 0x40, &[0, 1, 0, 1]);
    let set = with(input, 16 + 0x44, &[0, 1, 0, 1]);
    assert_eq!(it.execute(&set, 16).status(), 0);
    assert_eq!(context(&mut it).number(16 + 0x40, 4), before | 1 << 16);
    assert_eq!(it.execute(&with(set, 16 + 0x41, &[0]), 16).status(), 0);
    assert_eq!(context(&mut it).number(16 + 0x40, 4), before);
}

#[test]
fn the_management_agent_answers() {
    let mut it = card();
    let node = management(&mut it, 1, 0x11, 0);
    assert_eq!(node.number(16 + 64 + 12, 8), GUIDS[0]);
    let port = management(&mut it, 1, 0x15, 1);
    assert_eq!(
        port.number(16 + 64 + 16, 4),
        2 << 16 | 1,
        "LID, and the manager's"
    );
    assert_eq!(port.number(16 + 64 + 32, 2), 0x450, "active, link up");
    assert_eq!(management(&mut it, 1, 0x14, 0).number(16 + 64, 8), GUIDS[0]);
    assert_eq!(
        management(&mut it, 1, 0x16, 0).number(16 + 64, 4),
        0xffff_8001
    );
    assert_eq!(management(&mut it, 1, 0x16, 1).number(16 + 64, 4), 0);
    let name = management(&mut it, 1, 0x10, 0);
    assert_eq!(name.output[16 + 64..][..17], *b"52:54:00:bb:00:01");
    for (method, attribute) in [(1, 0x20), (2, 0x15)] {
        assert_eq!(
            management(&mut it, method, attribute, 1).number(16 + 4, 2),
            0xc
        );
    }
}

/// An address vector without a network header.
pub(crate) fn to(lid: u16, number: u32, key: u32) -> Vec<u8> {
    let mut vector = vec![0; 48];
    vector[..4].copy_from_slice(&key.to_be_bytes());
    vector[8..12].copy_from_slice(&(1 << 31 | number).to_be_bytes());
    vector[14..16].copy_from_slice(&lid.to_be_bytes());
    vector
}

/// An address vector with a network header.
fn routed(lid: u16, number: u32, key: u32, gid: [u8; 16]) -> Vec<u8> {
    let mut vector = to(lid, number, key);
    vector[28] = 1 << 6;
    vector[32..].copy_from_slice(&gid);
    vector
}

pub(crate) fn both(service: u8, key: u32) -> (Driver, [Pair; 2]) {
    let mut it = card();
    let pairs = [0, 1].map(|position| Pair::new(&mut it, position, 0, service));
    pairs.iter().for_each(|pair| pair.ready(&mut it, key));
    (it, pairs)
}

#[test]
fn a_datagram_goes_to_a_lid() {
    let (mut it, [mut here, mut there]) = both(DATAGRAM, 5);
    let vectors = [to(3, there.number, 5), routed(3, there.number, 5, gid(1))];
    for (vector, flags) in vectors.into_iter().zip([0, 1 << 28]) {
        there.receive(&mut it, &[(NAMED, 100)]);
        here.send(&mut it, SEND, 0, &[vector, inline(b"hello")].concat());
        let sent = here.next(&mut it, 0).expect("a completion");
        assert_eq!(sent.kind, REQUEST);
        let got = there.next(&mut it, 1).expect("a completion");
        assert_eq!((got.kind, got.len, got.lid), (RECEIVED, 45, 2));
        assert_eq!(got.sender, flags | here.number);
        let message = there.enter(&mut it).load(DATA + 0x123, 45);
        assert_eq!(message[40..], *b"hello");
        if flags > 0 {
            assert_eq!((message[0] >> 4, message[6]), (6, 0x1b));
            assert_eq!([&message[8..24], &message[24..40]], [gid(0), gid(1)]);
        }
    }
}

#[test]
fn a_datagram_without_a_receiver_is_lost() {
    let (mut it, [mut here, mut there]) = both(DATAGRAM, 5);
    there.receive(&mut it, &[(NAMED, 100)]);
    for (round, vector) in [
        to(3, there.number, 6),
        to(4, there.number, 5),
        to(0xc000, there.number, 5),
    ]
    .into_iter()
    .enumerate()
    {
        here.send(&mut it, SEND, 0, &[vector, inline(b"x")].concat());
        assert_eq!(here.next(&mut it, 0).map(|it| it.kind), Some(REQUEST));
        assert_eq!(there.next(&mut it, 1), None, "{round}");
    }
    // another partition: the second key, and an unknown index
    for index in [1, 2] {
        let mask: (usize, &[u8]) = (0x10, &[0, 0, 0, 1 << 4]);
        let at: (usize, &[u8]) = (0x32, &[0, index]);
        there.modify(&mut it, 0x505, &[mask, at]);
        here.send(
            &mut it,
            SEND,
            0,
            &[to(3, there.number, 5), inline(b"x")].concat(),
        );
        assert_eq!(there.next(&mut it, 1), None, "{index}");
    }
}

#[test]
fn a_reliable_connection_is_one_of_lids() {
    let mut it = card();
    let mut here = Pair::new(&mut it, 0, 0, RELIABLE);
    let there = Pair::new(&mut it, 1, 0, RELIABLE);
    for (pair, lid, peer) in [(&here, 3, there.number), (&there, 2, here.number)] {
        pair.modify(&mut it, 0x502, &[]);
        let mask: (usize, &[u8]) = (0x10, &[0, 0, 0, 0xe]);
        let rights: (usize, &[u8]) = (0xaa, &[0xe0]);
        pair.modify(
            &mut it,
            0x503,
            &[mask, (0x2c, &peer.to_be_bytes()), (0x36, &[0, lid]), rights],
        );
        pair.modify(&mut it, 0x504, &[(0x38, &[10 << 3]), (0x89, &[1, 1 << 5])]);
    }
    let theirs = key(there.enter(&mut it), ALL_RIGHTS, &[0, 1]);
    here.enter(&mut it).store(DATA + 0x123, b"by LID");
    let rest = [remote(theirs, NAMED), segment(here.key, NAMED, 6)].concat();
    here.send(&mut it, WRITE, 0, &rest);
    assert_eq!(here.next(&mut it, 0).map(|it| it.kind), Some(REQUEST));
    assert_eq!(there.enter(&mut it).load(DATA + 0x123, 6), b"by LID");
}

/// Sends a datagram to the broadcast group from the second queue pair. Returns the sender's LID for each queue pair
/// that received the datagram.
fn broadcast(it: &mut Driver, pairs: &mut [Pair; 2], lid: u16) -> [Option<u16>; 2] {
    for pair in &mut *pairs {
        pair.receive(it, &[(NAMED, 100)]);
    }
    let vector = routed(lid, 0xff_ffff, 5, BROADCAST);
    pairs[1].send(it, SEND, 0, &[vector, inline(b"all")].concat());
    assert_eq!(pairs[1].next(it, 0).map(|it| it.kind), Some(REQUEST));
    [0, 1].map(|index: usize| pairs[index].next(it, 1).map(|it| it.lid))
}

/// `ATTACH_TO_MCG` or `DETACH_FROM_MCG`, for the broadcast group.
fn attach(it: &mut Driver, opcode: u16, number: u32) -> u8 {
    let input = with(command(opcode, 0, 32), 8, &number.to_be_bytes());
    it.execute(&with(input, 16, &BROADCAST), 16).status()
}

#[test]
fn a_multicast_group_reaches_attached_members() {
    let (mut it, mut pairs) = both(DATAGRAM, 5);
    let mut management = Pair::new(&mut it, 0, 1, QP1);
    management.ready(&mut it, MANAGEMENT);
    let lid = join(&mut it, &mut management, gid(0), 1);
    for pair in &pairs {
        assert_eq!(attach(pair.enter(&mut it), 0x806, pair.number), 0);
    }
    // the port of the second function has not joined, or has joined only to send
    assert_eq!(broadcast(&mut it, &mut pairs, lid), [Some(3), None]);
    join(&mut it, &mut management, gid(1), 4);
    assert_eq!(broadcast(&mut it, &mut pairs, lid), [Some(3), None]);
    join(&mut it, &mut management, gid(1), 1);
    assert_eq!(broadcast(&mut it, &mut pairs, lid), [Some(3), Some(3)]);
    let number = pairs[0].number;
    assert_eq!(attach(pairs[0].enter(&mut it), 0x807, number), 0);
    assert_eq!(broadcast(&mut it, &mut pairs, lid), [None, Some(3)]);
    assert_eq!(
        attach(&mut it, 0x806, 1),
        5,
        "a queue pair that there is not"
    );
}
