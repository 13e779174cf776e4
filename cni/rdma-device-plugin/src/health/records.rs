//! Which devices are in which pods: what `rdma-cni` has written down below
//! `<stateDir>/attachments/<network>/<container>@<ifname>.json`.
//!
//! Only what is needed here is read, and a record that says it otherwise is passed over: both
//! programs are not always of one version.

use rdma_netns::{DeviceAddress, NetnsId};
use serde::Deserialize;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A device in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Index of its netdev in the pod, where that has no hardware address to be known by.
    pub index: Option<u32>,
    /// The pod.
    pub pod: Place,
}

/// A pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `namespace/name` of the pod, else the container's id.
    pub name: String,
    /// Where the namespace is.
    pub netns: PathBuf,
    /// Which it is.
    pub id: NetnsId,
    /// Whether RDMA devices went into the pod too.
    pub exclusive: bool,
    /// Whether they are on their way there or home.
    pub moving: bool,
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
}

#[derive(Deserialize)]
struct Key {
    container: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rail {
    home: Option<Behind>,
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
pub fn read(attachments: &Path, boot_id: &str) -> Vec<Placed> {
    let mut placed = Vec::new();
    for network in entries(attachments) {
        for file in entries(&network) {
            if file.extension().is_none_or(|end| end != "json") {
                continue;
            }
            match record(&file) {
                Ok(record) if record.boot_id == boot_id => placed.extend(record.placed()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => log::debug!("{file:?} is passed over: {error}"),
            }
        }
    }
    placed
}

fn record(file: &Path) -> io::Result<Record> {
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.flatten().map(|entry| entry.path())
}

impl Record {
    fn placed(self) -> Vec<Placed> {
        // at home the devices may be another pod's by now
        if self.phase == "home" {
            return Vec::new();
        }
        let pod = Place {
            name: self.pod.unwrap_or(self.key.container),
            netns: self.netns,
            id: self.netns_id,
            exclusive: self.rdma_mode.as_deref() == Some("exclusive"),
            moving: self.phase != "attached",
        };
        let moved = self.rails.into_iter().filter(|rail| rail.shared.is_none());
        let placed = moved.filter_map(|rail| {
            let parents = [rail.home, rail.rdma].into_iter().flatten();
            Some(Placed {
                address: parents.filter_map(|it| it.parent).next()?,
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
        let wanted = [
            "0000:3b:00.2 None team/train-0 false",
            "0000:3b:00.3 Some(7) team/train-0 false",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_under_way_moves() {
        let text = record("detaching", "this").to_string();
        let found = placed(&[("rails/c1@eth0.json", text)]);
        assert_eq!(found[0], "0000:3b:00.2 None team/train-0 true");
    }

    #[test]
    fn what_is_home_or_no_record_is_passed_over() {
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
            let text = fs::read_to_string(plans.join(name).join("record.json")).expect("a record");
            let mut record: Value = serde_json::from_str(&text).expect("JSON");
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
