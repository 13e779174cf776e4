// SPDX-License-Identifier: Apache-2.0
//! Tests of lines that a verb logs once, even if it plans several times.

use crate::{
    erdma,
    leases::bonds,
    node::{Node, name},
};
use fake_kernel::{Verdict, World, world::HOST};
use log::{LevelFilter, Log, Metadata, Record};
use nix::errno::Errno;
use rdma_netns::{
    Child, IpvlanMode, LinkChange, NetnsSide, Op, RdmaMode,
    device_settings::{FLOW_RULES, UNREADABLE},
};
use serde_json::json;
use std::{
    collections::BTreeSet, env, fs, os::unix::fs::MetadataExt, process::Command, sync::mpsc,
};

/// Prints log lines to standard error.
struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("{}", record.args());
    }

    fn flush(&self) {}
}

/// Logs lines to stderr. With `--include-ignored`, another test of this process may have set its logger before.
fn log_to_stderr() {
    let _ = log::set_logger(&Lines);
    log::set_max_level(LevelFilter::Info);
}

/// Returns the log of `test`. A process has one log, so `test` runs in a process of its own.
#[track_caller]
fn log_of(test: &str) -> String {
    let program = env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .expect("started");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    log
}

#[test]
fn a_line_reports_once_that_a_rail_is_shared() {
    let log = log_of("logging::shared_rails_are_added");
    for netdev in ["eth1", "eth2"] {
        let line = format!("{netdev} is shared: ");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
}

#[test]
#[ignore = "a_line_reports_once_that_a_rail_is_shared starts it, and reads its log"]
fn shared_rails_are_added() {
    log_to_stderr();
    let node = erdma::node(RdmaMode::Shared, true);
    let config = node.config(json!({"devices": [{"driver": "erdma"}], "mode": "share"}));
    node.add(&node.pod("a"), &config).must_succeed();
}

#[test]
fn a_changed_mode_is_logged_for_each_ipvlan_port_of_a_new_pod() {
    let log = log_of("logging::a_pod_is_added_on_two_ports_whose_modes_changed");
    for parent in ["bond0", "bond1"] {
        let line = format!("changed the mode of all ipvlan children of {parent}; ");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
}

#[test]
#[ignore = "a_changed_mode_is_logged_for_each_ipvlan_port_of_a_new_pod starts it, and reads its log"]
fn a_pod_is_added_on_two_ports_whose_modes_changed() {
    log_to_stderr();
    let node = Node::with(bonds(2));
    let config = |parents: &[&str]| {
        let devices: Vec<_> = parents.iter().map(|it| json!({ "netdev": it })).collect();
        node.config(json!({ "devices": devices, "mode": "share", "child": { "type": "ipvlan" } }))
    };
    // the first pod deletes its child, and the third shares a port with the second
    let [first, second, third] = ["a", "b", "c"].map(|it| node.pod(it));
    for (pod, parents) in [
        (&first, &["bond0"][..]),
        (&second, &["bond0"]),
        (&third, &["bond0", "bond1"]),
    ] {
        node.add(pod, &config(parents)).must_succeed();
    }
    let gone = Op::link(NetnsSide::Pod, &name("rdma0"), LinkChange::Remove);
    node.change(Some(&first), &gone);
    for parent in ["bond0", "bond1"] {
        let l3 = Op::AddChild {
            at: NetnsSide::Pod,
            parent: name(parent),
            child: Child::Ipvlan {
                mode: IpvlanMode::L3,
            },
            name: name(&format!("x-{parent}")),
            mtu: 1500,
        };
        node.change(Some(&third), &l3);
    }
    node.add(&node.pod("both"), &config(&["bond0", "bond1"]))
        .must_succeed();
}

#[test]
fn a_rails_lack_is_logged_once_during_a_wait() {
    let log = log_of("logging::another_rail_is_awaited");
    for line in [
        "eth2 is back on the host, but not fully restored: ",
        "eth2: its flow rules could not be read at ADD, and stay as they are",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line:?}: {log}");
    }
}

/// Uses the logger of `rdma-cni` itself. Also checks that the note for `doctor` is written only once.
#[test]
#[ignore = "a_rails_lack_is_logged_once_during_a_wait starts it, and reads its log"]
fn another_rail_is_awaited() {
    let node = Node::new(RdmaMode::Shared);
    let [pod, hidden] = ["a", "b"].map(|it| node.pod(it));
    let set = |netns, link, change| {
        let set = |world: &mut World| world.set_device_setting(netns, link, change);
        node.kernel.with(set).expect("it can be set");
    };
    set(HOST, "eth2", (FLOW_RULES, UNREADABLE));
    let mut rails = node.two_rails();
    rails["log"] = json!({ "level": "warn" });
    node.add(&pod, &rails).must_succeed();
    let netns = node.netns(&pod);
    set(netns, "rdma0", ("ethtool/messages", "00000000"));
    set(netns, "rdma0", (FLOW_RULES, "0000000100000002"));
    let (on_host, in_pod) = (NetnsSide::Host, NetnsSide::Pod);
    let moves = [
        (&pod, in_pod, on_host, "rdma1"),
        (&hidden, on_host, in_pod, "stolen"),
    ];
    for (pod, from, to, link) in moves {
        let (link, name) = (name(link), name("stolen"));
        let moved = Op::MoveLink {
            link,
            from,
            to,
            name,
        };
        node.change(Some(pod), &moved);
    }
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::SetDeviceSetting { key, .. } => {
            assert_ne!(key, FLOW_RULES);
            Verdict::Refuse(Errno::EOPNOTSUPP)
        }
        _ => Verdict::Proceed,
    });
    let note = node.state.path().join("state/given-up/eth2.json");
    let (sender, files) = mpsc::channel();
    node.kernel.meanwhile(move |_| {
        let file = fs::metadata(&note).map(|it| it.ino());
        sender.send(file.ok()).expect("a receiver");
    });
    node.del(&pod, &rails).must_fail(107);
    let files: Vec<u64> = files.try_iter().flatten().collect();
    assert!(files.len() > 100, "it was awaited: {files:?}");
    let files: BTreeSet<u64> = files.into_iter().collect();
    assert_eq!(files.len(), 1, "{files:?}");
}
