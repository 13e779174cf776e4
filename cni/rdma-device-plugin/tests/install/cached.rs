// SPDX-License-Identifier: Apache-2.0
//! Tests of `uninstall` with CRI-O and Multus. At DEL, CRI-O calls the plugins of the list that libcni cached at ADD.
//! Multus, with any runtime, calls the plugins of its delegates at ADD. Both therefore call `rdma-cni` at the end of a
//! pod without devices too, although no list has the entry any more.
//!
//! `cnitool add` wrote two of the files in `cached/`, with two versions of libcni, for a list with `bridge` and
//! `rdma-cni`, with the namespace's path and the arguments of CRI-O. Multus' thin plugin wrote the third file, for the
//! same list as its delegate, with the arguments of containerd.

use crate::{FLANNEL, Node, plugin, refused, text_of};
use base64::{Engine, prelude::BASE64_STANDARD};
use integration::Netns;
use rdma_resources::{
    LimitedContainers, RdmaLimits,
    limited::{CGROUPS, FORMAT, LimitedContainer, boot_id},
};
use serde_json::Value;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

/// A pod's file in a cache.
#[derive(Clone, Copy)]
struct Cached {
    /// The node's runtime.
    runtime: &'static str,
    /// The program that calls the plugins at DEL.
    caller: &'static str,
    /// Directory of the cache.
    cache: &'static str,
    text: &'static str,
}

/// File of libcni 1.3, with the path of the namespace.
const LIBCNI: Cached = Cached {
    runtime: "crio",
    caller: "CRI-O",
    cache: "results",
    text: include_str!("cached/libcni-1.3.0.json"),
};

/// File of libcni 1.1, with the path in the result only.
const OLD_LIBCNI: Cached = Cached {
    text: include_str!("cached/libcni-1.1.2.json"),
    ..LIBCNI
};

const MULTUS: Cached = Cached {
    runtime: "containerd",
    caller: "Multus",
    cache: "multus/results",
    text: include_str!("cached/multus-4.2.3.json"),
};

const MULTUS_WITH_CRIO: Cached = Cached {
    runtime: "crio",
    ..MULTUS
};

const ALL: [Cached; 4] = [LIBCNI, OLD_LIBCNI, MULTUS, MULTUS_WITH_CRIO];

/// Path of the namespace in the files.
const NETNS: &str = "/var/run/netns/7c9e6679-7425-40de-944b-e07fc1f90ae7";

impl Cached {
    /// Returns the path of the file on the node.
    fn file(&self) -> String {
        format!("{}/pods-cnitool-2b8dcfd6c0cca82d13be-eth0", self.cache)
    }

    /// Writes the file for a pod with the namespace `netns`, with `text`.
    fn add_as(&self, node: &Node, text: &str, netns: &Path) {
        fs::create_dir_all(node.path(self.cache)).expect("made");
        let netns = netns.to_str().expect("a path");
        node.machine
            .write(&self.file(), &text.replace(NETNS, netns));
    }

    fn add(&self, node: &Node, netns: &Path) {
        self.add_as(node, self.text, netns);
    }

    /// Removes the file, as DEL of the pod does.
    fn end(&self, node: &Node) {
        fs::remove_file(node.path(&self.file())).expect("DEL of the pod");
    }
}

/// Returns a node on which `install` has run for `runtime`.
#[track_caller]
fn installed(runtime: &str) -> Node {
    let node = Node::with_list(FLANNEL);
    let conf =
        format!("resources: [{{name: rdma/hca, kind: shared}}]\nchain: {{runtime: {runtime}}}\n");
    node.machine.write("chain.yaml", &conf);
    let path = |below| node.path(below).to_str().expect("a path").to_owned();
    let (new, conf) = (path("new"), path("chain.yaml"));
    text_of(&node.run("install", &["--from", &new, "--config", &conf]));
    for cache in ["results", "multus"] {
        fs::create_dir(node.path(cache)).expect("made");
    }
    node
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
    for cached in ALL {
        let node = installed(cached.runtime);
        let netns = Netns::new("cached");
        cached.add(&node, netns.path());
        for _ in 0..2 {
            let output = node.uninstall();
            let why = format!(
                "the binaries stay: {} calls them when it ends these pods, according to {:?}: ml/web-0; run \
                 uninstall again when the pods have ended\n",
                cached.caller,
                node.path(cached.cache)
            );
            assert!(output.ends_with(&why), "{output}");
            assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), FLANNEL);
            has_binaries(&node, true);
        }
        cached.end(&node);
        node.uninstall();
        has_binaries(&node, false);
        assert!(!node.path("state/install.json").exists());
    }
}

/// A reboot ends the namespaces. libcni's files remain if CRI-O has lost its own state, and Multus' files if DEL of a
/// delegate failed.
#[test]
fn files_of_ended_sandboxes_are_skipped() {
    for cached in ALL {
        let node = installed(cached.runtime);
        let netns = Netns::new("cached");
        cached.add(&node, netns.path());
        netns.die();
        node.uninstall();
        has_binaries(&node, false);
    }
}

/// A file without the namespace's path, and a path in a directory that is not visible here, prove no end.
#[test]
fn sandboxes_may_live_where_nothing_shows_their_end() {
    let node = installed("crio");
    let text = OLD_LIBCNI.text;
    for text in [
        text.replace("\"sandbox\"", "\"elsewhere\""),
        text.replace("/var/run/netns/", "/not-mounted/"),
    ] {
        node.machine.write(&OLD_LIBCNI.file(), &text);
        assert!(node.uninstall().contains("ml/web-0"));
        has_binaries(&node, true);
    }
}

/// The program of the type `rdma` is not one of the plugins.
#[test]
fn only_lists_with_one_of_the_plugins_count() {
    let netns = Netns::new("cached");
    for cached in [LIBCNI, MULTUS] {
        let without = with_list(cached.text, "rdma-cni", "tuning");
        let with_another = with_list(cached.text, "rdma-cni", "rdma");
        let with_ipam = with_list(&without, "host-local", "rdma-ipam");
        for (text, expected) in [(without, false), (with_another, false), (with_ipam, true)] {
            let node = installed(cached.runtime);
            cached.add_as(&node, &text, netns.path());
            // a file that is not libcni's
            node.machine.write(&format!("{}/other", cached.cache), "{");
            node.uninstall();
            has_binaries(&node, expected);
        }
    }
}

/// At DEL, containerd calls the plugins that the list has now.
#[test]
fn containerd_needs_no_binaries_for_its_cache() {
    let node = installed("containerd");
    let netns = Netns::new("cached");
    LIBCNI.add(&node, netns.path());
    node.uninstall();
    has_binaries(&node, false);
}

#[test]
fn uninstall_waits_for_the_last_pod() {
    let node = installed("crio");
    let netns = Netns::new("cached");
    for cached in [LIBCNI, MULTUS] {
        cached.add(&node, netns.path());
    }
    let mut uninstall = node.staying();
    for cached in [LIBCNI, MULTUS] {
        let start = format!("the binaries stay: {} calls", cached.caller);
        uninstall.wait_for_log(|line| line.starts_with(&start) && line.contains("ml/web-0"));
        has_binaries(&node, true);
        cached.end(&node);
    }
    uninstall.finishes();
    has_binaries(&node, false);
    uninstall.end();
}

/// In a container, a missing directory is not mounted. On a node, no pod has started yet, or Multus is not there.
#[test]
fn a_cache_that_is_not_mounted_proves_nothing() {
    for (runtime, directory, flag) in [
        ("crio", "results", "--cni-cache-dir"),
        ("containerd", "multus", "--multus-dir"),
    ] {
        let node = installed(runtime);
        fs::remove_dir(node.path(directory)).expect("removed");
        let error = refused(&node.uninstall_in_container());
        let why = format!("{:?} is not mounted", node.path(directory));
        assert!(
            error.contains(&why) && error.ends_with(&format!("{flag}\n")),
            "{error}"
        );
        has_binaries(&node, true);
        node.uninstall();
        has_binaries(&node, false);
    }
}

/// The container has mounts of the state directory and of the directory above the cache.
#[test]
fn a_node_without_the_directory_of_a_cache_has_no_such_pods() {
    for (runtime, directory) in [("crio", "results"), ("containerd", "multus")] {
        let node = installed(runtime);
        fs::remove_dir(node.path(directory)).expect("removed");
        let mounts = ["", "state"].map(|below| (below, node.path(below)));
        let mounts = mounts.each_ref().map(|(below, onto)| (*below, &**onto));
        text_of(&node.uninstall_with_mounts(&mounts));
        has_binaries(&node, false);
    }
}

/// An operator copied the same plugins to the node before `install`. Other plugins are restored by `uninstall`, but may
/// not understand the cached list.
#[test]
fn pods_that_keep_their_plugins_are_not_awaited() {
    let netns = Netns::new("cached");
    for (text, is_awaited) in [
        (plugin("rdma-cni", "1"), false),
        ("#!/bin/sh\n".to_owned(), true),
    ] {
        let node = Node::with_list(FLANNEL);
        node.program("rdma-cni", &text);
        node.install();
        MULTUS.add(&node, netns.path());
        assert_eq!(
            node.uninstall().contains("the binaries stay: Multus"),
            is_awaited
        );
        MULTUS.end(&node);
        node.uninstall();
        assert_eq!(node.read("opt/cni/bin/rdma-cni"), text);
        assert!(!node.path("state/install.json").exists());
    }
}

#[test]
fn an_unreadable_file_is_named() {
    let node = installed("crio");
    let netns = Netns::new("cached");
    LIBCNI.add(&node, netns.path());
    let file = node.path(&LIBCNI.file());
    fs::set_permissions(&file, Permissions::from_mode(0o000)).expect("a mode");
    let program = node.command("uninstall", &[]);
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-all");
    command.arg(program.get_program()).args(program.get_args());
    let error = refused(&command.output().expect("setpriv"));
    let why = format!("cannot read {file:?}: Permission denied");
    assert!(error.contains(&why), "{error}");
    has_binaries(&node, true);
}

/// Limits of the device `mlx5_0` in the kernel's format.
const NONE: &str = "mlx5_0 hca_handle=max hca_object=max \n";
const LIMITED: &str = "mlx5_0 hca_handle=max hca_object=3 \n";

/// Makes a pod with a limited container. Files below `cgroup` stand in for the kernel's rdma controller.
fn limit_a_pod(node: &Node) {
    fs::create_dir_all(node.path("cgroup/pods/a/c1")).expect("made");
    for file in [
        "cgroup.controllers",
        "cgroup.subtree_control",
        "pods/cgroup.subtree_control",
    ] {
        node.machine.write(&format!("cgroup/{file}"), "rdma\n");
    }
    node.machine.write("cgroup/pods/a/rdma.max", NONE);
    let events = "populated 1\nfrozen 0\n";
    node.machine.write("cgroup/pods/a/c1/cgroup.events", events);
    let container = LimitedContainer {
        format: FORMAT,
        boot_id: boot_id().expect("a boot"),
        namespace: "ml".into(),
        pod: "host-network-0".into(),
        cgroup: "pods/a/c1".into(),
        pod_cgroup: "pods/a".into(),
        limits: RdmaLimits {
            handles: None,
            objects: Some(3),
        },
    };
    let containers = LimitedContainers::new(&node.path("state"), &node.path("cgroup"));
    containers.limit("c1", &container).expect("limited");
    node.machine.write("cgroup/pods/a/rdma.max", LIMITED);
}

/// Runs `uninstall` with the node's cgroups.
fn uninstall_with_cgroups(node: &Node) -> Output {
    node.uninstall_with_mounts(&[("cgroup", Path::new(CGROUPS))])
}

#[test]
fn limits_are_lifted_before_the_pods_end() {
    let node = installed("crio");
    let netns = Netns::new("cached");
    LIBCNI.add(&node, netns.path());
    limit_a_pod(&node);
    let output = text_of(&uninstall_with_cgroups(&node));
    assert!(
        output.contains("the binaries stay: CRI-O calls"),
        "{output}"
    );
    let max = node.read("cgroup/pods/a/rdma.max");
    assert_eq!(max, format!("{LIMITED}mlx5_0 hca_object=max"));
    assert!(!node.path("state/limited/c1.json").exists());
}

#[test]
fn limits_that_cannot_be_lifted_do_not_hide_why_the_binaries_stay() {
    let node = installed("crio");
    let netns = Netns::new("cached");
    LIBCNI.add(&node, netns.path());
    limit_a_pod(&node);
    // the container's own cgroup is mounted instead of the host's hierarchy
    node.machine.write("cgroup/cgroup.type", "domain\n");
    let (lift, stay) = (
        "mount the hierarchy there",
        "the binaries stay: CRI-O calls",
    );
    let error = refused(&uninstall_with_cgroups(&node));
    assert!(error.contains(lift) && error.contains(stay), "{error}");
    LIBCNI.end(&node);
    let error = refused(&uninstall_with_cgroups(&node));
    assert!(error.contains(lift) && !error.contains(stay), "{error}");
    has_binaries(&node, true);
    fs::remove_file(node.path("cgroup/cgroup.type")).expect("removed");
    text_of(&uninstall_with_cgroups(&node));
    has_binaries(&node, false);
}
