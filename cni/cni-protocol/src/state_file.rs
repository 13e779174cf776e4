// SPDX-License-Identifier: Apache-2.0
//! Opens files of the state directories safely. A user may have put another kind of object at a file's path: a link, a
//! pipe without a writer, a device, a file of a gigabyte. The functions then do not wait, and do not read without a
//! limit. Only [`read_linked`] follows a link.

use fnv::FnvHasher;
use nix::libc::{ELOOP, ENXIO, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, makedev};
use nix::sys::stat::{Mode, umask};
use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    hash::Hasher,
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// An error while reading, writing, locking or removing a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path:?}: {source}")]
pub struct FileError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// Returns an error: the action `verb` at `path` failed with the system's error `source`.
    pub fn new(verb: &'static str, path: &Path, source: io::Error) -> Self {
        failed(verb, path)(source)
    }

    /// Returns the kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Returns true if another process had a lock until the time limit. A later try may succeed.
    pub fn is_held(&self) -> bool {
        self.kind() == io::ErrorKind::TimedOut
    }

    /// Returns true if the error means that no file can be created: the disk or the quota is full, the file system is
    /// read-only, or a part of the path is no directory.
    pub fn lacks_room(&self) -> bool {
        matches!(
            self.kind(),
            io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::NotADirectory
        )
    }
}

/// Returns the names in `directory`. Returns an empty set if the directory does not exist.
///
/// # Errors
/// The directory cannot be read.
pub fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        entries => entries?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect(),
    }
}

/// Returns a function that converts a system error into the error of the action `verb` at `path`.
pub fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { verb, path, source }
}

/// Size limit for a file, bytes. All files of this project are smaller.
pub const LARGEST: u64 = 16 << 20;

/// Maximum length in bytes of a name from [`file_name`]: `NAME_MAX` (255, `include/uapi/linux/limits.h`) minus suffixes
/// that callers append, such as `.json.new`.
pub const LONGEST_NAME: usize = 240;

/// Flags for opening a file without waiting for another process, and without getting a controlling terminal.
const AT_ONCE: i32 = O_NONBLOCK | O_NOCTTY;

/// Sets a umask, so that the modes in this code apply whatever umask the process has inherited. Directories get 0755,
/// and files get the given mode without write permission for group and others. Programs that this process starts
/// inherit the umask.
pub fn set_umask() {
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
}

/// Returns `name`, which another program may have chosen, as a name for a file or directory of at most [`LONGEST_NAME`]
/// bytes ([`shortened`]).
pub fn file_name(name: &str) -> Cow<'_, str> {
    shortened(name, LONGEST_NAME)
}

/// Returns `name` in at most `longest` bytes. Cuts a longer name, and appends `~` and the FNV hash of the whole name in
/// 16 hexadecimal digits. Every version of every program computes the same hash.
pub fn shortened(name: &str, longest: usize) -> Cow<'_, str> {
    if name.len() <= longest {
        return Cow::Borrowed(name);
    }
    let mut hasher = FnvHasher::default();
    hasher.write(name.as_bytes());
    let number = format!("~{:016x}", hasher.finish());
    let kept = longest.saturating_sub(number.len());
    let front = &name[..name.floor_char_boundary(kept)];
    Cow::Owned(format!("{front}{number}"))
}

/// Returns the content of the file at `path`.
///
/// # Errors
/// `InvalidData`: `path` is a link, is no regular file, or has more than [`LARGEST`] bytes. Other kinds: the system
/// call fails.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    whole(open(path)?)
}

/// Returns the content like [`read`], but for a file of another program, so `path` may be a link. A link to `/dev/null`
/// reads as empty: udev and systemd mask files by such a link (udev(7)).
///
/// # Errors
/// The errors of [`read`], except for links.
pub fn read_linked(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(AT_ONCE).open(path);
    if let Ok(file) = &opened
        && is_null(file)?
    {
        return Ok(vec![]);
    }
    whole(regular(opened)?)
}

/// Returns true if `file` is `/dev/null` (`Documentation/admin-guide/devices.txt`).
fn is_null(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    Ok(found.file_type().is_char_device() && found.rdev() == makedev(1, 3))
}

/// Opens the file at `path` for reading.
///
/// # Errors
/// `InvalidData`: `path` is a link or no regular file. Other kinds: the system call fails.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    regular(
        options
            .read(true)
            .custom_flags(AT_ONCE | O_NOFOLLOW)
            .open(path),
    )
}

/// Opens the file at `path` for writing, without truncating it. Creates a missing file with `mode`.
///
/// # Errors
/// The errors of [`open`].
pub fn make(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(mode);
    regular(options.custom_flags(AT_ONCE | O_NOFOLLOW).open(path))
}

/// Opens a temporary file for writing. Readers open the file only after it was renamed. First removes an object at
/// `path` that is no regular file. Also removes a file with several hard links, because a write would change the file
/// under its other names too.
///
/// # Errors
/// `path` is a directory, or the system call fails.
pub fn renew(path: &Path, mode: u32) -> io::Result<File> {
    let alone = |file: File| match file.metadata()?.nlink() > 1 {
        true => Err(odd("it has several hard links, and cannot be removed")),
        false => Ok(file),
    };
    match make(path, mode).and_then(alone) {
        Err(error) if is_odd(&error) => {
            fs::remove_file(path).map_err(|_| error)?;
            // the call fails if another process has put a file at the path meanwhile: this process must not write to
            // that file
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(mode);
            options.custom_flags(O_NOFOLLOW).open(path)
        }
        made => made,
    }
}

/// Replaces the file at `path` by `text`. Readers, and the machine after a power loss, find either the whole old text
/// or the whole new text. With `at_once`, the new text is on disk when this function returns.
///
/// # Errors
/// A system call fails, or the path of the temporary file is a directory. If only the sync of the directory failed,
/// `path` already has the new text. After any other failure the old file is unchanged.
pub fn replace(path: &Path, text: &[u8], at_once: bool) -> io::Result<()> {
    let temporary = path.with_added_extension("new");
    let write = || {
        let file = renew(&temporary, 0o600)?;
        finish(&file, &temporary, text, path)?;
        match path.parent() {
            Some(directory) if at_once => File::open(directory)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Writes `text` to `file`, which was just opened for writing at `unfinished`. Then renames the file to `path`, and so
/// replaces an existing file. Does not sync the directory, so the old file can reappear after a power loss.
///
/// # Errors
/// A system call fails. The file at `path` is unchanged, and the file at `unfinished` may remain.
pub fn finish(mut file: &File, unfinished: &Path, text: &[u8], path: &Path) -> io::Result<()> {
    // removes content that a killed process has written
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    file.write_all(text)?;
    // without this sync, the file could be empty after a power loss
    file.sync_all()?;
    fs::rename(unfinished, path)
}

/// Returns true if `error`, which a function of this module returned, means that the path is no regular file, that the
/// file is too large, or that it has several hard links.
pub fn is_odd(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn regular(opened: io::Result<File>) -> io::Result<File> {
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(ELOOP) => odd("it is a symbolic link, which is not followed"),
        // a pipe without a reader, a socket, or a device without a driver
        Some(ENXIO) => odd("it is no regular file"),
        _ if error.kind() == io::ErrorKind::IsADirectory => odd("it is a directory"),
        _ => error,
    })?;
    let found = file.metadata()?;
    match (found.is_file(), found.is_dir()) {
        (true, _) => Ok(file),
        (_, true) => Err(odd("it is a directory")),
        _ => Err(odd("it is no regular file")),
    }
}

fn whole(file: File) -> io::Result<Vec<u8>> {
    let too_large = |size: u64| {
        let words = format!("it has {size} bytes, and a state file has at most {LARGEST}");
        io::Error::new(io::ErrorKind::InvalidData, words)
    };
    let size = file.metadata()?.len();
    if size > LARGEST {
        return Err(too_large(size));
    }
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    // the file may grow during the read, so its length is no limit
    let read = file.take(LARGEST + 1).read_to_end(&mut content)? as u64;
    match read > LARGEST {
        true => Err(too_large(read)),
        false => Ok(content),
    }
}

fn odd(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::mkfifo;
    use std::{
        os::unix::{fs::symlink, net::UnixListener},
        path::PathBuf,
    };

    /// Returns paths of links, special files, a directory and a file that is too large. Each has the error of reading,
    /// and the error of writing (empty: none).
    fn places(directory: &Path) -> Vec<(PathBuf, &'static str, &'static str)> {
        let at = |name: &str| directory.join(name);
        let link = "it is a symbolic link, which is not followed";
        let no_file = "it is no regular file";
        fs::write(at("file"), "text").expect("a file");
        symlink(at("file"), at("link")).expect("a link");
        symlink(at("nowhere"), at("dangling")).expect("a link");
        symlink(at("circle"), at("circle")).expect("a link");
        mkfifo(&at("pipe"), Mode::S_IRWXU).expect("a pipe");
        let _socket = UnixListener::bind(at("socket")).expect("a socket");
        fs::create_dir(at("directory")).expect("a directory");
        let huge = File::create(at("huge")).expect("a file");
        huge.set_len(1 << 30).expect("a hole");
        vec![
            (at("link"), link, link),
            (at("dangling"), link, link),
            (at("circle"), link, link),
            (at("pipe"), no_file, no_file),
            (at("socket"), no_file, no_file),
            (PathBuf::from("/dev/null"), no_file, no_file),
            (at("directory"), "it is a directory", "it is a directory"),
            (
                at("huge"),
                "it has 1073741824 bytes, and a state file has at most 16777216",
                "",
            ),
        ]
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_and_stays_apart_from_others() {
        let longest = "é".repeat(LONGEST_NAME / 2);
        assert_eq!(file_name(&longest), longest);
        let names = ["a", "b", "é"].map(|last| format!("{longest}{last}"));
        let cut = names.each_ref().map(|name| file_name(name).into_owned());
        assert!(cut.iter().all(|it| it.len() <= LONGEST_NAME), "{cut:?}");
        let distinct: std::collections::BTreeSet<_> = cut.iter().collect();
        assert_eq!(distinct.len(), names.len());
        // every version of the programs must compute this name, to find the file
        let name = "x".repeat(LONGEST_NAME + 1);
        let expected = format!("{}~c3a5e7ac9f2b32c7", "x".repeat(LONGEST_NAME - 17));
        assert_eq!(file_name(&name), expected);
    }

    #[test]
    fn an_object_in_a_files_place_is_reported_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, reading, writing) in places(directory.path()) {
            let error = read(&path).expect_err("not read");
            assert_eq!(
                (error.to_string().as_str(), is_odd(&error)),
                (reading, true),
                "{path:?}"
            );
            match make(&path, 0o600) {
                Err(error) => assert_eq!(
                    (error.to_string().as_str(), is_odd(&error)),
                    (writing, true),
                    "{path:?}"
                ),
                Ok(_) => assert_eq!(writing, "", "{path:?}"),
            }
        }
        assert!(!directory.path().join("nowhere").exists());
        let file = directory.path().join("file");
        assert_eq!(read(&file).expect("a file"), b"text");
        assert_eq!(
            read_linked(&directory.path().join("link")).expect("a file"),
            b"text"
        );
        let masked = directory.path().join("masked");
        symlink("/dev/null", &masked).expect("a link");
        assert_eq!(read_linked(&masked).expect("nothing in it"), b"");
        assert!(read_linked(&directory.path().join("pipe")).is_err_and(|it| is_odd(&it)));
        let nothing = read(&directory.path().join("nothing")).expect_err("not there");
        assert_eq!(nothing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_object_at_the_temporary_path_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, _, writing) in places(directory.path()) {
            let is_kept = writing == "it is a directory" || path.starts_with("/dev");
            if !is_kept {
                let file = renew(&path, 0o600).expect("a file");
                assert!(file.metadata().expect("it").is_file(), "{path:?}");
            }
        }
        renew(&directory.path().join("directory"), 0o600).expect_err("it may not be empty");
        let text = fs::read(directory.path().join("file")).expect("what a link led to");
        assert_eq!(text, b"text");
    }

    /// The file has two hard links: a user who may write to the directory can make a hard link of another file.
    #[test]
    fn a_hard_link_is_not_written_to() {
        let directory = tempfile::tempdir().expect("a directory");
        let [other, path] = ["other", "state"].map(|it| directory.path().join(it));
        fs::write(&other, "text").expect("a file");
        let unfinished = path.with_added_extension("new");
        fs::hard_link(&other, &unfinished).expect("a link");
        replace(&path, b"record", true).expect("written");
        assert_eq!(fs::read(&other).expect("a file"), b"text");
        assert_eq!(fs::read(&path).expect("a file"), b"record");
        assert!(!unfinished.exists());
        // the other file also stays unchanged if `path` itself is a hard link of it
        fs::remove_file(&path).expect("removed");
        fs::hard_link(&other, &path).expect("a link");
        replace(&path, b"record", true).expect("written");
        assert_eq!(fs::read(&other).expect("a file"), b"text");
        assert_eq!(fs::metadata(&other).expect("a file").nlink(), 1);
    }

    /// `/proc/self/status` has the size 0.
    #[test]
    fn a_file_without_a_size_is_read() {
        let read = read(Path::new("/proc/self/status")).expect("a file");
        assert!(read.starts_with(b"Name:"));
    }
}
