// SPDX-License-Identifier: Apache-2.0
//! `uninstall` on a node with a pod that ended without a DEL of `rdma-cni`. `uninstall` starts `rdma-cni` to restore
//! the pod's devices.

use super::{
    attachment::is_lasting,
    program::{Programs, Verb},
    story::{End, Story},
};
use crate::{
    Files, Machine, Netns, Node, Snapshot,
    tracer::{Fault, Report},
    wait::TIMEOUT,
};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Parts of the state directory that only `rdma-cni` uses.
const OF_PODS: [&str; 3] = ["state/attachments", "state/rails", "state/lock"];

/// A node with two rails, and a pod whose namespace has ended.
#[derive(Debug)]
pub struct Ended {
    programs: Programs,
    node: Node,
    host_before: Snapshot,
}

impl Ended {
    /// Makes a node. `programs` are `rdma-device-plugin`, whose directory has the plugins, and the injector.
    #[track_caller]
    pub fn new(programs: [PathBuf; 2]) -> Self {
        let node = Node::furnished();
        let mut programs = Programs::new(Verb::Uninstall, programs);
        programs.netns = Netns::existing(node.host.path());
        programs.is_others = is_of_pods;
        Self {
            host_before: Snapshot::of(&node.host),
            programs,
            node,
        }
    }

    fn leases(&self) -> PathBuf {
        self.programs.machine.path("leases")
    }

    /// Runs ADD by the installed `rdma-cni`, and ends the pod's namespace. The children of the rails end with the
    /// namespace. The record, the rails file and the addresses remain.
    #[track_caller]
    fn pod_ends(&self) {
        let pod = self.node.pod("a");
        let bin_dir = self.programs.machine.path("opt/cni/bin");
        let mut configuration = self.node.configuration(&["eth1", "eth2"]);
        configuration["mode"] = "share".into();
        configuration["stateDir"] = json!(self.programs.machine.path("state"));
        configuration["ipam"] = json!({
            "type": "rdma-ipam", "dataDir": self.leases(),
            "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]],
        });
        let add = self.node.invoke("ADD", "a", pod.path());
        let add = add.program(&bin_dir.join("rdma-cni"));
        let add = add.env("CNI_PATH", bin_dir).input(&configuration);
        add.run().result();
    }

    /// Returns the pod's objects that remain on the host, in the state directory, and in the leases.
    fn left_by_pod(&self) -> Vec<String> {
        let host = &self.node.host;
        let difference =
            (self.host_before).difference_within(TIMEOUT, host, &|difference| difference);
        let mut left = vec![];
        if !difference.is_empty() {
            left.push(format!("host: {difference}"));
        }
        let of_pods = OF_PODS.map(|below| self.programs.machine.path(below));
        let paths = of_pods.into_iter().chain([self.leases()]);
        let paths: Vec<String> = paths.map(|it| it.display().to_string()).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        left.extend(Files::below(&paths).differences(&Files::below(&[]), &is_lasting));
        left
    }
}

/// Returns true if `path` is a file of pods, or the state directory.
fn is_of_pods(machine: &Machine, path: &Path) -> bool {
    let mut of_pods = OF_PODS.iter().map(|below| machine.path(below));
    path == machine.path("state") || of_pods.any(|it| path.starts_with(it))
}

impl Story for Ended {
    fn name(&self) -> &'static str {
        "uninstall, a pod has ended"
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        for directory in [self.programs.machine.path("state"), self.leases()] {
            let _ = fs::remove_dir_all(directory);
        }
        self.programs.install();
        self.pod_ends();
        self.programs.traced(fault)
    }

    /// Checks that the state is that of a node without pods, and that the pod's devices are restored.
    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String> {
        let mut left = vec![];
        if let End::Done(_) = end {
            let at_once = self.left_by_pod().into_iter();
            left.extend(at_once.map(|it| format!("it succeeded: {it}")));
        }
        left.extend(self.programs.put_right(end, turn));
        left.extend(self.left_by_pod());
        left
    }
}
