// SPDX-License-Identifier: Apache-2.0
//! The runtime's directories of plugins, as they are seen from here.

use conflist::Programs;
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// What is in `dirs` now. In a container the directories are the node's, mounted, and a symbolic link in one
/// may lead to where the container sees nothing: it counts as a program. `others` are directories that a
/// container has mounted too: if one is, and one of `dirs` is not there, that was not mounted.
pub fn look(dirs: Vec<PathBuf>, others: &[&Path]) -> Programs {
    let look = |dir: &PathBuf| match names(dir) {
        Ok(names) => Ok(names),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{dir:?}: {error}")),
        Err(_) if others.iter().any(|it| is_mounted(it)) => Err(format!("{dir:?} is not mounted")),
        Err(_) => Ok(BTreeSet::new()),
    };
    let names: Result<Vec<_>, _> = dirs.iter().map(look).collect();
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

/// Whether something is mounted just there: then this is a container, which has of the node what it
/// was given.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or(dir.to_owned());
    let dir = dir.to_string_lossy().replace(' ', "\\040");
    // proc_pid_mountinfo(5): the mount point is the fifth field
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| point == dir)
}
