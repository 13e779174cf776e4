// SPDX-License-Identifier: Apache-2.0
//! Plans: lists of operations from an observed state to the state in an attachment's record. This crate is pure: it
//! never reads or changes a kernel. A plan is empty if nothing remains to do. A restore is a plan towards the recorded
//! host state.
//!
//! | module | owns |
//! |---|---|
//! | [`allocation`] | kubelet's allocation for a pod: ids resolved to devices |
//! | [`select`] | the selection of a pod's devices |
//! | `attach`, `routing` | the operations that move a pod's devices into the pod |
//! | `other_interfaces` | routes and rules of the pod's interfaces that other plugins made |
//! | `children` | the removal of children of several rails, by one deletion |
//! | `detach`, [`given_up`] | the operations that restore devices to the host, and attributes that could not be restored |
//! | `leftovers` | the removal of objects that the pod made on its devices |
//! | `function` | virtual functions: their settings and their drivers |
//! | `rdma_name` | the names of RDMA devices, which pods can change |
//! | `spared` | the default routers of other netdevs, which the kernel would drop |
//! | `managed` | attributes that a network manager removed after the restore |
//! | [`drift`] | an operation as a deviation in words, for CHECK |

pub mod allocation;
mod attach;
mod children;
mod detach;
mod draft;
pub mod drift;
mod function;
pub mod given_up;
mod leftovers;
mod locate;
mod managed;
mod other_interfaces;
mod rdma_name;
mod routing;
pub mod select;
mod spared;

pub use attach::{attach, attach_rail, bearer};
pub use children::{child_removed, children_together, limit_to_batch};
pub use detach::{Others, detach, detach_beside, gone, home, missing_of};
pub use function::{Rebind, are_named, is_rebound, is_unreported, rebinds};
pub use leftovers::{is_of_others, left_in_pod};
pub use locate::{rdma_anywhere, rdma_on_host};
pub use managed::{has_to_outlast, taken_away};
pub use other_interfaces::{attach_other_interfaces, divert};
pub use rdma_name::renamed;
pub use routing::{choose_tables, connected, routed, rules_of};
pub use spared::{drops_routers, spare, spare_no_more, still_spared, to_spare, without_spared};

use rdma_netns::{InterfaceName, NetnsSide, Op};

/// An obstacle between the observed and the desired state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Another netdev has the name that the netdev needs.
    #[error(
        "{link} cannot get its name {name} on the host, because another netdev has the name; rename the other netdev \
         and try again"
    )]
    HostNameTaken {
        /// The netdev, by its present name.
        link: InterfaceName,
        /// The netdev's recorded name.
        name: InterfaceName,
    },
    /// The name is taken in the pod.
    #[error("interface {name} exists in the pod already")]
    PodNameTaken {
        /// The name.
        name: InterfaceName,
    },
    /// The parent of a child is down, so the child could not be set up.
    #[error("{parent} is down: set it up on the host, so that pods can share it")]
    ParentDown {
        /// The netdev's name on the host.
        parent: InterfaceName,
    },
    /// A child's packets pass through its parent.
    #[error("mtu: {mtu} is more than the {limit} of {parent}")]
    MtuTooLarge {
        /// The parent's name on the host.
        parent: InterfaceName,
        /// Bytes.
        mtu: u32,
        /// Bytes.
        limit: u32,
    },
    /// A sysctl disables IPv6.
    #[error(
        "{link} cannot have its IPv6 address: IPv6 is switched off in the pod \
         (net.ipv6.conf.{link}.disable_ipv6 is 1; see net.ipv6.conf.default.disable_ipv6)"
    )]
    Ipv6Disabled {
        /// The netdev's name in the pod.
        link: InterfaceName,
    },
    /// No table number from the base on is free.
    #[error(
        "routing.tableBase: the pod uses all routing tables from {base} on; choose a lower base"
    )]
    NoTables {
        /// `routing.tableBase`
        base: u32,
    },
    /// The MTU is too small for IPv6.
    #[error("mtu: {mtu} is too small for the IPv6 addresses of {link}: IPv6 needs 1280")]
    MtuTooSmall {
        /// The netdev's name on the host.
        link: InterfaceName,
        /// Bytes.
        mtu: u32,
    },
    /// The kernel would wait for connections that a process has open.
    #[error(
        "RDMA device {device} cannot be moved: {} has SMC connections over it open ({count}), and the move would \
         wait uninterruptibly until they end; end the process or its connections, and try again",
        match from { NetnsSide::Host => "a process on the host", NetnsSide::Pod => "a process of the pod" }
    )]
    Held {
        /// The RDMA device.
        device: String,
        /// Number of connections.
        count: u32,
        /// The RDMA device's namespace.
        from: NetnsSide,
    },
    /// The kernel would wait for the sub-device's reference.
    #[error(
        "RDMA device {device} cannot be moved while it has the sub-device {sub_device}, because the move would wait \
         until the sub-device is gone: delete it (rdma dev delete {sub_device}), or set the RDMA subsystem to shared \
         mode"
    )]
    HasSubDevice {
        /// The RDMA device.
        device: String,
        /// The sub-device.
        sub_device: String,
    },
    /// Netdevs of the pod that are not rails. Another plugin may have moved them there from the host.
    #[error(
        "{links}, as a netdev of the host that another plugin moved: a DEL that finds it again removes it; to keep it, move it \
         to the host"
    )]
    MayBeHosts {
        /// A clause for each, with its alias.
        links: String,
        /// Their indexes in the pod.
        indexes: Vec<u32>,
    },
    /// The device exists, but is in neither namespace.
    #[error(
        "{device} is not back on the host: it is in another namespace, or its pod's namespace is \
         kept alive by a process"
    )]
    InAnotherNetns {
        /// Name of the netdev or RDMA device.
        device: String,
    },
    /// The device does not exist.
    #[error("{device} is neither on the host nor in the pod")]
    Vanished {
        /// Name of the netdev or RDMA device.
        device: String,
    },
}

/// The plan of one rail.
pub type RailPlan = Result<Vec<Op>, Obstacle>;
