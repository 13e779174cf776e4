// SPDX-License-Identifier: Apache-2.0
//! Configuration file of `rdma-device-plugin`, in its own format or in one of three formats of other programs.
//!
//! | module | format | recognised by |
//! |---|---|---|
//! | `own` | own format | `resources`, `erdma` |
//! | `foreign::mode` | k8s-rdma-sriov-dev-plugin | `mode` |
//! | `foreign::config_list` | k8s-rdma-shared-dev-plugin | `configList` |
//! | `foreign::resource_list` | sriov-network-device-plugin | `resourceList` |
//!
//! A file of each format may also have the fields in `COMMON`. The module `file` recognises the format. The command
//! line (`flags`) overrides the file. Each other module contains one part of a configuration.

pub mod chain;
pub mod dra;
mod environment;
pub mod erdma;
pub mod errors;
pub mod file;
pub mod flags;
mod foreign;
pub mod lldp;
mod own;
mod reporters;
pub mod selector;

pub use chain::Chain;
pub use dra::Dra;
pub use environment::Reader;
pub use erdma::{Erdma, Exposed, Origin};
pub use errors::ErrorThreshold;
pub use flags::Flags;
pub use lldp::Lldp;
pub use network_conf::ResourceName;
pub use selector::Selector;

use conf_reader::{Field, Wrong};
use rdma_resources::ContainerLimits;
use selector::Text;
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeSet, fmt};

/// Name of the resource that consists only of `/dev/infiniband/rdma_cm`, without a NIC.
pub const CONNECTION_MANAGER: &str = "rdma/connection-manager";

const FABRIC: &str = "fabric";

const CDI: &str = "cdi";

/// Fields that a file of any format can have.
const COMMON: [&str; 7] = [
    CDI,
    chain::FIELD,
    dra::FIELD,
    errors::FIELD,
    lldp::FIELD,
    reporters::FIELD,
    FABRIC,
];

/// A checked configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conf {
    /// Resources in the file's order, with unique names.
    pub resources: Vec<ResourceConf>,
    /// True if containers get devices by CDI names instead of paths.
    pub cdi: bool,
    /// Configuration of eRDMA NICs.
    pub erdma: Erdma,
    /// Configuration of `rdma-cni` in the chain; `None`: the daemon does not manage the chain.
    pub chain: Option<Chain>,
    /// Configuration of the DRA driver. `None`: no resource is allocated by claims.
    pub dra: Option<Dra>,
    /// Thresholds of error counters. A device above a threshold is unhealthy. Empty: no counter affects health.
    pub errors: Vec<ErrorThreshold>,
    /// Source from which the daemon learns the NICs' switches. `None`: the daemon does not observe the switches.
    pub lldp: Option<Lldp>,
    /// Devlink health reporters whose state `error` makes a NIC unhealthy. Empty: no reporter affects health.
    pub reporters: Vec<String>,
    /// True if the daemon offers [`CONNECTION_MANAGER`] to the pods of the fabric watch.
    pub fabric: bool,
}

impl Conf {
    /// Reads the [`COMMON`] fields of `file`. Returns a configuration of these fields, `resources` and `erdma`.
    fn read_common(
        file: &Field<'_>,
        resources: Vec<ResourceConf>,
        erdma: Erdma,
    ) -> Result<Self, Wrong> {
        Ok(Self {
            cdi: file.get(CDI)?.unwrap_or(false),
            chain: chain::read(file)?,
            dra: dra::read(file, &resources)?,
            errors: errors::read(file)?,
            lldp: lldp::read(file)?,
            reporters: reporters::read(file)?,
            fabric: file.get(FABRIC)?.unwrap_or(false),
            resources,
            erdma,
        })
    }

    /// Returns true if `resource` is allocated by claims. The device plugin then does not advertise it.
    pub fn by_claims(&self, resource: &ResourceName) -> bool {
        let dra = self.dra.as_ref();
        let is_manager = resource.as_str() == CONNECTION_MANAGER;
        !is_manager && dra.is_some_and(|dra| dra.serves(resource.as_str()))
    }
}

/// Configuration with remarks for the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The configuration.
    pub conf: Conf,
    /// The remarks, one sentence each, such as about an ignored field, an overridden value or a resource that the
    /// daemon leaves out.
    pub remarks: Vec<String>,
}

/// Configuration of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceConf {
    /// Name of the resource.
    pub name: ResourceName,
    /// Place in the configuration file, such as `resourceList[0]`.
    pub place: String,
    /// Scheme of the resource's ids.
    pub ids: Ids,
    /// True if the configuration does not set the number of ids.
    pub has_default_count: bool,
    /// Selectors of the resource's devices. A device must match at least one selector. Empty: all devices with an RDMA
    /// device match.
    pub devices: Vec<Selector>,
    /// Patterns for the parent netdev of pods' child netdevs. Empty: `rdma-cni` chooses the parent.
    pub parents: Vec<Text>,
    /// True if containers also get the `umad` and `issm` character devices.
    pub umad: bool,
    /// Limits of each container: locked memory and RDMA resources.
    pub limits: ContainerLimits,
    /// Programs for which containers get environment variables.
    pub environment: BTreeSet<Reader>,
    /// True if a bond may be an exclusive device. A pod then gets a child netdev of the bond.
    pub bonds: bool,
    /// True if the daemon reports the NUMA nodes of the ids to kubelet.
    pub topology: bool,
    /// Number of healthy devices that the resource must have; `None`: any number.
    pub require: Option<Require>,
}

impl ResourceConf {
    /// Returns a resource with defaults for the fields that most formats lack.
    fn new(name: ResourceName, place: &str, ids: Ids, devices: Vec<Selector>) -> Self {
        Self {
            name,
            place: place.to_owned(),
            ids,
            has_default_count: false,
            devices,
            parents: Vec::new(),
            umad: false,
            limits: ContainerLimits::default(),
            environment: BTreeSet::new(),
            bonds: false,
            topology: true,
            require: None,
        }
    }
}

/// Number of healthy devices that a resource must have. With fewer healthy devices, all ids of the resource are
/// unhealthy, and pods that request it wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum Require {
    /// All devices: those that are present, and those that are gone from the node's bus.
    All,
    /// A fixed number.
    Number(u32),
}

impl fmt::Display for Require {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Scheme of a resource's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Ids `0`, `1` and so on. With an id, a container gets all devices, or the one device of the id.
    Shared {
        /// Number of ids.
        count: u32,
        /// Devices that a container gets with an id.
        allocate: Allocate,
    },
    /// Ids of each device, such as `mlx5_0/0` and `mlx5_0/1` with the name of the RDMA device.
    PerNic {
        /// Number of ids of each device.
        count: u32,
        /// Devices that a container gets with an id.
        allocate: Allocate,
    },
    /// One id for each device: the device's address.
    Exclusive,
}

/// Devices that a container gets with an id of a resource that is not exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocate {
    /// All devices of the resource.
    All,
    /// The one device of the id.
    Numa,
}

/// Default number of ids of a shared resource. The number is lower if fewer pods fit into the GID tables.
const SHARED_IDS: u32 = 1000;

/// Default number of ids of each NIC. The number is lower if fewer pods fit into the GID tables.
const NIC_IDS: u32 = 200;

/// Maximum number of ids of a resource. A message to kubelet with more ids could exceed gRPC's default limit of 4 MiB.
pub const MOST_IDS: u32 = 50_000;

/// Maximum number of ids of each NIC. With this number, ten NICs of a node fit into [`MOST_IDS`].
const MOST_NIC_IDS: u32 = 5_000;
