// SPDX-License-Identifier: Apache-2.0
//! Building blocks of the end-to-end tests. The tests start the installed binaries as a container runtime does. They
//! observe the results with iproute2, and not with the project's own libraries. SMC's tables are an exception,
//! because Debian 12 has no tool for them.
//!
//! | module | owns |
//! |---|---|
//! | [`netns`] | throw-away network namespaces, and commands run inside them |
//! | [`node`] | a small test machine: a host with rails on a switch, pods, a state directory |
//! | [`plugin`] | one run of one CNI plugin: exact environment and input, and a time limit |
//! | [`runtime`] | a conflist run as libcni runs it: chain, prevResult, cache, GC, STATUS |
//! | [`cni_cache`] | libcni's cache of the networks that a runtime attached |
//! | [`ipam`] | a stand-in IPAM plugin that records its calls; a test sets its answers and errors |
//! | [`daemon`] | `rdma-device-plugin` as a process: its log, its resources |
//! | [`machine`] | a made-up node for the daemon: a sysfs tree, device files, directories |
//! | [`oci`] | image archives, as a container runtime reads them |
//! | [`manager`] | NetworkManager, systemd-networkd, and lldpd, each for one throw-away namespace |
//! | [`metadata`] | a stand-in for the cloud's metadata service |
//! | [`snapshot`] | the network state of a namespace, comparable bit for bit |
//! | [`odd_file`] | what a test puts in place of a regular file: links, pipes, a file of a gigabyte |
//! | [`killed`] | a plugin that SIGKILL ends at each of its changes of the kernel |
//! | [`files`] | all files below some directories, comparable byte for byte |
//! | [`crash`] | runs of the programs, killed or with an error at selected system calls |
//! | [`kernel_counts`] | the kernel's own counters: network namespaces, memory |
//! | [`extent`] | number of repetitions, also for `scripts/test --full` |
//! | [`kubelet`] | a kubelet stand-in |
//! | [`api_server`] | a stand-in for the API server: objects by their paths, over TLS |
//! | [`control_plane`] | Kubernetes' real control plane: without a kubelet, or for nodes in the lab |
//! | [`real_kubelet`] | in the lab, the real kubelet as a node of this control plane |
//! | [`cluster`] | in the lab, a node of a cluster (kubelet, container runtime), and the cluster's control plane |
//! | [`slices`] | the devices of a node's ResourceSlices |
//! | [`claimed`] | a node with stand-ins for kubelet and the API server, and a claim of a device |
//! | [`pages`] | operators' commands in the documentation |
//! | [`container_runtime`] | in the lab, containerd or CRI-O as a process, and pods run by it over CRI |
//! | [`lab`] | the lab's host with its NICs, from inside the VM |
//! | [`replies`] | the interfaces by which a pod's replies leave |
//! | [`rails`] | in the lab, bonds on a fabric of two rails and two sides, with routers |
//! | [`bonded`] | in the lab, `rdma-cni` and `rdma-ipam` on the bonds of [`rails`] |
//! | [`erdma_functions`] | in the lab, eRDMA functions under the kernel's own driver |
//! | [`erdma_fabric`] | in the lab, the fabric of the eRDMA functions, with faults by a test's orders |
//! | [`erdma_nics`] | in the lab, NICs that act as unconfigured eRDMA NICs |
//! | [`mlx5_card`] | in the lab, a ConnectX card under Debian's own driver |
//! | [`model_orders`] | in the lab, orders for the models of the eRDMA and ConnectX functions |
//! | [`pair`] | in the lab, two machines whose modelled NICs are on one network |
//! | [`nics`] | in the lab, a bond over each NIC: rails that have hardware |
//! | [`qemu`] | in the lab, QEMU's monitor, which unplugs NICs |
//! | [`smc`] | connections over SMC or TCP between two namespaces |
//! | [`traffic`] | RDMA between two pods |
//! | [`tracer`] | faults at some system calls of a program or running process: SIGKILL or an error |
//! | [`tmpfs`] | separate file systems in memory, which a test can fill or make read-only |
//! | [`disk`] | a disk that loses unsynced data at a power loss |
//! | [`power`] | in the lab, a machine that loses power, and boots again with its disk |
//! | [`verify`] | `ping --exchange` in two pods |
//! | [`pinged`] | `ping` of one address |
//! | [`stopwatch`] | time without the machine's own delays |
//! | [`udev`] | waiting for the machine's udevd |
//! | [`wait`] | waits for a condition, with a time limit |

pub mod api_server;
pub mod bonded;
pub mod claimed;
pub mod cluster;
pub mod cni_cache;
pub mod container_runtime;
pub mod control_plane;
// musl lacks the type of ptrace's report about a system call
#[cfg(target_env = "gnu")]
pub mod crash;
pub mod daemon;
pub mod disk;
pub mod erdma_fabric;
pub mod erdma_functions;
pub mod erdma_nics;
pub mod extent;
pub mod files;
pub mod ipam;
pub mod kernel_counts;
#[cfg(target_env = "gnu")]
pub mod killed;
pub mod kubelet;
pub mod lab;
pub mod machine;
pub mod manager;
pub mod metadata;
pub mod mlx5_card;
pub mod model_orders;
pub mod netns;
pub mod nics;
pub mod node;
pub mod oci;
pub mod odd_file;
pub mod pages;
pub mod pair;
pub mod pinged;
pub mod plugin;
pub mod power;
pub mod qemu;
pub mod rails;
pub mod real_kubelet;
pub mod replies;
pub mod runtime;
pub mod slices;
pub mod smc;
pub mod snapshot;
pub mod stopwatch;
pub mod tmpfs;
#[cfg(target_env = "gnu")]
pub mod tracer;
pub mod traffic;
pub mod udev;
pub mod verify;
pub mod wait;

pub use api_server::ApiServer;
pub use bonded::{Bonded, BondedPod};
pub use cluster::Cluster;
pub use cni_cache::CniCache;
pub use container_runtime::ContainerRuntime;
pub use control_plane::{ControlPlane, RemoteControlPlane};
pub use daemon::Daemon;
pub use erdma_nics::ErdmaNics;
pub use files::Files;
pub use ipam::StandInIpam;
pub use machine::Machine;
pub use manager::Manager;
pub use metadata::MetadataService;
pub use netns::Netns;
pub use nics::BondedNics;
pub use node::Node;
pub use odd_file::OddFile;
pub use plugin::{Invocation, Outcome, earlier_rdma_cni};
pub use qemu::Qemu;
pub use rails::Rails;
pub use real_kubelet::RealKubelet;
pub use runtime::{Attachment, Conflist, Runtime};
pub use snapshot::Snapshot;
