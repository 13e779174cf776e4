// SPDX-License-Identifier: Apache-2.0
//! Waits for the GIDs of a pod's addresses. RDMA can use an address once the RDMA device's GID table has the address's
//! GID. The kernel adds the GID shortly after it sets the address. If the table is full, the address has no GID, and
//! the kernel reports this only in its log (`ib_cache_gid_add()`, `drivers/infiniband/core/cache.c`).

use crate::{apply::ApplyError, error::Cause, node::Node};
use attachments::{Attachment, Rail, RailGid, store::GidLocks};
use rdma_netns::{
    Gid, GidTable, Kernel, LinkType, ObserveError, Observed, RdmaDevice, gid::GidKind,
};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Time limit for the GIDs of all rails. The kernel took 11 to 58 ms for a GID on a machine that emulates its
/// processor.
const GID_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit, also from the start of [`wait`], for a GID whose table is full or that ADD does not need.
const SHORT_GID_TIMEOUT: Duration = Duration::from_secs(1);

const POLL: Duration = Duration::from_millis(10);

/// The GIDs of the rails' addresses before ADD sets the addresses. They belong to other netdevs: the kernel has a GID
/// for each netdev with an address, and the netdevs of all namespaces and VLANs share a port's table. A GID does not
/// tell the namespace of its netdev.
#[derive(Debug)]
pub struct Before {
    /// The tables of each rail's RDMA device. Empty if the rail does not need its GIDs.
    tables: Vec<Vec<Table>>,
    /// While this ADD holds the locks, ADDs of other pods cannot set the same addresses.
    _locks: GidLocks,
}

/// Locks the addresses of the rails that share a netdev, and reads their present GIDs. The caller then sets the
/// addresses, and calls [`wait`].
pub fn before<K: Kernel>(
    node: &Node<'_, K>,
    pod: &K::Pod,
    attachment: &Attachment,
) -> Result<Before, Cause> {
    let mut addresses = BTreeSet::new();
    for rail in &attachment.rails {
        if let Some(rdma) = awaited(rail) {
            let assigned = rail.assigned.addresses.iter();
            addresses.extend(assigned.map(|address| (rdma.index, address.ip)));
        }
    }
    let locks = node.store.lock_gids(&addresses)?;
    let whose = Some(pod).filter(|_| attachment.moves_rdma());
    let of_rail = |rail: &Rail| match awaited(rail) {
        Some(rdma) => tables(node.kernel, whose, rdma),
        None => Ok(vec![]),
    };
    let tables: Result<_, _> = attachment.rails.iter().map(of_rail).collect();
    Ok(Before {
        tables: tables.map_err(ApplyError::from)?,
        _locks: locks,
    })
}

/// Returns the RDMA device whose GIDs the rail needs. A moved netdev does not need them, and its RDMA device has only
/// GIDs of the pod.
fn awaited(rail: &Rail) -> Option<&RdmaDevice> {
    let needs_it = rail.shared.is_some() && !rail.has_ipoib_child();
    let has_addresses = !rail.assigned.addresses.is_empty();
    rail.rdma.as_ref().filter(|_| needs_it && has_addresses)
}

/// Waits for the RoCE v2 GIDs of the rails' addresses. For a child of a shared netdev, a missing GID is an error,
/// because RDMA needs the GID. For a moved netdev, a missing GID is only logged. An iWARP device needs no such GID.
pub fn wait<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
    before: Before,
) -> Result<Vec<Vec<RailGid>>, ApplyError> {
    let started = kernel.now();
    let whose = Some(pod).filter(|_| attachment.moves_rdma());
    let of_rail = |(rail, before): (&Rail, &Vec<Table>)| -> Result<Vec<RailGid>, ApplyError> {
        let (Some(rdma), Some(link)) = (&rail.rdma, rail.in_pod(observed)) else {
            return Ok(vec![]);
        };
        if link.link_type == LinkType::Infiniband {
            return Ok(vec![]);
        }
        let mut search = Search {
            kernel,
            whose,
            rail,
            rdma,
            started,
            tables: vec![],
        };
        let addresses = link
            .addresses
            .iter()
            .filter(|it| !it.automatic && it.scope == 0);
        addresses
            .filter_map(|address| {
                let others = places(before, address.ip);
                let found = search.find(address.ip, &others);
                search.settle(address.ip, &others, found).transpose()
            })
            .collect()
    };
    let rails = attachment.rails.iter().zip(&before.tables);
    rails.map(of_rail).collect()
}

/// Describes the recorded addresses in `left` whose present GIDs differ from the recorded GIDs.
pub fn drift<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    left: &[IpAddr],
) -> Vec<String> {
    let whose = Some(pod).filter(|_| attachment.moves_rdma());
    let mut drift = vec![];
    for rail in &attachment.rails {
        let is_left = |recorded: &&RailGid| left.contains(&recorded.address);
        let recorded: Vec<&RailGid> = rail.gids.iter().filter(is_left).collect();
        let Some(rdma) = rail.rdma.as_ref().filter(|_| !recorded.is_empty()) else {
            continue;
        };
        let tables = match tables(kernel, whose, rdma) {
            Ok(tables) => tables,
            Err(error) => {
                drift.push(error.to_string());
                continue;
            }
        };
        for recorded in recorded {
            let name = &rdma.name;
            let RailGid {
                address,
                index,
                port,
                ..
            } = recorded;
            let present = gids_of(rail, &tables, *address);
            match present.first() {
                // a netdev of another pod with this name and address has another GID, which may come first
                _ if present.contains(recorded) => {}
                Some(found) => drift.push(format!(
                    "the GID of {address} has index {} on {name} port {}, not {index} on port {port}",
                    found.index, found.port
                )),
                None => drift.push(format!("{name} has no RoCE v2 GID for {address}")),
            }
        }
    }
    drift
}

/// Returns the addresses of an ended pod that RDMA devices of its shared netdevs still have as GIDs. If there are such
/// addresses, a process keeps the pod's namespace alive, although no path leads to it. Does not count the GIDs of the
/// host's netdevs, and on each port one GID for each settled rail that has the address on the same RDMA device, for
/// example on another VLAN.
pub fn lingering<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
) -> Result<Vec<IpAddr>, ObserveError> {
    let shared = attachment.rails.iter().filter(|rail| rail.shared.is_some());
    let shared: Vec<&Rail> = shared
        .filter(|rail| !rail.assigned.addresses.is_empty())
        .collect();
    if shared.is_empty() {
        return Ok(vec![]);
    }
    let observed = node.kernel.observe(None)?;
    let is_of_host = |gid: &Gid| {
        let link = gid.netdev.as_ref().and_then(|it| observed.host.link(it));
        link.is_some_and(|link| link.addresses.iter().any(|it| it.ip == gid.address()))
    };
    let mut in_use = vec![];
    for rail in shared {
        // a missing device has no GIDs
        let Some(rdma) = plan::rdma_on_host(rail, &observed) else {
            continue;
        };
        let tables = tables(node.kernel, None, rdma)?;
        let is_on_it = |other: &&Rail| {
            let other = plan::rdma_on_host(other, &observed);
            other.is_some_and(|it| it.index == rdma.index)
        };
        in_use.extend(rail.assigned.addresses.iter().map(|it| it.ip).filter(|ip| {
            // the child of a bond over two ports of the device has a GID on each port
            let on_port = |(_, table): &Table| {
                let gids = table.all(*ip, GidKind::RoceV2);
                gids.filter(|gid| !is_of_host(gid)).count()
            };
            let gids = tables.iter().map(on_port).max().unwrap_or_default();
            let of_others = || {
                let others = node.store.settled_with(node.kernel, attachment, *ip);
                let rails = others.iter().flat_map(|it| it.rails_with(*ip));
                rails.filter(is_on_it).count()
            };
            gids > 0 && gids > of_others()
        }));
    }
    Ok(in_use)
}

/// A port's number and its GID table.
type Table = (u32, GidTable);

/// Place of a GID: the port's number and the index.
type Place = (u32, u32);

fn tables<K: Kernel>(
    kernel: &K,
    whose: Option<&K::Pod>,
    rdma: &RdmaDevice,
) -> Result<Vec<Table>, ObserveError> {
    let ports = rdma.ports.iter().map(|port| port.number);
    ports
        .map(|port| Ok((port, kernel.gids(whose, &rdma.name, port)?)))
        .collect()
}

/// Returns true if the device's GIDs do not derive from IP addresses. An iWARP device (`erdma`, `siw`, `irdma`) has a
/// single GID, its hardware address (`gid_tbl_len` of 1 in `erdma_get_port_immutable()`).
fn is_without_addresses(tables: &[Table]) -> bool {
    !tables.is_empty() && tables.iter().all(|(_, table)| table.size == 1)
}

/// Returns the RoCE v2 GIDs of `ip`, each with its port.
fn roce_v2(tables: &[Table], ip: IpAddr) -> impl Iterator<Item = (u32, &Gid)> {
    tables.iter().flat_map(move |(port, table)| {
        let gids = table.all(ip, GidKind::RoceV2);
        gids.map(|gid| (*port, gid))
    })
}

/// Returns the places of the RoCE v2 GIDs of `ip`, with any netdev: a pod can change the name of its netdev.
fn places(tables: &[Table], ip: IpAddr) -> Vec<Place> {
    let gids = roce_v2(tables, ip);
    gids.map(|(port, gid)| (port, gid.index)).collect()
}

/// Returns the RoCE v2 GIDs of `ip` that can belong to the netdev of `rail`: its own GID, and the GIDs of other pods'
/// netdevs with the same name.
fn gids_of(rail: &Rail, tables: &[Table], ip: IpAddr) -> Vec<RailGid> {
    let has_name = |name: &String| *name == *rail.pod_name;
    let gids = roce_v2(tables, ip).filter(|(_, gid)| gid.netdev.as_ref().is_none_or(has_name));
    let gid = |(port, gid): (u32, &Gid)| RailGid {
        address: ip,
        gid: gid.ip,
        port,
        index: gid.index,
    };
    gids.map(gid).collect()
}

/// The search for the GIDs of a rail's addresses.
struct Search<'a, K: Kernel> {
    kernel: &'a K,
    whose: Option<&'a K::Pod>,
    rail: &'a Rail,
    rdma: &'a RdmaDevice,
    /// Time at which [`wait`] began.
    started: Instant,
    /// The tables at the last read.
    tables: Vec<Table>,
}

impl<K: Kernel> Search<'_, K> {
    /// Searches the GID tables for `ip` until a table has the rail's own GID. `others` are the places of other netdevs'
    /// GIDs before ADD set the address. Returns `None` at the time limit, if the GIDs do not derive from IP addresses,
    /// or if one of `others` has disappeared.
    fn find(&mut self, ip: IpAddr, others: &[Place]) -> Result<Option<RailGid>, ObserveError> {
        // the last read for another address usually has this address too
        if let Some(gid) = self.own(ip, others) {
            return Ok(Some(gid));
        }
        loop {
            self.tables = tables(self.kernel, self.whose, self.rdma)?;
            let own = self.own(ip, others);
            if own.is_some()
                || self.has_lost(ip, others)
                || is_without_addresses(&self.tables)
                || self.is_over()
            {
                return Ok(own);
            }
            self.kernel.pause(POLL);
        }
    }

    /// Returns the rail's GID of `ip` that is at none of the places `others`, on the first port with exactly one such
    /// GID. Several such GIDs mean that a program outside this project sets the address at this moment. Returns `None`
    /// if one of `others` has disappeared: it may have another index now, like the GIDs of a bond that fails over.
    fn own(&self, ip: IpAddr, others: &[Place]) -> Option<RailGid> {
        if self.has_lost(ip, others) {
            return None;
        }
        let mut new = gids_of(self.rail, &self.tables, ip);
        new.retain(|it| !others.contains(&(it.port, it.index)));
        let is_only = |one: &&RailGid| new.iter().filter(|it| it.port == one.port).count() == 1;
        new.iter().find(is_only).cloned()
    }

    /// Returns true if one of `others` has no GID of `ip` now.
    fn has_lost(&self, ip: IpAddr, others: &[Place]) -> bool {
        let present = places(&self.tables, ip);
        others.iter().any(|it| !present.contains(it))
    }

    fn is_over(&self) -> bool {
        let is_full = self
            .tables
            .iter()
            .all(|(_, table)| table.used() >= table.size);
        let timeout = if self.rail.shared.is_some() && !is_full {
            GID_TIMEOUT
        } else {
            SHORT_GID_TIMEOUT
        };
        self.waited() >= timeout
    }

    fn waited(&self) -> Duration {
        self.kernel.now().duration_since(self.started)
    }

    /// Evaluates the result of [`Self::find`]. A missing GID is an error only if the rail needs it.
    fn settle(
        &self,
        ip: IpAddr,
        others: &[Place],
        found: Result<Option<RailGid>, ObserveError>,
    ) -> Result<Option<RailGid>, ApplyError> {
        let name = &self.rdma.name;
        let waited = self.waited();
        let error = match found {
            Ok(Some(gid)) => {
                let (index, port) = (gid.index, gid.port);
                let waited = waited.as_millis();
                log::info!("{ip} is GID {index} of {name} port {port}, after {waited} ms");
                return Ok(Some(gid));
            }
            Ok(None) if is_without_addresses(&self.tables) => {
                log::debug!("the GIDs of {name} do not derive from IP addresses");
                return Ok(None);
            }
            Ok(None) => ApplyError::NoGid {
                rdma: name.clone(),
                address: ip,
                waited,
                used: self.tables.iter().map(|(_, table)| table.used()).sum(),
                size: self.tables.iter().map(|(_, table)| table.size).sum(),
                is_shared: !others.is_empty() || !gids_of(self.rail, &self.tables, ip).is_empty(),
            },
            Err(error) => ApplyError::Observe(error),
        };
        if self.rail.shared.is_some() {
            return Err(error);
        }
        log::warn!(
            "{}: {error}; ADD continues without the GID of {ip}",
            self.rail.pod_name
        );
        Ok(None)
    }
}
