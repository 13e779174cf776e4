// SPDX-License-Identifier: Apache-2.0
//! By which GID NCCL sends, and what it has to be told for a GID of the pod's.
//!
//! Where no index is pinned, NCCL goes by address family, range of addresses and RoCE version (`ncclIbGetGidIndex()` and
//! `ncclUpdateGidIndex()` in NCCL's `src/transport/net_ib.cc`, since 2.21). It knows nothing of network namespaces: of a
//! table with the addresses of the node and of several pods, it takes the first one that fits.

use rdma_netns::{Gid, GidKind, GidTable};
use std::{collections::BTreeSet, fmt, net::Ipv6Addr};

/// What NCCL calls a GID that is no IPv4 address, and one that is (`getGidAddrFamily()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`, which NCCL takes unless it is told otherwise.
    Ipv4,
    /// `AF_INET6`
    Ipv6,
}

/// How NCCL is to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// `NCCL_IB_ADDR_FAMILY`
    pub family: Family,
    /// `NCCL_IB_ADDR_RANGE`; none: all addresses.
    pub range: Option<Range>,
}

/// All GIDs that begin as one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    gid: Ipv6Addr,
    /// Of 128; at least one, and of IPv4 addresses one more than all have in common.
    bits: u32,
}

/// What all GIDs of IPv4 addresses begin with: `::ffff:0:0/96`.
const MAPPED_BITS: u32 = 96;

/// The port of a rail.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its RDMA device.
    pub device: String,
    /// Place of the GID to send by: its first address's, or an InfiniBand port's own; none: it is not there.
    pub index: Option<u32>,
    /// RoCE v2 GIDs of the pod's addresses, the first address's first. An InfiniBand port has none: NCCL knows them apart
    /// by the link layer.
    pub own: Vec<Ipv6Addr>,
    /// All GIDs, where those of the node and of other pods are among them; or why they are not known. None: the RDMA
    /// device was moved, and has the pod's alone.
    pub shared: Option<Result<GidTable, String>>,
}

/// NCCL cannot be told one thing that is right on all ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no GID index is right on all of its rails ({indexes}), and by address {why}")]
pub struct Undecided {
    indexes: String,
    why: String,
}

impl Family {
    /// Both, NCCL's default first.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    fn of(gid: Ipv6Addr) -> Self {
        match gid.to_ipv4_mapped() {
            Some(_) => Self::Ipv4,
            None => Self::Ipv6,
        }
    }
}

/// As `NCCL_IB_ADDR_FAMILY` has it.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "AF_INET",
            Self::Ipv6 => "AF_INET6",
        })
    }
}

impl Range {
    /// The smallest one of all `gids`, which are of one family; none: it would be all of that, or there are no GIDs.
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

/// As `NCCL_IB_ADDR_RANGE` has it: `10.1.0.0/16` of IPv4, `fd00:a0::/32` of IPv6.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gid.to_ipv4_mapped() {
            Some(ip) => write!(f, "{ip}/{}", self.bits - MAPPED_BITS),
            None => write!(f, "{}/{}", self.gid, self.bits),
        }
    }
}

impl Choice {
    /// The index that NCCL takes of `table`: with RoCE v2, as by default (`NCCL_IB_ROCE_VERSION_NUM`). It begins with the
    /// first place, whatever is there, and goes on to what fits better.
    pub fn of(&self, table: &GidTable) -> u32 {
        let at = |index| table.gids.iter().find(|gid| gid.index == index);
        let mut taken = (0, at(0));
        for index in 1..table.size {
            let candidate = at(index);
            if self.prefers(candidate, taken.1) {
                taken = (index, candidate);
            }
        }
        taken.0
    }

    /// Whether `candidate` takes the place of `taken` (`ncclUpdateGidIndex()`); none: a place without GID, which is one of
    /// zeros there, without version.
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

/// `validGid()`: neither zeros nor link-local.
fn is_valid(gid: Ipv6Addr) -> bool {
    !gid.is_unspecified() && gid.segments()[..4] != [0xfe80, 0, 0, 0]
}

/// What NCCL has to be told to send by a GID of the pod's on all `ports`: the index, if it is one for all; else how it
/// chooses rightly by itself. Without ports nothing.
///
/// # Errors
/// Neither is right on all of them.
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

/// The choice by which NCCL takes a GID of the pod's on all `ports`: by the family of the first address, or by the other
/// one. The range is the smallest one: what lies in it lies in any other.
///
/// # Errors
/// Why there is none by the first address's family.
fn choice(ports: &[Port]) -> Result<Choice, String> {
    // NCCL looks for a GID on Ethernet's ports alone
    let is_ethernet = |port: &&Port| !port.own.is_empty() || port.index.is_none();
    let ports: Vec<&Port> = ports.iter().filter(is_ethernet).collect();
    let first = ports.iter().find_map(|port| port.own.first());
    let first = first.map_or(Family::Ipv4, |gid| Family::of(*gid));
    let other = Family::ALL.into_iter().find(|it| *it != first);
    let by = |family: Family| -> Result<Choice, String> {
        let mut own = vec![];
        for port in &ports {
            let gid = port.own.iter().find(|gid| Family::of(**gid) == family);
            own.push(*gid.ok_or_else(|| format!("{} has no GID of {family}", port.device))?);
        }
        let range = Range::around(&own);
        let choice = Choice { family, range };
        ports.iter().try_for_each(|port| right(&choice, port))?;
        Ok(choice)
    };
    let by_first = by(first);
    match other {
        Some(other) if by_first.is_err() => by(other).or(by_first),
        _ => by_first,
    }
}

/// Whether NCCL takes a GID of the pod's on `port` by `choice`, and still does when others have come.
///
/// # Errors
/// What it takes, or would take then.
fn right(choice: &Choice, port: &Port) -> Result<(), String> {
    let Some(table) = &port.shared else {
        return Ok(());
    };
    let (device, table) = (&port.device, table.as_ref().map_err(Clone::clone)?);
    let index = choice.of(table);
    let taken = table.gids.iter().find(|gid| gid.index == index);
    let is_own = |gid: &&Gid| gid.kind == GidKind::RoceV2 && port.own.contains(&gid.ip);
    if taken.filter(is_own).is_none() {
        let taken = taken.map_or("nothing".to_owned(), |gid| gid.address().to_string());
        return Err(format!(
            "NCCL would take {taken} at index {index} of {device}, which is not the pod's"
        ));
    }
    let places: BTreeSet<u32> = table.gids.iter().map(|gid| gid.index).collect();
    let free = (0..index).find(|place| !places.contains(place));
    match free {
        Some(free) => Err(format!(
            "NCCL would take the next pod's, as index {free} of {device} is free before the pod's {index}"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "nccl_tests.rs"]
mod tests;
