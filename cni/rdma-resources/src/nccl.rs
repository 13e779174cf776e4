// SPDX-License-Identifier: Apache-2.0
//! The GID with which NCCL sends, and the variables that make NCCL choose a GID of the pod. If no variable sets the
//! index, NCCL chooses a GID by address family, address range and RoCE version (`ncclIbGetGidIndex()` and
//! `ncclUpdateGidIndex()` in NCCL's `src/transport/net_ib.cc`, since 2.21).
//!
//! NCCL ignores network namespaces. If a port's GID table has addresses of the node and of several pods, NCCL chooses
//! the first address that matches, even if the address is not the pod's.

use rdma_netns::{Gid, GidKind, GidTable};
use std::{collections::BTreeSet, fmt, net::Ipv6Addr};

/// The address family of a GID, as NCCL defines it (`getGidAddrFamily()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`, NCCL's default: GIDs that are IPv4 addresses.
    Ipv4,
    /// `AF_INET6`: all other GIDs.
    Ipv6,
}

/// The criteria by which NCCL chooses a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Value of `NCCL_IB_ADDR_FAMILY`.
    pub family: Family,
    /// Value of `NCCL_IB_ADDR_RANGE`. `None`: all addresses match.
    pub range: Option<Range>,
}

/// The range of GIDs that have a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    gid: Ipv6Addr,
    /// Length of the prefix in bits, 1 to 128. For IPv4 addresses, at least [`MAPPED_BITS`] + 1.
    bits: u32,
}

/// Length of the prefix of all GIDs that are IPv4 addresses: `::ffff:0:0/96`.
const MAPPED_BITS: u32 = 96;

/// The RDMA port of a rail.
#[derive(Clone, Debug)]
pub struct Port {
    /// RDMA device.
    pub device: String,
    /// Index of the GID with which the port sends: the GID of the first address, or the InfiniBand port's own GID.
    /// `None`: the GID does not exist.
    pub index: Option<u32>,
    /// RoCE v2 GIDs of the pod's addresses with their indexes, in the order of the addresses. Empty for an InfiniBand
    /// port, which NCCL recognizes by its link layer.
    pub own: Vec<(u32, Ipv6Addr)>,
    /// All GIDs of a port that the pod shares with the node and other pods, or the reason why they are unknown. `None`:
    /// ADD moved the RDMA device, so all its GIDs belong to the pod.
    pub shared: Option<Result<GidTable, String>>,
}

/// No value of NCCL's variables selects a GID of the pod on all ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NCCL gets no GID variables: no GID index is right on all rails of the pod ({indexes}), and by address {why}; \
     NCCL's own choice is right if the pod has its own NICs, or addresses from a range that neither the node nor other \
     pods use"
)]
pub struct Undecided {
    indexes: String,
    why: String,
}

impl Family {
    /// Both families, NCCL's default first.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    fn of(gid: Ipv6Addr) -> Self {
        match gid.to_ipv4_mapped() {
            Some(_) => Self::Ipv4,
            None => Self::Ipv6,
        }
    }
}

/// Prints the value of `NCCL_IB_ADDR_FAMILY`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "AF_INET",
            Self::Ipv6 => "AF_INET6",
        })
    }
}

impl Range {
    /// Returns the smallest range that contains all `gids`. All `gids` have one family. Returns `None` if there are no
    /// GIDs, or if only the range of the whole family contains them.
    fn around(gids: &[Ipv6Addr]) -> Option<Self> {
        let gid = *gids.first()?;
        let all = match Family::of(gid) {
            Family::Ipv4 => MAPPED_BITS,
            Family::Ipv6 => 0,
        };
        let common = |other: &Ipv6Addr| (gid.to_bits() ^ other.to_bits()).leading_zeros();
        let bits = gids.iter().map(common).min().filter(|bits| *bits > all)?;
        let gid = Ipv6Addr::from_bits(gid.to_bits() & mask(bits));
        Some(Self { gid, bits })
    }

    fn has(self, gid: Ipv6Addr) -> bool {
        (self.gid.to_bits() ^ gid.to_bits()) & mask(self.bits) == 0
    }
}

fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

/// Prints the value of `NCCL_IB_ADDR_RANGE`: `10.1.0.0/16` for IPv4, `fd00:a0::/32` for IPv6.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gid.to_ipv4_mapped() {
            Some(ip) => write!(f, "{ip}/{}", self.bits - MAPPED_BITS),
            None => write!(f, "{}/{}", self.gid, self.bits),
        }
    }
}

impl Choice {
    /// Returns the index that NCCL chooses from `table`, with NCCL's default RoCE version 2
    /// (`NCCL_IB_ROCE_VERSION_NUM`). NCCL starts with index 0, even if its GID does not match, and then prefers better
    /// GIDs.
    pub fn of(&self, table: &GidTable) -> u32 {
        let gid_at = |index| table.gids.iter().find(|gid| gid.index == index);
        let mut taken = (0, gid_at(0));
        for index in 1..table.size {
            let candidate = gid_at(index);
            if self.prefers(candidate, taken.1) {
                taken = (index, candidate);
            }
        }
        taken.0
    }

    /// Returns true if NCCL prefers `candidate` to `taken` (`ncclUpdateGidIndex()`). `None` means an index without a
    /// GID, from which NCCL reads zeros without a version.
    fn prefers(&self, candidate: Option<&Gid>, taken: Option<&Gid>) -> bool {
        let ip = |gid: Option<&Gid>| gid.map_or(Ipv6Addr::UNSPECIFIED, |gid| gid.ip);
        let fits = |ip| Family::of(ip) == self.family && self.range.is_none_or(|it| it.has(ip));
        if !fits(ip(candidate)) {
            return false;
        }
        if Family::of(ip(taken)) != self.family {
            return true;
        }
        let is_routed = |gid: Option<&Gid>| gid.is_some_and(|gid| gid.kind == GidKind::RoceV2);
        is_valid(ip(candidate))
            && is_routed(candidate)
            && (!is_routed(taken) || !is_valid(ip(taken)))
    }
}

/// Returns the result of NCCL's `validGid()`: false for zeros and link-local GIDs.
fn is_valid(gid: Ipv6Addr) -> bool {
    !gid.is_unspecified() && gid.segments()[..4] != [0xfe80, 0, 0, 0]
}

/// Returns the variables by which NCCL sends with a GID of the pod on all `ports`. If all ports have the same index,
/// one variable sets the index. Otherwise the variables set the criteria of NCCL's choice. Returns no variables if
/// there are no ports.
///
/// # Errors
/// Neither an index nor criteria are right for all ports.
pub fn variables(ports: &[Port]) -> Result<Vec<(&'static str, String)>, Undecided> {
    let Some(first) = ports.first() else {
        return Ok(vec![]);
    };
    if let Some(index) = first.index
        && ports.iter().all(|port| port.index == first.index)
    {
        return Ok(vec![("NCCL_IB_GID_INDEX", index.to_string())]);
    }
    let choice = choice(ports).map_err(|why| {
        let index = |port: &Port| port.index.map_or("none".to_owned(), |it| it.to_string());
        let indexes = ports.iter();
        let indexes = indexes.map(|port| format!("{}: {}", port.device, index(port)));
        let indexes = indexes.collect::<Vec<_>>().join(", ");
        Undecided { indexes, why }
    })?;
    let mut variables = vec![
        ("NCCL_IB_ADDR_FAMILY", choice.family.to_string()),
        ("NCCL_IB_ROCE_VERSION_NUM", "2".to_owned()),
    ];
    variables.extend(
        choice
            .range
            .map(|it| ("NCCL_IB_ADDR_RANGE", it.to_string())),
    );
    Ok(variables)
}

/// Returns the criteria by which NCCL chooses a GID of the pod on all `ports`. Tries the family of the first address,
/// then the other family. Uses the smallest possible address range, which excludes most GIDs of other owners.
///
/// # Errors
/// The reason why the family of the first address fails.
fn choice(ports: &[Port]) -> Result<Choice, String> {
    // NCCL chooses a GID on Ethernet ports only
    let is_ethernet = |port: &&Port| !port.own.is_empty() || port.index.is_none();
    let ports: Vec<&Port> = ports.iter().filter(is_ethernet).collect();
    let first = ports.iter().find_map(|port| port.own.first());
    let first = first.map_or(Family::Ipv4, |(_, gid)| Family::of(*gid));
    let other = Family::ALL.into_iter().find(|it| *it != first);
    let by = |family: Family| -> Result<Choice, String> {
        let mut own = vec![];
        for port in &ports {
            let mut gids = port.own.iter().map(|(_, gid)| *gid);
            let gid = gids.find(|gid| Family::of(*gid) == family);
            own.push(gid.ok_or_else(|| format!("{} has no GID of {family}", port.device))?);
        }
        let range = Range::around(&own);
        let choice = Choice { family, range };
        ports.iter().try_for_each(|port| check(&choice, port))?;
        Ok(choice)
    };
    let by_first = by(first);
    match other {
        Some(other) if by_first.is_err() => by(other).or(by_first),
        _ => by_first,
    }
}

/// Checks that NCCL chooses a GID of the pod on `port`, even after other pods have added GIDs.
///
/// # Errors
/// The wrong GID that NCCL chooses now, or would choose after other pods have added GIDs, or the reason why the port's
/// GIDs are unknown.
fn check(choice: &Choice, port: &Port) -> Result<(), String> {
    let Some(table) = &port.shared else {
        return Ok(());
    };
    let (device, table) = (&port.device, table.as_ref().map_err(Clone::clone)?);
    let index = choice.of(table);
    let taken = table.gids.iter().find(|gid| gid.index == index);
    let is_own = |gid: &&Gid| {
        let mut own = port.own.iter();
        own.any(|(index, ip)| table.own(*ip, *index) == Some(gid))
    };
    if taken.filter(is_own).is_none() {
        let taken = taken.map_or("no GID".to_owned(), |gid| gid.address().to_string());
        return Err(format!(
            "NCCL would take {taken} at index {index} of {device}, which is not the pod's"
        ));
    }
    let used: BTreeSet<u32> = table.gids.iter().map(|gid| gid.index).collect();
    let free = (0..index).find(|index| !used.contains(index));
    match free {
        Some(free) => Err(format!(
            "NCCL would take the next pod's GID, because index {free} of {device} is free, and lower than the pod's \
             {index}"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "nccl_tests.rs"]
mod tests;
