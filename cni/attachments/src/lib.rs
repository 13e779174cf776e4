// SPDX-License-Identifier: Apache-2.0
//! The records of what pods were given. `rdma-cni` writes them, and `rdma-device-plugin` reads them: for
//! health, for metrics, before it takes anything from the node.
//!
//! | module | owns |
//! |---|---|
//! | `record` | what is written: the rails, and their state on the host before the first change |
//! | `stage` | whose the devices of a rail are |
//! | `spared` | whose default routers are kept while a rail is set to forward |
//! | `allocated` | what kubelet gave to the pod's containers of a rail's device |
//! | `smc` | what of SMC-R a pod has |
//! | `made_as` | what an IPoIB child is called on the host |
//! | `desired` | the addresses, routes and rules of a rail |
//! | `other_interface` | the routes and rules of an interface that another plugin made |
//! | [`store`] | the files and the locks around them |
//! | `living` | the records of the node's other pods, and whether those live |
//! | [`given_up`] | what netdevs came back to the host without |
//! | `told` | what programs in a pod are told of its rails |
//! | [`pods`] | which devices are in which pods |
//!
//! Nothing in here changes a netdev or an RDMA device.

mod allocated;
mod attribute;
mod desired;
pub mod given_up;
mod living;
mod made_as;
mod other_interface;
pub mod pods;
mod record;
mod smc;
mod spared;
mod stage;
pub mod store;
mod told;

pub use allocated::{Allocated, Id};
pub use attribute::Attribute;
pub use desired::DesiredLink;
pub use living::settled;
pub use made_as::is_nobodys_child;
pub use other_interface::OtherInterface;
pub use record::{Attachment, FORMAT, Key, Phase, Rail, RailGid, Shared, Sibling};
pub use smc::{Carried, Fit, PlacedEntry, Smc, SmcStatus};
pub use spared::Spared;
pub use stage::Stage;
pub use store::Store;
pub use told::PORTS_OWN_GID;
