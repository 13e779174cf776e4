// SPDX-License-Identifier: Apache-2.0
//! Devices in pods, from the records of this boot whose devices are not restored. Leaves out records that cannot be
//! read, or that a newer `rdma-cni` wrote. `doctor` reports these records.

pub mod netns;
mod rails;

pub use rails::{PodRail, PodRails, RailAddress, rails};

use crate::{Attachment, Phase, Rail, Store};
use rdma_netns::{DeviceAddress, NetnsId};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A device in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDevice {
    /// The PCI function or auxiliary device of the RDMA device, or of the netdev if there is no RDMA device.
    pub address: DeviceAddress,
    /// The PCI function or auxiliary device of the netdev, or of the RDMA device if there is no netdev.
    pub netdev: DeviceAddress,
    /// Index of the netdev in the pod. `None`: the netdev is identified by its PCI function or auxiliary device.
    pub index: Option<u32>,
    /// The pod that has the device.
    pub pod: PodNetns,
}

impl PodDevice {
    /// Returns true if `address` is the address of the RDMA device or of the netdev.
    pub fn has(&self, address: &DeviceAddress) -> bool {
        self.address == *address || self.netdev == *address
    }
}

/// A pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetns {
    /// `namespace/name` of the pod. If the name is unknown: the container's id.
    pub name: String,
    /// Path of the namespace, as this process sees it.
    pub netns: PathBuf,
    /// Identity of the namespace.
    pub id: NetnsId,
    /// True if ADD moves the RDMA devices into the pod too.
    pub exclusive: bool,
    /// True until ADD has answered, and after a restore has begun.
    pub moving: bool,
}

/// SMC-R status of one attachment of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSmc {
    /// The pod's Kubernetes namespace. Empty if unknown.
    pub namespace: String,
    /// The pod's name. If the name is unknown: the container's id.
    pub pod: String,
    /// SMC-R status: `active` or `off`.
    pub state: String,
    /// The reason for the status.
    pub reason: Option<String>,
}

/// Returns the devices that are in pods, by the records of this boot. Leaves out rails with a shared netdev, and
/// devices without a PCI function or auxiliary device.
pub fn read(store: &Store, boot_id: &str) -> Vec<PodDevice> {
    let records = records(store, boot_id).into_iter();
    records.flat_map(Attachment::placed).collect()
}

/// Returns the SMC-R status of each attachment whose pod requested SMC-R.
pub fn smc(store: &Store, boot_id: &str) -> Vec<PodSmc> {
    let records = records(store, boot_id).into_iter();
    let smc = |it: Attachment| {
        let (namespace, pod) = it.pod_name().split_once('/').unwrap_or(("", it.pod_name()));
        let smc = it.smc.as_ref()?;
        Some(PodSmc {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            state: smc.state.to_string(),
            reason: smc.reason.clone(),
        })
    };
    records.filter_map(smc).collect()
}

fn records(store: &Store, boot_id: &str) -> Vec<Attachment> {
    let records = store.of_boot(boot_id);
    records
        .inspect_err(|error| log::debug!("{error}"))
        .unwrap_or_default()
}

/// Returns the path of the namespace `id`, as this process sees it. `given` is the path that the runtime passed.
///
/// Runtimes use `/var/run/netns/…`. On a node `/var/run` is a link to `/run`, but in a container this link may be
/// missing. This function therefore also tries `/run/netns/…`. If both paths exist, it returns the path that leads to
/// the namespace `id`, or `given` if `id` is `None`.
pub fn netns_seen(given: PathBuf, id: impl Into<Option<NetnsId>>) -> PathBuf {
    let Ok(below) = given.strip_prefix("/var/run") else {
        return given;
    };
    let run = Path::new("/run").join(below);
    let found = |path: &Path| fs::metadata(path).ok();
    let id = id.into().map(|id| (id.device, id.inode));
    let is = |path: &Path| found(path).is_some_and(|it| Some((it.dev(), it.ino())) == id);
    if !is(&given) && (is(&run) || found(&given).is_none()) {
        return run;
    }
    given
}

/// Returns true if this process cannot see the directory of `netns`, as in a container without the host's `/run/netns`.
/// The namespace may then exist on the node although its path is missing here.
pub fn is_out_of_sight(netns: &Path) -> bool {
    !netns.parent().is_some_and(Path::is_dir)
}

impl Attachment {
    /// Returns `namespace/name` of the pod, or the container's id if the pod is unknown.
    fn pod_name(&self) -> &str {
        self.pod.as_deref().unwrap_or(&self.key.container)
    }

    fn placed(self) -> Vec<PodDevice> {
        let pod = PodNetns {
            name: self.pod_name().to_owned(),
            exclusive: self.moves_rdma(),
            moving: self.phase != Phase::Attached,
            netns: netns_seen(self.netns, self.netns_id),
            id: self.netns_id,
        };
        let moved = self.rails.into_iter().filter(|rail| rail.shared.is_none());
        let placed = moved.filter_map(|rail| {
            let [netdev, rdma] = rail.own_devices();
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

impl Rail {
    /// Returns the PCI functions or auxiliary devices of the netdev that ADD moved, and of the RDMA device. A value is
    /// `None` if the rail has no such device, or the device has no hardware.
    fn own_devices(&self) -> [Option<DeviceAddress>; 2] {
        [
            self.host_link.as_ref().and_then(|it| it.parent.clone()),
            self.rdma.as_ref().and_then(|it| it.parent.clone()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn netdev(name: &str, parent: Option<&str>) -> Value {
        json!({
            "name": name, "index": 4, "mac": "02:00:00:00:00:04", "mtu": 1500, "up": true,
            "parent": parent,
        })
    }

    fn rdma(name: &str, parent: &str) -> Value {
        json!({"name": name, "index": 1, "node_guid": "", "parent": parent})
    }

    fn record(phase: &str, boot_id: &str) -> Value {
        let shared = json!({
            "parent": "bond0", "parentIndex": 7, "parentMtu": 1500,
            "child": {"type": "macvlan", "mode": "bridge"},
        });
        json!({
            "format": 8, "phase": phase, "bootId": boot_id, "pod": "team/train-0",
            "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
            "rdmaMode": "exclusive", "dad": "off", "acceptRa": false, "config": {},
            "later": {"version": 9},
            "rails": [
                {"podName": "rdma0", "home": netdev("eth1", Some("0000:3b:00.2"))},
                {"podName": "rdma1", "rdma": rdma("rxe0", "0000:3b:00.3"), "podIndex": 7},
                {"podName": "rdma2", "shared": shared, "rdma": rdma("mlx5_bond_0", "0000:3b:00.0")},
                {"podName": "rdma3", "home": netdev("veth0", None)},
            ],
        })
    }

    /// Makes a state directory with the records `records`. Each record is a pair of a container's name and the record's
    /// content.
    fn state(records: &[(&str, Value)]) -> tempfile::TempDir {
        let state = tempfile::tempdir().expect("a directory");
        for (container, record) in records {
            let mut record = record.clone();
            record["key"] = json!({"network": "a", "container": container, "interface": "eth0"});
            let file = format!("a/{container}@eth0.json");
            write(state.path(), &file, &record.to_string());
        }
        state
    }

    fn write(state: &Path, file: &str, text: &str) {
        let file = state.join("attachments").join(file);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, text).expect("written");
    }

    fn placed(state: &Path) -> Vec<String> {
        let placed = read(&Store::new(state), "this").into_iter();
        let words = placed.map(|it| {
            let PodDevice {
                address,
                index,
                pod,
                ..
            } = it;
            format!("{address} {index:?} {} {}", pod.name, pod.moving)
        });
        words.collect()
    }

    #[test]
    fn moved_devices_are_reported_in_the_pod() {
        let state = state(&[("c1", record("attached", "this"))]);
        let desired = [
            "0000:3b:00.2 None team/train-0 false",
            "0000:3b:00.3 Some(7) team/train-0 false",
        ];
        assert_eq!(placed(state.path()), desired);
    }

    /// On eRDMA, netdev and RDMA device are two PCI functions.
    #[test]
    fn a_nic_of_two_functions_is_known_by_its_rdma_device() {
        let mut text = record("attached", "this");
        text["rails"] = json!([{
            "podName": "rdma0", "home": netdev("eth1", Some("0000:00:06.0")),
            "rdma": rdma("erdma_0", "0000:00:07.0"),
        }]);
        let found = read(&Store::new(state(&[("1", text)]).path()), "this");
        assert_eq!(&*found[0].address, "0000:00:07.0");
        assert_eq!(&*found[0].netdev, "0000:00:06.0");
    }

    #[test]
    fn the_smc_status_is_read() {
        let of = |name: &'static str, smc: Value, phase: &str| {
            let mut text = record(phase, "this");
            text["pod"] = format!("team/{name}").into();
            text["smc"] = smc;
            (name, text)
        };
        let off = json!({"state": "off", "reason": "noModule"});
        let state = state(&[
            of("on", json!({"state": "active", "entries": []}), "attached"),
            of("off", off, "attached"),
            of("gone", json!({"state": "active"}), "home"),
            of("none", Value::Null, "attached"),
        ]);
        let found = smc(&Store::new(state.path()), "this").into_iter();
        let words =
            found.map(|it| format!("{}/{} {} {:?}", it.namespace, it.pod, it.state, it.reason));
        assert_eq!(
            words.collect::<Vec<_>>(),
            ["team/off off Some(\"noModule\")", "team/on active None"]
        );
    }

    /// Files represent namespaces in this test: the same numbers, device and inode, identify a file and a namespace.
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
        // on most nodes `/var/run` is a link to `/run`
        let shown = if given.exists() { &given } else { &here };
        assert_eq!(&netns_seen(given.clone(), own), shown);
        assert_eq!(&netns_seen(given.clone(), None), shown);
        assert_eq!(netns_seen(here.clone(), own), here);
        assert_eq!(
            netns_seen("/proc/1/ns/net".into(), own),
            Path::new("/proc/1/ns/net")
        );
        fs::remove_file(&here).expect("gone");
        assert_eq!(netns_seen(given.clone(), own), here);
        assert_eq!(netns_seen(given, None), here);
    }

    #[test]
    fn unfinished_attachments_are_reported_as_moving() {
        let state = state(&[("c1", record("detaching", "this"))]);
        assert_eq!(
            placed(state.path())[0],
            "0000:3b:00.2 None team/train-0 true"
        );
    }

    #[test]
    fn restored_and_unreadable_records_are_skipped() {
        let mut newer = record("attached", "this");
        newer["format"] = (crate::FORMAT + 1).into();
        let state = state(&[
            ("1", record("home", "this")),
            ("2", record("attached", "another")),
            ("3", newer),
        ]);
        let text = record("attached", "this").to_string();
        for (file, text) in [
            ("a/4@eth0.json", "{\"format\""),
            ("a/5@eth0.json", "{}"),
            ("a/6@eth0.lock", &*text),
            ("7.json", &*text),
        ] {
            write(state.path(), file, text);
        }
        assert_eq!(placed(state.path()), [""; 0]);
    }

    /// The records are those of `rdma-cni`'s own tests.
    #[test]
    fn what_rdma_cni_writes_is_understood() {
        let of = |name: &str| {
            let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rdma-cni/tests/plans");
            let case = plans.join("cases").join(name).with_extension("json");
            let mut record = cases::read(&case)["record"].take();
            record["bootId"] = "this".into();
            record["phase"] = "attached".into();
            state(&[("1", record)])
        };
        assert_eq!(placed(of("detach-from-pod").path()).len(), 2);
        assert_eq!(placed(of("detach-share").path()), [""; 0]);
    }
}
