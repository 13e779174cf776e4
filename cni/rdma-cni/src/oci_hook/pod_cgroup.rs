// SPDX-License-Identifier: Apache-2.0
//! The cgroups of a container and its pod, and the rdma controller in the pod's cgroup. `rdma_resources::limited`
//! writes the limits into `rdma.max`, records them, and lifts them.

use rdma_netns::RdmaCgroup;
use rdma_resources::FileError;
use std::{
    ffi::OsStr,
    fs,
    path::{Component, Path, PathBuf},
};

/// Reason why the hook cannot set the limits.
#[derive(Debug, thiserror::Error)]
pub(super) enum CgroupError {
    #[error(
        "{0:?} is no hierarchy of cgroup version 2 with the controller rdma (CONFIG_CGROUP_RDMA of the kernel)"
    )]
    NoController(PathBuf),
    #[error(
        "the process is in {0:?}, which is not below a cgroup (version 2) that kubelet made for a pod"
    )]
    NotOfPod(String),
    #[error("the process is in the runtime's own cgroup, as with a virtual machine (Kata)")]
    OfRuntime,
    #[error(transparent)]
    File(#[from] FileError),
}

/// Cgroups of a container and of its pod, as paths relative to the hierarchy's root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cgroups {
    /// The container's own cgroup.
    pub(super) container: PathBuf,
    /// The cgroup of the container's pod.
    pub(super) pod: PathBuf,
}

/// Returns the cgroups of the process whose `/proc/PID/cgroup` has the text `of_process`, below the hierarchy's `root`.
/// `of_hook` is the text of the hook's own file: the hook is in the runtime's cgroup.
///
/// # Errors
/// The hierarchy has no rdma controller, the process is in the hook's cgroup, or the process is not below a pod's
/// cgroup.
pub(super) fn find(root: &Path, of_process: &str, of_hook: &str) -> Result<Cgroups, CgroupError> {
    if of_process == of_hook {
        return Err(CgroupError::OfRuntime);
    }
    let controllers = fs::read_to_string(root.join("cgroup.controllers"));
    if !controllers.is_ok_and(|text| RdmaCgroup::is_among(&text)) {
        return Err(CgroupError::NoController(root.to_owned()));
    }
    let mut lines = of_process.lines();
    let path = lines
        .find_map(|line| line.strip_prefix("0::/"))
        .map(Path::new);
    let is_below = |it: &&Path| {
        it.components()
            .all(|name| matches!(name, Component::Normal(_)))
    };
    let path = path.filter(is_below);
    let mut above = path.into_iter().flat_map(Path::ancestors).skip(1);
    let pod = above.find(|it| it.file_name().is_some_and(is_of_pod));
    let (Some(container), Some(pod)) = (path, pod) else {
        return Err(CgroupError::NotOfPod(of_process.trim().to_owned()));
    };
    Ok(Cgroups {
        container: container.to_owned(),
        pod: pod.to_owned(),
    })
}

/// Returns true for a name that kubelet gives to a pod's cgroup: `podUID`, or with systemd
/// `kubepods-burstable-podUID.slice` (`GetPodContainerName()`, `pkg/kubelet/cm/pod_container_manager_linux.go`).
fn is_of_pod(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let name = name.strip_suffix(".slice").unwrap_or(&name);
    let of_systemd = || name.rsplit_once("-pod").map(|(_, uid)| uid);
    let uid = name.strip_prefix("pod").or_else(of_systemd);
    let is_of_uid = |it: u8| it.is_ascii_hexdigit() || b"-_".contains(&it);
    uid.is_some_and(|it| !it.is_empty() && it.bytes().all(is_of_uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Content of the hook's `/proc/self/cgroup`.
    const HOOK: &str = "0::/system.slice/containerd.service\n";

    /// Returns a cgroup hierarchy with the rdma controller.
    fn tree() -> TempDir {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("cgroup.controllers"), "cpu memory rdma\n").expect("written");
        root
    }

    #[test]
    fn the_pods_cgroup_is_found_by_the_name_that_each_driver_gives_it() {
        let root = tree();
        let of_process = "1:name=systemd:/other\n0::/kubepods/pod1a-0b/c1\n";
        let found = find(root.path(), of_process, HOOK).expect("found");
        let expected = |container: &str, pod: &str| Cgroups {
            container: container.into(),
            pod: pod.into(),
        };
        assert_eq!(found, expected("kubepods/pod1a-0b/c1", "kubepods/pod1a-0b"));
        // crun makes another cgroup below systemd's scope
        let slice = "kubepods.slice/kubepods-pod1a_0b.slice";
        let scope = format!("{slice}/crio-c1.scope/container");
        let found = find(root.path(), &format!("0::/{scope}\n"), HOOK);
        assert_eq!(found.expect("found"), expected(&scope, slice));
    }

    #[test]
    fn a_host_without_the_controller_and_a_process_elsewhere_are_refused() {
        let root = tree();
        let refused = |of_process: &str| {
            let error = find(root.path(), of_process, HOOK).expect_err("refused");
            error.to_string()
        };
        for of_process in [
            "0::/\n",
            "0::/../pod1a-0b/c1\n",
            "0::/kubepods/pod1a-0b\n",
            "0::/k8s.io/c1\n",
            "0::/machine.slice/podman-1a.scope/c1\n",
            "0::/kubepods/pod/c1\n",
            "11:rdma:/kubepods/pod1a-0b/c1\n",
            "",
        ] {
            let error = refused(of_process);
            let rule = ", which is not below a cgroup (version 2) that kubelet made for a pod";
            let is_it = error.starts_with("the process is in ") && error.contains(rule);
            assert!(is_it, "{error}");
        }
        assert!(refused(HOOK).contains("runtime's own cgroup"));
        let controllers = root.path().join("cgroup.controllers");
        for text in ["cpu memory\n", ""] {
            fs::write(&controllers, text).expect("written");
            assert!(refused("0::/kubepods/pod1a-0b/c1\n").contains("with the controller rdma"));
        }
        // cgroup version 1 has no such file
        fs::remove_file(&controllers).expect("removed");
        assert!(
            refused("0::/kubepods/pod1a-0b/c1\n").contains("is no hierarchy of cgroup version 2")
        );
    }
}
