// SPDX-License-Identifier: Apache-2.0
//! The part that depends on the CPU: makes a system call fail in a thread that the filter has stopped before the
//! call.

pub(super) use cpu::refuse;

#[cfg(target_arch = "x86_64")]
mod cpu {
    use nix::{sys::ptrace, unistd::Pid};

    /// Sets the call's number to -1, which is no call's number, so the kernel executes no call. The thread gets
    /// `errno`.
    pub(crate) fn refuse(thread: Pid, errno: i32) -> nix::Result<()> {
        let mut registers = ptrace::getregs(thread)?;
        registers.orig_rax = u64::MAX;
        registers.rax = i64::from(-errno).cast_unsigned();
        ptrace::setregs(thread, registers)
    }
}

/// Registers of arm64. This code has never run: the tests run on x86-64.
#[cfg(target_arch = "aarch64")]
mod cpu {
    use nix::{
        errno::Errno,
        libc,
        sys::ptrace::{self, regset::NT_PRSTATUS},
        unistd::Pid,
    };
    use std::mem;

    /// `include/uapi/linux/elf.h`
    const NT_ARM_SYSTEM_CALL: usize = 0x404;

    /// Sets the call's number to -1, which is no call's number, so the kernel executes no call. The thread gets
    /// `errno`. The number is in a separate set of registers (`arch/arm64/kernel/ptrace.c`).
    pub(crate) fn refuse(thread: Pid, errno: i32) -> nix::Result<()> {
        let mut number: libc::c_int = -1;
        let mut vector = libc::iovec {
            iov_base: (&raw mut number).cast(),
            iov_len: mem::size_of_val(&number),
        };
        // SAFETY: the kernel only reads the vector's target, which is `number`.
        let done = unsafe {
            libc::ptrace(
                libc::PTRACE_SETREGSET,
                thread.as_raw(),
                NT_ARM_SYSTEM_CALL,
                &raw mut vector,
            )
        };
        Errno::result(done)?;
        let mut registers = ptrace::getregset::<NT_PRSTATUS>(thread)?;
        registers.regs[0] = i64::from(-errno).cast_unsigned();
        ptrace::setregset::<NT_PRSTATUS>(thread, registers)
    }
}
