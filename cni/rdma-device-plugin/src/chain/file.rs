// SPDX-License-Identifier: Apache-2.0
//! Replaces a file atomically: readers see either the old text or the new text. The daemon makes the new file in the
//! same directory, under a name that no runtime reads, and then renames it.
//!
//! containerd reads its configuration again when a file in the directory is written, removed or renamed *away from a
//! name*. It does not react when a file appears (`cni_conf_syncer.go`). The rename within the directory therefore makes
//! containerd read its configuration again.

use conflist::{Directory, Picked};
use rdma_resources::FileError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    ffi::CString,
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// Time after the replacement of a file in which a program that opened the old file may still write to it.
const LATE: Duration = Duration::from_secs(3);

/// Returns the error for a directory whose files change all the time.
pub(crate) fn busy(dir: &Path) -> FileError {
    let problem = "other programs keep changing files in this directory; try again";
    FileError::new("change", dir, io::Error::other(problem))
}

/// A list that this process replaced: the old file, and the texts of the old and the new file. A program that opened
/// the old file before its replacement may still write to it. A later turn copies such late text to the new file.
#[derive(Debug)]
pub struct Held {
    name: String,
    file: File,
    text: String,
    new: String,
    since: Instant,
}

impl Held {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text that a program wrote to the replaced file after the replacement. Returns `None` if no program
    /// has written a complete text, or if the present file does not have the text of the new file.
    pub(crate) fn written_since(&mut self, directory: &Directory) -> Option<String> {
        let size = self.file.metadata().ok()?.len();
        let mut text = vec![0; usize::try_from(size).ok()?];
        self.file.read_exact_at(&mut text, 0).ok()?;
        let text = String::from_utf8(text).ok()?;
        let present = directory.file(&self.name)?.text.as_deref().ok()?;
        let is_whole = Picked::read(&self.name, &text).is_ok();
        (text != self.text && is_whole && present == self.new).then_some(text)
    }

    /// Returns true when the time for late writes ([`LATE`]) is over.
    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() > LATE
    }
}

/// Hash and modification time of a list before `rdma-cni` was added. A change that gives the list this text again also
/// restores the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// SHA-256 of the file's text, hexadecimal.
    pub sha256: String,
    /// Modification time: seconds and nanoseconds since 1970.
    pub modified: (u64, u32),
}

impl Stamp {
    /// Returns the modification time.
    pub fn modified(&self) -> SystemTime {
        let (seconds, nanoseconds) = self.modified;
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
    }
}

/// Returns the SHA-256 of `content`, hexadecimal.
pub fn hash(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the stamp of the file `path`, whose content is `text`. Returns `None` if the file is missing, or its
/// modification time is before 1970.
///
/// # Errors
/// The file's modification time cannot be read.
pub(crate) fn stamp(path: &Path, text: &str) -> Result<Option<Stamp>, FileError> {
    let modified = match fs::metadata(path).and_then(|it| it.modified()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        modified => modified.map_err(|error| FileError::new("read", path, error))?,
    };
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).ok();
    Ok(since.map(|since| Stamp {
        sha256: hash(text.as_bytes()),
        modified: (since.as_secs(), since.subsec_nanos()),
    }))
}

/// Replaces `file` of `dir` by a file with the text `new` and with the mode and owner of `like`. `modified` is the new
/// modification time. Returns the replaced file if `file` is `like`.
///
/// Returns `None` and changes nothing if the text of `like` is not `expected`, or if another program has removed
/// `like`.
///
/// # Errors
/// `file` cannot be written, or `like` is a symbolic link or cannot be read.
pub(crate) fn replace(
    dir: &Path,
    file: &str,
    like: &str,
    new: &str,
    expected: &str,
    modified: Option<SystemTime>,
) -> Result<Option<Option<Held>>, FileError> {
    let path = dir.join(file);
    let temporary = temporary(&path);
    let replaced = || -> io::Result<Option<Option<Held>>> {
        let found = fs::symlink_metadata(dir.join(like))?;
        if found.is_symlink() {
            let problem = "the file is a symbolic link; replace the link with a regular file";
            return Err(io::Error::other(problem));
        }
        let mut made = make(&temporary, found.mode() & 0o7777)?;
        made.write_all(new.as_bytes())?;
        if let Some(modified) = modified {
            made.set_modified(modified)?;
        }
        give(&made, &found)?;
        // sync before the rename: after a power loss the file has the old or the new text, and is not empty
        made.sync_data()?;
        if fs::read(dir.join(like))? != expected.as_bytes() {
            return Ok(None);
        }
        if file != like {
            fs::rename(&temporary, &path)?;
            return Ok(Some(None));
        }
        let Some(old) = exchange(&temporary, &made, &path, expected.as_bytes())? else {
            return Ok(None);
        };
        Ok(Some(Some(Held {
            name: file.to_owned(),
            file: old,
            text: expected.to_owned(),
            new: new.to_owned(),
            since: Instant::now(),
        })))
    };
    let replaced = match replaced() {
        // another program has removed the file
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other,
    };
    if !matches!(replaced, Ok(Some(_))) {
        let _ = fs::remove_file(&temporary);
    }
    replaced.map_err(|error| FileError::new("write", &path, error))
}

/// File in the directory of CNI lists that exists while this project changes a file in a network's own directory.
/// Runtimes watch only the directory of lists, and do not parse a file with this name. When the file is removed,
/// containerd reads the lists again (`syncLoop()`, `cni_conf_syncer.go`).
const ANNOUNCEMENT: &str = ".rdma-cni-changes";

/// Makes the file [`ANNOUNCEMENT`] in `dir`, before a change in a network's own directory below `dir`.
///
/// # Errors
/// The file cannot be made.
pub(crate) fn announce(dir: &Path) -> Result<(), FileError> {
    let path = dir.join(ANNOUNCEMENT);
    let made = make(&path, 0o600).map(drop);
    made.map_err(|error| FileError::new("write", &path, error))
}

/// Removes the file [`ANNOUNCEMENT`] of this run, or of an earlier run that was killed.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn announced(dir: &Path) -> Result<(), FileError> {
    let path = dir.join(ANNOUNCEMENT);
    // return early: on a read-only directory, removing a missing file would be an error
    match is_absent(&path) {
        true => Ok(()),
        false => remove(&path),
    }
}

/// Returns true if `path` does not exist. Returns false if `path` cannot be read at present, because it may exist.
pub(crate) fn is_absent(path: &Path) -> bool {
    path.symlink_metadata()
        .is_err_and(|error| means_absent(&error))
}

/// Returns true if `path` is a file. Also returns true if `path` cannot be read at present, because it may be a file.
pub(crate) fn may_be_there(path: &Path) -> bool {
    match path.symlink_metadata() {
        Ok(found) => found.is_file(),
        Err(error) => !means_absent(&error),
    }
}

/// Returns true if the error means that the path does not exist, or that one of its directories is a file.
fn means_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Writes a file in a network's own directory atomically, and makes this directory if necessary.
///
/// # Errors
/// The directory or the file cannot be made.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), FileError> {
    let temporary = temporary(path);
    let write = || {
        let directory = path.parent().unwrap_or(Path::new("/"));
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
            Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        }
        let mut made = make(&temporary, 0o644)?;
        made.write_all(text.as_bytes())?;
        // set the mode again, because the umask may have reduced it
        made.set_permissions(Permissions::from_mode(0o644))?;
        made.sync_data()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        FileError::new("write", path, error)
    })
}

/// Checks that the directory of `path` is readable or absent.
///
/// # Errors
/// The directory exists and cannot be read, or a file has its name.
pub(crate) fn can_have_directory(path: &Path) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match fs::read_dir(directory) {
        Ok(_) => Ok(()),
        Err(_) if directory.symlink_metadata().is_err() => Ok(()),
        Err(error) => Err(FileError::new("read", directory, error)),
    }
}

/// Returns the temporary name of the file that will replace `path`.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.rdma-cni-new"))
}

/// Removes a file if it exists.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if !means_absent(&error) => Err(FileError::new("remove", path, error)),
        _ => Ok(()),
    }
}

/// Writes the changes of `directory` to the disk (`fsync`).
///
/// # Errors
/// The directory cannot be opened or synced.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes and opens a file. First removes an existing file of that name, which may be a link, or the replaced list that
/// a killed run left.
///
/// # Errors
/// The file cannot be made.
pub(crate) fn make(temporary: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options.open(temporary)
}

/// Sets a file's mode and owner to the mode and owner of `like`. Sets the owner last, because this process may lack the
/// right to change the mode of another owner's file.
///
/// # Errors
/// The kernel refuses the change.
pub(crate) fn give(file: &File, like: &Metadata) -> io::Result<()> {
    file.set_permissions(like.permissions())?;
    fchown(file, Some(like.uid()), Some(like.gid()))?;
    // the kernel clears the set-user-ID and set-group-ID bits when the owner changes
    if like.mode() & 0o6000 != 0 {
        file.set_permissions(like.permissions())?;
    }
    Ok(())
}

/// Exchanges the file `new`, which is open as `made`, with `path`. Returns the replaced file. If the replaced file does
/// not have the content `expected`, undoes the exchange and returns `None`.
fn exchange(new: &Path, made: &File, path: &Path, expected: &[u8]) -> io::Result<Option<File>> {
    if !swap(new, path)? {
        // the file system cannot exchange files, so compare first and then rename
        let old = File::open(path)?;
        if content(&old)? != expected {
            return Ok(None);
        }
        fs::rename(new, path)?;
        return Ok(Some(old));
    }
    match File::open(new).and_then(|old| Ok((content(&old)?, old))) {
        Ok((text, old)) if text == expected => {
            fs::remove_file(new)?;
            return Ok(Some(old));
        }
        _ => {}
    }
    swap(new, path)?;
    let (back, made) = (fs::symlink_metadata(new)?, made.metadata()?);
    if (back.dev(), back.ino()) != (made.dev(), made.ino()) {
        // another program replaced `path` between the two exchanges: restore its file, because it is the newest
        swap(new, path)?;
    }
    Ok(None)
}

fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut content = vec![];
    let mut file = file;
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// Exchanges the names of two files. Returns false if the file system does not support this.
fn swap(one: &Path, other: &Path) -> io::Result<bool> {
    let flags = nix::libc::RENAME_EXCHANGE;
    let [from, to] = [one, other].map(|it| CString::new(it.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    let here = nix::libc::AT_FDCWD;
    // SAFETY: both pointers are to NUL-terminated texts that live until the call returns. musl has no wrapper for this
    // system call, so it is called by number.
    let done = unsafe {
        nix::libc::syscall(
            nix::libc::SYS_renameat2,
            here,
            from.as_ptr(),
            here,
            to.as_ptr(),
            flags,
        )
    };
    if done == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(nix::libc::EINVAL | nix::libc::ENOSYS) => Ok(false),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn exchange_restores_a_file_that_another_program_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, new) = (dir.path().join("list"), dir.path().join("new"));
        let replace = |expected: &[u8]| {
            let mut made = make(&new, 0o600).expect("made");
            made.write_all(b"ours").expect("written");
            exchange(&new, &made, &path, expected).expect("exchanged")
        };
        fs::write(&path, "theirs").expect("written");
        let inode = fs::metadata(&path).expect("it").ino();
        assert!(replace(b"before").is_none());
        assert_eq!(fs::read(&path).expect("it"), b"theirs");
        assert_eq!(fs::metadata(&path).expect("it").ino(), inode);
        assert_eq!(fs::read(&new).expect("it"), b"ours");
        assert!(replace(b"theirs").is_some());
        assert_eq!(fs::read(&path).expect("it"), b"ours");
        assert!(!new.exists());
    }

    #[test]
    fn make_does_not_write_through_an_existing_temporary_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, other) = (dir.path().join("new"), dir.path().join("other"));
        fs::write(&other, "another's").expect("written");
        for leads in [true, false] {
            match leads {
                true => symlink(&other, &path).expect("a link"),
                false => fs::hard_link(&other, &path).expect("a name"),
            }
            let mut made = make(&path, 0o600).expect("made");
            made.write_all(b"ours").expect("written");
            assert_eq!(fs::read(&other).expect("it"), b"another's");
            fs::remove_file(&path).expect("removed");
        }
    }
}
