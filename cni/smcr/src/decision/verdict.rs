// SPDX-License-Identifier: Apache-2.0
//! Predicts the GID that the kernel chooses for a connection. Without the prediction, some connections would wait for 5
//! s, and others would use an address that does not belong to the pod.

use super::reason::SkipReason;
use attachments::{Attachment, Fit};
use rdma_netns::{Address, Gid, GidKind, GidTable};
use std::net::{IpAddr, Ipv4Addr};

/// Local address of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Address of the TCP socket.
    pub(super) ip: Ipv4Addr,
    /// Length of the address's prefix, in bits.
    pub(super) prefix: u8,
    /// True if the connection's netdev is a VLAN, or a child of a VLAN.
    pub(super) vlan: bool,
}

/// A netdev whose addresses can be GIDs of the RDMA port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Netdev<'a> {
    /// Name of the netdev in its namespace.
    pub(super) name: &'a str,
    /// Addresses of the netdev.
    pub(super) addresses: &'a [Address],
    /// True if the netdev is a VLAN.
    pub(super) vlan: bool,
    /// Owner of the netdev.
    pub(super) owner: Owner<'a>,
    /// True if the netdev certainly uses the RDMA port, even while it has no GID on the port.
    pub(super) is_on_port: bool,
}

/// Owner of a netdev.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Owner<'a> {
    /// The pod that has the connection.
    Pod,
    /// The host.
    Host,
    /// Another pod, which has this attachment.
    Another(&'a Attachment),
}

/// State on which the kernel's choice depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    /// GID table of the RDMA port, as the pod sees it.
    pub(super) gids: &'a GidTable,
    /// Known netdevs. The pod's netdevs are first.
    pub(super) netdevs: &'a [Netdev<'a>],
    /// True if no other pod has the port. A GID of an unknown netdev then belongs to the pod.
    pub(super) alone: bool,
    /// True if the kernel has a user EID.
    pub(super) has_ueid: bool,
}

/// Predicts how the kernel carries a connection from `source`. A device with a single GID (iWARP) always uses this GID.
/// The following rules are for RoCE.
///
/// - The kernel first tries SMC-Rv2, if it has a user EID (`smc_find_proposal_devices()`, `net/smc/af_smc.c`). It
///   chooses the first RoCE v2 GID that is an IPv4 address and whose netdev has an address whose prefix contains
///   `source`. The netdev may be in any namespace, and the GID itself may have another prefix.
/// - For SMC-Rv1 the kernel uses the first RoCE v1 GID, with any address. On a shared netdev, this is the parent's GID.
/// - A connection by a VLAN uses only GIDs of VLANs with the same id. Any other connection uses no GID of a VLAN
///   (`smc_ib_determine_gid()`, `smc_ib_determine_gid_rcu()`, `net/smc/smc_ib.c`, Linux 6.12).
///
/// The kernel reuses free indexes, so the table's order can change. `verdict` therefore requires that all GIDs that fit
/// belong to the pod. A GID of the pod may be the other end of a point-to-point address if it is not the first GID that
/// fits. Earlier versions of `rdma-cni` set such an address on a rail, after the rail's own address. CHECK repeats the
/// prediction.
pub(super) fn verdict(view: View<'_>, source: Source) -> Result<Fit, SkipReason> {
    if view.gids.size == 1 {
        return Ok(Fit::Device);
    }
    if source.vlan {
        return Err(SkipReason::Vlan);
    }
    let mut gids: Vec<&Gid> = view.gids.gids.iter().collect();
    gids.sort_unstable_by_key(|gid| gid.index);
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
        None if fits_v2 => Err(SkipReason::NoUeid),
        None => Err(SkipReason::NoGid {
            ip: source.ip,
            prefix: source.prefix,
        }),
    }
}

impl View<'_> {
    /// Refuses GIDs that do not belong to the pod. Also refuses the parent's GIDs for SMC-Rv1, although any peer
    /// reaches the port by them. The parent's GIDs would be correct only under two conditions:
    ///
    /// - All RDMA NICs must be in one layer 2 network. A pod cannot observe this.
    /// - The first GID must remain the parent's link-local GID. This is false for soft-RoCE over a bond
    ///   (docs/dev/smc-r-kernel.md).
    ///
    /// A match arm for `Owner::Host` with `Fit::V1` in this function would allow these GIDs for any number of pods.
    fn all_own<'g>(&self, gids: impl Iterator<Item = &'g Gid>, by: Fit) -> Result<(), SkipReason> {
        for gid in gids {
            let owner = match self.netdev(gid) {
                None if self.alone => continue,
                None => "an unknown owner".to_owned(),
                Some(netdev) if netdev.owner == Owner::Pod => match self.has_namesake(gid) {
                    true => "an unknown owner".to_owned(),
                    false => continue,
                },
                Some(netdev) => netdev.words(),
            };
            let address = gid.address();
            return Err(SkipReason::Strange { address, owner, by });
        }
        Ok(())
    }

    /// Returns true if a netdev of another namespace has a GID with the address and the netdev name of `gid`. A GID does
    /// not tell the namespace of its netdev. The kernel has one GID of a kind for each netdev with an address.
    fn has_namesake(&self, gid: &Gid) -> bool {
        let all = self.gids.gids.iter();
        let same = all.filter(|it| (it.kind, it.ip, &it.netdev) == (gid.kind, gid.ip, &gid.netdev));
        !self.alone && same.count() > 1
    }

    /// Refuses the port if `first`, the first GID that fits, is the other end of a point-to-point address, because the
    /// kernel sends this GID to peers.
    fn no_other_end(&self, first: Option<&Gid>) -> Result<(), SkipReason> {
        let Some((gid, netdev)) = first.and_then(|gid| Some((gid, self.netdev(gid)?))) else {
            return Ok(());
        };
        let address = gid.address();
        match netdev.addresses.iter().any(|it| it.ip == address) {
            true => Ok(()),
            false if netdev.has_gid_of(address) => Err(SkipReason::OtherEnd {
                address,
                netdev: netdev.name.to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Refuses the port if a netdev of another owner has an address from which the kernel may later make a GID that
    /// fits. The netdev may be down now, or its address may be only in a record.
    fn none_near(&self, source: Source) -> Result<(), SkipReason> {
        let is_others = |it: &&Netdev<'_>| it.is_on_port && it.owner != Owner::Pod;
        for netdev in self.netdevs.iter().filter(is_others) {
            if let Some(address) = netdev.reaching(source) {
                return Err(SkipReason::Strange {
                    address: address.ip,
                    owner: netdev.words(),
                    by: Fit::V2,
                });
            }
        }
        Ok(())
    }

    /// Returns the netdev to which `gid` belongs. `None`: the netdev is unknown.
    fn netdev(&self, gid: &Gid) -> Option<&Netdev<'_>> {
        let is_its = |netdev: &&Netdev<'_>| {
            let named = gid.netdev.as_ref().is_none_or(|name| *name == netdev.name);
            named && netdev.has_gid_of(gid.address())
        };
        let by_name = |netdev: &&Netdev<'_>| gid.netdev.as_deref() == Some(netdev.name);
        // no netdev may have the address of the GID that the driver derives from the port's hardware address
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

    /// Returns true if `gid` is an IPv4 address and its netdev has an address whose prefix contains `source`. If the
    /// netdev is unknown, applies the source's prefix to the GID itself.
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

impl Netdev<'_> {
    /// Returns true if one of the netdev's addresses makes a GID for `ip`. A point-to-point IPv4 address makes a GID
    /// for its other end (`inetaddr_event()`, `drivers/infiniband/core/roce_gid_mgmt.c`).
    fn has_gid_of(&self, ip: IpAddr) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|it| match it.ip {
            IpAddr::V4(_) => it.peer.unwrap_or(it.ip) == ip,
            IpAddr::V6(_) => it.ip == ip,
        })
    }

    /// Returns the netdev's first address whose prefix contains `source`. Returns `None` for a VLAN.
    fn reaching(&self, source: Source) -> Option<&Address> {
        let reaches = |address: &&Address| {
            // `inet_ifa_match()` compares the other end if the address is a point-to-point address
            let end = address.peer.unwrap_or(address.ip);
            matches!(end, IpAddr::V4(end) if same_subnet(end, address.prefix, source.ip))
        };
        let mut addresses = self.addresses.iter().filter(|_| !self.vlan);
        addresses.find(reaches)
    }

    fn words(&self) -> String {
        match self.owner {
            Owner::Pod => format!("{} of the pod", self.name),
            Owner::Host => format!("{} on the host", self.name),
            Owner::Another(other) => format!("{} of {}", self.name, other.holder()),
        }
    }
}

/// Returns true if both addresses are in one subnet with a prefix of `prefix` bits.
pub(super) fn same_subnet(one: Ipv4Addr, prefix: u8, other: Ipv4Addr) -> bool {
    let differing = u32::from(one) ^ u32::from(other);
    differing.leading_zeros() >= u32::from(prefix.min(32))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
