// SPDX-License-Identifier: Apache-2.0
//! The configuration file, in the daemon's own format or in one of three formats of other programs.
//!
//! | module | format | recognised by |
//! |---|---|---|
//! | `own` | the daemon's own | `resources`, `erdma` |
//! | `foreign::mode` | k8s-rdma-sriov-dev-plugin | `mode` |
//! | `foreign::config_list` | k8s-rdma-shared-dev-plugin | `configList` |
//! | `foreign::resource_list` | sriov-network-device-plugin | `resourceList` |
//!
//! A file of each format may also have `chain`, `dra`, `errors`, `lldp`, `reporters` and `fabric`. The module `file`
//! recognises the format. The command line, in `flags`, overrides the file. The other modules are parts of a
//! configuration.

pub mod chain;
pub mod dra;
mod environment;
pub mod erdma;
pub mod errors;
pub mod file;
pub mod flags;
mod foreign;
pub mod lldp;
pub mod name;
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
pub use name::ResourceName;
pub use selector::Selector;

use conf_reader::{Field, Wrong};
use rdma_resources::ContainerLimits;
use selector::Text;
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeSet, fmt};

/// Resource that stands for `/dev/infiniband/rdma_cm` alone, and has no NIC.
pub const CONNECTION_MANAGER: &str = "rdma/connection-manager";

/// Field of [`Conf::fabric`].
const FABRIC: &str = "fabric";

/// Field of [`Conf::cdi`].
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
    /// Containers get devices by CDI names instead of paths.
    pub cdi: bool,
    /// Configuration of eRDMA NICs.
    pub erdma: Erdma,
    /// Our plugin in the chain; `None`: the daemon does not manage the chain.
    pub chain: Option<Chain>,
    /// Resources that claims serve; `None`: none.
    pub dra: Option<Dra>,
    /// Thresholds of error counters for devices' health. Empty: no counter is read, and health does not depend on
    /// counters.
    pub errors: Vec<ErrorThreshold>,
    /// Source of the NICs' switches; `None`: they are not observed.
    pub lldp: Option<Lldp>,
    /// Devlink's health reporters that decide on health; empty: none does.
    pub reporters: Vec<String>,
    /// True to offer [`CONNECTION_MANAGER`], for the pods of the fabric watch.
    pub fabric: bool,
}

impl Conf {
    /// Reads the [`COMMON`] fields of `file` to its `resources` and `erdma`.
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

    /// Returns true if claims serve `resource`, so that the device plugin does not advertise it.
    pub fn by_claims(&self, resource: &ResourceName) -> bool {
        let dra = self.dra.as_ref();
        let is_manager = resource.as_str() == CONNECTION_MANAGER;
        !is_manager && dra.is_some_and(|dra| dra.serves(resource.as_str()))
    }
}

/// A configuration, and remarks for its user.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The configuration.
    pub conf: Conf,
    /// One sentence for each ignored field and each resource that is left out.
    pub remarks: Vec<String>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceConf {
    /// Name of the resource.
    pub name: ResourceName,
    /// Place in the file, `resourceList[0]`.
    pub place: String,
    /// Scheme of the resource's ids.
    pub ids: Ids,
    /// Selectors of the resource's devices. A device must match one of the selectors. Empty: all devices with an RDMA
    /// device.
    pub devices: Vec<Selector>,
    /// Patterns of the netdev that pods are attached to. Empty: `rdma-cni` chooses.
    pub parents: Vec<Text>,
    /// Adds `umad` and `issm` character devices to containers.
    pub umad: bool,
    /// Limits of containers.
    pub limits: ContainerLimits,
    /// Programs for which containers get environment variables.
    pub environment: BTreeSet<Reader>,
    /// Allows a bond as an exclusive device; a pod then gets a child of the bond.
    pub bonds: bool,
    /// True to report the NUMA nodes of the ids to kubelet.
    pub topology: bool,
    /// Number of devices that it must have; `None`: any.
    pub require: Option<Require>,
}

impl ResourceConf {
    /// Returns a resource with the defaults of a format that has no more fields.
    fn new(name: ResourceName, place: &str, ids: Ids, devices: Vec<Selector>) -> Self {
        Self {
            name,
            place: place.to_owned(),
            ids,
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

/// Number of healthy devices that a resource must have before a pod gets any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum Require {
    /// As many as the daemon has observed at most.
    All,
    /// This number.
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
    /// `0`…: each id has all devices, or one device that follows kubelet's NUMA alignment.
    Shared {
        /// Number of ids.
        count: u32,
        /// Devices of an id.
        allocate: Allocate,
    },
    /// `<rdma>/0`…, for each device.
    PerNic {
        /// Number of ids of each device.
        count: u32,
        /// Devices of an id.
        allocate: Allocate,
    },
    /// The device's address.
    Exclusive,
}

/// Devices that a shared id allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocate {
    /// All devices of the resource.
    All,
    /// One device, near the pod's CPUs.
    Numa,
}

/// Default number of ids of a shared resource.
const SHARED_IDS: u32 = 1000;

/// Default number of ids of each NIC.
const NIC_IDS: u32 = 200;

/// Maximum number of ids of a resource: one message to kubelet cannot contain more (4 MiB, gRPC's default).
pub(crate) const MOST_IDS: u32 = 50_000;

/// Maximum number of ids of each NIC, so that a node may have more than eight NICs.
const MOST_NIC_IDS: u32 = 5_000;

/// Checks a resource's name that `field` implies.
fn name_at(name: &str, field: &Field<'_>) -> Result<ResourceName, Wrong> {
    ResourceName::new(name).map_err(|error| field.refused(error.to_string()))
}
