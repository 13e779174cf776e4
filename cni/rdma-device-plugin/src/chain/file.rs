// SPDX-License-Identifier: Apache-2.0
//! A file's text, replaced as a whole and at once: whoever reads it sees the old one or the new
//! one.
//!
//! The new file is made in the same directory, under a name that no runtime looks for. That is
//! needed for more than the rename: containerd reads its configuration again when a file of the
//! directory is written or renamed *away from a name*, and not when one appears
//! (`cni_conf_syncer.go`); the rename within the directory is the event that it hears.

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

/// How long somebody who opened a file may take to write to it.
const LATE: Duration = Duration::from_secs(3);

/// The files of `dir` change all the time.
pub(crate) fn busy(dir: &Path) -> FileError {
    let problem = "its files are being written all the time; try again";
    FileError::new("change", dir, io::Error::other(problem))
}

/// What an error of the system at `path` becomes.
pub(crate) fn system(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::new(verb, &path, source)
}

/// A file that was replaced, and what was in it. Somebody who had opened it before writes to it
/// still, and believes that it counts.
#[derive(Debug)]
pub struct Held {
    name: String,
    file: File,
    text: String,
    new: String,
    since: Instant,
}

impl Held {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What was written to it since, if that is whole, and if what replaced it is still there.
    pub(crate) fn written_since(&mut self, directory: &Directory) -> Option<String> {
        let size = self.file.metadata().ok()?.len();
        let mut text = vec![0; usize::try_from(size).ok()?];
        self.file.read_exact_at(&mut text, 0).ok()?;
        let text = String::from_utf8(text).ok()?;
        let present = directory.file(&self.name)?.text.as_deref().ok()?;
        let is_whole = Picked::read(&self.name, &text).is_ok();
        (text != self.text && is_whole && present == self.new).then_some(text)
    }

    /// Whether nobody will write to it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() > LATE
    }
}

/// What a file is known by when it is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Of its text, hexadecimal.
    pub sha256: String,
    /// When it was changed last: seconds and nanoseconds since 1970.
    pub modified: (u64, u32),
}

impl Stamp {
    /// When it was changed last.
    pub fn modified(&self) -> SystemTime {
        let (seconds, nanoseconds) = self.modified;
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
    }
}

/// SHA-256, hexadecimal.
pub fn hash(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What `path` is known by, with `text` in it. None: it has gone, or is of a time that no record has.
///
/// # Errors
/// It cannot be looked at: without this its time could not be given back.
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

/// Gives `file` of `dir` the text `new`, and the mode and owner of `like`; `modified` is when it
/// is to have been changed last, if not now. None: there is something else than `expected` in
/// `like` by now, and nothing was changed; else what was replaced.
///
/// # Errors
/// The file cannot be written; it is a symbolic link.
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
            let problem = "it is a symbolic link; put the file itself there";
            return Err(io::Error::other(problem));
        }
        let mut made = make(&temporary, found.mode() & 0o7777)?;
        made.write_all(new.as_bytes())?;
        if let Some(modified) = modified {
            made.set_modified(modified)?;
        }
        give(&made, &found)?;
        // after a loss of power there is the old file or the new one, and no empty one
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
        // it went, or is half-written by now
        Err(error) if is_passing(&error) => Ok(None),
        other => other,
    };
    if !matches!(replaced, Ok(Some(_))) {
        let _ = fs::remove_file(&temporary);
    }
    replaced.map_err(|error| FileError::new("write", &path, error))
}

/// A file of the directory of lists that comes and goes with a change in a network's own directory. The runtimes
/// look at no name like it, and watch that directory alone: containerd hears that it goes (`syncLoop()`,
/// `cni_conf_syncer.go`), and reads the lists, with all that belongs to them, again.
const ANNOUNCEMENT: &str = ".rdma-cni-changes";

/// There will be a change in a network's own directory below `dir`.
///
/// # Errors
/// The file cannot be made.
pub(crate) fn announce(dir: &Path) -> Result<(), FileError> {
    let path = dir.join(ANNOUNCEMENT);
    let made = make(&path, 0o600).map(drop);
    made.map_err(|error| FileError::new("write", &path, error))
}

/// What was announced is done, also what a killed run has announced.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn announced(dir: &Path) -> Result<(), FileError> {
    let path = dir.join(ANNOUNCEMENT);
    // a directory that nobody can write to need not be written to
    match is_absent(&path) {
        true => Ok(()),
        false => remove(&path),
    }
}

/// Whether there is nothing at `path`; what cannot be looked at, if only for a moment, may be there.
pub(crate) fn is_absent(path: &Path) -> bool {
    path.symlink_metadata()
        .is_err_and(|error| says_absent(&error))
}

/// Whether a file is at `path`, or may be: what is not read at the moment.
pub(crate) fn may_be_there(path: &Path) -> bool {
    match path.symlink_metadata() {
        Ok(found) => found.is_file(),
        Err(error) => !says_absent(&error),
    }
}

/// Whether the system answers that there is nothing, also where a file is in the place of the directory.
fn says_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Writes a file that is ours alone, at once, and makes its directory if it is not there.
///
/// # Errors
/// One of them cannot be made.
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
        // whatever the umask is
        made.set_permissions(Permissions::from_mode(0o644))?;
        made.sync_data()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        FileError::new("write", path, error)
    })
}

/// Whether the directory of `path` is there, or can be made: nothing else has its name.
///
/// # Errors
/// Something else has.
pub(crate) fn can_have_directory(path: &Path) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match fs::read_dir(directory) {
        Ok(_) => Ok(()),
        Err(_) if directory.symlink_metadata().is_err() => Ok(()),
        Err(error) => Err(FileError::new("read", directory, error)),
    }
}

/// The name of what takes the place of `path`, before it does.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.rdma-cni-new"))
}

/// Removes a file, which may be gone already.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    take_away(path).map_err(|error| FileError::new("remove", path, error))
}

/// The same, with the system's answer.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn take_away(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if !says_absent(&error) => Err(error),
        _ => Ok(()),
    }
}

/// What was changed in `directory` is on the disk when this returns.
///
/// # Errors
/// The directory cannot be opened or synced.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Opens a file that is made for this: what has its name is somebody else's by now, or what a killed
/// run left, which may be the file that it displaced, or a link.
///
/// # Errors
/// It cannot be made.
pub(crate) fn make(temporary: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options.open(temporary)
}

/// Gives a file of ours the mode and owner of `like`. The owner comes last: what is another's is not
/// ours to change any more.
///
/// # Errors
/// The system refuses it.
pub(crate) fn give(file: &File, like: &Metadata) -> io::Result<()> {
    file.set_permissions(like.permissions())?;
    fchown(file, Some(like.uid()), Some(like.gid()))?;
    // which a change of the owner takes away
    if like.mode() & 0o6000 != 0 {
        file.set_permissions(like.permissions())?;
    }
    Ok(())
}

/// Puts `new`, which is `made`, where `path` is, and answers with the file that was there at that
/// moment. None: it is another than `expected`, whoever put it there, and is there again.
fn exchange(new: &Path, made: &File, path: &Path, expected: &[u8]) -> io::Result<Option<File>> {
    if !swap(new, path)? {
        // a file system that cannot exchange
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
        // somebody put another one there meanwhile, which is the newest
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

/// Exchanges two files' names; false: the file system cannot.
fn swap(one: &Path, other: &Path) -> io::Result<bool> {
    let flags = nix::libc::RENAME_EXCHANGE;
    let [from, to] = [one, other].map(|it| CString::new(it.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    let here = nix::libc::AT_FDCWD;
    // SAFETY: both are texts that end with 0 and live until the call returns. The call is made
    // by number, as musl has no function for it.
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

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_somebody_else_put_there_meanwhile_is_there_again() {
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
    fn nothing_is_written_through_what_has_the_temporary_name() {
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
