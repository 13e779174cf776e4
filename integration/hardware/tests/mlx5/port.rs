// SPDX-License-Identifier: Apache-2.0
//! The port: its state, RoCE addresses, registers, and the orders of a test.

use crate::driver::{Driver, MACS, command, with};
use hardware::mlx5::{
    control::order,
    fabric::{Card, LinkLayer},
};

fn state(it: &mut Driver) -> u8 {
    it.execute(&command(0x750, 0, 16), 16).output[15] & 0xf
}

#[test]
fn the_state_follows_the_link_and_the_driver_gets_an_event() {
    let mut it = Driver::new();
    it.event_queue(0, 1 << 9);
    assert_eq!(state(&mut it), 1);
    for (index, (line, is_up, subtype)) in
        [("link 52:54:00:bb:00:01 down", 0, 1), ("link all up", 1, 4)]
            .into_iter()
            .enumerate()
    {
        assert_eq!(order(&mut it.fabric, line), Ok("ok\n".to_owned()));
        assert_eq!(state(&mut it), is_up);
        let (kind, got, data) = it.event(0, index as u64).expect("an event");
        assert_eq!((kind, got, data[8]), (9, subtype, 0x10));
    }
    // no event for an order that changes nothing, and none for an order to the other function
    order(&mut it.fabric, "link all up").expect("an order");
    order(&mut it.fabric, "link 52:54:00:bb:00:02 down").expect("an order");
    assert_eq!(it.event(0, 2), None);
    assert_eq!(state(&mut it), 1);
}

#[test]
fn the_driver_switches_its_port() {
    let mut it = Driver::new();
    // PAOS: a write with ase, admin_status 2 (down)
    let input = with(command(0x805, 0, 32), 10, &[0x50, 6]);
    let down = with(input, 16, &[0, 1, 2, 0, 0x80]);
    assert_eq!(it.execute(&down, 32).status(), 0);
    assert_eq!(state(&mut it), 0);
    let read = with(command(0x805, 1, 32), 10, &[0x50, 6]);
    assert_eq!(it.execute(&read, 32).output[16..20], [0, 1, 2, 2]);
    // PTYS: no speed without carrier
    let speed = with(command(0x805, 1, 80), 10, &[0x50, 4]);
    assert_eq!(it.execute(&speed, 80).number(16 + 0x24, 4), 0);
    assert_eq!(it.execute(&with(down, 18, &[1]), 32).status(), 0);
    assert_eq!(it.execute(&speed, 80).number(16 + 0x24, 4), 1 << 20);
    assert_eq!(state(&mut it), 1);
}

#[test]
fn a_virtual_function_follows_the_link_alone_and_manages_none() {
    let virtual_card = Card {
        macs: vec![MACS[0]],
        is_virtual: true,
    };
    let mut it = Driver::of(LinkLayer::Ethernet, &[virtual_card]);
    let input = with(command(0x805, 0, 32), 10, &[0x50, 6]);
    let down = with(input, 16, &[0, 1, 2, 0, 0x80]);
    assert_eq!(it.execute(&down, 32).status(), 0);
    assert_eq!(state(&mut it), 1);
    order(&mut it.fabric, "link all down").expect("an order");
    assert_eq!(state(&mut it), 0);
    let manages = |it: &mut Driver| {
        let general = it.execute(&command(0x100, 0, 16), 16 + 4096);
        general.output[16 + 0x34] >> 7
    };
    assert_eq!((manages(&mut it), manages(&mut Driver::new())), (0, 1));
}

#[test]
fn roce_addresses_are_in_their_table() {
    let mut it = Driver::new();
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    let input = with(command(0x761, 0, 48), 16, &gid);
    let set = with(with(input, 8, &[0, 7]), 16 + 0x1b, &[2]);
    assert_eq!(it.execute(&set, 16).status(), 0);
    let query = with(command(0x760, 0, 16), 8, &[0, 7]);
    assert_eq!(it.execute(&query, 48).output[16..32], gid);
    let found: Vec<_> = it.fabric.functions()[0].vport.roce_addresses().collect();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].0, found[0].1.gid, found[0].1.version),
        (7, gid, 2)
    );
    for opcode in [0x760, 0x761] {
        let beyond = with(command(opcode, 0, 48), 8, &[0, 255]);
        assert_eq!(it.execute(&beyond, 48).status(), 0xa);
    }
    assert!(order(&mut it.fabric, "status").is_ok_and(|it| it.contains("roce-addresses=1")));
}

#[test]
fn a_changed_address_and_list_are_kept() {
    let mut it = Driver::new();
    let mac = [0x52, 0x54, 0, 0xbb, 0, 9];
    // permanent_address and addresses_list with one entry
    let input = with(command(0x755, 0, 0x208), 15, &[1 << 3 | 1 << 2]);
    let input = with(with(input, 0x1f6, &mac), 0x1f3, &[1]);
    let input = with(input, 0x202, &mac);
    assert_eq!(it.execute(&input, 16).status(), 0);
    let context = it.execute(&command(0x754, 0, 16), 0x118).output;
    assert_eq!(context[16 + 0xf6..16 + 0xfc], mac);
    assert_eq!(context[16 + 0x102..16 + 0x108], mac);
    let vport = &it.fabric.functions()[0].vport;
    assert!(vport.accepts(mac) && vport.accepts([0xff; 6]));
    assert!(!vport.accepts(crate::driver::MACS[0]));
}

#[test]
fn a_bond_is_shown_until_it_is_destroyed() {
    let mut it = Driver::new();
    let create = with(command(0x840, 0, 16), 8, &[0, 0, 0, 1, 0, 0, 2, 1]);
    assert_eq!(it.execute(&create, 16).status(), 0);
    let shown = it.execute(&command(0x842, 0, 16), 16).output;
    assert_eq!(shown[8..], [0, 0, 0, 1, 0, 0, 2, 1]);
    assert!(order(&mut it.fabric, "status").is_ok_and(|it| it.contains("bonded=true")));
    assert_eq!(it.execute(&command(0x843, 0, 16), 16).status(), 0);
    assert!(order(&mut it.fabric, "status").is_ok_and(|it| !it.contains("bonded=true")));
}

#[test]
fn a_function_falls_off_its_bus_and_comes_back_as_after_power_on() {
    let mut it = Driver::new();
    it.execute(&command(0x102, 0, 32), 16);
    assert!(it.fabric.functions()[0].is_started);
    order(&mut it.fabric, "unplug 52:54:00:bb:00:01").expect("an order");
    assert!(!it.fabric.functions()[0].link.is_present);
    order(&mut it.fabric, "plug all").expect("an order");
    let function = &it.fabric.functions()[0];
    assert!(function.link.is_present && !function.is_started);
}

#[test]
fn a_syndrome_is_in_the_health_buffer() {
    let mut it = Driver::new();
    assert_eq!(it.read(0x23c), 0);
    order(&mut it.fabric, "syndrome 52:54:00:bb:00:02 9").expect("an order");
    assert_eq!(it.read(0x23c), 0);
    order(&mut it.fabric, "syndrome all 16").expect("an order");
    assert_eq!(it.read(0x23c), 16 << 16);
    order(&mut it.fabric, "syndrome all 0").expect("an order");
    assert_eq!(it.read(0x23c), 0);
}

#[test]
fn unknown_orders_are_refused() {
    let mut it = Driver::new();
    for (line, reason) in [
        ("flap", "\"flap\" is no order"),
        ("syndrome all 256", "\"256\" is no syndrome"),
        (
            "link 02:00:00:00:00:09 down",
            "no function has the MAC \"02:00:00:00:00:09\"",
        ),
    ] {
        assert_eq!(order(&mut it.fabric, line), Err(reason.to_owned()));
    }
}
