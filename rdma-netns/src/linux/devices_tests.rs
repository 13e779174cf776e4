// SPDX-License-Identifier: Apache-2.0
//! Tests of the scan on directory trees like sysfs.

use super::*;
use serde_json::json;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const ROOT: &str = "devices/pci0000:3a/0000:3a:00.0";

struct Sysfs(TempDir);

impl Sysfs {
    fn new() -> Self {
        let sysfs = Self(tempfile::tempdir().expect("a directory"));
        for directory in [
            "bus/pci/devices",
            "bus/auxiliary/devices",
            "class/infiniband_verbs",
        ] {
            fs::create_dir_all(sysfs.path().join(directory)).expect("a directory");
        }
        sysfs.file("class/infiniband_verbs/abi_version", "6\n");
        sysfs
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.path().join(path), text).expect("a file");
    }

    /// Adds a PCI function with its `uevent` and NUMA node, and returns its directory.
    fn pci(&self, address: &str, uevent: &str, numa_node: i32) -> String {
        let place = format!("{ROOT}/{address}");
        fs::create_dir_all(self.path().join(&place)).expect("a directory");
        self.file(&format!("{place}/uevent"), uevent);
        self.file(&format!("{place}/numa_node"), &format!("{numa_node}\n"));
        self.link(
            &format!("bus/pci/devices/{address}"),
            &format!("../../../{place}"),
        );
        place
    }

    fn auxiliary(&self, function: &str, name: &str) -> String {
        let place = format!("{ROOT}/{function}/{name}");
        fs::create_dir_all(self.path().join(&place)).expect("a directory");
        self.link(
            &format!("bus/auxiliary/devices/{name}"),
            &format!("../../../{place}"),
        );
        place
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.path().join(path)).expect("a link");
    }

    fn uverbs(&self, number: u32, device: &str, parent: Option<&str>) {
        let directory = format!("class/infiniband_verbs/uverbs{number}");
        fs::create_dir_all(self.path().join(&directory)).expect("a directory");
        self.file(&format!("{directory}/ibdev"), &format!("{device}\n"));
        if let Some(parent) = parent {
            self.link(
                &format!("{directory}/device"),
                &format!("../../../{ROOT}/{parent}"),
            );
        }
    }

    fn scan(&self) -> Vec<Device> {
        self.scan_again(&mut Known::default())
    }

    fn scan_again(&self, known: &mut Known) -> Vec<Device> {
        let verbs = verbs(self.path()).expect("verbs");
        scan(self.path(), &verbs, known).expect("devices")
    }
}

fn address(text: &str) -> DeviceAddress {
    DeviceAddress::try_from(text.to_owned()).expect("an address")
}

const PF: &str = "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:101D\n";
const VIRTIO: &str = "DRIVER=virtio-pci\nPCI_CLASS=20000\nPCI_ID=1AF4:1000\n";
const VF: &str = "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:101E\n";

#[test]
fn physical_virtual_and_sub_functions() {
    let sysfs = Sysfs::new();
    let pf = sysfs.pci("0000:3b:00.0", PF, 1);
    sysfs.file(&format!("{pf}/sriov_numvfs"), "2\n");
    for vf in ["0000:3b:00.2", "0000:3b:00.3"] {
        let vf = sysfs.pci(vf, VF, -1);
        sysfs.link(&format!("{vf}/physfn"), "../0000:3b:00.0");
    }
    sysfs.auxiliary("0000:3b:00.0", "mlx5_core.eth.0");
    let sf = sysfs.auxiliary("0000:3b:00.0", "mlx5_core.sf.4");
    sysfs.link(
        &format!("{sf}/driver"),
        "../../../../../bus/auxiliary/drivers/mlx5_core.sf",
    );
    sysfs.uverbs(0, "mlx5_0", Some("0000:3b:00.0"));
    sysfs.uverbs(1, "mlx5_3", Some("0000:3b:00.0/mlx5_core.sf.4"));
    sysfs.uverbs(2, "rxe0", None);
    let device = |text: &str, driver: &str, id: &str| Device {
        address: address(text),
        driver: Some(driver.to_owned()),
        vendor: Some("15b3".to_owned()),
        device: Some(id.to_owned()),
        numa_node: Some(1),
        physical_function: None,
        virtual_functions: 0,
        has_netdev: false,
        rdma: Vec::new(),
        rdma_functions: Vec::new(),
        manages_nvlink: false,
    };
    let pf = Some(address("0000:3b:00.0"));
    let expected = [
        Device {
            virtual_functions: 2,
            rdma: vec!["mlx5_0".to_owned()],
            ..device("0000:3b:00.0", "mlx5_core", "101d")
        },
        Device {
            physical_function: pf.clone(),
            numa_node: None,
            ..device("0000:3b:00.2", "mlx5_core", "101e")
        },
        Device {
            physical_function: pf.clone(),
            numa_node: None,
            ..device("0000:3b:00.3", "mlx5_core", "101e")
        },
        Device {
            physical_function: pf,
            rdma: vec!["mlx5_3".to_owned()],
            ..device("mlx5_core.sf.4", "mlx5_core.sf", "101d")
        },
    ];
    assert_eq!(sysfs.scan(), expected);
}

#[test]
fn a_bonds_rdma_device_belongs_to_its_first_function() {
    let sysfs = Sysfs::new();
    sysfs.pci("0000:3b:00.0", PF, 0);
    sysfs.pci("0000:3b:00.1", PF, 0);
    sysfs.uverbs(0, "mlx5_bond_0", Some("0000:3b:00.0"));
    let rdma: Vec<_> = sysfs.scan().into_iter().map(|device| device.rdma).collect();
    assert_eq!(rdma, [vec!["mlx5_bond_0".to_owned()], vec![]]);
}

#[test]
fn only_what_can_have_a_netdev_or_an_rdma_device() {
    let sysfs = Sysfs::new();
    sysfs.pci("0000:00:00.0", "PCI_CLASS=60000\nPCI_ID=8086:1237\n", -1);
    sysfs.pci("0000:01:00.0", "PCI_CLASS=30200\nPCI_ID=10DE:2330\n", 0);
    sysfs.pci("0000:02:00.0", "PCI_CLASS=C0600\nPCI_ID=15B3:1003\n", 0);
    sysfs.pci("0000:03:00.0", "PCI_CLASS=120000\nPCI_ID=1DED:107F\n", 0);
    sysfs.uverbs(0, "erdma_0", Some("0000:03:00.0"));
    // a NIC without a driver, which the scan finds, and a directory whose name is no PCI address
    sysfs.pci("0000:04:00.0", "PCI_CLASS=20000\nPCI_ID=1AF4:1041\n", 0);
    fs::create_dir(sysfs.path().join("bus/pci/devices/odd")).expect("a directory");
    let found: Vec<_> = sysfs
        .scan()
        .into_iter()
        .map(|device| device.address)
        .collect();
    assert_eq!(
        found,
        ["0000:02:00.0", "0000:03:00.0", "0000:04:00.0"].map(address)
    );
}

#[test]
fn another_observation_reads_only_changes() {
    let sysfs = Sysfs::new();
    let gpu = sysfs.pci("0000:01:00.0", "DRIVER=nvidia\nPCI_CLASS=30200\n", 0);
    let vf = sysfs.pci("0000:3b:00.2", VF, 1);
    let free = sysfs.pci("0000:3c:00.0", "PCI_CLASS=120000\n", 1);
    let mut known = Known::default();
    let [before] = &sysfs.scan_again(&mut known)[..] else {
        panic!("the virtual function alone");
    };
    assert!(before.driver.is_some() && !before.has_netdev);
    // all three functions get a netdev, and the virtual function loses its driver
    for it in [&gpu, &free] {
        fs::create_dir(sysfs.path().join(it).join("net")).expect("a directory");
    }
    fs::create_dir(sysfs.path().join(&vf).join("net")).expect("a directory");
    sysfs.file(
        &format!("{vf}/uevent"),
        "PCI_CLASS=20000\nPCI_ID=15B3:101E\n",
    );
    sysfs.file(&format!("{vf}/numa_node"), "0\n");
    // an administrator plugs a function in
    sysfs.pci("0000:3d:00.0", VF, 1);
    let after = sysfs.scan_again(&mut known);
    let found: Vec<&str> = after.iter().map(|it| &*it.address).collect();
    assert_eq!(found, ["0000:3b:00.2", "0000:3c:00.0", "0000:3d:00.0"]);
    let expected = Device {
        driver: None,
        has_netdev: true,
        ..before.clone()
    };
    assert_eq!(after[0], expected);
}

#[test]
fn a_machine_without_these_buses() {
    let nothing = tempfile::tempdir().expect("a directory");
    assert_eq!(verbs(nothing.path()).expect("none"), []);
    let none = scan(nothing.path(), &[], &mut Known::default());
    assert_eq!(none.expect("none"), []);
}

/// The parent of a virtio NIC's netdev, such as eRDMA's, is on the bus `virtio`.
#[test]
fn a_netdevs_parent_is_its_hardware() {
    let sysfs = Sysfs::new();
    fs::create_dir_all(sysfs.path().join("bus/virtio/devices")).expect("a directory");
    let nic = sysfs.pci("0000:00:05.0", "PCI_CLASS=20000\nPCI_ID=1AF4:1000\n", -1);
    fs::create_dir(sysfs.path().join(&nic).join("virtio3")).expect("a directory");
    let virtio = |name: &str, place: &str| {
        let link = format!("bus/virtio/devices/{name}");
        sysfs.link(&link, &format!("../../../{place}/{name}"));
    };
    virtio("virtio3", &nic);
    // in a microVM the NIC is on virtio-mmio, which is no PCI function
    let mmio = "devices/platform/a000000.virtio_mmio";
    fs::create_dir_all(sysfs.path().join(mmio).join("virtio4")).expect("a directory");
    virtio("virtio4", mmio);
    virtio("virtio5", "devices/gone");
    let parents = [
        ("pci", "0000:3b:00.2", Some("0000:3b:00.2")),
        ("auxiliary", "mlx5_core.sf.4", Some("mlx5_core.sf.4")),
        ("virtio", "virtio3", Some("0000:00:05.0")),
        ("virtio", "virtio4", None),
        ("virtio", "virtio5", None),
        ("virtio", "virtio6", None),
        ("platform", "a000000.virtio_mmio", None),
        ("pci", "no address", None),
    ];
    for (bus, name, expected) in parents {
        let found = hardware(sysfs.path(), bus, name);
        assert_eq!(found, expected.map(address), "{bus} {name}");
    }
}

/// A kernel without `IFLA_PARENT_DEV_NAME` shows a netdev's hardware only in sysfs, below the netdev's name.
/// `of_netdev` uses only a directory that has the netdev's index.
#[test]
fn the_hardware_of_a_netdev_is_in_sysfs() {
    let sysfs = Sysfs::new();
    for bus in ["bus/virtio/devices", "bus/usb", "class/net"] {
        fs::create_dir_all(sysfs.path().join(bus)).expect("a directory");
    }
    let vf = sysfs.pci("0000:3b:00.2", VF, -1);
    let sf = sysfs.auxiliary("0000:3b:00.2", "mlx5_core.sf.4");
    let nic = sysfs.pci("0000:00:05.0", VIRTIO, -1);
    let virtio = format!("{nic}/virtio3");
    let usb = "devices/usb1/1-1:1.0".to_owned();
    for place in [&virtio, &usb] {
        fs::create_dir_all(sysfs.path().join(place)).expect("a directory");
    }
    sysfs.link("bus/virtio/devices/virtio3", &format!("../../../{virtio}"));
    let of = |name: &str, index: u32, parent: Option<(&str, &str)>| {
        let place = match parent {
            Some((parent, _)) => format!("{parent}/net/{name}"),
            None => format!("devices/virtual/net/{name}"),
        };
        fs::create_dir_all(sysfs.path().join(&place)).expect("a directory");
        sysfs.file(&format!("{place}/ifindex"), &format!("{index}\n"));
        sysfs.link(&format!("class/net/{name}"), &format!("../../{place}"));
        if let Some((parent, bus)) = parent {
            let above = "../".repeat(parent.split('/').count());
            let (_, last) = parent.rsplit_once('/').expect("a path");
            sysfs.link(&format!("{place}/device"), &format!("../../../{last}"));
            if !sysfs.path().join(parent).join("subsystem").exists() {
                let subsystem = format!("{above}bus/{bus}");
                sysfs.link(&format!("{parent}/subsystem"), &subsystem);
            }
        }
    };
    of("eth2", 4, Some((&vf, "pci")));
    of("en4", 5, Some((&sf, "auxiliary")));
    of("ens5", 6, Some((&virtio, "virtio")));
    of("usb0", 7, Some((&usb, "usb")));
    of("cali1", 8, None);
    for (name, index, expected) in [
        ("eth2", 4, Some("0000:3b:00.2")),
        ("en4", 5, Some("mlx5_core.sf.4")),
        ("ens5", 6, Some("0000:00:05.0")),
        ("usb0", 7, None),
        ("cali1", 8, None),
        // another namespace's netdev with the same name
        ("eth2", 40, None),
        // `%4` replaces a name that is not UTF-8, so only the index leads to the netdev
        ("%4", 4, Some("0000:3b:00.2")),
        ("none", 41, None),
    ] {
        let found = of_netdev(sysfs.path(), name, index);
        assert_eq!(found, expected.map(address), "{name} {index}");
    }
    assert_eq!(
        sysfs.scan().iter().filter(|it| it.has_netdev).count(),
        3,
        "{:?}",
        sysfs.scan()
    );
}

#[test]
fn a_virtio_nic_has_a_netdev_one_level_further_down() {
    let sysfs = Sysfs::new();
    let nic = sysfs.pci("0000:00:05.0", VIRTIO, -1);
    fs::create_dir_all(sysfs.path().join(&nic).join("virtio3")).expect("a directory");
    assert!(!sysfs.scan()[0].has_netdev);
    fs::create_dir_all(sysfs.path().join(&nic).join("virtio3/net")).expect("a directory");
    assert!(sysfs.scan()[0].has_netdev);
}

#[test]
fn an_observation_has_requested_and_visible_devices() {
    let sysfs = Sysfs::new();
    for number in 0..4 {
        sysfs.pci(&format!("0000:3b:00.{number}"), PF, 1);
    }
    sysfs.auxiliary("0000:3b:00.0", "mlx5_core.sf.4");
    sysfs.uverbs(0, "mlx5_0", Some("0000:3b:00.0"));
    let linux = Linux::with_roots(sysfs.path(), "/dev");
    let verbs = verbs(sysfs.path()).expect("verbs");
    let link = |parent: &str| -> Link {
        let link = json!({"index": 2, "name": "eth0", "mac": "", "mtu": 1500, "up": true, "parent": parent});
        serde_json::from_value(link).expect("a netdev")
    };
    let found = |scope: Option<ObservationScope>, parents: &[&str]| -> Vec<String> {
        let links: Vec<Link> = parents.iter().map(|it| link(it)).collect();
        let devices = linux.devices(scope.as_ref(), links.iter(), &verbs);
        let devices = devices.expect("devices").into_iter();
        devices.map(|it| it.address.to_string()).collect()
    };
    let of = |addresses: &[&str]| addresses.iter().map(|it| address(it)).collect();
    let [verbs, link, ports, besides, sub_function] = [
        "0000:3b:00.0",
        "0000:3b:00.1",
        "0000:3b:00.2",
        "0000:3b:00.3",
        "mlx5_core.sf.4",
    ];
    let all = [verbs, link, ports, besides, sub_function];
    assert_eq!(found(None, &[]), all);
    assert_eq!(found(Some(ObservationScope::default()), &[]), [verbs]);
    assert_eq!(
        found(Some(ObservationScope::default()), &[link]),
        [verbs, link]
    );
    let scope = ObservationScope {
        ports: of(&[ports, "0000:99:00.0"]),
        besides: of(&[besides, sub_function]),
        ..ObservationScope::default()
    };
    let expected = [verbs, ports, besides, sub_function];
    assert_eq!(found(Some(scope), &[]), expected);
}

#[test]
fn a_function_that_is_found_again_has_another_identity() {
    let sysfs = Sysfs::new();
    let function = sysfs.path().join(sysfs.pci("0000:3b:00.0", PF, 1));
    sysfs.pci("0000:3b:00.1", PF, 1);
    let devices = sysfs.scan();
    let before = inodes(sysfs.path(), &devices);
    assert_eq!(before.len(), 2);
    // binding a driver changes only the content of the directory
    sysfs.link("bus/pci/devices/0000:3b:00.0/driver", "../driver");
    assert_eq!(inodes(sysfs.path(), &devices), before);
    fs::rename(&function, sysfs.path().join("removed")).expect("a directory");
    assert_eq!(inodes(sysfs.path(), &devices).len(), 1);
    fs::create_dir(&function).expect("a directory");
    let after = inodes(sysfs.path(), &devices);
    let [own, other] = ["0000:3b:00.0", "0000:3b:00.1"].map(address);
    assert_ne!(after[&own], before[&own]);
    assert_eq!(after[&other], before[&other]);
}
