// SPDX-License-Identifier: Apache-2.0
//! A node whose virtual functions are each one pod's alone: kubelet's part, the daemon, a container runtime, and
//! the chain behind a primary network. Containers get their devices by CDI names.

use super::{Container, ContainerRuntime, Pod, PodSpec};
use crate::{
    Conflist, Snapshot,
    kubelet::{Allocation, Wish, node::Node},
    lab::{Function, Lab, uverbs},
    smc,
};
use serde_json::Value;

/// The resource.
pub const VF: &str = "aliyun/erdma";

/// The daemon's configuration: virtual functions in the part of eRDMA's, under its name.
pub const BY_CDI: &str = r#"
resources:
- name: aliyun/erdma
  kind: exclusive
  devices: [{driver: igbvf}]
cdi: true
"#;

/// The node.
#[derive(Debug)]
pub struct ExclusiveNode {
    // the first to end: pods restore their functions
    /// The runtime.
    pub runtime: ContainerRuntime,
    /// Kubelet's part, and the daemon.
    pub node: Node,
    /// The host with the functions.
    pub lab: Lab,
    /// The host as it was before the first pod with devices.
    pub before: Snapshot,
}

impl ExclusiveNode {
    /// Prepares a node with all functions advertised. It has had a pod without RDMA, so that the bridge exists. The
    /// chain's entry has the fields of `chain`, too.
    #[track_caller]
    pub fn new(lab: Lab, node: Node, runtime: ContainerRuntime, chain: &Value) -> Self {
        let mut entry = node.chain(&[VF]);
        let more = chain.as_object().expect("fields");
        entry
            .as_object_mut()
            .expect("an object")
            .extend(more.clone());
        let bridge = smc::bridge(&node.path("networks"));
        let list = Conflist::new("1.0.0", vec![bridge, entry]);
        runtime.network.set(&list);
        let functions = lab.functions.iter().flatten().count();
        node.kubelet
            .wait_for(VF, "all functions", |it| it.healthy().len() == functions);
        node.knows("first");
        runtime.pod(&PodSpec::new("first")).remove();
        let before = Snapshot::of(&lab.host);
        Self {
            runtime,
            node,
            lab,
            before,
        }
    }

    /// The function of this PCI address, allocated to a container of a pod.
    #[track_caller]
    pub fn allocate(&self, pod: &str, container: &str, pci: &str) -> Allocation {
        let wish = Wish::new(pod, container, VF, 1).reusing(&[pci.to_owned()]);
        let given = self.node.allocate(&wish);
        assert_eq!(given.ids, [pci]);
        assert!(given.given.devices.is_empty(), "paths besides CDI names");
        given
    }

    /// The pod's end.
    #[track_caller]
    pub fn remove(&self, pod: Pod) {
        let name = pod.name.clone();
        pod.remove();
        self.node.free(&name);
    }
}

/// The device's node is the container's only one, and it is that device which is behind it.
#[track_caller]
pub fn has_just(container: &Container, function: &Function) {
    let mut nodes = container.rdma_nodes();
    nodes.retain(|(name, ..)| name != "rdma_cm");
    assert_eq!(nodes, [uverbs(&function.rdma)], "{function:?}");
    let said = container.sh(&format!("ibv_devinfo -d {}", function.rdma));
    assert!(said.contains("PORT_ACTIVE"), "{said}");
}
