// SPDX-License-Identifier: Apache-2.0
//! The tracer's loop. It stops every thread and child before each call that can be a point, and after the call if the
//! call's result matters.

use super::{
    Fault, Report, filter, memory,
    point::{self, Call, Socket},
    registers,
};
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        signal::{Signal, kill, raise},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    os::unix::process::CommandExt,
    process::Command,
};

/// End of a traced program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// Exited by itself, with this status.
    Exited(i32),
    /// Killed by a signal, by a fault or for another reason.
    Killed(Signal),
}

/// Runs `program` with `faults` until it and all programs that it started have ended. The calling process must have
/// only one thread, and must be privileged.
///
/// # Errors
/// The program cannot be started, or the system refuses to trace the program.
pub fn run(program: Command, faults: &[Fault]) -> io::Result<(Traced, Report)> {
    let only_changes = !faults.is_empty() && faults.iter().all(|it| it.is_at_a_change());
    let root = start(program, &filter::stopping_at(&point::stops(only_changes)))?;
    let mut tracer = Tracer {
        root,
        faults: faults.iter().map(|fault| (*fault, 0)).collect(),
        threads: BTreeMap::from([(root, Thread::of(root))]),
        sockets: BTreeMap::new(),
        changes: 0,
        sends: 0,
        report: Report::default(),
        ended: None,
        killed: false,
    };
    tracer.go_on(root, None)?;
    tracer.follow()?;
    let ended = tracer.ended.unwrap_or(Traced::Exited(0));
    Ok((ended, tracer.report))
}

/// Starts `program`, which stops at its beginning. The tracer attaches before the child installs the filter: without a
/// tracer the program's exec call would fail.
fn start(program: Command, filter: &[libc::sock_filter]) -> io::Result<Pid> {
    // SAFETY: this process has only one thread, so the child may make any call.
    let child = match unsafe { fork() }? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let Err(error) = become_traced(program, filter);
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            // SAFETY: the call only ends this process.
            unsafe { libc::_exit(errno) }
        }
    };
    let next = || waitpid(child, Some(WaitPidFlag::__WALL));
    // the child has stopped itself
    next()?;
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACESECCOMP
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(child, options)?;
    loop {
        ptrace::cont(child, None)?;
        match next()? {
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => return Ok(child),
            WaitStatus::Exited(_, errno) => return Err(io::Error::from_raw_os_error(errno)),
            WaitStatus::Signaled(_, signal, _) => return Err(io::Error::other(signal.as_str())),
            // a stop at a call that precedes the program's own calls
            _ => {}
        }
    }
}

/// Runs in the child: installs the filter when the tracer has attached, and executes `program`.
fn become_traced(mut program: Command, filter: &[libc::sock_filter]) -> io::Result<Infallible> {
    ptrace::traceme()?;
    raise(Signal::SIGSTOP)?;
    filter::install(filter)?;
    Err(program.exec())
}

struct Thread {
    process: Pid,
    /// Action at the end of the present call.
    pending: Pending,
}

impl Thread {
    fn of(thread: Pid) -> Self {
        Self {
            process: memory::process(thread),
            pending: Pending::Nothing,
        }
    }
}

/// Action at the end of a call.
#[derive(Clone, Copy)]
enum Pending {
    Nothing,
    /// The call returns a descriptor. `Some`: it is a socket. `None`: it is another or an unknown object.
    Socket(Option<Socket>),
    /// The call makes a pair of connected sockets of the program itself. The kernel will write their descriptors to
    /// this address.
    Pair(u64),
    /// Kill all processes.
    Kill,
}

struct Tracer {
    root: Pid,
    /// Faults. Each has the number of points so far that can have the fault's error.
    faults: Vec<(Fault, usize)>,
    threads: BTreeMap<Pid, Thread>,
    /// Sockets, by process and descriptor.
    sockets: BTreeMap<(Pid, u64), Socket>,
    /// Number of points that changed something.
    changes: usize,
    /// Number of points that sent something to another process.
    sends: usize,
    report: Report,
    ended: Option<Traced>,
    /// True if all processes were killed.
    killed: bool,
}

impl Tracer {
    fn follow(&mut self) -> nix::Result<()> {
        loop {
            let status = match waitpid(None::<Pid>, Some(WaitPidFlag::__WALL)) {
                Err(Errno::ECHILD) => return Ok(()),
                Err(Errno::EINTR) => continue,
                status => status?,
            };
            match status {
                WaitStatus::Exited(thread, code) => self.end(thread, Traced::Exited(code)),
                WaitStatus::Signaled(thread, signal, _) => self.end(thread, Traced::Killed(signal)),
                // an error is ignored, because the process may have been killed in the meantime
                WaitStatus::PtraceEvent(thread, _, libc::PTRACE_EVENT_SECCOMP) => {
                    gone(self.before(thread))?;
                    self.go_on(thread, None)?;
                }
                WaitStatus::PtraceSyscall(thread) => {
                    gone(self.after(thread))?;
                    self.go_on(thread, None)?;
                }
                WaitStatus::PtraceEvent(thread, _, _) => self.go_on(thread, None)?,
                WaitStatus::Stopped(thread, _) if self.killed => {
                    // this child was starting when all processes were killed
                    let _ = kill(thread, Signal::SIGKILL);
                    self.go_on(thread, None)?;
                }
                WaitStatus::Stopped(thread, signal) => {
                    // the first stop of a new thread or child is not caused by a signal
                    let is_new = !self.threads.contains_key(&thread);
                    self.threads
                        .entry(thread)
                        .or_insert_with(|| Thread::of(thread));
                    let is_own = is_new && signal == Signal::SIGSTOP;
                    self.go_on(thread, Some(signal).filter(|_| !is_own))?;
                }
                _ => {}
            }
        }
    }

    fn end(&mut self, thread: Pid, how: Traced) {
        self.threads.remove(&thread);
        if thread == self.root {
            self.ended = Some(how);
        }
    }

    /// Continues the thread to its next call that can be a point, or to the end of its present call if an action is
    /// pending there.
    fn go_on(&self, thread: Pid, signal: Option<Signal>) -> nix::Result<()> {
        let pending = self.threads.get(&thread).map(|it| it.pending);
        gone(match pending {
            None | Some(Pending::Nothing) => ptrace::cont(thread, signal),
            Some(_) => ptrace::syscall(thread, signal),
        })
    }

    /// Handles the filter's stop of a thread before a call. Since Linux 4.8, the kernel executes the call directly
    /// after this stop.
    fn before(&mut self, thread: Pid) -> nix::Result<()> {
        let info = ptrace::syscall_info(thread)?;
        if info.op != libc::PTRACE_SYSCALL_INFO_SECCOMP {
            return Ok(());
        }
        // SAFETY: the kernel has filled in the field that `op` names.
        let call = unsafe { info.u.seccomp };
        self.entry(thread, call.nr.cast_signed(), call.args)
    }

    /// Handles the end of a thread's call.
    fn after(&mut self, thread: Pid) -> nix::Result<()> {
        let info = ptrace::syscall_info(thread)?;
        if info.op != libc::PTRACE_SYSCALL_INFO_EXIT {
            return Ok(());
        }
        // SAFETY: the kernel has filled in the field that `op` names.
        let result = unsafe { info.u.exit }.sval;
        self.exit(thread, result);
        Ok(())
    }

    fn entry(&mut self, thread: Pid, number: i64, arguments: [u64; 6]) -> nix::Result<()> {
        let process = self
            .threads
            .entry(thread)
            .or_insert_with(|| Thread::of(thread))
            .process;
        let socket = |descriptor: u64| self.sockets.get(&(process, descriptor)).copied();
        let call = Call {
            thread,
            number,
            arguments,
            socket: &socket,
        };
        let mut pending = match call.name() {
            Some("socket") => {
                // domain, type, protocol: each an int
                let int = |argument: u64| i32::try_from(argument).unwrap_or_default();
                Pending::Socket(Some((int(arguments[0]), int(arguments[2]))))
            }
            // the new socket has the kind of the listening one
            Some("accept4") => Pending::Socket(socket(arguments[0])),
            Some("fcntl") if call.duplicates() => Pending::Socket(socket(arguments[0])),
            Some("socketpair") => Pending::Pair(arguments[3]),
            _ => Pending::Nothing,
        };
        if let Some(point) = call.point() {
            self.changes += usize::from(point.changes);
            self.sends += usize::from(point.sends);
            for number in 0..self.faults.len() {
                let (fault, candidates) = &mut self.faults[number];
                let can_fail = fault.is_possible_at(&point);
                *candidates += usize::from(can_fail);
                match *fault {
                    Fault::Kill(at) if point.changes && at == self.changes => {
                        registers::refuse(thread, libc::EINTR)?;
                        self.kill();
                    }
                    Fault::KillBeforeSend(at) if point.sends && at == self.sends => {
                        registers::refuse(thread, libc::EINTR)?;
                        self.kill();
                    }
                    Fault::KillAfter(at) if point.changes && at == self.changes => {
                        pending = Pending::Kill;
                    }
                    Fault::Fail(at, errno) if can_fail && at == *candidates => {
                        registers::refuse(thread, errno)?;
                        pending = Pending::Nothing;
                    }
                    _ => continue,
                }
                self.report.hit = Some(point.clone());
                self.report.hits += 1;
            }
            self.report.points.push(point);
        }
        if let Some(it) = self.threads.get_mut(&thread) {
            it.pending = pending;
        }
        Ok(())
    }

    fn exit(&mut self, thread: Pid, result: i64) {
        let Some(state) = self.threads.get_mut(&thread) else {
            return;
        };
        let process = state.process;
        let pending = std::mem::replace(&mut state.pending, Pending::Nothing);
        match pending {
            Pending::Nothing => {}
            Pending::Socket(socket) => {
                if let Ok(descriptor) = u64::try_from(result) {
                    self.is_now((process, descriptor), socket);
                }
            }
            Pending::Pair(at) if result == 0 => {
                // an array of two ints
                let pair = memory::word(thread, at).to_ne_bytes();
                for half in [&pair[..4], &pair[4..]] {
                    let descriptor = half.try_into().map_or(0, u32::from_ne_bytes);
                    self.is_now((process, u64::from(descriptor)), None);
                }
            }
            Pending::Pair(_) => {}
            Pending::Kill => self.kill(),
        }
    }

    /// Records the kind of a process's new descriptor. An earlier descriptor with the same number may have been
    /// closed.
    fn is_now(&mut self, descriptor: (Pid, u64), socket: Option<Socket>) {
        match socket {
            Some(socket) => self.sockets.insert(descriptor, socket),
            None => self.sockets.remove(&descriptor),
        };
    }

    fn kill(&mut self) {
        self.killed = true;
        let processes: BTreeSet<Pid> = self.threads.values().map(|it| it.process).collect();
        for process in processes {
            // an error is ignored, because the process may have ended
            let _ = kill(process, Signal::SIGKILL);
        }
    }
}

/// Ignores the error that the thread no longer exists: SIGKILL may have ended it.
fn gone(done: nix::Result<()>) -> nix::Result<()> {
    match done {
        Err(Errno::ESRCH) => Ok(()),
        done => done,
    }
}
