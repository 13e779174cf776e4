// SPDX-License-Identifier: Apache-2.0
//! Tests of the entry of `rdma-cni` in the list while daemons with different `chain` settings follow each other.

use crate::{FLANNEL, Node, text_of};
use integration::{
    Daemon,
    wait::{TIMEOUT, within},
};
use serde_json::Value;
use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, thread, time::Duration};

const LIST: &str = "etc/cni/net.d/10-flannel.conflist";

/// Time for two turns of a reconciler on a busy machine.
const A_WHILE: Duration = Duration::from_millis(700);

/// Writes a configuration whose entry has the field `mtu`.
fn configuration(node: &Node, mtu: u32) -> PathBuf {
    let conf = format!(
        r#"{{"resources":[{{"name":"rdma/hca","kind":"shared"}}],
            "chain":{{"confDir":{:?},"plugin":{{"mtu":{mtu}}}}}}}"#,
        node.path("etc/cni/net.d")
    );
    node.machine.write(&format!("etc/{mtu}.json"), &conf);
    node.path(&format!("etc/{mtu}.json"))
}

/// Runs `install` as the init container of a new pod.
#[track_caller]
fn install(node: &Node, mtu: u32) {
    let mut command = node.command("install", &["--init-container"]);
    command.arg("--from").arg(node.path("new"));
    command.arg("--config").arg(configuration(node, mtu));
    text_of(&command.output().expect("it runs"));
}

fn daemon(node: &Node, mtu: u32) -> Daemon {
    let program = env!("CARGO_BIN_EXE_rdma-device-plugin");
    let mut command = std::process::Command::new(program);
    node.machine.arguments(&mut command);
    command.arg("--config").arg(configuration(node, mtu));
    command.args(["--log-level", "debug", "--metrics-address", "127.0.0.1:0"]);
    let daemon = Daemon::start(&mut command);
    daemon.wait_for_log("the runtime calls rdma-cni for network cbr0");
    daemon
}

fn mtu(node: &Node) -> Option<u64> {
    let text = fs::read_to_string(node.path(LIST)).ok()?;
    let list: Value = serde_json::from_str(&text).ok()?;
    let plugins = list["plugins"].as_array()?.iter();
    plugins.last()?["mtu"].as_u64()
}

/// The init container of the new pod has already installed its binaries. They may refuse the entry of the old daemon,
/// and pods start meanwhile.
#[test]
fn a_newer_installs_entry_stays_until_another_daemon_leads() {
    let node = Node::with_list(FLANNEL);
    install(&node, 1500);
    let old = daemon(&node, 1500);
    install(&node, 4200);
    assert_eq!(mtu(&node), Some(4200));
    let written = fs::metadata(node.path(LIST)).expect("the list").ino();
    thread::sleep(A_WHILE);
    assert_eq!(mtu(&node), Some(4200));
    old.wait_for_log("another entry of rdma-cni than this daemon's configuration has");
    let now = fs::metadata(node.path(LIST)).expect("the list").ino();
    assert_eq!(now, written, "it was written meanwhile");
    // the list of a restarted network program gets the newest entry, too
    node.net("10-flannel.conflist", FLANNEL);
    assert!(within(TIMEOUT, || mtu(&node) == Some(4200)));
    let new = daemon(&node, 4200);
    thread::sleep(A_WHILE);
    assert_eq!(mtu(&node), Some(4200));
    assert_eq!(
        new.count("another entry of rdma-cni than this daemon's configuration has"),
        0
    );
    // the new daemon has ended, so the old daemon leads again and writes its entry
    drop(new);
    assert!(within(TIMEOUT, || mtu(&node) == Some(1500)));
}

/// The init container adds its entry to another list than the daemon.
#[test]
fn an_install_in_another_file_is_the_newest_one_too() {
    let node = Node::with_list(FLANNEL);
    install(&node, 1500);
    let old = daemon(&node, 1500);
    // the runtime uses another network from now on, and an init container runs at the same time
    node.net("05-cilium.conflist", &FLANNEL.replace("cbr0", "cilium"));
    install(&node, 4200);
    let of_ours = || {
        let text = fs::read_to_string(node.path("etc/cni/net.d/05-cilium.conflist"));
        text.unwrap_or_default().contains("\"mtu\": 4200")
    };
    thread::sleep(A_WHILE);
    assert!(of_ours());
    old.wait_for_log("another entry of rdma-cni than this daemon's configuration has");
}
