// SPDX-License-Identifier: Apache-2.0
//! Retries for drivers that are resetting a virtual function. Each setting of the function starts a reset. During the
//! reset the driver ice refuses the next setting with `EBUSY` (`ice_check_vf_ready_for_cfg()`,
//! `drivers/net/ethernet/intel/ice/ice_vf_lib.c`), and i40e refuses it with `EAGAIN` (`i40e_check_vf_init_timeout()`,
//! `i40e_virtchnl_pf.c`). Meanwhile the function's netdev cannot go up, and refuses a hardware address
//! (`iavf_set_mac()`, `iavf_open()`, `drivers/net/ethernet/intel/iavf/iavf_main.c`).

use nix::libc;
use rdma_netns::{Kernel, LinkChange, Op, OpError};
use std::time::{Duration, Instant};

/// Time limit for the tries of one operation. sriov-cni has the same limit.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Returns true if `error` means that a driver is busy with the function.
pub(super) fn is_busy(error: &OpError) -> bool {
    let is_of_function = matches!(
        *error.op,
        Op::SetVf { .. }
            | Op::Link {
                change: LinkChange::Mac(_) | LinkChange::Up(true),
                ..
            }
    );
    is_of_function && matches!(error.errno(), Some(libc::EBUSY | libc::EAGAIN))
}

/// The operation that is repeated, and the time after which it is not repeated any more.
#[derive(Debug, Default)]
pub(super) struct Retry(Option<(Op, Instant)>);

impl Retry {
    /// Pauses before the next try of the refused operation. Returns false if the time limit has passed.
    pub(super) fn wait<K: Kernel>(&mut self, kernel: &K, error: &OpError) -> bool {
        let until = match &self.0 {
            Some((op, until)) if *op == *error.op => *until,
            _ => kernel.now() + LIMIT,
        };
        if kernel.now() >= until {
            return false;
        }
        log::debug!("{error}; trying again");
        kernel.pause(PAUSE);
        self.0 = Some(((*error.op).clone(), until));
        true
    }
}
