// SPDX-License-Identifier: Apache-2.0
//! Tests that the cost of an ADD does not depend on the number of leased addresses.

use super::node::{Node, call};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::symlink};

const HELD: u32 = 50_000;

/// Leases the first `held` addresses.
fn fill(node: &Node, held: u32) {
    let first = u32::from_be_bytes([10, 64, 0, 2]);
    node.write("lock", "");
    let notes = node.leases_dir().join("rdma-ipam/attachments");
    fs::create_dir_all(&notes).unwrap();
    fs::create_dir_all(node.leases_dir().join("rdma-ipam/conflicts")).unwrap();
    for index in 0..held {
        let ip = std::net::Ipv4Addr::from(first + index).to_string();
        node.write(&ip, &format!("held{index}\r\neth0"));
        symlink(&ip, notes.join(format!("held{index}@eth0"))).unwrap();
        if index + 1 == held {
            node.write("last_reserved_ip.0", &ip);
        }
    }
}

fn conf(node: &Node) -> Value {
    node.conf(json!({"subnet": "10.64.0.0/12"}))
}

/// Returns the names of an ADD's system calls on files, sorted, and the number of bytes that the ADD reads.
fn cost(node: &Node) -> (Vec<String>, u64) {
    let file = node.data_dir().join("calls");
    let file = file.to_str().unwrap();
    let runner = ["strace", "-f", "-qq", "-e", "trace=%file,%desc", "-o", file];
    call("ADD", "new", &conf(node)).by(&runner).result();
    let text = fs::read_to_string(file).unwrap();
    // such as `4711 read(6, "10.64.0.2", 32)          = 9`
    let lines = text.lines().filter_map(|line| {
        let (_, line) = line.split_once(' ')?;
        let (name, rest) = line.trim_start().split_once('(')?;
        let (_, outcome) = rest.rsplit_once(" = ")?;
        Some((name.to_owned(), outcome.to_owned()))
    });
    let (mut calls, outcomes): (Vec<_>, Vec<_>) = lines.unzip();
    let calls_of_bytes = calls
        .iter()
        .zip(outcomes)
        .filter(|(name, _)| *name == "read");
    let bytes = calls_of_bytes.map(|(_, outcome)| outcome.parse::<u64>().unwrap_or_default());
    let bytes = bytes.sum();
    calls.sort();
    (calls, bytes)
}

#[test]
fn the_next_after_fifty_thousand_costs_what_the_second_does() {
    let [few, many] = [1, HELD].map(|held| {
        let node = Node::in_memory();
        fill(&node, held);
        cost(&node)
    });
    println!("{} calls, {} and {} bytes", few.0.len(), few.1, many.1);
    assert_eq!(few.0, many.0);
    // a few bytes more, because the addresses are longer
    assert!(
        (1..64).contains(&(many.1 - few.1)),
        "{} bytes, {} bytes",
        few.1,
        many.1
    );
}

#[test]
fn a_long_run_of_held_addresses_is_jumped_over() {
    let node = Node::in_memory();
    fill(&node, HELD);
    // without the pointer, the search begins at the first address
    fs::remove_file(node.leases_dir().join("last_reserved_ip.0")).unwrap();
    // the kernel kills the plugin after five seconds of CPU time
    let first = call("ADD", "a", &conf(&node)).by(&["prlimit", "--cpu=5"]);
    assert_eq!(first.address(), "10.64.195.82");
    assert_eq!(call("ADD", "b", &conf(&node)).address(), "10.64.195.83");
}
