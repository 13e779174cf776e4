//! What was seen at one moment: the host's namespace and one pod's.

use crate::{Device, DeviceAddress, Link, NetnsId, RdmaDevice, RdmaMode, Rule};
use serde::{Deserialize, Serialize};

/// The state that plans are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// None: the kernel has no RDMA subsystem (`ib_core` is not loaded).
    pub rdma_mode: Option<RdmaMode>,
    /// PCI functions and auxiliary devices that have, or can have, a netdev or an RDMA
    /// device, whatever namespace these are in.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// The namespace that this program runs in.
    pub host: Namespace,
    /// The pod's, if it still lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Namespace>,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Which one it is.
    pub id: NetnsId,
    /// Its netdevs.
    pub links: Vec<Link>,
    /// The RDMA devices that are seen in it (all of the node in shared mode).
    #[serde(default)]
    pub rdma: Vec<RdmaDevice>,
    /// Its routing rules that select by source alone, in the kernel's order.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

impl Observed {
    /// The namespace at `place`, if it was observed.
    pub fn at(&self, place: crate::Place) -> Option<&Namespace> {
        match place {
            crate::Place::Host => Some(&self.host),
            crate::Place::Pod => self.pod.as_ref(),
        }
    }

    /// The PCI function or auxiliary device at `address`.
    pub fn device(&self, address: &DeviceAddress) -> Option<&Device> {
        self.devices
            .iter()
            .find(|device| device.address == *address)
    }
}

impl Namespace {
    /// The netdev called `name`; alternative names count, as they do for the kernel.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links
            .iter()
            .find(|link| &*link.name == name || link.alt_names.iter().any(|alt| alt == name))
    }

    /// The netdev with `index`.
    pub fn link_by_index(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The RDMA device whose port `link` is, else the one of the same PCI function or
    /// auxiliary device. A bond's is, too, that of one of the bond's ports: the netdev of
    /// `mlx5_bond_0` is told as the bond by some kernels, as a port by others, and its hardware
    /// is the first port's.
    pub fn rdma_of(&self, link: &Link) -> Option<&RdmaDevice> {
        let ports = self
            .links
            .iter()
            .filter(|port| link.is_bond() && port.master == Some(link.index));
        let links: Vec<&Link> = std::iter::once(link).chain(ports).collect();
        let of = |has: &dyn Fn(&RdmaDevice, &Link) -> bool| {
            links
                .iter()
                .find_map(|link| self.rdma.iter().find(|rdma| has(rdma, link)))
        };
        of(&|rdma, link| rdma.has_netdev(link.index))
            .or_else(|| of(&|rdma, link| rdma.parent.is_some() && rdma.parent == link.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// `bond0` with its ports `eth0` and `eth1`, an unrelated `eth2`, a bridge with `eth2`.
    fn host(rdma: &[Value]) -> Namespace {
        let link = |index: u32, name: &str, more: Value| {
            let mut link =
                json!({"index": index, "name": name, "mac": "", "mtu": 1500, "up": true});
            link.as_object_mut()
                .expect("an object")
                .extend(more.as_object().cloned().unwrap_or_default());
            link
        };
        let namespace = json!({
            "id": {"device": 4, "inode": 1, "cookie": 1},
            "links": [
                link(2, "eth0", json!({"parent": "0000:01:00.0", "master": 5})),
                link(3, "eth1", json!({"parent": "0000:01:00.1", "master": 5})),
                link(4, "eth2", json!({"parent": "0000:02:00.0", "master": 6})),
                link(5, "bond0", json!({"kind": "bond"})),
                link(6, "br0", json!({"kind": "bridge"})),
            ],
            "rdma": rdma,
        });
        serde_json::from_value(namespace).expect("a namespace")
    }

    fn device(name: &str, parent: Option<&str>, netdev: Option<u32>) -> Value {
        json!({
            "name": name, "index": 0, "node_guid": "", "parent": parent,
            "ports": [{"number": 1, "netdev": netdev, "state": 4}],
        })
    }

    #[track_caller]
    fn of(host: &Namespace, link: &str) -> Option<String> {
        let link = host.link(link).expect("a netdev");
        host.rdma_of(link).map(|rdma| rdma.name.clone())
    }

    #[test]
    fn a_bonds_rdma_device_is_found_by_either_netdev_or_its_hardware() {
        for (parent, netdev) in [
            (Some("0000:01:00.0"), Some(5)),
            (Some("0000:09:00.0"), Some(3)),
            (Some("0000:01:00.0"), None),
            (None, Some(2)),
        ] {
            let other = device("mlx5_2", Some("0000:02:00.0"), Some(4));
            let host = host(&[other, device("mlx5_bond_0", parent, netdev)]);
            assert_eq!(of(&host, "bond0").as_deref(), Some("mlx5_bond_0"));
            assert_eq!(of(&host, "eth2").as_deref(), Some("mlx5_2"));
        }
    }

    #[test]
    fn a_bridges_ports_lend_it_nothing() {
        let host = host(&[device("mlx5_2", Some("0000:02:00.0"), Some(4))]);
        assert_eq!(of(&host, "br0"), None);
        assert_eq!(of(&host, "bond0"), None);
        assert_eq!(of(&host, "eth1"), None);
    }

    #[test]
    fn two_things_without_hardware_have_nothing_in_common() {
        let host = host(&[device("rxe0", None, None)]);
        assert_eq!(of(&host, "bond0"), None);
    }
}
