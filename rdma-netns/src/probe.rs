// SPDX-License-Identifier: Apache-2.0
//! Probes on the wire before an address is used, and known neighbours.

use crate::{HardwareAddress, InterfaceName};
use std::{fmt, io, net::IpAddr, time::Duration};

/// Number of probes of an address (`PROBE_NUM` of RFC 5227, section 1.1).
pub const PROBES: u32 = 3;

/// Time between two probes, and between the last probe and the result. RFC 5227 requires one or two seconds
/// (`PROBE_MIN`, `ANNOUNCE_WAIT`). `docs/dev/decisions/` explains why this time is shorter.
pub const INTERVAL: Duration = Duration::from_millis(10);

/// Longest time for which one [`Kernel::probe`](crate::Kernel::probe) waits for answers.
pub const PROBE_TIME: Duration = Duration::from_millis(30);

/// An address that a netdev of the pod will get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The netdev, by its name in the pod.
    pub link: InterfaceName,
    /// The address, which the netdev does not have yet.
    pub address: IpAddr,
    /// Index of the host's netdev that receives ARP answers for this netdev. Set only for an ipvlan child, whose lower
    /// netdev has the same hardware address (`ipvlan_addr_lookup()`, `drivers/net/ipvlan/ipvlan_core.c`).
    pub answered_at: Option<u32>,
}

/// Kind of the packet by which another host shows that an address is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The other host has the address (RFC 5227, section 2.1.1; RFC 4862, section 5.4.4).
    Has,
    /// The other host probes the address too (RFC 5227, section 2.1.1; RFC 4862, section 5.4.3).
    Probes,
}

/// An address that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The netdev on whose network another host has or probes the address.
    pub link: InterfaceName,
    /// The address that is not free.
    pub address: IpAddr,
    /// Hardware address of the other host.
    pub by: HardwareAddress,
    /// Kind of the packet that the other host sent.
    pub sign: Sign,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            link, address, by, ..
        } = self;
        let (state, claims) = match self.sign {
            Sign::Has => ("in use", "has"),
            Sign::Probes => ("about to be used", "probes for"),
        };
        let by = format!("{by} on the network of {link}");
        write!(f, "{address} is {state}: {by} {claims} it")
    }
}

/// Result of [`Kernel::probe`](crate::Kernel::probe).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// The addresses that are not free.
    pub conflicts: Vec<Conflict>,
    /// Netdevs that could not send probes, with the reasons.
    pub not_probed: Vec<(InterfaceName, ProbeObstacle)>,
    /// Time for which this program waited for answers. Does not include the machine's own delays after the wait.
    pub waited: Duration,
}

/// Reason why a netdev cannot send probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeObstacle {
    /// The netdev has no carrier, or is down.
    #[error("it has no carrier")]
    NoCarrier,
    /// The netdev does not resolve neighbours (`IFF_NOARP`), for example an ipvlan l3 child.
    #[error("it has no neighbour discovery")]
    NoNeighbours,
    /// The netdev is not Ethernet, for example IP over InfiniBand.
    #[error("its link layer is not Ethernet")]
    NotEthernet,
}

/// The kernel refused to send or receive probes.
#[derive(Debug, thiserror::Error)]
#[error("addresses cannot be probed on the wire: {0}")]
pub struct ProbeError(#[from] pub io::Error);

/// An entry of a neighbour table in which the kernel knows the neighbour's hardware address (`NUD_REACHABLE`,
/// `NUD_STALE`, `NUD_DELAY`, `NUD_PROBE`, `NUD_PERMANENT`; `include/uapi/linux/neighbour.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the netdev through which the kernel reaches the neighbour.
    pub index: u32,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Hardware address of the neighbour.
    pub mac: HardwareAddress,
}
