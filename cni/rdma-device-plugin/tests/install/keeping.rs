// SPDX-License-Identifier: Apache-2.0
//! Tests of the daemon that keeps `rdma-cni` in the chain, and reports the chain's status.

use crate::{FLANNEL, Node, TERWAY};
use integration::{
    Daemon, stopwatch,
    wait::{TIMEOUT, within},
};
use std::{fs, process::Command, thread, time::Duration};

/// Longest promised time until the daemon adds the entry again.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Starts the daemon on this node. `--cni-conf-dir` adds a chain to its configuration.
pub(crate) fn daemon(node: &Node) -> Daemon {
    node.machine.configure(r#"{"mode":"hca"}"#);
    let mut command = command(node);
    command.args(["--log-level", "debug", "--metrics-address", "127.0.0.1:0"]);
    let daemon = Daemon::start(&mut command);
    daemon.wait_for_log("the daemon keeps rdma-cni in the CNI list in");
    daemon
}

pub(crate) fn command(node: &Node) -> Command {
    let mut command = node
        .machine
        .command(env!("CARGO_BIN_EXE_rdma-device-plugin").as_ref());
    command
        .arg("--cni-conf-dir")
        .arg(node.path("etc/cni/net.d"));
    command
}

pub(crate) fn count_of_ours(node: &Node, file: &str) -> usize {
    let text = fs::read_to_string(node.path("etc/cni/net.d").join(file)).unwrap_or_default();
    text.matches("\"rdma-cni\"").count()
}

#[track_caller]
pub(crate) fn becomes(daemon: &Daemon, status: u16, words: &str) {
    let wanted = format!("HTTP/1.1 {status} ");
    let is_so = || {
        let answer = daemon.get("/readyz");
        answer.starts_with(&wanted) && answer.contains(words)
    };
    assert!(
        stopwatch::within(SOON, is_so),
        "{status} {words}: {}",
        daemon.get("/readyz")
    );
}

#[test]
fn a_network_that_comes_later_gets_ours_within_a_second_and_readiness_reports_it() {
    let node = Node::new();
    fs::remove_dir_all(node.path("etc/cni")).expect("removed");
    node.install();
    let daemon = daemon(&node);
    becomes(
        &daemon,
        503,
        "does not call rdma-cni: there is no network configuration yet",
    );
    assert!(
        daemon
            .get("/metrics")
            .contains("rdma_device_plugin_chained 0\n")
    );
    fs::create_dir_all(node.path("etc/cni/net.d")).expect("made");
    node.net("10-flannel.conflist", FLANNEL);
    assert!(stopwatch::within(SOON, || count_of_ours(
        &node,
        "10-flannel.conflist"
    ) == 1));
    becomes(
        &daemon,
        200,
        "the runtime calls rdma-cni for network cbr0 (10-flannel.conflist)",
    );
    assert!(
        daemon
            .get("/metrics")
            .contains("rdma_device_plugin_chained 1\n")
    );
    // the file of another network with a single plugin takes precedence, and is removed again
    node.net("05-terway.conf", TERWAY);
    becomes(
        &daemon,
        200,
        "for network terway (05-terway+rdma-cni.conflist)",
    );
    fs::remove_file(node.path("etc/cni/net.d/05-terway.conf")).expect("removed");
    becomes(&daemon, 200, "(10-flannel.conflist)");
    assert!(
        !node
            .path("etc/cni/net.d/05-terway+rdma-cni.conflist")
            .exists()
    );
    // the daemon does not change a half-written file
    node.net("00-new.conflist", &FLANNEL[..40]);
    becomes(&daemon, 503, "the runtime cannot use 00-new.conflist");
    node.net("00-new.conflist", FLANNEL);
    becomes(&daemon, 200, "(00-new.conflist)");
    drop(daemon);
    node.uninstall();
    assert_eq!(node.read("etc/cni/net.d/00-new.conflist"), FLANNEL);
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
}

/// Waits until the daemon is idle while nothing changes.
#[track_caller]
pub(crate) fn becomes_quiet(daemon: &Daemon) {
    let is_quiet = within(TIMEOUT, || {
        let (threads, before) = (daemon.threads(), daemon.sleeps());
        thread::sleep(Duration::from_secs(1));
        // the context switches of a thread that ended no longer count
        let since = daemon.sleeps().checked_sub(before);
        daemon.threads() == threads && since.is_some_and(|it| it < 10)
    });
    assert!(is_quiet, "it wakes up all the time");
}

#[test]
fn a_list_of_ours_counts_while_its_single_configuration_is_half_written() {
    let node = Node::new();
    node.net("10-terway.conf", TERWAY);
    node.install();
    let daemon = daemon(&node);
    let called = "for network terway (10-terway+rdma-cni.conflist)";
    becomes(&daemon, 200, called);
    node.net("10-terway.conf", &TERWAY[..20]);
    // the runtime still uses the list
    thread::sleep(SOON);
    becomes(&daemon, 200, called);
    // the daemon does not read an unfinished file again and again
    becomes_quiet(&daemon);
    node.net("10-terway.conf", &TERWAY.replace("0.4.0", "0.3.1"));
    let follows = || {
        node.read("etc/cni/net.d/10-terway+rdma-cni.conflist")
            .contains("0.3.1")
    };
    assert!(stopwatch::within(SOON, follows));
}

#[test]
fn nothing_is_written_where_nothing_is_installed_or_not_any_more() {
    let node = Node::with_list(FLANNEL);
    let daemon = daemon(&node);
    becomes(&daemon, 503, "the plugins are not installed on this node");
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    becomes_quiet(&daemon);
    assert!(!node.path("state/install.lock").exists());
    node.install();
    becomes(&daemon, 200, "(10-flannel.conflist)");
    becomes_quiet(&daemon);
    node.net("10-flannel.conflist", FLANNEL);
    assert!(stopwatch::within(SOON, || count_of_ours(
        &node,
        "10-flannel.conflist"
    ) == 1));
    node.uninstall();
    becomes(&daemon, 503, "the plugins are not installed on this node");
    node.net("10-flannel.conflist", FLANNEL);
    let is_back = stopwatch::within(SOON, || count_of_ours(&node, "10-flannel.conflist") > 0);
    assert!(!is_back, "put in although it was uninstalled");
    becomes_quiet(&daemon);
    for file in ["state/install.json", "state/install.lock"] {
        assert!(!node.path(file).exists(), "the daemon made {file} again");
    }
}

#[test]
fn a_check_of_the_configuration_reports_it_and_changes_nothing() {
    let node = Node::with_list(FLANNEL);
    node.machine.configure(r#"{"mode":"hca"}"#);
    let check = || {
        let output = command(&node)
            .arg("--check-config")
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = check();
    assert!(
        text.contains("does not call rdma-cni: it is not in 10-flannel.conflist\n"),
        "{text}"
    );
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    node.install();
    let text = check();
    assert!(
        text.contains("the runtime calls rdma-cni for network cbr0"),
        "{text}"
    );
}

#[test]
fn without_a_chain_it_is_none_of_the_daemons_business() {
    let node = Node::with_list(FLANNEL);
    node.machine.configure(r#"{"mode":"hca"}"#);
    let mut command = node
        .machine
        .command(env!("CARGO_BIN_EXE_rdma-device-plugin").as_ref());
    command.args(["--metrics-address", "127.0.0.1:0"]);
    let daemon = Daemon::start(&mut command);
    becomes(
        &daemon,
        200,
        "the daemon does not keep rdma-cni in the chain: its configuration has no chain",
    );
    assert!(!daemon.get("/metrics").contains("chained"));
    // this configuration enables the chain
    node.install();
    node.net("10-flannel.conflist", FLANNEL);
    let conf = format!(
        "{{\"resources\":[{{\"name\":\"rdma/hca\",\"kind\":\"shared\"}}],\"chain\":{{\"confDir\":{:?}}}}}",
        node.path("etc/cni/net.d")
    );
    node.machine.configure(&conf);
    // the new chain takes effect with the roll-out, on one node after the other
    daemon.wait_for_log(
        "chain has changed in the file: the change takes effect when this daemon restarts",
    );
    becomes(&daemon, 200, "chain is not configured");
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    drop(daemon);
    let daemon = Daemon::start(&mut command);
    becomes(&daemon, 200, "(10-flannel.conflist)");
    assert_eq!(count_of_ours(&node, "10-flannel.conflist"), 1);
}

#[test]
fn remains_of_a_disabled_chain_are_reported_until_they_are_removed() {
    let node = Node::with_list(FLANNEL);
    node.install();
    drop(daemon(&node));
    assert_eq!(count_of_ours(&node, "10-flannel.conflist"), 1);
    node.machine.configure(r#"{"mode":"hca"}"#);
    let mut command = node
        .machine
        .command(env!("CARGO_BIN_EXE_rdma-device-plugin").as_ref());
    command.args(["--metrics-address", "127.0.0.1:0"]);
    let off = Daemon::start(&mut command);
    let left = "chain is not configured, but install added rdma-cni to 10-flannel.conflist, and uninstall has not removed it";
    off.wait_for_log(left);
    becomes(&off, 200, left);
    // the daemon does not remove the entry, although its configuration has no chain
    assert_eq!(count_of_ours(&node, "10-flannel.conflist"), 1);
    assert!(!off.get("/metrics").contains("chained"));
    becomes_quiet(&off);
    node.uninstall();
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
    becomes(
        &off,
        200,
        "the daemon does not keep rdma-cni in the chain: its configuration has no chain\n",
    );
    node.install();
    becomes(&off, 200, left);
}
