// SPDX-License-Identifier: Apache-2.0
//! Reasons why SMC-R does not carry connections.

use attachments::Fit;
use rdma_netns::smc::PnetId;
use std::net::{IpAddr, Ipv4Addr};

/// Reason why a pod, a rail's RDMA device or an interface has no SMC-R.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkipReason {
    /// The kernel has no SMC.
    #[error(
        "this kernel has no SMC: it needs CONFIG_SMC, or its module smc (and smc_diag) installed"
    )]
    NoSmc,
    /// The rail has no RDMA device. For a whole pod: no rail has an RDMA device.
    #[error("the pod has no RDMA device")]
    NoRdma,
    /// The eRDMA driver is in compat mode. In this mode neither SMC-R nor RDMA's connection manager works.
    #[error(
        "{device} is an eRDMA device, and its driver is in compat mode, which has no SMC-R: load \
         erdma with compat_mode=N"
    )]
    Compat {
        /// Name of the RDMA device.
        device: String,
    },
    /// Mainline's SMC refuses iWARP devices (`smc_ib_add_dev()`, `net/smc/smc_ib.c`).
    #[error(
        "this kernel's SMC does not use {device}: only the SMC of Alibaba Cloud Linux 3 uses iWARP devices, such as eRDMA's"
    )]
    Unused {
        /// Name of the RDMA device.
        device: String,
    },
    /// The rail has no netdev with an Ethernet hardware address.
    #[error("{device} has no Ethernet port, which SMC-R needs")]
    NotEthernet {
        /// Name of the RDMA device.
        device: String,
    },
    /// The RDMA device is not in the pod.
    #[error(
        "RDMA device {device} is not in the pod, which in exclusive mode can use only its own devices"
    )]
    NotInPod {
        /// Name of the RDMA device.
        device: String,
    },
    /// Another port of the device already has a pnet id. The kernel stores only one entry for a device.
    #[error(
        "another port of {device} has pnet id {id}, and the kernel keeps only one pnet id for a device"
    )]
    OtherPort {
        /// Name of the RDMA device.
        device: String,
        /// Pnet id of the other port.
        id: PnetId,
    },
    /// Two NICs would have the same pnet id.
    #[error(
        "the pnet id of {device} would be {id}, which {other} has already: give one of them another id with smc_pnet"
    )]
    IdTaken {
        /// Name of the RDMA device.
        device: String,
        /// Pnet id of both devices.
        id: PnetId,
        /// RDMA device that already has the id.
        other: String,
    },
    /// The kernel might choose a GID that does not belong to the pod.
    #[error("{}", strange(*address, owner, *by))]
    Strange {
        /// Address of the GID.
        address: IpAddr,
        /// Description of the GID's owner.
        owner: String,
        /// Version of SMC-R by which the kernel chooses the GID.
        by: Fit,
    },
    /// The kernel compares VLAN ids, which the prediction (`verdict`) does not observe.
    #[error(
        "its packets have a VLAN tag, and the GID that the kernel would choose for a VLAN is not predicted; give the \
         pod an interface without a VLAN tag for SMC-R"
    )]
    Vlan,
    /// No GID fits: no GID's netdev has an address in the source's subnet, and there is no RoCE v1 GID.
    #[error(
        "no GID fits {ip}/{prefix}: SMC-Rv2 needs a GID whose netdev has an IPv4 address of that subnet, and SMC-Rv1 \
         needs a RoCE v1 GID; connections by the RDMA interfaces' own addresses can have SMC-R"
    )]
    NoGid {
        /// Source address.
        ip: Ipv4Addr,
        /// Length of the source's prefix, in bits.
        prefix: u8,
    },
    /// The first GID that fits is the other end of a point-to-point address. No peer reaches the port by this GID.
    #[error(
        "the kernel would choose GID {address}, which {netdev} has only as the other end of an address: \
         peers cannot reach it; remove that address from {netdev}, and set it again after the other \
         addresses of {netdev} have their GIDs"
    )]
    OtherEnd {
        /// Address of the GID.
        address: IpAddr,
        /// Netdev that has the address.
        netdev: String,
    },
    /// SMC-Rv2 would fit, but the kernel has no user EID.
    #[error(
        "the kernel has no user EID, without which there is only SMC-Rv1, and SMC-Rv1 needs a RoCE v1 \
         GID: set smcUeid to the same value on all nodes"
    )]
    NoUeid,
    /// The interface has no IPv4 address, and `rdma-cni` sets up SMC-R only for IPv4.
    #[error("it has no IPv4 address, and rdma-cni sets up SMC-R only for IPv4")]
    NoIpv4,
    /// Another program has given the interface another pnet id.
    #[error("its pnet id is already {0}, which is not the RDMA device's")]
    OtherId(PnetId),
    /// The host's netdev below the interface has another pnet id than the RDMA port. The kernel prefers this id to the
    /// pod's id.
    #[error(
        "{netdev} on the host has pnet id {id}, which the kernel prefers to the pod's id and which is not the \
         RDMA device's: AF_SMC sockets use any RDMA device with that id; remove the id of {netdev} on \
         the host"
    )]
    ParentsId {
        /// Name of the netdev on the host.
        netdev: String,
        /// Pnet id of the netdev.
        id: PnetId,
    },
    /// The kernel might carry the interface's connections incorrectly. No entry in the pod can prevent this.
    #[error(
        "{reason}; AF_SMC sockets can still use an RDMA device with pnet id {id}: {netdev} on the host \
         has that id, which the kernel prefers to the pod's id; remove the id of {netdev} on the host"
    )]
    Exposed {
        /// Reason why SMC-R does not carry the interface's connections.
        reason: Box<SkipReason>,
        /// Name of the netdev on the host.
        netdev: String,
        /// Pnet id of the netdev.
        id: PnetId,
    },
    /// The kernel would use one link group for connections of two pods.
    #[error(
        "{holder} has SMC-R already: with shared RDMA devices the kernel carries connections of several \
         pods in one link group, with the addresses of the first pod, whose end would break the \
         connections of the others; give pods RDMA devices of their own (exclusive mode)"
    )]
    Crowded {
        /// Name of the pod that already has SMC-R.
        holder: String,
    },
    /// Only SMC-Rv1 would fit, and `rdma-cni` allows it only on rails. SMC-Rv1 is not routed, but the kernel compares
    /// only the prefixes of the TCP interfaces (`smc_listen_prfx_check()`, `net/smc/af_smc.c`). If the two RDMA NICs
    /// are in different layer 2 networks, a connection waits 5 s, and its data can be corrupt
    /// (docs/dev/smc-r-kernel.md).
    #[error(
        "only SMC-Rv1 could carry its connections: SMC-Rv1 needs the RDMA NICs of both ends in one layer 2 network, \
         which cannot be verified; connections by the RDMA interfaces' own addresses can have SMC-R"
    )]
    OneLink,
    /// The GIDs of this RDMA device's port cannot be read.
    #[error("the GIDs of {0} cannot be read in the pod")]
    Unseen(String),
}

impl SkipReason {
    /// Returns true if the kernel might carry the interface's connections with a GID that does not belong to the pod.
    pub(super) fn may_use_foreign_gid(&self) -> bool {
        matches!(
            self,
            Self::Strange { .. }
                | Self::OtherEnd { .. }
                | Self::Vlan
                | Self::Crowded { .. }
                | Self::Exposed { .. }
                | Self::OneLink
        )
    }
}

/// Returns the message of [`SkipReason::Strange`], with the remedy.
fn strange(address: IpAddr, owner: &str, by: Fit) -> String {
    match by {
        Fit::V1 => format!(
            "SMC-Rv1 would choose GID {address}, which belongs to {owner}: such connections can hang; for SMC-Rv2, set \
             smcUeid to the same value on all nodes, and give the pod a rail address whose prefix contains the \
             connection's address; or give the pod an RDMA device of its own (exclusive mode)"
        ),
        Fit::V2 | Fit::Device => format!(
            "the kernel can choose GID {address}, which fits as well and belongs to {owner}; give the pod an address \
             of a subnet that neither the host nor another pod has on this NIC, or give all of these addresses prefix \
             /32 and routes, or give the pod its own RDMA device (exclusive mode)"
        ),
    }
}
