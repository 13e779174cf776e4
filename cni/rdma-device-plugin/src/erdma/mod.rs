//! Nodes with eRDMA NICs: which there are, their driver's mode, and NICs that nobody configured.
//!
//! | module | owns |
//! |---|---|
//! | `discovery` | which NICs there are, and which of them are used |
//! | `driver` | the driver's mode, and the way to the one that is wanted |
//! | `bring_up` | NICs that nobody configured |
//! | `instance` | the instance's id, kept for the next start |
//! | `metadata` | what the cloud knows of them |
//! | `reconciler` | when all of this is done in a running daemon |
//! | `report`, `table` | how it stands, for the daemon and for people |

pub mod bring_up;
pub mod discovery;
pub mod driver;
pub mod instance;
pub mod metadata;
pub mod reconciler;
mod report;
mod table;

pub use discovery::{Discovery, discover};
pub use report::{Report, Side};
pub use table::table;

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
