// SPDX-License-Identifier: Apache-2.0
//! Refuses to move an RDMA device while a process has an SMC connection over it. The kernel would wait in the move
//! until the connection ends. This wait has no limit, and no signal ends the waiting process
//! (`smc_smcr_terminate_all()`, `net/smc/smc_core.c`; docs/smc-r.md).

use plan::Obstacle;
use rdma_netns::{Kernel, NetnsSide, Op};

/// Returns an obstacle if `ops` would move an RDMA device over which a process has SMC connections. Queries the
/// connections only if `ops` has moves and the kernel has SMC. A failed query is only logged, and is no obstacle.
pub fn check<K: Kernel>(kernel: &K, pod: Option<&K::Pod>, ops: &[Op]) -> Result<(), Obstacle> {
    let moves = ops.iter().filter_map(|op| match op {
        Op::MoveRdma { device, from, .. } => Some((device, *from)),
        _ => None,
    });
    for from in [NetnsSide::Host, NetnsSide::Pod] {
        let devices: Vec<&String> = moves
            .clone()
            .filter(|it| it.1 == from)
            .map(|it| it.0)
            .collect();
        if devices.is_empty() || !kernel.has_smc() {
            continue;
        }
        let seen = match kernel.smc(pod.filter(|_| from == NetnsSide::Pod)) {
            Ok(seen) => seen.unwrap_or_default(),
            Err(error) => {
                log::warn!("{error}; a process may keep {devices:?} open");
                continue;
            }
        };
        let mut held = seen.held.into_iter();
        if let Some(held) = held.find(|held| devices.contains(&&held.device)) {
            return Err(Obstacle::Held {
                device: held.device,
                count: held.count,
                from,
            });
        }
    }
    Ok(())
}
