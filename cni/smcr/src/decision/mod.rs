// SPDX-License-Identifier: Apache-2.0
//! Plans for SMC-R: pnet ids, the user EID, the number of links and `net.smc.tcp2smc`. These modules have no I/O.
//!
//! The kernel can carry a connection by RDMA if the connection's netdev and an RDMA port have the same pnet id
//! (`smc_pnet_find_roce_by_pnetid()`, `net/smc/smc_pnet.c`). A netdev's id is in the pnet table of the netdev's
//! namespace. An RDMA port's id is in the pnet table of the initial namespace, even if the RDMA device is in a pod.
//!
//! | module | owns |
//! |---|---|
//! | `detach` | removal of SMC-R, which keeps other pods' entries or adds them again |
//! | `rails` | RDMA ports that can carry a pod's connections, and their pnet ids |
//! | `choose` | the port for each interface, and the entries for interface and port, or the reason why SMC-R is off |
//! | `fits` | check whether the kernel would carry an interface's connections |
//! | `verdict` | prediction of the GID that the kernel would choose for a connection |
//! | `reason` | reasons why SMC-R does not carry connections |

mod choose;
mod detach;
mod fits;
mod rails;
mod reason;
mod verdict;

pub use choose::{Chosen, choose};
pub use detach::{Others, detach, returning};
pub use fits::{SmcInput, misfits, without_other_pods};
pub use rails::{blocker, port_of};
pub use reason::SkipReason;

use attachments::{Smc, SmcStatus};
use rdma_netns::{
    NetnsSide, Op,
    smc::{PnetEntry, PnetId, SmcState},
};

/// Largest number of links in a pod's link groups. With more, the kernel would make a second link over an RDMA device
/// with the same pnet id, or over the same device with the first GID that fits. It would not check the route
/// (`smc_llc_srv_add_link()`, `net/smc/smc_llc.c`). If the second link did not reach the peer, the first connection
/// would wait 5 s.
const ONE: u8 = 1;

/// Returns the changes that are missing for `smc`. `tcp2smc` comes last: all entries must exist before a first socket
/// uses them.
pub fn attach(smc: &Smc, smc_state: &SmcState) -> Vec<Op> {
    let ueid = smc
        .ueid
        .iter()
        .filter(|ueid| !smc_state.ueids.contains(ueid));
    let mut ops: Vec<Op> = ueid
        .map(|ueid| Op::AddUeid { ueid: ueid.clone() })
        .collect();
    for side in [NetnsSide::Host, NetnsSide::Pod] {
        let present = table(smc_state, side);
        let ours = smc.entries.iter().filter(|it| it.at == side);
        let missing = ours.filter(|it| !present.contains(&it.entry));
        ops.extend(missing.map(|it| add(side, &it.entry)));
    }
    if smc.max_links.is_some() && smc_state.max_links.is_some_and(|links| links != ONE) {
        ops.push(Op::SetMaxLinks { links: ONE });
    }
    if smc.tcp2smc && smc_state.tcp2smc == Some(false) {
        ops.push(Op::SetTcp2Smc { on: true });
    }
    ops
}

/// Returns the changes that CHECK reports as differences: the missing changes of [`attach`], and missing entries that
/// others added and that this attachment needs.
///
/// If SMC-R is off, CHECK expects only the entries whose pnet id belongs to no RDMA port, which keep connections on
/// TCP. CHECK ignores the record's other entries, which could not be removed.
pub fn missing(smc: &Smc, smc_state: &SmcState) -> Vec<Op> {
    if smc.state == SmcStatus::Off {
        let placed = smc.entries.iter().map(|it| &it.entry);
        let ports = placed.chain(&smc_state.host).filter(|it| it.rdma.is_some());
        let entries = smc.entries.iter();
        let expected = entries.filter(|it| !ports.clone().any(|port| port.name == it.entry.name));
        let missing = expected.filter(|it| !table(smc_state, it.at).contains(&it.entry));
        return missing.map(|it| add(it.at, &it.entry)).collect();
    }
    let mut ops = attach(smc, smc_state);
    for carried in &smc.interfaces {
        let id = &carried.pnet_id;
        let port = port_entry(id, &carried.rdma_device, carried.port);
        let netdev = netdev_entry(id, &carried.interface);
        for (side, entry) in [(NetnsSide::Host, port), (NetnsSide::Pod, netdev)] {
            let op = add(side, &entry);
            if !table(smc_state, side).contains(&entry) && !ops.contains(&op) {
                ops.push(op);
            }
        }
    }
    ops
}

fn add(at: NetnsSide, entry: &PnetEntry) -> Op {
    Op::AddPnet {
        at,
        entry: entry.clone(),
    }
}

fn netdev_entry(id: &PnetId, netdev: &str) -> PnetEntry {
    PnetEntry {
        name: id.clone(),
        netdev: Some(netdev.to_owned()),
        rdma: None,
    }
}

fn port_entry(id: &PnetId, device: &str, port: u8) -> PnetEntry {
    PnetEntry {
        name: id.clone(),
        netdev: None,
        rdma: Some((device.to_owned(), port)),
    }
}

fn table(smc_state: &SmcState, side: NetnsSide) -> &[PnetEntry] {
    match side {
        NetnsSide::Host => &smc_state.host,
        NetnsSide::Pod => &smc_state.pod,
    }
}

fn of_id<'a>(table: &'a [PnetEntry], id: &PnetId) -> impl Iterator<Item = &'a PnetEntry> {
    table.iter().filter(move |entry| entry.name == *id)
}
