//! What was seen at one moment: the host's namespace and one pod's.

use crate::{Device, DeviceAddress, Link, NetnsId, RdmaDevice, RdmaMode};
use serde::{Deserialize, Serialize};

/// The state that plans are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// None: the kernel has no RDMA subsystem (`ib_core` is not loaded).
    pub rdma_mode: Option<RdmaMode>,
    /// PCI functions and auxiliary devices that have, or can have, a netdev or an RDMA
    /// device, whatever namespace these are in.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// The namespace that this program runs in.
    pub host: Namespace,
    /// The pod's, if it still lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Namespace>,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Which one it is.
    pub id: NetnsId,
    /// Its netdevs.
    pub links: Vec<Link>,
    /// The RDMA devices that are seen in it (all of the node in shared mode).
    #[serde(default)]
    pub rdma: Vec<RdmaDevice>,
}

impl Observed {
    /// The namespace at `place`, if it was observed.
    pub fn at(&self, place: crate::Place) -> Option<&Namespace> {
        match place {
            crate::Place::Host => Some(&self.host),
            crate::Place::Pod => self.pod.as_ref(),
        }
    }

    /// The PCI function or auxiliary device at `address`.
    pub fn device(&self, address: &DeviceAddress) -> Option<&Device> {
        self.devices
            .iter()
            .find(|device| device.address == *address)
    }
}

impl Namespace {
    /// The netdev called `name`; alternative names count, as they do for the kernel.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links
            .iter()
            .find(|link| &*link.name == name || link.alt_names.iter().any(|alt| alt == name))
    }

    /// The netdev with `index`.
    pub fn link_by_index(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The RDMA device whose port `link` is, else the one of the same PCI function or
    /// auxiliary device.
    pub fn rdma_of(&self, link: &Link) -> Option<&RdmaDevice> {
        self.rdma
            .iter()
            .find(|rdma| rdma.has_netdev(link.index))
            .or_else(|| {
                let parent = link.parent.as_ref()?;
                self.rdma
                    .iter()
                    .find(|rdma| rdma.parent.as_ref() == Some(parent))
            })
    }
}
