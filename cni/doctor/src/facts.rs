// SPDX-License-Identifier: Apache-2.0
//! Observed state of the node, as plain data. It is the only input of [`examine`](super::examine).

use attachments::{Attachment, Key, given_up::Note};
use lldp::{Neighbour, Seen, Switches, joined};
use rdma_netns::{GidTable, GpuDirect, Observed, RdmaCgroup, RdmaMode, smc::SmcState};
use rdma_resources::Published;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

/// State of a node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Facts {
    /// Version of this program.
    pub version: String,
    /// Release of the kernel, from `/proc/sys/kernel/osrelease`.
    pub release: String,
    /// Parts of the node that could not be observed, with the errors.
    pub unseen: Vec<Unseen>,
    /// Parts that the container of this program cannot observe.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub hidden: BTreeSet<Part>,
    /// State of the kernel modules that RDMA in pods may need, by name.
    pub modules: BTreeMap<String, ModuleState>,
    /// Settings of the RDMA subsystem's mode at boot. The last setting takes effect.
    pub boot_modes: Vec<BootMode>,
    /// Rule by which udev names RDMA devices; `None`: `doctor` found no such rule.
    pub naming: Option<Naming>,
    /// State of the kernel's rdma controller.
    pub rdma_cgroup: RdmaCgroup,
    /// Names of pods whose limits of RDMA objects point to freed memory in the kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits_left: Vec<String>,
    /// Prerequisites of GPUDirect. `None`: the node has no accelerators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpudirect: Option<GpuDirect>,
    /// Netdevs, RDMA devices and their hardware.
    pub observed: Option<Observed>,
    /// Mode of each bond, such as `802.3ad`, by the bond's name.
    pub bond_modes: BTreeMap<String, String>,
    /// GID tables of the RDMA devices in the host's namespace, except InfiniBand devices.
    pub gids: Vec<PortGids>,
    /// State of SMC; `None`: the kernel has not loaded SMC, or SMC's state cannot be observed.
    pub smc: Option<SmcState>,
    /// Network configuration that the runtime uses.
    pub chain: Chain,
    /// Programs of the network's plugins, and of this project.
    pub binaries: Vec<Binary>,
    /// Kubelet's pod-resources socket. `None`: `rdma-cni` does not query kubelet.
    pub pod_resources: Option<Socket>,
    /// Container runtimes on the node.
    pub runtimes: Vec<Runtime>,
    /// Sockets and files of the daemon.
    pub daemon: Daemon,
    /// Switch of each NIC, which the daemon learned by LLDP.
    #[serde(skip_serializing_if = "is_empty")]
    pub switches: Switches,
    /// Records of attachments.
    pub records: Vec<Record>,
    /// Paths of unreadable records, which `rdma-cni` or the daemon has renamed.
    pub aside: Vec<PathBuf>,
    /// One sentence for each unreadable record of a claim, with the reason.
    pub unreadable_claims: Vec<String>,
    /// Notes on netdevs that returned to the host and lack an attribute.
    pub given_up: Vec<Note>,
    /// Directories of records and leases that are symbolic links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PathBuf>,
    /// Leases of the IPAM plugin. Empty if the plugin's directory does not have host-local's format.
    pub leases: Vec<Lease>,
    /// Attachments in libcni's cache, as file names `network-container-interface`. `None`: the cache does not exist, or
    /// cannot be read.
    pub cached: Option<BTreeSet<String>>,
}

/// A part of the node that could not be observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unseen {
    /// Description of the part.
    pub what: String,
    /// Reason, such as the system's error.
    pub why: String,
}

/// Reason why a part is unseen: it is not mounted in this program's container.
pub const NOT_MOUNTED: &str = "not visible from here";

/// Reason why this program cannot observe the host's netdevs.
pub const ANOTHER_NETNS: &str = "this program does not run in the host's network namespace";

impl Unseen {
    /// Returns the remedy. `None`: no general remedy follows from the reason.
    pub fn remedy(&self) -> Option<&'static str> {
        // messages of EPERM and EACCES
        let is_denied = ["(os error 1)", "(os error 13)"]
            .iter()
            .any(|it| self.why.contains(it));
        if self.why.contains(NOT_MOUNTED) {
            Some("run doctor on the node, outside of a container")
        } else if self.why == ANOTHER_NETNS {
            Some("run doctor in the host's network namespace (nsenter -t 1 -n)")
        } else {
            is_denied.then_some("run doctor as root on the node")
        }
    }
}

/// Part of the node that a container may be unable to see. `doctor` does not report that objects of a hidden part are
/// missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Kernel modules that are not loaded.
    Modules,
    /// Settings of the RDMA subsystem's mode at boot.
    Boot,
    /// udev rules that name RDMA devices.
    Naming,
    /// Network configurations.
    Chain,
    /// Programs of CNI plugins.
    Programs,
    /// Leases of IPAM plugins.
    Leases,
    /// Sockets and limits of container runtimes.
    Runtimes,
}

/// State of a kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ModuleState {
    /// The module is loaded, or built into the kernel.
    Loaded,
    /// The module is not loaded, and can be loaded.
    Available,
    /// The kernel has no such module.
    Missing,
    /// The module is not loaded. It is unknown whether it can be loaded.
    Unknown,
}

/// A setting of the RDMA subsystem's mode at boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootMode {
    /// File of the setting.
    pub file: PathBuf,
    /// Mode that the file sets.
    pub mode: RdmaMode,
}

/// udev rule that names RDMA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Naming {
    /// File of the rule.
    pub file: PathBuf,
    /// Policy of the rule, such as `NAME_FALLBACK` or `NAME_KERNEL`.
    pub policy: String,
}

/// GID table of one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortGids {
    /// Name of the RDMA device.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u32,
    /// GID table of the port.
    pub table: GidTable,
}

/// Directory of network configurations, and the runtime's choice in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Chain {
    /// Directory of network configurations.
    pub directory: PathBuf,
    /// Name of the network to examine, if an option or the installation's record names one. `None`: the network that
    /// the runtime uses for pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Network to examine; `None`: the directory does not define it, or has no usable network.
    pub picked: Option<Picked>,
    /// Broken file that prevents the runtime from using any network.
    pub blocked: Option<Skipped>,
    /// Broken files that the runtime skips.
    pub skipped: Vec<Skipped>,
}

/// Network to examine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Picked {
    /// File of the network.
    pub file: PathBuf,
    /// Name of the network (`name`).
    pub network: String,
    /// CNI version of the list (`cniVersion`).
    pub cni_version: String,
    /// Types of the plugins, in the order of the list.
    pub plugins: Vec<String>,
    /// Index of the first plugin that is `rdma-cni`, or that calls it.
    pub place: Option<usize>,
    /// True if the plugin at `place` calls `rdma-cni` (Multus).
    pub delegated: bool,
    /// True if the entry is in the network's own directory, which libcni reads since 1.3.
    pub in_directory: bool,
    /// Entry of `rdma-cni`, with the fields `name` and `cniVersion` that the runtime adds.
    pub ours: Option<Map<String, Value>>,
    /// Fields of further entries of `rdma-cni`, which a correct list does not have.
    pub again: Vec<Map<String, Value>>,
}

/// Configuration file that the runtime cannot use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Path of the file.
    pub file: PathBuf,
    /// Reason why the runtime cannot use the file.
    pub why: String,
}

/// Program in a directory of CNI plugins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// Path of the program, which may not exist.
    pub path: PathBuf,
    /// State of the file.
    #[serde(flatten)]
    pub state: BinaryState,
}

/// State of a program file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum BinaryState {
    /// The file does not exist.
    Absent,
    /// The path is not an executable file.
    NotExecutable,
    /// The program exists, or is a link whose target this program cannot see. `doctor` does not examine its version.
    There,
    /// The program exists and reported its version.
    Version {
        /// Version in the output of `--version`.
        version: String,
    },
    /// The program exists and did not report its version.
    Mute {
        /// Reason why the program did not report a version.
        why: String,
    },
}

/// A Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Reason why no server responds at the socket. `None`: a server responds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
}

/// A container runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Runtime {
    /// Name of the runtime, such as `containerd`.
    pub name: String,
    /// CRI socket of the runtime.
    pub socket: Socket,
    /// Memory that the runtime's containers can lock, in bytes (`Max locked memory`, soft limit).
    #[serde(default)]
    pub memlock: Memlock,
}

/// Limit of locked memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Memlock {
    /// Unknown: the runtime's process or its limits cannot be read.
    #[default]
    Unknown,
    /// No limit.
    Unlimited,
    /// Limit in bytes.
    Bytes(u64),
}

/// Sockets and files of `rdma-device-plugin`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Daemon {
    /// Sockets of the daemon for kubelet: one for each resource, and with claims the DRA driver's registration socket.
    pub sockets: Vec<Socket>,
    /// Content of the daemon's `resources.json`.
    pub published: Option<Published>,
    /// Reason why `resources.json` cannot be read.
    pub unreadable: Option<String>,
    /// Time since the last change of `resources.json`, in seconds.
    pub age: u64,
}

/// A record of an attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Record {
    /// A readable record.
    Good {
        /// Attachment of the record.
        attachment: Box<Attachment>,
        /// True if the attachment's pod is running, or if this program cannot determine it.
        lives: bool,
        /// True if a verb of `rdma-cni` is running for the attachment.
        #[serde(default)]
        busy: bool,
        /// Time since `rdma-cni` wrote the record, in seconds.
        #[serde(default)]
        age: u64,
        /// One sentence for each macvlan or ipvlan netdev in the pod whose mode has changed since ADD.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed_children: Vec<String>,
    },
    /// An unreadable record.
    Corrupt {
        /// Attachment of the record.
        key: Key,
        /// Reason why the record cannot be read.
        why: String,
    },
    /// A record of a later version.
    Newer {
        /// Attachment of the record.
        key: Key,
        /// Format of the record.
        format: u64,
    },
}

/// Lease of an address in host-local's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Address of the lease.
    pub address: IpAddr,
    /// Container that has the lease.
    pub container: String,
    /// Interface of the container. `None`: the lease names no interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

fn is_empty(switches: &Switches) -> bool {
    switches.0.is_empty()
}

impl Facts {
    /// Returns the state of the module `name`.
    pub fn module(&self, name: &str) -> ModuleState {
        let state = self.modules.get(name).copied();
        state.unwrap_or(ModuleState::Unknown)
    }

    /// Returns the switches of the node's rails, by name of the bond, RDMA device or netdev. The value for a bond with
    /// ports on two switches names both switches.
    pub fn switches_of_rails(&self) -> BTreeMap<String, String> {
        let mut rails: BTreeMap<String, Vec<&Seen>> = BTreeMap::new();
        for (address, seen) in &self.switches.0 {
            let observed = self.observed.as_ref();
            let bond = observed.and_then(|it| {
                let master = it.host.link(&seen.netdev)?.master?;
                let master = it.host.link_by_index(master)?;
                master.is_bond().then(|| master.name.to_string())
            });
            let rdma = observed.and_then(|it| it.device(address)?.rdma.first().cloned());
            let rail = bond.or(rdma).unwrap_or_else(|| seen.netdev.clone());
            rails.entry(rail).or_default().push(seen);
        }
        let switch =
            |(rail, seen): (String, Vec<&Seen>)| Some((rail, joined(&seen, Neighbour::switch)?));
        rails.into_iter().filter_map(switch).collect()
    }

    /// Returns the attachments of the readable records.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.records.iter().filter_map(|record| match record {
            Record::Good { attachment, .. } => Some(&**attachment),
            _ => None,
        })
    }

    /// Returns the attachments whose pods are running, or for which a verb is running, without rails that have returned
    /// to the host.
    pub fn living(&self) -> Vec<Attachment> {
        let living = self.records.iter().filter_map(|record| match record {
            Record::Good {
                attachment,
                lives,
                busy,
                ..
            } if *lives || *busy => Some((**attachment).clone().without_returned()),
            _ => None,
        });
        living.collect()
    }
}
