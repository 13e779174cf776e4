// SPDX-License-Identifier: Apache-2.0

use super::*;
use serde_json::{Value, json};

const FIRST: &str = "0000:3b:00.0";
const SECOND: &str = "0000:5e:00.0";

fn address(text: &str) -> DeviceAddress {
    DeviceAddress::try_from(text.to_owned()).expect("an address")
}

/// Returns a function with the RDMA device `mlx5_0`.
fn function(address: &str, netdevs: &[Value]) -> Value {
    json!({"address": address, "netdevs": netdevs, "hcas": [{"name": "mlx5_0"}]})
}

fn netdev(name: &str, further: Value) -> Value {
    let mut netdev = json!({"name": name, "mac": "02:00:00:00:00:01", "carrier": true});
    let fields = further.as_object().expect("fields").clone();
    netdev.as_object_mut().expect("fields").extend(fields);
    netdev
}

fn inventory(functions: &[Value]) -> Inventory {
    serde_json::from_value(json!({"functions": functions})).expect("an inventory")
}

fn one(carrier: bool) -> Inventory {
    inventory(&[function(
        FIRST,
        &[netdev("ens1", json!({"carrier": carrier}))],
    )])
}

fn neighbour(switch: &str, ttl: u16) -> Neighbour {
    Neighbour {
        chassis: format!("{switch} chassis"),
        port_id: "Ethernet1".into(),
        name: Some(switch.into()),
        description: None,
        ttl,
    }
}

/// Returns a table of [`one`] that has received `leaf1` with a TTL of 120 s at `now`.
fn table_with_leaf1(now: Instant) -> Table {
    let mut table = Table::default();
    table.follow(&one(true), now);
    table.receive("ens1", neighbour("leaf1", 120), now);
    table
}

fn switch(table: &Table) -> Option<String> {
    let seen = table.switches().0.remove(&address(FIRST));
    seen.map(|it| it.neighbour.switch().to_owned())
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[test]
fn a_neighbour_ends_with_its_ttl_or_at_once_with_a_ttl_of_none() {
    let now = Instant::now();
    let mut table = table_with_leaf1(now);
    assert_eq!(table.deadline(), Some(now + seconds(120)));
    table.receive("ens1", neighbour("leaf1", 120), now + seconds(60));
    table.expire(now + seconds(179));
    assert_eq!(switch(&table).as_deref(), Some("leaf1"));
    table.expire(now + seconds(180));
    assert_eq!(switch(&table), None);
    let mut table = table_with_leaf1(now);
    table.receive("ens1", neighbour("leaf1", 0), now);
    assert_eq!(switch(&table), None);
    table.receive("ens7", neighbour("leaf1", 120), now);
    assert_eq!(table.switches(), Switches::default(), "of no NIC");
}

#[test]
fn another_neighbour_waits_for_the_end_of_the_first_or_for_a_loss_of_carrier() {
    let now = Instant::now();
    let mut table = table_with_leaf1(now);
    for ttl in [0, 120] {
        table.receive("ens1", neighbour("of a pod", ttl), now);
        assert_eq!(switch(&table).as_deref(), Some("leaf1"));
    }
    table.follow(&one(false), now);
    table.follow(&one(true), now);
    assert_eq!(switch(&table).as_deref(), Some("leaf1"), "a flap");
    table.receive("ens1", neighbour("leaf2", 120), now);
    assert_eq!(switch(&table).as_deref(), Some("leaf2"), "another cable");
}

#[test]
fn a_netdev_in_a_pod_keeps_its_neighbour() {
    let now = Instant::now();
    let mut table = table_with_leaf1(now);
    table.follow(&inventory(&[function(FIRST, &[])]), now);
    table.expire(now + seconds(10_000));
    let seen = table.switches().0.remove(&address(FIRST)).expect("kept");
    assert!(seen.is_away && seen.netdev == "ens1");
    assert_eq!(table.netdevs(), BTreeSet::new());
    // a later daemon reads the neighbour from the file
    let directory = tempfile::tempdir().expect("a directory");
    assert!(table.switches().write(directory.path()).expect("written"));
    let read = Switches::read(directory.path()).expect("read");
    assert_eq!(read, table.switches());
    let mut later = Table::restored(&read, now);
    later.follow(&inventory(&[function(FIRST, &[])]), now);
    assert_eq!(later.switches(), read);
    // the netdev returns under another name, and receives another switch's frame
    let back = inventory(&[function(FIRST, &[netdev("eth0", json!({}))])]);
    later.follow(&back, now);
    assert_eq!(later.deadline(), Some(now + seconds(120)));
    later.receive("eth0", neighbour("leaf2", 120), now);
    assert_eq!(switch(&later).as_deref(), Some("leaf2"));
    later.follow(&inventory(&[]), now);
    assert_eq!(later.switches(), Switches::default());
    assert!(later.switches().write(directory.path()).expect("removed"));
    assert_eq!(
        Switches::read(directory.path()).expect("read"),
        Switches::default()
    );
}

#[test]
fn a_list_of_another_agent_replaces_all() {
    let now = Instant::now();
    let mut table = table_with_leaf1(now);
    let both = [("ens1", "leaf2"), ("ens1", "leaf3")];
    let both = both.map(|(netdev, name)| (netdev.to_owned(), neighbour(name, 120)));
    table.take(&both, seconds(100), now);
    assert_eq!(switch(&table).as_deref(), Some("leaf2"));
    assert_eq!(table.deadline(), Some(now + seconds(20)));
    table.take(&both, seconds(121), now);
    assert_eq!(switch(&table), None, "the list is too old");
    table.take(&both, seconds(0), now);
    table.take(&[], seconds(0), now);
    assert_eq!(switch(&table), None);
}

#[test]
fn a_bond_has_the_switches_of_both_ports_and_a_virtual_function_its_physical_ones() {
    let now = Instant::now();
    let bonded = |name| netdev(name, json!({"master": "bond0"}));
    let vf = json!({"address": "0000:3b:00.2", "physical_function": FIRST, "netdevs": [netdev("ens1v0", json!({}))],
                    "hcas": [{"name": "mlx5_2"}]});
    let second = json!({"address": SECOND, "netdevs": [bonded("ens2")]});
    let other = json!({"address": "0000:86:00.0", "netdevs": [netdev("ens3", json!({}))]});
    let inventory = inventory(&[function(FIRST, &[bonded("ens1")]), second, vf, other]);
    let mut table = Table::default();
    table.follow(&inventory, now);
    assert_eq!(table.netdevs(), ["ens1", "ens2"].into());
    table.receive("ens1", neighbour("leaf2", 120), now);
    let other_port = Neighbour {
        port_id: "Ethernet9".into(),
        ..neighbour("leaf1", 120)
    };
    table.receive("ens2", other_port, now);
    let switches = table.switches();
    for function in [FIRST, "0000:3b:00.2"] {
        let seen = switches.of(&address(function), &inventory);
        assert_eq!(
            crate::joined(&seen, Neighbour::switch).as_deref(),
            Some("leaf1,leaf2")
        );
        // sorted by the names of the switches
        assert_eq!(
            crate::joined(&seen, Neighbour::port).as_deref(),
            Some("Ethernet9,Ethernet1")
        );
    }
    assert_eq!(
        switches.of(&address("0000:86:00.0"), &inventory),
        [] as [&Seen; 0]
    );
}
