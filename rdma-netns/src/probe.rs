// SPDX-License-Identifier: Apache-2.0
//! Probes of addresses on the wire before use, and known neighbours.

use crate::{HardwareAddress, InterfaceName};
use std::{fmt, io, net::IpAddr, time::Duration};

/// Number of probes of an address (`PROBE_NUM` of RFC 5227, section 1.1).
pub const PROBES: u32 = 3;

/// Time between two probes, and between the last probe and the result. RFC 5227 requires one or two seconds
/// (`PROBE_MIN`, `ANNOUNCE_WAIT`); `docs/dev/decisions/` explains why this is shorter.
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
    /// Index of the host's netdev that receives ARP answers for this netdev, because both have the same hardware
    /// address: the lower netdev of an ipvlan child (`ipvlan_addr_lookup()`, `drivers/net/ipvlan/ipvlan_core.c`).
    pub answered_at: Option<u32>,
}

/// Packet from another host which shows that an address is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The host has the address (RFC 5227, section 2.1.1; RFC 4862, section 5.4.4).
    Has,
    /// The host probes the address too (RFC 5227, section 2.1.1; RFC 4862, section 5.4.3).
    Probes,
}

/// An address that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The netdev on whose network the address is taken.
    pub link: InterfaceName,
    /// The address.
    pub address: IpAddr,
    /// Hardware address of the other host.
    pub by: HardwareAddress,
    /// Packet that the other host sent.
    pub sign: Sign,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            link, address, by, ..
        } = self;
        match self.sign {
            Sign::Has => write!(
                f,
                "{address} is in use: {by} on the network of {link} has it"
            ),
            Sign::Probes => write!(
                f,
                "{address} is about to be used: {by} on the network of {link} probes for it"
            ),
        }
    }
}

/// Result of probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// The addresses that are not free.
    pub conflicts: Vec<Conflict>,
    /// Netdevs that could send nothing, with the reasons.
    pub unasked: Vec<(InterfaceName, Unasked)>,
    /// Time for which answers were awaited, without the machine's own delay afterwards.
    pub waited: Duration,
}

/// Reason why a netdev cannot send probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unasked {
    /// The medium is not there, or the netdev is down.
    #[error("it has no carrier")]
    NoCarrier,
    /// The netdev does not resolve neighbours (`IFF_NOARP`), like an ipvlan l3 child.
    #[error("it has no neighbour discovery")]
    NoNeighbours,
    /// The netdev is IP over InfiniBand, or its link layer has no neighbours.
    #[error("its link layer is not Ethernet")]
    NotEthernet,
}

/// Nothing could be sent or received.
#[derive(Debug, thiserror::Error)]
#[error("addresses cannot be probed on the wire: {0}")]
pub struct ProbeError(#[from] pub io::Error);

/// An entry of a neighbour table that has the neighbour's hardware address (`NUD_REACHABLE`, `NUD_STALE`, `NUD_DELAY`,
/// `NUD_PROBE`, `NUD_PERMANENT`; `include/uapi/linux/neighbour.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the netdev by which the neighbour is reached.
    pub index: u32,
    /// IP address.
    pub address: IpAddr,
    /// Hardware address.
    pub mac: HardwareAddress,
}
