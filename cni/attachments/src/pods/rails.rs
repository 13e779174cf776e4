// SPDX-License-Identifier: Apache-2.0
//! The rails of each pod, for people: which NIC, which addresses, and which GIDs a program has to name.

use super::Record;
use cni_protocol::state_file;
use rdma_netns::DeviceAddress;
use serde::Deserialize;
use std::{net::IpAddr, path::Path};

/// A pod's rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRails {
    /// `namespace/name` of the pod, else the container's id.
    pub pod: String,
    /// `attaching`, `attached`, `detaching`
    pub phase: String,
    /// In order.
    pub rails: Vec<PodRail>,
}

/// One rail of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRail {
    /// Its netdev's name in the pod.
    pub name: String,
    /// The netdev on the host: the one that was moved, or the one that the pod has a child of.
    pub host_netdev: Option<String>,
    /// Whether that netdev stays on the host.
    pub shared: bool,
    /// Its RDMA device.
    pub rdma: Option<String>,
    /// The PCI functions or auxiliary devices behind it, the RDMA device's first.
    pub devices: Vec<DeviceAddress>,
    /// Its addresses in the pod, link-local ones left out.
    pub addresses: Vec<RailAddress>,
}

/// An address of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailAddress {
    /// The address.
    pub ip: IpAddr,
    /// Place of its RoCE v2 GID in the port's table (`NCCL_IB_GID_INDEX`), once it is there.
    pub gid_index: Option<u32>,
}

/// What a record says of a rail, as far as it is shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    pod_name: String,
    #[serde(rename = "home")]
    host_link: Option<Named>,
    shared: Option<Parent>,
    rdma: Option<Named>,
    #[serde(default)]
    given: Given,
    #[serde(default)]
    gids: Vec<Gid>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    parent: Option<DeviceAddress>,
}

#[derive(Deserialize)]
struct Parent {
    parent: String,
    device: Option<DeviceAddress>,
}

#[derive(Default, Deserialize)]
struct Given {
    #[serde(default)]
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    ip: IpAddr,
}

#[derive(Deserialize)]
struct Gid {
    address: IpAddr,
    index: u32,
}

/// The rails of all pods, by the records of this boot; in the order of the pods' names.
pub fn rails(attachments: &Path, boot_id: &str) -> Vec<PodRails> {
    let records = super::files(attachments).filter_map(|file| of(&file, boot_id));
    let mut pods: Vec<PodRails> = records.collect();
    pods.sort_by(|one, other| one.pod.cmp(&other.pod));
    pods
}

/// None: it cannot be read, or there are none in it.
fn of(file: &Path, boot_id: &str) -> Option<PodRails> {
    rails_of_text(&state_file::read(file).ok()?, boot_id)
}

/// The rails of the pod of the record with this `text`. None: it is another boot's, or its devices are back on the host, or
/// it is no record.
pub fn rails_of_text(text: &[u8], boot_id: &str) -> Option<PodRails> {
    #[derive(Deserialize)]
    struct Rails {
        rails: Vec<serde_json::Value>,
    }
    let record: Record = serde_json::from_slice(text).ok()?;
    if record.boot_id != boot_id || record.phase == "home" {
        return None;
    }
    let Rails { rails } = serde_json::from_slice(text).ok()?;
    // one that another version writes otherwise hides no other
    let rails = rails
        .into_iter()
        .filter_map(|rail| serde_json::from_value::<Shown>(rail).ok());
    Some(PodRails {
        pod: record.name().to_owned(),
        rails: rails.map(PodRail::from).collect(),
        phase: record.phase,
    })
}

impl From<Shown> for PodRail {
    fn from(rail: Shown) -> Self {
        let is_shown = |address: &&Address| match address.ip {
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
            IpAddr::V4(_) => true,
        };
        let gid_index = |ip: IpAddr| {
            let gid = rail.gids.iter().find(|gid| gid.address == ip);
            gid.map(|gid| gid.index)
        };
        let addresses = rail.given.addresses.iter().filter(is_shown);
        let addresses = addresses.map(|&Address { ip }| RailAddress {
            ip,
            gid_index: gid_index(ip),
        });
        let addresses = addresses.collect();
        let parent = |named: Option<&Named>| named.and_then(|it| it.parent.clone());
        let devices = [
            parent(rail.rdma.as_ref()),
            parent(rail.host_link.as_ref()),
            rail.shared.as_ref().and_then(|it| it.device.clone()),
        ];
        let mut devices: Vec<DeviceAddress> = devices.into_iter().flatten().collect();
        devices.dedup();
        let host_netdev = rail.host_link.map(|it| it.name);
        Self {
            name: rail.pod_name,
            shared: rail.shared.is_some(),
            host_netdev: host_netdev.or(rail.shared.map(|it| it.parent)),
            rdma: rail.rdma.map(|it| it.name),
            devices,
            addresses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;

    fn written(records: &[(&str, Value)]) -> Vec<PodRails> {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("rails")).expect("made");
        for (name, record) in records {
            let file = directory.path().join("rails").join(name);
            fs::write(file, record.to_string()).expect("written");
        }
        rails(directory.path(), "this")
    }

    fn record(pod: &str, phase: &str, rails: Value) -> Value {
        json!({
            "format": 2, "phase": phase, "bootId": "this", "pod": pod,
            "key": {"network": "rails", "container": "c1", "interface": "eth0"},
            "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
            "rdmaMode": "exclusive", "rails": rails,
        })
    }

    #[test]
    fn each_address_has_its_gid() {
        let moved = json!([
            {
                "podName": "rdma0", "home": {"name": "ens1f0v0", "parent": "0000:3b:00.2"},
                "rdma": {"name": "mlx5_2", "parent": "0000:3b:00.2"},
                "given": {"addresses": [
                    {"ip": "fe80::1", "prefix": 64}, {"ip": "fd00::7", "prefix": 64},
                    {"ip": "192.0.2.7", "prefix": 24},
                ], "routes": []},
                "gids": [{"address": "fd00::7", "gid": "fd00::7", "port": 1, "index": 5}],
            },
            {"podName": 7},
        ]);
        let shared = json!([{
            "podName": "rdma0", "shared": {"parent": "bond0", "parentIndex": 7},
            "rdma": {"name": "mlx5_bond_0", "parent": "0000:3b:00.0"},
        }]);
        let found = written(&[
            ("2@eth0.json", record("team/b", "attached", moved)),
            ("1@eth0.json", record("team/a", "attaching", shared)),
            ("3@eth0.json", record("team/c", "home", json!([]))),
        ]);
        let pods: Vec<_> = found.iter().map(|it| (&*it.pod, &*it.phase)).collect();
        assert_eq!(pods, [("team/a", "attaching"), ("team/b", "attached")]);
        let bond = &found[0].rails[0];
        assert_eq!(
            (bond.host_netdev.as_deref(), bond.shared),
            (Some("bond0"), true)
        );
        assert_eq!(
            found[1].rails.len(),
            1,
            "what cannot be read is passed over"
        );
        let rail = &found[1].rails[0];
        assert_eq!((rail.devices.len(), rail.shared), (1, false));
        let addresses: Vec<String> = rail
            .addresses
            .iter()
            .map(|it| format!("{} {:?}", it.ip, it.gid_index))
            .collect();
        assert_eq!(addresses, ["fd00::7 Some(5)", "192.0.2.7 None"]);
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
            record
        };
        for name in ["detach-from-pod", "detach-share"] {
            let found = written(&[("1@eth0.json", record(name))]);
            assert_eq!(found[0].rails.len(), 2, "{name}: {found:?}");
            for rail in &found[0].rails {
                assert!(!rail.addresses.is_empty(), "{name}: {rail:?}");
            }
        }
    }
}
