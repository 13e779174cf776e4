// SPDX-License-Identifier: Apache-2.0
//! SMC-R: pnet ids, the user EID and `net.smc.tcp2smc`, set and taken away.
//!
//! The kernel carries a connection by RDMA if the netdev that it leaves by and an RDMA port have
//! one pnet id (`smc_pnet_find_roce_by_pnetid()`, `net/smc/smc_pnet.c`). Netdevs get theirs in
//! their namespace's table, RDMA ports in that of the initial namespace, whichever they are in.
//!
//! | module | owns |
//! |---|---|
//! | `detach` | what is taken away, and what of others comes back |
//! | `rails` | which RDMA ports can carry a pod's connections, and by which ids |
//! | `choose` | which interfaces are carried by which port, and what is set up for it |
//! | `fits` | whether an interface's connections would be carried |
//! | `verdict` | which GID the kernel would choose for a connection |

mod choose;
mod detach;
mod fits;
mod rails;
mod verdict;

pub use choose::{Chosen, SkipReason, SmcInput, choose};
pub use detach::{Others, detach, returning};
pub use fits::{misfits, without_other_pods};
pub use rails::{Blocker, Carrier, blocker, carriers, port_of};
pub use verdict::{Misfit, Netdev, Owner, Source, View, verdict};

use attachments::{Smc, SmcStatus};
use rdma_netns::{
    NetnsSide, Op,
    smc::{PnetEntry, PnetId, SmcState},
};

/// How many links a link group of a pod gets. A second one goes over an RDMA device of the same
/// pnet id, or over the same device by the first GID that fits, without a look at the route
/// (`smc_llc_srv_add_link()`, `net/smc/smc_llc.c`): where it does not reach the peer, the first
/// connection waits for it for 5 s.
const ONE: u8 = 1;

/// What of `smc` is still to be set. `tcp2smc` comes last: what is opened from then on finds the
/// rest.
pub fn attach(smc: &Smc, seen: &SmcState) -> Vec<Op> {
    let ueid = smc.ueid.iter().filter(|ueid| !seen.ueids.contains(ueid));
    let mut ops: Vec<Op> = ueid
        .map(|ueid| Op::AddUeid { ueid: ueid.clone() })
        .collect();
    for side in [NetnsSide::Host, NetnsSide::Pod] {
        let present = table(seen, side);
        let ours = smc.entries.iter().filter(|it| it.at == side);
        let missing = ours.filter(|it| !present.contains(&it.entry));
        ops.extend(missing.map(|it| add(side, &it.entry)));
    }
    if smc.max_links.is_some() && seen.max_links.is_some_and(|links| links != ONE) {
        ops.push(Op::SetMaxLinks { links: ONE });
    }
    if smc.tcp2smc && seen.tcp2smc == Some(false) {
        ops.push(Op::SetTcp2Smc { on: true });
    }
    ops
}

/// What CHECK misses: as [`attach`], and the entries of others that the interfaces need.
///
/// Of what is off, only ids that no RDMA port has are meant to be there; all else is what could
/// not be taken back.
pub fn missing(smc: &Smc, seen: &SmcState) -> Vec<Op> {
    if smc.state == SmcStatus::Off {
        let placed = smc.entries.iter().map(|it| &it.entry);
        let ports = placed.chain(&seen.host).filter(|it| it.rdma.is_some());
        let entries = smc.entries.iter();
        let meant = entries.filter(|it| !ports.clone().any(|port| port.name == it.entry.name));
        let missing = meant.filter(|it| !table(seen, it.at).contains(&it.entry));
        return missing.map(|it| add(it.at, &it.entry)).collect();
    }
    let mut ops = attach(smc, seen);
    for carried in &smc.interfaces {
        let entry = |netdev, rdma| PnetEntry {
            name: carried.pnet_id.clone(),
            netdev,
            rdma,
        };
        let port = entry(None, Some((carried.rdma_device.clone(), carried.port)));
        let netdev = entry(Some(carried.interface.clone()), None);
        for (side, entry) in [(NetnsSide::Host, port), (NetnsSide::Pod, netdev)] {
            let op = add(side, &entry);
            if !table(seen, side).contains(&entry) && !ops.contains(&op) {
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

/// The pnet table at `side`, as it was seen.
fn table(seen: &SmcState, side: NetnsSide) -> &[PnetEntry] {
    match side {
        NetnsSide::Host => &seen.host,
        NetnsSide::Pod => &seen.pod,
    }
}

fn of_id<'a>(table: &'a [PnetEntry], id: &PnetId) -> impl Iterator<Item = &'a PnetEntry> {
    table.iter().filter(move |entry| entry.name == *id)
}
