// SPDX-License-Identifier: Apache-2.0
//! Addresses that are asked for on the wire before they are used, and what neighbours are known.

use crate::{HardwareAddress, InterfaceName};
use std::{fmt, io, net::IpAddr, time::Duration};

/// How often an address is asked for (`PROBE_NUM` of RFC 5227, section 1.1).
pub const PROBES: u32 = 3;

/// The time from one probe to the next, and from the last to the verdict. RFC 5227 has a second or
/// two (`PROBE_MIN`, `ANNOUNCE_WAIT`): see `docs/dev/decisions/`.
pub const INTERVAL: Duration = Duration::from_millis(10);

/// How long one [`Kernel::probe`](crate::Kernel::probe) waits for answers at most.
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

/// How another machine shows that an address is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It has the address (RFC 5227, section 2.1.1; RFC 4862, section 5.4.4).
    Has,
    /// It asks for the address as well (RFC 5227, section 2.1.1; RFC 4862, section 5.4.3).
    Probes,
}

/// An address that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The netdev on whose network that is.
    pub link: InterfaceName,
    /// The address.
    pub address: IpAddr,
    /// Who was heard.
    pub by: HardwareAddress,
    /// With what.
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

/// What came of the questions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// The addresses that are not free.
    pub conflicts: Vec<Conflict>,
    /// The netdevs by which nothing could be asked, and why.
    pub unasked: Vec<(InterfaceName, Unasked)>,
    /// For how long answers were waited for: without what the machine took to go on afterwards.
    pub waited: Duration,
}

/// Why nothing can be asked by a netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unasked {
    /// The medium is not there, or the netdev is down.
    #[error("it has no carrier")]
    NoCarrier,
    /// Neighbours are not looked for by it (`IFF_NOARP`), as by an ipvlan l3 child.
    #[error("it has no neighbour discovery")]
    NoNeighbours,
    /// IP over InfiniBand, or no link layer that has neighbours.
    #[error("its link layer is not Ethernet")]
    NotEthernet,
}

/// Nothing could be asked or heard at all.
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
