// SPDX-License-Identifier: Apache-2.0
//! Tests of `uninstall` with CRI-O. At DEL, CRI-O calls the plugins of the list that libcni cached at ADD. CRI-O
//! therefore calls `rdma-cni` at the end of a pod without devices too, although no list has the entry any more.
//!
//! The files in `cached/` are libcni's, of two versions. `cnitool add` wrote them for a list with `bridge` and
//! `rdma-cni`, with the namespace's path and the arguments of CRI-O.

use crate::{FLANNEL, Node, refused, said};
use base64::{Engine, prelude::BASE64_STANDARD};
use integration::Netns;
use serde_json::Value;
use std::{fs, path::Path};

/// Files of libcni 1.3, with the path of the namespace, and of libcni 1.1, with the path in the result only.
const CACHED: [&str; 2] = [
    include_str!("cached/libcni-1.3.0.json"),
    include_str!("cached/libcni-1.1.2.json"),
];

/// Path of the namespace in the files.
const NETNS: &str = "/var/run/netns/7c9e6679-7425-40de-944b-e07fc1f90ae7";

/// Name of the file in libcni's cache.
const FILE: &str = "results/pods-cnitool-2b8dcfd6c0cca82d13be-eth0";

/// Returns a node on which `install` has run for `runtime`.
#[track_caller]
fn installed(runtime: &str) -> Node {
    let node = Node::with_list(FLANNEL);
    let conf =
        format!("resources: [{{name: rdma/hca, kind: shared}}]\nchain: {{runtime: {runtime}}}\n");
    node.machine.write("chain.yaml", &conf);
    let path = |below| node.path(below).to_str().expect("a path").to_owned();
    let (new, conf) = (path("new"), path("chain.yaml"));
    said(&node.run("install", &["--from", &new, "--config", &conf]));
    fs::create_dir(node.path("results")).expect("made");
    node
}

/// Writes `text`, a file of libcni's cache, for a pod with the namespace `netns`.
fn add(node: &Node, text: &str, netns: &Path) {
    let netns = netns.to_str().expect("a path");
    node.machine.write(FILE, &text.replace(NETNS, netns));
}

/// Replaces `from` in the cached list of `text`.
fn with_list(text: &str, from: &str, to: &str) -> String {
    let mut cached: Value = serde_json::from_str(text).expect("JSON");
    let list = BASE64_STANDARD.decode(cached["config"].as_str().expect("a list"));
    let list = String::from_utf8(list.expect("base64")).expect("text");
    assert!(list.contains(from), "{list}");
    cached["config"] = BASE64_STANDARD.encode(list.replace(from, to)).into();
    cached.to_string()
}

#[track_caller]
fn has_binaries(node: &Node, expected: bool) {
    for name in ["rdma-cni", "rdma-ipam"] {
        let path = node.path("opt/cni/bin").join(name);
        assert_eq!(path.exists(), expected, "{path:?}");
    }
    let is_complete = node.run("uninstall", &["--check"]).status.success();
    assert_eq!(is_complete, !expected);
}

#[test]
fn the_binaries_stay_until_the_pods_have_ended() {
    for text in CACHED {
        let node = installed("crio");
        let netns = Netns::new("cached");
        add(&node, text, netns.path());
        for _ in 0..2 {
            let told = node.uninstall();
            let why = format!(
                "the binaries stay: CRI-O calls them when it ends these pods, according to {:?}: ml/web-0; run \
                 uninstall again when the pods have ended\n",
                node.path("results")
            );
            assert!(told.ends_with(&why), "{told}");
            assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
            has_binaries(&node, true);
        }
        fs::remove_file(node.path(FILE)).expect("DEL of the pod");
        node.uninstall();
        has_binaries(&node, false);
        assert!(!node.path("state/install.json").exists());
    }
}

/// A reboot ends the namespaces. libcni's files remain if CRI-O has lost its own state.
#[test]
fn files_of_ended_sandboxes_are_skipped() {
    for text in CACHED {
        let node = installed("crio");
        let netns = Netns::new("cached");
        add(&node, text, netns.path());
        netns.die();
        node.uninstall();
        has_binaries(&node, false);
    }
}

/// A file without the namespace's path, and a path in a directory that is not visible here, prove no end.
#[test]
fn sandboxes_may_live_where_nothing_shows_their_end() {
    let node = installed("crio");
    let [_, text] = CACHED;
    for text in [
        text.replace("\"sandbox\"", "\"elsewhere\""),
        text.replace("/var/run/netns/", "/not-mounted/"),
    ] {
        node.machine.write(FILE, &text);
        assert!(node.uninstall().contains("ml/web-0"));
        has_binaries(&node, true);
    }
}

#[test]
fn only_lists_with_one_of_the_plugins_count() {
    let [text, _] = CACHED;
    let netns = Netns::new("cached");
    let without = with_list(text, "rdma-cni", "tuning");
    let with_ipam = with_list(&without, "host-local", "rdma-ipam");
    for (text, expected) in [(without, false), (with_ipam, true)] {
        let node = installed("crio");
        add(&node, &text, netns.path());
        // a file that is not libcni's
        node.machine.write("results/other", "{");
        node.uninstall();
        has_binaries(&node, expected);
    }
}

/// At DEL, containerd calls the plugins that the list has now.
#[test]
fn containerd_needs_no_binaries_for_its_cache() {
    let [text, _] = CACHED;
    let node = installed("containerd");
    let netns = Netns::new("cached");
    add(&node, text, netns.path());
    node.uninstall();
    has_binaries(&node, false);
}

#[test]
fn uninstall_waits_for_the_last_pod() {
    let [text, _] = CACHED;
    let node = installed("crio");
    let netns = Netns::new("cached");
    add(&node, text, netns.path());
    let mut uninstall = node.staying();
    uninstall.says(|line| line.starts_with("the binaries stay: ") && line.contains("ml/web-0"));
    has_binaries(&node, true);
    fs::remove_file(node.path(FILE)).expect("DEL of the pod");
    uninstall.finishes();
    has_binaries(&node, false);
    uninstall.end();
}

/// In a container, a missing cache is not mounted. On a node, no pod has started yet.
#[test]
fn a_cache_that_is_not_mounted_proves_nothing() {
    let node = installed("crio");
    fs::remove_dir(node.path("results")).expect("removed");
    let error = refused(&node.uninstall_in_container());
    let why = format!("{:?} is not mounted", node.path("results"));
    assert!(error.contains(&why), "{error}");
    has_binaries(&node, true);
    node.uninstall();
    has_binaries(&node, false);
}
