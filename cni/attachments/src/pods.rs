// SPDX-License-Identifier: Apache-2.0
//! Which devices are in which pods: what `rdma-cni` has written down below
//! `<stateDir>/attachments/<network>/<container>@<ifname>.json`.
//!
//! Only what is needed here is read, and a record that says it otherwise is passed over: both
//! programs are not always of one version.

mod rails;

pub use rails::{PodRail, PodRails, RailAddress, rails, rails_of_text};

use cni_protocol::state_file;
use rdma_netns::{DeviceAddress, NetnsId};
use serde::Deserialize;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A device in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDevice {
    /// The PCI function or auxiliary device of its RDMA device, or else of its netdev.
    pub address: DeviceAddress,
    /// That of its netdev, or else of its RDMA device.
    pub netdev: DeviceAddress,
    /// Index of its netdev in the pod, where that has no hardware address to be known by.
    pub index: Option<u32>,
    /// The pod.
    pub pod: PodNetns,
}

impl PodDevice {
    /// Whether the function at `address` is one of its two.
    pub fn has(&self, address: &DeviceAddress) -> bool {
        self.address == *address || self.netdev == *address
    }
}

/// A pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetns {
    /// `namespace/name` of the pod, else the container's id.
    pub name: String,
    /// Where the namespace is, seen from here.
    pub netns: PathBuf,
    /// Which it is.
    pub id: NetnsId,
    /// Whether RDMA devices went into the pod too.
    pub exclusive: bool,
    /// Whether they are on their way there or back.
    pub moving: bool,
}

/// What came of SMC-R for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSmc {
    /// The pod's namespace in the cluster; empty: not known.
    pub namespace: String,
    /// Its name, else the container's id.
    pub pod: String,
    /// `active`, `off`
    pub state: String,
    /// Why.
    pub reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    key: Key,
    pod: Option<String>,
    boot_id: String,
    netns: PathBuf,
    netns_id: NetnsId,
    phase: String,
    rdma_mode: Option<String>,
    rails: Vec<Rail>,
    smc: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Key {
    container: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rail {
    #[serde(rename = "home")]
    host_link: Option<Behind>,
    shared: Option<serde::de::IgnoredAny>,
    rdma: Option<Behind>,
    pod_index: Option<u32>,
}

/// A netdev or an RDMA device, of which only the hardware behind it matters.
#[derive(Deserialize)]
struct Behind {
    parent: Option<DeviceAddress>,
}

/// The devices that are in pods, by the records of this boot.
pub fn read(attachments: &Path, boot_id: &str) -> Vec<PodDevice> {
    let records = records(attachments, boot_id).into_iter();
    records.flat_map(Record::placed).collect()
}

/// What came of SMC-R for each pod that wanted it.
pub fn smc(attachments: &Path, boot_id: &str) -> Vec<PodSmc> {
    let records = records(attachments, boot_id).into_iter();
    records.filter_map(|record| record.smc()).collect()
}

fn records(attachments: &Path, boot_id: &str) -> Vec<Record> {
    let mut records = Vec::new();
    for file in files(attachments) {
        match record(&file) {
            Ok(record) if record.boot_id == boot_id => records.push(record),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => log::debug!("{file:?} is passed over: {error}"),
        }
    }
    records
}

/// The records' files, of all networks.
fn files(attachments: &Path) -> impl Iterator<Item = PathBuf> {
    let files = entries(attachments).flat_map(|network| entries(&network));
    files.filter(|file| file.extension().is_some_and(|end| end == "json"))
}

/// Where the namespace at `given` is seen from here: runtimes say `/var/run/netns/…`, which is
/// `/run/netns/…` on a node, and need not be in a container. Where both are there, it is the one
/// that is this namespace; where neither is, it is gone.
pub fn netns_seen(given: PathBuf, id: NetnsId) -> PathBuf {
    let Ok(below) = given.strip_prefix("/var/run") else {
        return given;
    };
    let run = Path::new("/run").join(below);
    let found = |path: &Path| fs::metadata(path).ok();
    let is =
        |path: &Path| found(path).is_some_and(|it| (it.dev(), it.ino()) == (id.device, id.inode));
    if !is(&given) && (is(&run) || found(&given).is_none()) {
        return run;
    }
    given
}

/// Whether the namespace that is not at `netns` may be there all the same: this is a container without the directory of
/// the namespaces.
pub fn is_out_of_sight(netns: &Path) -> bool {
    !netns.parent().is_some_and(Path::is_dir)
}

fn record(file: &Path) -> io::Result<Record> {
    Ok(serde_json::from_slice(&state_file::read(file)?)?)
}

/// The devices that are in the pod of the record with this text, whichever boot it is of.
///
/// # Errors
/// It is no record.
pub fn of_text(text: &[u8]) -> serde_json::Result<Vec<PodDevice>> {
    serde_json::from_slice(text).map(Record::placed)
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.flatten().map(|entry| entry.path())
}

impl Record {
    /// `namespace/name` of the pod, else the container's id.
    fn name(&self) -> &str {
        self.pod.as_deref().unwrap_or(&self.key.container)
    }

    fn smc(&self) -> Option<PodSmc> {
        if self.phase == "home" {
            return None;
        }
        let text = |key: &str| Some(self.smc.as_ref()?.get(key)?.as_str()?.to_owned());
        let (namespace, pod) = self.name().split_once('/').unwrap_or(("", self.name()));
        Some(PodSmc {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            state: text("state")?,
            reason: text("reason"),
        })
    }

    fn placed(self) -> Vec<PodDevice> {
        // once restored, the devices may be another pod's by now
        if self.phase == "home" {
            return Vec::new();
        }
        let pod = PodNetns {
            name: self.name().to_owned(),
            netns: netns_seen(self.netns, self.netns_id),
            id: self.netns_id,
            exclusive: self.rdma_mode.as_deref() == Some("exclusive"),
            moving: self.phase != "attached",
        };
        let moved = self.rails.into_iter().filter(|rail| rail.shared.is_none());
        let placed = moved.filter_map(|rail| {
            let [netdev, rdma] = [rail.host_link, rail.rdma].map(|it| it.and_then(|it| it.parent));
            Some(PodDevice {
                address: rdma.clone().or_else(|| netdev.clone())?,
                netdev: netdev.or(rdma)?,
                index: rail.pod_index,
                pod: pod.clone(),
            })
        });
        placed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn record(phase: &str, boot_id: &str) -> Value {
        json!({
            "format": 2, "phase": phase, "bootId": boot_id, "pod": "team/train-0",
            "key": {"network": "rails", "container": "c1", "interface": "eth0"},
            "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
            "rdmaMode": "exclusive", "later": {"version": 9},
            "rails": [
                {"podName": "rdma0", "home": {"name": "eth1", "parent": "0000:3b:00.2"}},
                {"podName": "rdma1", "rdma": {"name": "rxe0", "parent": "0000:3b:00.3"}, "podIndex": 7},
                {"podName": "rdma2", "shared": {"parent": "bond0"},
                 "rdma": {"name": "mlx5_bond_0", "parent": "0000:3b:00.0"}},
                {"podName": "rdma3", "home": {"name": "veth0"}},
            ],
        })
    }

    fn placed(files: &[(&str, String)]) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let file = directory.path().join(name);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        }
        let mut found: Vec<String> = read(directory.path(), "this")
            .iter()
            .map(|it| {
                format!(
                    "{} {:?} {} {}",
                    it.address, it.index, it.pod.name, it.pod.moving
                )
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn what_was_moved_is_in_the_pod() {
        let text = record("attached", "this").to_string();
        let found = placed(&[("rails/c1@eth0.json", text)]);
        let desired = [
            "0000:3b:00.2 None team/train-0 false",
            "0000:3b:00.3 Some(7) team/train-0 false",
        ];
        assert_eq!(found, desired);
    }

    /// eRDMA: the netdev is one PCI function, the RDMA device another.
    #[test]
    fn a_nic_of_two_functions_is_known_by_its_rdma_device() {
        let mut text = record("attached", "this");
        text["rails"] = json!([{
            "podName": "rdma0", "home": {"name": "eth1", "parent": "0000:00:06.0"},
            "rdma": {"name": "erdma_0", "parent": "0000:00:07.0"},
        }]);
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("a")).expect("made");
        fs::write(directory.path().join("a/1@eth0.json"), text.to_string()).expect("written");
        let found = read(directory.path(), "this");
        assert_eq!(&*found[0].address, "0000:00:07.0");
        assert_eq!(&*found[0].netdev, "0000:00:06.0");
    }

    #[test]
    fn what_came_of_smc() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("a")).expect("made");
        let write = |name: &str, smc: Value, phase: &str| {
            let mut text = record(phase, "this");
            text["pod"] = format!("team/{name}").into();
            text["smc"] = smc;
            let file = directory.path().join("a").join(format!("{name}@eth0.json"));
            fs::write(file, text.to_string()).expect("written");
        };
        write("on", json!({"state": "active", "entries": []}), "attached");
        write(
            "off",
            json!({"state": "off", "reason": "noModule"}),
            "attached",
        );
        write("gone", json!({"state": "active"}), "home");
        write("later", json!("other"), "attached");
        write("none", Value::Null, "attached");
        let mut found = smc(directory.path(), "this");
        found.sort();
        let told: Vec<_> = found
            .iter()
            .map(|it| format!("{}/{} {} {:?}", it.namespace, it.pod, it.state, it.reason))
            .collect();
        assert_eq!(
            told,
            ["team/off off Some(\"noModule\")", "team/on active None"]
        );
    }

    /// No namespaces: what tells them apart is a file's device and inode.
    #[test]
    fn a_namespace_is_where_it_is_seen() {
        let run = tempfile::tempdir_in("/run").expect("a directory");
        let name = run.path().file_name().expect("a name");
        let at = |root: &str| Path::new(root).join(name).join("cni-1");
        fs::write(at("/run"), "").expect("written");
        let id = |path: &Path| {
            let found = fs::metadata(path).expect("a file");
            NetnsId {
                device: found.dev(),
                inode: found.ino(),
                cookie: 1,
            }
        };
        let (here, given) = (at("/run"), at("/var/run"));
        let own = id(&here);
        // a link on a node, as a rule
        let shown = if given.exists() { &given } else { &here };
        assert_eq!(&netns_seen(given.clone(), own), shown);
        assert_eq!(netns_seen(here.clone(), own), here);
        assert_eq!(
            netns_seen("/proc/1/ns/net".into(), own),
            Path::new("/proc/1/ns/net")
        );
        fs::remove_file(&here).expect("gone");
        assert_eq!(netns_seen(given.clone(), own), here);
    }

    #[test]
    fn what_is_under_way_moves() {
        let text = record("detaching", "this").to_string();
        let found = placed(&[("rails/c1@eth0.json", text)]);
        assert_eq!(found[0], "0000:3b:00.2 None team/train-0 true");
    }

    #[test]
    fn what_is_restored_or_no_record_is_passed_over() {
        let files = [
            ("a/1@eth0.json", record("home", "this").to_string()),
            ("a/2@eth0.json", record("attached", "another").to_string()),
            ("a/3@eth0.json", "{\"format\"".to_owned()),
            ("a/4@eth0.json", "{}".to_owned()),
            ("a/5@eth0.lock", record("attached", "this").to_string()),
            ("6.json", record("attached", "this").to_string()),
        ];
        assert_eq!(placed(&files), [] as [&str; 0]);
    }

    /// Records as `rdma-cni` has them in its own tests.
    #[test]
    fn what_rdma_cni_writes_is_understood() {
        let record = |name: &str| {
            let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rdma-cni/tests/plans");
            let case = plans.join("cases").join(name).with_extension("json");
            let mut record = cases::read(&case)["record"].take();
            record["bootId"] = "this".into();
            record["phase"] = "attached".into();
            record.to_string()
        };
        let moved = placed(&[("rails/1@eth0.json", record("detach-from-pod"))]);
        assert_eq!(moved.len(), 2, "{moved:?}");
        let shared = placed(&[("rails/1@eth0.json", record("detach-share"))]);
        assert_eq!(shared, [] as [&str; 0]);
    }
}
