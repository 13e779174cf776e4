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
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Root of the host's hierarchy of cgroup version 2.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// Format that this version writes. A newer one is an error.
pub const FORMAT: u32 = 1;

/// Error of a device, or of a kernel's file, that has gone since (`ENODEV`).
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

/// The containers that have processes, or may have, and the others.
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
    /// Returns the containers in the state directory, whose cgroups are in the hierarchy at `cgroups`.
    pub fn new(state_dir: &Path, cgroups: &Path) -> Self {
        Self {
            root: state_dir.join("limited"),
            cgroups: cgroups.to_owned(),
        }
    }

    /// Limits the pod of the container with this id of the runtime, and records the container before. The lowest limit
    /// of the pod's living containers applies.
    ///
    /// # Errors
    /// The record or the limits cannot be written, or another process holds the lock.
    pub fn limit(&self, id: &str, container: &LimitedContainer) -> Result<(), FileError> {
        let _lock = self.lock()?;
        let path = self.root.join(format!("{}.json", file::file_name(id)));
        file::replace(&path, container, 0o600)?;
        let mut living = self.read().living;
        living.push((path, container.clone()));
        self.set(&living, &container.pod_cgroup)
    }

    /// Lifts the limits of each pod whose limited containers have ended, and forgets these containers. Limits those of
    /// the others again, as the kernel has no limit of a device that it got since.
    ///
    /// A container is not forgotten if its pod's cgroup was gone before ([`outlasting`](Self::outlasting)).
    ///
    /// # Errors
    /// Some limit or record cannot be read or written; the others are. Another process holds the lock.
    pub fn settle(&self) -> Result<(), FileError> {
        self.lift(|_| false)
    }

    /// Lifts the limits of all pods, and forgets their containers.
    ///
    /// # Errors
    /// Same as [`settle`](Self::settle), or the hierarchy that has the limits is not mounted here.
    pub fn lift_all(&self) -> Result<(), FileError> {
        let boot = boot_id()?;
        let Found { living, ended, .. } = self.read();
        let has_limits = living.iter().chain(&ended).any(|it| it.1.boot_id == boot);
        if has_limits && !self.is_hierarchy() {
            let words = "it is not the host's hierarchy of cgroup version 2, and pods have limits of RDMA devices there; \
                         mount it, or reboot the node";
            return Err(FileError::new(
                "use",
                &self.cgroups,
                io::Error::other(words),
            ));
        }
        self.lift(|_| true)
    }

    /// Does what [`settle`](Self::settle) does, as if the containers that `has_ended` chooses had ended.
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
            done = done.and(self.set(&living, &container.pod_cgroup));
        }
        done
    }

    /// Returns the pods with a limited container that lives, in their order.
    pub fn pods(&self) -> Vec<LimitedContainer> {
        let living = self.read().living.into_iter();
        let pods = living.map(|(_, it)| (it.pod_cgroup.clone(), it));
        pods.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Returns the containers whose pod's cgroup went with its limits, since the node booted.
    pub fn outlasting(&self) -> Vec<LimitedContainer> {
        let boot = boot_id().ok();
        let ended = self.read().ended.into_iter().map(|(_, it)| it);
        let is_outlasting =
            |it: &LimitedContainer| boot.as_ref() == Some(&it.boot_id) && self.has_gone(it);
        ended.filter(is_outlasting).collect()
    }

    /// Returns the paths in which a change asks for [`settle`](Self::settle), in their order.
    pub fn watched(&self) -> BTreeSet<PathBuf> {
        let living = self.read().living;
        let events = living.iter().map(|(_, it)| self.events(it));
        events.chain([self.root.clone()]).collect()
    }

    /// Reads the records. A container has ended if the kernel says that it has no process, or has no such cgroup.
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

    /// Reports whether the host's hierarchy is mounted: its root alone has no type, and a container with a cgroup
    /// namespace sees its own cgroup.
    fn is_hierarchy(&self) -> bool {
        let has = |file: &str| self.cgroups.join(file).exists();
        has("cgroup.controllers") && !has("cgroup.type")
    }

    fn has_gone(&self, container: &LimitedContainer) -> bool {
        let cgroup = self.cgroups.join(&container.pod_cgroup);
        self.is_hierarchy() && cgroup.try_exists().is_ok_and(|exists| !exists)
    }

    /// Gives the pod the lowest limits that its containers among `living` have, for each device.
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
            // the kernel takes one device with each call
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.write_all(line.as_bytes())
        };
        let mut done = Ok(());
        for line in present.lines().filter_map(|it| changed(it, limits)) {
            let written = match write(line) {
                // the device has gone; without the file, the cgroup has
                Err(error) if error.raw_os_error() == Some(NO_DEVICE) && path.exists() => Ok(()),
                written => written.map_err(|source| FileError::new("write", &path, source)),
            };
            done = done.and(written);
        }
        done
    }

    fn lock(&self) -> Result<Held, FileError> {
        let lock = || {
            fs::create_dir_all(&self.root)?;
            lock::wait(File::open(&self.root)?, file::PATIENCE)
        };
        lock().map_err(|source| FileError::new("lock", &self.root, source))
    }
}

/// Returns the id of the kernel's boot, for a record.
///
/// # Errors
/// It cannot be read.
pub fn boot_id() -> Result<String, FileError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(|source| FileError::new("read", path, source))?;
    Ok(id.trim().to_owned())
}

/// Returns the line that changes a device's limits in `present`, such as `mlx5_0 hca_handle=5 hca_object=max`, to
/// `limits`. `None`: it has them.
fn changed(present: &str, limits: RdmaLimits) -> Option<String> {
    let mut words = present.split_whitespace();
    let device = words.next()?;
    let mut line = device.to_owned();
    for (name, now) in words.filter_map(|word| word.split_once('=')) {
        let limit = match name {
            "hca_handle" => limits.handles,
            "hca_object" => limits.objects,
            _ => continue,
        };
        let limit = limit.map_or_else(|| "max".to_owned(), |it| it.to_string());
        if limit != now {
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
        let of_one = "mlx5_1 hca_handle=max hca_object=3";
        node.write("a/rdma.max", NONE);
        let one = node.start("a", "one", 3);
        assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3");
        node.write("a/rdma.max", limited);
        node.start("a", "two", 5);
        assert_eq!(node.added("a", limited), of_one);
        assert_eq!(node.containers.pods().len(), 1);

        // a device without a limit is another one since
        node.write("a/rdma.max", NONE);
        node.end("a", "two");
        node.settle();
        // for the ended one and for the living one, as the file is not the kernel's
        assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3".repeat(2));
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
    fn a_pods_limit_is_raised_to_that_of_the_containers_that_live() {
        let low = "mlx5_0 hca_handle=max hca_object=4 \n";
        let raised = "mlx5_0 hca_object=1000";
        let node = Node::new();
        node.write("a/rdma.max", NONE);
        node.start("a", "init", 4);
        node.write("a/rdma.max", low);
        node.end("a", "init");
        // whether the hook comes first or the daemon
        node.start("a", "main", 1000);
        assert_eq!(node.added("a", low), raised);
        node.settle();
        assert_eq!(node.added("a", low), raised.repeat(2));
        assert!(!node.root.path().join("state/limited/init.json").exists());
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_ends_no_limit() {
        let node = Node::new();
        let low = "mlx5_0 hca_handle=max hca_object=3 \n";
        for pod in ["a", "b"] {
            node.write(&format!("{pod}/rdma.max"), low);
        }
        node.start("a", "one", 3);
        node.start("b", "two", 3);
        node.end("b", "two");
        let events = node.root.path().join("cgroup/pods/a/one/cgroup.events");
        fs::remove_file(&events).expect("removed");
        fs::create_dir(&events).expect("made");
        let error = node.containers.settle().expect_err("a directory");
        assert!(error.to_string().contains("one/cgroup.events"), "{error}");
        assert_eq!(node.added("a", low), "");
        assert_eq!(node.added("b", low), "mlx5_0 hca_object=max");

        fs::remove_dir(&events).expect("removed");
        node.settle();
        assert_eq!(node.added("a", low), "mlx5_0 hca_object=max");
        let limited = node.root.path().join("state/limited");
        fs::write(limited.join("three.new"), "{").expect("written");
        node.settle();
        fs::write(limited.join("three.json"), "{").expect("written");
        let error = node.containers.settle().expect_err("no record");
        assert!(error.to_string().contains("three.json"), "{error}");
    }

    #[test]
    fn a_process_that_holds_the_lock_stops_no_other_one() {
        let node = Node::new();
        node.write("a/rdma.max", NONE);
        let container = node.start("a", "one", 3);
        let _held = node.containers.lock().expect("free");
        let error = node.containers.settle().expect_err("held");
        assert!(error.to_string().contains("lock"), "{error}");
        assert_eq!(node.containers.pods(), [container]);
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
        let error = node.containers.lift_all().expect_err("not mounted");
        assert!(error.to_string().contains("mount it, or reboot"), "{error}");
    }
}
