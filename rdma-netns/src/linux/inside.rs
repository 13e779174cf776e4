// SPDX-License-Identifier: Apache-2.0
//! Reads data that only a thread in a pod's namespace can read: the pod's exclusive RDMA devices, over RDMA netlink and
//! in the namespace's sysfs.
//!
//! The namespace is open only during the call. Entering the namespace needs `CAP_SYS_ADMIN`.

use super::{
    devices,
    nldev::{Nldev, PortInfo},
};
use crate::{DeviceAddress, NetnsId, OpenPodError, netlink::NetlinkError, netns::Netns};
use nix::{
    libc,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// An RDMA device's name and its ports.
pub type Ports = (String, Vec<PortInfo>);

/// Reason why a pod's namespace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsideError {
    /// The namespace cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenPodError),
    /// The path leads to a namespace that does not have the expected identity.
    #[error("{0:?} is another network namespace now")]
    Other(PathBuf),
    /// The system refused to read. `PermissionDenied`: entering the namespace needs `CAP_SYS_ADMIN`.
    #[error("cannot read in the network namespace at {path:?}: {source}")]
    Read {
        /// Path of the namespace.
        path: PathBuf,
        /// The kernel's error.
        source: NetlinkError,
    },
}

impl InsideError {
    /// Returns true if the namespace has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Open(OpenPodError::Missing(_)))
    }

    /// Returns true if this program lacks a capability for entering the namespace. Newer kernels also require a
    /// capability for opening it. Returns false for `EACCES`, by which a security module refuses.
    pub fn lacks_capability(&self) -> bool {
        let errno = match self {
            Self::Open(OpenPodError::Io { source, .. }) => source.raw_os_error(),
            Self::Read { source, .. } => source.errno(),
            Self::Open(_) | Self::Other(_) => None,
        };
        errno == Some(libc::EPERM)
    }
}

/// Returns the RDMA devices that the namespace at `path` sees, with the states of their ports. Returns none if there is
/// no RDMA subsystem.
pub fn ports(path: &Path, id: NetnsId) -> Result<Vec<Ports>, InsideError> {
    let read = || -> Result<Vec<Ports>, NetlinkError> {
        let Some(mut nldev) = Nldev::open()? else {
            return Ok(Vec::new());
        };
        let devices = nldev.devices()?;
        let with_ports = devices.into_iter().filter_map(|device| {
            // omits a device that disappears between two requests
            let ports = nldev.ports(device.index).ok()?;
            Some((device.name, ports))
        });
        Ok(with_ports.collect())
    };
    within(path, id, |netns| {
        netns.run(read).map_err(NetlinkError::from).flatten()
    })
}

/// Runs `work` in a thread in the namespace at `path`. The thread has mounted a sysfs at `sysfs`, because the content
/// of `/sys/class/infiniband` depends on the namespace of the mount.
pub fn with_sysfs<T: Send>(
    path: &Path,
    id: NetnsId,
    sysfs: &Path,
    work: impl FnOnce(&Path) -> T + Send,
) -> Result<T, InsideError> {
    within(path, id, |netns| {
        let inside = || mount_own(sysfs, READ).map(|()| work(sysfs));
        netns.run(inside).flatten().map_err(NetlinkError::from)
    })
}

/// Returns the PCI functions or auxiliary devices of netdevs in `netns`, which are given by name and index. The value
/// of a netdev without hardware is `None`.
pub(super) fn hardware(
    netns: &Netns,
    sysfs: &Path,
    netdevs: &[(&str, u32)],
) -> io::Result<Vec<Option<DeviceAddress>>> {
    let of = |(name, index): &(&str, u32)| devices::of_netdev(sysfs, name, *index);
    netns
        .run(|| mount_own(sysfs, READ).map(|()| netdevs.iter().map(of).collect()))
        .flatten()
}

fn within<T>(
    path: &Path,
    id: NetnsId,
    read: impl FnOnce(&Netns) -> Result<T, NetlinkError>,
) -> Result<T, InsideError> {
    let netns = Netns::open(path)?;
    if netns.id() != id {
        return Err(InsideError::Other(path.to_owned()));
    }
    read(&netns).map_err(|source| InsideError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Flags of a mount that cannot be written.
pub(super) const READ: MsFlags = MsFlags::MS_RDONLY;
/// Flags of a mount that can be written.
pub(super) const WRITE: MsFlags = MsFlags::empty();

/// Mounts sysfs for the calling thread alone. The mount shows the thread's namespace (`sysfs_init_fs_context()`,
/// `fs/sysfs/mount.c`), and ends with the thread.
pub(super) fn mount_own(sysfs: &Path, flags: MsFlags) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing)?;
    let flags = flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("sysfs"), sysfs, Some("sysfs"), flags, nothing)?;
    Ok(())
}
