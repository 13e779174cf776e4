// SPDX-License-Identifier: Apache-2.0
//! Small JSON files, which are read and replaced as a whole.

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

/// Returns the file's content. Returns `None` if the file does not exist.
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

/// Reads the record in the file. Returns `None` if the file does not exist.
///
/// # Errors
/// The file cannot be read, or [`parse_record`] fails.
pub fn read_record<T: DeserializeOwned>(path: &Path, newest: u32) -> Result<Option<T>, FileError> {
    match state_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => parse_record(&text.map_err(failed("read", path))?, path, newest).map(Some),
    }
}

/// Parses `text`, the content of the file `path`. Refuses a record whose format is above `newest`, even if the rest can
/// be parsed: the reader would miss the fields that it does not know.
///
/// # Errors
/// The text is no `T`, or the format is above `newest`.
pub fn parse_record<T: DeserializeOwned>(
    text: &[u8],
    path: &Path,
    newest: u32,
) -> Result<T, FileError> {
    let parse = || -> io::Result<T> {
        let content: Value = serde_json::from_slice(text)?;
        match content["format"].as_u64().filter(|it| *it > newest.into()) {
            Some(newer) => {
                let words = format!(
                    "its format is {newer}, which a newer rdma-device-plugin wrote: use that release"
                );
                Err(io::Error::new(io::ErrorKind::Unsupported, words))
            }
            None => Ok(serde_json::from_value(content)?),
        }
    };
    parse().map_err(failed("read", path))
}

/// Replaces the file if it has another content. Returns true if the file was replaced.
///
/// All writers of `path`, in any container, use and lock the same temporary file. The next writer reuses the temporary
/// file of a killed writer. Readers ignore temporary files.
///
/// # Errors
/// The directory cannot be made, or the file cannot be written.
pub fn replace<T: Serialize>(path: &Path, content: &T, mode: u32) -> Result<bool, FileError> {
    let text = serde_json::to_vec_pretty(content);
    let mut text = text.map_err(|error| FileError::new("write", path, error.into()))?;
    text.push(b'\n');
    replace_text(path, &text, mode)
}

/// Replaces a file by the text `text`, like [`replace`].
///
/// # Errors
/// The errors of [`replace`].
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

/// Returns a file name for the name of a resource or an id. Replaces `/`, which is in names of resources and in ids.
/// The result contains neither `/` nor `..`. Two names can have the same file name.
pub(crate) fn file_name(name: &str) -> String {
    let name = name.replace('/', "@").replace("..", "@@");
    state_file::file_name(&name).into_owned()
}

/// Returns the path of the temporary file for `path`. The next writer reuses the file of a killed writer.
pub fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Opens or makes the temporary file at `path`, and waits until no other writer holds its lock. Dropping the result
/// releases the lock.
fn own(path: &Path, mode: u32) -> io::Result<Held> {
    let open = || state_file::renew(path, mode);
    // `hold` opens a new file if the earlier holder has renamed the file, because a write would change the file that
    // readers see
    let held = lock::hold(path, open)?;
    held.set_permissions(Permissions::from_mode(mode))?;
    Ok(held)
}

/// Time limit of each wait for a lock. The lock's holder observes the hardware and writes one file. The limit is short,
/// because the waiting process may hold the node's lock, for which all other changes wait.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Locks the file at `path`. Waits at most `LOCK_TIMEOUT` for another process: the holder may be stopped, or may wait
/// for a driver, and must not delay the end of a pod. Dropping the result releases the lock.
///
/// # Errors
/// The file cannot be made, or another process holds the lock until the time limit.
pub fn lock(path: &Path) -> Result<Held, FileError> {
    let lock = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        lock::wait(lock::open(path)?, LOCK_TIMEOUT)
    };
    lock().map_err(|source| FileError::new("lock", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::fs::MetadataExt, thread};

    /// Daemons in different containers can have the same process id. A temporary name with the process id would
    /// therefore not be unique.
    #[test]
    fn two_writers_do_not_write_into_one_file() {
        const LENGTHS: [usize; 2] = [20_000, 50];
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.json");
        // a killed writer left a temporary file that is longer than the short content, and shorter than the long
        // content
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
        // a forked child has the same open file until it runs another program
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
            message.contains("cdi.lock") && message.contains("whole wait of 5 s"),
            "{message}"
        );
    }
}
