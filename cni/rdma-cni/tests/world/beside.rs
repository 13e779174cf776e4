// SPDX-License-Identifier: Apache-2.0
//! Tests of locks for which the end of a pod waits. The removal of macvlan and ipvlan children needs no lock of the
//! node. Only one move back to the host runs at a time on the node.

use crate::{
    leases::{bonds, has_link},
    node::{Node, Pod},
};
use attachments::Store;
use cni_protocol::{
    code,
    lock::{self, LIMIT},
};
use integration::stopwatch::{Stopwatch, WITHOUT_A_LOCK};
use rdma_cni::{
    error::Error,
    reply,
    verb::{add, del, gc},
};
use rdma_netns::RdmaMode;
use serde_json::json;
use std::time::{Duration, Instant};

/// Time limit that is too short for a verb that waits for a lock.
const SHORT: Duration = Duration::from_millis(50);

fn store(node: &Node) -> Store {
    Store::new(&node.state.path().join("state"))
}

#[test]
fn children_end_while_somebody_else_moves() {
    let node = Node::with(bonds(2));
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = node.config(json!({ "devices": [{ "netdev": "bond*" }], "mode": "share" }));
    node.add(&pod, &config).must_succeed();
    assert!(has_link(&node, &pod, "rdma1"));
    let moving = store(&node).lock_node_alone().expect("the lock is free");
    let ended = node.within(SHORT, "DEL", Some(&pod), &config, del::del);
    ended.expect("DEL waits for nobody");
    drop(moving);
    node.must_be(&before, "after it");
}

#[test]
fn moved_devices_return_under_the_nodes_lock() {
    let node = Node::with(bonds(2));
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    node.add(&pod, &config).must_succeed();
    let moving = store(&node).lock_node_alone().expect("the lock is free");
    let (code, message) = node.del_within(&pod, &config, SHORT);
    assert_eq!(code, code::TRY_LATER, "{message}");
    drop(moving);
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after it");
}

/// A program holds the node's lock or the attachment's lock, and does not release it.
#[test]
fn every_verb_that_waits_for_a_lock_ends_and_names_its_holder() {
    let node = Node::with(bonds(2));
    let [has, wants] = ["a", "b"].map(|name| node.pod(name));
    let before = node.snapshot();
    let [own, others] =
        ["eth8", "bond0"].map(|netdev| node.config(json!({ "devices": [{ "netdev": netdev }] })));
    node.add(&has, &own).must_succeed();
    let attached = node.snapshot();
    let of_node = node.state.path().join("state/lock");
    let of = |pod: &Pod| node.record_of(pod).with_extension("lock");
    let holder = format!("process {} (", std::process::id());
    for (verb, pod, config, lock) in [
        ("ADD", &wants, &others, of_node.clone()),
        ("ADD", &wants, &others, of(&wants)),
        ("DEL", &has, &own, of_node),
        ("DEL", &has, &own, of(&has)),
    ] {
        let held = lock::attempt(lock::open(&lock).expect("a lock"));
        let held = held.expect("a lock").expect("the lock is free");
        let began = Stopwatch::start();
        let error = node.within(SHORT, verb, Some(pod), config, |node| match verb {
            "ADD" => add::add(node).err().expect("it has no lock"),
            _ => del::del(node).expect_err("it has no lock"),
        });
        // the shortest wait for a lock is one second
        assert!(began.elapsed() < WITHOUT_A_LOCK, "{verb}, {lock:?}");
        let message = error.to_string();
        assert_eq!(reply::code(&error), code::TRY_LATER, "{verb}: {message}");
        let path = lock.to_str().expect("text");
        assert!(
            message.contains(path) && message.contains(&holder),
            "{verb}: {message}"
        );
        assert_eq!(
            attached.differences(&node.snapshot()),
            [""; 0],
            "{verb}, {lock:?}"
        );
        drop(held);
    }
    node.add(&wants, &others).must_succeed();
    node.del(&wants, &others).must_succeed();
    node.del(&has, &own).must_succeed();
    node.must_be(&before, "after all");
}

/// Runs GC for pods, one with each of `netdevs`, while a program holds the node's lock. The first attachment waits for
/// `time`, and each other attachment waits for one second.
#[track_caller]
fn gc_gives_up(netdevs: &[&str], time: Duration) {
    let node = Node::new(RdmaMode::Exclusive);
    let pods: Vec<Pod> = netdevs.iter().map(|netdev| node.pod(netdev)).collect();
    let before = node.snapshot();
    let config = |netdev: &str| node.config(json!({ "devices": [{ "netdev": netdev }] }));
    for (pod, netdev) in pods.iter().zip(netdevs) {
        node.add(pod, &config(netdev)).must_succeed();
    }
    let attached = node.snapshot();
    let held = store(&node).lock_node_alone().expect("the lock is free");
    let config = Node::of_gc(&[], &config(netdevs[0]));
    let began = Instant::now();
    let error = node
        .within(SHORT, "GC", None, &config, |node| match time {
            LIMIT => gc::gc(node),
            _ => gc::gc_within(node, time),
        })
        .expect_err("it has no lock");
    let others = netdevs.len() as u32 - 1;
    let least = time + Duration::from_secs(1) * others;
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    assert_eq!(reply::code(&error), code::TRY_LATER, "{error}");
    let errors = match error {
        Error::Several(errors) => errors,
        one => vec![one],
    };
    let messages: Vec<String> = errors.iter().map(Error::to_string).collect();
    assert_eq!(messages.len(), netdevs.len(), "{messages:?}");
    let path = node.state.path().join("state/lock").display().to_string();
    let holder = format!("process {} (", std::process::id());
    for (place, message) in messages.iter().enumerate() {
        let is_reported = message.contains(&path) && message.contains(&holder);
        assert!(is_reported, "{message}");
        let is_short = message.contains("held the lock during the whole wait of 1 s;");
        assert!(place == 0 || is_short, "{message}");
    }
    assert_eq!(attached.differences(&node.snapshot()), [""; 0]);
    assert_eq!(node.records().len(), 2 * netdevs.len());
    drop(held);
    node.run("GC", None, &config).must_succeed();
    node.must_be(&before, "after all");
}

/// Time for one attachment. An attachment has this time even after the verb's time has passed.
const OF_ONE: Duration = Duration::from_millis(2500);

#[test]
fn gc_of_one_attachment_waits_for_a_lock_with_an_end_and_names_its_holder() {
    gc_gives_up(&["eth2"], OF_ONE);
}

#[test]
fn gc_of_two_attachments_waits_once_for_who_keeps_a_lock_and_names_it_twice() {
    gc_gives_up(&["eth2", "eth3"], OF_ONE);
}

#[test]
#[ignore = "scripts/test --full: it waits for 31 s; every run has GC wait for less"]
fn gc_gives_up_in_a_third_of_the_time_that_kubelet_has() {
    gc_gives_up(&["eth2", "eth3"], LIMIT);
}
