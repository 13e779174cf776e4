// SPDX-License-Identifier: Apache-2.0
//! Why devices cannot be attached.

use crate::allocation::AllocationError;
use rdma_netns::{DeviceAddress, InterfaceName, Pkey, RdmaMode};

/// The configured devices cannot be attached to this pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Nothing on the node fits.
    #[error(
        "no device on this node is {0}; ip link and rdma link list the devices: correct the configuration, or load the driver"
    )]
    NotFound(String),
    /// What fits is needed by the host, and not named literally.
    #[error(
        "no device on this node is {selectors} and free to be taken: {passed_over}; name the device \
         literally, with mode \"move\", to move it all the same"
    )]
    PassedOver {
        /// The selectors.
        selectors: String,
        /// Each netdev with the reason.
        passed_over: String,
    },
    /// The host needs it where it is.
    #[error("{link} is not moved into a pod: {why}; {remedy}")]
    NeededByHost {
        /// The netdev, or the RDMA device that would be moved alone.
        link: String,
        /// What for.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A netdev that is not the host's lies on it.
    #[error(
        "{link} is not moved into a pod: {upper} lies on it; attach only one of the two, or {link} by mode \"share\""
    )]
    Below {
        /// The netdev.
        link: InterfaceName,
        /// The netdev that lies on it, and whose it is.
        upper: String,
    },
    /// What kubelet allocated.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// Another attachment has it.
    #[error("{device} is in use by {holder}")]
    InUse {
        /// The device, by address or name.
        device: String,
        /// Who has it.
        holder: String,
    },
    /// The device is there, but its netdev is in another namespace than the host's and the pod's.
    #[error(
        "{0} is in use: its netdev is neither on the host nor in this pod, and no record says \
         whose it is"
    )]
    Elsewhere(DeviceAddress),
    /// The netdev that a resource of the daemon has its pods attached to is not there.
    #[error(
        "pods with {resource} are attached to {parent}, and neither is that {netdev} nor a VLAN of it on this node: \
         set the VLAN up (ip link add link {netdev} name {parent} type vlan id ID), or correct parents of the \
         resource in rdma-device-plugin's configuration"
    )]
    NoParent {
        /// The netdev.
        parent: String,
        /// What there is of the device.
        netdev: InterfaceName,
        /// The resource's name.
        resource: String,
    },
    /// The device is there, and what is to be attached is not.
    #[error("{device} has no netdev on the host: {reason}")]
    NoNetdev {
        /// The device, by its names.
        device: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The name could not be given back, nor written into the record.
    #[error(
        "the name of netdev number {0} is no text (UTF-8), so that it could not get it back: rename it"
    )]
    NoText(u32),
    /// A netdev without an RDMA device, and `requireRdma`.
    #[error(
        "{0} has no RDMA device on the host; set requireRdma to false to attach it all the same"
    )]
    NoRdma(InterfaceName),
    /// A drop-in comes after the plugin that moves the netdev.
    #[error(
        "{0} is on the host: type \"rdma\" moves its RDMA device after it; put the plugin that moves the netdev before \
         it in the list, or let type \"rdma-cni\" move both"
    )]
    NotMoved(InterfaceName),
    /// The kernel has no RDMA subsystem.
    #[error("this kernel has no RDMA subsystem: load ib_core and the device's RDMA driver")]
    NoSubsystem,
    /// The RDMA subsystem's mode does not allow what was asked for.
    #[error(
        "the RDMA subsystem is in {0} mode, in which no RDMA device can be moved; set \
         `rdma system set netns exclusive` at boot (module option ib_core netns_mode=0)"
    )]
    WrongMode(RdmaMode),
    /// A pod with a child sees the RDMA device in shared mode only.
    #[error(
        "{0} cannot be shared: the RDMA subsystem is in exclusive mode, in which a pod does not \
         see the RDMA device of a netdev that stays on the host; set `rdma system set netns \
         shared` at boot (module option ib_core netns_mode=1), or move devices that are no bonds"
    )]
    Exclusive(InterfaceName),
    /// The netdev takes no children.
    #[error("{link} cannot be shared: {reason}")]
    CannotShare {
        /// The netdev.
        link: InterfaceName,
        /// Why.
        reason: String,
    },
    /// A bond, or a port of one.
    #[error("{link} cannot be moved into a pod: {reason}")]
    CannotMove {
        /// The netdev.
        link: InterfaceName,
        /// Why.
        reason: &'static str,
    },
    /// The pod has an interface of that name.
    #[error("interface {0} exists in the pod already")]
    NameTaken(InterfaceName),
    /// Settings of a virtual function for what is none of this plugin's to set up.
    #[error("{fields}: {link} cannot be set up so: {why}")]
    CannotSetUp {
        /// The fields of the configuration.
        fields: String,
        /// The netdev.
        link: InterfaceName,
        /// Why.
        why: &'static str,
    },
    /// A child in a partition that its port is not in.
    #[error(
        "pkey: {rdma} port {port}, which {link} is of, is not in partition {pkey} (its P_Keys are {partitions}); have \
         the subnet manager put it there"
    )]
    NotInPartition {
        /// The partition.
        pkey: Pkey,
        /// The netdev on the host.
        link: InterfaceName,
        /// The RDMA device.
        rdma: String,
        /// Its port.
        port: u32,
        /// What the port is in.
        partitions: String,
    },
    /// The pod has chosen what it has not.
    #[error(
        "the pod's annotation hca.rdma/rails names rail {rail}, and what the pod asks for is {}; take it out, or ask for more",
        shared_nics(*nics)
    )]
    NoSuchRail {
        /// Its number, from 0.
        rail: usize,
        /// How many shared NICs were allocated.
        nics: usize,
    },
    /// Several rails would get one name.
    #[error("interfaceName: {rails} rails need a name with %d in it")]
    NameWithoutNumber {
        /// How many.
        rails: usize,
    },
}

impl SelectError {
    /// Whether it is the same whatever the ports of the RDMA devices tell.
    pub fn needs_no_port(&self) -> bool {
        matches!(
            self,
            Self::InUse { .. }
                | Self::NeededByHost { .. }
                | Self::Allocation(_)
                | Self::NoSubsystem
                | Self::WrongMode(_)
                | Self::NameTaken(_)
                | Self::CannotSetUp { .. }
                | Self::NoSuchRail { .. }
                | Self::NameWithoutNumber { .. }
        )
    }
}

fn shared_nics(count: usize) -> String {
    match count {
        0 => "no shared NIC".to_owned(),
        1 => "one shared NIC, rail 0".to_owned(),
        count => format!("{count} shared NICs, rails 0 to {}", count - 1),
    }
}
