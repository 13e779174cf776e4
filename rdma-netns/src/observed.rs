// SPDX-License-Identifier: Apache-2.0
//! Observation of the host's namespace and of one pod's namespace.

use crate::{
    Device, DeviceAddress, DeviceSettings, GeneralRule, Link, NetnsId, NetnsSide, Origin,
    RdmaDevice, RdmaMode, Route, Rule, SubDevice, Vf, pairing,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// The observed state from which plans are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Id of the boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// Time of the observation: seconds since the boot, including suspend (`CLOCK_BOOTTIME`). No program can set this
    /// clock. `None`: the time is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Namespace mode of the RDMA subsystem. `None`: the kernel has no RDMA subsystem (`ib_core` is not loaded).
    pub rdma_mode: Option<RdmaMode>,
    /// PCI functions and auxiliary devices that have, or can have, a netdev or an RDMA device, in any namespace. The
    /// list contains all such devices, or only [the relevant ones](crate::Kernel::limit_observation).
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Identities of [`Self::devices`]: the inodes of the devices' directories in sysfs. Binding a driver keeps the
    /// directory. If the kernel removes a device, and then finds a device at the same address, the directory is new.
    /// During one boot the kernel uses no inode again (`__kernfs_new_node()`, `fs/kernfs/dir.c`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inodes: BTreeMap<DeviceAddress, u64>,
    /// Names of RDMA devices without a parent in sysfs and without a known netdev in the observed namespaces: software
    /// RDMA devices, and RDMA devices in other namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpaired: Vec<String>,
    /// Settings of the requested virtual functions ([`Kernel::observe_vfs`](crate::Kernel::observe_vfs)), in whichever
    /// namespaces their netdevs are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vfs: BTreeMap<DeviceAddress, Vf>,
    /// Device settings by index of the host's netdev, only for requested netdevs
    /// ([`Kernel::device_settings`](crate::Kernel::device_settings)).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_settings: Vec<(u32, DeviceSettings)>,
    /// The cluster's API servers, if kubelet's kubeconfig names them by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_servers: Vec<IpAddr>,
    /// The namespace in which this program runs.
    pub host: Namespace,
    /// The pod's namespace. `None`: the namespace has ended, or there is no pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Namespace>,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Identity of the namespace.
    pub id: NetnsId,
    /// Netdevs of the namespace.
    pub links: Vec<Link>,
    /// Routes that `rdma-cni` cannot set again unchanged, such as routes with several next hops. The list has an
    /// element for each next hop, with the index of its netdev. [`Link::routes`] does not contain these routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unkept_routes: Vec<(u32, Route)>,
    /// RDMA devices that the namespace sees. In shared mode each namespace sees all RDMA devices of the node.
    #[serde(default)]
    pub rdma: Vec<RdmaDevice>,
    /// RDMA devices that are a part of another RDMA device. [`Self::rdma`] does not contain them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_devices: Vec<SubDevice>,
    /// Routing rules that select by source, or by source and destination, in the kernel's order.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Routing rules that are not limited to a source or a netdev ([`GeneralRule`]), in the kernel's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub general_rules: Vec<GeneralRule>,
    /// Number of the other namespace (the pod's or the host's) in this namespace (`RTM_GETNSID`). `None`: the other
    /// namespace has no number, or no netdev of this namespace has a lower netdev in another namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_number: Option<i32>,
    /// Tables to which rules of any kind lead, and tables with routes. On the host, only unicast routes count.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tables: BTreeSet<u32>,
}

impl Observed {
    /// Returns the namespace at `side`, if it was observed.
    pub fn at(&self, side: NetnsSide) -> Option<&Namespace> {
        match side {
            NetnsSide::Host => Some(&self.host),
            NetnsSide::Pod => self.pod.as_ref(),
        }
    }

    /// Returns the sub-devices of the RDMA device `name`, each with its namespace. The kernel makes sub-devices on the
    /// host, even if the RDMA device is in a pod (`ib_alloc_device()`).
    pub fn sub_devices_of<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (NetnsSide, &'a SubDevice)> {
        // in shared mode each namespace sees all sub-devices
        let is_exclusive = self.rdma_mode == Some(RdmaMode::Exclusive);
        let pod = self.pod.as_ref().filter(|_| is_exclusive);
        let places = pod.map(|it| (NetnsSide::Pod, it)).into_iter();
        let places = std::iter::once((NetnsSide::Host, &self.host)).chain(places);
        let all = places.flat_map(|(side, it)| it.sub_devices.iter().map(move |it| (side, it)));
        all.filter(move |(_, it)| it.parent == name)
    }

    /// Returns the PCI function or auxiliary device at `address`.
    pub fn device(&self, address: &DeviceAddress) -> Option<&Device> {
        self.devices
            .iter()
            .find(|device| device.address == *address)
    }

    /// Returns the functions of the NIC with the netdev `link` and the RDMA device `rdma`: the netdev's function, the
    /// RDMA device's function, and functions that may have made the RDMA device.
    pub fn functions_of<'a>(&'a self, link: &Link, rdma: Option<&RdmaDevice>) -> Vec<&'a Device> {
        let own = [link.parent.as_ref(), rdma.and_then(|it| it.parent.as_ref())];
        let mut functions: Vec<&Device> = vec![];
        for device in own.into_iter().flatten().filter_map(|it| self.device(it)) {
            let made_by = device
                .rdma_functions
                .iter()
                .filter_map(|it| self.device(it));
            for function in std::iter::once(device).chain(made_by) {
                if !functions.iter().any(|it| it.address == function.address) {
                    functions.push(function);
                }
            }
        }
        functions
    }

    /// Sets the parent of each unpaired RDMA device in `hardware`, which has driver ids by the RDMA device's name. The
    /// parent is the function of the RDMA device's netdev. RDMA device and netdev can be in different namespaces
    /// ([`pairing`]).
    pub fn pair(&mut self, hardware: &BTreeMap<String, u32>) {
        let made_by = pairing::makers(&self.devices);
        let Self {
            unpaired,
            devices,
            host,
            pod,
            ..
        } = self;
        let mut namespaces: Vec<&mut Namespace> = std::iter::once(host).chain(pod).collect();
        unpaired.retain(|name| {
            let is_it = |rdma: &RdmaDevice| rdma.name == *name && rdma.parent.is_none();
            let mut places = namespaces.iter();
            let found = places.find_map(|it| Some((it, it.rdma.iter().find(|it| is_it(it))?)));
            let Some(((place, rdma), driver)) = found.zip(hardware.get(name)) else {
                return true;
            };
            let is_bare = |link: &&Link| {
                let device = devices
                    .iter()
                    .find(|it| Some(&it.address) == link.parent.as_ref());
                device.is_some_and(|it| it.rdma.is_empty())
            };
            let mut ports = place.links.iter();
            let port = ports.find(|it| it.parent.is_some() && rdma.has_netdev(it.index));
            let mut links = namespaces.iter().flat_map(|it| &it.links).filter(is_bare);
            let link = port.or_else(|| links.find(|it| rdma.has_guid_of(it)));
            let Some(parent) = link.and_then(|it| it.parent.clone()) else {
                return true;
            };
            for device in devices.iter_mut().filter(|it| it.address == parent) {
                device.rdma.push(name.clone());
                if pairing::is_erdma(Some(*driver), name) {
                    device.rdma_functions.clone_from(&made_by);
                }
            }
            let all = namespaces.iter_mut().flat_map(|it| &mut it.rdma);
            for rdma in all.filter(|it| is_it(it)) {
                rdma.parent = Some(parent.clone());
            }
            false
        });
    }
}

impl Namespace {
    /// Returns the netdev with the name or alternative name `name`.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.has_name(name))
    }

    /// Returns the netdev with `index`.
    pub fn link_by_index(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Returns the netdevs of this pod's namespace whose lower netdev is `link`, a netdev at `side`. Omits the ends of
    /// pairs, because they have no lower netdev. Omits IPoIB netdevs, because the kernel does not report the namespace
    /// of their lower netdev.
    pub fn lying_on<'a>(&'a self, side: NetnsSide, link: &Link) -> impl Iterator<Item = &'a Link> {
        let netns = match side {
            NetnsSide::Pod => Some(-1),
            NetnsSide::Host => self.other_number,
        };
        let index = link.index;
        let is_on_it = move |it: &Origin| it.index == index && Some(it.netns) == netns;
        self.links.iter().filter(move |it| {
            it.lower.is_some() && it.ipoib.is_none() && it.origin.as_ref().is_some_and(is_on_it)
        })
    }

    /// Returns the routes through the netdev `index` that `rdma-cni` cannot set again unchanged.
    pub fn unkept_by(&self, index: u32) -> impl Iterator<Item = &Route> {
        let routes = self.unkept_routes.iter();
        let routes = routes.filter(move |(netdev, _)| *netdev == index);
        routes.map(|(_, route)| route)
    }

    /// Returns true if `rdma-cni` cannot set `route` through the netdev `index` again unchanged. Ignores the remaining
    /// lifetime of `route`.
    pub fn has_unkept(&self, index: u32, route: &Route) -> bool {
        self.unkept_by(index).any(|it| it.same_as(route))
    }

    /// Returns the RDMA device of `link`, by the first of these rules that finds one ([`pairing`]):
    ///
    /// 1. `link` is a port of the RDMA device.
    /// 2. `link` and the RDMA device have the same PCI function or auxiliary device.
    /// 3. The RDMA device's GUID derives from the address of `link`, and neither rule 1 nor rule 2 finds a netdev of
    ///    this namespace for the RDMA device.
    ///
    /// A bond has the RDMA device of one of its ports. Some kernels report the bond as the netdev of `mlx5_bond_0`,
    /// others report a port, and the RDMA device has the hardware of the first port. A VLAN without an RDMA device of
    /// its own has its lower netdev's RDMA device ([`Self::below_vlan`]).
    ///
    /// `link` may be in another namespace. This function then ignores its index.
    pub fn rdma_of(&self, link: &Link) -> Option<&RdmaDevice> {
        self.own_rdma_of(link)
            .or_else(|| self.own_rdma_of(self.below_vlan(link)?))
    }

    /// Returns the lower netdev of `vlan`, a VLAN of this namespace, if the VLAN's addresses are GIDs of the lower
    /// netdev's RDMA device. The GID table of an RDMA device also has the addresses of its netdev's upper netdevs. A
    /// packet with such a GID gets the VLAN tag of the GID's netdev, if that netdev is a VLAN or is on top of a VLAN
    /// (`is_eth_port_of_netdev_filter()`, `drivers/infiniband/core/roce_gid_mgmt.c`; `rdma_read_gid_l2_fields()`,
    /// `cache.c`).
    ///
    /// Returns `None` for a VLAN of a VLAN, because a packet gets one tag only. Returns `None` for a VLAN of a bond's
    /// port, because the RDMA device has the bond's addresses.
    pub fn below_vlan(&self, vlan: &Link) -> Option<&Link> {
        let lower = vlan.lower.filter(|_| vlan.is_vlan() && self.has(vlan))?;
        let lower = self.link_by_index(lower)?;
        let master = lower.master.and_then(|index| self.link_by_index(index));
        let is_bonds_port = master.is_some_and(Link::is_bond);
        (!lower.is_vlan() && !is_bonds_port).then_some(lower)
    }

    /// Returns the netdev that `link` accelerates. This is its master, if the master is the netdev of a paravirtual NIC
    /// (`hv_netvsc`, as on Azure, or virtio's failover). The node's addresses are on the master. The hypervisor removes
    /// the accelerating function when it migrates the machine. Such a master has no kind, because neither driver has an
    /// `rtnl_link_ops` (`drivers/net/hyperv/netvsc_drv.c`, `drivers/net/net_failover.c`).
    pub fn accelerated_by(&self, link: &Link) -> Option<&Link> {
        let master = self.link_by_index(link.master?)?;
        master.kind.is_none().then_some(master)
    }

    /// Returns the netdev that accelerates `master` ([`Self::accelerated_by`]). Prefers a netdev with an RDMA device.
    pub fn accelerator_of(&self, master: &Link) -> Option<&Link> {
        let is_it = |link: &&Link| {
            let own = self.accelerated_by(link);
            own.is_some_and(|own| own.index == master.index)
        };
        let links = self.links.iter().filter(is_it);
        links.min_by_key(|link| self.rdma_of(link).is_none())
    }

    fn has(&self, link: &Link) -> bool {
        self.link_by_index(link.index) == Some(link)
    }

    /// Returns the RDMA device like [`Self::rdma_of`], without the rule for VLANs.
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

    /// Returns true if a netdev of this namespace is a port of the RDMA device, or belongs to the RDMA device's
    /// function.
    fn has_port_of(&self, rdma: &RdmaDevice) -> bool {
        let of_function = |link: &Link| rdma.parent.is_some() && link.parent == rdma.parent;
        self.links
            .iter()
            .any(|link| rdma.has_netdev(link.index) || of_function(link))
    }

    /// Returns the netdevs of the PCI function or auxiliary device at `address`. If the device has no netdevs, returns
    /// the netdevs of its RDMA device, which is in the namespace `rdma`.
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
#[path = "observed_tests.rs"]
mod tests;
