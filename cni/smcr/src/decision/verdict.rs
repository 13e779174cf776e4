// SPDX-License-Identifier: Apache-2.0
//! Which GID the kernel chooses for a connection: known before there is one, so that no pod runs
//! into a connection that waits for 5 s, or that is carried with somebody else's address.

use attachments::Fit;
use rdma_netns::{Address, Gid, GidKind, GidTable, Link};
use std::net::{IpAddr, Ipv4Addr};

/// The address that a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The local address of its TCP socket.
    pub ip: Ipv4Addr,
    /// Length of the address's prefix, bits.
    pub prefix: u8,
    /// Whether the netdev that it leaves by is a VLAN's.
    pub vlan: bool,
}

/// A netdev whose addresses can be GIDs of the RDMA port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// Its name in its own namespace.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// Whether it is a VLAN's.
    pub vlan: bool,
    /// Whose it is.
    pub owner: Owner,
    /// Whether it is known to lie on the RDMA port, even if it has no GID there at the moment.
    pub is_on_port: bool,
}

/// Whose a netdev is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The pod's that the connection is of.
    Pod,
    /// The host's.
    Host,
    /// Another pod's, by its holder's name.
    Another(String),
}

/// All that the kernel's choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The table of the RDMA port, as the pod sees it.
    pub gids: &'a GidTable,
    /// The netdevs that are known, the pod's first.
    pub netdevs: &'a [Netdev],
    /// Whether the port is the pod's alone: a GID of no known netdev is the pod's, too.
    pub alone: bool,
    /// Whether the kernel has a user EID.
    pub has_ueid: bool,
}

/// Why a connection would not be carried, or would be carried wrongly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The kernel chooses somebody else's GID, and the peer answers to there.
    #[error("{}", strange(*address, owner, *by))]
    Strange {
        /// What the GID stands for.
        address: IpAddr,
        /// Whose it is, for people.
        owner: String,
        /// The version of SMC-R that takes it.
        by: Fit,
    },
    /// The kernel compares VLAN ids, which are not known here.
    #[error(
        "it is a VLAN's, and which GID the kernel would take for a VLAN is not predicted; give the \
         pod an interface without a VLAN tag for SMC-R"
    )]
    Vlan,
    /// No GID's netdev is of the source's subnet, and there is no RoCE v1.
    #[error(
        "no GID fits {ip}/{prefix}: SMC-Rv2 takes those of a netdev that has an IPv4 address of that \
         subnet, and for SMC-Rv1 there is no RoCE v1 GID; connections by the RDMA interfaces' own \
         addresses can have SMC-R"
    )]
    NoGid {
        /// The source.
        ip: Ipv4Addr,
        /// Bits.
        prefix: u8,
    },
    /// The first GID that fits is the other end of an address: nobody answers to it here.
    #[error(
        "the kernel would take GID {address} for it, which {netdev} has only as the other end of an \
         address: peers have no way to it; take that address from {netdev}, and set it again when the \
         GIDs of the others are there"
    )]
    OtherEnd {
        /// What the GID stands for.
        address: IpAddr,
        /// The netdev.
        netdev: String,
    },
    /// SMC-Rv2 could, if it were on.
    #[error(
        "the kernel has no user EID, without which there is only SMC-Rv1, and no RoCE v1 GID for \
         that: set smcUeid, to the same on all nodes"
    )]
    NoUeid,
}

/// Whose GID it is, and what helps.
fn strange(address: IpAddr, owner: &str, by: Fit) -> String {
    match by {
        Fit::V1 => format!(
            "SMC-Rv1 would take GID {address} for it, which is that of {owner}: such connections were \
             seen to hang; give SMC-Rv2 what it needs (smcUeid, the same on all nodes, and a GID of \
             the pod's own with the connection's address in its netdev's prefix), or the pod an RDMA \
             device of its own (exclusive mode)"
        ),
        Fit::V2 | Fit::Device => format!(
            "the kernel can take GID {address} for it, which fits as well and is that of {owner}; give \
             the pod an address of a subnet that neither the host nor another pod has on this NIC, or \
             all of these addresses with prefix /32 and routes, or the pod an RDMA device of its own \
             (exclusive mode)"
        ),
    }
}

/// What becomes of a connection from `source`.
///
/// SMC-Rv2 is tried first, if there is a user EID (`smc_find_proposal_devices()`,
/// `net/smc/af_smc.c`), and takes the first RoCE v2 GID that is an IPv4 address and whose netdev,
/// in whichever namespace, has any address with the source in its prefix: the GID itself need
/// not be of that prefix. SMC-Rv1 takes the first RoCE v1 GID, whatever it stands for: on a
/// shared netdev the parent's. A connection by a VLAN takes those of VLANs of its id only, any
/// other takes none of these (`smc_ib_determine_gid()`, `smc_ib_determine_gid_rcu()`,
/// `net/smc/smc_ib.c`, Linux 6.12).
///
/// Which one is the first is not counted on: places in the table that become free are used again.
/// All that fit have to be the pod's. Only the other end of an address, which has a GID as well, has
/// to stand behind another: earlier versions set one on a rail, after the rail's own, and CHECK looks
/// again.
pub fn verdict(view: View<'_>, source: Source) -> Result<Fit, Misfit> {
    if view.gids.size == 1 {
        return Ok(Fit::Device);
    }
    if source.vlan {
        return Err(Misfit::Vlan);
    }
    let mut gids: Vec<&Gid> = view.gids.gids.iter().collect();
    gids.sort_by_key(|gid| gid.index);
    let of_kind = |kind| gids.iter().copied().filter(move |gid| gid.kind == kind);
    let mut v2 = of_kind(GidKind::RoceV2)
        .filter(|gid| view.reaches(gid, source))
        .peekable();
    let fits_v2 = v2.peek().is_some();
    if fits_v2 && view.has_ueid {
        view.no_other_end(v2.peek().copied())?;
        view.all_own(v2, Fit::V2)?;
        view.none_near(source)?;
        return Ok(Fit::V2);
    }
    let mut v1 = of_kind(GidKind::InfinibandOrRoceV1)
        .filter(|gid| !view.is_by_vlan(gid))
        .peekable();
    match v1.peek() {
        Some(_) => view.all_own(v1, Fit::V1).map(|()| Fit::V1),
        None if fits_v2 => Err(Misfit::NoUeid),
        None => Err(Misfit::NoGid {
            ip: source.ip,
            prefix: source.prefix,
        }),
    }
}

impl View<'_> {
    /// Refuses GIDs that are not the pod's own.
    ///
    /// The parent's are no exception for SMC-Rv1, although peers reach the port by them whoever
    /// connects: that is right where all RDMA NICs are on one link, which no pod sees, and where
    /// the GID stays the parent's link-local one, which soft-RoCE's over a bond does not
    /// (docs/dev/smc-r-kernel.md). An arm here for `Owner::Host` with `Fit::V1` would let any number of pods
    /// have it.
    fn all_own<'g>(&self, gids: impl Iterator<Item = &'g Gid>, by: Fit) -> Result<(), Misfit> {
        for gid in gids {
            let owner = match self.netdev(gid) {
                None if self.alone => continue,
                None => "somebody else".to_owned(),
                Some(netdev) if netdev.owner == Owner::Pod => continue,
                Some(netdev) => netdev.words(),
            };
            let address = gid.address();
            return Err(Misfit::Strange { address, owner, by });
        }
        Ok(())
    }

    /// Refuses the other end of an address as what peers are told.
    fn no_other_end(&self, first: Option<&Gid>) -> Result<(), Misfit> {
        let Some((gid, netdev)) = first.and_then(|gid| Some((gid, self.netdev(gid)?))) else {
            return Ok(());
        };
        let address = gid.address();
        match netdev.addresses.iter().any(|it| it.ip == address) {
            true => Ok(()),
            false if netdev.has_gid_of(address) => Err(Misfit::OtherEnd {
                address,
                netdev: netdev.name.clone(),
            }),
            false => Ok(()),
        }
    }

    /// Refuses a netdev of somebody else on the same port whose GIDs would fit once they are
    /// there: it may be down, or come up with its address later.
    fn none_near(&self, source: Source) -> Result<(), Misfit> {
        let is_others = |it: &&Netdev| it.is_on_port && it.owner != Owner::Pod;
        for netdev in self.netdevs.iter().filter(is_others) {
            if let Some(address) = netdev.reaching(source) {
                return Err(Misfit::Strange {
                    address: address.ip,
                    owner: netdev.words(),
                    by: Fit::V2,
                });
            }
        }
        Ok(())
    }

    /// The netdev that `gid` is an address of, if it is known.
    fn netdev(&self, gid: &Gid) -> Option<&Netdev> {
        let is_its = |netdev: &&Netdev| {
            let named = gid.netdev.as_ref().is_none_or(|name| *name == netdev.name);
            named && netdev.has_gid_of(gid.address())
        };
        let by_name = |netdev: &&Netdev| gid.netdev.as_ref() == Some(&netdev.name);
        // the driver makes the port's own of its hardware address, whether it is an address or not
        let made = || {
            let is_made = !self.alone && gid.ip.is_unicast_link_local();
            let hosts = self.netdevs.iter().filter(|it| it.owner == Owner::Host);
            hosts.filter(|_| is_made).find(by_name)
        };
        self.netdevs.iter().find(is_its).or_else(made)
    }

    fn is_by_vlan(&self, gid: &Gid) -> bool {
        self.netdev(gid).is_some_and(|netdev| netdev.vlan)
    }

    /// Whether `gid` is an IPv4 address, and its netdev has an address with `source` in its
    /// prefix. Of a netdev that is not known it is assumed that the GID is of the source's subnet
    /// or it has none.
    fn reaches(&self, gid: &Gid, source: Source) -> bool {
        let IpAddr::V4(ip) = gid.address() else {
            return false;
        };
        match self.netdev(gid) {
            None => same_subnet(ip, source.prefix, source.ip),
            Some(netdev) => netdev.reaching(source).is_some(),
        }
    }
}

impl Netdev {
    /// Whether one of its addresses has the GID of `ip`: an IPv4 address that has another end has
    /// that one's (`inetaddr_event()`, `drivers/infiniband/core/roce_gid_mgmt.c`).
    fn has_gid_of(&self, ip: IpAddr) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|it| match it.ip {
            IpAddr::V4(_) => it.peer.unwrap_or(it.ip) == ip,
            IpAddr::V6(_) => it.ip == ip,
        })
    }

    /// Its first address with `source`, which is by no VLAN, in its prefix.
    fn reaching(&self, source: Source) -> Option<&Address> {
        let reaches = |address: &&Address| {
            // `inet_ifa_match()` looks at the other end of a point-to-point link
            let end = address.peer.unwrap_or(address.ip);
            matches!(end, IpAddr::V4(end) if same_subnet(end, address.prefix, source.ip))
        };
        let mut addresses = self.addresses.iter().filter(|_| !self.vlan);
        addresses.find(reaches)
    }

    fn words(&self) -> String {
        match &self.owner {
            Owner::Pod => format!("{} of the pod", self.name),
            Owner::Host => format!("{} on the host", self.name),
            Owner::Another(holder) => format!("{} of {holder}", self.name),
        }
    }
}

impl Source {
    /// The sources that connections by `link` can have; `vlan`: it is a VLAN's.
    pub fn of(link: &Link, vlan: bool) -> impl Iterator<Item = Self> {
        let addresses = link.addresses.iter().filter(|address| address.scope == 0);
        addresses.filter_map(move |address| match address.ip {
            IpAddr::V4(ip) => Some(Self {
                ip,
                prefix: address.prefix,
                vlan,
            }),
            IpAddr::V6(_) => None,
        })
    }
}

/// Whether both are in one subnet of `prefix` bits.
pub(super) fn same_subnet(one: Ipv4Addr, prefix: u8, other: Ipv4Addr) -> bool {
    let differing = u32::from(one) ^ u32::from(other);
    differing.leading_zeros() >= u32::from(prefix.min(32))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
