// SPDX-License-Identifier: Apache-2.0
//! A container's request for devices, and their allocation.

use kubelet_api::device_plugin::ContainerAllocateResponse;

/// A container's request.
#[derive(Clone, Debug)]
pub struct AllocationRequest {
    pub(super) pod: (String, String),
    pub(super) container: String,
    pub(super) resource: String,
    pub(super) count: usize,
    pub(super) numa_node: Option<i64>,
    pub(super) reusable: Vec<String>,
}

impl AllocationRequest {
    /// Makes a request of the container `container` of the pod `default/<pod>` for `count` devices of `resource`.
    pub fn new(pod: &str, container: &str, resource: &str, count: usize) -> Self {
        Self {
            pod: ("default".into(), pod.into()),
            container: container.into(),
            resource: resource.into(),
            count,
            numa_node: None,
            reusable: vec![],
        }
    }

    /// Sets the NUMA node that the topology manager prefers.
    pub fn on_numa_node(mut self, node: i64) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Sets the ids that an init container of the pod had before.
    pub fn reusing(mut self, ids: &[String]) -> Self {
        self.reusable = ids.to_vec();
        self
    }
}

/// Allocation of a resource to a container.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Namespace and name of the pod.
    pub pod: (String, String),
    /// The container.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// Allocated ids.
    pub ids: Vec<String>,
    /// The plugin's response for these ids.
    pub given: ContainerAllocateResponse,
}
