// SPDX-License-Identifier: Apache-2.0
//! Tests that the cost of an ADD does not depend on the number of leased addresses.

use super::node::{Node, call};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

const HELD: u32 = 50_000;

fn fill(node: &Node) {
    let first = u32::from_be_bytes([10, 64, 0, 2]);
    node.write("lock", "");
    let notes = node.leases_dir().join("rdma-ipam/attachments");
    fs::create_dir_all(&notes).unwrap();
    fs::create_dir_all(node.leases_dir().join("rdma-ipam/conflicts")).unwrap();
    for index in 0..HELD {
        let ip = std::net::Ipv4Addr::from(first + index).to_string();
        node.write(&ip, &format!("held{index}\r\neth0"));
        symlink(&ip, notes.join(format!("held{index}@eth0"))).unwrap();
        if index + 1 == HELD {
            node.write("last_reserved_ip.0", &ip);
        }
    }
}

fn conf(node: &Node) -> Value {
    node.conf(json!({"subnet": "10.64.0.0/12"}))
}

fn time(node: &Node, number: usize) -> Duration {
    let add = call("ADD", &format!("c{number}"), &conf(node));
    let start = Instant::now();
    let outcome = add.run();
    let time = start.elapsed();
    assert!(outcome.success, "{outcome:?}");
    time
}

#[test]
fn the_next_after_fifty_thousand_costs_what_the_first_does() {
    let (empty, full) = (Node::in_memory(), Node::in_memory());
    fill(&full);
    // compares the fastest of many calls, because the machine may be busy
    let mut best = (Duration::MAX, Duration::MAX);
    for number in 0..200 {
        best.0 = best.0.min(time(&empty, number));
        best.1 = best.1.min(time(&full, number));
        if number >= 40 && best.1.as_secs_f64() <= 1.2 * best.0.as_secs_f64() {
            println!("first {:?}, after {HELD} {:?}", best.0, best.1);
            return;
        }
    }
    panic!("first {:?}, after {HELD} {:?}", best.0, best.1);
}

#[test]
fn a_long_run_of_held_addresses_is_jumped_over() {
    let node = Node::new();
    fill(&node);
    // without the pointer, the search begins at the first address
    fs::remove_file(node.leases_dir().join("last_reserved_ip.0")).unwrap();
    let start = Instant::now();
    assert_eq!(call("ADD", "a", &conf(&node)).address(), "10.64.195.82");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(call("ADD", "b", &conf(&node)).address(), "10.64.195.83");
}
