// SPDX-License-Identifier: Apache-2.0
//! Plans: lists of changes, made from an attachment's record and an observed state. Pure:
//! nothing in here reads or changes a kernel, and a plan for a state that is as it should
//! be is empty. Restoring is planning towards the recorded state.
//!
//! | module | owns |
//! |---|---|
//! | [`allocation`] | what kubelet allocated to a pod: from ids to devices |
//! | [`select`] | which devices a pod gets |
//! | `attach`, `routing` | the changes that bring them into the pod |
//! | `other_interfaces` | the ways of the pod's interfaces that other plugins made |
//! | `children` | the removal of children of several rails, by one deletion |
//! | `detach`, [`given_up`] | the changes that restore them to the host, and what a netdev came back without |
//! | `leftovers` | the removal of what the pod has made of its devices |
//! | `function` | virtual functions: what is set of them, and their drivers |
//! | `rdma_name` | the names of RDMA devices, which pods can change |
//! | `spared` | the default routers of other netdevs, which the kernel would drop |
//! | `managed` | what a network manager has taken away of what was restored |
//! | [`drift`] | a change in words, for CHECK |

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
pub use function::{Rebind, are_named, is_rebound, is_untold, rebinds};
pub use leftovers::is_of_others;
pub use locate::{rdma_anywhere, rdma_on_host};
pub use managed::{has_to_outlast, taken_away};
pub use other_interfaces::{attach_other_interfaces, divert};
pub use rdma_name::renamed;
pub use routing::{choose_tables, connected, routed, rules_of};
pub use spared::{drops_routers, spare, spare_no_more, still_spared, to_spare, without_spared};

use rdma_netns::{InterfaceName, NetnsSide, Op};

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
    /// The netdev that a child is to lie on is down: the child could not be set up.
    #[error("{parent} is down: it has to be up on the host before pods can share it")]
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
    /// A sysctl keeps IPv6 away.
    #[error(
        "{link} cannot have its IPv6 address: IPv6 is switched off in the pod \
         (net.ipv6.conf.{link}.disable_ipv6 is 1; see net.ipv6.conf.default.disable_ipv6)"
    )]
    Ipv6Disabled {
        /// The netdev's name in the pod.
        link: InterfaceName,
    },
    /// There is no room for the routing tables.
    #[error(
        "routing.tableBase: the tables from {base} on are in use in the pod already, up to the \
         last; choose a lower base"
    )]
    NoTables {
        /// `routing.tableBase`
        base: u32,
    },
    /// IPv6 needs more.
    #[error("mtu: {mtu} is too small for the IPv6 addresses of {link}: IPv6 needs 1280")]
    MtuTooSmall {
        /// The netdev's name on the host.
        link: InterfaceName,
        /// Bytes.
        mtu: u32,
    },
    /// The kernel would wait for connections that a process has open.
    #[error(
        "RDMA device {device} cannot be moved: {} has SMC connections over it open ({count}), for \
         whose end the kernel would wait and let nothing stop it; end that process, or have it \
         close them, and try again",
        match from { NetnsSide::Host => "a process on the host", NetnsSide::Pod => "a process of the pod" }
    )]
    Held {
        /// The RDMA device.
        device: String,
        /// How many connections.
        count: u32,
        /// Where it is.
        from: NetnsSide,
    },
    /// The kernel would wait for the sub-device's reference.
    #[error(
        "RDMA device {device} cannot be moved while it has the sub-device {sub_device}, for whose end the kernel would \
         wait: delete that (rdma dev delete {sub_device}), or set the RDMA subsystem to shared"
    )]
    HasSubDevice {
        /// The RDMA device.
        device: String,
        /// What is a part of it.
        sub_device: String,
    },
    /// A netdev of the pod beside the rail, which another plugin may have moved there.
    #[error(
        "{link} of the pod has the alias {alias}, as a netdev of the host that another plugin moved: the next DEL removes \
         it; to keep it, move it to the host"
    )]
    MayBeHosts {
        /// Its name in the pod.
        link: InterfaceName,
        /// Its alias.
        alias: String,
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
    /// The device is nowhere.
    #[error("{device} is neither on the host nor in the pod")]
    Vanished {
        /// Name of the netdev or RDMA device.
        device: String,
    },
}

/// The plan of one rail.
pub type RailPlan = Result<Vec<Op>, Obstacle>;
