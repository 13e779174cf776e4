// SPDX-License-Identifier: Apache-2.0
//! Losses of a node: devices that containers cannot use.

use crate::{Gone, Offer, Unhealthy};
use rdma_netns::DeviceAddress;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A device that containers cannot use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Resource that cannot use the healthy device. `None`: no resource can use the device.
    pub resource: Option<String>,
    /// RDMA device. `None`: unknown since the daemon was restarted.
    pub rdma: Option<String>,
    /// Reason.
    pub reason: String,
    /// True if the device is gone, as defined by [`Gone`].
    pub is_gone: bool,
}

/// Formats `0000:3b:00.0 (mlx5_0): its netdev ens1 has no carrier`, `0000:3b:00.0 (mlx5_0) in rdma/a: bond0.100 is
/// down`, or `0000:3b:00.0 (mlx5_0) is no longer on this node`.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if let Some(rdma) = &self.rdma {
            write!(f, " ({rdma})")?;
        }
        match &self.resource {
            _ if self.is_gone => f.write_str(" is no longer on this node"),
            Some(resource) => write!(f, " in {resource}: {}", self.reason),
            None => write!(f, ": {}", self.reason),
        }
    }
}

/// Returns the losses of a node with the offers `offers`, the unhealthy devices `unhealthy`, and the gone devices
/// `gone` of each resource. A device of several resources is one loss if no resource can use it.
pub fn losses<'a>(
    offers: impl IntoIterator<Item = &'a Offer>,
    unhealthy: &Unhealthy,
    gone: &BTreeMap<String, Vec<Gone>>,
) -> BTreeSet<Loss> {
    let offered = offers.into_iter().flat_map(|offer| {
        offer.devices.iter().filter_map(|device| {
            let is_own = !unhealthy.contains_key(&device.address);
            Some(Loss {
                address: device.address.clone(),
                resource: is_own.then(|| offer.name.to_string()),
                rdma: Some(device.hca.name.clone()),
                reason: device.fault.clone()?,
                is_gone: false,
            })
        })
    });
    let mut names = BTreeMap::new();
    for it in gone.values().flatten() {
        // `Gone` has no name of the RDMA device if the daemon has not offered the resource since the daemon's start
        let name = names.entry(&it.address).or_insert(None);
        *name = name.or(it.rdma.as_ref());
    }
    let gone = names.into_iter().map(|(address, rdma)| Loss {
        address: address.clone(),
        resource: None,
        rdma: rdma.cloned(),
        reason: "it is no longer on this node".to_owned(),
        is_gone: true,
    });
    offered.chain(gone).collect()
}
