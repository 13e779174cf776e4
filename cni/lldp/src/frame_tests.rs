// SPDX-License-Identifier: Apache-2.0

use super::*;

/// A recorded frame of lldpd 1.0.16.
const REAL: &[u8] = include_bytes!("../tests/real/lldpd.frame");

fn field(kind: u8, value: &[u8]) -> Vec<u8> {
    let header = (u16::from(kind) << 9) | u16::try_from(value.len()).expect("9 bits");
    [&header.to_be_bytes()[..], value].concat()
}

fn frame(fields: &[Vec<u8>]) -> Vec<u8> {
    let header = [&GROUPS[0][..], &[2; 6], &ETHERTYPE.to_be_bytes()].concat();
    [header, fields.concat()].concat()
}

fn mandatory() -> [Vec<u8>; 3] {
    [
        field(CHASSIS, b"\x07leaf1"),
        field(PORT, b"\x05Ethernet1/1"),
        field(TTL, &[0, 120]),
    ]
}

fn with(further: &[Vec<u8>]) -> Result<Neighbour, Malformed> {
    parse(&frame(&[&mandatory()[..], further].concat()))
}

#[test]
fn a_frame_of_lldpd() {
    let neighbour = parse(REAL).expect("a frame");
    let expected = Neighbour {
        chassis: "d2:1f:90:e4:10:f5".into(),
        port_id: "d2:1f:90:e4:10:f5".into(),
        name: Some("leaf1.example.org".into()),
        description: Some("swp1".into()),
        ttl: 120,
    };
    assert_eq!(neighbour, expected);
    assert_eq!(
        (neighbour.switch(), neighbour.port()),
        ("leaf1.example.org", "swp1")
    );
}

#[test]
fn a_switch_without_a_name_is_its_chassis() {
    let neighbour = with(&[field(PORT_DESCRIPTION, b"to node7")]).expect("a frame");
    assert_eq!(
        (neighbour.switch(), neighbour.port()),
        ("leaf1", "Ethernet1/1")
    );
}

#[test]
fn identifiers_of_each_kind() {
    for (value, expected) in [
        (&b"\x04\x02\x00\x00\xab\xcd\xef"[..], "02:00:00:ab:cd:ef"),
        (b"\x04\x02\x00", "??"),
        (b"\x05\x01\x0a\x00\x00\x01", "10.0.0.1"),
        (b"\x07 slot 1 ", "slot 1"),
        (b"\x00x", "x"),
        (b"\x05\x02\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01", "fd00::1"),
    ] {
        assert_eq!(identifier(value, CHASSIS_KINDS).as_deref(), Ok(expected));
    }
    for value in [&b""[..], b"\x07", b"\x07  ", b"\x05\x02\x01", &[7; 257]] {
        assert!(identifier(value, CHASSIS_KINDS).is_err(), "{value:?}");
    }
}

#[test]
fn texts_that_leave_are_printable() {
    let hostile = "a\n\u{1b}[2J\"\u{202e}é\0".as_bytes();
    let neighbour = with(&[field(SYSTEM_NAME, hostile)]).expect("a frame");
    assert_eq!(neighbour.switch(), "a??[2J\"??????");
}

#[test]
fn mandatory_fields_are_the_first_in_order_and_once() {
    let [chassis, port, ttl] = mandatory();
    let orders = [
        vec![port.clone(), chassis.clone(), ttl.clone()],
        vec![chassis.clone(), ttl.clone(), port.clone()],
        vec![
            field(SYSTEM_NAME, b"x"),
            chassis.clone(),
            port.clone(),
            ttl.clone(),
        ],
        vec![chassis.clone(), port.clone()],
        vec![chassis.clone(), port.clone(), field(TTL, &[1])],
        vec![chassis.clone(), port, ttl, chassis],
        vec![],
    ];
    for fields in orders {
        assert!(parse(&frame(&fields)).is_err(), "{fields:?}");
    }
    let end = [field(END, &[]), vec![0xff; 7]].concat();
    assert!(with(&[end]).is_ok(), "padding of Ethernet is no part of it");
    assert!(with(&[field(END, b"x")]).is_err());
}

#[test]
fn a_frame_that_is_cut_off_is_discarded_whole() {
    let whole = frame(&[&mandatory()[..], &[field(SYSTEM_NAME, b"leaf1")]].concat());
    let optional = frame(&mandatory()).len();
    for length in (0..whole.len()).filter(|it| *it != optional) {
        assert!(parse(&whole[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn other_frames_are_not_lldp() {
    for (place, byte) in [(5, 0x0d), (12, 0x08)] {
        let mut other = REAL.to_vec();
        other[place] = byte;
        assert!(parse(&other).is_err());
    }
}
