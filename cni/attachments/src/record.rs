// SPDX-License-Identifier: Apache-2.0
//! The record of an attachment: the pod's devices, and their host state. A restore needs no other data.

use crate::{
    allocated::Allocated, desired::DesiredLink, made_as::made_as, other_interface::OtherInterface,
    smc::Smc, spared::Spared, stage::Stage,
};
use network_conf::{Conf, Dad, Ipv6, ResultIps, Routing};
use rdma_netns::{
    Child, DeviceAddress, DeviceSettings, HardwareAddress, InterfaceName, Link, LinkType, NetnsId,
    Observed, Origin, RdmaDevice, RdmaMode, Route, VfSetting,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

/// The format of the record. A reader refuses a record with a higher format, because it would not see all fields.
///
/// Raise the number if a reader of the present format, without knowing a new field, would fail to remove or restore
/// something. There are no readers of earlier formats.
pub const FORMAT: u32 = 10;

/// The identity of an attachment: CNI's triple.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The network's name.
    pub network: String,
    /// The container id.
    pub container: String,
    /// `CNI_IFNAME`
    pub interface: InterfaceName,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "container {} ({} of network {})",
            self.container, self.interface, self.network
        )
    }
}

/// A pod's rails, and their state on the host before the first change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// [`FORMAT`]
    pub format: u32,
    /// The attachment's identity.
    pub key: Key,
    /// `namespace/name` of the Kubernetes pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `CNI_ARGS` of ADD, for the IPAM plugin's DEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<String>,
    /// Boot id of ADD. After a reboot all devices are on the host.
    pub boot_id: String,
    /// Time of the observation that the record contains, as [`Observed::at`]. Lifetimes of addresses and routes count
    /// from this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<u64>,
    /// `CNI_NETNS` of ADD.
    pub netns: PathBuf,
    /// The namespace at `netns`.
    pub netns_id: NetnsId,
    /// Progress of the attachment.
    pub phase: Phase,
    /// True after a restore that did not finish. The next restore gives up attributes that only a temporary state of
    /// the machine prevents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tried: bool,
    /// Indexes of the pod's netdevs that the last DEL reported as possibly the host's. The next DEL removes the
    /// netdevs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<u32>,
    /// Mode of the RDMA subsystem at ADD.
    pub rdma_mode: Option<RdmaMode>,
    /// `mtu`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Duplicate address detection of IPv6 addresses in the pod.
    pub dad: Dad,
    /// True if the pod accepts router advertisements.
    pub accept_ra: bool,
    /// `routing`; without tables if the record has none.
    #[serde(default = "without_tables")]
    pub routing: Routing,
    /// Addresses of rails in the result.
    #[serde(default, rename = "resultIPs")]
    pub result_ips: ResultIps,
    /// Type of the IPAM plugin that assigned the addresses. ADD records it before it calls the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<String>,
    /// `rebindDriver`
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebind_driver: bool,
    /// The pod's SMC-R set-up. None: SMC-R was not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smc: Option<Smc>,
    /// The rails, in order.
    pub rails: Vec<Rail>,
    /// Netdevs of the host that a restore changed temporarily.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spared: Vec<Spared>,
    /// The pod's other interfaces, which are not rails, with the tables that they need because of the rails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_interfaces: Vec<OtherInterface>,
    /// The network configuration of ADD, for the IPAM plugin's DEL.
    pub config: Map<String, Value>,
}

fn without_tables() -> Routing {
    Routing {
        metric: 0,
        table_base: 0,
    }
}

/// Progress of an attachment into the pod or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// ADD is under way, or was killed.
    Attaching,
    /// ADD has answered: the pod has its devices.
    Attached,
    /// A verb is restoring the devices to the host, or it failed or was killed during the restore.
    Detaching,
    /// The devices are restored, and another pod may have them. Addresses of [`ipam`](Attachment::ipam) may still be
    /// held.
    #[serde(rename = "home")]
    Restored,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A rail of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rail {
    /// Name of the netdev in the pod.
    pub pod_name: InterfaceName,
    /// The netdev's host state, if this plugin moved the netdev. If `shared` is `None` too, an earlier plugin of the
    /// chain put the netdev into the pod, and also restores it.
    #[serde(rename = "home", default, skip_serializing_if = "Option::is_none")]
    pub host_link: Option<Link>,
    /// The netdev's host settings that rtnetlink does not report. None if the netdev stays on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_settings: Option<DeviceSettings>,
    /// Current owner of the devices.
    #[serde(default, skip_serializing_if = "Stage::is_pods")]
    pub stage: Stage,
    /// Routes over the host's netdev that a move removes, and that `rdma-cni` cannot set again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unkept_routes: Vec<Route>,
    /// The netdev that stays on the host, if the pod has a child of this netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
    /// Settings that the physical function makes for the virtual function while the pod has it. `host_link` contains
    /// the settings before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vf: Vec<VfSetting>,
    /// The driver that is bound to the function again, so that it adopts the GUIDs in `vf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// True if the rail has an RDMA device and no netdev.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
    /// Other netdevs of the same PCI function, so that a restore does not confuse them with the rail's netdev. With
    /// `shared`: the host's netdevs that lay on the shared netdev at ADD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Sibling>,
    /// Index of the netdev in the pod, if no hardware address on a bus identifies the netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_index: Option<u32>,
    /// The lower netdev of the rail's netdev, as seen from the pod, if no hardware address identifies the netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_origin: Option<Origin>,
    /// The addresses, routes and rules that ADD sets, as soon as they are known.
    #[serde(default, rename = "given")]
    pub assigned: DesiredLink,
    /// True if the rail holds no address: IPAM refused one, or ADD did not call IPAM. False if ADD was killed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipam_refused: bool,
    /// The RDMA device in its host state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaDevice>,
    /// Kubelet's allocation for this rail. None: the configuration names the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Allocated>,
    /// The GIDs of the addresses, once they exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<RailGid>,
}

/// A netdev that stays on the host, and the pod's child of this netdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shared {
    /// The netdev's name on the host.
    pub parent: InterfaceName,
    /// The netdev's index on the host.
    pub parent_index: u32,
    /// The netdev's MTU in bytes, which limits the child's.
    pub parent_mtu: u32,
    /// The netdev's PCI function or auxiliary device; a bond has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceAddress>,
    /// The kind of the pod's child netdev.
    pub child: Child,
    /// Name under which an IPoIB child is created on the host. The name stays as the child's alias, because the child
    /// returns to the host when the pod's namespace ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_as: Option<InterfaceName>,
}

/// Index of the RoCE v2 GID that a program names to send from an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RailGid {
    /// The address.
    pub address: IpAddr,
    /// The GID of the address, in 128 bits.
    pub gid: Ipv6Addr,
    /// Port of the RDMA device, from 1.
    pub port: u32,
    /// Index in the port's table (`NCCL_IB_GID_INDEX`, `-x` of perftest).
    pub index: u32,
}

/// A netdev of the host that shares the PCI function of a rail's netdev (the other port, a representor), or that lies
/// on a shared netdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sibling {
    /// Name on the host.
    pub name: InterfaceName,
    /// Index on the host.
    pub index: u32,
}

impl Attachment {
    /// Returns the record of `rails`, which are in the state `observed`, for the pod's namespace at a path.
    pub fn new(
        key: Key,
        (netns, netns_id): (&Path, NetnsId),
        conf: &Conf,
        observed: &Observed,
        mut rails: Vec<Rail>,
    ) -> Self {
        for (index, rail) in rails.iter_mut().enumerate() {
            if rail.has_ipoib_child()
                && let Some(shared) = &mut rail.shared
            {
                shared.made_as = made_as(&key, index);
            }
        }
        Self {
            format: FORMAT,
            key,
            pod: None,
            args: None,
            boot_id: observed.boot_id.clone(),
            observed_at: observed.at,
            netns: netns.to_owned(),
            netns_id,
            phase: Phase::Attaching,
            tried: false,
            named: vec![],
            rdma_mode: observed.rdma_mode,
            mtu: conf.mtu,
            dad: conf.ipv6.dad,
            accept_ra: conf.ipv6.accept_ra,
            routing: conf.routing,
            result_ips: conf.result_ips(),
            ipam: conf.ipam.clone(),
            rebind_driver: conf.rebind_driver,
            smc: None,
            rails,
            spared: vec![],
            other_interfaces: vec![],
            config: conf.raw.clone(),
        }
    }

    /// Returns the routing table of rail `index`. `None`: `routing.tableBase` is not set, or an earlier plugin put the
    /// netdev into the pod.
    pub fn table(&self, index: usize) -> Option<u32> {
        let base = Some(self.routing.table_base).filter(|base| *base != 0)?;
        let is_ours = self.rails.get(index)?.is_ours();
        u32::try_from(index)
            .ok()
            .filter(|_| is_ours)
            .map(|index| base + index)
    }

    /// Returns true if the RDMA devices are moved into the pod.
    pub fn moves_rdma(&self) -> bool {
        self.rdma_mode == Some(RdmaMode::Exclusive)
    }

    /// Returns true if the attachment changes the host: it moves a netdev or RDMA device, binds a driver, or changes
    /// SMC-R's tables. An IPoIB child also changes the host, because the child is created there. Returns false for
    /// other children of netdevs that stay on the host.
    pub fn changes_host(&self) -> bool {
        let is_child = |rail: &Rail| {
            rail.shared.is_some()
                && !rail.has_ipoib_child()
                && rail.driver.is_none()
                && rail.vf.is_empty()
                && !(self.moves_rdma() && rail.rdma.is_some())
        };
        let are_children = !self.rails.is_empty() && self.rails.iter().all(is_child);
        !are_children || self.smc.is_some()
    }

    /// Returns the `ipv6` of the attachment's configuration.
    pub fn ipv6(&self) -> Ipv6 {
        Ipv6 {
            dad: self.dad,
            accept_ra: self.accept_ra,
        }
    }

    /// Returns kubelet's allocation for the rail whose RDMA device had the host state `rdma`.
    pub fn allocated_with(&self, rdma: &RdmaDevice) -> Option<&Allocated> {
        let mut rails = self.rails.iter();
        let rail = rails.find(|rail| rail.rdma.as_ref() == Some(rdma))?;
        rail.allocated.as_ref()
    }

    /// Returns the seconds between the recorded observation and `observed`, or 0 if unknown. After a reboot the
    /// difference is meaningless, but nothing is left to restore.
    pub fn age(&self, observed: &Observed) -> u64 {
        let times = self.observed_at.zip(observed.at);
        times.map_or(0, |(then, now)| now.saturating_sub(then))
    }

    /// Returns the addresses that moved netdevs have on the host.
    pub fn away(&self) -> impl Iterator<Item = IpAddr> {
        let host_links = self.rails.iter().filter_map(|rail| rail.host_link.as_ref());
        let addresses = host_links.flat_map(|host_link| &host_link.addresses);
        let global = addresses.filter(|address| !address.is_link_local());
        global.map(|address| address.ip)
    }

    /// Returns the hardware of the attachment's netdevs and RDMA devices.
    pub fn devices(&self) -> BTreeSet<DeviceAddress> {
        let rdma = |rail: &Rail| rail.rdma.as_ref()?.parent.clone();
        let devices = |rail: &Rail| [rdma(rail), rail.device().cloned()];
        self.rails.iter().flat_map(devices).flatten().collect()
    }

    /// Returns the virtual functions that their physical functions set up for the pod.
    pub fn vfs(&self) -> BTreeSet<DeviceAddress> {
        let rails = self.rails.iter().filter(|rail| !rail.vf.is_empty());
        rails.filter_map(|rail| rail.device().cloned()).collect()
    }

    /// Returns the holder of the attachment's devices, for people.
    pub fn holder(&self) -> String {
        match &self.pod {
            Some(pod) => format!("pod {pod}, {}", self.key),
            None => self.key.to_string(),
        }
    }
}

impl Shared {
    /// Returns a record of a `child` of `parent` in its present state.
    pub fn of(parent: &Link, child: Child) -> Self {
        Self {
            parent: parent.name.clone(),
            parent_index: parent.index,
            parent_mtu: parent.mtu,
            device: parent.parent.clone(),
            child,
            made_as: None,
        }
    }

    /// Returns true if `link`, a netdev of the host, is the parent. The index is not enough: after the parent is gone,
    /// another netdev can get its index.
    pub fn is_of(&self, link: &Link) -> bool {
        let same = link.parent == self.device;
        link.index == self.parent_index
            && same
            && (self.device.is_some() || link.name == self.parent)
    }
}

impl Rail {
    /// Returns a rail that has only its name in the pod.
    pub fn new(pod_name: InterfaceName) -> Self {
        Self {
            pod_name,
            host_link: None,
            device_settings: None,
            stage: Stage::Pod,
            unkept_routes: vec![],
            shared: None,
            vf: vec![],
            driver: None,
            bare: false,
            siblings: vec![],
            pod_index: None,
            pod_origin: None,
            assigned: DesiredLink::default(),
            ipam_refused: false,
            rdma: None,
            allocated: None,
            gids: vec![],
        }
    }

    /// Returns the rail's name for people: the netdev's name on the host.
    pub fn name(&self) -> &InterfaceName {
        let host_link = self.host_link.as_ref().map(|host_link| &host_link.name);
        let parent = self.shared.as_ref().map(|shared| &shared.parent);
        host_link.or(parent).unwrap_or(&self.pod_name)
    }

    /// Returns true if this plugin brings the netdev into the pod, and no earlier plugin of the chain did.
    pub fn is_ours(&self) -> bool {
        self.host_link.is_some() || self.shared.is_some()
    }

    /// Returns the port of the RDMA device to which the rail's InfiniBand netdev belongs; `None`: the netdev is not of
    /// InfiniBand.
    pub fn infiniband_port(&self) -> Option<u32> {
        let host_link = self.host_link.as_ref();
        let moved = host_link.filter(|it| it.link_type == LinkType::Infiniband);
        let shared = self.shared.as_ref().filter(|_| self.has_ipoib_child());
        let index = moved.map(|it| it.index);
        let index = index.or_else(|| Some(shared?.parent_index))?;
        let mut ports = self.rdma.as_ref()?.ports.iter();
        let port = ports.find(|it| it.netdev == Some(index))?;
        Some(port.number)
    }

    /// Returns the driver that a restore binds again, and that a restore may therefore find unbound.
    pub fn rebound_driver(&self) -> Option<&String> {
        match &self.stage {
            Stage::Rebinding { driver, .. } => Some(driver),
            Stage::Returned => None,
            _ => self.driver.as_ref(),
        }
    }

    /// Returns true if the pod has a child of an IPoIB netdev.
    pub fn has_ipoib_child(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|it| matches!(it.child, Child::Ipoib { .. }))
    }

    /// Returns the hardware address that the rail's physical function sets.
    pub fn vf_mac(&self) -> Option<&HardwareAddress> {
        self.vf.iter().find_map(|setting| match setting {
            VfSetting::Mac(mac) => Some(mac),
            _ => None,
        })
    }

    /// Returns the netdev in the pod.
    pub fn in_pod<'a>(&self, observed: &'a Observed) -> Option<&'a Link> {
        let pod = observed.pod.as_ref().filter(|_| !self.bare);
        pod?.link(&self.pod_name)
    }

    /// Returns the netdev on the host, in its recorded or present state.
    pub fn on_host<'a>(&'a self, observed: &'a Observed) -> Option<&'a Link> {
        let shared = self.shared.as_ref();
        let parent = shared.and_then(|it| observed.host.link_by_index(it.parent_index));
        self.host_link.as_ref().or(parent)
    }

    /// Returns the PCI function or auxiliary device of the netdev.
    pub fn device(&self) -> Option<&DeviceAddress> {
        let host_link = self
            .host_link
            .as_ref()
            .and_then(|host_link| host_link.parent.as_ref());
        host_link.or_else(|| self.shared.as_ref()?.device.as_ref())
    }
}
