// SPDX-License-Identifier: Apache-2.0
//! The kernel's rdma controller, which limits the use of RDMA devices by a cgroup
//! (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).

use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

const CONTROLLER: &str = "rdma";

/// State of the controller on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RdmaCgroup {
    /// The controller can be enabled for cgroups.
    #[default]
    Usable,
    /// The node uses cgroup version 1, or no cgroup file system is mounted.
    NoVersion2,
    /// The kernel does not offer the controller in cgroup version 2.
    NoController,
}

impl RdmaCgroup {
    /// Returns the controller's state on the node whose sysfs and procfs are mounted at these paths.
    pub fn observe(sysfs: &Path, procfs: &Path) -> Self {
        let root = sysfs.join("fs/cgroup");
        let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) else {
            return Self::NoVersion2;
        };
        if Self::is_among(&controllers) {
            return Self::Usable;
        }
        // only the root cgroup has no type; inside a cgroup namespace the mount's root is a container's own cgroup,
        // which has a type
        let is_root = !root.join("cgroup.type").exists();
        let all = fs::read_to_string(procfs.join("cgroups")).unwrap_or_default();
        match !is_root && all.lines().any(is_usable) {
            true => Self::Usable,
            false => Self::NoController,
        }
    }

    /// Returns true if the text of `cgroup.controllers` or `cgroup.subtree_control` names the controller.
    pub fn is_among(controllers: &str) -> bool {
        controllers.split_whitespace().any(|it| it == CONTROLLER)
    }

    /// Returns the reason why limits are impossible, and the remedy. Returns `None` if limits are possible.
    pub fn lack(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Usable => None,
            Self::NoVersion2 => Some((
                "this node has no cgroup version 2 at /sys/fs/cgroup",
                "boot the node with systemd.unified_cgroup_hierarchy=1",
            )),
            Self::NoController => Some((
                "the kernel has no controller rdma in cgroup version 2",
                "boot a kernel with CONFIG_CGROUP_RDMA, without cgroup_disable=rdma, and do not mount the controller \
                 in cgroup version 1",
            )),
        }
    }
}

/// Returns true if a line of `/proc/cgroups` describes the rdma controller, and the controller is enabled and in no
/// cgroup v1 hierarchy. The columns are name, hierarchy, number of cgroups, enabled (`proc_cgroupstats_show()`,
/// `kernel/cgroup/cgroup-v1.c`).
fn is_usable(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_it = words.next() == Some(CONTROLLER) && words.next() == Some("0");
    is_it && words.nth(1) == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_decides_and_in_a_container_the_kernels_list() {
        let root = tempfile::tempdir().expect("a directory");
        let observe = || RdmaCgroup::observe(&root.path().join("sys"), &root.path().join("proc"));
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(observe(), RdmaCgroup::NoVersion2);
        write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        assert_eq!(observe(), RdmaCgroup::NoController);
        let head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n";
        let list = |line: &str| write("proc/cgroups", &format!("{head}cpu\t0\t9\t1\n{line}\n"));
        list("rdma\t0\t9\t1");
        assert_eq!(observe(), RdmaCgroup::NoController, "the root has all");

        write("sys/fs/cgroup/cgroup.type", "domain\n");
        assert_eq!(observe(), RdmaCgroup::Usable);
        for line in ["", "rdma\t0\t9\t0", "rdma\t7\t9\t1"] {
            list(line);
            assert_eq!(observe(), RdmaCgroup::NoController, "{line}");
        }
        write("sys/fs/cgroup/cgroup.controllers", "cpu rdma\n");
        assert_eq!(observe(), RdmaCgroup::Usable);
    }
}
