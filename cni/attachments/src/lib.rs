// SPDX-License-Identifier: Apache-2.0
//! Records of attachments. `rdma-cni` writes them, and `rdma-device-plugin` also reads them.
//!
//! | module | owns |
//! |---|---|
//! | `record` | the rails, and their state on the host before the first change |
//! | `shared` | a netdev of the host with pods' children |
//! | `stage` | the owner of a rail's devices |
//! | `spared` | netdevs that keep their default routers while a restore sets `forwarding` on a rail |
//! | `allocated` | kubelet's allocation for a rail |
//! | `smc` | the SMC-R set-up of a pod |
//! | `made_as` | the name of an IPoIB child on the host |
//! | `desired` | the addresses, routes and rules of a rail |
//! | `other_interface` | the routes and rules of an interface that another plugin made |
//! | [`store`] | the files and the locks around them |
//! | `lock_file` | lock files that their last holder may remove |
//! | `gid_locks` | the locks of addresses whose GIDs ADD awaits |
//! | [`libraries`] | the environment variables by which libraries find a pod's rails |
//! | `living` | the records of the node's pods, and the check whether the pods are alive |
//! | [`given_up`] | attributes that could not be restored |
//! | `description` | the description of rails for programs in the pod |
//! | [`pods`] | devices in pods |
//!
//! This crate never changes a netdev or an RDMA device.

mod allocated;
mod attribute;
mod description;
mod desired;
mod gid_locks;
pub mod given_up;
pub mod libraries;
mod living;
mod lock_file;
mod made_as;
mod other_interface;
pub mod pods;
mod record;
mod shared;
mod smc;
mod spared;
mod stage;
pub mod store;

pub use allocated::{Allocated, Id};
pub use attribute::Attribute;
pub use description::PORTS_OWN_GID;
pub use desired::DesiredLink;
pub use living::settled;
pub use made_as::is_orphaned_child;
pub use other_interface::OtherInterface;
pub use record::{Attachment, FORMAT, Key, Phase, Rail, RailGid, Sibling};
pub use shared::Shared;
pub use smc::{Carried, Fit, PlacedEntry, Smc, SmcStatus};
pub use spared::Spared;
pub use stage::Stage;
pub use store::Store;
