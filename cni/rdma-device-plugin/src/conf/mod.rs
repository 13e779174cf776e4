//! The configuration file, in the daemon's own format or one of the three that users have.

pub mod name;

pub use name::ResourceName;

/// A checked configuration: what the node is to offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The resources, in the file's order; no name twice.
    pub resources: Vec<ResourceConf>,
    /// Containers get devices by CDI names instead of paths.
    pub cdi: bool,
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
    /// Whether containers get `umad` and `issm` character devices too.
    pub umad: bool,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// All devices of the resource.
    All,
    /// One device, near the pod's CPUs.
    Numa,
}
