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
    /// Cgroups can have it.
    #[default]
    Usable,
    /// The node has cgroup version 1, or nothing is mounted.
    NoVersion2,
    /// The kernel does not have it in cgroup version 2.
    NoController,
}

impl RdmaCgroup {
    /// Returns the state on the node with sysfs and procfs mounted there.
    pub fn observe(sysfs: &Path, procfs: &Path) -> Self {
        let root = sysfs.join("fs/cgroup");
        let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) else {
            return Self::NoVersion2;
        };
        if Self::is_among(&controllers) {
            return Self::Usable;
        }
        // only the root has no type; in a cgroup namespace a container's own cgroup takes the root's place
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

    /// Returns what is missing for limits, and the remedy. `None`: nothing is.
    pub fn lack(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Usable => None,
            Self::NoVersion2 => Some((
                "this node has no cgroup version 2 at /sys/fs/cgroup",
                "boot it with systemd.unified_cgroup_hierarchy=1",
            )),
            Self::NoController => Some((
                "the kernel has no controller rdma in cgroup version 2",
                "boot a kernel with CONFIG_CGROUP_RDMA, without cgroup_disable=rdma, and mount no cgroup version 1 of \
                 rdma",
            )),
        }
    }
}

/// Returns true if a line of `/proc/cgroups` (name, hierarchy, number of cgroups, enabled) describes the rdma
/// controller, and no cgroup v1 hierarchy uses it (`proc_cgroupstats_show()`, `kernel/cgroup/cgroup-v1.c`).
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
