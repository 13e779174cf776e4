// SPDX-License-Identifier: Apache-2.0
//! RDMA hardware, mostly from sysfs and `/dev`. Some sysfs classes are not filtered by namespace. They show the
//! character devices of RDMA devices in all namespaces.
//!
//! The inventory omits hardware that disappears during the read. This is no error.

use super::{
    Linux, accelerators, cannot_read, data_direct,
    devices::{self, Verbs, entries, link_name, read, virtual_functions},
    erdma, nvlink,
    pci_path::path,
    port_netdevs::{self, PortNetdev},
    rdma,
    reach::{Reach, network_of},
    sockets, vlans,
};
use crate::{
    CharDevice, Device, DeviceAddress, Function, Guid, HardwareAddress, Hca, HcaPort, Inventory,
    LinkType, Netdev, ObserveError, RdmaMode, inventory::ACCELERATED, pairing, rdma::name,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

/// `SIW_NODE_DESC_COMMON`, `drivers/infiniband/sw/siw/siw_main.c`
const SOFT_IWARP: &str = "Software iWARP stack";

/// Sorting key of a device's character devices: `uverbs` first, then by kind and number.
fn order(node: &CharDevice) -> (bool, String, usize, String) {
    let kind = node.name.trim_end_matches(|c: char| c.is_ascii_digit());
    let other = kind != "uverbs";
    (other, kind.to_owned(), node.name.len(), node.name.clone())
}

impl Linux {
    /// Returns the node's RDMA hardware. The inventory has only the netdevs in this program's namespace.
    pub fn inventory(&self) -> Result<Inventory, ObserveError> {
        self.hardware(true)
    }

    /// Returns the inventory without ports, firmware versions, speeds and kernel users. Faulty firmware can take a
    /// minute to respond to a port query. Finds the netdev of an RDMA device's port by the last [`Self::inventory`].
    pub fn inventory_without_ports(&self) -> Result<Inventory, ObserveError> {
        self.hardware(false)
    }

    fn hardware(&self, with_ports: bool) -> Result<Inventory, ObserveError> {
        let reader = Reader {
            sysfs: &self.sysfs,
            dev: &self.dev,
            reach: self.reach().unwrap_or_else(|error| {
                log::warn!("cannot find the netdevs by which the node is reached: {error}");
                Reach::default()
            }),
            kernel_users: match with_ports {
                true => self.kernel_users(),
                false => BTreeMap::new(),
            },
            port_netdevs: self.port_netdevs(with_ports),
            with_ports,
        };
        reader
            .inventory()
            .map_err(cannot_read("the RDMA hardware in sysfs"))
    }
}

/// Returns the hardware below `sysfs` and `dev` with ports, and without the data that only netlink reports.
pub(super) fn read_tree(sysfs: &Path, dev: &Path, reach: Reach) -> io::Result<Inventory> {
    let reader = Reader {
        sysfs,
        dev,
        reach,
        kernel_users: BTreeMap::new(),
        port_netdevs: BTreeMap::new(),
        with_ports: true,
    };
    reader.inventory()
}

struct Reader<'a> {
    sysfs: &'a Path,
    dev: &'a Path,
    reach: Reach,
    /// Kernel users of RDMA devices, by name of the RDMA device.
    kernel_users: BTreeMap<String, Vec<String>>,
    /// RDMA devices in this program's namespace that have no parent, or whose parent has eRDMA's driver, by name.
    port_netdevs: BTreeMap<String, PortNetdev>,
    /// True if the inventory has ports, firmware versions and speeds.
    with_ports: bool,
}

impl Reader<'_> {
    fn inventory(&self) -> io::Result<Inventory> {
        let verbs = devices::verbs(self.sysfs)?;
        let scanned = devices::scan(self.sysfs, &verbs, &mut devices::Known::default())?;
        let numbers = self.virtual_functions(&scanned);
        let char_devices = self.char_devices(&verbs)?;
        let netdevs = devices::names(&self.sysfs.join("class/net"))?;
        let netdevs: BTreeSet<OsString> = netdevs.into_iter().collect();
        let mut functions: Vec<Function> = scanned
            .into_iter()
            .map(|device| self.function(device, &numbers, &netdevs))
            .collect();
        let hca = |verbs: &Verbs| Hca {
            soft: self.is_soft(&verbs.device),
            node_guid: self.node_guid(verbs),
            is_erdma: verbs.parent.is_none()
                && pairing::is_erdma(self.port_netdev(&verbs.device).driver, &verbs.device),
            kernel_users: self
                .kernel_users
                .get(&verbs.device)
                .cloned()
                .unwrap_or_default(),
            ports: self.ports(&verbs.device),
            firmware: self.firmware(&verbs.device),
            char_devices: char_devices.get(&verbs.device).cloned().unwrap_or_default(),
            sub_devices: Vec::new(),
            name: verbs.device.clone(),
        };
        let (own, parentless): (Vec<&Verbs>, Vec<&Verbs>) =
            verbs.iter().partition(|verbs| verbs.parent.is_some());
        for verbs in own {
            let mut functions = functions.iter_mut();
            let parent = functions.find(|it| verbs.parent.as_ref() == Some(&it.device.address));
            parent.into_iter().for_each(|it| it.hcas.push(hca(verbs)));
        }
        for function in functions.iter_mut().filter(|it| !it.hcas.is_empty()) {
            // hardware RDMA devices precede software RDMA devices (rxe or siw) of the same function
            function.hcas.sort_by_key(|hca| hca.soft);
            let device = &mut function.device;
            device.manages_nvlink = nvlink::is_switch_manager(self.sysfs, &device.address);
        }
        let (soft, unpaired): (Vec<Hca>, Vec<Hca>) =
            parentless.into_iter().map(hca).partition(|hca| hca.soft);
        let mut inventory = Inventory {
            functions,
            unpaired,
            rdma_mode: self.rdma_mode(),
            sockets: sockets::of_numa_nodes(self.sysfs)?,
            connection_manager: self.char_device(&self.sysfs.join("class/misc/rdma_cm")),
            erdma: erdma::erdma_module(self.sysfs),
            ..Inventory::default()
        };
        self.pair(&mut inventory);
        let functions = &mut inventory.functions;
        for mut hca in soft {
            let place = self.port_place(&hca.name, functions);
            let Some(function) = place.and_then(|place| functions.get_mut(place)) else {
                continue;
            };
            let mut netdevs = function.netdevs.iter();
            hca.soft = !netdevs.all(|netdev| netdev.master.is_some());
            function.device.rdma.push(hca.name.clone());
            function.hcas.push(hca);
        }
        self.add_sub_devices(&verbs, &char_devices, functions)?;
        erdma::pair(self.sysfs, functions, |device, functions| {
            self.port_place(device, functions)
        });
        data_direct::find(self.sysfs, functions)?;
        let addresses = functions.iter().map(|it| &it.device.address);
        inventory.accelerators = accelerators::accelerators(self.sysfs, &addresses.collect())?;
        Ok(inventory)
    }

    fn function(
        &self,
        device: Device,
        numbers: &BTreeMap<DeviceAddress, u32>,
        present: &BTreeSet<OsString>,
    ) -> Function {
        let bus = device.address.bus();
        let directory = device.address.directory(self.sysfs);
        let pci = match (&device.physical_function, bus) {
            (Some(function), "auxiliary") => function.directory(self.sysfs),
            _ => directory.clone(),
        };
        let number = match bus {
            "auxiliary" => read(&directory, "sfnum").and_then(|number| number.parse().ok()),
            _ => numbers.get(&device.address).copied(),
        };
        Function {
            number,
            path: path(&pci),
            netdevs: self.netdevs(&directory, &device, present),
            netdev_function: None,
            data_direct: None,
            hcas: Vec::new(),
            device,
        }
    }

    /// Returns the present mode from ib_core's parameter, which the kernel updates when the mode changes
    /// (`rdma_compatdev_set()`, `drivers/infiniband/core/device.c`).
    fn rdma_mode(&self) -> Option<RdmaMode> {
        let parameters = self.sysfs.join("module/ib_core/parameters");
        match read(&parameters, "netns_mode")?.as_str() {
            "Y" => Some(RdmaMode::Shared),
            "N" => Some(RdmaMode::Exclusive),
            _ => None,
        }
    }

    /// Returns the index of each virtual function in its physical function.
    fn virtual_functions(&self, devices: &[Device]) -> BTreeMap<DeviceAddress, u32> {
        let mut numbers = BTreeMap::new();
        for device in devices.iter().filter(|device| device.virtual_functions > 0) {
            let directory = device.address.directory(self.sysfs);
            let functions = virtual_functions(&directory).unwrap_or_default();
            numbers.extend(functions.into_iter().map(|(number, it)| (it, number)));
        }
        numbers
    }

    /// Returns the netdevs of a function in this program's namespace. A virtio NIC has netdevs one level deeper.
    fn netdevs(
        &self,
        directory: &Path,
        device: &Device,
        present: &BTreeSet<OsString>,
    ) -> Vec<Netdev> {
        // representors of virtual functions and sub-functions belong to the physical function
        let physical = device.physical_function.is_none();
        let mut paths = entries(&directory.join("net")).unwrap_or_default();
        if paths.is_empty() {
            let below = entries(directory).unwrap_or_default();
            let virtio = below.iter().filter(|path| {
                let name = path.file_name().and_then(OsStr::to_str);
                name.is_some_and(|name| name.starts_with("virtio"))
            });
            paths.extend(virtio.flat_map(|path| entries(&path.join("net")).unwrap_or_default()));
        }
        let mut found: Vec<Netdev> = paths
            .iter()
            .filter_map(|path| path.file_name())
            .filter(|name| present.contains(*name))
            .filter_map(|name| self.netdev(name, physical))
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    fn netdev(&self, name: &OsStr, physical: bool) -> Option<Netdev> {
        let directory = self.sysfs.join("class/net").join(name);
        let port_name = || read(&directory, "phys_port_name");
        if physical && port_name().is_some_and(|name| is_representor(&name)) {
            return None;
        }
        let name = name.to_str()?;
        let master = link_name(&directory, "master");
        let taken_by = self.taken_by(master.as_deref());
        let bond = master.as_deref().filter(|_| taken_by.is_none());
        let base = bond.unwrap_or(name);
        let at = self.reach.addresses_of(name, master.as_deref());
        Some(Netdev {
            name: name.to_owned(),
            mac: read(&directory, "address")?
                .parse::<HardwareAddress>()
                .unwrap_or_default(),
            // ARPHRD_ETHER, ARPHRD_INFINIBAND
            link_type: match read(&directory, "type")?.as_str() {
                "1" => LinkType::Ether,
                "32" => LinkType::Infiniband,
                _ => LinkType::Other,
            },
            carrier: read(&directory, "carrier").as_deref() == Some("1"),
            mtu: read(&directory, "mtu").and_then(|it| it.parse().ok()),
            // -1 without carrier (`SPEED_UNKNOWN`); reading the file queries the driver
            speed: self
                .with_ports
                .then(|| read(&directory, "speed")?.parse().ok())
                .flatten(),
            vlans: vlans::of(self.sysfs, base),
            taken_by,
            master,
            ipv6_prefix: at.ipv6.map(|(ip, length)| network_of(ip, length)),
            ipv6: at.ipv6.map(|(ip, _)| ip),
            ipv4: at.ipv4,
            default_route: self.reach.uplinks.contains(name),
            above: self.reach.above(name),
        })
    }

    /// Returns the text of [`Netdev::taken_by`] for a netdev with this master. A bond is no such master. A bridge has a
    /// directory of its own (`br_sysfs_addbr()`, `net/bridge/br_sysfs_br.c`). Open vSwitch has a fixed name
    /// (`ovs_netdev_link()`). Hyper-V's netdev is a master with hardware (`netvsc_vf_join()`,
    /// `drivers/net/hyperv/netvsc_drv.c`).
    fn taken_by(&self, master: Option<&str>) -> Option<String> {
        let name = master?;
        let master = self.sysfs.join("class/net").join(name);
        if name == "ovs-system" {
            Some("Open vSwitch".to_owned())
        } else if master.join("bridge").exists() {
            Some(format!("the bridge {name}"))
        } else if master.join("device").exists() {
            Some(name.to_owned() + ACCELERATED)
        } else {
            None
        }
    }

    /// Returns true if the driver of an RDMA device in this namespace is rxe or siw. Only rxe has the attribute
    /// `parent` (`drivers/infiniband/sw/rxe/rxe_verbs.c`). siw has a constant description. The parent in sysfs is no
    /// criterion: older kernels report the NIC's hardware as parent.
    fn is_soft(&self, device: &str) -> bool {
        let directory = name::directory(self.sysfs, device);
        directory.join("parent").exists()
            || read(&directory, "node_desc").as_deref() == Some(SOFT_IWARP)
    }

    /// Returns the node GUID of an RDMA device of this namespace. Returns `None` if the device has a parent, or if the
    /// GUID is 0.
    fn node_guid(&self, verbs: &Verbs) -> Option<String> {
        let directory = name::directory(self.sysfs, &verbs.device);
        let guid = read(&directory, "node_guid").filter(|_| verbs.parent.is_none())?;
        Guid::of_groups(&guid)
            .is_some_and(|it| it != Guid(0))
            .then_some(guid)
    }

    /// Pairs the unpaired RDMA devices of this namespace with the functions of their netdevs. Finds the netdev as the
    /// RDMA device's port, else by GUID ([`pairing`]). Searches by GUID only after all ports, because a netdev can have
    /// a MAC from which the GUID of another RDMA device derives.
    fn pair(&self, inventory: &mut Inventory) {
        for is_by_port in [true, false] {
            for hca in inventory.unpaired.clone() {
                let functions = &inventory.functions;
                let place = match is_by_port {
                    true => self.port_place(&hca.name, functions),
                    false => guid_place(&hca, functions),
                };
                if let Some(place) = place {
                    let address = functions[place].device.address.clone();
                    inventory.pair(&hca.name, &address);
                }
            }
        }
    }

    fn char_devices(&self, verbs: &[Verbs]) -> io::Result<BTreeMap<String, Vec<CharDevice>>> {
        let class = self.sysfs.join("class");
        let mut found: BTreeMap<String, Vec<CharDevice>> = BTreeMap::new();
        for verbs in verbs {
            let node = self.char_device(&class.join("infiniband_verbs").join(&verbs.name));
            found.entry(verbs.device.clone()).or_default().extend(node);
        }
        for directory in entries(&class.join("infiniband_mad"))? {
            let device = devices::rdma_device(&directory);
            if let Some((device, node)) = device.zip(self.char_device(&directory)) {
                found.entry(device).or_default().push(node);
            }
        }
        for nodes in found.values_mut() {
            nodes.sort_by_key(order);
        }
        Ok(found)
    }

    /// Finds sub-devices, which have `umad` devices and no `uverbs` device. Adds the `umad` devices to the RDMA device
    /// of the same function (`ib_umad_init_port_dev()`, `drivers/infiniband/core/user_mad.c`).
    fn add_sub_devices(
        &self,
        verbs: &[Verbs],
        char_devices: &BTreeMap<String, Vec<CharDevice>>,
        functions: &mut [Function],
    ) -> io::Result<()> {
        for directory in entries(&self.sysfs.join("class/infiniband_mad"))? {
            let name = devices::rdma_device(&directory);
            let Some(name) = name.filter(|name| verbs.iter().all(|it| it.device != *name)) else {
                continue;
            };
            let parent = link_name(&directory, "device");
            let mut functions = functions.iter_mut();
            let function = functions.find(|it| Some(&*it.device.address) == parent.as_deref());
            let hca = function.and_then(|function| function.hcas.first_mut());
            let Some(hca) = hca.filter(|it| !it.soft && !it.sub_devices.contains(&name)) else {
                continue;
            };
            hca.char_devices
                .extend(char_devices.get(&name).into_iter().flatten().cloned());
            hca.char_devices.sort_by_key(order);
            hca.sub_devices.push(name);
        }
        Ok(())
    }

    /// Returns the character device that a directory of a class describes. `major` and `minor` are from sysfs. `node`
    /// has the numbers of the device file in `/dev/infiniband`.
    fn char_device(&self, directory: &Path) -> Option<CharDevice> {
        let name = directory.file_name()?.to_str()?.to_owned();
        let number = read(directory, "dev")?;
        let (major, minor) = number.split_once(':')?;
        Some(CharDevice {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            node: rdma::node(&self.dev.join("infiniband").join(&name)),
            name,
        })
    }

    /// Returns the firmware version of an RDMA device in this namespace.
    fn firmware(&self, device: &str) -> Option<String> {
        let directory = name::directory(self.sysfs, device);
        let version = self.with_ports.then(|| read(&directory, "fw_ver"))?;
        version.filter(|it| !it.is_empty())
    }

    /// Returns the ports of an RDMA device that is in this namespace.
    fn ports(&self, device: &str) -> Vec<HcaPort> {
        if !self.with_ports {
            return Vec::new();
        }
        let directory = name::directory(self.sysfs, device).join("ports");
        let port = |path: &PathBuf| {
            let state = read(path, "state")?;
            Some(HcaPort {
                number: path.file_name()?.to_str()?.parse().ok()?,
                state: state.split(':').next()?.trim().parse().ok()?,
                link_type: devices::link_layer(path)?,
                gids: fs::read_dir(path.join("gids")).map_or(0, |it| it.count() as u32),
            })
        };
        let paths = entries(&directory).unwrap_or_default();
        let mut ports: Vec<HcaPort> = paths.iter().filter_map(port).collect();
        ports.sort_by_key(|port| port.number);
        ports
    }

    fn port_netdev(&self, device: &str) -> PortNetdev {
        self.port_netdevs.get(device).copied().unwrap_or_default()
    }

    /// Returns the place in `functions` of the function that has the netdev of an RDMA device's port. Returns `None` if
    /// the netdev is in another namespace.
    fn port_place(&self, device: &str, functions: &[Function]) -> Option<usize> {
        let netdev = self.port_netdev(device).netdev?;
        port_netdevs::place_of(self.sysfs, netdev, functions)
    }
}

/// Returns the place in `functions` of the function that has no RDMA device, and that has a netdev from whose address
/// the GUID of `hca` derives.
fn guid_place(hca: &Hca, functions: &[Function]) -> Option<usize> {
    let guid = hca.node_guid.as_deref()?;
    let is_its = |netdev: &Netdev| pairing::is_guid_of(guid, &netdev.mac);
    functions
        .iter()
        .position(|it| it.hcas.is_empty() && it.netdevs.iter().any(is_its))
}

/// Returns true if a host's netdev with this port name is a representor, such as `pf0vf3` or `c1pf0sf88`. A representor
/// represents a virtual function or sub-function (`devlink_port_attrs_*_set` in `net/devlink/port.c`).
fn is_representor(port_name: &str) -> bool {
    let after = port_name.split_once("pf").map(|(_, after)| after);
    let after = after.map(|after| after.trim_start_matches(|c: char| c.is_ascii_digit()));
    after.is_some_and(|after| after.starts_with("vf") || after.starts_with("sf"))
}

#[cfg(test)]
#[path = "inventory_tests/mod.rs"]
mod tests;
