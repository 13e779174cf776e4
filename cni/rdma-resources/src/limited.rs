// SPDX-License-Identifier: Apache-2.0
//! Limits of pods' use of RDMA devices by the kernel's rdma controller (`Documentation/admin-guide/cgroup-v2.rst`,
//! RDMA). When a process makes an object of a device, the kernel counts the object for the process' cgroup and for all
//! cgroups above it, in any network namespace.
//!
//! The limits are in the pod's cgroup. Its path depends on the cgroup drivers of kubelet and of the runtime, and only
//! the hook knows it. The hook therefore records each limited container with the path.
//!
//! The limits must be lifted before the cgroup is removed, because kernels before "cgroup: rdma: free idle pools during
//! cgroup teardown" (June 2026) have a bug. When such a kernel frees the cgroup, it keeps the limits of devices without
//! use (`rdmacg_css_free()`, `kernel/cgroup/rdma.c`). When the device is removed later, the kernel unlinks these limits
//! from the freed memory (`rdmacg_unregister_device()`).
//!
//! [`LimitedContainers::settle`] lifts the limits of a pod whose limited containers have ended. DEL calls it, and the
//! daemon calls it as soon as a container has ended.

mod controller;

use crate::{FileError, RdmaLimits, file};
use cni_protocol::lock::{self, Held};
use controller::{SUBTREE_CONTROL, changed, enable, parents};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Root of the host's hierarchy of cgroup version 2.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// Format that this version writes. A reader refuses a newer format.
pub const FORMAT: u32 = 1;

/// Error of a write for a device that has disappeared, or to the file of a removed cgroup (`ENODEV`).
const NO_DEVICE: i32 = 19;

/// A limited container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitedContainer {
    /// Format, see [`FORMAT`].
    pub format: u32,
    /// `/proc/sys/kernel/random/boot_id`. The limits end with the boot.
    pub boot_id: String,
    /// Namespace of the container's pod.
    pub namespace: String,
    /// Name of the container's pod.
    pub pod: String,
    /// Path of the container's cgroup, below the root of the hierarchy.
    pub cgroup: PathBuf,
    /// Path of the pod's cgroup, which has the limits.
    pub pod_cgroup: PathBuf,
    /// Limits of the container's resources.
    #[serde(flatten)]
    pub limits: RdmaLimits,
}

/// A container with the path of its record.
type Recorded = (PathBuf, LimitedContainer);

/// The recorded containers. A container whose processes cannot be determined counts as living.
struct Found {
    living: Vec<Recorded>,
    ended: Vec<Recorded>,
    /// First error of a record, or of a container's cgroup.
    done: Result<(), FileError>,
}

/// The limited containers of a node.
#[derive(Clone, Debug)]
pub struct LimitedContainers {
    root: PathBuf,
    cgroups: PathBuf,
}

impl LimitedContainers {
    /// Returns the containers that are recorded in `state_dir`. `cgroups` is the root of the hierarchy of their
    /// cgroups.
    pub fn new(state_dir: &Path, cgroups: &Path) -> Self {
        Self {
            root: state_dir.join("limited"),
            cgroups: cgroups.to_owned(),
        }
    }

    /// Records a container and limits its pod. `id` is the runtime's id of the container. First enables the controller
    /// in the pod's cgroup. The lowest limit of the pod's living containers applies.
    ///
    /// # Errors
    /// The controller, the record or the limits cannot be written, or another process holds the lock.
    pub fn limit(&self, id: &str, container: &LimitedContainer) -> Result<(), FileError> {
        let _lock = self.lock()?;
        enable(&self.cgroups, &container.pod_cgroup)?;
        let path = self.root.join(format!("{}.json", file::file_name(id)));
        file::replace(&path, container, 0o600)?;
        let mut living = self.read().living;
        living.push((path, container.clone()));
        self.set(&living, &container.pod_cgroup)
    }

    /// Lifts the limits of each pod whose limited containers have ended, and removes the records of these containers.
    /// Sets the limits of all other pods again, because a device that the kernel has registered since has no limit.
    ///
    /// Keeps the record of a container whose pod's cgroup disappeared with its limits
    /// ([`outlasting`](Self::outlasting)). If another program has disabled the controller in a pod's cgroup, enables
    /// the controller again. Does nothing if the host's hierarchy is not mounted.
    ///
    /// # Errors
    /// - A limit or a record cannot be read or written. The other limits and records are nevertheless handled.
    /// - Another program had disabled the controller in a pod's cgroup.
    /// - Another process holds the lock.
    pub fn settle(&self) -> Result<(), FileError> {
        self.lift(|_| false)
    }

    /// Lifts the limits of all pods, and removes the records of their containers.
    ///
    /// # Errors
    /// The errors of [`settle`](Self::settle), or the hierarchy that has the limits is not mounted.
    pub fn lift_all(&self) -> Result<(), FileError> {
        let boot = boot_id()?;
        let Found { living, ended, .. } = self.read();
        let has_limits = living.iter().chain(&ended).any(|it| it.1.boot_id == boot);
        if has_limits && !self.is_hierarchy() {
            let words = "it is not the host's hierarchy of cgroup version 2, and pods have limits of RDMA devices \
                         there; mount the hierarchy there, or reboot the node";
            return Err(FileError::new(
                "use",
                &self.cgroups,
                io::Error::other(words),
            ));
        }
        self.lift(|_| true)
    }

    /// Does the same as [`settle`](Self::settle). Also treats living containers as ended if `has_ended` returns true.
    fn lift(&self, has_ended: impl Fn(&Recorded) -> bool) -> Result<(), FileError> {
        if !self.root.exists() || !self.is_hierarchy() {
            return Ok(());
        }
        let boot = boot_id()?;
        let _lock = self.lock()?;
        let Found {
            mut living,
            mut ended,
            mut done,
        } = self.read();
        ended.extend(living.extract_if(.., |it| has_ended(it)));
        for (path, container) in &ended {
            let set = match container.boot_id == boot {
                true if self.has_gone(container) => continue,
                true => self.set(&living, &container.pod_cgroup),
                false => Ok(()),
            };
            done = done.and(set.and_then(|()| file::remove(path).map(drop)));
        }
        for (_, container) in &living {
            let pod = &container.pod_cgroup;
            if self.has_gone(container) {
                let words = "another program disabled the controller rdma for the pod, and so removed the pod's \
                             limits; both are restored, but objects that the pod had before are not counted; reboot \
                             the node before you remove an RDMA device or unload its driver, which can then crash the \
                             kernel";
                let path = self.cgroups.join(pod);
                let taken = FileError::new("limit", &path, io::Error::other(words));
                done = done.and(enable(&self.cgroups, pod)).and(Err(taken));
            }
            done = done.and(self.set(&living, pod));
        }
        done
    }

    /// Returns one living limited container of each pod, in the order of the pods' cgroups.
    pub fn pods(&self) -> Vec<LimitedContainer> {
        let living = self.read().living.into_iter();
        let pods = living.map(|(_, it)| (it.pod_cgroup.clone(), it));
        pods.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Returns the ended containers of this boot whose pod's cgroup or controller disappeared before their limits were
    /// lifted.
    pub fn outlasting(&self) -> Vec<LimitedContainer> {
        let boot = boot_id().ok();
        let ended = self.read().ended.into_iter().map(|(_, it)| it);
        let is_outlasting =
            |it: &LimitedContainer| boot.as_ref() == Some(&it.boot_id) && self.has_gone(it);
        ended.filter(is_outlasting).collect()
    }

    /// Returns the paths to watch, in order. After a change of one of these paths, the caller must call
    /// [`settle`](Self::settle).
    pub fn watched(&self) -> BTreeSet<PathBuf> {
        let living = self.read().living;
        let events = living.iter().map(|(_, it)| self.events(it));
        let controls = living.iter().flat_map(|(_, it)| parents(&it.pod_cgroup));
        let controls = controls.map(|it| self.cgroups.join(it).join(SUBTREE_CONTROL));
        events.chain(controls).chain([self.root.clone()]).collect()
    }

    /// Reads the records. A container has ended if its cgroup has no process or does not exist.
    fn read(&self) -> Found {
        let mut found = Found {
            living: Vec::new(),
            ended: Vec::new(),
            done: Ok(()),
        };
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                found.done = Err(FileError::new("read", &self.root, error));
                return found;
            }
            entries => entries.into_iter().flatten().flatten(),
        };
        let paths = entries.map(|entry| entry.path());
        for path in paths.filter(|it| it.extension().is_some_and(|it| it == "json")) {
            let read = match file::read_record(&path, FORMAT) {
                Ok(None) => Ok(()),
                Ok(Some(container)) => {
                    let lives = self.lives(&container);
                    match lives {
                        Ok(false) => found.ended.push((path, container)),
                        _ => found.living.push((path, container)),
                    }
                    lives.map(drop)
                }
                Err(error) => Err(error),
            };
            found.done = found.done.and(read);
        }
        found
    }

    fn lives(&self, container: &LimitedContainer) -> Result<bool, FileError> {
        let events = self.events(container);
        match fs::read_to_string(&events) {
            Ok(text) => Ok(text.lines().any(|line| line == "populated 1")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) if error.raw_os_error() == Some(NO_DEVICE) => Ok(false),
            Err(error) => Err(FileError::new("read", &events, error)),
        }
    }

    fn events(&self, container: &LimitedContainer) -> PathBuf {
        self.cgroups.join(&container.cgroup).join("cgroup.events")
    }

    /// Returns true if the root of the host's hierarchy is mounted at `cgroups`. Only this root has no `cgroup.type`.
    /// In a container with a cgroup namespace, the container's own cgroup is mounted there.
    fn is_hierarchy(&self) -> bool {
        let has = |file: &str| self.cgroups.join(file).exists();
        has("cgroup.controllers") && !has("cgroup.type")
    }

    /// Returns true if the pod has no limits because its cgroup or the controller is gone.
    fn has_gone(&self, container: &LimitedContainer) -> bool {
        let limits = self.cgroups.join(&container.pod_cgroup).join("rdma.max");
        self.is_hierarchy() && limits.try_exists().is_ok_and(|exists| !exists)
    }

    /// Limits the pod's use of each device to the lowest limits of the pod's containers in `living`.
    fn set(&self, living: &[Recorded], pod: &Path) -> Result<(), FileError> {
        let lower = |one: Option<u32>, other: Option<u32>| one.into_iter().chain(other).min();
        let of_pod = living.iter().filter(|it| it.1.pod_cgroup == pod);
        let limits = of_pod.fold(RdmaLimits::default(), |lowest, (_, it)| RdmaLimits {
            handles: lower(lowest.handles, it.limits.handles),
            objects: lower(lowest.objects, it.limits.objects),
        });
        let path = self.cgroups.join(pod).join("rdma.max");
        let present = fs::read_to_string(&path);
        let present = present.map_err(|source| FileError::new("read", &path, source))?;
        let write = |line: String| {
            // one call writes the line of one device, because the kernel parses only one line
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.write_all(line.as_bytes())
        };
        let mut done = Ok(());
        for line in present.lines().filter_map(|it| changed(it, limits)) {
            let written = match write(line) {
                // `ENODEV` means that the device is gone if the file still exists, and otherwise that the cgroup is
                // gone
                Err(error) if error.raw_os_error() == Some(NO_DEVICE) && path.exists() => Ok(()),
                written => written.map_err(|source| FileError::new("write", &path, source)),
            };
            done = done.and(written);
        }
        done
    }

    /// Locks the directory of the records. Sets mode 0700, because any user who can open the directory can lock it.
    /// Earlier versions made the directory with mode 0755.
    fn lock(&self) -> Result<Held, FileError> {
        let lock = || {
            fs::create_dir_all(&self.root)?;
            let directory = File::open(&self.root)?;
            directory.set_permissions(Permissions::from_mode(0o700))?;
            lock::wait(directory, file::LOCK_TIMEOUT)
        };
        lock().map_err(|source| FileError::new("lock", &self.root, source))
    }
}

/// Returns the id of the kernel's boot, for a record.
///
/// # Errors
/// The id cannot be read.
pub fn boot_id() -> Result<String, FileError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(|source| FileError::new("read", path, source))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests;
