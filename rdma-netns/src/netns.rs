// SPDX-License-Identifier: Apache-2.0
//! Network namespaces: opening, identifying and entering.
//!
//! [`Netns::run`] runs work on a new thread in the namespace. `Netns::visit` moves the calling thread into the
//! namespace for a moment, and back. The calling thread never stays in the wrong namespace, even after an early return
//! or a panic. The process ends if the kernel refuses the return.

use nix::{
    errno::Errno,
    libc,
    sched::{CloneFlags, setns},
    sys::statfs::{FsType, fstatfs},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{
            fs::{MetadataExt, OpenOptionsExt},
            net::UnixDatagram,
        },
    },
    panic::resume_unwind,
    path::{Path, PathBuf},
    process, thread,
};

/// Identity of a namespace within one boot. A path or an inode number is not enough, because another namespace may have
/// it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// Device of the namespace's file (nsfs).
    pub device: u64,
    /// Inode of the file. The kernel reuses the number after the namespace's end.
    pub inode: u64,
    /// Cookie of the namespace (`SO_NETNS_COOKIE`, Linux 5.14), which the kernel never reuses. 0 on kernels without
    /// cookies.
    pub cookie: u64,
}

/// `NSFS_MAGIC` (`include/uapi/linux/magic.h`)
const NSFS: FsType = FsType(0x6e73_6673);

/// `SO_NETNS_COOKIE` (`include/uapi/asm-generic/socket.h`)
const SO_NETNS_COOKIE: libc::c_int = 71;

/// `SIOCGSKNS` (`include/uapi/linux/sockios.h`)
const SIOCGSKNS: libc::c_int = 0x894c;

/// The calling thread's namespace.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// Number of tries to return from a visit. A try fails if the kernel lacks memory (`create_new_namespaces()`,
/// `kernel/nsproxy.c`).
const RETURN_ATTEMPTS: usize = 3;

/// An open network namespace. The namespace lives at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
    id: NetnsId,
}

/// Reason why a path could not be opened as a network namespace, or as a pod's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenPodError {
    /// The path does not exist, in most cases because the namespace has ended.
    #[error("there is no {0:?}")]
    Missing(PathBuf),
    /// The path is a file that is no network namespace.
    #[error("{0:?} is no network namespace")]
    NotNamespace(PathBuf),
    /// The path leads to the namespace of this program, which cannot be a pod's namespace.
    #[error("{0:?} is the host's own network namespace")]
    HostNamespace(PathBuf),
    /// The system refused to open the path.
    #[error("cannot open {path:?}: {source}")]
    Io {
        /// Requested path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl OpenPodError {
    fn of(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        // opening `/proc/PID/ns/net` of an ended process returns ESRCH
        match missing.contains(&source.kind()) || source.raw_os_error() == Some(libc::ESRCH) {
            true => Self::Missing(path),
            false => Self::Io { path, source },
        }
    }
}

impl Netns {
    /// Opens the namespace at `path`, such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn open(path: &Path) -> Result<Self, OpenPodError> {
        let own = || cookie_of(&UnixDatagram::unbound()?);
        let cookie = |netns: &Self| Ok((netns.run(own).flatten()?, ()));
        let (netns, ()) = Self::open_by(path, cookie)?;
        Ok(netns)
    }

    /// Opens the namespace like [`Netns::open`], and also returns the second result of the query `cookie`.
    pub(crate) fn open_by<T>(
        path: &Path,
        cookie: impl FnOnce(&Self) -> io::Result<(u64, T)>,
    ) -> Result<(Self, T), OpenPodError> {
        let failed = |source: io::Error| OpenPodError::of(path, source);
        let not_namespace = || OpenPodError::NotNamespace(path.to_owned());
        let file = open_file(path).map_err(failed)?;
        let kind = fstatfs(&file).map_err(|error| failed(error.into()))?;
        if kind.filesystem_type() != NSFS {
            return Err(not_namespace());
        }
        let mut netns = Self::identify(file, path).map_err(failed)?;
        // setns(2) returns EINVAL for files of other kinds of namespaces
        let (cookie, besides) = cookie(&netns).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => not_namespace(),
            _ => failed(error),
        })?;
        netns.id.cookie = cookie;
        Ok((netns, besides))
    }

    /// Opens the calling thread's namespace.
    pub fn current() -> io::Result<Self> {
        Self::by_socket(&UnixDatagram::unbound()?)
    }

    /// Opens the calling thread's namespace by `socket`, which the thread opened in this namespace.
    pub(crate) fn by_socket(socket: &impl AsFd) -> io::Result<Self> {
        let mut netns = Self::identify(here(socket)?, Path::new(CURRENT))?;
        netns.id.cookie = cookie_of(socket)?;
        Ok(netns)
    }

    fn identify(file: File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let id = NetnsId {
            device: metadata.dev(),
            inode: metadata.ino(),
            cookie: 0,
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            id,
        })
    }

    /// Returns the path at which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the identity of the namespace.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Runs `work` on a new thread inside the namespace, and waits until `work` ends. Sockets that `work` opens stay in
    /// the namespace. A panic in `work` continues in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.enter()?;
            Ok(work())
        })
        .flatten()
    }

    /// Runs `work` in the namespace on the calling thread. The thread then returns to its own namespace, even after a
    /// panic. For short work this is faster than a new thread. Sockets that `work` opens stay in the namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the thread's own namespace cannot be opened for the return. In both cases
    /// `work` has not run.
    pub(crate) fn visit<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let _way_back = WayBack::from_here()?;
        self.enter()?;
        Ok(work())
    }

    fn enter(&self) -> io::Result<()> {
        Ok(setns(&self.file, CloneFlags::CLONE_NEWNET)?)
    }
}

/// When this value is dropped, the thread returns to the namespace in which the value was made.
struct WayBack(File);

impl WayBack {
    /// Opens the calling thread's namespace for the return.
    ///
    /// # Errors
    /// A program in its own user namespace cannot return to the network namespace of the parent user namespace
    /// (`netns_install()`, `net/core/net_namespace.c`).
    fn from_here() -> io::Result<Self> {
        let here = here(&UnixDatagram::unbound()?)?;
        setns(&here, CloneFlags::CLONE_NEWNET)?;
        Ok(Self(here))
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        let Self(home) = self;
        let enter = |_| setns(&*home, CloneFlags::CLONE_NEWNET).is_ok();
        if !(0..RETURN_ATTEMPTS).any(enter) {
            // otherwise later work of this process would change the pod instead of the host; the next verb completes
            // the work
            log::error!("the network namespace of this program cannot be entered again");
            process::abort();
        }
    }
}

/// Returns the identities of the namespaces at `paths`, in order. One thread visits the namespaces one after the other.
/// At the end the thread enters `home`, so it keeps none of the visited namespaces alive.
pub(crate) fn ids_at(
    paths: &[&Path],
    home: &Netns,
) -> io::Result<Vec<Result<NetnsId, OpenPodError>>> {
    let id = |path: &&Path| {
        let cookie = |netns: &Netns| {
            netns.enter()?;
            Ok((cookie_of(&UnixDatagram::unbound()?)?, ()))
        };
        let (netns, ()) = Netns::open_by(path, cookie)?;
        Ok(netns.id)
    };
    if paths.is_empty() {
        return Ok(vec![]);
    }
    on_a_thread(|| {
        let ids = paths.iter().map(id).collect();
        // if the kernel refuses, the thread keeps its last namespace alive for a moment, until the thread ends
        let _ = home.enter();
        ids
    })
}

/// Runs `work` on a new thread, and waits until `work` ends. A panic in `work` continues in the caller.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".to_owned());
        let ended = thread.spawn_scoped(scope, work)?.join();
        Ok(ended.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens the file at `path`. Does not wait for a writer if the file is a FIFO.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Returns the calling thread's namespace by a `socket` that the thread opened. Opening a path in `/proc` takes many
/// times as long, because the kernel generates `/proc` for each process.
fn here(socket: &impl AsFd) -> io::Result<File> {
    // SAFETY: this request takes no argument; the descriptor is open.
    let file = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS as _) };
    match Errno::result(file) {
        // SAFETY: the kernel has just made the descriptor for this caller.
        Ok(file) => Ok(File::from(unsafe { OwnedFd::from_raw_fd(file) })),
        // the thread lacks CAP_NET_ADMIN in the namespace's user namespace, or runs in QEMU's user-mode emulation
        Err(_) => File::open(CURRENT),
    }
}

/// Returns the cookie of the namespace of `socket`. Returns 0 on a kernel without cookies (before 5.14). Any other
/// failure of the query is an error. With the cookie 0, `rdma-cni` would not recognize the pod's namespace, and would
/// not restore the pod's devices.
pub(crate) fn cookie_of(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the option writes at most `length` bytes, the size of the memory at the pointer; the descriptor is open.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match Errno::result(outcome) {
        Ok(_) => Ok(cookie),
        // QEMU's user-mode emulation returns EINVAL for options that it does not know; the kernel returns EINVAL only
        // for a wrong length (`sk_getsockopt()`, `net/core/sock.c`)
        Err(Errno::ENOPROTOOPT | Errno::EINVAL) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::unshare;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn files_that_are_no_network_namespaces() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pod");
        assert!(matches!(Netns::open(&file), Err(OpenPodError::Missing(_))));
        File::create(&file).expect("a file");
        for path in [
            file.as_path(),
            Path::new("/proc/self/ns/uts"),
            Path::new("/dev/null"),
        ] {
            assert!(
                matches!(Netns::open(path), Err(OpenPodError::NotNamespace(_))),
                "{path:?}"
            );
        }
    }

    #[test]
    fn a_visitor_is_at_home_again_after_a_panic_too() {
        // the thread's namespace differs from the test's namespace
        let visit = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            let here = || Netns::current().expect("current").id();
            let home = here();
            let [other, third] = [(); 2].map(|()| {
                let made = thread::spawn(|| {
                    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
                    Netns::current().expect("current")
                });
                made.join().expect("a namespace")
            });
            for netns in [&other, &third] {
                let there = netns.visit(here);
                assert_eq!(there.expect("it can be entered"), netns.id());
                assert_eq!(here(), home);
            }
            let panic = catch_unwind(AssertUnwindSafe(|| other.visit(|| panic!("inside"))));
            panic.expect_err("it panics");
            assert_eq!(here(), home);
        };
        thread::spawn(visit).join().expect("no panic but its own");
    }

    #[test]
    fn one_namespace_has_one_id() {
        let current = Netns::current().expect("current");
        let opened = Netns::open(Path::new("/proc/self/ns/net")).expect("own");
        assert_eq!(current.id(), opened.id());
        // `SIOCGSKNS` fails for a directory, as it does without CAP_NET_ADMIN
        let directory = File::open("/").expect("a directory");
        let other_way = Netns::identify(here(&directory).expect("own"), Path::new(CURRENT));
        let other_way = other_way.expect("own").id();
        assert_eq!(
            (other_way.device, other_way.inode),
            (opened.id().device, opened.id().inode)
        );
    }
}
