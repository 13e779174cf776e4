//! Plans: lists of changes, made from an attachment's record and an observed state. Pure:
//! nothing in here reads or changes a kernel, and a plan for a state that is as it should
//! be is empty. Restoring is planning towards the recorded state.

mod attach;
mod detach;
mod draft;
pub mod drift;
mod locate;
mod wanted;

pub use attach::{attach, attach_rail};
pub use detach::{detach, gone};
pub use wanted::{Wanted, beside_others};

use rdma_netns::{InterfaceName, Op};

/// Why there is no way from the observed state to the wanted one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The name that a netdev has to get is another one's.
    #[error(
        "{link} cannot get its name {name} on the host, which another netdev has; rename that one \
         and try again"
    )]
    HostNameTaken {
        /// The netdev, where it is now.
        link: InterfaceName,
        /// The name that it had.
        name: InterfaceName,
    },
    /// The name is taken in the pod.
    #[error("interface {name} exists in the pod already")]
    PodNameTaken {
        /// The name.
        name: InterfaceName,
    },
    /// IPv6 needs more.
    #[error("mtu: {mtu} is too small for the IPv6 addresses of {link}: IPv6 needs 1280")]
    MtuTooSmall {
        /// The netdev's name on the host.
        link: InterfaceName,
        /// Bytes.
        mtu: u32,
    },
    /// The device exists, but is in neither namespace.
    #[error(
        "{device} is not back on the host: it is in another namespace, or its pod's namespace is \
         kept alive by a process"
    )]
    NotHome {
        /// Name of the netdev or RDMA device.
        device: String,
    },
    /// The device is nowhere.
    #[error("{device} is neither on the host nor in the pod")]
    Vanished {
        /// Name of the netdev or RDMA device.
        device: String,
    },
}

/// The plan of one rail.
pub type RailPlan = Result<Vec<Op>, Obstacle>;
