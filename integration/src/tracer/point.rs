// SPDX-License-Identifier: Apache-2.0
//! Determines which system calls are points, their effects, and their possible errors.
//!
//! A call *changes* something if its effect outlives the process: files, mounts, devices, frames, the answer, and
//! started programs. It *sends* something if another process reads it from a Unix socket. The other points are calls
//! whose error a program has to handle: new descriptors, threads, reads, file queries, connections, and waits that a
//! signal interrupts. Writing to standard error is logging, and so no point. Allocating memory is no point, because
//! none of the tested programs continues without memory.

use super::{filter::Stop, memory, netlink};
use nix::{
    libc::{
        self, AF_NETLINK, AF_PACKET, AF_UNIX, CLONE_THREAD, ECONNREFUSED, EINTR, EIO, EMFILE,
        ENOMEM, ENOSPC, EPIPE, O_CREAT, O_TRUNC,
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// A system call at which a fault is possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the call.
    pub call: String,
    /// Object of the call, as text.
    pub what: String,
    /// True if the call changes something.
    pub changes: bool,
    /// True if the call sends something to another process by a Unix socket.
    pub sends: bool,
    /// Possible values of `errno`.
    pub errors: Vec<i32>,
}

/// A socket of the program: domain and protocol.
pub(super) type Socket = (i32, i32);

/// A system call that a thread is about to make.
pub(super) struct Call<'a> {
    pub(super) thread: Pid,
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    /// Returns domain and protocol of a descriptor if it is a socket.
    pub(super) socket: &'a dyn Fn(u64) -> Option<Socket>,
}

macro_rules! names {
    ($($name:ident $number:ident),* $(,)?) => {
        &[$((libc::$number, stringify!($name))),*]
    };
}

/// Calls that can change something. All supported CPU architectures have them.
const CHANGES: &[(libc::c_long, &str)] = names![
    openat SYS_openat, openat2 SYS_openat2, write SYS_write, pwrite64 SYS_pwrite64,
    writev SYS_writev, ftruncate SYS_ftruncate, fallocate SYS_fallocate, fsync SYS_fsync,
    fdatasync SYS_fdatasync, syncfs SYS_syncfs, sync_file_range SYS_sync_file_range, sync SYS_sync,
    copy_file_range SYS_copy_file_range, sendfile SYS_sendfile,
    renameat SYS_renameat, renameat2 SYS_renameat2, linkat SYS_linkat, symlinkat SYS_symlinkat,
    mkdirat SYS_mkdirat, mknodat SYS_mknodat, unlinkat SYS_unlinkat,
    fchmod SYS_fchmod, fchmodat SYS_fchmodat, fchown SYS_fchown, fchownat SYS_fchownat,
    utimensat SYS_utimensat, mount SYS_mount, umount2 SYS_umount2, bind SYS_bind,
    ioctl SYS_ioctl, bpf SYS_bpf, sendto SYS_sendto, sendmsg SYS_sendmsg, sendmmsg SYS_sendmmsg,
    clone SYS_clone, clone3 SYS_clone3, execve SYS_execve, kill SYS_kill,
];

/// Further calls that can change something. Newer CPU architectures do not have them.
#[cfg(target_arch = "x86_64")]
const OLD_CHANGES: &[(libc::c_long, &str)] = names![
    open SYS_open, rename SYS_rename, link SYS_link, symlink SYS_symlink, mkdir SYS_mkdir,
    mknod SYS_mknod, unlink SYS_unlink, rmdir SYS_rmdir, chmod SYS_chmod, chown SYS_chown,
    fork SYS_fork, vfork SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CHANGES: &[(libc::c_long, &str)] = &[];

/// Calls that never change anything, on all CPUs.
const OTHERS: &[(libc::c_long, &str)] = names![
    read SYS_read, pread64 SYS_pread64, readv SYS_readv, getdents64 SYS_getdents64,
    setns SYS_setns, unshare SYS_unshare, socket SYS_socket, pipe2 SYS_pipe2, eventfd2 SYS_eventfd2,
    epoll_create1 SYS_epoll_create1, timerfd_create SYS_timerfd_create, pidfd_open SYS_pidfd_open,
    inotify_init1 SYS_inotify_init1, socketpair SYS_socketpair, recvfrom SYS_recvfrom,
    recvmsg SYS_recvmsg, flock SYS_flock, ppoll SYS_ppoll, wait4 SYS_wait4, waitid SYS_waitid,
    nanosleep SYS_nanosleep, clock_nanosleep SYS_clock_nanosleep, epoll_pwait SYS_epoll_pwait,
    accept4 SYS_accept4, connect SYS_connect, fcntl SYS_fcntl,
    inotify_add_watch SYS_inotify_add_watch, setsockopt SYS_setsockopt,
    newfstatat SYS_newfstatat, statx SYS_statx, readlinkat SYS_readlinkat, faccessat SYS_faccessat,
    faccessat2 SYS_faccessat2,
];

/// Calls that make a descriptor a socket. The socket's kind identifies the sent data.
const SOCKETS: [&str; 4] = ["socket", "socketpair", "accept4", "fcntl"];

/// Call that changes nothing, but can lack space like a call that changes something.
const LACKS_ROOM: &str = "inotify_add_watch";

/// Further calls that never change anything. Newer CPU architectures do not have them.
#[cfg(target_arch = "x86_64")]
const OLD_OTHERS: &[(libc::c_long, &str)] = names![
    pipe SYS_pipe, poll SYS_poll, select SYS_select, epoll_wait SYS_epoll_wait,
    stat SYS_stat, lstat SYS_lstat, readlink SYS_readlink, access SYS_access,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_OTHERS: &[(libc::c_long, &str)] = &[];

/// Calls that make changes of files durable.
const SYNCS: [&str; 5] = ["fsync", "fdatasync", "syncfs", "sync_file_range", "sync"];

/// Returns true if the system call `call` makes changes of files durable.
pub fn is_sync(call: &str) -> bool {
    SYNCS.contains(&call)
}

/// `SIOCGSKNS` (`include/uapi/linux/sockios.h`): returns the namespace of a socket as a descriptor.
const NAMESPACE_OF_SOCKET: u64 = 0x894c;

/// `SIOCETHTOOL` (`include/uapi/linux/sockios.h`): passes a command to a netdev's driver.
const SIOCETHTOOL: u64 = 0x8946;

/// Commands of ethtool that change the settings which `rdma-cni` restores (`include/uapi/linux/ethtool.h`).
const ETHTOOL_CHANGES: [u64; 14] = [
    0x06, 0x08, 0x0f, 0x11, 0x13, 0x28, 0x31, 0x32, 0x3b, 0x3d, 0x45, 0x47, 0x49, 0x51,
];

/// `BPF_PROG_DETACH`, `BPF_LINK_DETACH` (`include/uapi/linux/bpf.h`).
const BPF_DETACHES: [u64; 2] = [9, 34];

/// Flags of an open call that changes something, because it creates or empties a file.
const MAKES: u32 = (O_CREAT | O_TRUNC).cast_unsigned();

/// Returns the calls that can be points. With `only_changes`, returns only calls that can change something or lack
/// space, and calls that make sockets, which identify requests.
pub(super) fn stops(only_changes: bool) -> Vec<Stop> {
    let changes = CHANGES.iter().chain(OLD_CHANGES).map(|(number, name)| {
        let flags = match *name {
            "open" => Some(1),
            "openat" => Some(2),
            _ => None,
        };
        let flags = flags.filter(|_| only_changes);
        (number, flags.map(|argument| (argument, MAKES)))
    });
    let others = OTHERS.iter().chain(OLD_OTHERS);
    let is_needed = |name: &str| SOCKETS.contains(&name) || name == LACKS_ROOM;
    let others = others.filter(|(_, name)| !only_changes || is_needed(name));
    let all = changes.chain(others.map(|(number, _)| (number, None)));
    all.map(|(number, only)| Stop {
        number: u32::try_from(*number).expect("a system call's number"),
        only,
    })
    .collect()
}

/// Errors of a full disk and of a failing disk.
const DISK: [i32; 2] = [ENOSPC, EIO];

impl Call<'_> {
    /// Returns the call's name, if the call can be a point.
    pub(super) fn name(&self) -> Option<&'static str> {
        let all = [CHANGES, OLD_CHANGES, OTHERS, OLD_OTHERS];
        let mut all = all.into_iter().flatten();
        all.find(|(number, _)| *number == self.number)
            .map(|(_, name)| *name)
    }

    /// Returns the point of this call. `None`: the call is no point.
    pub(super) fn point(&self) -> Option<Point> {
        let name = self.name()?;
        let ((changes, what, errors), sends) = match self.send(name) {
            Some(what) => ((false, what, [EPIPE].as_slice()), true),
            None => (self.effect(name)?, false),
        };
        let mut can_change = CHANGES.iter().chain(OLD_CHANGES);
        // if this fails, a fault would miss the call
        debug_assert!(!changes || can_change.any(|(_, it)| *it == name), "{name}");
        Some(Point {
            call: name.to_owned(),
            what,
            changes,
            sends,
            errors: errors.to_vec(),
        })
    }

    /// Returns the data that the call sends to another process.
    fn send(&self, name: &str) -> Option<String> {
        let calls = ["write", "writev", "sendto", "sendmsg", "sendmmsg"];
        let sends = calls.contains(&name) && self.is_socket_of(AF_UNIX);
        (sends && self.target(0).starts_with("socket:")).then(|| "a Unix socket".to_owned())
    }

    fn effect(&self, name: &str) -> Option<(bool, String, &'static [i32])> {
        let arguments = self.arguments;
        let change = |what: String, errors: &'static [i32]| Some((true, what, errors));
        let no_change = |what: String, errors: &'static [i32]| Some((false, what, errors));
        match name {
            "open" => self.opened(arguments[0], arguments[1]),
            "openat" => self.opened(arguments[1], arguments[2]),
            "openat2" => {
                let flags = memory::word(self.thread, arguments[2]);
                self.opened(arguments[1], flags)
            }
            "read" | "pread64" | "readv" => self.read(),
            "write" | "pwrite64" | "writev" => self.written(),
            "getdents64" => no_change(self.target(0), &[EIO]),
            "stat" | "lstat" | "readlink" | "access" => self.looked_at(0),
            "newfstatat" | "statx" | "readlinkat" | "faccessat" | "faccessat2" => self.looked_at(1),
            "ftruncate" | "fallocate" | "fsync" | "fdatasync" | "syncfs" | "sync_file_range" => {
                change(self.target(0), &DISK)
            }
            // sync() reports no errors
            "sync" => change(String::new(), &[]),
            "fchmod" | "fchown" => change(self.target(0), &[EIO]),
            "copy_file_range" => change(self.target(2), &DISK),
            "sendfile" => change(self.target(0), &DISK),
            "rename" | "link" => change(self.paths(0, 1), &DISK),
            "renameat" | "renameat2" | "linkat" => change(self.paths(1, 3), &DISK),
            "symlink" => change(self.paths(1, 0), &DISK),
            "symlinkat" => change(self.paths(2, 0), &DISK),
            "mkdir" | "mknod" => change(self.path(0), &DISK),
            "mkdirat" | "mknodat" => change(self.path(1), &DISK),
            "unlink" | "rmdir" | "chmod" | "chown" => change(self.path(0), &[EIO]),
            "unlinkat" | "fchmodat" | "fchownat" | "utimensat" => change(self.path(1), &[EIO]),
            "mount" => change(self.path(1), &[ENOMEM]),
            "umount2" => change(self.path(0), &[ENOMEM]),
            // the call makes a file with the socket's name
            "bind" if self.is_socket_of(AF_UNIX) => change(String::new(), &DISK),
            "bind" if self.is_socket_of(AF_NETLINK) => no_change("netlink".to_owned(), &[ENOMEM]),
            "setsockopt" if self.is_socket_of(AF_NETLINK) => {
                no_change("netlink".to_owned(), &[ENOMEM])
            }
            // the error of a server that does not run
            "connect" if self.is_socket_of(AF_UNIX) => {
                no_change("a Unix socket".to_owned(), &[ECONNREFUSED])
            }
            "accept4" => no_change(String::new(), &[EMFILE]),
            // the error at the user's limit of watches
            "inotify_add_watch" => no_change(self.path(1), &[ENOSPC]),
            "fcntl" if self.duplicates() => no_change("another descriptor".to_owned(), &[EMFILE]),
            "ioctl" if arguments[1] == NAMESPACE_OF_SOCKET => {
                no_change("the namespace of a socket".to_owned(), &[EMFILE])
            }
            "ioctl" if arguments[1] == SIOCETHTOOL => self.ethtool(),
            "bpf" => {
                let detaches = BPF_DETACHES.contains(&arguments[0]);
                detaches.then(|| (true, "a BPF program".to_owned(), [].as_slice()))
            }
            "setns" | "unshare" => no_change(String::new(), &[ENOMEM]),
            "socket" | "socketpair" | "pipe" | "pipe2" | "eventfd2" | "epoll_create1"
            | "timerfd_create" | "pidfd_open" | "inotify_init1" => {
                no_change(String::new(), &[EMFILE])
            }
            "sendto" => self.sent(arguments[1]),
            "sendmsg" | "sendmmsg" => {
                // struct msghdr: name, its length, vectors; struct iovec: base, length
                let vectors = memory::word(self.thread, arguments[1] + 16);
                self.sent(memory::word(self.thread, vectors))
            }
            // reading data of another process does not fail for lack of memory
            "recvfrom" | "recvmsg" => match (self.socket)(arguments[0]) {
                None | Some((AF_UNIX, _)) => no_change(String::new(), &[EINTR]),
                Some(_) => no_change(String::new(), &[EINTR, ENOMEM]),
            },
            "fork" | "vfork" => change("a process".to_owned(), &[ENOMEM]),
            "clone" => self.cloned(arguments[0]),
            "clone3" => self.cloned(memory::word(self.thread, arguments[0])),
            "execve" => change(self.path(0), &[ENOMEM]),
            "kill" => change(format!("signal {}", arguments[1]), &[]),
            "flock" => no_change(self.target(0), &[EINTR]),
            "poll" | "ppoll" | "select" | "wait4" | "waitid" | "nanosleep" | "clock_nanosleep"
            | "epoll_wait" | "epoll_pwait" => no_change(String::new(), &[EINTR]),
            _ => None,
        }
    }

    /// Returns the point of a change of a netdev's driver settings.
    fn ethtool(&self) -> Option<(bool, String, &'static [i32])> {
        // struct ifreq: name, address of a structure that begins with the command
        let command = memory::word(self.thread, self.arguments[2] + 16);
        let command = memory::word(self.thread, command) & u64::from(u32::MAX);
        let changes = ETHTOOL_CHANGES.contains(&command);
        changes.then(|| (true, format!("ethtool, command {command}"), [].as_slice()))
    }

    fn opened(&self, path: u64, flags: u64) -> Option<(bool, String, &'static [i32])> {
        let path = memory::text(self.thread, path);
        Some(match flags & u64::from(MAKES) {
            0 => (false, path, &[EMFILE]),
            _ => (true, path, &[EMFILE, ENOSPC, EIO]),
        })
    }

    /// Returns the point of a call that queries a file. A query of an open descriptor (with an empty path) is no
    /// point.
    fn looked_at(&self, path: usize) -> Option<(bool, String, &'static [i32])> {
        let path = self.path(path);
        (!path.is_empty()).then_some((false, path, &[EIO]))
    }

    fn read(&self) -> Option<(bool, String, &'static [i32])> {
        let target = self.target(0);
        if target.starts_with('/') {
            Some((false, target, &[EIO]))
        } else if target.starts_with("pipe:") {
            Some((false, "a pipe".to_owned(), &[EINTR]))
        } else {
            None
        }
    }

    fn written(&self) -> Option<(bool, String, &'static [i32])> {
        let target = self.target(0);
        match self.arguments[0] {
            2 => None,
            1 => Some((true, "the answer".to_owned(), &[EIO])),
            _ if target.starts_with("/dev/") => None,
            _ if target.starts_with('/') => Some((true, target, &DISK)),
            _ => None,
        }
    }

    fn sent(&self, buffer: u64) -> Option<(bool, String, &'static [i32])> {
        match (self.socket)(self.arguments[0])? {
            (AF_NETLINK, protocol) => {
                let header = memory::bytes(self.thread, buffer, 16);
                let (changes, what) = netlink::request(protocol, &header)?;
                Some((changes, what, &[ENOMEM]))
            }
            (AF_UNIX, _) => None,
            (domain, _) => {
                let what = if domain == AF_PACKET {
                    "a frame"
                } else {
                    "a packet"
                };
                Some((true, what.to_owned(), &[ENOMEM]))
            }
        }
    }

    fn cloned(&self, flags: u64) -> Option<(bool, String, &'static [i32])> {
        Some(match flags & u64::from(CLONE_THREAD.cast_unsigned()) {
            0 => (true, "a process".to_owned(), &[ENOMEM]),
            _ => (false, "a thread".to_owned(), &[ENOMEM]),
        })
    }

    /// Returns true if the call is an fcntl() that duplicates a descriptor.
    pub(super) fn duplicates(&self) -> bool {
        let makes = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC];
        makes
            .iter()
            .any(|it| u64::try_from(*it) == Ok(self.arguments[1]))
    }

    fn is_socket_of(&self, domain: i32) -> bool {
        (self.socket)(self.arguments[0]).is_some_and(|(it, _)| it == domain)
    }

    fn path(&self, argument: usize) -> String {
        memory::text(self.thread, self.arguments[argument])
    }

    fn paths(&self, from: usize, to: usize) -> String {
        format!("{} → {}", self.path(from), self.path(to))
    }

    fn target(&self, argument: usize) -> String {
        memory::target(self.thread, self.arguments[argument])
    }
}
