// SPDX-License-Identifier: Apache-2.0
//! Programs in the runtime's plugin directories, as this process sees them.

use conflist::Programs;
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Returns the programs in `dirs`. In a container, `dirs` are mounts of the node's directories. A symbolic link without
/// a visible target may then lead outside the container, and therefore counts as a program.
///
/// `others` are further directories that a container mounts. If one of `others` is a mount point, this process runs in
/// a container, and a missing directory of `dirs` is an error, because it is not mounted.
pub fn read(dirs: Vec<PathBuf>, others: &[&Path]) -> Programs {
    let read = |dir: &PathBuf| match names(dir) {
        Ok(names) => Ok(names),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{dir:?}: {error}")),
        Err(_) if others.iter().any(|it| is_mounted(it)) => Err(format!("{dir:?} is not mounted")),
        Err(_) => Ok(BTreeSet::new()),
    };
    let names: Result<Vec<_>, _> = dirs.iter().map(read).collect();
    Programs {
        names: names.map(|names| names.into_iter().flatten().collect()),
        dirs,
    }
}

fn names(dir: &Path) -> io::Result<BTreeSet<String>> {
    let is_container = is_mounted(dir);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_program = match fs::metadata(entry.path()) {
            Ok(found) => found.is_file() && found.permissions().mode() & 0o111 != 0,
            Err(_) => is_container && entry.file_type()?.is_symlink(),
        };
        if is_program {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// Returns true if `dir` is a mount point. This process then runs in a container, where it sees only the mounted
/// directories of the node.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or(dir.to_owned());
    let dir = dir.to_string_lossy().replace(' ', "\\040");
    // proc_pid_mountinfo(5): the mount point is the fifth field
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| point == dir)
}
