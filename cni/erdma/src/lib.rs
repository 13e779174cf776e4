// SPDX-License-Identifier: Apache-2.0
//! eRDMA NICs: the mode of their driver, and the bring-up of unconfigured NICs. `rdma-device-plugin` selects the NICs
//! and calls this crate.
//!
//! | module | owns |
//! |---|---|
//! | [`bring_up`] | bring-up of unconfigured NICs |
//! | [`driver`] | the driver's mode, the change to the configured mode, and the bind to functions without the driver |
//! | [`instance`] | the instance's id, stored for the daemon's next start |
//! | [`metadata`] | the cloud's metadata service |
//! | [`conf`] | the configuration of bring-up and driver |

pub mod bring_up;
pub mod conf;
pub mod driver;
pub mod instance;
pub mod metadata;

use rdma_netns::{DeviceAddress, HardwareAddress};

/// An eRDMA NIC that the daemon uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name of the RDMA device.
    pub rdma: String,
    /// PCI function of the RDMA device.
    pub address: DeviceAddress,
    /// Name of the netdev; `None`: it is not in this program's namespace.
    pub netdev: Option<String>,
    /// MAC address of the netdev, by which the cloud identifies the NIC.
    pub mac: Option<HardwareAddress>,
}
