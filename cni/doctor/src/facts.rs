// SPDX-License-Identifier: Apache-2.0
//! The observed state of the node, as plain data: the only input of [`examine`](super::examine).

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

/// A node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Facts {
    /// The version of this program.
    pub version: String,
    /// `/proc/sys/kernel/osrelease`
    pub release: String,
    /// Parts that could not be observed.
    pub unseen: Vec<Unseen>,
    /// Parts that the container of this program cannot observe.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub hidden: BTreeSet<Part>,
    /// Kernel modules that matter here, by name.
    pub modules: BTreeMap<String, ModuleState>,
    /// Settings of the RDMA subsystem's mode at boot; the last one counts.
    pub boot_modes: Vec<BootMode>,
    /// Rule by which udev names RDMA devices; `None`: the devices have the kernel's names.
    pub naming: Option<Naming>,
    /// The kernel's rdma controller.
    pub rdma_cgroup: RdmaCgroup,
    /// Pods whose cgroup went with its limits of RDMA devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits_left: Vec<String>,
    /// Conditions of GPUDirect; none: the node has no accelerators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpudirect: Option<GpuDirect>,
    /// Netdevs, RDMA devices and the hardware behind them.
    pub observed: Option<Observed>,
    /// The modes of bonds (`802.3ad`), by their names.
    pub bond_modes: BTreeMap<String, String>,
    /// GID tables of the RDMA devices on the host.
    pub gids: Vec<PortGids>,
    /// State of SMC; none: the kernel has none, or has not loaded it.
    pub smc: Option<SmcState>,
    /// Network configuration of the runtime.
    pub chain: Chain,
    /// Programs that the chain needs.
    pub binaries: Vec<Binary>,
    /// Kubelet's pod-resources socket.
    pub pod_resources: Option<Socket>,
    /// Container runtimes on the node.
    pub runtimes: Vec<Runtime>,
    /// The daemon.
    pub daemon: Daemon,
    /// Switches that the daemon has heard by LLDP.
    #[serde(skip_serializing_if = "is_empty")]
    pub switches: Switches,
    /// Records of attachments.
    pub records: Vec<Record>,
    /// Records that were set aside because they could not be read.
    pub aside: Vec<PathBuf>,
    /// Why records of claims cannot be read, by record.
    pub unreadable_claims: Vec<String>,
    /// Netdevs that returned to the host and lack an attribute.
    pub given_up: Vec<Note>,
    /// Leases of the IPAM plugin, if its directory has host-local's format.
    pub leases: Vec<Lease>,
    /// Attachments in libcni's cache, as file names `network-container-interface`. `None`: there is no such cache.
    pub cached: Option<BTreeSet<String>>,
}

/// A part of the node that could not be observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unseen {
    /// The part.
    pub what: String,
    /// The system's answer.
    pub why: String,
}

/// Reason why a part of the node is unseen: it is not mounted in this program's container.
pub const NOT_MOUNTED: &str = "not visible from here";

/// Why netdevs are unseen.
pub const ANOTHER_NETNS: &str = "this program does not run in the host's network namespace";

impl Unseen {
    /// Returns the remedy; none: the reason names it.
    pub fn remedy(&self) -> Option<&'static str> {
        // EPERM, EACCES
        let is_denied = ["(os error 1)", "(os error 13)"]
            .iter()
            .any(|it| self.why.contains(it));
        if self.why.contains(NOT_MOUNTED) {
            Some("run it on the node, outside of a container")
        } else if self.why == ANOTHER_NETNS {
            Some("run it in the host's network namespace (nsenter -t 1 -n)")
        } else {
            is_denied.then_some("run it as root")
        }
    }
}

/// A part of the node that may be invisible in a container. Nothing of an invisible part is reported as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Modules that could be loaded.
    Modules,
    /// Settings of the RDMA subsystem's mode at boot.
    Boot,
    /// Rules of udev for names of RDMA devices.
    Naming,
    /// Network configurations.
    Chain,
    /// Programs of plugins.
    Programs,
    /// Leases of IPAM plugins.
    Leases,
    /// Sockets and limits of container runtimes.
    Runtimes,
}

/// A kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ModuleState {
    /// Loaded, or built into the kernel.
    Loaded,
    /// Not loaded, and loadable.
    Available,
    /// The kernel has no such module.
    Missing,
    /// Not loaded; unknown if it can be.
    Unknown,
}

/// A setting of the RDMA subsystem's mode at boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootMode {
    /// File of the setting.
    pub file: PathBuf,
    /// The mode.
    pub mode: RdmaMode,
}

/// The udev rule by which RDMA devices get their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Naming {
    /// The rule's file.
    pub file: PathBuf,
    /// `NAME_FALLBACK`, `NAME_KERNEL`…
    pub policy: String,
}

/// The GID table of one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortGids {
    /// The RDMA device's name.
    pub device: String,
    /// Number, from 1.
    pub port: u32,
    /// The table.
    pub table: GidTable,
}

/// The directory of network configurations, and the runtime's choice among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Chain {
    /// The directory.
    pub directory: PathBuf,
    /// Name of the network to examine, if the caller gave one. `None`: the network that the runtime uses for pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The network that the runtime uses; `None`: the directory has no usable network.
    pub picked: Option<Picked>,
    /// The broken file at which the runtime stops.
    pub blocked: Option<Skipped>,
    /// Files that come before, or instead, and cannot be used.
    pub skipped: Vec<Skipped>,
}

/// The network that the runtime uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Picked {
    /// File of the network.
    pub file: PathBuf,
    /// `name`
    pub network: String,
    /// `cniVersion`
    pub cni_version: String,
    /// The plugins' types, in order.
    pub plugins: Vec<String>,
    /// Index of the first plugin that is, or calls, this plugin.
    pub place: Option<usize>,
    /// True if that plugin calls it (Multus).
    pub delegated: bool,
    /// True if it is in the network's own directory, which libcni reads since 1.3.
    pub in_directory: bool,
    /// This plugin's configuration, as the runtime passes it.
    pub ours: Option<Map<String, Value>>,
    /// Fields of further entries of `rdma-cni` in the list. A correct list has only one entry.
    pub again: Vec<Map<String, Value>>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// The file.
    pub file: PathBuf,
    /// Why.
    pub why: String,
}

/// A program in the CNI directory of programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// Path, also of an absent program.
    pub path: PathBuf,
    /// State of the file.
    #[serde(flatten)]
    pub state: BinaryState,
}

/// State of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum BinaryState {
    /// The file does not exist.
    Absent,
    /// The path is no executable file.
    NotExecutable,
    /// The program exists. As the program belongs to another project, its version is irrelevant.
    There,
    /// The program exists, and reported its version.
    Version {
        /// Output after `--version`.
        version: String,
    },
    /// The program exists, and did not report its version.
    Mute {
        /// Reason.
        why: String,
    },
}

/// A Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Path.
    pub path: PathBuf,
    /// Reason why no server answers at the socket. `None`: a server answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
}

/// A container runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Runtime {
    /// `containerd`
    pub name: String,
    /// CRI socket of the runtime.
    pub socket: Socket,
    /// Memory that its containers can lock, bytes (`Max locked memory`, soft).
    #[serde(default)]
    pub memlock: Memlock,
}

/// A limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Memlock {
    /// The runtime's process was not found.
    #[default]
    Unknown,
    /// No limit.
    Unlimited,
    /// Bytes.
    Bytes(u64),
}

/// `rdma-device-plugin`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Daemon {
    /// Sockets of the daemon for kubelet, one for each resource.
    pub sockets: Vec<Socket>,
    /// Content of the daemon's `resources.json`.
    pub published: Option<Published>,
    /// The reason why that cannot be read.
    pub unreadable: Option<String>,
    /// Time since that last changed, seconds.
    pub age: u64,
}

/// A record of an attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Record {
    /// Readable record.
    Good {
        /// The attachment.
        attachment: Box<Attachment>,
        /// True if its pod lives.
        lives: bool,
        /// True if a verb works on the attachment.
        #[serde(default)]
        busy: bool,
        /// Time since it was written, seconds.
        #[serde(default)]
        age: u64,
        /// One sentence for each child in the pod whose mode has changed since ADD.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed_children: Vec<String>,
    },
    /// Unreadable record.
    Corrupt {
        /// Attachment of the record.
        key: Key,
        /// Why not.
        why: String,
    },
    /// Record of a later version.
    Newer {
        /// Attachment of the record.
        key: Key,
        /// Format of the record.
        format: u64,
    },
}

/// A lease in host-local's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Container that has the lease.
    pub container: String,
    /// Interface of the container, if the lease has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

fn is_empty(switches: &Switches) -> bool {
    switches.0.is_empty()
}

impl Facts {
    /// The state of a module.
    pub fn module(&self, name: &str) -> ModuleState {
        let state = self.modules.get(name).copied();
        state.unwrap_or(ModuleState::Unknown)
    }

    /// Returns the switches of the node's rails, by the name of the bond, RDMA device or netdev. A bond on two switches
    /// has both.
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

    /// The attachments whose records can be read.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.records.iter().filter_map(|record| match record {
            Record::Good { attachment, .. } => Some(&**attachment),
            _ => None,
        })
    }

    /// The attachments whose pods live, or that a verb is at work on.
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
