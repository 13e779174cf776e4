// SPDX-License-Identifier: Apache-2.0
//! All files below some directories, comparable byte for byte.

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::Mode,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// All files below some directories: path, kind, mode, owner, content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files(BTreeMap<PathBuf, (u32, u32, u32, Vec<u8>)>);

impl Files {
    /// Reads all files. An absent directory has no files.
    #[track_caller]
    pub fn below(directories: &[&str]) -> Self {
        let mut found = BTreeMap::new();
        for directory in directories {
            walk(Path::new(directory), &mut found);
        }
        Self(found)
    }

    /// Returns the files with the content of each file called `name` replaced by the result of `change`.
    #[must_use]
    pub fn with(mut self, name: &str, change: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        for (path, (.., content)) in &mut self.0 {
            if path.ends_with(name) {
                *content = change(content);
            }
        }
        self
    }

    /// Returns all paths in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.keys().cloned().collect()
    }

    /// Asserts that the files are the same as `before`. Only the paths in `left`, paths below them, and their parent
    /// directories may have been added.
    #[track_caller]
    pub fn assert_as(&self, before: &Self, left: &[&str]) {
        let paths = self.0.keys().chain(before.0.keys());
        let is_left = |path: &Path| {
            let mut left = left.iter();
            left.any(|it| path.starts_with(it) || Path::new(it).starts_with(path))
        };
        let mut differing: Vec<_> = paths
            .filter(|path| self.0.get(*path) != before.0.get(*path))
            .filter(|path| before.0.contains_key(*path) || !is_left(path))
            .collect();
        differing.dedup();
        assert!(differing.is_empty(), "not as before: {differing:?}");
    }

    /// Returns the differences from `before`: each path with its change. Paths for which `is_lasting` is true may have
    /// appeared or changed.
    pub fn differences(&self, before: &Self, is_lasting: &dyn Fn(&Path) -> bool) -> Vec<String> {
        let paths: BTreeSet<&PathBuf> = self.0.keys().chain(before.0.keys()).collect();
        let differs = |path: &&&PathBuf| {
            self.0.get(**path) != before.0.get(**path)
                && (before.0.contains_key(**path) && !self.0.contains_key(**path)
                    || !is_lasting(path))
        };
        let lines = paths.iter().filter(differs).map(|path| {
            let what = match (before.0.get(*path), self.0.get(*path)) {
                (None, _) => "is there",
                (_, None) => "is gone",
                _ => "differs",
            };
            format!("{} {what}", path.display())
        });
        lines.collect()
    }
}

fn walk(path: &Path, found: &mut BTreeMap<PathBuf, (u32, u32, u32, Vec<u8>)>) {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return;
    };
    let content = match metadata.file_type() {
        it if it.is_file() => fs::read(path).expect("a file"),
        it if it.is_symlink() => {
            let target = fs::read_link(path).expect("a link");
            target.into_os_string().into_encoded_bytes()
        }
        _ => vec![],
    };
    let mode = metadata.permissions().mode();
    let owner = (metadata.uid(), metadata.gid());
    found.insert(path.to_owned(), (mode, owner.0, owner.1, content));
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            walk(&entry.expect("an entry").path(), found);
        }
    }
}

/// Returns the first 4096 bytes of a file of procfs or sysfs as text. The function makes only three system calls,
/// because a snapshot reads thousands of files.
pub(crate) fn read_short(directory: &File, name: &str) -> io::Result<String> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, Mode::empty())?);
    let mut bytes = [0; 4096];
    let length = file.read(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}
