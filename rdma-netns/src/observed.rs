// SPDX-License-Identifier: Apache-2.0
//! What was seen at one moment: the host's namespace and one pod's.

#[cfg(doc)]
use crate::pairing;
use crate::{
    Device, DeviceAddress, GeneralRule, Link, NetnsId, RdmaDevice, RdmaMode, Route, Rule, Vf,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::IpAddr};

/// The state that plans are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// When it was seen: seconds since the boot, sleep included (`CLOCK_BOOTTIME`), which nobody
    /// can set. None: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// None: the kernel has no RDMA subsystem (`ib_core` is not loaded).
    pub rdma_mode: Option<RdmaMode>,
    /// PCI functions and auxiliary devices that have, or can have, a netdev or an RDMA
    /// device, whatever namespace these are in: all, or [those that matter](crate::Kernel::ask_only).
    #[serde(default)]
    pub devices: Vec<Device>,
    /// How virtual functions are set up, of those that were asked for, wherever their netdevs are
    /// ([`Kernel::observe_vfs`](crate::Kernel::observe_vfs)).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vfs: BTreeMap<DeviceAddress, Vf>,
    /// The cluster's API servers, where kubelet's kubeconfig names them by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_servers: Vec<IpAddr>,
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
    /// Routes that cannot be set again as they are, as several next hops are: each next hop with the index of
    /// its netdev. They are in no [`Link::routes`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unkept_routes: Vec<(u32, Route)>,
    /// The RDMA devices that are seen in it (all of the node in shared mode).
    #[serde(default)]
    pub rdma: Vec<RdmaDevice>,
    /// Its routing rules that select by source alone, in the kernel's order.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Its routing rules that name neither a source nor a netdev, in the kernel's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub general_rules: Vec<GeneralRule>,
}

impl Observed {
    /// The namespace at `side`, if it was observed.
    pub fn at(&self, side: crate::NetnsSide) -> Option<&Namespace> {
        match side {
            crate::NetnsSide::Host => Some(&self.host),
            crate::NetnsSide::Pod => self.pod.as_ref(),
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
        self.links.iter().find(|link| link.has_name(name))
    }

    /// The netdev with `index`.
    pub fn link_by_index(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The routes by the netdev with `index` that cannot be set again as they are.
    pub fn unkept_by(&self, index: u32) -> impl Iterator<Item = &Route> {
        let routes = self.unkept_routes.iter();
        routes
            .filter(move |(netdev, _)| *netdev == index)
            .map(|(_, route)| route)
    }

    /// Whether one of these is `route`, whatever its age.
    pub fn has_unkept(&self, index: u32, route: &Route) -> bool {
        self.unkept_by(index).any(|it| it.same_as(route))
    }

    /// The RDMA device whose port `link` is, else the one of the same PCI function or
    /// auxiliary device, else the one whose GUID is made of its address ([`pairing`]). A bond's
    /// is, too, that of one of the bond's ports: the netdev of `mlx5_bond_0` is told as the bond by
    /// some kernels, as a port by others, and its hardware is the first port's. A VLAN without one of its own
    /// has that of the netdev that it lies on ([`Self::below_vlan`]).
    ///
    /// `link` may be of another namespace: then its index says nothing, and its hardware all.
    pub fn rdma_of(&self, link: &Link) -> Option<&RdmaDevice> {
        self.own_rdma_of(link)
            .or_else(|| self.own_rdma_of(self.below_vlan(link)?))
    }

    /// The netdev by whose RDMA device `vlan`, which is of this namespace, has its GIDs: the NIC or bond that
    /// it is a VLAN of. The addresses of a netdev's upper devices are in its RDMA device's GID table, and
    /// packets from there get the tag of the VLAN that the GID's netdev is, or lies on
    /// (`is_eth_port_of_netdev_filter()`, `drivers/infiniband/core/roce_gid_mgmt.c`; `rdma_read_gid_l2_fields()`,
    /// `cache.c`).
    ///
    /// None for a VLAN of a VLAN, as a packet gets one tag, and for one of a bond's port, as the RDMA device has the
    /// addresses of the bond.
    pub fn below_vlan(&self, vlan: &Link) -> Option<&Link> {
        let lower = vlan.lower.filter(|_| vlan.is_vlan() && self.has(vlan))?;
        let lower = self.link_by_index(lower)?;
        let master = lower.master.and_then(|index| self.link_by_index(index));
        let is_bonds_port = master.is_some_and(Link::is_bond);
        (!lower.is_vlan() && !is_bonds_port).then_some(lower)
    }

    /// Whether `link` is a netdev of this namespace.
    fn has(&self, link: &Link) -> bool {
        self.link_by_index(link.index) == Some(link)
    }

    /// [`Self::rdma_of`], VLANs left out.
    fn own_rdma_of(&self, link: &Link) -> Option<&RdmaDevice> {
        let has_ports = link.is_bond() && self.has(link);
        let ports = self
            .links
            .iter()
            .filter(|port| has_ports && port.master == Some(link.index));
        let links: Vec<&Link> = std::iter::once(link).chain(ports).collect();
        let of = |has: &dyn Fn(&RdmaDevice, &Link) -> bool| {
            links
                .iter()
                .find_map(|link| self.rdma.iter().find(|rdma| has(rdma, link)))
        };
        of(&|rdma, link| rdma.has_netdev(link.index) && self.has(link))
            .or_else(|| of(&|rdma, link| rdma.parent.is_some() && rdma.parent == link.parent))
            .or_else(|| of(&|rdma, link| rdma.has_guid_of(link) && !self.has_port_of(rdma)))
    }

    /// Whether a netdev of this namespace is one of the RDMA device's ports, or of its function.
    fn has_port_of(&self, rdma: &RdmaDevice) -> bool {
        let of_function = |link: &Link| rdma.parent.is_some() && link.parent == rdma.parent;
        self.links
            .iter()
            .any(|link| rdma.has_netdev(link.index) || of_function(link))
    }

    /// The netdevs of the PCI function or auxiliary device at `address`; of one that has none, those
    /// of its RDMA device, which `rdma` can be in another namespace than this one.
    pub fn links_of<'a>(&'a self, address: &DeviceAddress, rdma: &Namespace) -> Vec<&'a Link> {
        let own = |link: &&Link| link.parent.as_ref() == Some(address);
        let found: Vec<&Link> = self.links.iter().filter(own).collect();
        if !found.is_empty() {
            return found;
        }
        let paired = |link: &&Link| {
            let device = link.parent.as_ref().and_then(|_| rdma.rdma_of(link));
            device.is_some_and(|device| device.parent.as_ref() == Some(address))
        };
        self.links.iter().filter(paired).collect()
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

    /// `erdma_0` is another function than `eth2`, and its GUID is made of the address of that.
    #[test]
    fn an_rdma_device_of_another_function_is_found_by_its_guid() {
        let erdma = |guid: &str, netdev: Option<u32>| {
            let mut erdma = device("erdma_0", Some("0000:07:00.0"), netdev);
            erdma["node_guid"] = guid.into();
            let mut host = host(&[erdma]);
            for (link, mac) in [("eth2", "00:16:3e:00:00:01"), ("br0", "00:16:3e:00:00:01")] {
                let found = host.links.iter_mut().find(|it| &*it.name == link);
                found.expect("a netdev").mac = mac.parse().expect("an address");
            }
            host
        };
        let address = DeviceAddress::try_from("0000:07:00.0".to_owned()).expect("an address");
        let links_of = |host: &Namespace| -> Vec<String> {
            let links = host.links_of(&address, host).into_iter();
            links.map(|link| link.name.to_string()).collect()
        };
        let by_guid = erdma("0216:3eff:fe00:0001", None);
        assert_eq!(of(&by_guid, "eth2").as_deref(), Some("erdma_0"));
        // a bridge has its port's address, and no hardware
        assert_eq!(of(&by_guid, "br0"), None);
        assert_eq!(of(&by_guid, "eth0"), None);
        assert_eq!(links_of(&by_guid), ["eth2"]);

        // its netdev is in a pod by now, and the RDMA device is not
        let mut without = by_guid.clone();
        let moved = without.links.remove(2);
        let here = of_any(&without, &moved);
        assert_eq!(here.as_deref(), Some("erdma_0"));
        let pod = Namespace {
            links: vec![moved],
            ..without.clone()
        };
        assert_eq!(pod.links_of(&address, &without).len(), 1);

        // what the kernel tells comes first
        let told = erdma("0216:3eff:fe00:0001", Some(2));
        assert_eq!(of(&told, "eth0").as_deref(), Some("erdma_0"));
        assert_eq!(of(&told, "eth2"), None);
        assert_eq!(links_of(&told), ["eth0"]);
        assert_eq!(
            links_of(&erdma("0000:0000:0000:0000", None)),
            [] as [&str; 0]
        );
    }

    fn of_any(host: &Namespace, link: &Link) -> Option<String> {
        host.rdma_of(link).map(|rdma| rdma.name.clone())
    }

    /// Also of a NIC that is a bridge's port: its VLANs have their frames before the bridge
    /// (`__netif_receive_skb_core()`, `net/core/dev.c`).
    #[test]
    fn a_vlans_rdma_device_is_that_of_the_netdev_below_it() {
        let bond = device("mlx5_bond_0", Some("0000:01:00.0"), Some(3));
        let nic = device("mlx5_2", Some("0000:02:00.0"), Some(4));
        let mut host = host(&[bond, nic]);
        let mut add = |name: &str, kind: &str, lower: &str| {
            let index = 10 + u32::try_from(host.links.len()).expect("few");
            let below = host.link(lower).expect("a netdev").index;
            let link = json!({
                "index": index, "name": name, "mac": "", "mtu": 1500, "up": true, "kind": kind, "lower": below,
            });
            host.links
                .push(serde_json::from_value(link).expect("a netdev"));
        };
        for (name, kind, lower) in [
            ("bond0.100", "vlan", "bond0"),
            ("bond0.100.7", "vlan", "bond0.100"),
            ("eth2.7", "vlan", "eth2"),
            ("eth0.7", "vlan", "eth0"),
            ("br0.7", "vlan", "br0"),
            ("own0", "macvlan", "eth2"),
        ] {
            add(name, kind, lower);
        }
        assert_eq!(of(&host, "bond0.100").as_deref(), Some("mlx5_bond_0"));
        assert_eq!(of(&host, "eth2.7").as_deref(), Some("mlx5_2"));
        // two tags, a bond's port, no RDMA device, no VLAN
        for none in ["bond0.100.7", "eth0.7", "br0.7", "own0"] {
            assert_eq!(of(&host, none), None, "{none}");
        }
        // what number the netdev below a VLAN of another namespace has says nothing
        let pods = Link {
            index: 77,
            ..host.link("bond0.100").expect("a netdev").clone()
        };
        assert_eq!(host.rdma_of(&pods), None);
        // soft-RoCE of the VLAN's own comes first
        let mut own = host.rdma[0].clone();
        own.name = "rxe100".into();
        own.parent = None;
        own.ports[0].netdev = Some(host.link("bond0.100").expect("a netdev").index);
        host.rdma.push(own);
        assert_eq!(of(&host, "bond0.100").as_deref(), Some("rxe100"));
    }

    #[test]
    fn two_things_without_hardware_have_nothing_in_common() {
        let host = host(&[device("rxe0", None, None)]);
        assert_eq!(of(&host, "bond0"), None);
    }
}
