// SPDX-License-Identifier: Apache-2.0
//! Plans: lists of operations from an observed state to the state in an attachment's record. This crate is pure: it
//! neither reads nor changes a kernel. A plan is empty if the kernel has the desired state. A restore is a plan whose
//! result is the recorded host state.
//!
//! | module | owns |
//! |---|---|
//! | [`allocation`] | kubelet's allocation for a pod: ids resolved to devices |
//! | [`select`] | the selection of a pod's devices |
//! | `attach`, `routing` | the operations that move a pod's devices into the pod |
//! | `tables` | the routing tables of a new attachment |
//! | `other_interfaces` | routes and rules of the pod's interfaces that other plugins made |
//! | `children` | the removal of children of several rails, by one deletion |
//! | `detach`, [`given_up`] | the operations that restore devices to the host, and attributes that could not be restored |
//! | `leftovers` | the removal of objects that the pod made on its devices |
//! | `function` | virtual functions: their settings and their drivers |
//! | `rdma_name` | the names of RDMA devices, which pods can change |
//! | `spared` | the default routers of other netdevs, which the kernel would drop |
//! | `managed` | attributes that a network manager removed after the restore |
//! | [`drift`] | descriptions of deviations from a record, for CHECK, `doctor` and ADD's warnings |

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
mod tables;

pub use attach::{attach, attach_rail, bearer};
pub use children::{child_removed, children_together, limit_to_batch};
pub use detach::{Others, detach, home, missing_of};
pub use function::{Rebind, are_named, is_rebound, is_unreported, rebinds};
pub use leftovers::{is_of_others, left_in_pod};
pub use locate::{GoneRail, gone, rdma_anywhere, rdma_on_host};
pub use managed::{has_to_outlast, taken_away};
pub use other_interfaces::{attach_other_interfaces, divert};
pub use rdma_name::renamed;
pub use routing::{connected, routed, rules_of};
pub use spared::{drops_routers, spare, spare_no_more, still_spared, to_spare, without_spared};
pub use tables::choose_tables;

use rdma_netns::{DeviceAddress, InterfaceName, NetnsSide, Op};

/// An obstacle that prevents the operations from the observed to the desired state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Another netdev of the host has the recorded name of the netdev that returns.
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
    /// Another netdev of the pod has the rail's name.
    #[error("interface {name} exists in the pod already")]
    PodNameTaken {
        /// The rail's name in the pod.
        name: InterfaceName,
    },
    /// The parent is down, so a child of it could not be set up.
    #[error("{parent} is down: run ip link set {parent} up on the host, so that pods can share it")]
    ParentDown {
        /// The parent's name on the host.
        parent: InterfaceName,
    },
    /// The child's MTU would be larger than the MTU of its parent, through which the child's packets pass.
    #[error("mtu: {mtu} is more than {limit}, the MTU of {parent}")]
    MtuTooLarge {
        /// The parent's name on the host.
        parent: InterfaceName,
        /// MTU of the child, bytes.
        mtu: u32,
        /// Largest MTU of a child, bytes.
        limit: u32,
    },
    /// A sysctl of the pod disables IPv6, and the rail has an IPv6 address.
    #[error(
        "{link} cannot have its IPv6 address: IPv6 is switched off in the pod \
         (net.ipv6.conf.{link}.disable_ipv6 is 1; see net.ipv6.conf.default.disable_ipv6)"
    )]
    Ipv6Disabled {
        /// The netdev's name in the pod.
        link: InterfaceName,
    },
    /// Too few consecutive routing tables are free from `routing.tableBase` on.
    #[error(
        "routing.tableBase: too few consecutive routing tables are free in the pod from {base} on; choose a lower base"
    )]
    NoTables {
        /// `routing.tableBase`
        base: u32,
    },
    /// The netdev has an IPv6 address, and its MTU is too small for IPv6.
    #[error(
        "the MTU of {link} in the pod is {mtu}, and the rail's IPv6 addresses need 1280; raise mtu or, if mtu is not \
         set, the MTU of {link} on the host"
    )]
    MtuTooSmall {
        /// The netdev's name on the host.
        link: InterfaceName,
        /// MTU of the netdev, bytes.
        mtu: u32,
    },
    /// The RDMA device has open SMC connections. A move of the device would wait until they are closed.
    #[error(
        "RDMA device {device} cannot be moved: {} has open SMC connections over the device ({count}), and the move \
         would wait uninterruptibly until they end; end the process or its connections, and try again",
        match from { NetnsSide::Host => "a process on the host", NetnsSide::Pod => "a process of the pod" }
    )]
    Held {
        /// Name of the RDMA device.
        device: String,
        /// Number of open connections.
        count: u32,
        /// The RDMA device's namespace.
        from: NetnsSide,
    },
    /// The RDMA device has a sub-device. A move of the RDMA device would wait for the sub-device's reference.
    #[error(
        "RDMA device {device} cannot be moved while it has the sub-device {sub_device}, because the move would wait \
         until the sub-device is gone: delete it (rdma dev delete {sub_device}), or set the RDMA subsystem to shared \
         mode"
    )]
    HasSubDevice {
        /// Name of the RDMA device.
        device: String,
        /// Name of the sub-device.
        sub_device: String,
    },
    /// The pod has netdevs that are not rails. Another plugin may have moved them from the host into the pod.
    #[error(
        "{links}: another plugin may have moved netdevs with an alias from the host; the next DEL removes the listed \
         netdevs; to keep one, move it to the host"
    )]
    MayBeHosts {
        /// One clause for each netdev, with its alias.
        links: String,
        /// Indexes of these netdevs in the pod.
        indexes: Vec<u32>,
    },
    /// The device exists, but is neither on the host nor in the pod.
    #[error(
        "{device} is not back on the host: it is in another namespace, or a process keeps its pod's namespace alive; \
         move the device to the host, or end the process"
    )]
    InAnotherNetns {
        /// Name of the netdev or RDMA device.
        device: String,
    },
    /// The netdev's function has a driver and no netdev in any namespace. A driver that recovers its function makes the
    /// netdev again.
    #[error(
        "{device} is not back on the host: {function} has a driver and no netdev; a DEL three minutes or more after \
         the first DEL no longer waits for {device}"
    )]
    NoNetdev {
        /// Name of the netdev.
        device: InterfaceName,
        /// The PCI function or auxiliary device.
        function: DeviceAddress,
    },
    /// The device does not exist any more.
    #[error("{device} is neither on the host nor in the pod")]
    Vanished {
        /// Name of the netdev or RDMA device.
        device: String,
    },
}

impl Obstacle {
    /// Returns true if the kernel or a driver can still return the device.
    pub fn is_awaited(&self) -> bool {
        matches!(self, Self::InAnotherNetns { .. } | Self::NoNetdev { .. })
    }
}

/// The operations of one rail, or the obstacle to them.
pub type RailPlan = Result<Vec<Op>, Obstacle>;
