// SPDX-License-Identifier: Apache-2.0
//! In the lab, a machine that loses power and boots again with its disk (`integration/lab/vm --disk DIR`). The test
//! starts again in every boot, and reads the boot's number.

use crate::wait;
use std::{
    env,
    fs::{self, File},
};

/// Returns the number of the machine's present boot, from 1.
#[track_caller]
pub fn boot() -> u32 {
    let number = env::var("RDMA_LAB_BOOT").ok();
    let number =
        number.expect("RDMA_LAB_BOOT is not set: run this test by integration/lab/vm --disk");
    number.parse().expect("a number")
}

/// Returns true if the machine has booted before, with the same disk.
pub fn is_on_again() -> bool {
    env::var_os("RDMA_LAB_BOOT").is_some() && boot() > 1
}

/// Cuts the machine's power immediately. Data that is not yet on the disk is lost. Then the machine boots again.
#[track_caller]
pub fn cut() -> ! {
    // this is the run directory of `integration/lab/vm`, on the machine that runs the VM
    File::create("/run/lab/reboot").expect("a file");
    fs::write("/proc/sysrq-trigger", "b").expect("a reset");
    wait::within(wait::TIMEOUT, || false);
    panic!("the machine still has power");
}
