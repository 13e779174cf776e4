// SPDX-License-Identifier: Apache-2.0
//! The configuration file, in the daemon's own format or one of the three that users have.
//!
//! | module | format | recognised by |
//! |---|---|---|
//! | `own` | ours | `resources`, `erdma` |
//! | `foreign::mode` | k8s-rdma-sriov-dev-plugin | `mode` |
//! | `foreign::config_list` | k8s-rdma-shared-dev-plugin | `configList` |
//! | `foreign::resource_list` | sriov-network-device-plugin | `resourceList` |
//!
//! Each may have `chain`, `dra` and `errors` beside that. `file` knows which format a file has. What the command line
//! says, in `flags`, wins over the file. The other modules are what a configuration is made of.

pub mod chain;
pub mod dra;
mod environment;
pub mod erdma;
pub mod errors;
pub mod file;
pub mod flags;
mod foreign;
pub mod name;
mod own;
pub mod selector;

pub use chain::Chain;
pub use dra::Dra;
pub use environment::Reader;
pub use erdma::{Erdma, Exposed, Origin};
pub use errors::ErrorThreshold;
pub use file::ConfError;
pub use flags::Flags;
pub use name::ResourceName;
pub use selector::Selector;

use conf_reader::{Field, Wrong};
use selector::Text;
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeSet, fmt};

/// A checked configuration: what the node is to offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The resources, in the file's order; no name twice.
    pub resources: Vec<ResourceConf>,
    /// Containers get devices by CDI names instead of paths.
    pub cdi: bool,
    /// What is done with eRDMA NICs.
    pub erdma: Erdma,
    /// Our plugin's place in the chain; none: it is not this program's business.
    pub chain: Option<Chain>,
    /// What is served by claims; none: nothing is.
    pub dra: Option<Dra>,
    /// The error counters that decide on health; none: no counter is read for that.
    pub errors: Vec<ErrorThreshold>,
}

impl Conf {
    /// Whether `resource` is served by claims: kubelet's device plugins have nothing of it.
    pub fn by_claims(&self, resource: &ResourceName) -> bool {
        let dra = self.dra.as_ref();
        dra.is_some_and(|dra| dra.serves(resource.as_str()))
    }
}

/// A configuration, and what its user should know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The configuration.
    pub conf: Conf,
    /// One sentence each: fields that are passed over, resources that are left out.
    pub remarks: Vec<String>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceConf {
    /// Its name.
    pub name: ResourceName,
    /// Where in the file it is, `resourceList[0]`.
    pub place: String,
    /// How its ids are made.
    pub ids: Ids,
    /// Its devices: those that fit one of the selectors; without a selector, all that have an
    /// RDMA device.
    pub devices: Vec<Selector>,
    /// The netdev of a device that pods are attached to: one that fits one of these. Empty: as `rdma-cni` chooses.
    pub parents: Vec<Text>,
    /// Whether containers get `umad` and `issm` character devices too.
    pub umad: bool,
    /// For whom containers' environment is set up.
    pub environment: BTreeSet<Reader>,
    /// Whether a bond can be one pod's alone, which is then given a child of it.
    pub bonds: bool,
    /// Whether kubelet is told the NUMA nodes of its ids.
    pub topology: bool,
    /// How many devices it has to have; none: what there is will do.
    pub require: Option<Require>,
}

impl ResourceConf {
    /// A resource with the defaults of a format that says no more of it.
    fn new(name: ResourceName, place: &str, ids: Ids, devices: Vec<Selector>) -> Self {
        Self {
            name,
            place: place.to_owned(),
            ids,
            devices,
            parents: Vec::new(),
            umad: false,
            environment: BTreeSet::new(),
            bonds: false,
            topology: true,
            require: None,
        }
    }
}

/// How many devices of a resource there have to be, and healthy, before a pod gets any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum Require {
    /// All that the daemon has seen of it.
    All,
    /// So many.
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

/// How a resource's ids are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// `0`…: each for all devices, or for one, as kubelet's NUMA alignment goes.
    Shared {
        /// How many.
        count: u32,
        /// What each stands for.
        allocate: Allocate,
    },
    /// `<rdma>/0`…, for each device.
    PerNic {
        /// How many of each device.
        count: u32,
        /// What each stands for.
        allocate: Allocate,
    },
    /// The device's address.
    Exclusive,
}

/// What a shared id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocate {
    /// All devices of the resource.
    All,
    /// One device, near the pod's CPUs.
    Numa,
}

/// Ids of a shared resource where the file does not say.
const SHARED_IDS: u32 = 1000;

/// Ids of each NIC where the file does not say.
const NIC_IDS: u32 = 200;

/// More ids than this would not fit into one message to kubelet (4 MiB, gRPC's default).
pub(crate) const MOST_IDS: u32 = 50_000;

/// The same for each NIC, of which there may be more than eight.
const MOST_NIC_IDS: u32 = 5_000;

/// A resource's name that is not what `field` itself says.
fn name_at(name: &str, field: &Field<'_>) -> Result<ResourceName, Wrong> {
    ResourceName::new(name).map_err(|error| field.refused(error.to_string()))
}
