// SPDX-License-Identifier: Apache-2.0
//! CDI entries (Container Device Interface, specification 0.5). A container that gets a device by its CDI name has the
//! character devices of the device's entry.
//!
//! The runtime reads the entry when it creates the container, after the chain's ADD. If a move changes the devices'
//! numbers, ADD can therefore still update the entry.
//!
//! This module writes one CDI file, with one entry for each device. It ignores all other CDI files.

use crate::{CharNode, FileError, file};
use rdma_netns::DeviceAddress;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Vendor and class of all entries.
pub const KIND: &str = "rdma-device-plugin/rdma";

/// Name of the entry for the connection manager's device, `/dev/infiniband/rdma_cm`.
pub const CONNECTION_MANAGER: &str = "rdma_cm";

/// The first version of CDI in which a name may start with a digit, as a PCI address does.
pub const VERSION: &str = "0.5.0";

/// The CDI file of a node.
#[derive(Clone, Debug)]
pub struct Cdi {
    path: PathBuf,
    lock: PathBuf,
}

/// The character devices that a container gets by a CDI name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Address of the device, or [`CONNECTION_MANAGER`].
    pub name: String,
    /// Character devices. Their path in the container equals their path on the node.
    pub nodes: Vec<CharNode>,
}

/// Returns the full CDI name of an entry, such as `rdma-device-plugin/rdma=0000:3b:00.2`.
pub fn full_name(entry: &str) -> String {
    format!("{KIND}={entry}")
}

impl Cdi {
    /// Returns the CDI file in the CDI directory `directory`. A lock in the state directory allows only one process to
    /// write at a time.
    pub fn new(directory: &Path, state_dir: &Path) -> Self {
        Self {
            path: directory.join("rdma-device-plugin-rdma.json"),
            lock: state_dir.join("cdi.lock"),
        }
    }

    /// Replaces all entries. Returns true if the file changed. Calls `entries` while the file is locked: a move that
    /// changes device numbers meanwhile updates its entry after the write.
    pub fn write(&self, entries: impl FnOnce() -> Vec<Entry>) -> Result<bool, FileError> {
        let _lock = file::lock(&self.lock)?;
        self.put(entries().iter().map(Entry::json).collect())
    }

    /// Updates the entry of `device` with the character devices `nodes`. Returns true if the file changed.
    /// - An existing entry keeps its kinds of devices.
    /// - A missing entry is made with the kinds of `promised`: a write by the daemon during the device's move may have
    ///   omitted it.
    /// - Nothing changes if there is neither an entry nor `promised`.
    pub fn renumber(
        &self,
        device: &DeviceAddress,
        nodes: &[CharNode],
        promised: &[CharNode],
    ) -> Result<bool, FileError> {
        let _lock = file::lock(&self.lock)?;
        let content: Value = file::read(&self.path)?.unwrap_or_default();
        match renumbered(&content, device, nodes, promised) {
            Some(devices) => self.put(devices),
            None => Ok(false),
        }
    }

    /// Returns true if the file exists.
    pub fn is_there(&self) -> bool {
        self.path.exists()
    }

    /// Writes the entries that have devices. Removes the file if no entry has a device: the CDI specification allows no
    /// entry without an edit, and no file without entries.
    fn put(&self, mut devices: Vec<Value>) -> Result<bool, FileError> {
        devices.retain(|entry| !kinds(entry).is_empty());
        if devices.is_empty() {
            return file::remove(&self.path);
        }
        let spec = json!({ "cdiVersion": VERSION, "kind": KIND, "devices": devices });
        file::replace(&self.path, &spec, 0o644)
    }
}

impl Entry {
    fn json(&self) -> Value {
        let nodes = self.nodes.iter().map(device_node);
        json!({
            "name": self.name,
            "containerEdits": { "deviceNodes": nodes.collect::<Vec<_>>() },
        })
    }
}

/// Returns the entries of `content` after the update of [`Cdi::renumber`] for `device`. Entries of other devices do not
/// change. Returns `None` if `device` has no entry and gets none.
pub fn renumbered(
    content: &Value,
    device: &DeviceAddress,
    nodes: &[CharNode],
    promised: &[CharNode],
) -> Option<Vec<Value>> {
    let mut devices = content["devices"].as_array().cloned().unwrap_or_default();
    let present = devices.iter().position(|it| it["name"] == **device);
    let kinds = match present {
        Some(index) => kinds(&devices[index]),
        None => promised.iter().map(|it| it.kind().to_owned()).collect(),
    };
    let has_kind = |it: &&CharNode| kinds.iter().any(|kind| kind == it.kind());
    let entry = Entry {
        name: device.to_string(),
        nodes: nodes.iter().filter(has_kind).cloned().collect(),
    };
    match present {
        Some(index) => devices[index] = entry.json(),
        None if entry.nodes.is_empty() => return None,
        None => devices.push(entry.json()),
    }
    Some(devices)
}

/// Returns a character device in the form of CDI's container edits. Its path in the container equals its path on the
/// node.
pub fn device_node(node: &CharNode) -> Value {
    json!({
        "path": format!("/dev/infiniband/{}", node.name),
        "type": "c",
        "major": node.major,
        "minor": node.minor,
        "permissions": "rw",
    })
}

/// Returns the kinds of character devices that an entry has: `uverbs`, `umad`, `issm`.
fn kinds(entry: &Value) -> Vec<String> {
    let nodes = entry["containerEdits"]["deviceNodes"].as_array();
    let names = nodes.into_iter().flatten().filter_map(|node| {
        let name = node["path"].as_str()?.rsplit('/').next()?;
        Some(
            name.trim_end_matches(|c: char| c.is_ascii_digit())
                .to_owned(),
        )
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        fs,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        time::{Duration, Instant},
    };

    fn node(name: &str, minor: u32) -> CharNode {
        CharNode {
            name: name.into(),
            major: 231,
            minor,
        }
    }

    fn spec(directory: &Path) -> Value {
        let file = directory.join("cdi/rdma-device-plugin-rdma.json");
        serde_json::from_slice(&fs::read(file).expect("the spec")).expect("JSON")
    }

    /// Readers run while another thread writes the file, like the daemon or a move.
    #[test]
    fn readers_see_the_file_whole_while_it_is_written() {
        const ENTRIES: u32 = 64;
        let directory = tempfile::tempdir().expect("a directory");
        let cdi = Cdi::new(&directory.path().join("cdi"), directory.path());
        // all entries of one write have the same minor number
        let version = |minor: u32| {
            let entries = (0..ENTRIES).map(|number| Entry {
                name: format!("0000:3b:00.{number:x}"),
                nodes: vec![node("uverbs0", minor)],
            });
            entries.collect::<Vec<_>>()
        };
        cdi.write(|| version(0)).expect("written");
        let ended = AtomicBool::new(false);
        let versions = [const { AtomicUsize::new(0) }; 2];
        let read = |versions: &AtomicUsize| {
            let mut seen = BTreeSet::new();
            while !ended.load(Ordering::Relaxed) {
                let spec = spec(directory.path());
                let devices = spec["devices"].as_array().expect("devices");
                assert_eq!(devices.len(), ENTRIES as usize);
                let minors = devices.iter().map(|it| {
                    let minor = &it["containerEdits"]["deviceNodes"][0]["minor"];
                    minor.as_u64().expect("a number")
                });
                let minors: BTreeSet<u64> = minors.collect();
                assert_eq!(minors.len(), 1, "two versions in one: {minors:?}");
                seen.extend(minors);
                versions.store(seen.len(), Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            let readers = versions.each_ref().map(|it| scope.spawn(move || read(it)));
            let end = Instant::now() + Duration::from_secs(30);
            // a reader may not have got a CPU yet
            let is_behind = || versions.iter().any(|it| it.load(Ordering::Relaxed) < 2);
            for minor in 1.. {
                let is_running = readers.iter().all(|it| !it.is_finished());
                if minor > 40 && !(is_behind() && is_running && Instant::now() < end) {
                    break;
                }
                assert!(cdi.write(|| version(minor)).expect("written"));
            }
            ended.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.join().expect("it read what was whole");
            }
            assert!(!is_behind(), "it read one version only: {versions:?}");
        });
    }

    #[test]
    fn a_move_puts_its_own_entry_right() {
        let directory = tempfile::tempdir().expect("a directory");
        let cdi = Cdi::new(&directory.path().join("cdi"), directory.path());
        let entry = |name: &str, nodes| Entry {
            name: name.into(),
            nodes,
        };
        let entries = || {
            vec![
                entry("0000:3b:00.2", vec![node("uverbs0", 192)]),
                entry("0000:3b:00.3", vec![node("uverbs1", 193), node("umad1", 1)]),
                entry(CONNECTION_MANAGER, vec![node("rdma_cm", 0)]),
            ]
        };
        assert!(cdi.write(entries).expect("written"));
        assert!(!cdi.write(entries).expect("no news"));
        let before = spec(directory.path());

        let address = |text: &str| DeviceAddress::try_from(text.to_owned()).expect("an address");
        let now = [node("uverbs4", 196), node("umad4", 4)];
        assert!(
            cdi.renumber(&address("0000:3b:00.2"), &now, &[])
                .expect("renumbered")
        );
        let after = spec(directory.path());
        let nodes = &after["devices"][0]["containerEdits"]["deviceNodes"];
        assert_eq!(
            nodes.as_array().map(Vec::len),
            Some(1),
            "umad was not asked for"
        );
        assert_eq!(nodes[0]["path"], "/dev/infiniband/uverbs4");
        assert_eq!(nodes[0]["minor"], 196);
        assert_eq!(after["devices"][1], before["devices"][1]);
        assert_eq!(after["devices"][2], before["devices"][2]);

        assert!(
            !cdi.renumber(&address("0000:3b:00.2"), &now, &[])
                .expect("no news")
        );
        assert!(
            !cdi.renumber(&address("0000:3b:00.7"), &now, &[])
                .expect("no entry")
        );
        assert!(cdi.is_there());
        assert!(cdi.write(Vec::new).expect("written"));
        assert!(!cdi.is_there());
        assert!(
            !cdi.renumber(&address("0000:3b:00.2"), &now, &[])
                .expect("no file")
        );
    }

    #[test]
    fn only_our_own_file_is_touched() {
        let directory = tempfile::tempdir().expect("a directory");
        let cdi_dir = directory.path().join("cdi");
        fs::create_dir(&cdi_dir).expect("a directory");
        let other = cdi_dir.join("nvidia.com-gpu.json");
        fs::write(&other, "{}").expect("written");
        let cdi = Cdi::new(&cdi_dir, directory.path());
        let entry = |nodes| Entry {
            name: CONNECTION_MANAGER.into(),
            nodes,
        };
        assert!(
            cdi.write(|| vec![entry(vec![node("rdma_cm", 0)])])
                .expect("written")
        );
        // the runtime refuses a file without entries, and a file with an entry without devices
        assert!(cdi.write(|| vec![entry(vec![])]).expect("written"));
        let left: Vec<_> = fs::read_dir(&cdi_dir)
            .expect("a directory")
            .flatten()
            .collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].path(), other);
    }
}
