// SPDX-License-Identifier: Apache-2.0
//! Writes a described node as a sysfs tree, with the files that the kernel would have, for the program's own reader.
//! Runs without root, and therefore makes no device files.

use integration::machine::product_data;
use rdma_netns::{DeviceAddress, Function, Hca, Inventory, LinkType, Linux, Netdev, PciPath};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Classes of `include/linux/pci_ids.h` in the form of a uevent: `PCI_CLASS_BRIDGE_PCI`, `PCI_CLASS_BRIDGE_OTHER` and
/// others.
const BRIDGE: &str = "60400";
const OTHER_BRIDGE: &str = "68000";
const ETHERNET: &str = "20000";
const GPU: &str = "30200";
const DMA: &str = "80100";

/// Temporary sysfs tree. Dropping this value removes it.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn of(node: &Inventory) -> Self {
        let tree = Self(tempfile::tempdir().expect("a directory"));
        for directory in ["bus/pci/devices", "class/net", "class/infiniband_verbs"] {
            fs::create_dir_all(tree.path(directory)).expect("made");
        }
        for (number, function) in node.functions.iter().enumerate() {
            tree.function(number, function);
        }
        for gpu in &node.accelerators {
            let id = format!("{}:2330", gpu.vendor.to_uppercase());
            tree.pci(&gpu.path, &gpu.address, (GPU, &id), gpu.numa_node);
        }
        for (node, socket) in &node.sockets {
            // in this tree, the first processor of a NUMA node has the node's number
            tree.file(&format!("devices/system/node/node{node}/cpulist"), node);
            let processor = format!("devices/system/cpu/cpu{node}");
            tree.file(&format!("{processor}/topology/physical_package_id"), socket);
        }
        tree
    }

    /// Adds NVSwitches below one switch: functions of NVIDIA that are neither GPU nor NIC.
    pub(crate) fn with_nvswitches(
        self,
        host_bridge: &str,
        bridges: &[&str],
        switches: &[&str],
    ) -> Self {
        let address =
            |text: &&str| DeviceAddress::try_from((*text).to_owned()).expect("an address");
        let path = PciPath {
            host_bridge: host_bridge.to_owned(),
            bridges: bridges.iter().map(address).collect(),
        };
        for switch in switches {
            self.pci(
                &path,
                &address(switch),
                (OTHER_BRIDGE, "10DE:22A3"),
                Some(0),
            );
        }
        self
    }

    /// Reads the tree as the program does.
    pub(crate) fn read(&self) -> Inventory {
        let kernel = Linux::with_roots(self.0.path(), self.path("dev"));
        kernel.inventory().expect("read")
    }

    fn function(&self, number: usize, function: &Function) {
        let device = &function.device;
        let of = |id: &Option<String>| id.clone().expect("an id").to_uppercase();
        let id = format!("{}:{}", of(&device.vendor), of(&device.device));
        let place = self.pci(
            &function.path,
            &device.address,
            (ETHERNET, &id),
            device.numa_node,
        );
        for netdev in &function.netdevs {
            self.netdev(&place, netdev);
        }
        for hca in &function.hcas {
            self.hca(&place, hca);
        }
        // the id of the card is the number of its function
        if let Some(path) = &function.data_direct {
            let below = path.bridges.last().expect("a switch");
            let bus = format!("{}f0:00.0", &below[..5]);
            let address = DeviceAddress::try_from(bus).expect("an address");
            let direct = self.pci(path, &address, (DMA, "15B3:2100"), device.numa_node);
            for place in [&place, &direct] {
                let vpd = self.path(place).join("vpd");
                fs::write(vpd, product_data(&format!("card-{number}"))).expect("written");
            }
        }
    }

    /// Makes a PCI function, and all bridges above it. Returns its directory.
    fn pci(
        &self,
        path: &PciPath,
        address: &DeviceAddress,
        (class, id): (&str, &str),
        numa: Option<u32>,
    ) -> String {
        let mut place = format!("devices/{}", path.host_bridge);
        let bridges = path.bridges.iter().map(|it| (it, (BRIDGE, "1000:C030")));
        for (address, (class, id)) in bridges.chain([(address, (class, id))]) {
            place = format!("{place}/{address}");
            let link = self.path("bus/pci/devices").join(&**address);
            if link.symlink_metadata().is_ok() {
                continue;
            }
            let driver = if class == ETHERNET {
                "DRIVER=mlx5_core\n"
            } else {
                ""
            };
            let uevent = format!("{driver}PCI_CLASS={class}\nPCI_ID={id}\nPCI_SLOT_NAME={address}");
            self.file(&format!("{place}/uevent"), uevent);
            let node = numa.map_or("-1".to_owned(), |node| node.to_string());
            self.file(&format!("{place}/numa_node"), node);
            symlink(format!("../../../{place}"), link).expect("a link");
        }
        place
    }

    fn netdev(&self, place: &str, netdev: &Netdev) {
        let below = format!("{place}/net/{}", netdev.name);
        let kind = match netdev.link_type {
            LinkType::Infiniband => "32",
            _ => "1",
        };
        self.file(&format!("{below}/type"), kind);
        self.file(&format!("{below}/address"), &netdev.mac);
        self.file(&format!("{below}/carrier"), u8::from(netdev.carrier));
        let link = self.path("class/net").join(&netdev.name);
        symlink(format!("../../{below}"), link).expect("a link");
    }

    fn hca(&self, place: &str, hca: &Hca) {
        for port in &hca.ports {
            let port_of = format!("class/infiniband/{}/ports/{}", hca.name, port.number);
            self.file(
                &format!("{port_of}/state"),
                format!("{}: STATE", port.state),
            );
            let link_layer = match port.link_type {
                LinkType::Infiniband => "InfiniBand",
                _ => "Ethernet",
            };
            self.file(&format!("{port_of}/link_layer"), link_layer);
        }
        let uverbs = hca
            .char_devices
            .iter()
            .filter(|it| it.name.starts_with("uverbs"));
        for uverbs in uverbs {
            let class = format!("class/infiniband_verbs/{}", uverbs.name);
            self.file(&format!("{class}/ibdev"), &hca.name);
            self.file(
                &format!("{class}/dev"),
                format!("{}:{}", uverbs.major, uverbs.minor),
            );
            let link = self.path(&class).join("device");
            symlink(format!("../../../{place}"), link).expect("a link");
        }
    }

    fn file(&self, below: &str, text: impl ToString) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, format!("{}\n", text.to_string())).expect("written");
    }

    fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(below)
    }
}
