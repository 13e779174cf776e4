// SPDX-License-Identifier: Apache-2.0
//! A node on which each virtual function belongs to one pod alone: kubelet's stand-in, the daemon, a container runtime,
//! and `rdma-cni` after a primary network's plugins. Containers get their devices by CDI names.

use super::{Container, ContainerRuntime, Pod, PodSpec};
use crate::{
    Conflist, Snapshot,
    kubelet::{Allocation, AllocationRequest, node::Node},
    lab::{Function, Lab, uverbs},
    smc,
};
use serde_json::Value;

/// Name of the resource.
pub const VF: &str = "aliyun/erdma";

/// The daemon's configuration. The virtual functions have the resource name of eRDMA.
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
    // dropped first: pods end before the runtime, and their functions return to the host
    /// The node's container runtime.
    pub runtime: ContainerRuntime,
    /// Kubelet's stand-in, and the daemon.
    pub node: Node,
    /// The host, which has the functions.
    pub lab: Lab,
    /// State of the host before the first pod with devices.
    pub before: Snapshot,
}

impl ExclusiveNode {
    /// Prepares a node that has advertised all functions. A pod without RDMA has run on it, so the bridge exists. The
    /// entry of `rdma-cni` also gets the fields of `chain`.
    #[track_caller]
    pub fn new(lab: Lab, node: Node, runtime: ContainerRuntime, chain: &Value) -> Self {
        let mut entry = node.chain(&[VF]);
        let more = chain.as_object().expect("fields");
        entry
            .as_object_mut()
            .expect("an object")
            .extend(more.clone());
        let bridge = smc::pods::bridge(&node.path("networks"));
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

    /// Allocates the function at the PCI address `pci` to a container of a pod.
    #[track_caller]
    pub fn allocate(&self, pod: &str, container: &str, pci: &str) -> Allocation {
        let request = AllocationRequest::new(pod, container, VF, 1).reusing(&[pci.to_owned()]);
        let given = self.node.allocate(&request);
        assert_eq!(given.ids, [pci]);
        assert!(given.given.devices.is_empty(), "paths besides CDI names");
        given
    }

    /// Removes a pod, and releases its ids.
    #[track_caller]
    pub fn remove(&self, pod: Pod) {
        let name = pod.name.clone();
        pod.remove();
        self.node.free(&name);
    }
}

/// Asserts that the container has the device nodes of the function's RDMA device and `rdma_cm` and no other node, and
/// that the device's port is active.
#[track_caller]
pub fn has_just(container: &Container, function: &Function) {
    let mut nodes = container.rdma_nodes();
    nodes.retain(|(name, ..)| name != "rdma_cm");
    assert_eq!(nodes, [uverbs(&function.rdma)], "{function:?}");
    let output = container.sh(&format!("ibv_devinfo -d {}", function.rdma));
    assert!(output.contains("PORT_ACTIVE"), "{output}");
}
