// SPDX-License-Identifier: Apache-2.0
//! Tests of containers with a device that `rdma-cni` attaches. The daemon refuses their start if the runtime used a CNI
//! list without `rdma-cni` for their pod's network.

use crate::{FIRST, HCA, Running, SECOND, ids, program};
use integration::{
    CniCache, Machine,
    kubelet::{
        DeviceManager,
        pod_resources::{PodResourcesServer, pod},
    },
    wait,
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command, time::Duration};
use tonic::Code;

/// A node whose network is made by flannel.
struct Chained {
    node: Running,
    pods: PodResourcesServer,
    cache: CniCache,
}

impl Chained {
    /// Returns a node with a daemon that manages the chain.
    #[track_caller]
    fn new() -> Self {
        Self::placed("")
    }

    /// Returns the same node, with the fields `more` in the configuration's `chain`.
    #[track_caller]
    fn placed(more: &str) -> Self {
        let machine = Machine::with(&[FIRST, SECOND]);
        let at = |below: &str| machine.path(below);
        let configuration = format!(
            r#"{{"resources":[
                {{"name":"rdma/hca","kind":"shared","count":8,"devices":[{{"rdma":"mlx5_0"}}]}},
                {{"name":"rdma/nic","kind":"exclusive","devices":[{{"rdma":"mlx5_1"}}]}}
            ],"chain":{{"confDir":{:?},"plugin":{{"resources":["rdma/hca"]}}{more}}}}}"#,
            at("net.d")
        );
        machine.configure(&configuration);
        for directory in ["net.d", "bin", "new"] {
            fs::create_dir(at(directory)).expect("a directory");
        }
        for plugin in ["rdma-cni", "rdma-ipam"] {
            let speaks = "#!/bin/sh\necho '{\"supportedVersions\":[\"1.0.0\"]}'\n";
            machine.write(&format!("new/{plugin}"), speaks);
        }
        machine.write("bin/flannel", "the network's");
        let path = machine.path("bin/flannel");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
        let list = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;
        machine.write("net.d/10-flannel.conflist", list);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let socket = machine.path("kubelet/pod-resources/kubelet.sock");
        let pods = PodResourcesServer::start(&socket);
        let cache = CniCache::new(&machine.path("results"));
        let node = Running {
            daemon: program::start(&machine),
            kubelet,
            machine,
        };
        let node = node.listed("rdma/hca", 8).listed("rdma/nic", 1);
        Self { node, pods, cache }
    }

    #[track_caller]
    fn installed(self) -> Self {
        let path = |below: &str| self.node.machine.path(below);
        run(
            "install",
            &[
                ("--cni-bin-dir", &path("bin")),
                ("--config", &path("etc/config.json")),
                ("--from", &path("new")),
                ("--state-dir", &path("state")),
                ("--kubelet-dir", &path("kubelet")),
            ],
        );
        self.node
            .daemon
            .wait_for_log("the runtime calls rdma-cni for network cbr0");
        self
    }

    /// Lets kubelet allocate `id` of `resource` to the pod `name`.
    #[track_caller]
    fn give(&self, resource: &str, id: &str, name: &str) {
        let given = self.node.kubelet.ask_for(resource, &[&ids(&[id])]);
        given.expect("given");
        let id = [id];
        let own = [(resource, id.as_slice())];
        self.pods.set_pods(&[pod("default", name, &[&own])]);
    }

    /// Returns the sentence with which the daemon refuses the container's start.
    #[track_caller]
    fn refuses(&self, resource: &str, id: &str) -> String {
        let refused = self.node.kubelet.before_start(resource, &ids(&[id]));
        let status = refused.expect_err("it must not start");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        status.message().to_owned()
    }

    #[track_caller]
    fn starts(&self, resource: &str, id: &str) {
        let may = self.node.kubelet.before_start(resource, &ids(&[id]));
        may.expect("it may start");
    }
}

#[track_caller]
fn run(verb: &str, arguments: &[(&str, &Path)]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
    command.env_clear().arg(verb);
    for (flag, path) in arguments {
        command.arg(flag).arg(path);
    }
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

const WITHOUT: &[&str] = &["flannel", "portmap"];
const WITH: &[&str] = &["flannel", "portmap", "rdma-cni"];

/// The node's new runtime does not call the entries in a network's own directory. The daemon detects this when the new
/// runtime starts its first container, and moves the entry back to the list.
#[test]
fn a_runtime_that_reads_no_directories_any_more_is_found_out() {
    let node = Chained::placed(r#","placement":"auto""#).installed();
    let path = |below: &str| node.node.machine.path(below);
    let list = || fs::read_to_string(path("net.d/10-flannel.conflist")).expect("the list");
    node.give("rdma/hca", "3", "old-0");
    let old = node.cache.add("old-0", "a0", "cbr0", WITHOUT);
    for verb in ["ADD", "DEL"] {
        fs::write(path(&format!("state/detected/{verb}@cbr0")), "").expect("noted");
    }
    node.node
        .daemon
        .wait_for_log("the runtime calls rdma-cni for network cbr0 (cbr0/99-rdma-cni.conf)");
    assert!(!list().contains("rdma-cni"), "{}", list());
    // a pod's network that is older than the entry does not show whether the runtime calls the entry
    let written = fs::metadata(path("net.d/cbr0/99-rdma-cni.conf"));
    let written = written.and_then(|it| it.modified()).expect("its time");
    let file = fs::File::options().append(true).open(old).expect("it");
    let before = written - Duration::from_millis(1);
    file.set_modified(before).expect("its time");
    node.refuses("rdma/hca", "3");
    assert!(path("state/detected/ADD@cbr0").exists());
    node.give("rdma/hca", "4", "trainer-0");
    node.cache.add("trainer-0", "a1", "cbr0", WITHOUT);
    let why = node.refuses("rdma/hca", "4");
    assert!(why.contains("cbr0 without rdma-cni"), "{why}");
    node.node
        .daemon
        .wait_for_log("the runtime no longer calls the plugins in the directory of network cbr0");
    let is_back = || list().contains("rdma-cni") && !path("state/detected/ADD@cbr0").exists();
    assert!(wait::within(wait::TIMEOUT, is_back), "{}", list());
}

/// The configuration places the entry in the network's own directory, which the runtime does not read. The daemon's
/// refusal then names the setting to change, and the entry stays where it is.
#[test]
fn a_directory_that_is_not_read_is_reported() {
    let node = Chained::placed(r#","placement":"directory""#).installed();
    let net = node.node.machine.path("net.d");
    node.give("rdma/hca", "3", "trainer-0");
    node.cache.add("trainer-0", "a1", "cbr0", WITHOUT);
    let why = node.refuses("rdma/hca", "3");
    assert!(why.contains("cbr0 without rdma-cni"), "{why}");
    let remedy = "does not call the plugins in the directory of cbr0: set chain.placement to auto";
    assert!(why.contains(remedy), "{why}");
    assert!(net.join("cbr0/99-rdma-cni.conf").exists());
    let list = fs::read_to_string(net.join("10-flannel.conflist")).expect("the list");
    assert!(!list.contains("rdma-cni"), "{list}");
}

#[test]
fn a_pod_whose_network_was_made_without_the_chain_does_not_start() {
    let node = Chained::new().installed();
    node.give("rdma/hca", "3", "trainer-0");
    // libcni's cache also has the pod's loopback
    node.cache
        .add("trainer-0", "a1", "cni-loopback", &["loopback"]);
    node.cache.add("trainer-0", "a1", "cbr0", WITHOUT);
    let why = node.refuses("rdma/hca", "3");
    assert!(why.contains("default/trainer-0"), "{why}");
    assert!(why.contains("cbr0 without rdma-cni"), "{why}");
    assert!(why.contains("delete the pod"), "{why}");
    node.node.daemon.wait_for_log(
        "rdma/hca: 3 of default/trainer-0, container container0: must not start: the network of",
    );

    // kubelet makes the pod's sandbox again
    fs::remove_file(node.cache.add("trainer-0", "a1", "cbr0", WITHOUT)).expect("DEL");
    node.cache.add("trainer-0", "a2", "cbr0", WITH);
    node.starts("rdma/hca", "3");
    // the runtime uses the network's own file, and also the list that the daemon made from this file
    let again = ("cbr0", "eth1");
    let file = node.cache.add_to("trainer-0", "a2", again, WITHOUT);
    node.starts("rdma/hca", "3");
    node.node
        .daemon
        .wait_for_log("default/trainer-0 has the network cbr0 twice");
    fs::remove_file(file).expect("removed");
}

#[test]
fn pods_without_the_chains_network_start() {
    let node = Chained::new().installed();
    // the cache still has the file of an earlier pod of this name
    node.give("rdma/hca", "0", "on-the-host");
    node.cache.add("on-the-host", "b0", "cbr0", WITHOUT);
    node.refuses("rdma/hca", "0");
    wait::until("time has passed", || {
        node.give("rdma/hca", "0", "on-the-host");
        node.node
            .kubelet
            .before_start("rdma/hca", &ids(&["0"]))
            .is_ok()
    });
    node.give("rdma/nic", SECOND.address, "other");
    node.cache.add("other", "b1", "cbr0", WITHOUT);
    node.starts("rdma/nic", SECOND.address);
}

#[test]
fn pods_from_before_the_chain_start_their_containers_again() {
    let node = Chained::new();
    node.give("rdma/hca", "1", "old");
    node.cache.add("old", "c1", "cbr0", WITHOUT);
    node.starts("rdma/hca", "1");
    let node = node.installed();
    node.starts("rdma/hca", "1");
    // kubelet allocates the same id to another pod
    node.give("rdma/hca", "1", "new");
    node.cache.add("new", "c2", "cbr0", WITHOUT);
    assert!(node.refuses("rdma/hca", "1").contains("default/new"));
    // `uninstall` removes the installation from the node
    let path = |below: &str| node.node.machine.path(below);
    run("uninstall", &[("--state-dir", &path("state"))]);
    node.starts("rdma/hca", "1");
}

#[test]
fn a_pod_that_kubelet_reports_late_is_requested_again() {
    let mut node = Chained::new().installed();
    node.give("rdma/hca", "2", "trainer-0");
    node.cache.add("trainer-0", "d1", "cbr0", WITH);
    node.pods.go();
    let refused = node.node.kubelet.before_start("rdma/hca", &ids(&["2"]));
    let status = refused.expect_err("nothing is known of the pod");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    node.pods.come();
    wait::until("kubelet answers", || {
        let may = node.node.kubelet.before_start("rdma/hca", &ids(&["2"]));
        may.is_ok()
    });
}

#[test]
fn without_a_chain_there_is_no_request() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    let cache = CniCache::new(&node.machine.path("results"));
    let given = node.kubelet.ask_for("rdma/hca", &[&ids(&["5"])]);
    given.expect("given");
    cache.add("trainer-0", "e1", "cbr0", WITHOUT);
    let may = node.kubelet.before_start("rdma/hca", &ids(&["5"]));
    may.expect("it may start");
}
