// SPDX-License-Identifier: Apache-2.0
//! A race of the kernel's that a test cannot win on a busy host, left out.
//!
//! The server of an SMC-R connection sends a link's first message as soon as it has the client's CLC CONFIRM.
//! The client drops it if it has not begun to wait by then (`smc_llc_event_handler`: no flow, `net/smc/smc_llc.c`):
//! the host may have taken the client's emulated CPU away, and left the server its own. Both ends go back to
//! TCP after 3 s (`smcr_serv_conf_first_link`, `net/smc/af_smc.c`).

use nix::{errno::Errno, libc};
use std::{fs, path::PathBuf};

/// The machine has one CPU, and whatever this thread starts is the first to run on it, before the kernel's
/// workers: the server has its turn when the client waits. Until dropped.
#[derive(Debug)]
pub(super) struct OneCpu {
    offline: Vec<PathBuf>,
}

impl OneCpu {
    #[track_caller]
    pub(super) fn begin() -> Self {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("the CPUs");
        let last = online.trim().rsplit(['-', ',']).next().unwrap_or_default();
        let last: u32 = last.parse().expect("a number");
        let switches = (1..=last).map(|it| format!("/sys/devices/system/cpu/cpu{it}/online"));
        let offline = switches.map(PathBuf::from).collect();
        let one = Self { offline };
        one.switch("0");
        schedule(libc::SCHED_FIFO, 1);
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
        schedule(libc::SCHED_OTHER, 0);
        self.switch("1");
    }
}

/// The policy and priority of this thread, which its children inherit.
#[track_caller]
fn schedule(policy: i32, priority: i32) {
    // SAFETY: all of its fields are numbers, for which 0 is a value
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = priority;
    // SAFETY: reads the parameter, which outlives the call
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    Errno::result(done).expect("a scheduling policy");
}
