// SPDX-License-Identifier: Apache-2.0
//! eRDMA NICs: the mode of their driver, and those that nobody configured. Which NICs there are, and when
//! something is done, `rdma-device-plugin` says.
//!
//! | module | owns |
//! |---|---|
//! | [`bring_up`] | NICs that nobody configured |
//! | [`driver`] | the driver's mode, and the way to the one that is wanted |
//! | [`instance`] | the instance's id, kept for the next start |
//! | [`metadata`] | what the cloud knows of them |
//! | [`conf`] | what is configured of both |

pub mod bring_up;
pub mod conf;
pub mod driver;
pub mod instance;
pub mod metadata;

use rdma_netns::{DeviceAddress, HardwareAddress};

/// An eRDMA NIC that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its RDMA device.
    pub rdma: String,
    /// The PCI function that is the RDMA device's.
    pub address: DeviceAddress,
    /// Its netdev, where it is in this program's namespace.
    pub netdev: Option<String>,
    /// The netdev's hardware address, by which the cloud knows the NIC.
    pub mac: Option<HardwareAddress>,
}
