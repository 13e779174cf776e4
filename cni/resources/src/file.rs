// SPDX-License-Identifier: Apache-2.0
//! Small JSON files, read and replaced as a whole.

pub use cni_protocol::state_file::FileError;
use cni_protocol::{
    lock::{self, Held},
    state_file::{self, failed},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Returns the file's content; `None` if the file does not exist.
///
/// # Errors
/// The file cannot be read, or its content is no `T`.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let text = match state_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(failed("read", path))?,
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| FileError::new("read", path, error.into()))
}

/// Reads the record in the file. None: the file does not exist.
///
/// # Errors
/// The file cannot be read, or [`parse_record`] fails.
pub fn read_record<T: DeserializeOwned>(path: &Path, newest: u32) -> Result<Option<T>, FileError> {
    match state_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => parse_record(&text.map_err(failed("read", path))?, path, newest).map(Some),
    }
}

/// Parses `text`, the content of the file `path`. A record of a format above `newest` is refused, regardless of its
/// other content: it is never read in part.
///
/// # Errors
/// The text is no `T`, or the format is newer.
pub fn parse_record<T: DeserializeOwned>(
    text: &[u8],
    path: &Path,
    newest: u32,
) -> Result<T, FileError> {
    let parse = || -> io::Result<T> {
        let content: Value = serde_json::from_slice(text)?;
        match content["format"].as_u64().filter(|it| *it > newest.into()) {
            Some(newer) => {
                let words =
                    format!("its format is {newer}, of a newer rdma-device-plugin; use that one");
                Err(io::Error::new(io::ErrorKind::Unsupported, words))
            }
            None => Ok(serde_json::from_value(content)?),
        }
    };
    parse().map_err(failed("read", path))
}

/// Replaces the file, unless it has this content already. Returns true if it was replaced.
///
/// No reader searches for files with the temporary file's suffix. All writers in all containers use the same temporary
/// name, and lock it. The next writer reuses the temporary file of a killed one.
///
/// # Errors
/// The directory cannot be made, or the file cannot be written.
pub fn replace<T: Serialize>(path: &Path, content: &T, mode: u32) -> Result<bool, FileError> {
    let text = serde_json::to_vec_pretty(content);
    let mut text = text.map_err(|error| FileError::new("write", path, error.into()))?;
    text.push(b'\n');
    replace_text(path, &text, mode)
}

/// Replaces a file of any text, as [`replace`] does.
///
/// # Errors
/// Same as [`replace`].
pub fn replace_text(path: &Path, text: &[u8], mode: u32) -> Result<bool, FileError> {
    let failed = |source| FileError::new("write", path, source);
    if state_file::read(path).is_ok_and(|present| present == text) {
        return Ok(false);
    }
    let temporary = unfinished(path);
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    let file = own(&temporary, mode).map_err(failed)?;
    state_file::finish(&file, &temporary, text, path).map_err(|error| {
        let _ = fs::remove_file(&temporary);
        failed(error)
    })?;
    Ok(true)
}

/// Removes the file at `path`. Returns true if it existed.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::new("remove", path, error)),
    }
}

/// Returns the file name for the name of a resource or an id. Replaces `/`, which separates a prefix or a device from
/// the rest. The result does not begin with a dot. If two names get the same file name, the file's content
/// distinguishes them.
pub(crate) fn file_name(name: &str) -> String {
    let name = name.replace('/', "@").replace("..", "@@");
    state_file::file_name(&name).into_owned()
}

/// Returns the path of the temporary file for `path`. The next writer reuses the file of a killed writer.
pub fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Opens or creates the file at `path`, as soon as no other writer holds it. Dropping the result releases it.
fn own(path: &Path, mode: u32) -> io::Result<Held> {
    let open = || state_file::renew(path, mode);
    // the former holder has renamed the file, and readers see it
    let held = lock::hold(path, open)?;
    held.set_permissions(Permissions::from_mode(mode))?;
    Ok(held)
}

/// Time limit for another process's lock. The holder observes the hardware and writes one file. The limit is short,
/// because the waiting process may hold the node's lock, for which every other change waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for a limited time until no other process holds the lock file at `path`. So a process that is stopped, or that
/// waits for a driver, delays no pod's end. Dropping the result releases the lock.
///
/// # Errors
/// The file cannot be made, or another process holds it all the time.
pub fn lock(path: &Path) -> Result<Held, FileError> {
    let lock = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        lock::wait(lock::open(path)?, PATIENCE)
    };
    lock().map_err(|source| FileError::new("lock", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::fs::MetadataExt, thread};

    /// All containers' daemons have the same process id.
    #[test]
    fn two_writers_do_not_write_into_one_file() {
        const LENGTHS: [usize; 2] = [20_000, 50];
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.json");
        // temporary file of a killed writer, longer than the next content
        fs::write(path.with_extension("new"), vec![b'x'; 100_000]).expect("written");
        let write = |length: usize| {
            for round in 0..40 {
                let content = vec![round % 2 + length; length];
                assert!(replace(&path, &content, 0o600).expect("written"));
            }
        };
        let ended = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    let seen: Option<Vec<usize>> = read(&path).expect("whole");
                    assert!(seen.is_none_or(|it| LENGTHS.contains(&it.len())));
                }
            });
            let writers = LENGTHS.map(|length| scope.spawn(move || write(length)));
            for writer in writers {
                writer.join().expect("it wrote");
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().expect("it read what was whole");
        });
        let entries = fs::read_dir(directory.path()).expect("a directory");
        assert_eq!(entries.count(), 1);
        let mode = fs::metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_next_writer_does_not_wait_for_a_forked_child_that_has_the_file_yet() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.new");
        let file = own(&path, 0o600).expect("free");
        // the same open file, as a child has it until it is another program
        let _forked = file.try_clone().expect("one more descriptor");
        drop(file);
        let next = File::open(path).expect("the file");
        next.try_lock().expect("free");
    }

    #[test]
    fn a_lock_is_waited_for_and_not_for_ever() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("cdi.lock");
        let held = lock(&path).expect("free");
        let waiting = thread::spawn({
            let path = path.clone();
            move || lock(&path).map(drop)
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished(), "two have it");
        drop(held);
        waiting.join().expect("no panic").expect("its turn");

        let _held = lock(&path).expect("free");
        let message = lock(&path).expect_err("held").to_string();
        assert!(
            message.contains("cdi.lock") && message.contains("for all of the 5 s"),
            "{message}"
        );
    }
}
