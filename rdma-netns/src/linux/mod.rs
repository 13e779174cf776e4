// SPDX-License-Identifier: Apache-2.0
//! The real kernel.
//!
//! This module builds requests to rtnetlink with `netlink-packet-route`, and reads answers one attribute at a time.
//! Attributes that the library does not support therefore hide no netdev, and make no observation fail.
//!
//! | module | owns |
//! |---|---|
//! | `links`, `link_messages`, `children`, `ipoib`, `addresses`, `routes`, `rules`, `sysctls` | one rtnetlink object each: parsing and requests |
//! | `device_settings`, `ethtool`, `kind_data`, `bpf`, `xdp` | settings of a netdev in sysfs, of its driver and of its kind, and BPF programs |
//! | `vfs` | virtual functions, as their physical function reports them |
//! | `drivers` | unbinding and binding of drivers |
//! | `announce` | announcements of an address to neighbours |
//! | `probe` | probes whether an address is free |
//! | `packet_socket` | packet sockets, and ARP requests |
//! | `neighbours` | the neighbour tables |
//! | `nexthops` | the netdevs of nexthop objects |
//! | `dropped` | objects that a move of a netdev removes permanently |
//! | `listeners` | sockets that receive the events of netdevs, addresses and routes |
//! | `reach` | the netdevs that the node needs for its own network connection |
//! | `api_server` | the API server's address in kubelet's kubeconfig |
//! | `held` | all addresses of a namespace, read by one dump |
//! | `vlans` | the VLANs on a netdev |
//! | [`nldev`] | RDMA netlink |
//! | `rdma`, `devices` | RDMA devices and their hardware, in sysfs and `/dev` |
//! | `gids` | the GID tables in sysfs |
//! | `erdma` | special cases of eRDMA |
//! | `port_netdevs` | the netdevs of software RDMA devices and eRDMA devices |
//! | `inventory` | the node's hardware from which resources are formed |
//! | `pci_path` | the PCI path of a function |
//! | `accelerators`, `data_direct`, `sockets` | GPUs, and the distance of a NIC from them |
//! | `gpudirect` | state that determines whether GPUDirect works |
//! | [`devlink`], [`aer`] | errors of a NIC that its driver and its PCI link report |
//! | `nvlink` | RDMA devices that manage NVLink's switches |
//! | `vpd` | vital product data of PCI functions |
//! | `smc` | SMC's settings |
//! | `locked_memory` | the limit of a process's locked memory |
//! | `rdma_cgroup` | the controller that limits the use of RDMA devices |
//! | `namespace` | the state of a namespace except its RDMA devices |
//! | [`monitor`] | events of the kernel |
//! | [`inside`] | reads that need a thread in a pod's namespace |
//! | [`offline`] | decoding without a kernel |
//! | `space` | a namespace and its sockets |
//! | `identity` | identities of the namespaces at paths |
//! | `execute` | execution of every [`Op`] |

mod accelerators;
mod addresses;
pub mod aer;
mod announce;
mod api_server;
mod bpf;
mod children;
mod data_direct;
mod device_settings;
mod devices;
pub mod devlink;
mod drivers;
mod dropped;
mod erdma;
mod ethtool;
mod execute;
mod gids;
mod gpudirect;
mod held;
mod identity;
pub mod inside;
mod inventory;
mod ipoib;
mod kind_data;
mod link_messages;
mod links;
mod listeners;
mod locked_memory;
pub mod monitor;
mod namespace;
mod neighbours;
mod nexthops;
pub mod nldev;
mod nvlink;
pub mod offline;
mod packet_socket;
mod pci_path;
mod port_netdevs;
mod probe;
mod rdma;
mod rdma_cgroup;
mod reach;
mod routes;
mod rules;
mod smc;
mod sockets;
mod space;
mod sysctls;
mod vfs;
mod vlans;
mod vpd;
mod xdp;

pub use accelerators::{accelerator_names, accelerators};
pub use gpudirect::GpuDirectReader;
pub use locked_memory::raise_locked_memory;
pub use rdma_cgroup::RdmaCgroup;
pub use space::Space;

use crate::{
    DeviceAddress, DeviceSettings, GidTable, Kernel, Link, Namespace, NetnsId, ObservationScope,
    ObserveError, Observed, Op, OpError, OpenPodError, Pkey, RdmaMode, Vf,
    netlink::NetlinkError,
    probe::{Conflict, Neighbour, ProbeError, Probed, Question},
    smc::SmcState,
};
use execute::Namespaces;
use netlink_packet_route::AddressFamily;
use nldev::{DeviceInfo, Nldev};
use port_netdevs::PortNetdevs;
use rdma::DeviceContext;
use std::{
    collections::BTreeMap,
    fmt, fs, io, mem,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Name of the node's own namespace in messages.
const HOST: &str = "the host";

/// File with an id that changes at every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel of this machine. The host is the network namespace of the first thread that uses this value.
#[derive(Debug)]
pub struct Linux {
    sysfs: PathBuf,
    dev: PathBuf,
    host: OnceLock<Space>,
    boot_id: OnceLock<String>,
    /// Cache of hardware. Only [`Self::for_one_run`] sets it.
    known: Option<Mutex<devices::Known>>,
    /// Cache of the API servers in kubelet's configuration. Only a value of [`Self::for_one_run`] uses it.
    api_servers: OnceLock<Vec<IpAddr>>,
    scope: Mutex<Option<ObservationScope>>,
    port_netdevs: PortNetdevs,
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Linux {
    /// Returns the kernel with `/sys` and `/dev` at their usual paths.
    pub fn new() -> Self {
        Self::with_roots("/sys", "/dev")
    }

    /// Returns the kernel for one short run of a plugin. Reads constant attributes of PCI functions and the addresses
    /// of the API servers only once. If an address passes to another PCI function during the run, the plugin may miss
    /// that.
    pub fn for_one_run() -> Self {
        Self {
            known: Some(Mutex::default()),
            ..Self::new()
        }
    }

    /// Returns the kernel with other paths for `/sys` and `/dev`, for tests and for containers that mount the host's
    /// directories.
    pub fn with_roots(sysfs: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        Self {
            sysfs: sysfs.into(),
            dev: dev.into(),
            host: OnceLock::new(),
            boot_id: OnceLock::new(),
            known: None,
            api_servers: OnceLock::new(),
            scope: Mutex::default(),
            port_netdevs: PortNetdevs::default(),
        }
    }

    /// Sets the namespace mode of the RDMA subsystem: `rdma system set netns MODE`. The kernel changes the mode only if
    /// no other network namespace exists, as at boot. Otherwise the kernel returns EBUSY.
    pub fn set_rdma_mode(&self, mode: RdmaMode) -> Result<(), NetlinkError> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        self.host()?
            .nldev()?
            .ok_or_else(unsupported)?
            .set_mode(mode)
    }

    fn api_servers(&self) -> Vec<IpAddr> {
        match self.known {
            Some(_) => self.api_servers.get_or_init(api_server::addresses).clone(),
            None => api_server::addresses(),
        }
    }

    fn host(&self) -> io::Result<&Space> {
        match self.host.get() {
            Some(host) => Ok(host),
            None => {
                let host = Space::own()?;
                Ok(self.host.get_or_init(|| host))
            }
        }
    }

    /// Returns RDMA netlink as `space` sees it, if the kernel has it.
    fn nldev(&self, space: &Space) -> io::Result<Option<Nldev>> {
        match self.has_nldev() {
            true => space.nldev(),
            false => Ok(None),
        }
    }

    /// Returns true if the directory of ib_core in sysfs exists. Without ib_core, the kernel would search for a module
    /// whenever a program opens RDMA netlink.
    fn has_nldev(&self) -> bool {
        self.sysfs.join("class/infiniband").exists()
    }
}

impl Kernel for Linux {
    type Pod = Space;

    fn boot_id(&self) -> Result<String, ObserveError> {
        if let Some(id) = self.boot_id.get() {
            return Ok(id.clone());
        }
        let id = fs::read_to_string(BOOT_ID).map_err(cannot_read(BOOT_ID))?;
        let id = self.boot_id.get_or_init(|| id.trim_end().to_owned());
        Ok(id.clone())
    }

    fn open_pod(&self, path: &Path) -> Result<Space, OpenPodError> {
        let pod = Space::open(path)?;
        self.check_not_host(path, pod.netns().id())?;
        Ok(pod)
    }

    fn netns_ids(&self, paths: &[&Path]) -> Vec<Result<NetnsId, OpenPodError>> {
        self.ids_at(paths)
    }

    fn observe(&self, pod: Option<&Space>) -> Result<Observed, ObserveError> {
        let host = self.host().map_err(cannot_read("the host's namespace"))?;
        let boot_id = self.boot_id()?;
        let at = seconds_since_boot();
        let has_nldev = self.has_nldev();
        // without ib_core there is no ib_uverbs, and so no verbs device
        let verbs = has_nldev.then(|| devices::verbs(&self.sysfs)).transpose();
        let verbs = verbs
            .map_err(cannot_read("the RDMA devices in sysfs"))?
            .unwrap_or_default();
        let scope = self.scope.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rdma_mode = None;
        let mut hardware = BTreeMap::new();
        let mut namespace = |space: &Space, whose: &str| {
            let has_routes = whose == HOST || !scope.as_ref().is_some_and(|it| it.no_pod_routes);
            let nldev = has_nldev.then(|| space.nldev()).transpose();
            let mut nldev = nldev
                .map_err(cannot_read(format_args!("RDMA netlink of {whose}")))?
                .flatten();
            let (rdma, sub_devices) = match &mut nldev {
                None => Default::default(),
                Some(nldev) => {
                    if rdma_mode.is_none() {
                        let what = format_args!("the RDMA mode of {whose}");
                        rdma_mode = Some(nldev.mode().map_err(cannot_read(what))?);
                    }
                    let context = DeviceContext {
                        sysfs: &self.sysfs,
                        dev: &self.dev,
                        verbs: &verbs,
                        is_host: whose == HOST,
                        ports: scope.as_ref().map(|it| &it.ports),
                    };
                    rdma::read(nldev, &context, &mut hardware)
                        .map_err(cannot_read(format_args!("the RDMA devices of {whose}")))?
                }
            };
            Ok(Namespace {
                rdma,
                sub_devices,
                ..namespace::read(space, whose, &self.sysfs, has_routes)?
            })
        };
        let host_space = host;
        let mut host = namespace(host, HOST)?;
        let mut pod_in = |space: &Space| {
            let mut pod = namespace(space, "the pod")?;
            pod.other_number = namespace::number_of(host_space, space, &pod.links)?;
            host.other_number = namespace::number_of(space, host_space, &host.links)?;
            Ok(pod)
        };
        let pod = pod.map(&mut pod_in).transpose()?;
        let links = pod.iter().chain([&host]).flat_map(|it| &it.links);
        let devices = self
            .devices(scope.as_ref(), links, &verbs)
            .map_err(cannot_read("the devices in sysfs"))?;
        let parentless = verbs.into_iter().filter(|it| it.parent.is_none());
        let mut observed = Observed {
            vfs: BTreeMap::new(),
            device_settings: vec![],
            boot_id,
            at,
            rdma_mode,
            inodes: devices::inodes(&self.sysfs, &devices),
            devices,
            unpaired: parentless.map(|it| it.device).collect(),
            api_servers: self.api_servers(),
            host,
            pod,
        };
        observed.pair(&hardware);
        Ok(observed)
    }

    fn limit_observation(&self, scope: Option<ObservationScope>) -> Option<ObservationScope> {
        let mut present = self.scope.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *present, scope)
    }

    fn manages_nvlink(&self, address: &DeviceAddress) -> bool {
        nvlink::is_switch_manager(&self.sysfs, address)
    }

    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError> {
        let read = || -> Result<_, NetlinkError> {
            let mut socket = self.host()?.route();
            vfs::read(&self.sysfs, &mut socket, function)
        };
        let what = format_args!("the settings of virtual function {function}");
        read().map_err(cannot_read(what))
    }

    fn device_settings(&self, link: &Link) -> DeviceSettings {
        let Ok(host) = self.host() else {
            return DeviceSettings::default();
        };
        device_settings::read(&self.sysfs, &mut host.route(), link)
    }

    fn dropped(&self, netdevs: &[u32]) -> Vec<(u32, String)> {
        match self.host() {
            Ok(host) if !netdevs.is_empty() => dropped::read(&mut host.route(), netdevs),
            _ => vec![],
        }
    }

    fn gids(&self, pod: Option<&Space>, device: &str, port: u32) -> Result<GidTable, ObserveError> {
        let table = match pod {
            None => gids::read(&self.sysfs, device, port),
            Some(pod) => gids::read_inside(pod.netns(), &self.sysfs, device, port),
        };
        let whose = if pod.is_some() { "pod" } else { "host" };
        let what = format_args!("the GIDs of {device}, port {port}, as seen by the {whose}");
        table.map_err(cannot_read(what))
    }

    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError> {
        let what = format_args!("the P_Keys of {device}, port {port}");
        ipoib::partitions(&self.sysfs, device, port).map_err(cannot_read(what))
    }

    fn has_smc(&self) -> bool {
        smc::is_there()
    }

    fn smc(&self, pod: Option<&Space>) -> Result<Option<SmcState>, ObserveError> {
        let host = self.host().map_err(cannot_read("the host's namespace"))?;
        smc::read(host, pod, &self.sysfs)
    }

    fn is_watched(&self) -> bool {
        listeners::of_everything()
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        Linux::neighbours(self)
    }

    fn probe(&self, pod: &Space, questions: &[Question]) -> Result<Probed, ProbeError> {
        Ok(self.ask(pod, questions)?)
    }

    fn conflicts_since_probe(
        &self,
        pod: &Space,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError> {
        Ok(self.listen(pod, questions)?)
    }

    fn execute(&self, op: &Op, pod: Option<&Space>) -> Result<(), OpError> {
        let outcome = match self.host() {
            Ok(host) => Namespaces {
                host,
                pod,
                sysfs: &self.sysfs,
            }
            .execute(op),
            Err(error) => Err(error.into()),
        };
        outcome.map_err(|NetlinkError { source, message }| OpError {
            op: Box::new(op.clone()),
            source,
            message,
        })
    }
}

/// Returns the seconds of `CLOCK_BOOTTIME`. Unlike the monotonic clock, this clock counts while the machine sleeps.
pub fn seconds_since_boot() -> Option<u64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    u64::try_from(now.tv_sec()).ok()
}

impl Linux {
    /// Returns RDMA netlink of this program's namespace, and the RDMA devices in the namespace. Returns `None` if the
    /// kernel has no RDMA netlink.
    fn own_rdma(&self) -> Option<(Nldev, Vec<DeviceInfo>)> {
        let mut nldev = self.nldev(self.host().ok()?).ok()??;
        let devices = nldev.devices().unwrap_or_default();
        Some((nldev, devices))
    }

    /// Returns the kernel users of the RDMA devices in this program's namespace, by device name.
    fn kernel_users(&self) -> BTreeMap<String, Vec<String>> {
        let Some((mut nldev, devices)) = self.own_rdma() else {
            return BTreeMap::new();
        };
        let users = devices.into_iter().map(|device| {
            let users = rdma::kernel_users(&mut nldev, &device);
            (device.name, users)
        });
        users.collect()
    }
}

/// Returns a function that converts an error of reading `what`.
pub(crate) fn cannot_read<E: Into<NetlinkError>>(
    what: impl fmt::Display,
) -> impl FnOnce(E) -> ObserveError {
    move |error| {
        let error = error.into();
        if let Some(message) = &error.message {
            log::debug!("{what}: {message}");
        }
        ObserveError {
            what: what.to_string(),
            source: error.source,
        }
    }
}

/// Returns the family of `ip`.
fn family_of(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// Returns the unspecified address of `family`. Returns `None` if `family` is neither IPv4 nor IPv6.
fn unspecified(family: AddressFamily) -> Option<IpAddr> {
    match family {
        AddressFamily::Inet => Some([0; 4].into()),
        AddressFamily::Inet6 => Some([0; 16].into()),
        _ => None,
    }
}

/// Parses an address in network byte order. The length determines the family.
fn ip_of(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}
