// SPDX-License-Identifier: Apache-2.0
//! Tests of a node without kubelet, on which podman or nerdctl makes containers: the configuration names the devices
//! and the network.

use crate::{FLANNEL, Node, SOCKET, refused, text_of};
use integration::Netns;
use std::{
    fs,
    process::{Command, Output},
};

/// Returns the relevant part of the list that `podman network create` or `nerdctl network create` writes.
fn list(network: &str) -> String {
    FLANNEL.replace("cbr0", network)
}

/// Returns a node without kubelet that has the networks `podman`, `rails` and `bridge`.
fn node() -> Node {
    let node = Node::new();
    fs::remove_file(node.path(SOCKET)).expect("removed");
    node.net("87-podman-bridge.conflist", &list("podman"));
    node.net("nerdctl-bridge.conflist", &list("bridge"));
    node.net("rails.conflist", &list("rails"));
    node
}

fn install(node: &Node, configuration: &str) -> Output {
    node.machine.configure(configuration);
    let mut command = node.command("install", &["--from"]);
    command.arg(node.path("new"));
    command.arg("--config").arg(node.path("etc/config.json"));
    command.output().expect("it runs")
}

fn ours(node: &Node, file: &str) -> bool {
    node.read(&format!("etc/cni/net.d/{file}"))
        .contains("rdma-cni")
}

const DEVICES: &str = r#""plugin": {"devices": [{"netdev": "ens1"}]}"#;

/// With the default entry, `rdma-cni` would query kubelet, and every container of the network would fail.
#[test]
fn install_names_the_way_without_kubelet() {
    let node = node();
    let before = node.seen();
    let mut command = node.command("install", &["--from"]);
    let error = refused(&command.arg(node.path("new")).output().expect("it runs"));
    for words in [
        "chain.plugin.devices",
        "--config",
        "docs/install.md#without-kubelet",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(node.seen(), before);
}

#[test]
fn chain_is_all_that_install_needs() {
    let node = node();
    let text = text_of(&install(&node, &format!(r#"{{"chain": {{{DEVICES}}}}}"#)));
    assert!(
        text.contains("the runtime calls rdma-cni for network podman"),
        "{text}"
    );
    node.uninstall();
    // the daemon cannot offer a resource with this configuration
    let mut daemon = node
        .machine
        .command(env!("CARGO_BIN_EXE_rdma-device-plugin").as_ref());
    let error = refused(&daemon.arg("--check-config").output().expect("it runs"));
    assert!(
        error.contains("only rdma-device-plugin install accepts chain alone"),
        "{error}"
    );
    // `install` nevertheless checks the configuration
    for (wrong, words) in [
        (r#"{"chain": {"plugins": {}}}"#, "chain.plugins: not known"),
        (
            r#"{"chain": {"plugin": {"devices": []}}}"#,
            "chain.plugin: devices",
        ),
        (r#"{"chain": {}, "erdam": {}}"#, "erdam: not known"),
    ] {
        let error = refused(&install(&node, wrong));
        assert!(error.contains(words), "{wrong}: {error}");
    }
}

#[test]
fn a_network_of_podman_or_nerdctl_is_chosen_by_its_name() {
    for (runtime, network, file) in [
        ("podman", None, "87-podman-bridge.conflist"),
        ("podman", Some("rails"), "rails.conflist"),
        ("nerdctl", None, "nerdctl-bridge.conflist"),
        ("nerdctl", Some("rails"), "rails.conflist"),
    ] {
        let node = node();
        // these runtimes ignore a broken file, and so does `install`
        node.net("05-broken.conflist", "{");
        let before = node.seen();
        let named = network.map_or(String::new(), |it| format!(r#""network": "{it}","#));
        let conf = format!(r#"{{"chain": {{"runtime": "{runtime}", {named} {DEVICES}}}}}"#);
        let text = text_of(&install(&node, &conf));
        assert!(text.contains(&format!("({file})")), "{text}");
        for other in [
            "87-podman-bridge.conflist",
            "nerdctl-bridge.conflist",
            "rails.conflist",
        ] {
            assert_eq!(
                ours(&node, other),
                other == file,
                "{runtime} {network:?}: {other}"
            );
        }
        node.uninstall();
        for other in [
            "87-podman-bridge.conflist",
            "nerdctl-bridge.conflist",
            "rails.conflist",
        ] {
            let path = node.path("etc/cni/net.d").join(other);
            assert_eq!(node.seen()[&path], before[&path], "{other}");
        }
    }
}

/// Each `install` adds the entry to one network, and `uninstall` removes it from all networks.
#[test]
fn several_networks_have_the_entry() {
    let node = node();
    let before = node.seen();
    let files = ["87-podman-bridge.conflist", "rails.conflist"];
    for network in ["podman", "rails", "podman"] {
        let conf =
            format!(r#"{{"chain": {{"runtime": "podman", "network": "{network}", {DEVICES}}}}}"#);
        let text = text_of(&install(&node, &conf));
        assert!(text.contains(&format!("for network {network}")), "{text}");
    }
    assert!(files.iter().all(|it| ours(&node, it)));
    node.uninstall();
    for file in files {
        let path = node.path("etc/cni/net.d").join(file);
        assert_eq!(node.seen()[&path], before[&path], "{file}");
    }
}

#[test]
fn a_chain_that_podman_cannot_use_is_refused() {
    let node = node();
    let conf = format!(r#"{{"chain": {{"runtime": "podman", "network": "rail", {DEVICES}}}}}"#);
    let error = refused(&install(&node, &conf));
    for words in [
        r#"no network in the directory is named "rail""#,
        "podman, bridge, rails",
        "podman network create",
    ] {
        assert!(error.contains(words), "{error}");
    }
    // no component allocates devices on this node
    let error = refused(&install(&node, r#"{"chain": {"runtime": "podman"}}"#));
    assert!(
        error.contains("chain.plugin: must name the devices"),
        "{error}"
    );
}

/// `doctor` examines the network, the directories and the programs that `install` recorded.
#[test]
fn doctor_examines_the_installation() {
    let node = node();
    let conf = format!(r#"{{"chain": {{"runtime": "podman", "network": "rails", {DEVICES}}}}}"#);
    text_of(&install(&node, &conf));
    let host = Netns::new("without-kubelet");
    let doctor = |more: &[&str]| {
        let mut command: Command = host.command(env!("CARGO_BIN_EXE_rdma-device-plugin"));
        command
            .arg("doctor")
            .arg("--state-dir")
            .arg(node.path("state"));
        let output = command.args(more).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = doctor(&[]);
    let calls = "rails.conflist (network rails) calls rdma-cni, plugin 3 of 3";
    assert!(text.contains(calls), "{text}");
    for words in ["kubelet's pod-resources", "/opt/cni/bin/flannel"] {
        let own = node.path("opt/cni/bin/flannel");
        let text = text.replace(own.to_str().expect("UTF-8"), "");
        assert!(!text.contains(words), "{words:?} in {text}");
    }
    let text = doctor(&["--network", "podman"]);
    assert!(text.contains("does not call rdma-cni"), "{text}");
    let text = doctor(&["--network", "nowhere"]);
    assert!(text.contains("defines the network nowhere"), "{text}");
}
