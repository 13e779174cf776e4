// SPDX-License-Identifier: Apache-2.0
//! Passes standard input, output and environment of the process, and the real disk and kernel, to the
//! library.

use cni_protocol::{Input, memory::Memory, state_file};
use rdma_ipam::store::RealDisk;
use rdma_netns::Linux;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: Memory = Memory::new();

fn main() -> ExitCode {
    state_file::set_umask();
    rdma_ipam::run(
        Input::of_process(),
        &mut std::io::stdin(),
        &mut std::io::stdout(),
        &RealDisk,
        &Linux::for_one_run(),
    )
}
