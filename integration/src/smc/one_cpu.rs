// SPDX-License-Identifier: Apache-2.0
//! A race of the kernel's that a test cannot win on a busy host, left out.
//!
//! The server of an SMC-R connection sends a link's first message as soon as it has the client's CLC CONFIRM.
//! The client drops it if it has not begun to wait by then (`smc_llc_event_handler`: no flow, `net/smc/smc_llc.c`):
//! the host may have taken the client's emulated CPU away, and left the server its own. Both ends go back to
//! TCP after 3 s (`smcr_serv_conf_first_link`, `net/smc/af_smc.c`).

use nix::{errno::Errno, libc};
use std::{env, fs, io, path::PathBuf};

/// The machine has one CPU, until this is dropped: the server has its turn when the client waits, or has used up its
/// own.
#[derive(Debug)]
pub struct OneCpu {
    offline: Vec<PathBuf>,
}

impl OneCpu {
    /// Begins the restriction to one CPU.
    #[track_caller]
    pub fn begin() -> Self {
        assert!(
            env::var_os("RDMA_LAB_TIER").is_some(),
            "this takes CPUs away from the machine: it is the lab's"
        );
        let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("the CPUs");
        let last = online.trim().rsplit(['-', ',']).next().unwrap_or_default();
        let last: u32 = last.parse().expect("a number");
        let switches = (1..=last).map(|it| format!("/sys/devices/system/cpu/cpu{it}/online"));
        let offline = switches.map(PathBuf::from).collect();
        let one = Self { offline };
        one.switch("0");
        one
    }

    #[track_caller]
    fn switch(&self, to: &str) {
        for switch in &self.offline {
            let written = fs::write(switch, to);
            written.unwrap_or_else(|error| panic!("{}: {error}", switch.display()));
        }
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        self.switch("1");
    }
}

/// Priority of this thread's children on its CPU above the kernel's workers, until this is dropped.
#[derive(Debug)]
pub(super) struct First;

impl First {
    #[track_caller]
    pub(super) fn begin() -> Self {
        schedule(libc::SCHED_FIFO, 1).expect("a scheduling policy");
        Self
    }
}

impl Drop for First {
    fn drop(&mut self) {
        schedule(libc::SCHED_OTHER, 0).expect("a scheduling policy");
    }
}

/// The policy and priority of this thread, and of what it starts from now on.
///
/// # Errors
/// The system's.
pub fn schedule(policy: i32, priority: i32) -> io::Result<()> {
    // SAFETY: all of its fields are numbers, for which 0 is a value
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = priority;
    // SAFETY: reads the parameter, which outlives the call
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    Ok(Errno::result(done).map(drop)?)
}
