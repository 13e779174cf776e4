// SPDX-License-Identifier: Apache-2.0
//! The rails of each pod, for administrators: NIC, addresses, and the GIDs that programs use.

use crate::{Attachment, Rail, Store};
use rdma_netns::DeviceAddress;
use std::net::IpAddr;

/// A pod's rails of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRails {
    /// `namespace/name` of the pod. If the name is unknown: the container's id.
    pub pod: String,
    /// Progress of the attachment: `attaching`, `attached` or `detaching`.
    pub phase: String,
    /// The rails, in order.
    pub rails: Vec<PodRail>,
}

/// A rail of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRail {
    /// Name of the netdev in the pod.
    pub name: String,
    /// The netdev on the host: the moved netdev, or the parent of the pod's child netdev.
    pub host_netdev: Option<String>,
    /// True if `host_netdev` stays on the host, and the pod has a child of it.
    pub shared: bool,
    /// The RDMA device.
    pub rdma: Option<String>,
    /// Node GUID of the RDMA device.
    pub node_guid: Option<String>,
    /// Character device of an eRDMA device that has no parent in sysfs ([`Rail::erdma_verbs`]).
    pub erdma_verbs: Option<String>,
    /// The PCI functions or auxiliary devices of the rail. The function of the RDMA device comes first.
    pub devices: Vec<DeviceAddress>,
    /// The rail's addresses in the pod. Omits link-local IPv6 addresses.
    pub addresses: Vec<RailAddress>,
}

/// An address of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailAddress {
    /// The address.
    pub ip: IpAddr,
    /// Index of the address's RoCE v2 GID in the port's GID table (`NCCL_IB_GID_INDEX`). `None`: the record has no GID
    /// of the address, for example because the rail has no RDMA device.
    pub gid_index: Option<u32>,
}

/// Returns the rails of each attachment, from the unrestored records of this boot, in the order of the pods' names.
pub fn rails(store: &Store, boot_id: &str) -> Vec<PodRails> {
    let records = super::records(store, boot_id);
    let mut pods: Vec<PodRails> = records.iter().map(PodRails::from).collect();
    pods.sort_by(|one, other| one.pod.cmp(&other.pod));
    pods
}

impl From<&Attachment> for PodRails {
    fn from(attachment: &Attachment) -> Self {
        Self {
            pod: attachment.pod_name().to_owned(),
            phase: attachment.phase.to_string(),
            rails: attachment.rails.iter().map(PodRail::from).collect(),
        }
    }
}

impl From<&Rail> for PodRail {
    fn from(rail: &Rail) -> Self {
        let addresses = rail.assigned.addresses.iter();
        let addresses = addresses.filter(|it| it.ip.is_ipv4() || !it.is_link_local());
        let addresses = addresses.map(|it| RailAddress {
            ip: it.ip,
            gid_index: rail
                .gids
                .iter()
                .find(|gid| gid.address == it.ip)
                .map(|gid| gid.index),
        });
        let addresses = addresses.collect();
        let [netdev, rdma] = rail.own_devices();
        let shared = rail.shared.as_ref();
        let devices = [rdma, netdev, shared.and_then(|it| it.device.clone())];
        let mut devices: Vec<DeviceAddress> = devices.into_iter().flatten().collect();
        devices.dedup();
        let netdev = rail.host_link.as_ref().map(|it| &it.name);
        let netdev = netdev.or(shared.map(|it| &it.parent));
        Self {
            name: rail.pod_name.to_string(),
            shared: shared.is_some(),
            host_netdev: netdev.map(ToString::to_string),
            rdma: rail.rdma.as_ref().map(|it| it.name.clone()),
            node_guid: rail.rdma.as_ref().map(|it| it.node_guid.clone()),
            erdma_verbs: rail.erdma_verbs.clone(),
            devices,
            addresses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::{fs, path::Path};

    fn written(records: &[(&str, Value)]) -> Vec<PodRails> {
        let directory = tempfile::tempdir().expect("a directory");
        let network = directory.path().join("attachments/net");
        fs::create_dir_all(&network).expect("made");
        for (container, record) in records {
            let mut record = record.clone();
            record["key"] = json!({"network": "net", "container": container, "interface": "eth0"});
            let file = network.join(format!("{container}@eth0.json"));
            fs::write(file, record.to_string()).expect("written");
        }
        rails(&Store::new(directory.path()), "this")
    }

    fn record(pod: &str, phase: &str, rails: Value) -> Value {
        json!({
            "format": 8, "phase": phase, "bootId": "this", "pod": pod,
            "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
            "rdmaMode": "exclusive", "dad": "off", "acceptRa": false, "rails": rails, "config": {},
        })
    }

    #[test]
    fn each_address_has_its_gid() {
        let moved = json!([{
            "podName": "rdma0",
            "home": {
                "name": "ens1f0v0", "index": 4, "mac": "02:00:00:00:00:04", "mtu": 1500, "up": true,
                "parent": "0000:3b:00.2",
            },
            "rdma": {"name": "mlx5_2", "index": 2, "node_guid": "", "parent": "0000:3b:00.2"},
            "given": {"addresses": [
                {"ip": "fe80::1", "prefix": 64}, {"ip": "fd00::7", "prefix": 64},
                {"ip": "192.0.2.7", "prefix": 24},
            ], "routes": []},
            "gids": [{"address": "fd00::7", "gid": "fd00::7", "port": 1, "index": 5}],
        }]);
        let shared = json!([{
            "podName": "rdma0",
            "shared": {
                "parent": "bond0", "parentIndex": 7, "parentMtu": 1500,
                "child": {"type": "macvlan", "mode": "bridge"},
            },
            "rdma": {"name": "mlx5_bond_0", "index": 1, "node_guid": "", "parent": "0000:3b:00.0"},
        }]);
        let found = written(&[
            ("2", record("team/b", "attached", moved)),
            ("1", record("team/a", "attaching", shared)),
            ("3", record("team/c", "home", json!([]))),
        ]);
        let pods: Vec<_> = found.iter().map(|it| (&*it.pod, &*it.phase)).collect();
        assert_eq!(pods, [("team/a", "attaching"), ("team/b", "attached")]);
        let bond = &found[0].rails[0];
        assert_eq!(
            (bond.host_netdev.as_deref(), bond.shared),
            (Some("bond0"), true)
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

    /// The records are those of `rdma-cni`'s own tests.
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
            let found = written(&[("1", record(name))]);
            assert_eq!(found[0].rails.len(), 2, "{name}: {found:?}");
            for rail in &found[0].rails {
                assert!(!rail.addresses.is_empty(), "{name}: {rail:?}");
            }
        }
    }
}
