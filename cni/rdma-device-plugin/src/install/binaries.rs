// SPDX-License-Identifier: Apache-2.0
//! Installs the binaries of the CNI plugins. `install` replaces a file instead of overwriting it, because a plugin may
//! be running. `install` saves a binary of another installation, and `uninstall` restores it.

use crate::chain::{
    file::{self, hash},
    record::{Binary, Record},
};
use anyhow::{Result, bail};
use cni_protocol::state_file::failed;
use conf_reader::one_line;
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

const NAMES: [&str; 2] = ["rdma-cni", "rdma-ipam"];

/// Directory with the saved binaries of another installation, below the state directory.
const REPLACED: &str = "replaced";

const MODE: u32 = 0o755;

/// Installs the binaries of the directory `from` into `dir`. If `from` is `None`, uses the directory of the running
/// program. Returns one sentence for each binary.
///
/// # Errors
/// A binary is missing, cannot be written or run, or would replace a symbolic link.
pub(super) fn put(
    from: Option<&Path>,
    dir: &Path,
    state_dir: &Path,
    record: &mut Record,
) -> Result<Vec<String>> {
    let from = match from {
        Some(from) => from.to_owned(),
        None => beside_this_program()?,
    };
    // read all binaries before the first change
    let mut contents = vec![];
    for name in NAMES {
        let path = from.join(name);
        match fs::read(&path) {
            Ok(content) => contents.push((name, content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!(
                    "{from:?} has no {name}; give the directory of the plugins' binaries with --from"
                );
            }
            Err(error) => return Err(failed("read", &path)(error).into()),
        }
    }
    for name in NAMES {
        let path = dir.join(name);
        if found(&path).map_err(failed("read", &path))? == Found::Link {
            bail!("{path:?} is a symbolic link of another installation; remove it first");
        }
    }
    fs::create_dir_all(dir).map_err(failed("make", dir))?;
    // write the record before the first binary: from now on the node counts as installed
    record.bin_dir = Some(dir.to_owned());
    record.write(state_dir)?;
    let mut done = vec![];
    for (name, content) in contents {
        let path = dir.join(name);
        let sha256 = hash(&content);
        let present = match found(&path).map_err(failed("read", &path))? {
            Found::File(present) => Some(present),
            Found::Nothing | Found::Link => None,
        };
        let ours = record.binaries.get(name);
        let is_ours = |present: &String| ours.is_some_and(|ours| ours.is_ours(present));
        let had_replaced = ours.is_some_and(|ours| ours.replaced);
        if present.as_ref() == Some(&sha256) {
            run(name, dir, &path)?;
            let whose = match record.binaries.get_mut(name) {
                Some(ours) => {
                    (ours.sha256, ours.before) = (sha256, None);
                    record.write(state_dir)?;
                    ""
                }
                None => ", by another installation",
            };
            done.push(format!("{path:?}: already installed{whose}"));
            continue;
        }
        // run the binary before it replaces the present file, and before a list names it
        let trial = file::temporary(&path);
        write_at(&trial, &content, None).map_err(failed("write", &trial))?;
        let runs = run(name, dir, &trial);
        let _ = fs::remove_file(&trial);
        runs?;
        let before = present.clone().filter(is_ours);
        let is_foreign = present.is_some() && before.is_none();
        let kept = match &present {
            Some(present) if is_foreign => {
                let kept = keep(&path, present, &kept(state_dir, name), had_replaced);
                Some(kept.map_err(failed("keep", &path))?)
            }
            _ => None,
        };
        let binary = Binary {
            sha256,
            before,
            replaced: is_foreign || had_replaced,
        };
        record.binaries.insert(name.to_owned(), binary);
        record.write(state_dir)?;
        write(&path, &content, None).map_err(failed("write", &path))?;
        done.push(match (kept, present) {
            (Some(kept), _) => {
                format!("{path:?}: written; the previous file of another installation is kept as {kept:?}")
            }
            (None, Some(_)) => format!("{path:?}: replaced by this version"),
            (None, None) => format!("{path:?}: written"),
        });
    }
    Ok(done)
}

/// Runs the program at `path` with VERSION, as a runtime does. An answer proves that the file system allows execution,
/// and that the architecture matches. In a container, an answer does not prove that SELinux lets the runtime run the
/// program.
fn run(name: &str, dir: &Path, path: &Path) -> Result<()> {
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
                "the program does not answer VERSION ({}): {}",
                output.status,
                one_line(String::from_utf8_lossy(&output.stderr).trim_end())
            )
        }
    };
    bail!(
        "{name} cannot be run in {dir:?}, where the runtime would run it: {why}; is that directory on a \
         file system without execution (noexec), or are the binaries for another architecture?"
    )
}

/// Runs the command. Retries, for about 100 ms, while another process has the command's file open for writing
/// (`ETXTBSY`).
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

/// Removes the installed binaries, and restores the binaries that they replaced. Keeps a binary that another
/// installation has written since. Returns the results, one sentence each.
///
/// # Errors
/// A binary cannot be read, removed or restored.
pub(super) fn take(dir: &Path, state_dir: &Path, record: &Record) -> Result<Vec<String>> {
    let mut done = vec![];
    for name in NAMES {
        let path = dir.join(name);
        // remove temporary files of a killed run
        let _ = fs::remove_file(file::temporary(&path));
        let kept = kept(state_dir, name);
        let _ = fs::remove_file(file::temporary(&kept));
        let copy = found(&kept).map_err(failed("read", &kept))?;
        let ours = record.binaries.get(name);
        let present = found(&path).map_err(failed("read", &path))?;
        let is_ours = match &present {
            Found::File(sha256) => ours.is_some_and(|ours| ours.is_ours(sha256)),
            Found::Nothing => ours.is_some(),
            Found::Link => false,
        };
        let replaced = ours.is_some_and(|ours| ours.replaced);
        let (is_nothing, is_back) = (present == Found::Nothing, present == copy);
        let has_copy = copy != Found::Nothing;
        let sentence = match (is_ours, has_copy) {
            // an earlier `uninstall` was killed after it had restored the file, or an earlier `install` before it wrote
            // the record
            (false, true) if is_back => {
                fs::remove_file(&kept).map_err(failed("remove", &kept))?;
                "the previous file is restored".to_owned()
            }
            (false, true) => {
                format!(
                    "not removed; another installation wrote it (the file before our installation is kept as {kept:?})"
                )
            }
            (false, false) if ours.is_some() => {
                "not removed; another installation wrote it".to_owned()
            }
            (false, false) => continue,
            (true, true) if replaced => {
                let content = fs::read(&kept).map_err(failed("read", &kept))?;
                write(&path, &content, Some(&kept)).map_err(failed("write", &path))?;
                fs::remove_file(&kept).map_err(failed("remove", &kept))?;
                "the previous file is restored".to_owned()
            }
            (true, _) if is_nothing => "already absent".to_owned(),
            (true, _) => {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                "removed".to_owned()
            }
        };
        done.push(format!("{path:?}: {sentence}"));
    }
    // sync before the caller removes the record of the binaries
    match file::sync(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("sync", dir)(error).into());
        }
        _ => {}
    }
    // the directory stays while it has saved binaries
    let replaced = state_dir.join(REPLACED);
    if fs::remove_dir(&replaced).is_err() && replaced.exists() {
        done.push(format!(
            "{replaced:?}: still has files of another installation"
        ));
    }
    Ok(done)
}

/// File found at a path.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A symbolic link, to any target.
    Link,
    /// A file, with the hash of its content.
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

fn kept(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join(REPLACED).join(name)
}

fn beside_this_program() -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(failed("find", Path::new("/proc/self/exe")))?;
    let beside = program.parent();
    Ok(beside.unwrap_or(Path::new("/")).to_owned())
}

/// Copies the file at `path` with its metadata, and returns the path of the copy. `sha256` is the hash of the file. An
/// equal copy stays. Another existing copy is never overwritten:
/// - `is_taken` is true: `uninstall` will restore the existing copy. The new copy gets another name.
/// - `is_taken` is false: the existing copy is outdated, and gets another name.
fn keep(path: &Path, sha256: &str, copy: &Path, is_taken: bool) -> io::Result<PathBuf> {
    fs::create_dir_all(copy.parent().unwrap_or(Path::new("/")))?;
    let beside = |sha256: &str| copy.with_extension(sha256.get(..12).unwrap_or(sha256));
    let place = match found(copy)? {
        Found::File(present) if present == sha256 => return Ok(copy.to_owned()),
        Found::File(_) if is_taken => beside(sha256),
        Found::File(present) => {
            fs::rename(copy, beside(&present))?;
            copy.to_owned()
        }
        Found::Nothing | Found::Link => copy.to_owned(),
    };
    write(&place, &fs::read(path)?, Some(path))?;
    Ok(place)
}

/// Replaces the file atomically. Copies mode, owner and modification time of the file `like`, if it is given.
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

/// Writes and closes a file. The kernel does not run a file that is open for writing.
fn write_at(path: &Path, content: &[u8], like: Option<&Path>) -> io::Result<()> {
    let mut file = file::make(path, MODE)?;
    file.write_all(content)?;
    // set the mode again, because the umask may have reduced it
    file.set_permissions(Permissions::from_mode(MODE))?;
    if let Some(like) = like {
        let like = fs::metadata(like)?;
        file.set_modified(like.modified()?)?;
        file::give(&file, &like)?;
    }
    file.sync_all()
}
