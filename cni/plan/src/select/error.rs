// SPDX-License-Identifier: Apache-2.0
//! Errors of device selection.

use crate::allocation::AllocationError;
use attachments::Attachment;
use rdma_netns::{DeviceAddress, InterfaceName, Pkey, RdmaMode};

/// The reason why the configured devices cannot be attached to this pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// No device of the node matches the configuration.
    #[error(
        "no device on this node matches {0}; ip link and rdma link list the devices: correct the configuration, or \
         load the driver"
    )]
    NotFound(String),
    /// The configuration selects devices by a pattern, and the pattern matches only devices that the host needs or that
    /// are no network devices.
    #[error(
        "no device on this node matches {selectors} and is free to move: {passed_over}; name the device literally, \
         with mode \"move\", to move it nevertheless"
    )]
    PassedOver {
        /// The configured selectors.
        selectors: String,
        /// Each matching netdev, with the reason against it.
        passed_over: String,
    },
    /// The host needs the device, so ADD must not move it.
    #[error("{link} is not moved into a pod: {why}; {remedy}")]
    NeededByHost {
        /// The netdev. Without a netdev, the RDMA device.
        link: String,
        /// The host's use of the device.
        why: String,
        /// The next step.
        remedy: &'static str,
    },
    /// An upper netdev of the netdev to be moved is in the pod, or is also to be moved.
    #[error(
        "{link} is not moved into a pod: {upper} lies on it; attach only one of the two, or attach {link} by mode \
         \"share\""
    )]
    Below {
        /// The netdev to be moved.
        link: InterfaceName,
        /// The upper netdev, and its owner.
        upper: String,
    },
    /// Kubelet's allocation leads to no device.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// Another attachment has the device.
    #[error("{device} is in use by {holder}")]
    InUse {
        /// The device, by address or name.
        device: String,
        /// The attachment that has the device.
        holder: String,
    },
    /// The device exists, but its netdev is neither on the host nor in the pod.
    #[error(
        "{0} is in use: its netdev is neither on the host nor in this pod, and in no record of another pod; move the \
         netdev to the host"
    )]
    Elsewhere(DeviceAddress),
    /// The netdev of a resource's `parents` does not exist. ADD cannot attach pods of the resource without it.
    #[error(
        "pods with {resource} are attached to {parent}, which on this node is neither {netdev} nor a VLAN of {netdev}: \
         create the VLAN (ip link add link {netdev} name {parent} type vlan id ID), or correct parents of the resource \
         in rdma-device-plugin's configuration"
    )]
    NoParent {
        /// The netdev of `parents`.
        parent: String,
        /// The device's own netdev.
        netdev: InterfaceName,
        /// The resource's name.
        resource: String,
    },
    /// The device exists, but has no netdev to attach.
    #[error("{device} has no netdev on the host: {reason}")]
    NoNetdev {
        /// The device, by its names.
        device: String,
        /// The reason, and the next step.
        reason: String,
    },
    /// The netdev's name is not UTF-8, so a record cannot contain the name.
    #[error(
        "the name of netdev number {0} is not UTF-8, so a restore could not set it again: rename the netdev"
    )]
    NoText(u32),
    /// `requireRdma` is set, and the netdev has no RDMA device.
    #[error(
        "{0} has no RDMA device on the host; set requireRdma to false to attach the netdev without RDMA"
    )]
    NoRdma(InterfaceName),
    /// In the chain, the drop-in precedes the plugin that moves the netdev, but must follow it.
    #[error(
        "{0} is on the host, but type \"rdma\" moves an RDMA device only after another plugin has moved the netdev; \
         put that plugin before type \"rdma\" in the list, or let type \"rdma-cni\" move both"
    )]
    NotMoved(InterfaceName),
    /// The kernel has no RDMA subsystem.
    #[error("this kernel has no RDMA subsystem: load ib_core and the device's RDMA driver")]
    NoSubsystem,
    /// The RDMA subsystem's mode does not allow moving an RDMA device.
    #[error(
        "the RDMA subsystem is in {0} mode, in which no RDMA device can be moved; set exclusive mode at boot (`rdma \
         system set netns exclusive`, or the option netns_mode=0 of ib_core)"
    )]
    WrongMode(RdmaMode),
    /// In exclusive mode, a pod with a child does not see the RDMA device of the parent.
    #[error(
        "{0} cannot be shared: the RDMA subsystem is in exclusive mode, in which a pod does not see the RDMA device of \
         a netdev that stays on the host; set shared mode at boot (`rdma system set netns shared`, or the option \
         netns_mode=1 of ib_core), or use mode \"move\" for netdevs that are no bonds"
    )]
    Exclusive(InterfaceName),
    /// The pod cannot get a child of the netdev.
    #[error("{link} cannot be shared: {reason}")]
    CannotShare {
        /// The netdev.
        link: InterfaceName,
        /// The reason.
        reason: String,
    },
    /// The netdev cannot be moved, for example because it is a bond or a port of another netdev.
    #[error("{link} cannot be moved into a pod: {reason}")]
    CannotMove {
        /// The netdev.
        link: InterfaceName,
        /// The reason.
        reason: &'static str,
    },
    /// The pod already has an interface with the rail's name.
    #[error("interface {0} exists in the pod already")]
    NameTaken(InterfaceName),
    /// The configuration has settings for a virtual function, but this attachment cannot make them.
    #[error("{fields}: {link} cannot have these settings: {why}")]
    CannotSetUp {
        /// The fields of the configuration with these settings.
        fields: String,
        /// The netdev.
        link: InterfaceName,
        /// The reason.
        why: &'static str,
    },
    /// The port is not in the child's partition.
    #[error(
        "pkey: port {port} of {rdma}, the device of {link}, is not in partition {pkey} (its P_Keys are {partitions}); have \
         the subnet manager add the port"
    )]
    NotInPartition {
        /// The partition.
        pkey: Pkey,
        /// The netdev on the host.
        link: InterfaceName,
        /// The RDMA device.
        rdma: String,
        /// The RDMA device's port.
        port: u32,
        /// The P_Keys of the port.
        partitions: String,
    },
    /// The pod's annotation names a rail number that the pod does not request.
    #[error(
        "the pod's annotation hca.rdma/rails names rail {rail}, but the pod requests {}; remove the rail from the \
         annotation, or request more NICs",
        shared_nics(*nics)
    )]
    NoSuchRail {
        /// The rail's number in the annotation, from 0.
        rail: usize,
        /// Number of shared NICs that kubelet allocated.
        nics: usize,
    },
    /// Several rails would get the same interface name, because the configured name has no number.
    #[error("interfaceName: {rails} rails need a name with %d in it")]
    NameWithoutNumber {
        /// Number of rails.
        rails: usize,
    },
}

impl SelectError {
    /// Returns true if the error does not depend on the ports of RDMA devices.
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

/// Refuses `device` if an attachment, `holder`, has it.
pub(super) fn check_free(
    device: impl ToString,
    holder: Option<&Attachment>,
) -> Result<(), SelectError> {
    match holder {
        None => Ok(()),
        Some(holder) => Err(SelectError::InUse {
            device: device.to_string(),
            holder: holder.holder(),
        }),
    }
}

fn shared_nics(count: usize) -> String {
    match count {
        0 => "no shared NIC".to_owned(),
        1 => "one shared NIC, rail 0".to_owned(),
        count => format!("{count} shared NICs, rails 0 to {}", count - 1),
    }
}
