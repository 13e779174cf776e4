// SPDX-License-Identifier: Apache-2.0
//! The node's secret. It makes stable addresses different on each node and impossible to guess (RFC 7217, section 5:
//! `secret_key`).
//!
//! The file is `<dataDir>/.rdma-ipam.secret`, 32 bytes, mode 0600. No network can have this name. The first process
//! that needs the secret makes a draft under the lock of `.rdma-ipam.secret.lock`, and renames it into place. So two
//! concurrent processes get the same secret. A killed process leaves only an unused draft, which the next DEL or GC
//! removes.

use crate::{
    stable::SECRET,
    store::{Change, Disk, StoreError, failed, if_exists, make},
};
use cni_protocol::{lock, state_file};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

const NAME: &str = ".rdma-ipam.secret";
const LOCK: &str = ".rdma-ipam.secret.lock";

/// Reason why the secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file could not be read or made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file has a wrong length.
    #[error(
        "{path:?} has {length} bytes, not {SECRET}: restore it, or remove it; a new secret changes the \
         stable addresses of pods"
    )]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Length of the file, bytes.
        length: usize,
    },
}

/// Checks that the secret is usable, if it exists.
pub fn check(data_dir: &Path) -> Result<(), SecretError> {
    read(&data_dir.join(NAME)).map(drop)
}

/// Returns the secret. Makes the secret if it does not exist.
pub fn secret(disk: &dyn Disk, data_dir: &Path) -> Result<[u8; SECRET], SecretError> {
    let path = data_dir.join(NAME);
    if let Some(secret) = read(&path)? {
        return Ok(secret);
    }
    if !data_dir.is_dir() {
        make(disk, Change::MakeDirectory(data_dir.to_owned()))?;
    }
    // does not lock the directory, because any user can open and lock it
    let lock_path = data_dir.join(LOCK);
    let file = lock::open(&lock_path).map_err(failed("open", &lock_path))?;
    let _lock = lock::wait(file, lock::LIMIT).map_err(failed("lock", &lock_path))?;
    if let Some(secret) = read(&path)? {
        return Ok(secret);
    }
    let secret = random().map_err(failed("read", Path::new(RANDOM)))?;
    let new = draft(data_dir);
    let earlier = if_exists(fs::symlink_metadata(&new)).map_err(failed("read", &new))?;
    if earlier.is_some() {
        make(disk, Change::Remove(new.clone()))?;
    }
    let write = Change::Write {
        path: new.clone(),
        content: secret.to_vec(),
        mode: 0o600,
        durable: true,
    };
    let rename = Change::Rename {
        from: new.clone(),
        to: path,
    };
    let made = make(disk, write).and_then(|()| make(disk, rename));
    if made.is_err() {
        // if this fails, the next process removes the file
        let _ = disk.make(&Change::Remove(new));
    }
    made?;
    make(disk, Change::Sync(data_dir.to_owned()))?;
    Ok(secret)
}

/// Removes the draft of a killed process. Keeps the draft of a running process, which has the lock.
pub fn forget_draft(disk: &dyn Disk, data_dir: &Path) {
    let new = draft(data_dir);
    if fs::symlink_metadata(&new).is_err() {
        return;
    }
    let lock_path = data_dir.join(LOCK);
    let remove = || -> Result<(), StoreError> {
        let lock = lock::open(&lock_path).and_then(lock::attempt);
        match lock.map_err(failed("lock", &lock_path))? {
            Some(_lock) if fs::symlink_metadata(&new).is_ok() => {
                make(disk, Change::Remove(new.clone()))
            }
            _ => Ok(()),
        }
    };
    if let Err(error) = remove() {
        log::warn!("{error}; the next DEL or GC tries again");
    }
}

fn draft(data_dir: &Path) -> PathBuf {
    data_dir.join(format!("{NAME}.new"))
}

fn read(path: &Path) -> Result<Option<[u8; SECRET]>, SecretError> {
    let Some(bytes) = if_exists(state_file::read(path)).map_err(failed("read", path))? else {
        return Ok(None);
    };
    let length = bytes.len();
    let wrong = |_| SecretError::Length {
        path: path.to_owned(),
        length,
    };
    bytes.try_into().map(Some).map_err(wrong)
}

/// Source of random numbers. Reading it does not block (random(4)), and the kernel seeds it long before pods start.
const RANDOM: &str = "/dev/urandom";

/// Returns a random number.
pub fn number() -> Result<u128, StoreError> {
    let bytes = random().map_err(failed("read", Path::new(RANDOM)))?;
    let bytes = bytes.iter().take(16);
    Ok(bytes.fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

fn random() -> io::Result<[u8; SECRET]> {
    let mut bytes = [0; SECRET];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RealDisk;
    use std::{collections::HashSet, os::unix::fs::PermissionsExt, thread};

    #[test]
    fn first_users_agree() {
        for _ in 0..20 {
            let data_dir = tempfile::tempdir().unwrap();
            let data_dir = data_dir.path().join("networks");
            let secrets: HashSet<_> = thread::scope(|scope| {
                let users: Vec<_> = (0..8)
                    .map(|_| scope.spawn(|| secret(&RealDisk, &data_dir).unwrap()))
                    .collect();
                users.into_iter().map(|user| user.join().unwrap()).collect()
            });
            assert_eq!(secrets.len(), 1);
            let mode = fs::metadata(data_dir.join(NAME))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 2);
            let lock = fs::metadata(data_dir.join(".rdma-ipam.secret.lock")).unwrap();
            assert_eq!(lock.permissions().mode() & 0o777, 0o600);
        }
    }

    /// Any local user can lock the directory, so a process must not wait for the directory's lock.
    #[test]
    fn a_lock_on_the_directory_delays_nobody() {
        let data_dir = tempfile::tempdir().unwrap();
        let directory = File::open(data_dir.path()).unwrap();
        directory.lock().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let path = data_dir.path().to_owned();
        thread::spawn(move || sender.send(secret(&RealDisk, &path).unwrap()));
        // a process that waited for the directory's lock would never send
        let made = receiver.recv_timeout(std::time::Duration::from_secs(60));
        assert!(made.is_ok(), "it waits for the directory's lock");
    }

    #[test]
    fn a_damaged_secret_is_not_replaced_silently() {
        let data_dir = tempfile::tempdir().unwrap();
        fs::write(data_dir.path().join(NAME), [0; 31]).unwrap();
        let error = secret(&RealDisk, data_dir.path()).unwrap_err().to_string();
        assert!(error.contains("has 31 bytes, not 32"), "{error}");
    }

    #[test]
    fn a_killed_verbs_child_is_removed_and_a_running_verbs_child_stays() {
        let data_dir = tempfile::tempdir().unwrap();
        let data_dir = data_dir.path();
        let new = draft(data_dir);
        forget_draft(&RealDisk, data_dir);
        assert_eq!(fs::read_dir(data_dir).unwrap().count(), 0, "no lock either");
        fs::write(&new, [0; 7]).unwrap();
        let maker = lock::attempt(lock::open(&data_dir.join(LOCK)).unwrap());
        let maker = maker.unwrap().expect("nobody has it");
        forget_draft(&RealDisk, data_dir);
        assert!(new.exists());
        drop(maker);
        forget_draft(&RealDisk, data_dir);
        assert!(!new.exists());
    }

    #[test]
    fn a_half_made_child_does_not_count() {
        let data_dir = tempfile::tempdir().unwrap();
        fs::write(data_dir.path().join(".rdma-ipam.secret.new"), [0; 7]).unwrap();
        let first = secret(&RealDisk, data_dir.path()).unwrap();
        assert_eq!(secret(&RealDisk, data_dir.path()).unwrap(), first);
        assert_ne!(first, [0; SECRET]);
    }
}
