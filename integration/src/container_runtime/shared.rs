// SPDX-License-Identifier: Apache-2.0
//! A node whose bonded NICs are shared by its pods: kubelet's stand-in, the daemon, a container runtime, and `rdma-cni`
//! after a primary network's plugins.

use super::{
    ContainerRuntime, Engine, Pod, PodSpec,
    traffic::{self, End},
};
use crate::{
    BondedNics, Conflist, Netns,
    kubelet::{AllocationRequest, node::Node},
    lab::uverbs,
    netns::check,
    nics, smc, wait,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, ffi::OsString, fs, process::Command, time::Duration};

/// Name of the resource.
pub const HCA: &str = "rdma/hca";

/// Number of the daemon's ids if `rdma-cni` gives pods IPv6 addresses, as in a manifest. soft-RoCE has 1024 GIDs. Each
/// address has two GIDs, the host has eight addresses, and each pod has two: a link-local address and another one.
pub const IDS: usize = 252;

/// Time limit for a runtime's clean-up after a failed sandbox. containerd ends DEL after a minute, and kubelet then
/// removes the sandbox. CRI-O keeps a cancelled sandbox for one to two minutes, because the request may be repeated,
/// and then cleans up (`sleepTimeBeforeCleanup`, `internal/resourcestore`).
pub const TO_CLEAN_UP: Duration = Duration::from_secs(240);

/// The daemon's configuration in an older form that users still have.
const OLD_CONFIG_MAP: &str = r#"{ "mode" : "hca" }"#;

/// A node with shared NICs.
#[derive(Debug)]
pub struct SharedNode {
    /// The node's container runtime.
    pub runtime: ContainerRuntime,
    /// Kubelet's stand-in, and the daemon.
    pub node: Node,
    /// The bonded NICs.
    pub nics: BondedNics,
}

impl Default for SharedNode {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedNode {
    /// Prepares a node with an advertised resource. No pod has run on the node yet.
    #[track_caller]
    pub fn new() -> Self {
        Self::of(OLD_CONFIG_MAP, 1000)
    }

    /// Prepares a node like [`Self::new`], with a configuration by which the daemon offers `ids` ids.
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

    /// Returns a conflist with a primary network's plugins, followed by `rdma-cni`, whose entry names no device.
    pub fn list(&self) -> Conflist {
        let mut chain = self.node.chain(&[HCA]);
        chain["ipam"] = json!({
            "type": "rdma-ipam", "from": "parent", "family": "both", "strategy": "stable",
            "dataDir": self.node.path("leases"),
        });
        let bridge = smc::pods::bridge(&self.node.path("networks"));
        Conflist::new("1.0.0", vec![bridge, chain])
    }

    /// Allocates one `rdma/hca` to a pod's only container, as kubelet does. Returns the pod's specification.
    #[track_caller]
    pub fn pod_with_hca(&self, name: &str) -> PodSpec {
        let given = self
            .node
            .allocate(&AllocationRequest::new(name, "main", HCA, 1));
        PodSpec::new(name).container("main", &[given])
    }

    /// Runs a pod without allocations. The first pod on the node makes the bridge exist.
    #[track_caller]
    pub fn plain(&self, name: &str) -> Pod {
        self.node.knows(name);
        self.runtime.pod(&PodSpec::new(name).container("main", &[]))
    }

    /// Removes a pod, and releases its ids.
    #[track_caller]
    pub fn remove(&self, pod: Pod) {
        let name = pod.name.clone();
        pod.remove();
        self.node.free(&name);
    }

    /// Removes all sandboxes, until the runtime lists none, `rdma-cni` has no record, and only the namespaces `before`
    /// exist. An empty list of sandboxes does not suffice: containerd answers a failed start before it calls DEL, and
    /// lists the sandbox only if this DEL also fails.
    #[track_caller]
    pub fn remove_all(&self, before: &BTreeSet<OsString>) {
        self.remove_until(|| namespaces() == *before);
    }

    /// Removes a sandbox whose creation ended because the runtime was killed. CRI-O (1.34.0) then does not list the
    /// sandbox, and leaves its namespace. `rdma-cni` undoes its own changes, because no program reads its answer.
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

    /// Returns the number of `rdma-cni`'s records.
    pub fn records(&self) -> usize {
        let files = fs::read_dir(self.node.path("state/attachments/net"));
        let names = files.into_iter().flatten().flatten();
        let names = names.map(|file| file.path());
        names
            .filter(|it| it.extension() == Some("json".as_ref()))
            .count()
    }
}

/// Returns the names of the network namespaces in `/run/netns`, among them those of sandboxes.
#[track_caller]
pub fn namespaces() -> BTreeSet<OsString> {
    let files = fs::read_dir("/run/netns").expect("namespaces");
    files.map(|it| it.expect("a name").file_name()).collect()
}

/// Returns the device nodes that a container must have: the nodes of both rails, and the connection manager's.
#[track_caller]
pub fn nodes_of_all_rails() -> Vec<(String, u64, u64)> {
    let text = fs::read_to_string("/sys/class/misc/rdma_cm/dev").expect("rdma_cm's number");
    let (major, minor) = text.trim().split_once(':').expect("two numbers");
    let number = |text: &str| text.parse().expect("a number");
    let manager = ("rdma_cm".to_owned(), number(major), number(minor));
    let rails = [0, 1].map(|rail| uverbs(&nics::rdma(rail)));
    [manager].into_iter().chain(rails).collect()
}

/// Returns the pod's IPv6 or IPv4 address on `rail`.
#[track_caller]
pub fn address(netns: &Netns, rail: usize, ipv6: bool) -> String {
    let addresses = netns.addresses(&format!("rdma{rail}"));
    let address = addresses.iter().find(|it| it.contains(':') == ipv6);
    let address = address.unwrap_or_else(|| panic!("rail {rail}, IPv6 {ipv6}: {addresses:?}"));
    address.split('/').next().expect("an address").to_owned()
}

/// Returns the names of a pod's links, in the kernel's order.
#[track_caller]
pub fn links(netns: &Netns) -> Vec<String> {
    let links = netns.show("link show");
    let name = |link: &Value| link["ifname"].as_str().unwrap_or_default().to_owned();
    links.iter().map(name).collect()
}

/// Asserts that the container has the device nodes of both rails, and that the pod has both rails.
#[track_caller]
pub fn has_all_rails(pod: &Pod) {
    assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
    assert_eq!(links(&pod.netns()), ["lo", "eth0", "rdma0", "rdma1"]);
}

/// Runs `rping` between the containers on each rail.
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
