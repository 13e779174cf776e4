//! A file's text, replaced as a whole and at once: whoever reads it sees the old one or the new
//! one.
//!
//! The new file is made in the same directory, under a name that no runtime looks for. That is
//! needed for more than the rename: containerd reads its configuration again when a file of the
//! directory is written or renamed *away from a name*, and not when one appears
//! (`cni_conf_syncer.go`); the rename within the directory is the event that it hears.

use super::record::{Stamp, hash};
use conflist::{Directory, Picked};
use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, OpenOptionsExt, fchown},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// How long somebody who opened a file may take to write to it.
const LATE: Duration = Duration::from_secs(3);

/// A file or directory cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path:?}: {source}")]
pub struct FileError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    pub(crate) fn new(verb: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            verb,
            path: path.to_owned(),
            source,
        }
    }

    /// Files change all the time.
    pub(crate) fn busy(path: &Path) -> Self {
        let problem = "its files are being written all the time; try again";
        Self::new("change", path, io::Error::other(problem))
    }
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

/// What `path` is known by, with `text` in it. None: it cannot be looked at.
pub(crate) fn stamp(path: &Path, text: &str) -> Option<Stamp> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Stamp {
        sha256: hash(text.as_bytes()),
        modified: (since.as_secs(), since.subsec_nanos()),
    })
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
        let mut made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(found.mode() & 0o7777)
            .open(&temporary)?;
        made.write_all(new.as_bytes())?;
        fchown(&made, Some(found.uid()), Some(found.gid()))?;
        made.set_permissions(found.permissions())?;
        if let Some(modified) = modified {
            made.set_modified(modified)?;
        }
        // after a loss of power there is the old file or the new one, and no empty one
        made.sync_data()?;
        if fs::read(dir.join(like))? != expected.as_bytes() {
            return Ok(None);
        }
        if file != like {
            fs::rename(&temporary, &path)?;
            return Ok(Some(None));
        }
        let old = exchange(&temporary, &path)?;
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
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Puts `new` where `path` is, and answers with the file that was there at that moment, whoever put
/// it there: nothing that somebody else wrote is lost unseen.
fn exchange(new: &Path, path: &Path) -> io::Result<File> {
    let flags = nix::libc::RENAME_EXCHANGE;
    let [from, to] = [new, path].map(|it| CString::new(it.as_os_str().as_bytes()));
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
        let old = File::open(new)?;
        fs::remove_file(new)?;
        return Ok(old);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // a file system that cannot exchange
        Some(nix::libc::EINVAL | nix::libc::ENOSYS) => {
            let old = File::open(path)?;
            fs::rename(new, path)?;
            Ok(old)
        }
        _ => Err(error),
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData
    )
}
