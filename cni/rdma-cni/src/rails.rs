// SPDX-License-Identifier: Apache-2.0
//! `rails.json`: the names that programs in a pod need to use RDMA. ADD writes the names into its result and into this
//! file. Containers can mount the file.
//!
//! ```text
//! <stateDir>/rails/<network>/<pod namespace>_<pod name>/rails.json
//! ```
//! The directory of the file has the pod's name, or the container id if the runtime passes no pod's name. A name that
//! exceeds the limit for file names is shortened, and ends with a hash. The file lists all attachments of the pod to
//! the network. If a pod is created again while its old sandbox ends, the file lists only attachments of the new pod.
//! Pods may mount these directories, and may write to them as root: see the module `directory`.

mod directory;

use attachments::{Attachment, Key, store::StoreError};
use cni_protocol::{
    lock::{Held, LockDeadline},
    state_file,
};
use directory::Directory;
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

const FORMAT: u32 = 1;

/// Size limit in bytes. All files that this module writes are smaller. A pod can replace the file, so this module reads
/// at most this many bytes.
pub const LARGEST: usize = 1 << 20;

const FILE: &str = "rails.json";

/// Temporary name of the file, directly below `rails/`: pods that mount only a network's directory cannot reach it. No
/// network has this name, because no network's name begins with `.`.
const TEMPORARY: &str = ".rails.json.new";

/// Name of the lock file for changes below `rails/`. Pods that mount a network's directory can change that directory
/// without this lock. No network's name begins with `.`.
const LOCK: &str = ".lock";

fn directory_name(key: &Key, pod: Option<&str>) -> String {
    let pod = pod.map(|pod| pod.replace('/', "_"));
    state_file::file_name(pod.as_ref().unwrap_or(&key.container)).into_owned()
}

/// Returns the path of the file under the state directory `root`, for messages.
fn path(root: &Path, key: &Key, pod: Option<&str>) -> PathBuf {
    let directory = root.join("rails").join(&key.network);
    directory.join(directory_name(key, pod)).join(FILE)
}

/// Writes the rails of `attachment` into the file.
pub fn write(
    root: &Path,
    lock_deadline: LockDeadline,
    attachment: &Attachment,
) -> Result<(), StoreError> {
    let rails = attachment.describe_rails();
    if rails.is_empty() {
        return Ok(());
    }
    let (key, pod) = (&attachment.key, attachment.pod.as_deref());
    let failed = |source| StoreError::new("write", &path(root, key, pod), source);
    let make = || {
        let root = match Directory::open(root)? {
            Some(root) => root,
            None => {
                fs::create_dir_all(root)?;
                Directory::open(root)?.ok_or(io::ErrorKind::NotFound)?
            }
        };
        root.make("rails")
    };
    let all = make().map_err(failed)?;
    let _lock = lock(root, &all, lock_deadline)?;
    let write = || {
        let network = all.make(&key.network)?;
        let pods = pod_directory(&network, &directory_name(key, pod))?;
        let others = others(&pods, key)?.unwrap_or_default();
        put(&all, &pods, &text(pod, key, others, rails))
    };
    write().map_err(failed)
}

fn lock(root: &Path, all: &Directory, lock_deadline: LockDeadline) -> Result<Held, StoreError> {
    let failed = |source| StoreError::new("lock", &root.join("rails").join(LOCK), source);
    all.lock(LOCK, lock_deadline).map_err(failed)
}

/// Opens the pod's directory, or creates it. First removes a file at this path: a pod that mounts the network's
/// directory can have created it.
fn pod_directory(network: &Directory, name: &str) -> io::Result<Directory> {
    match network.make(name) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            network.remove(name)?;
            network.make(name)
        }
        made => made,
    }
}

/// Removes the rails of `key` from the file. Removes the file and its directory if no rails remain.
pub fn remove(
    root: &Path,
    lock_deadline: LockDeadline,
    key: &Key,
    pod: Option<&str>,
) -> Result<(), StoreError> {
    let name = directory_name(key, pod);
    let failed = |source| StoreError::new("remove", &path(root, key, pod), source);
    let find = || {
        let Some(root) = Directory::open(root)? else {
            return Ok(None);
        };
        let Some(all) = root.enter("rails")? else {
            return Ok(None);
        };
        let Some(network) = all.enter(&key.network)? else {
            return Ok(None);
        };
        let pods = match network.enter(&name) {
            // a file is at the path of the directory
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                network.remove(&name)?;
                None
            }
            entered => entered?,
        };
        Ok(pods.map(|pods| (all, network, pods)))
    };
    let Some((all, network, pods)) = find().map_err(failed)? else {
        return Ok(());
    };
    let _lock = lock(root, &all, lock_deadline)?;
    let remove = || {
        // a killed process may have left this file
        all.remove(TEMPORARY)?;
        match others(&pods, key)? {
            // the file already belongs to a new pod with the same name
            None => return Ok(()),
            Some(others) if !others.is_empty() => {
                return put(&all, &pods, &text(pod, key, others, vec![]));
            }
            Some(_) => {}
        }
        pods.remove(FILE)?;
        network.remove_directory(&name)
    };
    remove().map_err(failed)
}

/// Returns the rails in the file that belong to other attachments of the pod. Returns `None` if the file belongs to
/// another pod.
fn others(pods: &Directory, key: &Key) -> io::Result<Option<Vec<Value>>> {
    Ok(match pods.read(FILE)? {
        Some(text) => others_of(&text, key),
        None => Some(vec![]),
    })
}

/// Parses `text`, and returns the rails that belong to other attachments of the pod. Returns `None` if the file belongs
/// to another pod.
pub fn others_of(text: &[u8], key: &Key) -> Option<Vec<Value>> {
    let Ok(content) = serde_json::from_slice::<Value>(text) else {
        // a power loss just after the write left an incomplete file: its pod ended with that boot
        return Some(vec![]);
    };
    if content["containerID"] != key.container {
        return None;
    }
    let rails = content["rails"].as_array().into_iter().flatten();
    let others = rails.filter(|rail| rail["ifname"] != *key.interface);
    Some(others.cloned().collect())
}

/// Returns the file's text: `own`, the rails of `key`, and `others`, the unchanged rails of the pod's other
/// attachments. Omits `others` if the text would exceed [`LARGEST`]: the pod can have written `others`, and indentation
/// can multiply their size.
pub fn text(pod: Option<&str>, key: &Key, others: Vec<Value>, own: Vec<Value>) -> Vec<u8> {
    let written = |rails: Vec<Value>, most: usize| {
        let content = json!({
            "format": FORMAT,
            "network": key.network,
            "pod": pod,
            "containerID": key.container,
            "rails": rails,
        });
        let mut text = Text {
            bytes: vec![],
            most,
        };
        let written = serde_json::to_writer_pretty(&mut text, &content);
        written.and_then(|()| text.write_all(b"\n").map_err(serde_json::Error::io))?;
        Ok::<_, serde_json::Error>(text.bytes)
    };
    let all = others.into_iter().chain(own.iter().cloned()).collect();
    // the second write cannot fail, because it has no size limit
    written(all, LARGEST)
        .or_else(|_| written(own, usize::MAX))
        .unwrap_or_default()
}

/// A text with a size limit.
struct Text {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the whole file. Programs of the pod can read it under any user id.
fn put(all: &Directory, pods: &Directory, text: &[u8]) -> io::Result<()> {
    let written = all.write(TEMPORARY, text, 0o644);
    let put = written.and_then(|()| all.rename(TEMPORARY, pods, FILE));
    put.inspect_err(|_| {
        let _ = all.remove(TEMPORARY);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_netns::InterfaceName;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn key(container: &str) -> Key {
        Key {
            network: "net".into(),
            container: container.into(),
            interface: InterfaceName::try_from("eth0").unwrap(),
        }
    }

    const POD: Option<&str> = Some("default/web-0");

    /// Writes the file of `key` like [`write`], but with one rail that has only a name, and without rails of other
    /// attachments.
    fn put_one(root: &Path, key: &Key) -> io::Result<()> {
        let root = Directory::open(root)?.unwrap();
        let all = root.make("rails")?;
        let pods = pod_directory(&all.make(&key.network)?, &directory_name(key, POD))?;
        put(
            &all,
            &pods,
            &text(POD, key, vec![], vec![json!({"ifname": "eth0"})]),
        )
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "it measures this machine's files"
    )]
    fn a_planted_gigabyte_is_not_read() {
        let state = tempfile::tempdir().unwrap();
        let (root, file) = (state.path(), path(state.path(), &key("a"), POD));
        put_one(root, &key("a")).unwrap();
        let plant = || fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
        let begin = std::time::Instant::now();
        plant();
        put_one(root, &key("a")).unwrap();
        assert!(fs::metadata(&file).unwrap().len() < LARGEST as u64);
        plant();
        // a file that is too large counts as a file without rails of other attachments
        remove(root, LockDeadline::of_verb(), &key("a"), POD).unwrap();
        assert!(!file.exists());
        assert!(begin.elapsed() < integration::wait::TIMEOUT);
    }

    /// The planted file has 200 kB. Its rails are omitted, because with indentation they would have 20 MB.
    #[test]
    fn a_planted_file_does_not_grow() {
        let deep = "[".repeat(100) + &"0,".repeat(100_000) + "0" + &"]".repeat(100);
        let planted = format!(r#"{{"containerID":"a","rails":[{{"ifname":"eth1"}},{deep}]}}"#);
        let others = others_of(planted.as_bytes(), &key("a")).unwrap();
        assert_eq!(others.len(), 2);
        let own = json!({"ifname": "eth0"});
        let written = text(POD, &key("a"), others, vec![own.clone()]);
        assert!(written.len() <= LARGEST, "{} bytes", written.len());
        let content: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(content["rails"], json!([own]));
    }

    #[test]
    fn a_file_that_came_back_empty_after_a_loss_of_power_goes_and_another_pods_stays() {
        let state = tempfile::tempdir().unwrap();
        let root = state.path();
        let file = path(root, &key("old"), POD);
        put_one(root, &key("old")).unwrap();
        fs::write(&file, "").unwrap();
        remove(root, LockDeadline::of_verb(), &key("old"), POD).unwrap();
        assert!(!file.parent().unwrap().exists());

        put_one(root, &key("new")).unwrap();
        remove(root, LockDeadline::of_verb(), &key("old"), POD).unwrap();
        assert!(file.exists());
    }

    /// The pod has mounted its own directory, or all directories, and can write to the mount.
    #[test]
    fn planted_objects_are_not_followed_read_or_removed() {
        let state = tempfile::tempdir().unwrap();
        let (root, file) = (state.path(), path(state.path(), &key("a"), POD));
        let directory = file.parent().unwrap();
        let host = state.path().join("shadow");
        let is_untouched = |what: &Path| {
            assert_eq!(fs::read_to_string(&host).unwrap(), "the host's", "{what:?}");
            let mode = fs::metadata(&host).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{what:?}");
        };
        let rails = root.join("rails");
        let planted = [file.clone(), directory.to_owned(), rails.join(TEMPORARY)];
        for what in &planted {
            fs::write(&host, "the host's").unwrap();
            fs::set_permissions(&host, fs::Permissions::from_mode(0o600)).unwrap();
            let _ = fs::remove_dir_all(&rails);
            put_one(root, &key("a")).unwrap();
            let plant = || {
                let _ = fs::remove_file(what);
                let _ = fs::remove_dir_all(what);
                symlink(&host, what).unwrap();
            };
            plant();
            put_one(root, &key("a")).unwrap();
            is_untouched(what);
            let written = fs::symlink_metadata(&file).unwrap();
            assert!(written.is_file(), "{what:?}");
            assert_eq!(written.permissions().mode() & 0o777, 0o644, "{what:?}");
            plant();
            remove(root, LockDeadline::of_verb(), &key("a"), POD).unwrap();
            is_untouched(what);
            assert!(fs::symlink_metadata(&file).is_err(), "{what:?}");
        }
        // a directory outside of the rails' directories
        let elsewhere = root.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join(FILE), "").unwrap();
        let _ = fs::remove_dir_all(&rails);
        fs::create_dir_all(directory.parent().unwrap()).unwrap();
        symlink(&elsewhere, directory).unwrap();
        remove(root, LockDeadline::of_verb(), &key("a"), POD).unwrap();
        symlink(&elsewhere, directory).unwrap();
        put_one(root, &key("a")).unwrap();
        assert_eq!(fs::read_to_string(elsewhere.join(FILE)).unwrap(), "");
    }

    /// A pod has created a directory at the file's path. The directory contains a directory, and a link to a directory
    /// of the host.
    #[test]
    fn a_planted_directory_is_replaced_and_removed() {
        let state = tempfile::tempdir().unwrap();
        let (root, file) = (state.path(), path(state.path(), &key("a"), POD));
        let elsewhere = root.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("kept"), "").unwrap();
        let plant = || {
            let _ = fs::remove_file(&file);
            fs::create_dir_all(file.join("more")).unwrap();
            symlink(&elsewhere, file.join("link")).unwrap();
        };
        plant();
        put_one(root, &key("a")).unwrap();
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        plant();
        remove(root, LockDeadline::of_verb(), &key("a"), POD).unwrap();
        assert!(!file.parent().unwrap().exists());
        assert!(elsewhere.join("kept").exists());
    }

    /// A pod has created two directories. One is so deep that a recursive removal would exhaust the verb's stack or
    /// descriptors. The other has so many entries that other verbs would have to wait for its removal.
    #[test]
    fn a_planted_directory_without_end_is_reported_and_keeps_nobody() {
        let state = tempfile::tempdir_in("/dev/shm").unwrap();
        let (root, file) = (state.path(), path(state.path(), &key("a"), POD));
        let deep = |levels: usize| {
            let mut inner = Directory::open(&file).unwrap().unwrap();
            for _ in 1..levels {
                inner = inner.make("d").unwrap();
            }
        };
        let wide = |entries: usize| {
            let inner = Directory::open(&file).unwrap().unwrap();
            for number in 0..entries {
                inner.make(&number.to_string()).unwrap();
            }
        };
        let planted = |plant: &dyn Fn(usize), much: usize| {
            put_one(root, &key("a")).unwrap();
            fs::remove_file(&file).unwrap();
            fs::create_dir(&file).unwrap();
            plant(much);
        };
        let assert_remedy =
            |error: String| assert!(error.contains("remove that directory by hand"), "{error}");
        let put = || assert_remedy(put_one(root, &key("a")).unwrap_err().to_string());
        let removed = || {
            let removed = remove(root, LockDeadline::of_verb(), &key("a"), POD);
            assert_remedy(removed.unwrap_err().to_string());
        };
        let left = || fs::read_dir(&file).unwrap().count();
        let by_hand = || {
            let removed = std::process::Command::new("rm")
                .arg("-rf")
                .arg(&file)
                .status();
            assert!(removed.unwrap().success());
        };

        planted(&wide, 5000);
        put();
        assert_eq!(left(), 4000);
        removed();
        assert_eq!(left(), 3000);
        by_hand();
        planted(&deep, 19_000);
        put();
        removed();
        by_hand();
        // one level more than the limit
        planted(&deep, 33);
        put();
        removed();
        assert_eq!(left(), 1);
        by_hand();
        for (plant, most) in [(&deep as &dyn Fn(usize), 32), (&wide, 1000)] {
            planted(plant, most);
            put_one(root, &key("a")).unwrap();
            assert!(file.is_file(), "{most}");
        }
    }

    /// A network may be called `lock` or `rails.json`.
    #[test]
    fn any_name_of_a_network_has_rails() {
        for network in ["lock", FILE] {
            let state = tempfile::tempdir().unwrap();
            let key = Key {
                network: network.into(),
                ..key("a")
            };
            let all = Directory::open(state.path()).unwrap().unwrap();
            let all = all.make("rails").unwrap();
            let _lock = all.lock(LOCK, LockDeadline::of_verb()).unwrap();
            put_one(state.path(), &key).unwrap();
            assert!(path(state.path(), &key, POD).exists(), "{network}");
        }
    }

    /// Opening a pipe that a pod has created must not wait for a writer.
    #[test]
    fn a_planted_pipe_is_replaced() {
        let state = tempfile::tempdir().unwrap();
        let (root, file) = (state.path(), path(state.path(), &key("a"), POD));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let all = Directory::open(&root.join("rails")).unwrap().unwrap();
        let network = all.enter("net").unwrap().unwrap();
        let pods = network.enter(&directory_name(&key("a"), POD)).unwrap();
        assert_eq!(others(&pods.unwrap(), &key("a")).unwrap(), Some(vec![]));
        put_one(root, &key("a")).unwrap();
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
    }
}
