// SPDX-License-Identifier: Apache-2.0
//! Limit of a process's locked memory (`RLIMIT_MEMLOCK`, getrlimit(2)). The limit includes the memory that the process
//! registers for RDMA. A process with `CAP_IPC_LOCK` in the initial user namespace has no limit (`__ib_umem_get()`,
//! `drivers/infiniband/core/umem.c`).

use nix::{
    errno::Errno,
    libc::{self, RLIM_INFINITY, RLIMIT_MEMLOCK, rlimit},
    unistd::Pid,
};
use std::{io, ptr};

/// Raises the soft and the hard limit of `process` to `bytes`. `None` removes the limit. A limit that is higher already
/// stays.
///
/// # Errors
/// The process does not exist, or this program lacks `CAP_SYS_RESOURCE`.
pub fn raise_locked_memory(process: Pid, bytes: Option<u64>) -> io::Result<()> {
    let wanted = bytes.unwrap_or(RLIM_INFINITY);
    let mut limit = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one `rlimit`, and reads none
    let read = unsafe {
        libc::prlimit(
            process.as_raw(),
            RLIMIT_MEMLOCK,
            ptr::null(),
            &raw mut limit,
        )
    };
    Errno::result(read)?;
    // RLIM_INFINITY is the largest number
    limit.rlim_cur = limit.rlim_cur.max(wanted);
    limit.rlim_max = limit.rlim_max.max(wanted);
    // SAFETY: the kernel reads one `rlimit`, and writes none
    let set = unsafe {
        libc::prlimit(
            process.as_raw(),
            RLIMIT_MEMLOCK,
            &raw const limit,
            ptr::null_mut(),
        )
    };
    Errno::result(set)?;
    Ok(())
}
