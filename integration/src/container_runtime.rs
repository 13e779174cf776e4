// SPDX-License-Identifier: Apache-2.0
//! A real container runtime in the lab. Pods are its sandboxes with containers in them. The runtime itself calls CNI.
//!
//! | module | owns |
//! |---|---|
//! | [`engine`] | the runtime's program: Debian's containerd 1.7, containerd 2, CRI-O |
//! | `containerd`, `crio` | their configurations, and the import of images |
//! | `running` | the runtime's process, its start and its end |
//! | `place` | the runtime's files and directories, and the images' names |
//! | [`cri`] | calls of the runtime's interface, as kubelet makes them |
//! | [`network`] | the node's CNI directories: plugins, one conflist |
//! | [`manifest`] | a manifest's DaemonSet and ConfigMap, read strictly: an unknown field is an error |
//! | [`daemon_set`] | kubelet's tasks for a DaemonSet's pod: volumes, rights, init containers, probes |
//! | [`installed`] | a node whose daemon runs in a DaemonSet's pod, with the usual paths of a node |
//! | [`pod`] | a pod's life: sandbox, containers, programs run in them, its end |
//! | [`shared`] | a node with bonded NICs, a container runtime, and `rdma-cni` |
//! | [`exclusive`] | a node with a container runtime, `rdma-cni`, and virtual functions, each for only one pod |
//! | [`traffic`] | RDMA between containers |
//!
//! `integration/lab/setup` puts containerd 1.7, runc and the images into the lab's cache; `integration/runtimes/build`
//! puts the other runtimes there.

mod containerd;
pub mod cri;
mod crio;
pub mod daemon_set;
pub mod engine;
pub mod exclusive;
pub mod installed;
pub mod manifest;
pub mod network;
mod place;
pub mod pod;
mod running;
pub mod shared;
pub mod traffic;

pub use daemon_set::DaemonPod;
pub use engine::Engine;
pub use exclusive::ExclusiveNode;
pub use installed::InstalledNode;
pub use place::TOOLS;
pub use pod::{Container, Pod, PodSpec};
pub use running::{ContainerRuntime, ROOT};
pub use shared::SharedNode;
