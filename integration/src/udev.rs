// SPDX-License-Identifier: Apache-2.0
//! Waiting for the machine's udevd.

use crate::Netns;
use std::process::Command;

/// Time limit in seconds of one `udevadm settle` for udevd's queue. An emulated machine needed more than 30 s while
/// another emulated machine ran.
const LIMIT: u32 = 80;

/// Waits until udevd has handled all events of `host`. After three failed tries, within four minutes, panics with a
/// list of all processes and of the kernel function in which each process waits.
///
/// If udevd reads the first message of a connection before it has requested the sender's credentials from the kernel,
/// udevd closes the connection and `udevadm settle` fails. So this function runs `udevadm settle` up to three times.
#[track_caller]
pub fn settle(host: &Netns) {
    let settled = (0..3).any(|_| {
        let mut settle = host.command("udevadm");
        let status = settle.arg("settle").arg(format!("-t{LIMIT}")).status();
        status.expect("udevadm runs").success()
    });
    if !settled {
        let processes = Command::new("ps")
            .args(["-eo", "pid,ppid,stat,wchan:32,etimes,args"])
            .output()
            .expect("ps runs");
        panic!(
            "udevd has not settled in three tries of {LIMIT} s; processes:\n{}",
            String::from_utf8_lossy(&processes.stdout)
        );
    }
}
