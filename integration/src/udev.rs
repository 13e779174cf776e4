// SPDX-License-Identifier: Apache-2.0
//! Waiting for the machine's udevd.

use crate::Netns;
use std::process::Command;

/// Time limit in seconds for udevd's queue. An emulated machine needed more than 30 while another one ran.
const LIMIT: u32 = 240;

/// Waits until udevd has handled all events of `host`. After four minutes, panics with a list of all processes and of
/// the kernel function in which each process waits.
#[track_caller]
pub fn settle(host: &Netns) {
    let mut settle = host.command("udevadm");
    let status = settle.arg("settle").arg(format!("-t{LIMIT}")).status();
    if !status.expect("udevadm runs").success() {
        let processes = Command::new("ps")
            .args(["-eo", "pid,ppid,stat,wchan:32,etimes,args"])
            .output()
            .expect("ps runs");
        panic!(
            "udevd has not settled within {LIMIT} s; processes:\n{}",
            String::from_utf8_lossy(&processes.stdout)
        );
    }
}
