// SPDX-License-Identifier: Apache-2.0
//! The record of an attachment: the pod's devices, and their host state for the restore.

use crate::{
    allocated::Allocated, desired::DesiredLink, made_as::made_as, other_interface::OtherInterface,
    shared::Shared, smc::Smc, spared::Spared, stage::Stage,
};
use network_conf::{Conf, Dad, Ipv6, ResultIps, Routing};
use rdma_netns::{
    Child, DeviceAddress, DeviceSettings, HardwareAddress, InterfaceName, Link, LinkType, NetnsId,
    Observed, Origin, RdmaDevice, RdmaMode, Route, VfSetting,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
    time::Duration,
};

/// The format of the record. A reader refuses a record with a higher format, because it would miss fields that it does
/// not know. Raise the number with a new field if readers without the field would fail to remove or restore an object.
/// A reader does not convert earlier formats: a record without a mandatory field counts as corrupt.
pub const FORMAT: u32 = 10;

/// The identity of an attachment: network, container and interface, as in CNI.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The network's name.
    pub network: String,
    /// The container id.
    pub container: String,
    /// The value of `CNI_IFNAME`.
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
    /// Format of the record ([`FORMAT`]).
    pub format: u32,
    /// The attachment's identity.
    pub key: Key,
    /// `namespace/name` of the Kubernetes pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Value of `CNI_ARGS` at ADD. The IPAM plugin gets it at DEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<String>,
    /// Boot id at ADD. A reboot returns all devices to the host.
    pub boot_id: String,
    /// Time of the recorded observation, in the form of [`Observed::at`]. The recorded lifetimes of addresses and
    /// routes count from this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<u64>,
    /// Value of `CNI_NETNS` at ADD.
    pub netns: PathBuf,
    /// Identity of the namespace at `netns`.
    pub netns_id: NetnsId,
    /// Progress of the attachment.
    pub phase: Phase,
    /// Time of the first restore that failed, in the form of [`Observed::at`]. The next restore then gives up attributes
    /// that a temporary state of the machine prevents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<u64>,
    /// Indexes of the pod's netdevs that the last DEL reported and did not remove, because they might belong to the
    /// host. The next DEL removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<u32>,
    /// Mode of the RDMA subsystem at ADD.
    pub rdma_mode: Option<RdmaMode>,
    /// Value of the setting `mtu`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Duplicate address detection of IPv6 addresses in the pod.
    pub dad: Dad,
    /// True if the pod accepts router advertisements.
    pub accept_ra: bool,
    /// Value of the setting `routing`, whose `table_base` is the first table that ADD chose. There are no tables if the
    /// record does not contain the setting.
    #[serde(default = "without_tables")]
    pub routing: Routing,
    /// Value of the setting `resultIPs`.
    #[serde(default, rename = "resultIPs")]
    pub result_ips: ResultIps,
    /// Type of the IPAM plugin that assigns the addresses. ADD writes the type before it calls the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<String>,
    /// Setting `rebindDriver`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebind_driver: bool,
    /// The pod's SMC-R set-up, or the reason against it. `None`: SMC-R is off or not requested, or not decided yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smc: Option<Smc>,
    /// The rails, in order.
    pub rails: Vec<Rail>,
    /// Netdevs of the host that a restore changed temporarily.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spared: Vec<Spared>,
    /// The pod's interfaces that other plugins made, with the rules and routes that they need because of the rails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_interfaces: Vec<OtherInterface>,
    /// The network configuration at ADD. The IPAM plugin gets it at DEL.
    pub config: Map<String, Value>,
}

fn without_tables() -> Routing {
    Routing {
        metric: 0,
        table_base: 0,
    }
}

/// Progress of an attachment, to the pod or back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// ADD is running, or was killed.
    Attaching,
    /// ADD has answered: the pod has its devices.
    Attached,
    /// A CNI command is restoring the devices to the host. This phase remains if the command fails or is killed.
    Detaching,
    /// The devices are restored, and another pod may get them. The addresses of [`ipam`](Attachment::ipam) may still be
    /// reserved.
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
    /// The netdev's host state, if this plugin moved the netdev. If this field and `shared` are both `None`, the rail
    /// is `bare`, or an earlier plugin of the chain put the netdev into the pod and also restores it.
    #[serde(rename = "home", default, skip_serializing_if = "Option::is_none")]
    pub host_link: Option<Link>,
    /// The netdev's device settings on the host. `None`: this plugin does not move the netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_settings: Option<DeviceSettings>,
    /// Current owner of the devices.
    #[serde(default, skip_serializing_if = "Stage::is_pods")]
    pub stage: Stage,
    /// Routes through the netdev on the host that `rdma-cni` cannot set again. The kernel removes them with the move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unkept_routes: Vec<Route>,
    /// The netdev that stays on the host. `None`: the pod has no child netdev for this rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
    /// Settings of the virtual function that the physical function makes while a pod has the virtual function. The
    /// earlier settings are in `host_link`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vf: Vec<VfSetting>,
    /// The driver of the function, if it must be bound again to adopt new GUIDs. ADD and the restore bind it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The [identities](Observed::inodes) of the rail's PCI functions and auxiliary devices at ADD. Records of earlier
    /// versions have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inodes: BTreeMap<DeviceAddress, u64>,
    /// True if the rail has an RDMA device and no netdev.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
    /// Other netdevs of the same PCI function. A restore uses this list to distinguish them from the rail's netdev. For
    /// a rail with `shared`: the netdevs of the host that lay on top of the shared netdev at ADD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Sibling>,
    /// Index of the netdev in the pod. `None`: the netdev is identified by its PCI function or auxiliary device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_index: Option<u32>,
    /// The lower netdev of the rail's netdev, as the pod sees it. `None`: the rail's netdev is identified by its PCI
    /// function or auxiliary device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_origin: Option<Origin>,
    /// Character device, such as `uverbs0`, of an eRDMA device in the pod that has no parent in sysfs. The pod can change
    /// the RDMA device's name, but not this name. `None`: the rail has no such RDMA device, ADD has not moved it yet, or
    /// the record is of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erdma_verbs: Option<String>,
    /// The addresses, routes and rules that ADD sets. Empty until ADD has determined them.
    #[serde(default, rename = "given")]
    pub assigned: DesiredLink,
    /// True if IPAM certainly reserved no address for the rail: IPAM refused, or ADD did not call IPAM. False after a
    /// killed ADD, because IPAM may then have reserved an address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipam_refused: bool,
    /// The RDMA device in its host state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaDevice>,
    /// Kubelet's allocation for this rail. `None`: the rail uses no allocation of kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Allocated>,
    /// The GIDs of the rail's addresses. Empty until the kernel has made them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<RailGid>,
}

/// The RoCE v2 GID of an address, with its index. A program that sends from the address needs the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RailGid {
    /// The address.
    pub address: IpAddr,
    /// The address's GID (128 bits).
    pub gid: Ipv6Addr,
    /// Port of the RDMA device, from 1.
    pub port: u32,
    /// Index in the port's GID table, the value for `NCCL_IB_GID_INDEX` and for `-x` of perftest.
    pub index: u32,
}

/// A netdev of the host that has the same PCI function as a rail's netdev (another port, a representor), or that lies
/// on top of a shared netdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sibling {
    /// Name on the host.
    pub name: InterfaceName,
    /// Index on the host.
    pub index: u32,
}

impl Attachment {
    /// Returns the record of `rails` in the state `observed`, for an attachment to the pod's namespace.
    pub fn new(
        key: Key,
        (netns, netns_id): (&Path, NetnsId),
        conf: &Conf,
        observed: &Observed,
        mut rails: Vec<Rail>,
    ) -> Self {
        for (index, rail) in rails.iter_mut().enumerate() {
            let devices = rail.devices().into_iter();
            let known = devices.filter_map(|it| Some((it, observed.inodes.get(it)?)));
            rail.inodes = known.map(|(it, inode)| (it.clone(), *inode)).collect();
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
            failed_at: None,
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

    /// Returns the routing table of rail `index`. Returns `None` if the attachment has no tables (`routing.tableBase`
    /// is 0), or if this plugin brings no netdev of the rail into the pod.
    pub fn table(&self, index: usize) -> Option<u32> {
        let base = Some(self.routing.table_base).filter(|base| *base != 0)?;
        let is_ours = self.rails.get(index)?.is_ours();
        u32::try_from(index)
            .ok()
            .filter(|_| is_ours)
            .map(|index| base + index)
    }

    /// Returns true if ADD moves the RDMA devices into the pod, because RDMA was in exclusive mode at ADD. The mode
    /// changes while the pod's namespace exists only if ib_core is loaded again (`rdma_compatdev_set()`,
    /// `drivers/infiniband/core/device.c`). In the shared mode after that, the pod sees the RDMA devices and their GIDs
    /// too.
    pub fn moves_rdma(&self) -> bool {
        self.rdma_mode == Some(RdmaMode::Exclusive)
    }

    /// Returns true if the attachment may change the host: it moves a netdev or an RDMA device, changes settings of a
    /// virtual function, binds a driver, requests SMC-R, or has an IPoIB child, which `rdma-cni` makes on the host.
    /// Other children do not change the host.
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

    /// Returns the setting `ipv6` of the attachment's configuration.
    pub fn ipv6(&self) -> Ipv6 {
        Ipv6 {
            dad: self.dad,
            accept_ra: self.accept_ra,
        }
    }

    /// Returns kubelet's allocation for the rail with the RDMA device `rdma`, which is in its host state.
    pub fn allocated_with(&self, rdma: &RdmaDevice) -> Option<&Allocated> {
        let mut rails = self.rails.iter();
        let rail = rails.find(|rail| rail.rdma.as_ref() == Some(rdma))?;
        rail.allocated.as_ref()
    }

    /// Returns the seconds between the recorded observation and `observed`. Returns 0 if one of the times is unknown.
    /// After a reboot the result is meaningless, but then no device needs a restore.
    pub fn age(&self, observed: &Observed) -> u64 {
        let times = self.observed_at.zip(observed.at);
        times.map_or(0, |(then, now)| now.saturating_sub(then))
    }

    /// Returns the time from the first failed restore until `uptime`, a time of [`rdma_netns::Kernel::uptime`].
    pub fn since_failure(&self, uptime: u64) -> Option<Duration> {
        let seconds = self.failed_at.map(|it| uptime.saturating_sub(it));
        seconds.map(Duration::from_secs)
    }

    /// Returns the addresses that the moved netdevs had on the host. Omits link-local IPv6 addresses.
    pub fn away(&self) -> impl Iterator<Item = IpAddr> {
        let host_links = self.rails.iter().filter_map(|rail| rail.host_link.as_ref());
        let addresses = host_links.flat_map(|host_link| &host_link.addresses);
        let global = addresses.filter(|address| !address.is_link_local());
        global.map(|address| address.ip)
    }

    /// Returns the PCI functions and auxiliary devices of the attachment's netdevs and RDMA devices.
    pub fn devices(&self) -> BTreeSet<DeviceAddress> {
        self.rails.iter().flat_map(Rail::devices).cloned().collect()
    }

    /// Returns the virtual functions of the rails that have [`vf`](Rail::vf) settings.
    pub fn vfs(&self) -> BTreeSet<DeviceAddress> {
        let rails = self.rails.iter().filter(|rail| !rail.vf.is_empty());
        rails.filter_map(|rail| rail.device().cloned()).collect()
    }

    /// Returns the holder of the attachment's devices, as text for messages.
    pub fn holder(&self) -> String {
        match &self.pod {
            Some(pod) => format!("pod {pod}, {}", self.key),
            None => self.key.to_string(),
        }
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
            inodes: BTreeMap::new(),
            bare: false,
            siblings: vec![],
            pod_index: None,
            pod_origin: None,
            erdma_verbs: None,
            assigned: DesiredLink::default(),
            ipam_refused: false,
            rdma: None,
            allocated: None,
            gids: vec![],
        }
    }

    /// Returns the rail's name for messages: the netdev's name on the host if this plugin brings it into the pod,
    /// otherwise the rail's name in the pod.
    pub fn name(&self) -> &InterfaceName {
        let host_link = self.host_link.as_ref().map(|host_link| &host_link.name);
        let parent = self.shared.as_ref().map(|shared| &shared.parent);
        host_link.or(parent).unwrap_or(&self.pod_name)
    }

    /// Returns true if this plugin brings the netdev into the pod. Returns false if an earlier plugin of the chain did,
    /// or if the rail has no netdev.
    pub fn is_ours(&self) -> bool {
        self.host_link.is_some() || self.shared.is_some()
    }

    /// Returns the number of the RDMA device's port that has the rail's InfiniBand netdev, or an IPoIB child's parent.
    /// Returns `None` if the rail has no InfiniBand netdev, or if the RDMA device has no such port.
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

    /// Returns the driver that a restore must bind again. The driver may be unbound when the restore begins.
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

    /// Returns the hardware address that the physical function sets for the rail's virtual function.
    pub fn vf_mac(&self) -> Option<&HardwareAddress> {
        self.vf.iter().find_map(|setting| match setting {
            VfSetting::Mac(mac) => Some(mac),
            _ => None,
        })
    }

    /// Returns the pod's netdev with the rail's name. Returns `None` for a bare rail.
    pub fn in_pod<'a>(&self, observed: &'a Observed) -> Option<&'a Link> {
        let pod = observed.pod.as_ref().filter(|_| !self.bare);
        pod?.link(&self.pod_name)
    }

    /// Returns the rail's netdev on the host: a moved netdev in its recorded state, or a shared netdev in its present
    /// state.
    pub fn on_host<'a>(&'a self, observed: &'a Observed) -> Option<&'a Link> {
        let shared = self.shared.as_ref();
        let parent = shared.and_then(|it| observed.host.link_by_index(it.parent_index));
        self.host_link.as_ref().or(parent)
    }

    /// Returns the PCI functions and auxiliary devices of the rail's netdev and RDMA device.
    fn devices(&self) -> Vec<&DeviceAddress> {
        let rdma = self.rdma.as_ref().and_then(|it| it.parent.as_ref());
        rdma.into_iter().chain(self.device()).collect()
    }

    /// Returns the PCI function or auxiliary device of the moved or shared netdev.
    pub fn device(&self) -> Option<&DeviceAddress> {
        let host_link = self
            .host_link
            .as_ref()
            .and_then(|host_link| host_link.parent.as_ref());
        host_link.or_else(|| self.shared.as_ref()?.device.as_ref())
    }
}
