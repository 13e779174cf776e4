// SPDX-License-Identifier: Apache-2.0
//! Tests of many processes of both plugins, which start, end and are killed at random moments.

use super::node::{Call, Node, call};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Output,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

const WORKERS: u64 = 8;
const TIME: Duration = Duration::from_secs(10);

/// A random number generator, xorshift64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Runs the call, and kills it after a random time. Returns `None` if the kill came before the call's
/// end.
fn perhaps_killed(call: &Call, dice: &mut Dice) -> Option<Output> {
    let mut child = call.start();
    let is_killed = dice.roll(3) == 0;
    if is_killed {
        thread::sleep(Duration::from_micros(dice.roll(12_000)));
        child.kill().expect("a process to kill");
    }
    let output = child.wait_with_output().expect("its end");
    (output.status.code().is_some()).then_some(output)
}

#[derive(Default)]
struct Counts {
    added: usize,
    removed: usize,
    killed: usize,
    full: usize,
}

struct Crowd {
    conf: Value,
    /// Addresses that ADD reported for an attachment. They are removed when a DEL of the attachment
    /// begins.
    reported: Mutex<BTreeSet<String>>,
    counts: Mutex<Counts>,
}

impl Crowd {
    fn call(&self, command: &str, container: &str, dice: &mut Dice) -> Call {
        let call = call(command, container, &self.conf);
        // each plugin must also be able to undo the calls of the other one
        match dice.roll(6) {
            0 => call.host_local(),
            _ => call,
        }
    }

    /// Repeats DEL until a call has ended without being killed.
    fn del(&self, container: &str, dice: &mut Dice) {
        loop {
            let del = self.call("DEL", container, dice);
            match perhaps_killed(&del, dice) {
                None => self.counts.lock().unwrap().killed += 1,
                Some(output) => {
                    assert!(
                        output.status.success() && output.stdout.is_empty(),
                        "{output:?}"
                    );
                    self.counts.lock().unwrap().removed += 1;
                    return;
                }
            }
        }
    }

    /// Runs ADD. Returns the addresses if the call was not killed and succeeded.
    fn add(&self, container: &str, dice: &mut Dice) -> Option<Vec<String>> {
        let add = self.call("ADD", container, dice);
        let Some(output) = perhaps_killed(&add, dice) else {
            self.counts.lock().unwrap().killed += 1;
            return None;
        };
        let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        if !output.status.success() {
            let is_full = answer["code"] == 11 || answer["code"] == 999;
            assert!(is_full, "{answer}");
            self.counts.lock().unwrap().full += 1;
            return None;
        }
        self.counts.lock().unwrap().added += 1;
        let ips = answer["ips"].as_array().expect("ips").iter();
        let ips = ips.map(|ip| ip["address"].as_str().expect("address"));
        let ips = ips.map(|ip| ip.split_once('/').expect("a length").0.to_owned());
        let ips: Vec<String> = ips.collect();
        let mut reported = self.reported.lock().unwrap();
        for ip in &ips {
            assert!(reported.insert(ip.clone()), "{ip} was given twice");
        }
        Some(ips)
    }

    /// Runs one runtime. Returns its attachments at the end.
    fn work(&self, worker: u64) -> BTreeMap<String, Vec<String>> {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (worker + 1));
        let mut live = BTreeMap::new();
        let end = Instant::now() + TIME;
        for number in 0.. {
            if Instant::now() > end {
                break;
            }
            if live.len() > 3 && dice.roll(2) == 0 {
                let index = dice.roll(live.len() as u64) as usize;
                let container: &String = live.keys().nth(index).expect("one");
                let container = container.clone();
                for ip in live.remove(&container).into_iter().flatten() {
                    self.reported.lock().unwrap().remove(&ip);
                }
                self.del(&container, &mut dice);
                continue;
            }
            let container = format!("w{worker}-{number}");
            match self.add(&container, &mut dice) {
                Some(ips) => drop(live.insert(container, ips)),
                // the runtime forgets some attachments, whose addresses GC releases
                None if dice.roll(8) == 0 => {}
                None => self.del(&container, &mut dice),
            }
        }
        live
    }
}

#[test]
fn a_crowd_that_is_killed_at_random() {
    let node = Node::new();
    let crowd = Crowd {
        conf: node
            .conf(json!({"ranges": [[{"subnet": "10.77.0.0/26"}], [{"subnet": "fd77::/64"}]]})),
        reported: Mutex::default(),
        counts: Mutex::default(),
    };
    let live: BTreeMap<String, Vec<String>> = thread::scope(|scope| {
        let crowd = &crowd;
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| scope.spawn(move || crowd.work(worker)))
            .collect();
        workers
            .into_iter()
            .flat_map(|it| it.join().expect("no panic"))
            .collect()
    });
    let counts = crowd.counts.lock().unwrap();
    println!(
        "{} given, {} given back, {} killed, {} found it full; {} attachments live",
        counts.added,
        counts.removed,
        counts.killed,
        counts.full,
        live.len()
    );
    assert!(counts.added > 50 && counts.killed > 50, "a crowd");
    for container in live.keys() {
        call("CHECK", container, &crowd.conf).ok();
    }
    let mut gc = crowd.conf.clone();
    let valid = live
        .keys()
        .map(|it| json!({"containerID": it, "ifname": "eth0"}));
    gc["cni.dev/valid-attachments"] = valid.collect();
    call("GC", "", &gc).ok();
    let mut expected: Vec<String> = live.values().flatten().cloned().collect();
    let mut left = node.leases();
    expected.sort();
    left.sort();
    assert_eq!(
        left, expected,
        "every lease is a live attachment's, and every one has its leases"
    );
    for container in live.keys() {
        call("CHECK", container, &crowd.conf).ok();
        call("DEL", container, &crowd.conf).ok();
    }
    assert_eq!(node.leases(), [""; 0]);
    assert_eq!(node.notes(), [""; 0]);
}
