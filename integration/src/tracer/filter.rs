// SPDX-License-Identifier: Apache-2.0
//! A seccomp(2) filter that stops a traced program only at some of its system calls. Other calls run without a stop.
//!
//! The filter is a program of the kernel's BPF (`Documentation/userspace-api/seccomp_filter.rst`). All programs that
//! the traced program starts inherit the filter, and cannot remove it. Without a tracer, the calls in the filter fail
//! with `ENOSYS`.

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

/// `AUDIT_ARCH_…` (`include/uapi/linux/audit.h`): the machine number of ELF, with the bits for 64 bits and
/// little-endian.
const ARCHITECTURE: u32 = MACHINE as u32 | 0xc000_0000;

/// `__X32_SYSCALL_BIT` (`arch/x86/include/uapi/asm/unistd.h`): marks the call numbers of a second set that x86-64 has.
const X32: u32 = 0x4000_0000;

/// A call at which the program stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) number: u32,
    /// `Some`: the program stops only if the argument with this number has one of these bits.
    pub(super) only: Option<(usize, u32)>,
}

/// Returns a filter that stops the program at `stops`. The filter kills a process that uses call numbers of another
/// architecture or of x32, because the tracer would not see such calls.
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
                // loads the lower half of the argument, which precedes the upper half
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

/// Installs `filter` for this thread permanently. The kernel requires `CAP_SYS_ADMIN` or `PR_SET_NO_NEW_PRIVS`. This
/// function relies on the capability, because `PR_SET_NO_NEW_PRIVS` would change the program's behaviour.
pub(super) fn install(filter: &[sock_filter]) -> nix::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::EINVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel only copies the `len` instructions.
    let done = unsafe { libc::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) };
    Errno::result(done).map(drop)
}

/// Returns the instruction that loads the word at `offset` of the call's data.
fn load(offset: usize) -> sock_filter {
    let offset = u32::try_from(offset).expect("a small structure");
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, [0, 0])
}

/// Returns an instruction that skips `then` instructions if the comparison of the word with `value` is true, else
/// `otherwise` instructions.
fn jump(comparison: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_K | comparison, value, [then, otherwise])
}

/// Returns the instruction that ends the filter with `action`.
fn end(action: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, action, [0, 0])
}

fn instruction(code: u32, k: u32, [jt, jf]: [u8; 2]) -> sock_filter {
    let code = u16::try_from(code).expect("a code of BPF");
    sock_filter { code, jt, jf, k }
}
