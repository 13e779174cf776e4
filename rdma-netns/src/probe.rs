// SPDX-License-Identifier: Apache-2.0
//! Probes of addresses on the wire before use, and known neighbours.

use crate::{HardwareAddress, InterfaceName};
use std::{fmt, io, net::IpAddr, time::Duration};

/// Number of probes of an address (`PROBE_NUM` of RFC 5227, section 1.1).
pub const PROBES: u32 = 3;

/// The time from one probe to the next, and from the last to the verdict. RFC 5227 has a second or
/// two (`PROBE_MIN`, `ANNOUNCE_WAIT`): see `docs/dev/decisions/`.
pub const INTERVAL: Duration = Duration::from_millis(10);

/// Longest time for which one [`Kernel::probe`](crate::Kernel::probe) waits for answers.
pub const PROBE_TIME: Duration = Duration::from_millis(30);

/// An address that a netdev of the pod is to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The netdev, by its name in the pod.
    pub link: InterfaceName,
    /// The address, which it does not have yet.
    pub address: IpAddr,
    /// Index of the host's netdev that has the same hardware address, and gets IPv4's answers: what
    /// an ipvlan child lies on (`ipvlan_addr_lookup()`, `drivers/net/ipvlan/ipvlan_core.c`).
    pub answered_at: Option<u32>,
}

/// Sign of another host that an address is not free.
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
    /// The netdev on whose network that is.
    pub link: InterfaceName,
    /// The address.
    pub address: IpAddr,
    /// Hardware address of the host.
    pub by: HardwareAddress,
    /// Sign of the host.
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
    /// IP over InfiniBand, or no link layer that has neighbours.
    #[error("its link layer is not Ethernet")]
    NotEthernet,
}

/// Nothing could be sent or received.
#[derive(Debug, thiserror::Error)]
#[error("addresses cannot be probed on the wire: {0}")]
pub struct ProbeError(#[from] pub io::Error);

/// An entry of a neighbour table that tells where an address is (`NUD_REACHABLE`, `NUD_STALE`,
/// `NUD_DELAY`, `NUD_PROBE`, `NUD_PERMANENT`; `include/uapi/linux/neighbour.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the netdev by which it is reached.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address.
    pub mac: HardwareAddress,
}
