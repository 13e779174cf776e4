// SPDX-License-Identifier: Apache-2.0
//! A node with bonded NICs, which its pods share: kubelet's part, the daemon, a container runtime, and the
//! chain behind a primary network.

use super::{
    ContainerRuntime, Engine, Pod, PodSpec,
    traffic::{self, End},
};
use crate::{
    BondedNics, Conflist, Netns,
    kubelet::{Wish, node::Node},
    lab::uverbs,
    netns::check,
    nics, smc, wait,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, ffi::OsString, fs, process::Command, time::Duration};

/// The resource.
pub const HCA: &str = "rdma/hca";

/// Limit for a runtime's clean-up after a failed sandbox: containerd gives DEL a minute, and kubelet removes the rest.
/// CRI-O keeps a cancelled one for a repeated request, between one and two minutes, and then cleans up
/// (`sleepTimeBeforeCleanup`, `internal/resourcestore`).
pub const TO_CLEAN_UP: Duration = Duration::from_secs(240);

/// The daemon's configuration, as users have it.
const OLD_CONFIG_MAP: &str = r#"{ "mode" : "hca" }"#;

/// The node.
#[derive(Debug)]
pub struct SharedNode {
    /// The runtime.
    pub runtime: ContainerRuntime,
    /// Kubelet's part, and the daemon.
    pub node: Node,
    /// The bonds.
    pub nics: BondedNics,
}

impl Default for SharedNode {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedNode {
    /// Prepares a node with an advertised resource that has had no pod yet.
    #[track_caller]
    pub fn new() -> Self {
        Self::of(OLD_CONFIG_MAP, 1000)
    }

    /// Does the same as `new`, with a configuration of the daemon that offers `ids` ids.
    #[track_caller]
    pub fn of(configuration: &str, ids: usize) -> Self {
        let nics = BondedNics::new();
        let node = Node::start(configuration);
        let runtime = ContainerRuntime::start(&node.path("cdi"));
        let shared = Self {
            runtime,
            node,
            nics,
        };
        shared.runtime.network.set(&shared.list());
        let kubelet = &shared.node.kubelet;
        kubelet.wait_for(HCA, "its ids", |it| it.healthy().len() == ids);
        shared
    }

    /// A primary network, and after it the chain, in which nothing names a device.
    pub fn list(&self) -> Conflist {
        let mut chain = self.node.chain(&[HCA]);
        chain["ipam"] = json!({
            "type": "rdma-ipam", "from": "parent", "family": "both", "strategy": "stable",
            "dataDir": self.node.path("leases"),
        });
        let bridge = smc::bridge(&self.node.path("networks"));
        Conflist::new("1.0.0", vec![bridge, chain])
    }

    /// Kubelet's part for a pod whose one container asks for one `rdma/hca`.
    #[track_caller]
    pub fn wish(&self, name: &str) -> PodSpec {
        let given = self.node.allocate(&Wish::new(name, "main", HCA, 1));
        PodSpec::new(name).container("main", &[given])
    }

    /// A pod that asks for nothing. The first one has the bridge made.
    #[track_caller]
    pub fn plain(&self, name: &str) -> Pod {
        self.node.knows(name);
        self.runtime.pod(&PodSpec::new(name).container("main", &[]))
    }

    /// The pod's end.
    #[track_caller]
    pub fn remove(&self, pod: Pod) {
        let name = pod.name.clone();
        pod.remove();
        self.node.free(&name);
    }

    /// Removes sandboxes without a pod, as kubelet does, until nothing is left of them, and only the namespaces
    /// `before` exist. An empty list is no evidence: containerd lists a sandbox whose start failed only if its own DEL,
    /// which runs after its answer, failed as well.
    #[track_caller]
    pub fn remove_all(&self, before: &BTreeSet<OsString>) {
        self.remove_until(|| namespaces() == *before);
    }

    /// Removes the rest after the runtime was killed while it made a sandbox. CRI-O (1.34.0) does not know the sandbox
    /// then, and leaves its namespace; the chain reverts its changes, as its answer has no reader.
    #[track_caller]
    pub fn remove_what_was_cut_off(&self, before: &BTreeSet<OsString>) {
        if self.runtime.engine() != Engine::Crio {
            return self.remove_all(before);
        }
        self.remove_until(|| true);
        for left in namespaces().difference(before) {
            check(Command::new("ip").args(["netns", "delete"]).arg(left));
        }
    }

    #[track_caller]
    fn remove_until(&self, done: impl Fn() -> bool) {
        let cri = self.runtime.cri();
        let gone = wait::within(TO_CLEAN_UP, || {
            cri.remove_all(|_| true) && self.records() == 0 && done()
        });
        assert!(
            gone,
            "not within {TO_CLEAN_UP:?}: {} sandboxes, {} records, namespaces {:?}",
            cri.pods().expect("a list").len(),
            self.records(),
            namespaces()
        );
    }

    /// Returns the number of pods with records of the chain.
    pub fn records(&self) -> usize {
        let files = fs::read_dir(self.node.path("state/attachments/net"));
        let names = files.into_iter().flatten().flatten();
        let names = names.map(|file| file.path());
        names
            .filter(|it| it.extension() == Some("json".as_ref()))
            .count()
    }
}

/// The names of all network namespaces, those of sandboxes among them.
#[track_caller]
pub fn namespaces() -> BTreeSet<OsString> {
    let files = fs::read_dir("/run/netns").expect("namespaces");
    files.map(|it| it.expect("a name").file_name()).collect()
}

/// The device nodes of both rails and the connection manager, as a container must have them.
#[track_caller]
pub fn nodes_of_all_rails() -> Vec<(String, u64, u64)> {
    let text = fs::read_to_string("/sys/class/misc/rdma_cm/dev").expect("rdma_cm's number");
    let (major, minor) = text.trim().split_once(':').expect("two numbers");
    let number = |text: &str| text.parse().expect("a number");
    let manager = ("rdma_cm".to_owned(), number(major), number(minor));
    let rails = [0, 1].map(|rail| uverbs(&nics::rdma(rail)));
    [manager].into_iter().chain(rails).collect()
}

/// The pod's address on `rail`, of IPv6 or IPv4.
#[track_caller]
pub fn address(netns: &Netns, rail: usize, ipv6: bool) -> String {
    let addresses = netns.addresses(&format!("rdma{rail}"));
    let address = addresses.iter().find(|it| it.contains(':') == ipv6);
    let address = address.unwrap_or_else(|| panic!("rail {rail}, IPv6 {ipv6}: {addresses:?}"));
    address.split('/').next().expect("an address").to_owned()
}

/// The links of a pod, in their order.
#[track_caller]
pub fn links(netns: &Netns) -> Vec<String> {
    let links = netns.show("link show");
    let name = |link: &Value| link["ifname"].as_str().unwrap_or_default().to_owned();
    links.iter().map(name).collect()
}

/// The container has the nodes of both rails, and the pod the rails.
#[track_caller]
pub fn has_all_rails(pod: &Pod) {
    assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
    assert_eq!(links(&pod.netns()), ["lo", "eth0", "rdma0", "rdma1"]);
}

/// `rping` from container to container, on each rail.
#[track_caller]
pub fn rping_on_all_rails(pods: [&Pod; 2]) {
    let netns = pods.map(Pod::netns);
    for rail in 0..2 {
        let addresses = netns.each_ref().map(|netns| address(netns, rail, true));
        let rdma = nics::rdma(rail);
        let end = |pod: usize| End {
            container: pods[pod].main(),
            rdma: &rdma,
            address: &addresses[pod],
        };
        traffic::rping(end(0), end(1));
    }
}
