// SPDX-License-Identifier: Apache-2.0
//! Limits of a container's use of RDMA devices by the kernel's rdma controller (`Documentation/admin-guide/cgroup-v2.rst`,
//! RDMA). The kernel counts the objects of a device for the cgroup of the process that makes them, in whatever network
//! namespace. A device that the kernel gets after the container's start has no limit.

use nix::libc;
use rdma_netns::RdmaCgroup;
use rdma_resources::{FileError, RdmaLimits};
use std::{
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Component, Path, PathBuf},
};

/// Reason why the limits are not set.
#[derive(Debug, thiserror::Error)]
pub(super) enum CgroupError {
    #[error(
        "{0:?} is no hierarchy of cgroup version 2 with the controller rdma (CONFIG_CGROUP_RDMA of the kernel)"
    )]
    NoController(PathBuf),
    #[error("it is in no cgroup of version 2 below the host's root, but in {0:?}")]
    NotBelowRoot(String),
    #[error("it is in the runtime's own cgroup, as the process of a virtual machine is (Kata)")]
    OfRuntime,
    #[error(transparent)]
    File(#[from] FileError),
}

/// Sets the limits for each RDMA device that the kernel has. The process's cgroup is that in the text of its
/// `/proc/PID/cgroup`, below the hierarchy's `root`; `of_hook` is that of the hook, which the runtime's processes are in. A
/// lower limit stays. Returns the cgroup's path below the root.
///
/// # Errors
/// The hierarchy has no rdma controller, the process is in no cgroup below its root or in the hook's, or a file cannot be
/// written.
pub(super) fn limit(
    root: &Path,
    of_process: &str,
    of_hook: &str,
    limits: RdmaLimits,
) -> Result<PathBuf, CgroupError> {
    if of_process == of_hook {
        return Err(CgroupError::OfRuntime);
    }
    let controllers = fs::read_to_string(root.join("cgroup.controllers"));
    if !controllers.is_ok_and(|text| RdmaCgroup::is_among(&text)) {
        return Err(CgroupError::NoController(root.to_owned()));
    }
    let mut lines = of_process.lines();
    let path = lines.find_map(|line| line.strip_prefix("0::/"));
    let names = path.map(|path| Path::new(path).components());
    let names = names.filter(|it| {
        let mut all = it.clone();
        it.clone().next().is_some() && all.all(|name| matches!(name, Component::Normal(_)))
    });
    let names = names.ok_or_else(|| CgroupError::NotBelowRoot(of_process.trim().to_owned()))?;
    let mut directory = root.to_owned();
    for name in names.clone() {
        enable(&directory)?;
        directory.push(name);
    }
    let path = directory.join("rdma.max");
    let present = read(&path)?;
    let write = |line: String| {
        // the kernel takes one device with each call
        let mut file = OpenOptions::new().append(true).open(&path)?;
        file.write_all(line.as_bytes())
    };
    for line in present.lines().filter_map(|it| lowered(it, limits)) {
        match write(line) {
            // the device has gone since
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            written => written.map_err(|source| FileError::new("write", &path, source))?,
        }
    }
    Ok(names.collect())
}

/// Gives the children of the cgroup the controller.
fn enable(directory: &Path) -> Result<(), FileError> {
    let path = directory.join("cgroup.subtree_control");
    if RdmaCgroup::is_among(&read(&path)?) {
        return Ok(());
    }
    let enabled = fs::write(&path, "+rdma");
    enabled.map_err(|source| FileError::new("write", &path, source))
}

fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(|source| FileError::new("read", path, source))
}

/// Returns the line that lowers a device's limits in `present`, such as `mlx5_0 hca_handle=5 hca_object=max`, to
/// `limits`. `None`: none is higher.
fn lowered(present: &str, limits: RdmaLimits) -> Option<String> {
    let mut words = present.split_whitespace();
    let device = words.next()?;
    let mut line = device.to_owned();
    for word in words {
        let Some((name, now)) = word.split_once('=') else {
            continue;
        };
        let limit = match name {
            "hca_handle" => limits.handles,
            "hca_object" => limits.objects,
            _ => None,
        };
        // max is no number
        let is_lower = |limit: &u32| !now.parse().is_ok_and(|now: u32| now <= *limit);
        if let Some(limit) = limit.filter(is_lower) {
            let _ = write!(line, " {name}={limit}");
        }
    }
    Some(line).filter(|line| line != device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const LIMITS: RdmaLimits = RdmaLimits {
        handles: Some(5),
        objects: Some(1000),
    };

    /// The hook's `/proc/self/cgroup`.
    const HOOK: &str = "0::/system.slice/containerd.service\n";

    /// A hierarchy with the cgroup `/pods/one`. Files keep what was written, as the kernel's do not.
    fn tree(subtree: &str, max: &str) -> TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("pods/one")).expect("made");
        fs::write(at("cgroup.controllers"), "cpu memory rdma\n").expect("written");
        fs::write(at("cgroup.subtree_control"), "cpu rdma\n").expect("written");
        fs::write(at("pods/cgroup.subtree_control"), subtree).expect("written");
        fs::write(at("pods/one/rdma.max"), max).expect("written");
        root
    }

    fn written(root: &TempDir, name: &str) -> String {
        fs::read_to_string(root.path().join(name)).expect("the file")
    }

    #[test]
    fn each_device_gets_the_limits_that_are_lower_than_its_own() {
        let devices = "mlx5_0 hca_handle=max hca_object=max\n\
                       mlx5_1 hca_handle=5 hca_object=1001\n\
                       mlx5_2 hca_handle=1 hca_object=1\n";
        let root = tree("cpu\n", devices);
        let limited = limit(
            root.path(),
            "1:name=systemd:/other\n0::/pods/one\n",
            HOOK,
            LIMITS,
        );
        assert_eq!(limited.expect("limited"), Path::new("pods/one"));
        let added = written(&root, "pods/one/rdma.max").replacen(devices, "", 1);
        assert_eq!(
            added,
            "mlx5_0 hca_handle=5 hca_object=1000mlx5_1 hca_object=1000"
        );
        // only where it is missing
        assert_eq!(written(&root, "pods/cgroup.subtree_control"), "+rdma");
        assert_eq!(written(&root, "cgroup.subtree_control"), "cpu rdma\n");

        let root = tree("rdma\n", "mlx5_0 hca_handle=max hca_object=max\n");
        let handles = RdmaLimits {
            objects: None,
            ..LIMITS
        };
        limit(root.path(), "0::/pods/one\n", HOOK, handles).expect("limited");
        assert!(written(&root, "pods/one/rdma.max").ends_with("max\nmlx5_0 hca_handle=5"));
    }

    #[test]
    fn a_host_without_the_controller_and_a_process_elsewhere_are_refused() {
        let root = tree("rdma\n", "");
        let refused = |of_process: &str| {
            let error = limit(root.path(), of_process, HOOK, LIMITS).expect_err("refused");
            error.to_string()
        };
        for of_process in ["0::/\n", "0::/../one\n", "11:rdma:/pods/one\n", ""] {
            let error = refused(of_process);
            assert!(
                error.starts_with("it is in no cgroup of version 2 below"),
                "{error}"
            );
        }
        assert!(refused(HOOK).contains("runtime's own cgroup"));
        let error = refused("0::/pods/gone\n");
        assert!(error.contains("gone/rdma.max"), "{error}");
        let controllers = root.path().join("cgroup.controllers");
        for text in ["cpu memory\n", ""] {
            fs::write(&controllers, text).expect("written");
            assert!(refused("0::/pods/one\n").contains("with the controller rdma"));
        }
        // version 1
        fs::remove_file(&controllers).expect("removed");
        assert!(refused("0::/pods/one\n").contains("is no hierarchy of cgroup version 2"));
    }
}
