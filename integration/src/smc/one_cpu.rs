// SPDX-License-Identifier: Apache-2.0
//! Avoids a race in the kernel, in which connections of a test fall back to TCP on a busy host.
//!
//! The server of an SMC-R connection sends a link's first message as soon as it has the client's CLC CONFIRM. The
//! client drops the message if the client does not wait for it yet (`smc_llc_event_handler`: no flow,
//! `net/smc/smc_llc.c`). This happens if the host has suspended the client's emulated CPU but not the server's. After 3
//! s both ends fall back to TCP (`smcr_serv_conf_first_link`, `net/smc/af_smc.c`).

use nix::{errno::Errno, libc};
use std::{env, fs, io, path::PathBuf};

/// Restricts the machine to one CPU until this value is dropped. The server then runs only when the client waits, or
/// has used its time slice.
#[derive(Debug)]
pub struct OneCpu {
    offline: Vec<PathBuf>,
}

impl OneCpu {
    /// Starts the restriction to one CPU.
    #[track_caller]
    pub fn begin() -> Self {
        assert!(
            env::var_os("RDMA_LAB_TIER").is_some(),
            "this sets CPUs offline: run this test in the lab"
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

/// Gives this thread's children priority over the kernel's workers on their CPU, until this value is dropped.
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

/// Sets the scheduling policy and priority of this thread, and of the children that it starts later.
///
/// # Errors
/// The system's error.
pub fn schedule(policy: i32, priority: i32) -> io::Result<()> {
    // SAFETY: all fields are numbers, for which 0 is a valid value.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = priority;
    // SAFETY: the call only reads the parameter, which outlives the call.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    Ok(Errno::result(done).map(drop)?)
}
