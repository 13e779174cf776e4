// SPDX-License-Identifier: Apache-2.0
//! The CNI plugins' binaries.
//!
//! A binary that runs goes on: its file is not written to, another one takes its name. One that
//! somebody else had put there is kept, and comes back.

use crate::chain::{
    file::{self, hash, system},
    record::{Binary, Record, RecordError},
};
use conf_reader::one_line;
use rdma_resources::FileError;
use serde_json::Value;
use std::{
    fs::{self, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

/// What is put there.
const NAMES: [&str; 2] = ["rdma-cni", "rdma-ipam"];

/// What somebody else had put there, below the state directory.
const REPLACED: &str = "replaced";

const MODE: u32 = 0o755;

/// A binary could not be put there or taken away.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// The kernel refuses.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not where it is taken from.
    #[error("there is no {name} in {dir:?}; say with --from where the plugins' binaries are")]
    Absent {
        /// `rdma-cni`
        name: &'static str,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// A symbolic link, which would come back as a file.
    #[error("{path:?} is a symbolic link that somebody else put there; take it away first")]
    Link {
        /// The file.
        path: PathBuf,
    },
    /// It does not run where the runtime will run it.
    #[error(
        "{name} cannot be run in {dir:?}, where the runtime would run it: {why}; is that directory on a \
         file system without execution (noexec), or are the binaries of another architecture?"
    )]
    Mute {
        /// `rdma-cni`
        name: &'static str,
        /// The directory.
        dir: PathBuf,
        /// What became of it.
        why: String,
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
            Err(error) => return Err(system("read", &path)(error).into()),
        }
    }
    for name in NAMES {
        let path = dir.join(name);
        if found(&path).map_err(system("read", &path))? == Found::Link {
            return Err(BinaryError::Link { path });
        }
    }
    fs::create_dir_all(dir).map_err(system("make", dir))?;
    // also says that this node is installed, before anything else is changed
    record.bin_dir = Some(dir.to_owned());
    record.write(state_dir)?;
    let mut done = vec![];
    for (name, content) in contents {
        let path = dir.join(name);
        let sha256 = hash(&content);
        let present = match found(&path).map_err(system("read", &path))? {
            Found::File(present) => Some(present),
            Found::Nothing | Found::Link => None,
        };
        let ours = record.binaries.get(name);
        let is_ours = |present: &String| ours.is_some_and(|ours| ours.is_ours(present));
        let had_replaced = ours.is_some_and(|ours| ours.replaced);
        if present.as_ref() == Some(&sha256) {
            run(name, dir, &path)?;
            let whose = if ours.is_some() {
                let replaced = had_replaced;
                record.binaries.insert(
                    name.to_owned(),
                    Binary {
                        sha256,
                        before: None,
                        replaced,
                    },
                );
                record.write(state_dir)?;
                ""
            } else {
                ", put by somebody else"
            };
            done.push(format!("{path:?}: there already{whose}"));
            continue;
        }
        // before anything takes the place of what is there, and before a list names it
        let trial = file::temporary(&path);
        write_at(&trial, &content, None).map_err(system("write", &trial))?;
        let runs = run(name, dir, &trial);
        let _ = fs::remove_file(&trial);
        runs?;
        let before = present.clone().filter(is_ours);
        let is_foreign = present.is_some() && before.is_none();
        let kept = match &present {
            Some(present) if is_foreign => {
                let kept = keep(&path, present, &kept(state_dir, name), had_replaced);
                Some(kept.map_err(system("keep", &path))?)
            }
            _ => None,
        };
        record.binaries.insert(
            name.to_owned(),
            Binary {
                sha256,
                before,
                replaced: is_foreign || had_replaced,
            },
        );
        record.write(state_dir)?;
        write(&path, &content, None).map_err(system("write", &path))?;
        done.push(match (kept, present) {
            (Some(kept), _) => {
                format!("{path:?}: written; what somebody else had put there is kept as {kept:?}")
            }
            (None, Some(_)) => format!("{path:?}: another version is there now"),
            (None, None) => format!("{path:?}: written"),
        });
    }
    Ok(done)
}

/// Asks the program at `path` in `dir` for the versions that it speaks, as a runtime does (VERSION). That
/// it answers says that the file system lets it run, and that it is of this machine's architecture; in
/// a container it does not say what the runtime's own SELinux domain may do.
fn run(name: &'static str, dir: &Path, path: &Path) -> Result<(), BinaryError> {
    let mut command = Command::new(path);
    command.env_clear().env("CNI_COMMAND", "VERSION");
    let output = answer(command.stdin(Stdio::null()));
    let why = match output {
        Err(error) => error.to_string(),
        Ok(output) => {
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if output.status.success() && answer["supportedVersions"].is_array() {
                return Ok(());
            }
            format!(
                "it does not answer VERSION ({}): {}",
                output.status,
                one_line(String::from_utf8_lossy(&output.stderr).trim_end())
            )
        }
    };
    let dir = dir.to_owned();
    Err(BinaryError::Mute { name, dir, why })
}

/// Its output; a file that somebody has just closed is tried again.
fn answer(command: &mut Command) -> io::Result<Output> {
    let mut tries = 20;
    loop {
        match command.output() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries > 0 => {
                tries -= 1;
                thread::sleep(Duration::from_millis(5));
            }
            output => return output,
        }
    }
}

/// Takes away those that are ours, and puts back what they took the place of. One sentence for each.
///
/// # Errors
/// One cannot be removed.
pub(super) fn take(
    dir: &Path,
    state_dir: &Path,
    record: &Record,
) -> Result<Vec<String>, BinaryError> {
    let mut done = vec![];
    for name in NAMES {
        let path = dir.join(name);
        // what a killed run left
        let _ = fs::remove_file(file::temporary(&path));
        let kept = kept(state_dir, name);
        let _ = fs::remove_file(file::temporary(&kept));
        let copy = found(&kept).map_err(system("read", &kept))?;
        let ours = record.binaries.get(name);
        let present = found(&path).map_err(system("read", &path))?;
        let is_ours = match &present {
            Found::File(sha256) => ours.is_some_and(|ours| ours.is_ours(sha256)),
            Found::Nothing => ours.is_some(),
            Found::Link => false,
        };
        let replaced = ours.is_some_and(|ours| ours.replaced);
        let (is_nothing, is_back) = (present == Found::Nothing, present == copy);
        let has_copy = copy != Found::Nothing;
        let sentence = match (is_ours, has_copy) {
            // killed before the record was written, or after it was put back
            (false, true) if is_back => {
                fs::remove_file(&kept).map_err(system("remove", &kept))?;
                "what was there before is back".to_owned()
            }
            (false, true) => {
                format!("stays; somebody else put it there (what was there before is {kept:?})")
            }
            (false, false) if ours.is_some() => "stays; somebody else put it there".to_owned(),
            (false, false) => continue,
            (true, true) if replaced => {
                let content = fs::read(&kept).map_err(system("read", &kept))?;
                write(&path, &content, Some(&kept)).map_err(system("write", &path))?;
                fs::remove_file(&kept).map_err(system("remove", &kept))?;
                "what was there before is back".to_owned()
            }
            (true, _) if is_nothing => "gone already".to_owned(),
            (true, _) => {
                fs::remove_file(&path).map_err(system("remove", &path))?;
                "removed".to_owned()
            }
        };
        done.push(format!("{path:?}: {sentence}"));
    }
    // before the record that tells of them goes
    match file::sync(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(system("sync", dir)(error).into());
        }
        _ => {}
    }
    // where somebody else's is left in it, it stays
    let replaced = state_dir.join(REPLACED);
    if fs::remove_dir(&replaced).is_err() && replaced.exists() {
        done.push(format!(
            "{replaced:?}: what somebody else had put there is in it still"
        ));
    }
    Ok(done)
}

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A symbolic link, wherever it leads.
    Link,
    /// A file, and the hash of its content.
    File(String),
}

fn found(path: &Path) -> io::Result<Found> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(error),
        Ok(found) if found.is_symlink() => Ok(Found::Link),
        Ok(_) => Ok(Found::File(hash(&fs::read(path)?))),
    }
}

/// Where somebody else's binary called `name` is kept.
fn kept(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join(REPLACED).join(name)
}

fn beside_this_program() -> Result<PathBuf, BinaryError> {
    let program = std::env::current_exe().map_err(system("find", Path::new("/proc/self/exe")))?;
    let beside = program.parent();
    Ok(beside.unwrap_or(Path::new("/")).to_owned())
}

/// Keeps a copy with everything that can be seen of a file; where. What is kept already is never
/// written over: with `is_taken` it is what comes back, and this one is another that somebody put
/// there since; else it is left from before, and is put aside.
fn keep(path: &Path, sha256: &str, copy: &Path, is_taken: bool) -> io::Result<PathBuf> {
    fs::create_dir_all(copy.parent().unwrap_or(Path::new("/")))?;
    let aside = |sha256: &str| copy.with_extension(sha256.get(..12).unwrap_or(sha256));
    let place = match found(copy)? {
        Found::File(present) if present == sha256 => return Ok(copy.to_owned()),
        Found::File(_) if is_taken => aside(sha256),
        Found::File(present) => {
            fs::rename(copy, aside(&present))?;
            copy.to_owned()
        }
        Found::Nothing | Found::Link => copy.to_owned(),
    };
    write(&place, &fs::read(path)?, Some(path))?;
    Ok(place)
}

/// The whole file at once; mode, owner and times are those of `like`, if there is one.
fn write(path: &Path, content: &[u8], like: Option<&Path>) -> io::Result<()> {
    let temporary = file::temporary(path);
    let written = || {
        write_at(&temporary, content, like)?;
        fs::rename(&temporary, path)?;
        file::sync(path.parent().unwrap_or(Path::new("/")))
    };
    written().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// A file that is made, and closed: one that is open for writing cannot be run.
fn write_at(path: &Path, content: &[u8], like: Option<&Path>) -> io::Result<()> {
    let mut file = file::make(path, MODE)?;
    file.write_all(content)?;
    // whatever the umask is
    file.set_permissions(Permissions::from_mode(MODE))?;
    if let Some(like) = like {
        let like = fs::metadata(like)?;
        file.set_modified(like.modified()?)?;
        file::give(&file, &like)?;
    }
    file.sync_all()
}
