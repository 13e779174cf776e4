// SPDX-License-Identifier: Apache-2.0
//! The subnet administrator, with records in the layout of `include/rdma/ib_sa.h`.

use crate::{
    driver::{Driver, number},
    infiniband::{MANAGEMENT, SEND, both, gid, to},
    verbs::{DATA, NAMED, Pair, QP1, RECEIVED, inline},
};
use hardware::mlx5::administrator::Administrator;

/// The IPv4 broadcast group of partition 0x8001.
pub(crate) const BROADCAST: [u8; 16] = group(0x8001);
const GET: u8 = 1;
const SET: u8 = 2;
const DELETE: u8 = 0x15;
const PATH: u16 = 0x35;
const MEMBER: u16 = 0x38;
/// The components that a request must have to create a group, except for a broadcast group: key, traffic class,
/// partition, service level, flow label.
const NEW: u64 = 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;

/// The IPv4 broadcast group of a partition.
const fn group(key: u16) -> [u8; 16] {
    let [high, low] = key.to_be_bytes();
    [
        0xff, 0x12, 0x40, 0x1b, high, low, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
    ]
}

/// A datagram to the administrator: 24 bytes of header, and the record from byte 56 on.
fn request(method: u8, attribute: u16, mask: u64, record: &[u8]) -> Vec<u8> {
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, 3, 2, method]);
    mad[8..16].copy_from_slice(&[7; 8]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[48..56].copy_from_slice(&mask.to_be_bytes());
    mad[56..56 + record.len()].copy_from_slice(record);
    mad
}

/// An MCMemberRecord: group, port, key, partition, and join state.
fn member(group: [u8; 16], port: [u8; 16], joins: u8) -> Vec<u8> {
    let mut record = [group, port].concat();
    record.resize(52, 0);
    record[32..36].copy_from_slice(&[0, 0, 0, 9]);
    record[40..42].copy_from_slice(&[0xff, 0xff]);
    record[48] = 0x20 | joins;
    record
}

fn ports() -> Vec<([u8; 16], u16)> {
    vec![(gid(0), 2), (gid(1), 3)]
}

/// Sends a request to the administrator. Returns method, status and record of the answer.
fn ask(it: &mut Administrator, mad: &[u8]) -> (u8, u16, Vec<u8>) {
    let answer = it.answer(mad, &ports()).expect("an answer");
    assert_eq!(answer[8..18], mad[8..18], "transaction and attribute");
    (
        answer[3],
        number(&answer[4..6]) as u16,
        answer[56..].to_vec(),
    )
}

/// Joins the broadcast group by queue pair 1. Returns the group's LID.
pub(crate) fn join(it: &mut Driver, pair: &mut Pair, port: [u8; 16], joins: u8) -> u16 {
    pair.receive(it, &[(NAMED, 300)]);
    let mad = request(SET, MEMBER, 0x1_0083, &member(BROADCAST, port, joins));
    // the administrator is queue pair 1 of LID 1, and bit 31 selects the sender's own key
    let rest = [to(1, 1, 1 << 31), inline(&mad)].concat();
    pair.send(it, SEND, 0, &rest);
    let got = pair.next(it, 1).expect("an answer");
    assert_eq!((got.kind, got.len, got.lid), (RECEIVED, 296, 1));
    assert_eq!((got.sender, got.extra), (1, 0xffff));
    let answer = pair.enter(it).load(DATA + 0x123 + 40, 256);
    assert_eq!(number(&answer[3..6]), 0x81_0000);
    number(&answer[56 + 36..][..2]) as u16
}

#[test]
fn queue_pair_1_reaches_the_administrator() {
    let (mut it, [mut here, _]) = both(QP1, MANAGEMENT);
    assert_eq!(join(&mut it, &mut here, gid(0), 1), 0xc000);
    // the administrator does not answer without carrier
    hardware::mlx5::control::order(&mut it.fabric, "link all down").expect("an order");
    here.receive(&mut it, &[(NAMED, 300)]);
    let mad = request(GET, 1, 0, &[]);
    here.send(
        &mut it,
        SEND,
        0,
        &[to(1, 1, 1 << 31), inline(&mad)].concat(),
    );
    assert!(here.next(&mut it, 0).is_some());
    assert_eq!(here.next(&mut it, 1), None);
}

#[test]
fn a_path_has_both_lids() {
    let mut it = Administrator::default();
    let record = |to: [u8; 16], key: u16| {
        let mut record = [&[0; 8][..], &to, &gid(0)].concat();
        record.resize(64, 0);
        record[50..52].copy_from_slice(&key.to_be_bytes());
        record
    };
    for (key, mask, expected) in [(0, 0, 0xffff), (0x8001, 1 << 13, 0x8001)] {
        let (method, status, path) = ask(&mut it, &request(GET, PATH, mask, &record(gid(1), key)));
        assert_eq!((method, status), (0x81, 0));
        assert_eq!(path[40..44], [0, 3, 0, 2]);
        assert_eq!(number(&path[50..52]), expected);
        // reversible; exactly 4096 bytes and exactly 100 Gbit/s
        assert_eq!((path[49] >> 7, path[54], path[55]), (1, 0x85, 0x90));
    }
    for (to, key) in [([9; 16], 0xffff), (gid(1), 0x8002)] {
        let (_, status, _) = ask(&mut it, &request(GET, PATH, 1 << 13, &record(to, key)));
        assert_eq!(status, 0x300, "no record");
    }
}

#[test]
fn groups_are_made_joined_and_left() {
    let mut it = Administrator::default();
    let mut set = |mask, record: Vec<u8>| ask(&mut it, &request(SET, MEMBER, mask, &record));
    // the group of an unknown partition, and a group that is not a broadcast group
    let other = [0xff; 16];
    assert_eq!(set(0, member(group(0x8002), gid(0), 1)).1, 0x200);
    assert_eq!(set(0, member(other, gid(0), 1)).1, 0x200);
    // a port that joins only to send cannot create a group
    assert_eq!(set(NEW, member(other, gid(0), 4)).1, 0x200);
    assert_eq!(
        set(NEW, member(other, [9; 16], 1)).1,
        0x500,
        "an unknown port"
    );
    assert_eq!(
        set(NEW, member(gid(1), gid(0), 1)).1,
        0x500,
        "no group's GID"
    );
    let (method, status, made) = set(NEW, member(other, gid(0), 1));
    assert_eq!((method, status), (0x81, 0));
    assert_eq!(number(&made[32..38]), 9 << 16 | 0xc000, "key and LID");
    // the second port gets the group's key and MTU (2048 bytes)
    let mut record = member(other, gid(1), 4);
    record[35] = 1;
    let (_, status, joined) = set(0, record);
    assert_eq!((status, joined[35], joined[38]), (0, 9, 0x84));
    assert_eq!((&joined[16..32], joined[48] & 15), (&gid(1)[..], 4));
    let (_, status, broadcast) = set(0, member(group(0xffff), gid(0), 1));
    assert_eq!(
        (status, number(&broadcast[32..38])),
        (0, 0xb1b << 16 | 0xc001)
    );
    assert!(it.is_member(0xc000, &gid(0)));
    assert!(!it.is_member(0xc000, &gid(1)), "it sends only");
    let mut delete = |joins| {
        let mad = request(DELETE, MEMBER, 0, &member(other, gid(0), joins));
        ask(&mut it, &mad).1
    };
    assert_eq!((delete(1), delete(1)), (0, 0x200));
    assert!(!it.is_member(0xc000, &gid(0)));
}

#[test]
fn other_requests_are_refused() {
    let mut it = Administrator::default();
    let (method, status, class) = ask(&mut it, &request(GET, 1, 0, &[9; 8]));
    assert_eq!((method, status), (0x81, 0));
    assert_eq!(class[..8], [1, 2, 0, 0, 0, 0, 0, 18]);
    // ServiceRecord, and a table of paths
    for (method, attribute) in [(SET, 0x31), (0x12, PATH)] {
        assert_eq!(ask(&mut it, &request(method, attribute, 0, &[])).1, 0xc);
    }
    let mad = request(GET, PATH, 0, &[]);
    assert_eq!(it.answer(&mad[..255], &ports()), None);
    // an answer instead of a request, and another class
    for (at, byte) in [(3, 0x81), (1, 4)] {
        let mut mad = mad.clone();
        mad[at] = byte;
        assert_eq!(it.answer(&mad, &ports()), None);
    }
}

#[test]
fn groups_are_bounded() {
    let mut it = Administrator::default();
    let mut made = 0;
    for number in 0u32..300 {
        let mut multicast = [0xff; 16];
        multicast[8..12].copy_from_slice(&number.to_be_bytes());
        let mad = request(SET, MEMBER, NEW, &member(multicast, gid(0), 1));
        match ask(&mut it, &mad).1 {
            0 => made += 1,
            status => assert_eq!(status, 0x100),
        }
    }
    assert_eq!(made, 256);
}
