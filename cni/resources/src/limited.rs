// SPDX-License-Identifier: Apache-2.0
//! Limits of pods' use of RDMA devices by the kernel's rdma controller (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).
//! The kernel counts the objects of a device for the cgroup of the process that makes them and for those above it, in
//! whatever network namespace.
//!
//! The pod's cgroup has the limits, and a record of each limited container says which cgroup that is: its path depends on
//! kubelet's and the runtime's cgroup drivers, and only the hook knows it. Limits must end before their cgroup: the
//! kernel keeps a device's limits without use when it frees the cgroup (`rdmacg_css_free()`, `kernel/cgroup/rdma.c`), and
//! unlinks them from the freed memory when the device goes (`rdmacg_unregister_device()`), until "cgroup: rdma: free idle
//! pools during cgroup teardown" (June 2026). Therefore [`LimitedContainers::settle`] lifts the limits of a pod whose
//! limited containers have ended: at DEL, and in the daemon as soon as a container has ended.

use crate::{FileError, RdmaLimits, file};
use cni_protocol::lock::{self, Held};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Root of the host's hierarchy of cgroup version 2.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// Format that this version writes. A newer one is ignored.
pub const FORMAT: u32 = 1;

/// Error of a device that has gone since (`ENODEV`).
const NO_DEVICE: i32 = 19;

/// A limited container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitedContainer {
    /// Format, see [`FORMAT`].
    pub format: u32,
    /// `/proc/sys/kernel/random/boot_id`: no limit outlives its kernel.
    pub boot_id: String,
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// Path of its cgroup below the root of the hierarchy.
    pub cgroup: PathBuf,
    /// Path of its pod's cgroup, which has the limits.
    pub pod_cgroup: PathBuf,
    /// Limits that the container's resources have.
    #[serde(flatten)]
    pub limits: RdmaLimits,
}

/// A container with the path of its record.
type Recorded = (PathBuf, LimitedContainer);

/// The limited containers of a node.
#[derive(Clone, Debug)]
pub struct LimitedContainers {
    root: PathBuf,
    cgroups: PathBuf,
}

impl LimitedContainers {
    /// Returns the containers in the state directory, whose cgroups are in the hierarchy at `cgroups`.
    pub fn new(state_dir: &Path, cgroups: &Path) -> Self {
        Self {
            root: state_dir.join("limited"),
            cgroups: cgroups.to_owned(),
        }
    }

    /// Limits the pod of the container with this id of the runtime, and records the container before. A lower limit,
    /// of another container of the pod, stays.
    ///
    /// # Errors
    /// The record or the limits cannot be written.
    pub fn limit(&self, id: &str, container: &LimitedContainer) -> Result<(), FileError> {
        let _lock = self.lock()?;
        let path = self.root.join(format!("{}.json", file::file_name(id)));
        file::replace(&path, container, 0o600)?;
        self.set(container, |line| lowered(line, container.limits))
    }

    /// Lifts the limits of each pod whose limited containers have ended, and forgets these containers. Limits those of
    /// the others again, as the kernel has no limit of a device that it got since.
    ///
    /// A container is not forgotten if its pod's cgroup was gone before ([`outlasting`](Self::outlasting)).
    ///
    /// # Errors
    /// Some limit or record cannot be written; the others are.
    pub fn settle(&self) -> Result<(), FileError> {
        self.lift(|_| false)
    }

    /// Lifts the limits of all pods, and forgets their containers.
    ///
    /// # Errors
    /// Same as [`settle`](Self::settle).
    pub fn lift_all(&self) -> Result<(), FileError> {
        self.lift(|_| true)
    }

    /// Does what [`settle`](Self::settle) does, as if the containers that `has_ended` chooses had ended.
    fn lift(&self, has_ended: impl Fn(&Recorded) -> bool) -> Result<(), FileError> {
        if !self.root.exists() || !self.is_hierarchy() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let (mut living, mut ended) = self.living_and_ended();
        ended.extend(living.extract_if(.., |it| has_ended(it)));
        let mut done = Ok(());
        for (path, container) in &ended {
            let is_shared = |it: &Recorded| it.1.pod_cgroup == container.pod_cgroup;
            let lifted = match living.iter().any(is_shared) || !of_this_boot(container) {
                true => Ok(()),
                false if self.has_gone(container) => continue,
                false => self.set(container, lifted),
            };
            done = done.and(lifted.and_then(|()| file::remove(path).map(drop)));
        }
        for (_, container) in &living {
            done = done.and(self.set(container, |line| lowered(line, container.limits)));
        }
        done
    }

    /// Returns the pods with a limited container that lives, in their order.
    pub fn pods(&self) -> Vec<LimitedContainer> {
        let (living, _) = self.living_and_ended();
        let pods = living
            .into_iter()
            .map(|(_, it)| (it.pod_cgroup.clone(), it));
        pods.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Returns the containers whose pod's cgroup went with its limits, since the node booted.
    pub fn outlasting(&self) -> Vec<LimitedContainer> {
        let (_, ended) = self.living_and_ended();
        let ended = ended.into_iter().map(|(_, it)| it);
        let outlasting = |it: &LimitedContainer| of_this_boot(it) && self.has_gone(it);
        ended.filter(outlasting).collect()
    }

    /// Returns the paths in which a change asks for [`settle`](Self::settle).
    pub fn watched(&self) -> Vec<PathBuf> {
        let (living, _) = self.living_and_ended();
        let events = living.iter().map(|(_, it)| self.events(it));
        [self.root.clone()].into_iter().chain(events).collect()
    }

    /// Returns the containers that have processes, and the others.
    fn living_and_ended(&self) -> (Vec<Recorded>, Vec<Recorded>) {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let records = entries.filter_map(|entry| {
            let path = entry.path();
            let container = file::read_record(&path, FORMAT).ok().flatten()?;
            Some((path, container))
        });
        records.partition(|(_, container)| {
            let events = fs::read_to_string(self.events(container)).unwrap_or_default();
            events.lines().any(|line| line == "populated 1")
        })
    }

    fn events(&self, container: &LimitedContainer) -> PathBuf {
        self.cgroups.join(&container.cgroup).join("cgroup.events")
    }

    /// Reports whether the host's hierarchy is mounted: its root alone has no type, and a container with a cgroup
    /// namespace sees its own cgroup.
    fn is_hierarchy(&self) -> bool {
        let has = |file: &str| self.cgroups.join(file).exists();
        has("cgroup.controllers") && !has("cgroup.type")
    }

    fn has_gone(&self, container: &LimitedContainer) -> bool {
        self.is_hierarchy() && !self.cgroups.join(&container.pod_cgroup).exists()
    }

    /// Writes the line that `change` returns for each line of the pod's `rdma.max`.
    fn set(
        &self,
        container: &LimitedContainer,
        change: impl Fn(&str) -> Option<String>,
    ) -> Result<(), FileError> {
        let path = self.cgroups.join(&container.pod_cgroup).join("rdma.max");
        let present = fs::read_to_string(&path);
        let present = present.map_err(|source| FileError::new("read", &path, source))?;
        let write = |line: String| {
            // the kernel takes one device with each call
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.write_all(line.as_bytes())
        };
        for line in present.lines().filter_map(change) {
            match write(line) {
                Err(error) if error.raw_os_error() == Some(NO_DEVICE) => {}
                written => written.map_err(|source| FileError::new("write", &path, source))?,
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<Held, FileError> {
        let open = || fs::create_dir_all(&self.root).and_then(|()| File::open(&self.root));
        lock::hold(&self.root, open).map_err(|source| FileError::new("lock", &self.root, source))
    }
}

/// Returns the id of the kernel's boot, for a record.
///
/// # Errors
/// It cannot be read.
pub fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}

fn of_this_boot(container: &LimitedContainer) -> bool {
    boot_id().is_ok_and(|id| id == container.boot_id)
}

/// Returns the line that lowers a device's limits in `present`, such as `mlx5_0 hca_handle=5 hca_object=max`, to
/// `limits`. `None`: none is higher.
fn lowered(present: &str, limits: RdmaLimits) -> Option<String> {
    changed(present, |name, now| {
        let limit = match name {
            "hca_handle" => limits.handles,
            "hca_object" => limits.objects,
            _ => None,
        };
        // max is no number
        let is_lower = |limit: &u32| !now.parse().is_ok_and(|now: u32| now <= *limit);
        limit.filter(is_lower).map(|it| it.to_string())
    })
}

/// Returns the line that takes a device's limits in `present` away. `None`: it has none.
fn lifted(present: &str) -> Option<String> {
    changed(present, |_, now| (now != "max").then(|| "max".to_owned()))
}

fn changed(present: &str, to: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    let mut words = present.split_whitespace();
    let device = words.next()?;
    let mut line = device.to_owned();
    for (name, now) in words.filter_map(|word| word.split_once('=')) {
        if let Some(limit) = to(name, now) {
            let _ = write!(line, " {name}={limit}");
        }
    }
    Some(line).filter(|line| line != device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Files in place of the kernel's, which keep what was written.
    struct Node {
        root: TempDir,
        containers: LimitedContainers,
    }

    impl Node {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a directory");
            let cgroups = root.path().join("cgroup");
            fs::create_dir(&cgroups).expect("made");
            fs::write(cgroups.join("cgroup.controllers"), "cpu rdma\n").expect("written");
            let containers = LimitedContainers::new(&root.path().join("state"), &cgroups);
            Self { root, containers }
        }

        /// Writes a file of the cgroup `pods/{name}`.
        fn write(&self, name: &str, text: &str) {
            let path = self.root.path().join("cgroup/pods").join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        }

        /// What was written to `rdma.max` of the pod after `present`.
        fn added(&self, pod: &str, present: &str) -> String {
            let path = self.root.path().join("cgroup/pods").join(pod);
            let max = fs::read_to_string(path.join("rdma.max")).expect("the file");
            let added = max.strip_prefix(present).expect("kept").to_owned();
            self.write(&format!("{pod}/rdma.max"), present);
            added
        }

        fn start(&self, pod: &str, id: &str, objects: u32) -> LimitedContainer {
            let container = LimitedContainer {
                format: FORMAT,
                boot_id: boot_id().expect("a boot"),
                namespace: "default".into(),
                pod: pod.into(),
                cgroup: Path::new("pods").join(pod).join(id),
                pod_cgroup: Path::new("pods").join(pod),
                limits: RdmaLimits {
                    handles: None,
                    objects: Some(objects),
                },
            };
            self.write(
                &format!("{pod}/{id}/cgroup.events"),
                "populated 1\nfrozen 0\n",
            );
            self.containers.limit(id, &container).expect("limited");
            container
        }

        fn end(&self, pod: &str, id: &str) {
            self.write(
                &format!("{pod}/{id}/cgroup.events"),
                "populated 0\nfrozen 0\n",
            );
        }

        fn settle(&self) {
            self.containers.settle().expect("settled");
        }
    }

    const NONE: &str = "mlx5_0 hca_handle=max hca_object=max \n";

    #[test]
    fn a_pod_has_the_lowest_limit_until_its_last_limited_container_has_ended() {
        let node = Node::new();
        let limited = "mlx5_0 hca_handle=max hca_object=3 \n\
                       mlx5_1 hca_handle=9 hca_object=max \n";
        node.write("a/rdma.max", NONE);
        let one = node.start("a", "one", 3);
        assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3");
        node.write("a/rdma.max", limited);
        node.start("a", "two", 5);
        assert_eq!(node.added("a", limited), "mlx5_1 hca_object=5");
        assert_eq!(node.containers.pods().len(), 1);

        // a device without a limit is another one since
        node.write("a/rdma.max", NONE);
        node.end("a", "two");
        node.settle();
        assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3");
        assert_eq!(node.containers.pods(), [one]);

        node.write("a/rdma.max", limited);
        node.end("a", "one");
        node.settle();
        let lifted = "mlx5_0 hca_object=maxmlx5_1 hca_handle=max";
        assert_eq!(node.added("a", limited), lifted);
        assert_eq!(node.containers.pods(), []);
        node.settle();
        assert_eq!(node.added("a", limited), "");
    }

    #[test]
    fn a_pod_whose_cgroup_went_with_its_limits_is_known_until_the_node_boots() {
        let node = Node::new();
        let pods = node.root.path().join("cgroup/pods");
        node.write("a/rdma.max", NONE);
        node.write("b/rdma.max", NONE);
        let a = node.start("a", "one", 3);
        let b = node.start("b", "two", 3);
        fs::remove_dir_all(pods.join("a")).expect("removed");
        node.settle();
        assert_eq!(node.containers.outlasting(), std::slice::from_ref(&a));
        assert_eq!(node.containers.pods(), [b]);

        let before = LimitedContainer {
            boot_id: "another".into(),
            ..a
        };
        let path = node.root.path().join("state/limited/one.json");
        file::replace(&path, &before, 0o600).expect("written");
        assert_eq!(node.containers.outlasting(), []);
        node.settle();
        assert!(!path.exists());
    }

    #[test]
    fn where_the_hosts_cgroups_are_not_mounted_nothing_is_forgotten() {
        let node = Node::new();
        node.write("a/rdma.max", NONE);
        node.start("a", "one", 3);
        node.end("a", "one");
        fs::write(node.root.path().join("cgroup/cgroup.type"), "domain\n").expect("written");
        node.settle();
        assert!(node.root.path().join("state/limited/one.json").exists());
        assert_eq!(node.containers.outlasting(), []);
    }
}
