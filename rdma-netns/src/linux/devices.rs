// SPDX-License-Identifier: Apache-2.0
//! PCI functions and auxiliary devices from sysfs, whichever namespaces their netdevs and RDMA devices are in.
//!
//! The ADD of each pod reads these devices. A node has hundreds of PCI functions, and reading one file takes 8 to 10
//! us. Therefore this module reads only requested functions, and functions with observed netdevs or RDMA devices. A
//! request for all functions reads one file (`uevent`) of each function, and further files only of functions that can
//! have netdevs or RDMA devices. One run of the plugin observes several times, but reads constant attributes only once
//! ([`Known`]).

use super::Linux;
use crate::{
    Device, DeviceAddress, Link, LinkType, ObservationScope,
    pairing::{ERDMA, is_erdma_function},
    rdma::name,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::PoisonError,
};

/// A directory in `/sys/class/infiniband_verbs`. This class shows the RDMA devices of all namespaces, unlike
/// `/sys/class/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verbs {
    /// Name of the directory, such as `uverbs0`.
    pub(super) name: String,
    /// Name of the RDMA device, in the form of [`name::text`].
    pub(super) device: String,
    /// Parent of the RDMA device. `None` for software devices, and for devices of some drivers
    /// ([`pairing`](crate::pairing)).
    pub(super) parent: Option<DeviceAddress>,
}

/// Returns the RDMA devices of all namespaces. Returns none if ib_uverbs is not loaded.
pub(super) fn verbs(sysfs: &Path) -> io::Result<Vec<Verbs>> {
    let mut found = Vec::new();
    for directory in entries(&sysfs.join("class/infiniband_verbs"))? {
        // the class also contains the file `abi_version`
        let Some(device) = rdma_device(&directory) else {
            continue;
        };
        let parent = link_name(&directory, "device").and_then(|name| name.try_into().ok());
        let name = directory.file_name().and_then(OsStr::to_str);
        found.push(Verbs {
            name: name.unwrap_or_default().to_owned(),
            device,
            parent,
        });
    }
    found.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(found)
}

/// Returns the RDMA device of a directory below `infiniband_verbs` or `infiniband_mad`, in the form of [`name::text`].
pub(super) fn rdma_device(directory: &Path) -> Option<String> {
    let name = bytes(directory, "ibdev")?;
    Some(name::text(name.strip_suffix(b"\n").unwrap_or(&name)))
}

/// Constant attributes of PCI functions from earlier observations. `None`: the function is a bridge, or its driver
/// makes neither netdevs nor RDMA devices.
pub(super) type Known = BTreeMap<DeviceAddress, Option<PciFunction>>;

/// Constant attributes of one PCI function ([`Known`]).
#[derive(Clone, Debug)]
pub(super) struct PciFunction {
    /// Directory below `/sys/devices`, if the link to it can be resolved. Paths without links are faster, because sysfs
    /// generates a link's target at each read.
    directory: PathBuf,
    numa_node: Option<u32>,
    physical_function: Option<DeviceAddress>,
    /// True if the function can have virtual functions. Such a function has a file with their number
    /// (`sriov_pf_attrs_are_visible()`, `drivers/pci/iov.c`).
    can_have_functions: bool,
    /// Directory of the virtio device that has the netdevs of a virtio NIC, if an earlier read found one.
    virtio_netdevs: Option<PathBuf>,
}

impl Linux {
    /// Returns the devices of `scope`, the parents of `links` and `verbs`, and the functions of the eRDMA driver if a
    /// device in `verbs` has no parent. Returns all devices if `scope` is `None`.
    pub(super) fn devices<'a>(
        &self,
        scope: Option<&'a ObservationScope>,
        links: impl Iterator<Item = &'a Link>,
        verbs: &'a [Verbs],
    ) -> io::Result<Vec<Device>> {
        let (mut remembered, mut nothing) = (None, Known::default());
        let known = match &self.known {
            Some(known) => {
                let known = known.lock().unwrap_or_else(PoisonError::into_inner);
                &mut **remembered.insert(known)
            }
            None => &mut nothing,
        };
        let Some(scope) = scope else {
            return scan(&self.sysfs, verbs, known);
        };
        let of_links = links.filter_map(|link| link.parent.as_ref());
        let of_rdma = verbs.iter().filter_map(|it| it.parent.as_ref());
        let all = scope.ports.iter().chain(&scope.besides);
        let mut all: BTreeSet<_> = all.chain(of_links).chain(of_rdma).cloned().collect();
        if verbs.iter().any(|it| it.parent.is_none()) {
            let bound = self.sysfs.join("bus/pci/drivers").join(ERDMA);
            all.extend(entries(&bound)?.iter().filter_map(|it| address_of(it)));
        }
        Ok(those(&self.sysfs, &all, verbs, known))
    }
}

/// Returns the inodes of the devices' directories in sysfs ([`Observed::inodes`](crate::Observed::inodes)). Omits
/// devices that no longer exist.
pub(super) fn inodes(sysfs: &Path, devices: &[Device]) -> BTreeMap<DeviceAddress, u64> {
    let addresses = devices.iter().map(|it| &it.address);
    let inode = |it: &DeviceAddress| Some(fs::metadata(it.directory(sysfs)).ok()?.ino());
    let inodes = addresses.filter_map(|it| Some((it.clone(), inode(it)?)));
    inodes.collect()
}

/// Returns the PCI functions and auxiliary devices that have, or can have, netdevs or RDMA devices, by address. Does
/// not read attributes that are in `known`.
pub(super) fn scan(sysfs: &Path, verbs: &[Verbs], known: &mut Known) -> io::Result<Vec<Device>> {
    let mut addresses = BTreeSet::new();
    for bus in ["pci", "auxiliary"] {
        let names = names(&sysfs.join("bus").join(bus).join("devices"))?;
        addresses.extend(names.iter().filter_map(|it| address_of(Path::new(it))));
    }
    Ok(those(sysfs, &addresses, verbs, known))
}

/// Reads the functions and auxiliary devices at `addresses`. Omits those that do not exist, or that can have neither
/// netdevs nor RDMA devices.
fn those(
    sysfs: &Path,
    addresses: &BTreeSet<DeviceAddress>,
    verbs: &[Verbs],
    known: &mut Known,
) -> Vec<Device> {
    let pci = sysfs.join("bus/pci/devices");
    let device = |address: &DeviceAddress| match address.bus() {
        "auxiliary" => auxiliary(&address.directory(sysfs), &pci, verbs),
        _ if matches!(known.get(address), Some(None)) => None,
        _ => pci_function(&pci, address.clone(), verbs, known),
    };
    addresses.iter().filter_map(device).collect()
}

/// Returns the PCI function or auxiliary device of a netdev whose parent is `name` on `bus`. For a virtio NIC, such as
/// eRDMA's, the parent `virtio3` on the bus `virtio` is below the PCI function.
pub(super) fn hardware(sysfs: &Path, bus: &str, name: &str) -> Option<DeviceAddress> {
    match bus {
        "pci" | "auxiliary" => name.to_owned().try_into().ok(),
        "virtio" => {
            let device = sysfs.join("bus/virtio/devices").join(name);
            address_of(fs::canonicalize(device).ok()?.parent()?)
        }
        _ => None,
    }
}

/// Returns the PCI function or auxiliary device of the netdev that has `index` in the namespace of `sysfs`. Sysfs and
/// netlink report the same parent: `dev->dev.parent` (`device_add_class_symlinks()`, `drivers/base/core.c`). This
/// function does not use `bus_info` (`ETHTOOL_GDRVINFO`), which depends on the driver. Bonds have no `bus_info`, and
/// before Linux 6.2 most representors have none (`ethtool_get_drvinfo()`, `net/ethtool/ioctl.c`).
pub fn of_netdev(sysfs: &Path, name: &str, index: u32) -> Option<DeviceAddress> {
    let class = sysfs.join("class/net");
    let index = index.to_string();
    let is_it = |directory: &PathBuf| read(directory, "ifindex").is_some_and(|it| it == index);
    // sysfs has no directory `name` if `name` replaces a name that is not UTF-8
    let directory = Some(class.join(name)).filter(is_it);
    let directory =
        directory.or_else(|| entries(&class).unwrap_or_default().into_iter().find(is_it))?;
    let parent = link_name(&directory, "device")?;
    let bus = link_name(&directory.join("device"), "subsystem")?;
    hardware(sysfs, &bus, &parent)
}

/// Returns the link type of the RDMA device's port at the directory `port`.
pub(super) fn link_layer(port: &Path) -> Option<LinkType> {
    Some(match read(port, "link_layer")?.as_str() {
        "Ethernet" => LinkType::Ether,
        "InfiniBand" => LinkType::Infiniband,
        _ => LinkType::Other,
    })
}

/// Returns the PCI function at `address` in `bus`, the directory of all PCI functions. Returns `None` if the function
/// can have neither netdevs nor RDMA devices.
fn pci_function(
    bus: &Path,
    address: DeviceAddress,
    verbs: &[Verbs],
    functions: &mut Known,
) -> Option<Device> {
    let known = functions.get(&address).and_then(Option::as_ref);
    let mut directory = known.map_or_else(|| bus.join(&*address), |it| it.directory.clone());
    let uevent = Uevent::read(&directory)?;
    let rdma = rdma_of(&address, verbs);
    if known.is_none() {
        let is_relevant = uevent.is_nic()
            || uevent.driver.as_deref() == Some(ERDMA)
            || is_erdma_function(uevent.vendor.as_deref(), uevent.device.as_deref())
            || !uevent.is_bridge() && (!rdma.is_empty() || has_netdev(&directory));
        if is_relevant {
            directory = place(bus, &directory);
        }
        let function = is_relevant.then(|| PciFunction {
            directory: directory.clone(),
            numa_node: numa_node(&directory),
            physical_function: link_name(&directory, "physfn")
                .and_then(|name| name.try_into().ok()),
            can_have_functions: directory.join("sriov_numvfs").exists(),
            virtio_netdevs: None,
        });
        // do not remember an irrelevant function without a driver: an administrator can later bind a driver that makes
        // it a NIC
        if is_relevant || uevent.driver.is_some() || uevent.is_bridge() {
            functions.insert(address.clone(), function);
        }
    }
    let function = functions.get_mut(&address)?.as_mut()?;
    let virtual_functions = function
        .can_have_functions
        .then(|| read(&directory, "sriov_numvfs")?.parse().ok());
    let has_netdev = match uevent.driver.as_deref() {
        Some("virtio-pci") => has_virtio_netdev(&directory, &mut function.virtio_netdevs),
        _ => has_netdev(&directory),
    };
    Some(Device {
        address,
        driver: uevent.driver,
        vendor: uevent.vendor,
        device: uevent.device,
        numa_node: function.numa_node,
        physical_function: function.physical_function.clone(),
        virtual_functions: virtual_functions.flatten().unwrap_or(0),
        has_netdev,
        rdma,
        rdma_functions: Vec::new(),
        manages_nvlink: false,
    })
}

/// Returns the directory of the device to which `link` leads, or `link` itself if its target has an unexpected form.
/// `bus` is the directory that contains `link`: `/sys/bus/BUS/devices`.
fn place(bus: &Path, link: &Path) -> PathBuf {
    let sysfs = bus.ancestors().nth(3);
    let target = fs::read_link(link).ok();
    let place = target
        .as_deref()
        .and_then(|it| it.strip_prefix("../../..").ok());
    match (sysfs, place) {
        (Some(sysfs), Some(place)) => sysfs.join(place),
        _ => link.to_owned(),
    }
}

/// Returns a sub-function, or another auxiliary device that has a netdev or an RDMA device. Auxiliary devices such as a
/// PCI function's `mlx5_core.eth.0` have neither.
fn auxiliary(directory: &Path, pci: &Path, verbs: &[Verbs]) -> Option<Device> {
    let address = address_of(directory)?;
    let sub_function = address.split('.').nth(1) == Some("sf");
    let rdma = rdma_of(&address, verbs);
    let has_netdev = has_netdev(directory);
    if !sub_function && rdma.is_empty() && !has_netdev {
        return None;
    }
    // ../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/mlx5_core.sf.4
    let place = fs::read_link(directory).ok()?;
    let function = place
        .iter()
        .rev()
        .filter_map(|part| DeviceAddress::try_from(part.to_str()?.to_owned()).ok())
        .find(|address| address.bus() == "pci");
    let parent = function.as_ref().map(|function| pci.join(&**function));
    let uevent = parent.as_deref().and_then(Uevent::read);
    let (vendor, device) = uevent
        .map(|uevent| (uevent.vendor, uevent.device))
        .unwrap_or_default();
    Some(Device {
        address,
        driver: link_name(directory, "driver"),
        vendor,
        device,
        numa_node: parent.as_deref().and_then(numa_node),
        physical_function: function,
        virtual_functions: 0,
        has_netdev,
        rdma,
        rdma_functions: Vec::new(),
        manages_nvlink: false,
    })
}

/// Content of `uevent` of a PCI function (`pci_uevent()` in `drivers/pci/pci-driver.c`).
pub(super) struct Uevent {
    pub(super) class: u32,
    driver: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) device: Option<String>,
}

impl Uevent {
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let text = read(directory, "uevent")?;
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        };
        let (vendor, device) = value("PCI_ID").and_then(|ids| ids.split_once(':')).unzip();
        Some(Self {
            class: value("PCI_CLASS").and_then(|class| u32::from_str_radix(class, 16).ok())?,
            driver: value("DRIVER").map(str::to_owned),
            vendor: vendor.map(str::to_ascii_lowercase),
            device: device.map(str::to_ascii_lowercase),
        })
    }

    /// Returns true for network controllers, and for InfiniBand controllers of the class serial bus.
    fn is_nic(&self) -> bool {
        self.class >> 16 == 0x02 || self.class >> 8 == 0x0c06
    }

    /// Returns true for a bridge. Most functions of a server are bridges.
    fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
    }
}

fn rdma_of(address: &DeviceAddress, verbs: &[Verbs]) -> Vec<String> {
    let own = verbs
        .iter()
        .filter(|verbs| verbs.parent.as_ref() == Some(address));
    own.map(|verbs| verbs.device.clone()).collect()
}

/// Returns true if the device has a netdev in any namespace. The kernel creates the device's directory of the class
/// `net` with the first netdev, and removes the directory with the last netdev (`get_device_parent()`,
/// `cleanup_glue_dir()`, `drivers/base/core.c`). sysfs shows only the entries of one namespace in the directory, but
/// shows the directory in all namespaces. Also returns true if sysfs cannot be read, because DEL would otherwise give
/// the netdev up.
fn has_netdev(directory: &Path) -> bool {
    !matches!(directory.join("net").try_exists(), Ok(false))
}

/// Returns true if a virtio NIC has a netdev, or if sysfs cannot be read. The directory of netdevs is one level deeper
/// than for other NICs, below `virtio3` (`register_virtio_device()`, `drivers/virtio/virtio.c`). Tries the directory in
/// `known` first.
fn has_virtio_netdev(directory: &Path, known: &mut Option<PathBuf>) -> bool {
    if known.as_ref().is_some_and(|it| has_netdev(it)) {
        return true;
    }
    let Ok(below) = names(directory) else {
        return true;
    };
    let is_virtio = |name: &OsString| name.to_str().is_some_and(|it| it.starts_with("virtio"));
    let below = below.into_iter().filter(is_virtio);
    *known = { below.map(|it| directory.join(it)) }.find(|it| has_netdev(it));
    known.is_some()
}

pub(super) fn numa_node(directory: &Path) -> Option<u32> {
    read(directory, "numa_node")?.parse().ok() // -1: not known
}

/// Returns the virtual functions of the physical function at `directory`, each with its number: `virtfn3` leads to the
/// fourth (`pci_iov_sysfs_link()`, `drivers/pci/iov.c`).
pub(super) fn virtual_functions(directory: &Path) -> io::Result<Vec<(u32, DeviceAddress)>> {
    let links = entries(directory)?;
    let function = |link: &PathBuf| {
        let number = link.file_name()?.to_str()?.strip_prefix("virtfn")?;
        let number = number.parse().ok()?;
        Some((number, address_of(&fs::read_link(link).ok()?)?))
    };
    Ok(links.iter().filter_map(function).collect())
}

pub(super) fn address_of(directory: &Path) -> Option<DeviceAddress> {
    DeviceAddress::try_from(directory.file_name()?.to_str()?.to_owned()).ok()
}

/// Returns the entries of a directory. Returns none if the directory does not exist.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let names = names(directory)?.into_iter();
    Ok(names.map(|name| directory.join(name)).collect())
}

pub(super) fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the content of a sysfs file, without trailing white space. Returns `None` if the device disappeared or has
/// no such file.
///
/// One read is enough, because sysfs returns at most one page.
pub(super) fn read(directory: &Path, file: &str) -> Option<String> {
    let text = String::from_utf8(bytes(directory, file)?).ok()?;
    Some(text.trim_end().to_owned())
}

fn bytes(directory: &Path, file: &str) -> Option<Vec<u8>> {
    let mut page = [0; 4096];
    let length = File::open(directory.join(file))
        .and_then(|mut file| file.read(&mut page))
        .ok()?;
    Some(page[..length].to_vec())
}

pub(super) fn link_name(directory: &Path, link: &str) -> Option<String> {
    let target = fs::read_link(directory.join(link)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
