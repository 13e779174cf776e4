// SPDX-License-Identifier: Apache-2.0
//! Starts a program or attaches to a running one, and stops every thread and child before each call that can be a
//! point, and after the call if the call's result matters.

use super::{
    fault::{Fault, Report},
    filter, memory,
    point::{self, Call, Socket},
    registers,
};
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io::{self, PipeReader, Read, Write},
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

/// Stops of a traced process. Its new threads and children are traced in the same way.
const OPTIONS: Options = Options::PTRACE_O_TRACESYSGOOD
    .union(Options::PTRACE_O_TRACESECCOMP)
    .union(Options::PTRACE_O_TRACEFORK)
    .union(Options::PTRACE_O_TRACEVFORK)
    .union(Options::PTRACE_O_TRACECLONE)
    .union(Options::PTRACE_O_TRACEEXEC);

/// Runs `program` with `faults` until it and all programs that it started have ended. The calling process must have
/// only one thread, and must be privileged.
///
/// # Errors
/// The program cannot be started, or the system refuses to trace the program.
pub fn run(program: Command, faults: &[Fault]) -> io::Result<(Traced, Report)> {
    let only_changes = !faults.is_empty() && faults.iter().all(|it| it.is_at_a_change());
    let root = start(program, &filter::stopping_at(&point::stops(only_changes)))?;
    let tracer = Tracer::of(root, faults, None);
    tracer.go_on(root, None)?;
    tracer.follow()
}

/// Traces the running process `root` with `faults`, until it and all programs that it starts have ended, or until the
/// calling thread gets SIGTERM. Calls `ready` when all threads of `root` stop at their next call. The calling thread
/// must be privileged and without children.
///
/// # Errors
/// The process does not exist, or the system refuses to trace it.
pub fn attach(root: Pid, faults: &[Fault], ready: impl FnOnce()) -> io::Result<(Traced, Report)> {
    let signals = SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM]);
    signals.thread_block()?;
    let mut tracer = Tracer::of(root, faults, Some(signals));
    let mut seen = BTreeSet::new();
    // repeated, because a thread that is not yet traced can start another one
    loop {
        let mut unseen = memory::threads(root)?;
        unseen.retain(|it| seen.insert(*it));
        if unseen.is_empty() {
            break;
        }
        for thread in unseen {
            match ptrace::seize(thread, OPTIONS) {
                // the thread has ended, or a traced thread started it
                Err(Errno::ESRCH | Errno::EPERM) if thread != root => continue,
                done => done?,
            }
            tracer.threads.insert(thread, Thread::of(thread));
            gone(ptrace::interrupt(thread))?;
        }
    }
    ready();
    tracer.follow()
}

/// Starts `program`, which stops at its beginning. The tracer attaches before the child installs the filter: without a
/// tracer the program's exec call would fail.
fn start(program: Command, filter: &[libc::sock_filter]) -> io::Result<Pid> {
    let (traced, mut attached) = io::pipe()?;
    // SAFETY: this process has only one thread, so the child may make any call.
    let child = match unsafe { fork() }? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop(attached);
            let Err(error) = become_traced(program, filter, traced);
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            // SAFETY: the call only ends this process.
            unsafe { libc::_exit(errno) }
        }
    };
    ptrace::seize(child, OPTIONS | Options::PTRACE_O_EXITKILL)?;
    attached.write_all(&[0])?;
    loop {
        match waitpid(child, Some(WaitPidFlag::__WALL))? {
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => return Ok(child),
            WaitStatus::Exited(_, errno) => return Err(io::Error::from_raw_os_error(errno)),
            WaitStatus::Signaled(_, signal, _) => return Err(io::Error::other(signal.as_str())),
            // a stop at a call that precedes the program's own calls
            _ => ptrace::cont(child, None)?,
        }
    }
}

/// Runs in the child: installs the filter when the tracer has attached, and executes `program`.
fn become_traced(
    mut program: Command,
    filter: &[libc::sock_filter],
    mut traced: PipeReader,
) -> io::Result<Infallible> {
    traced.read_exact(&mut [0])?;
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
    /// Blocked signals that tell the tracer of a running process about stops (SIGCHLD), or to detach (SIGTERM). Such a
    /// process has no filter, and stops at all calls. `None`: the tracer has started the process.
    signals: Option<SigSet>,
    /// True if each thread is released at its next stop.
    releases: bool,
    /// Faults. Each has the number of points so far at which it is possible, for [`Fault::KillBefore`] by thread.
    faults: Vec<(Fault, BTreeMap<Pid, usize>)>,
    threads: BTreeMap<Pid, Thread>,
    /// Sockets, by process and descriptor.
    sockets: BTreeMap<(Pid, u64), Socket>,
    report: Report,
    ended: Option<Traced>,
    /// True if all processes were killed.
    killed: bool,
}

impl Tracer {
    fn of(root: Pid, faults: &[Fault], signals: Option<SigSet>) -> Self {
        Self {
            root,
            signals,
            releases: false,
            faults: faults.iter().map(|it| (*it, BTreeMap::new())).collect(),
            threads: BTreeMap::from([(root, Thread::of(root))]),
            sockets: BTreeMap::new(),
            report: Report::default(),
            ended: None,
            killed: false,
        }
    }

    fn follow(mut self) -> io::Result<(Traced, Report)> {
        let flags = match self.signals {
            None => WaitPidFlag::__WALL,
            Some(_) => WaitPidFlag::__WALL | WaitPidFlag::WNOHANG,
        };
        loop {
            match waitpid(None::<Pid>, Some(flags)) {
                Err(Errno::ECHILD) => {
                    return Ok((self.ended.unwrap_or(Traced::Exited(0)), self.report));
                }
                Err(Errno::EINTR) => {}
                status => self.handle(status?)?,
            }
        }
    }

    fn handle(&mut self, status: WaitStatus) -> nix::Result<()> {
        match status {
            WaitStatus::Exited(thread, code) => self.end(thread, Traced::Exited(code)),
            WaitStatus::Signaled(thread, signal, _) => self.end(thread, Traced::Killed(signal)),
            // an error is ignored, because the process may have been killed in the meantime
            WaitStatus::PtraceEvent(thread, _, libc::PTRACE_EVENT_SECCOMP)
            | WaitStatus::PtraceSyscall(thread) => {
                gone(self.at_call(thread))?;
                self.go_on(thread, None)?;
            }
            // among others, the first stop of a new thread or child
            WaitStatus::PtraceEvent(thread, _, _) => {
                self.threads
                    .entry(thread)
                    .or_insert_with(|| Thread::of(thread));
                if self.killed {
                    // this child was starting when all processes were killed
                    let _ = kill(thread, Signal::SIGKILL);
                }
                self.go_on(thread, None)?;
            }
            WaitStatus::Stopped(thread, signal) => self.go_on(thread, Some(signal))?,
            WaitStatus::StillAlive => self.await_signal()?,
            _ => {}
        }
        Ok(())
    }

    /// Waits until a thread of the running process stops, or until the tracer has to detach.
    fn await_signal(&mut self) -> nix::Result<()> {
        let signal = self.signals.map(|it| it.wait()).transpose()?;
        if signal == Some(Signal::SIGTERM) {
            self.releases = true;
            for thread in self.threads.keys() {
                gone(ptrace::interrupt(*thread))?;
            }
        }
        Ok(())
    }

    fn end(&mut self, thread: Pid, how: Traced) {
        self.threads.remove(&thread);
        if thread == self.root {
            self.ended = Some(how);
        }
    }

    /// Continues the thread to its next call that can be a point, or to the end of its present call if an action is
    /// pending there. Releases the thread if the tracer detaches.
    fn go_on(&self, thread: Pid, signal: Option<Signal>) -> nix::Result<()> {
        let pending = self.threads.get(&thread).map(|it| it.pending);
        gone(match pending {
            _ if self.releases => ptrace::detach(thread, signal),
            None | Some(Pending::Nothing) if self.signals.is_none() => ptrace::cont(thread, signal),
            _ => ptrace::syscall(thread, signal),
        })
    }

    /// Handles a stop of a thread before or after a call. Since Linux 4.8, the kernel executes the call directly after
    /// the filter's stop.
    fn at_call(&mut self, thread: Pid) -> nix::Result<()> {
        let info = ptrace::syscall_info(thread)?;
        // SAFETY: the kernel has filled in the field that `op` names.
        unsafe {
            match info.op {
                libc::PTRACE_SYSCALL_INFO_SECCOMP => {
                    let call = info.u.seccomp;
                    self.entry(thread, call.nr.cast_signed(), call.args)
                }
                libc::PTRACE_SYSCALL_INFO_ENTRY if self.signals.is_some() => {
                    let call = info.u.entry;
                    self.entry(thread, call.nr.cast_signed(), call.args)
                }
                libc::PTRACE_SYSCALL_INFO_EXIT => {
                    self.exit(thread, info.u.exit.sval);
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    }

    fn entry(&mut self, thread: Pid, number: i64, arguments: [u64; 6]) -> nix::Result<()> {
        let state = self.threads.entry(thread);
        let process = state.or_insert_with(|| Thread::of(thread)).process;
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
            let mut kills = false;
            for (fault, counts) in &mut self.faults {
                if !fault.is_possible_at(&point) {
                    continue;
                }
                let (Fault::Kill(at)
                | Fault::KillAfter(at)
                | Fault::KillBeforeSend(at)
                | Fault::KillBefore(_, at)
                | Fault::Fail(at, _)) = *fault;
                let counted = match fault {
                    Fault::KillBefore(..) => thread,
                    _ => self.root,
                };
                let count = counts.entry(counted).or_default();
                *count += 1;
                if *count != at {
                    continue;
                }
                match *fault {
                    Fault::Kill(_) | Fault::KillBeforeSend(_) | Fault::KillBefore(..) => {
                        registers::refuse(thread, libc::EINTR)?;
                        kills = true;
                    }
                    Fault::KillAfter(_) => pending = Pending::Kill,
                    Fault::Fail(_, errno) => {
                        registers::refuse(thread, errno)?;
                        pending = Pending::Nothing;
                    }
                }
                self.report.hit = Some(point.clone());
                self.report.hits += 1;
            }
            if kills {
                self.kill();
            }
            self.report.threads.push(thread.as_raw());
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
