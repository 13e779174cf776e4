// SPDX-License-Identifier: Apache-2.0
//! Files of the rdma controller in the hierarchy of cgroups.

use crate::{FileError, RdmaLimits};
use rdma_netns::RdmaCgroup;
use std::{fmt::Write as _, fs, path::Path};

/// File with the controllers that are enabled in a cgroup's children.
pub(super) const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

/// Returns all cgroups above `cgroup`. The root is the last one.
pub(super) fn parents(cgroup: &Path) -> impl Iterator<Item = &Path> {
    cgroup.ancestors().skip(1)
}

/// Enables the controller in `cgroup`, which is below the hierarchy's `root`: writes `cgroup.subtree_control` of each
/// cgroup above, from the root down.
pub(super) fn enable(root: &Path, cgroup: &Path) -> Result<(), FileError> {
    let mut above: Vec<&Path> = parents(cgroup).collect();
    above.reverse();
    for parent in above {
        let path = root.join(parent).join(SUBTREE_CONTROL);
        let present = fs::read_to_string(&path);
        let present = present.map_err(|source| FileError::new("read", &path, source))?;
        if !RdmaCgroup::is_among(&present) {
            let enabled = fs::write(&path, "+rdma");
            enabled.map_err(|source| FileError::new("write", &path, source))?;
        }
    }
    Ok(())
}

/// Returns the line to write to `rdma.max` so that a device gets `limits`. `present` is the device's line now, such as
/// `mlx5_0 hca_handle=5 hca_object=max`. Returns `None` if the device has these limits already.
pub(super) fn changed(present: &str, limits: RdmaLimits) -> Option<String> {
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

    #[test]
    fn only_the_cgroups_above_that_lack_the_controller_get_it() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name).join(SUBTREE_CONTROL);
        fs::create_dir_all(root.path().join("kubepods/pod1a")).expect("made");
        fs::write(at(""), "cpu rdma\n").expect("written");
        fs::write(at("kubepods"), "cpu\n").expect("written");
        enable(root.path(), Path::new("kubepods/pod1a")).expect("enabled");
        let written = ["", "kubepods"].map(|it| fs::read_to_string(at(it)).expect("a file"));
        assert_eq!(written, ["cpu rdma\n", "+rdma"]);
        assert!(!at("kubepods/pod1a").exists());

        let gone = enable(root.path(), Path::new("gone/pod2c")).expect_err("gone");
        assert!(
            gone.to_string().contains("gone/cgroup.subtree_control"),
            "{gone}"
        );
    }
}
