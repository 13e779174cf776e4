// SPDX-License-Identifier: Apache-2.0
//! Foreign objects at the path of a file of the project.

use nix::{sys::stat::Mode, unistd::mkfifo};
use std::{
    fs::{self, File},
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
};

/// Kind of foreign object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OddFile {
    /// A link to a file elsewhere. This file has the content [`OddFile::ELSEWHERE`].
    Link,
    /// A link to a file that does not exist.
    DanglingLink,
    /// A pipe without reader and writer.
    Pipe,
    /// A socket without a server.
    Socket,
    /// A directory with an entry.
    Directory,
    /// A file of 1 GiB that is only a hole.
    Huge,
}

impl OddFile {
    /// All kinds of odd files.
    pub const ALL: [Self; 6] = [
        Self::Link,
        Self::DanglingLink,
        Self::Pipe,
        Self::Socket,
        Self::Directory,
        Self::Huge,
    ];

    /// Content of a link's target.
    pub const ELSEWHERE: &str = "somebody else's";

    /// Puts the odd file at `path`, and replaces an existing file. The target of a link is below `elsewhere`.
    ///
    /// # Panics
    /// The odd file cannot be made.
    #[track_caller]
    pub fn put(self, path: &Path, elsewhere: &Path) {
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).expect("removed");
        } else if fs::symlink_metadata(path).is_ok() {
            fs::remove_file(path).expect("removed");
        }
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        match self {
            Self::Link => {
                fs::write(elsewhere.join("file"), Self::ELSEWHERE).expect("a file");
                symlink(elsewhere.join("file"), path).expect("a link");
            }
            Self::DanglingLink => symlink(elsewhere.join("nothing"), path).expect("a link"),
            Self::Pipe => mkfifo(path, Mode::S_IRWXU).expect("a pipe"),
            Self::Socket => drop(UnixListener::bind(path).expect("a socket")),
            Self::Directory => fs::create_dir_all(path.join("in/it")).expect("a directory"),
            Self::Huge => File::create(path)
                .and_then(|it| it.set_len(1 << 30))
                .expect("a hole"),
        }
    }

    /// Asserts that nothing was written through a link to its target.
    ///
    /// # Panics
    /// Something was written to a target.
    #[track_caller]
    pub fn assert_left_alone(elsewhere: &Path) {
        assert!(!elsewhere.join("nothing").exists(), "made through a link");
        if let Ok(text) = fs::read_to_string(elsewhere.join("file")) {
            assert_eq!(text, Self::ELSEWHERE, "written through a link");
        }
    }
}
