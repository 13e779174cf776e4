//! The CNI plugins' binaries.
//!
//! A binary that runs goes on: its file is not written to, another one takes its name. One that
//! somebody else had put there is kept, and comes back.

use crate::chain::{
    file,
    record::{Binary, Record, RecordError, hash},
};
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

/// What is put there.
const NAMES: [&str; 2] = ["rdma-cni", "rdma-ipam"];

const MODE: u32 = 0o755;

/// A binary could not be put there or taken away.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// The system refuses it.
    #[error("cannot {verb} {path:?}: {source}")]
    System {
        /// `read`, `write`
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not where it is taken from.
    #[error("there is no {name} in {dir:?}; say with --from where the plugins' binaries are")]
    Absent {
        /// `rdma-cni`
        name: &'static str,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// The record.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Puts the binaries of `from` (else those beside the running program) into `dir`. One sentence
/// for each.
///
/// # Errors
/// One is missing, or cannot be written.
pub(super) fn put(
    from: Option<&Path>,
    dir: &Path,
    state_dir: &Path,
    record: &mut Record,
) -> Result<Vec<String>, BinaryError> {
    let from = match from {
        Some(from) => from.to_owned(),
        None => beside_this_program()?,
    };
    // all are looked at before anything is changed
    let mut contents = vec![];
    for name in NAMES {
        let path = from.join(name);
        match fs::read(&path) {
            Ok(content) => contents.push((name, content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BinaryError::Absent { name, dir: from });
            }
            Err(error) => return Err(system("read", &path)(error)),
        }
    }
    fs::create_dir_all(dir).map_err(system("make", dir))?;
    // also says that this node is installed, before anything else is changed
    record.write(state_dir)?;
    let mut done = vec![];
    for (name, content) in contents {
        let path = dir.join(name);
        let sha256 = hash(&content);
        let present = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            present => Some(hash(&present.map_err(system("read", &path))?)),
        };
        let ours = record.binaries.get(name);
        if present.as_ref() == Some(&sha256) {
            let whose = if ours.is_some() {
                ""
            } else {
                ", put by somebody else"
            };
            done.push(format!("{path:?}: there already{whose}"));
            continue;
        }
        let is_foreign = present
            .as_ref()
            .is_some_and(|present| ours.is_none_or(|ours| ours.sha256 != *present));
        if is_foreign {
            keep(&path, &state_dir.join("replaced").join(name)).map_err(system("keep", &path))?;
        }
        let replaced = is_foreign || ours.is_some_and(|ours| ours.replaced);
        record
            .binaries
            .insert(name.to_owned(), Binary { sha256, replaced });
        record.write(state_dir)?;
        write(&path, &content, None).map_err(system("write", &path))?;
        done.push(match (is_foreign, present) {
            (true, _) => format!("{path:?}: written; what somebody else had put there is kept"),
            (false, Some(_)) => format!("{path:?}: another version is there now"),
            (false, None) => format!("{path:?}: written"),
        });
    }
    Ok(done)
}

/// Takes away those that are ours. One sentence for each.
///
/// # Errors
/// One cannot be removed.
pub(super) fn take(
    dir: &Path,
    state_dir: &Path,
    record: &Record,
) -> Result<Vec<String>, BinaryError> {
    let mut done = vec![];
    for (name, ours) in &record.binaries {
        let path = dir.join(name);
        // what a killed run left
        let _ = fs::remove_file(file::temporary(&path));
        let kept = state_dir.join("replaced").join(name);
        let present = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                done.push(format!("{path:?}: gone already"));
                continue;
            }
            present => hash(&present.map_err(system("read", &path))?),
        };
        if present != ours.sha256 {
            done.push(format!("{path:?}: stays; somebody else put it there"));
            continue;
        }
        if ours.replaced && kept.exists() {
            let content = fs::read(&kept).map_err(system("read", &kept))?;
            write(&path, &content, Some(&kept)).map_err(system("write", &path))?;
            done.push(format!("{path:?}: what was there before is back"));
        } else {
            fs::remove_file(&path).map_err(system("remove", &path))?;
            done.push(format!("{path:?}: removed"));
        }
    }
    let replaced = state_dir.join("replaced");
    match fs::remove_dir_all(&replaced) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(system("remove", &replaced)(error))
        }
        _ => Ok(done),
    }
}

fn beside_this_program() -> Result<PathBuf, BinaryError> {
    let program = std::env::current_exe().map_err(system("find", Path::new("/proc/self/exe")))?;
    let beside = program.parent();
    Ok(beside.unwrap_or(Path::new("/")).to_owned())
}

/// A copy with everything that can be seen of a file.
fn keep(path: &Path, copy: &Path) -> io::Result<()> {
    fs::create_dir_all(copy.parent().unwrap_or(Path::new("/")))?;
    let content = fs::read(path)?;
    write(copy, &content, Some(path))
}

/// The whole file at once; mode, owner and times are those of `like`, if there is one.
fn write(path: &Path, content: &[u8], like: Option<&Path>) -> io::Result<()> {
    let temporary = file::temporary(path);
    let written = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(MODE)
            .open(&temporary)?;
        file.write_all(content)?;
        // whatever the umask is
        file.set_permissions(Permissions::from_mode(MODE))?;
        if let Some(like) = like {
            let like = fs::metadata(like)?;
            fchown(&file, Some(like.uid()), Some(like.gid()))?;
            file.set_permissions(like.permissions())?;
            file.set_modified(like.modified()?)?;
        }
        file.sync_all()?;
        // a file that is open for writing cannot be run
        drop(file);
        fs::rename(&temporary, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    written().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

fn system(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BinaryError {
    let path = path.to_owned();
    move |source| BinaryError::System { verb, path, source }
}
