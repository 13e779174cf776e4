// SPDX-License-Identifier: Apache-2.0
//! Tests of the plugins' binaries: other versions of them, and foreign binaries.

use crate::{FLANNEL, Node, plugin, putting::age, refused};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

#[test]
fn a_running_binary_goes_on_when_another_version_takes_its_place() {
    let node = Node::with_list(FLANNEL);
    fs::copy(integration::plugin::rdma_cni(), node.path("new/rdma-cni")).expect("a program");
    node.install();
    let binary = node.path("opt/cni/bin/rdma-cni");
    // the running plugin waits for its input
    let mut running = Command::new(&binary);
    running.env("CNI_COMMAND", "VERSION").stdin(Stdio::piped());
    let mut running = running.spawn().expect("it runs");
    node.version("2");
    let text = node.install();
    let is_retryable = running.try_wait().expect("a child").is_none();
    running.kill().expect("ended");
    running.wait().expect("gone");
    assert!(is_retryable, "the old one ended");
    assert!(
        text.contains("rdma-cni\": replaced by this version"),
        "{text}"
    );
    assert_eq!(
        fs::read_to_string(&binary).expect("it"),
        plugin("rdma-cni", "2")
    );
    // back to the first version
    node.version("1");
    node.install();
    assert_eq!(
        fs::read_to_string(&binary).expect("it"),
        plugin("rdma-cni", "1")
    );
    node.uninstall();
    assert!(!binary.exists());
}

#[test]
fn replaced_foreign_binaries_come_back_and_later_ones_stay() {
    let node = Node::with_list(FLANNEL);
    node.machine.write("opt/cni/bin/rdma-cni", "somebody's\n");
    node.program("rdma-ipam", &plugin("rdma-ipam", "1"));
    let binary = node.path("opt/cni/bin/rdma-cni");
    fs::set_permissions(&binary, Permissions::from_mode(0o711)).expect("a mode");
    age(&node, "opt/cni/bin/rdma-cni");
    let before = node.seen();
    let text = node.install();
    assert!(
        text.contains("the previous file of another installation is kept"),
        "{text}"
    );
    assert!(
        text.contains("already installed, by another installation"),
        "{text}"
    );
    node.version("2");
    node.install();
    node.version("3");
    node.install();
    let text = node.uninstall();
    assert!(
        text.contains("rdma-cni\": the previous file is restored"),
        "{text}"
    );
    let mut after = node.seen();
    // `install` of version 2 replaced the foreign binary, and kept its content for `uninstall`
    let ipam = node.path("opt/cni/bin/rdma-ipam");
    assert_eq!(
        after.remove(&ipam).map(|it| it.0),
        before.get(&ipam).map(|it| it.0.clone())
    );
    let mut before = before;
    before.remove(&ipam);
    assert_eq!(after, before);

    node.install();
    node.machine
        .write("opt/cni/bin/rdma-cni", "somebody's since\n");
    let text = node.uninstall();
    assert!(
        text.contains("rdma-cni\": not removed; another installation wrote it"),
        "{text}"
    );
    assert_eq!(node.read("opt/cni/bin/rdma-cni"), "somebody's since\n");
}

/// Runs the command and kills it after `time`. Returns true if it had not ended by then.
fn is_killed(node: &Node, verb: &str, arguments: &[&str], time: Duration) -> bool {
    let mut command = node.command(verb, arguments);
    let mut running = command.stdout(Stdio::null()).spawn().expect("it runs");
    thread::sleep(time);
    running.kill().expect("killed");
    !running.wait().expect("gone").success()
}

#[test]
fn foreign_binaries_outlive_killed_upgrades_and_uninstalls() {
    let node = Node::with_list(FLANNEL);
    node.machine.write("opt/cni/bin/rdma-cni", "somebody's\n");
    age(&node, "opt/cni/bin/rdma-cni");
    let before = node.seen();
    let new = node.path("new");
    let from = ["--from", new.to_str().expect("a path")];
    let (mut upgrades, mut uninstalls) = (0, 0);
    for round in 0..40 {
        let time = Duration::from_micros(round * 400);
        node.version("1");
        node.install();
        for version in ["2", "3"] {
            node.version(version);
            upgrades += u32::from(is_killed(&node, "install", &from, time));
        }
        if round % 2 == 1 {
            node.install();
            assert_eq!(node.read("opt/cni/bin/rdma-cni"), plugin("rdma-cni", "3"));
        }
        uninstalls += u32::from(is_killed(&node, "uninstall", &[], time));
        node.uninstall();
        assert!(
            node.seen() == before,
            "round {round}: {:?}",
            node.seen().keys()
        );
    }
    assert!(upgrades > 3, "only {upgrades} upgrades were killed");
    assert!(uninstalls > 3, "only {uninstalls} uninstalls were killed");
}

/// A kill between the writes of record and binary leaves this state.
#[test]
fn a_version_of_ours_that_was_not_replaced_yet_is_ours_still() {
    let node = Node::with_list(FLANNEL);
    node.machine.write("opt/cni/bin/rdma-cni", "somebody's\n");
    let before = node.seen();
    node.install();
    for version in ["2", "3"] {
        node.version(version);
        node.install();
    }
    node.program("rdma-cni", &plugin("rdma-cni", "2"));
    node.uninstall();
    let after = node.seen();
    let binary = node.path("opt/cni/bin/rdma-cni");
    assert_eq!(
        after.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    assert_eq!(after.get(&binary), before.get(&binary));
    // another program removed the installed binary
    node.install();
    fs::remove_file(&binary).expect("removed");
    node.uninstall();
    assert_eq!(node.seen().get(&binary), before.get(&binary));
}

#[test]
fn a_link_in_a_plugins_place_is_reported_and_stays() {
    let node = Node::with_list(FLANNEL);
    let binary = node.path("opt/cni/bin/rdma-cni");
    symlink("/absent", &binary).expect("a link");
    let new = node.path("new");
    let error = refused(&node.run("install", &["--from", new.to_str().expect("a path")]));
    assert!(
        error.contains("is a symbolic link of another installation"),
        "{error}"
    );
    assert_eq!(
        fs::read_link(&binary).expect("a link").to_str(),
        Some("/absent")
    );
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
}
