// SPDX-License-Identifier: Apache-2.0
//! Waits for the GIDs of a pod's addresses. RDMA can use an address once the RDMA device's GID table has the address's
//! GID. The kernel adds the GID shortly after it sets the address. If the table is full, the address has no GID, and
//! the kernel reports this only in its log (`ib_cache_gid_add()`, `drivers/infiniband/core/cache.c`).

use crate::apply::ApplyError;
use attachments::{Attachment, Rail, RailGid};
use rdma_netns::{GidTable, Kernel, LinkType, ObserveError, Observed, RdmaDevice, gid::GidKind};
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// Time limit for the GIDs of all rails. The kernel took 11 to 58 ms for a GID on a machine that emulates its
/// processor.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time limit, also from the start of [`wait`], for a GID whose table is full or that ADD does not need.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);

const POLL: Duration = Duration::from_millis(10);

/// Waits for the RoCE v2 GIDs of the rails' addresses. For a child of a shared netdev, a missing GID is an error,
/// because RDMA needs the GID. For a moved netdev, a missing GID is only logged. An iWARP device needs no such GID.
pub fn wait<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
) -> Result<Vec<Vec<RailGid>>, ApplyError> {
    let started = kernel.now();
    let whose = Some(pod).filter(|_| attachment.moves_rdma());
    let of_rail = |rail: &Rail| -> Result<Vec<RailGid>, ApplyError> {
        let (Some(rdma), Some(link)) = (&rail.rdma, rail.in_pod(observed)) else {
            return Ok(vec![]);
        };
        if link.link_type == LinkType::Infiniband {
            return Ok(vec![]);
        }
        let addresses = link
            .addresses
            .iter()
            .filter(|it| !it.automatic && it.scope == 0);
        addresses
            .filter_map(|address| {
                let needs_it = rail.shared.is_some();
                let found = find(kernel, whose, rdma, address.ip, (started, needs_it));
                let waited = kernel.now().duration_since(started);
                settle(rail, rdma, address.ip, found, waited).transpose()
            })
            .collect()
    };
    attachment.rails.iter().map(of_rail).collect()
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
            match locate(&tables, *address) {
                Some(found) if found == *recorded => {}
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
/// addresses, a process keeps the pod's namespace alive, although no path leads to it.
pub fn lingering<K: Kernel>(
    kernel: &K,
    attachment: &Attachment,
) -> Result<Vec<IpAddr>, ObserveError> {
    let shared = attachment.rails.iter().filter(|rail| rail.shared.is_some());
    let shared: Vec<&Rail> = shared
        .filter(|rail| !rail.assigned.addresses.is_empty())
        .collect();
    if shared.is_empty() {
        return Ok(vec![]);
    }
    let observed = kernel.observe(None)?;
    let mut in_use = vec![];
    for rail in shared {
        // a missing device has no GIDs
        let Some(rdma) = plan::rdma_on_host(rail, &observed) else {
            continue;
        };
        let tables = tables(kernel, None, rdma)?;
        let addresses = rail.assigned.addresses.iter().map(|address| address.ip);
        in_use.extend(addresses.filter(|ip| locate(&tables, *ip).is_some()));
    }
    Ok(in_use)
}

/// A port's number and its GID table.
type Table = (u32, GidTable);

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

fn locate(tables: &[Table], ip: IpAddr) -> Option<RailGid> {
    tables.iter().find_map(|(port, table)| {
        let gid = table.find(ip, GidKind::RoceV2)?;
        Some(RailGid {
            address: ip,
            gid: gid.ip,
            port: *port,
            index: gid.index,
        })
    })
}

/// Searches the GID tables for `ip` until a table has the GID. Returns the tables without the GID at the time limit, or
/// if the GIDs do not derive from IP addresses.
fn find<K: Kernel>(
    kernel: &K,
    whose: Option<&K::Pod>,
    rdma: &RdmaDevice,
    ip: IpAddr,
    (started, needs_it): (Instant, bool),
) -> Result<Result<RailGid, Vec<Table>>, ObserveError> {
    loop {
        let tables = tables(kernel, whose, rdma)?;
        if let Some(gid) = locate(&tables, ip) {
            return Ok(Ok(gid));
        }
        if is_without_addresses(&tables) {
            return Ok(Err(tables));
        }
        let is_full = tables.iter().all(|(_, table)| table.used() >= table.size);
        let patience = if needs_it && !is_full {
            PATIENCE
        } else {
            SHORT_PATIENCE
        };
        if kernel.now().duration_since(started) >= patience {
            return Ok(Err(tables));
        }
        kernel.pause(POLL);
    }
}

/// Evaluates the result of a search. A missing GID is an error only if the rail needs it.
fn settle(
    rail: &Rail,
    rdma: &RdmaDevice,
    ip: IpAddr,
    found: Result<Result<RailGid, Vec<Table>>, ObserveError>,
    waited: Duration,
) -> Result<Option<RailGid>, ApplyError> {
    let name = &rdma.name;
    let error = match found {
        Ok(Ok(gid)) => {
            let (index, port) = (gid.index, gid.port);
            let waited = waited.as_millis();
            log::info!("{ip} is GID {index} of {name} port {port}, after {waited} ms");
            return Ok(Some(gid));
        }
        Ok(Err(tables)) if is_without_addresses(&tables) => {
            log::debug!("the GIDs of {name} do not derive from IP addresses");
            return Ok(None);
        }
        Ok(Err(tables)) => ApplyError::NoGid {
            rdma: name.clone(),
            address: ip,
            waited,
            used: tables.iter().map(|(_, table)| table.used()).sum(),
            size: tables.iter().map(|(_, table)| table.size).sum(),
        },
        Err(error) => ApplyError::Observe(error),
    };
    if rail.shared.is_some() {
        return Err(error);
    }
    log::warn!(
        "{}: {error}; ADD continues without the GID of {ip}",
        rail.pod_name
    );
    Ok(None)
}
