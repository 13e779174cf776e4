// SPDX-License-Identifier: Apache-2.0
//! The filter, by seccomp(2), that stops a traced program at some of its system calls: the others cost it no stop.
//!
//! The filter is a program of the kernel's BPF (`Documentation/userspace-api/seccomp_filter.rst`). All programs that the
//! traced program starts inherit the filter, and keep it: without a tracer the calls of the filter fail with `ENOSYS`.

use nix::{
    errno::Errno,
    libc::{
        self, BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS,
        SECCOMP_RET_TRACE, seccomp_data, sock_filter, sock_fprog,
    },
};
use std::mem::offset_of;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = libc::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = libc::EM_AARCH64;

/// `AUDIT_ARCH_…` (`include/uapi/linux/audit.h`): the machine of ELF, with 64 bits, little-endian.
const ARCHITECTURE: u32 = MACHINE as u32 | 0xc000_0000;

/// `__X32_SYSCALL_BIT` (`arch/x86/include/uapi/asm/unistd.h`): x86-64's calls once more, by other numbers.
const X32: u32 = 0x4000_0000;

/// A call that is stopped at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) number: u32,
    /// Only if the argument of this number has one of these bits.
    pub(super) only: Option<(usize, u32)>,
}

/// Returns a filter that stops at `stops`. It kills a process that calls the kernel by numbers of another architecture,
/// which would otherwise pass unseen.
pub(super) fn stopping_at(stops: &[Stop]) -> Vec<sock_filter> {
    let mut filter = vec![
        load(offset_of!(seccomp_data, arch)),
        jump(BPF_JEQ, ARCHITECTURE, 1, 0),
        end(SECCOMP_RET_KILL_PROCESS),
        load(offset_of!(seccomp_data, nr)),
        jump(BPF_JGE, X32, 0, 1),
        end(SECCOMP_RET_KILL_PROCESS),
    ];
    for Stop { number, only } in stops {
        match only {
            None => filter.extend([jump(BPF_JEQ, *number, 0, 1), end(SECCOMP_RET_TRACE)]),
            Some((argument, bits)) => filter.extend([
                jump(BPF_JEQ, *number, 0, 4),
                // the lower half, which comes first
                load(offset_of!(seccomp_data, args) + argument * size_of::<u64>()),
                jump(BPF_JSET, *bits, 0, 1),
                end(SECCOMP_RET_TRACE),
                end(SECCOMP_RET_ALLOW),
            ]),
        }
    }
    filter.push(end(SECCOMP_RET_ALLOW));
    filter
}

/// Puts this thread under `filter` permanently. Without `CAP_SYS_ADMIN` the kernel refuses the filter:
/// `PR_SET_NO_NEW_PRIVS` would change what the program does.
pub(super) fn install(filter: &[sock_filter]) -> nix::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::EINVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the `len` instructions, which it does not change
    let done = unsafe { libc::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) };
    Errno::result(done).map(drop)
}

/// Loads the word at `offset` of what is known of the call.
fn load(offset: usize) -> sock_filter {
    let offset = u32::try_from(offset).expect("a small structure");
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, [0, 0])
}

/// Goes over `then` instructions where the word compares so with `value`, else over `otherwise`.
fn jump(comparison: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_K | comparison, value, [then, otherwise])
}

/// Ends with `action`.
fn end(action: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, action, [0, 0])
}

fn instruction(code: u32, k: u32, [jt, jf]: [u8; 2]) -> sock_filter {
    let code = u16::try_from(code).expect("a code of BPF");
    sock_filter { code, jt, jf, k }
}
