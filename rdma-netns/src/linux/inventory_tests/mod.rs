// SPDX-License-Identifier: Apache-2.0
//! Tests of the inventory on constructed nodes. Each node is a directory with a sysfs and a `/dev`.

mod gpudirect;
mod pairs;
mod topology;

use super::*;
use crate::Kernel;
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::{os::unix::fs::symlink, time::Duration};
use tempfile::TempDir;

struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().expect("a directory"));
        for directory in ["sys/bus/pci/devices", "sys/class/net", "dev/infiniband"] {
            node.directory(directory);
        }
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn directory(&self, path: &str) {
        fs::create_dir_all(self.path(path)).expect("a directory");
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        symlink(target, path).expect("a link");
    }

    /// Adds a PCI function at `devices/<place>/<address>`, and returns its directory.
    fn pci(&self, place: &str, address: &str, class: &str, id: &str) -> String {
        let directory = format!("sys/devices/{place}/{address}");
        let driver = match id {
            "1DED:107F" => "erdma",
            "1AF4:1000" => "virtio-pci",
            _ => "mlx5_core",
        };
        let uevent = format!("DRIVER={driver}\nPCI_CLASS={class}\nPCI_ID={id}");
        self.file(&format!("{directory}/uevent"), &uevent);
        self.file(&format!("{directory}/numa_node"), "1");
        let target = format!("../../../devices/{place}/{address}");
        self.link(&format!("sys/bus/pci/devices/{address}"), target);
        directory
    }

    /// Adds a netdev of the device at `directory`. The netdev is in this program's namespace.
    fn netdev(&self, directory: &str, name: &str, mac: &str) -> String {
        let netdev = format!("{directory}/net/{name}");
        self.file(&format!("{netdev}/address"), mac);
        self.file(&format!("{netdev}/type"), "1");
        self.file(&format!("{netdev}/carrier"), "1");
        self.link(&format!("sys/class/net/{name}"), self.path(&netdev));
        netdev
    }

    /// Adds an RDMA device. `/dev/infiniband/uverbsN` is a link to `/dev/null`, whose device number is 1:3.
    fn rdma(&self, number: u32, name: &str, parent: Option<&str>) {
        let class = format!("sys/class/infiniband_verbs/uverbs{number}");
        self.file(&format!("{class}/ibdev"), name);
        self.file(&format!("{class}/dev"), "1:3");
        self.link(&format!("dev/infiniband/uverbs{number}"), "/dev/null");
        if let Some(parent) = parent {
            self.link(&format!("{class}/device"), self.path(parent));
        }
    }

    /// Adds the sysfs entries that only the RDMA device's own namespace shows.
    fn visible(&self, name: &str, state: &str) {
        let port = format!("sys/class/infiniband/{name}/ports/1");
        self.file(&format!("{port}/state"), state);
        self.file(&format!("{port}/link_layer"), "Ethernet");
    }

    fn kernel(&self) -> Linux {
        Linux::with_roots(self.path("sys"), self.path("dev"))
    }

    fn inventory(&self) -> Inventory {
        let linux = self.kernel();
        linux.inventory().expect("an inventory")
    }

    /// Returns the inventory. RDMA netlink reports the netdevs in `ports`: each element has the name of an RDMA device,
    /// and the name of the netdev of its port, which is in this program's namespace.
    fn inventory_with(&self, ports: &[(&str, &str)]) -> Inventory {
        let port = |(at, (device, netdev)): (u32, &(&str, &str))| {
            self.file(&format!("sys/class/net/{netdev}/ifindex"), &at.to_string());
            let state = PortNetdev {
                driver: None,
                netdev: Some(at),
            };
            ((*device).to_owned(), state)
        };
        let (sysfs, dev) = (self.path("sys"), self.path("dev"));
        let reader = Reader {
            sysfs: &sysfs,
            dev: &dev,
            reach: Reach::default(),
            kernel_users: BTreeMap::new(),
            port_netdevs: (7..).zip(ports).map(port).collect(),
            with_ports: true,
        };
        reader.inventory().expect("an inventory")
    }

    /// Returns the functions' addresses, each with the names of its netdevs and RDMA devices.
    fn names(&self) -> Vec<(String, Vec<String>, Vec<String>)> {
        Self::names_in(self.inventory())
    }

    fn names_in(inventory: Inventory) -> Vec<(String, Vec<String>, Vec<String>)> {
        let names = |function: Function| {
            let netdevs = function.netdevs.into_iter().map(|netdev| netdev.name);
            let hcas = function.hcas.into_iter().map(|hca| hca.name);
            (
                function.device.address.to_string(),
                netdevs.collect(),
                hcas.collect(),
            )
        };
        inventory.functions.into_iter().map(names).collect()
    }
}

fn row(address: &str, netdevs: &[&str], hcas: &[&str]) -> (String, Vec<String>, Vec<String>) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    (address.to_owned(), owned(netdevs), owned(hcas))
}

const ROOT: &str = "pci0000:3a/0000:3a:00.0";
const PF: &str = "15B3:101D";

#[test]
fn all_attributes_of_a_function() {
    let node = Node::new();
    let pf = node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    let netdev = node.netdev(&pf, "ens1f0", "94:6d:ae:00:00:01");
    node.link(&format!("{netdev}/master"), "../../../virtual/net/bond0");
    node.rdma(0, "mlx5_bond_0", Some(&pf));
    node.visible("mlx5_bond_0", "4: ACTIVE");
    node.file("sys/class/infiniband/mlx5_bond_0/fw_ver", "28.39.1002");
    for entry in ["0", "1", "2"] {
        let gid = format!("sys/class/infiniband/mlx5_bond_0/ports/1/gids/{entry}");
        node.file(&gid, "0000:0000:0000:0000:0000:0000:0000:0000");
    }
    node.file(&format!("{netdev}/mtu"), "9000");
    node.file(&format!("{netdev}/speed"), "400000");
    for (name, dev) in [("umad0", "231:0"), ("issm0", "231:64")] {
        node.file(
            &format!("sys/class/infiniband_mad/{name}/ibdev"),
            "mlx5_bond_0",
        );
        node.file(&format!("sys/class/infiniband_mad/{name}/dev"), dev);
    }
    node.file("sys/class/infiniband_mad/abi_version", "5");
    node.file("sys/class/misc/rdma_cm/dev", "10:58");
    let found = serde_json::to_value(node.inventory()).expect("JSON");
    let char_device = |name: &str, major: u32, minor: u32, node: Value| {
        let mut device = json!({"name": name, "major": major, "minor": minor});
        if !node.is_null() {
            device["node"] = node;
        }
        device
    };
    let expected = json!({
        "functions": [{
            "address": "0000:3b:00.0",
            "driver": "mlx5_core",
            "vendor": "15b3",
            "device": "101d",
            "numa_node": 1,
            "virtual_functions": 0,
            "has_netdev": true,
            "rdma": ["mlx5_bond_0"],
            "path": { "host_bridge": "pci0000:3a", "bridges": ["0000:3a:00.0"] },
            "netdevs": [{
                "name": "ens1f0", "mac": "94:6d:ae:00:00:01", "link_type": "ether",
                "carrier": true, "mtu": 9000, "speed": 400_000, "master": "bond0",
            }],
            "hcas": [{
                "name": "mlx5_bond_0",
                "firmware": "28.39.1002",
                "ports": [{"number": 1, "state": 4, "link_type": "ether", "gids": 3}],
                "char_devices": [
                    char_device("uverbs0", 1, 3, json!([1, 3])),
                    char_device("issm0", 231, 64, Value::Null),
                    char_device("umad0", 231, 0, Value::Null),
                ],
            }],
        }],
        "accelerators": [],
        "connection_manager": char_device("rdma_cm", 10, 58, Value::Null),
        "rdma_cgroup": "usable",
    });
    assert_eq!(found, expected);
}

#[test]
fn virtual_functions_have_numbers_and_are_seen_while_they_are_in_pods() {
    let node = Node::new();
    let pf = node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    node.file(&format!("{pf}/sriov_numvfs"), "2");
    node.netdev(&pf, "ens1f0", "94:6d:ae:00:00:01");
    let other = node.netdev(&pf, "ens1f0r1", "94:6d:ae:00:00:09");
    node.file(&format!("{other}/phys_port_name"), "pf0vf1");
    for (number, address) in [(1, "0000:3b:00.2"), (0, "0000:3b:00.3")] {
        let vf = node.pci(ROOT, address, "20000", "15B3:101E");
        node.link(&format!("{vf}/physfn"), "../0000:3b:00.0");
        node.link(&format!("{pf}/virtfn{number}"), format!("../{address}"));
        node.directory(&format!("{vf}/net/eth{number}"));
        node.rdma(number, &format!("mlx5_{number}"), Some(&vf));
    }
    let functions = node.inventory().functions;
    let numbers: Vec<_> = functions.iter().map(|function| function.number).collect();
    assert_eq!(numbers, [None, Some(1), Some(0)]);
    assert!(functions[1].hcas[0].ports.is_empty());
    assert!(functions[1].hcas[0].char_devices[0].is_in_place());
    assert_eq!(
        node.names(),
        [
            row("0000:3b:00.0", &["ens1f0"], &[]),
            row("0000:3b:00.2", &[], &["mlx5_1"]),
            row("0000:3b:00.3", &[], &["mlx5_0"]),
        ]
    );
}

#[test]
fn a_sub_function_is_where_its_function_is() {
    let node = Node::new();
    let pf = node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    let sf = format!("{pf}/mlx5_core.sf.4");
    node.file(&format!("{sf}/sfnum"), "88");
    node.link(
        "sys/bus/auxiliary/devices/mlx5_core.sf.4",
        format!("../../../devices/{ROOT}/0000:3b:00.0/mlx5_core.sf.4"),
    );
    node.netdev(&sf, "ens1f0s88", "94:6d:ae:00:00:58");
    node.rdma(0, "mlx5_4", Some(&sf));
    let functions = node.inventory().functions;
    let sf = &functions[1];
    assert_eq!(sf.number, Some(88));
    assert_eq!(sf.path, functions[0].path);
    assert_eq!(sf.hcas[0].name, "mlx5_4");
    assert_eq!(sf.netdevs[0].name, "ens1f0s88");
}

#[test]
fn accelerators_and_their_way_from_the_root() {
    let node = Node::new();
    let switch = format!("{ROOT}/0000:3b:00.0/0000:3c:04.0");
    node.pci(ROOT, "0000:3b:00.0", "60400", "1000:C030");
    node.pci(&switch, "0000:3d:00.0", "30200", "10DE:2330");
    node.pci(&switch, "0000:3e:00.0", "120000", "1DA3:1020");
    node.pci(ROOT, "0000:3f:00.0", "30000", "1002:744C");
    node.pci(ROOT, "0000:40:00.0", "30000", "1A03:2000");
    node.pci("pci0000:00", "0000:00:02.0", "30000", "8086:4680");
    node.pci(
        "pci0000:00/0000:00:0e.0/pci10000:80/10000:80:01.0",
        "10000:81:00.0",
        "30200",
        "10DE:2330",
    );
    let found: Vec<(String, String, Vec<String>)> = node
        .inventory()
        .accelerators
        .into_iter()
        .map(|it| {
            let bridges = it.path.bridges.iter().map(|it| it.to_string()).collect();
            (it.address.to_string(), it.path.host_bridge, bridges)
        })
        .collect();
    let row = |address: &str, bridge: &str, bridges: &[&str]| {
        let bridges = bridges.iter().map(|it| (*it).to_owned()).collect();
        (address.to_owned(), bridge.to_owned(), bridges)
    };
    let below = ["0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"];
    assert_eq!(
        found,
        [
            row("0000:3d:00.0", "pci0000:3a", &below),
            row("0000:3e:00.0", "pci0000:3a", &below),
            row("0000:3f:00.0", "pci0000:3a", &["0000:3a:00.0"]),
            row("10000:81:00.0", "pci10000:80", &["10000:80:01.0"]),
        ]
    );
}

/// The masters are constructed: a bridge, Open vSwitch and Hyper-V's netdev as in the kernel's sources, and a bond.
#[test]
fn masters_that_take_all_frames_of_a_netdev() {
    let node = Node::new();
    let masters = [
        ("br0", "bridge/stp_state"),
        ("ovs-system", "mtu"),
        ("hv0", "device/vendor"),
        ("bond0", "bonding/mode"),
    ];
    for (index, (master, file)) in masters.into_iter().enumerate() {
        let nic = node.pci(ROOT, &format!("0000:3b:00.{index}"), "20000", PF);
        let netdev = node.netdev(&nic, &format!("eth{index}"), "94:6d:ae:00:00:01");
        node.file(&format!("sys/class/net/{master}/{file}"), "0");
        node.link(&format!("{netdev}/master"), format!("../../../{master}"));
    }
    let inventory = node.inventory();
    let found: Vec<Option<&str>> = inventory
        .functions
        .iter()
        .map(|function| function.netdevs[0].taken_by.as_deref())
        .collect();
    let expected = [
        Some("the bridge br0"),
        Some("Open vSwitch"),
        Some("hv0, which it accelerates"),
        None,
    ];
    assert_eq!(found, expected);
}

/// A node on Azure as its drivers make it. `eth0` is the netdev of `hv_netvsc`, on VMBus. The function of the driver
/// mana is also below VMBus, and its netdev has the master `eth0`. The RDMA device's parent is the function
/// (`mana_ib_probe()`, `drivers/infiniband/hw/mana/device.c`). The auxiliary device `mana.rdma.0` has no RDMA device.
#[test]
fn a_function_that_accelerates_a_netdev_of_vmbus() {
    let node = Node::new();
    const VMBUS: &str = "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00";
    let netvsc = format!("{VMBUS}/000d3a64-0000-0000-0000-000d3a640001");
    let master = node.netdev(&netvsc, "eth0", "00:22:48:00:00:01");
    node.link(&format!("{master}/device"), "../..");
    let host_bridge = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/f8615163-7870/pci7870:00";
    let vf = node.pci(host_bridge, "7870:00:00.0", "20000", "1414:00BA");
    let netdev = node.netdev(&vf, "enP30832s1", "00:22:48:00:00:01");
    node.link(&format!("{netdev}/master"), node.path(&master));
    node.directory(&format!("{vf}/mana.rdma.0"));
    let auxiliary = format!("../../../devices/{host_bridge}/7870:00:00.0/mana.rdma.0");
    node.link("sys/bus/auxiliary/devices/mana.rdma.0", auxiliary);
    node.rdma(0, "mana_0", Some(&vf));
    node.visible("mana_0", "4: ACTIVE");
    assert_eq!(
        node.names(),
        [row("7870:00:00.0", &["enP30832s1"], &["mana_0"])]
    );
    let inventory = node.inventory();
    let netdev = &inventory.functions[0].netdevs[0];
    let taken_by = netdev.taken_by.as_deref();
    assert_eq!(taken_by, Some("eth0, which it accelerates"));
    assert_eq!(netdev.base(), "enP30832s1");
}

/// The failover netdev and its standby belong to one virtio device: the failover netdev gets the standby's parent
/// (`net_failover_create()`, `drivers/net/net_failover.c`).
#[test]
fn a_function_that_accelerates_a_virtio_nic() {
    let node = Node::new();
    let virtio = node.pci("pci0000:00", "0000:00:03.0", "20000", "1AF4:1000");
    let below = format!("{virtio}/virtio1");
    let master = node.netdev(&below, "eth0", "52:54:00:00:00:01");
    let standby = node.netdev(&below, "eth0nsby", "52:54:00:00:00:01");
    let vf = node.pci("pci0000:00", "0000:00:04.0", "20000", "15B3:101E");
    let primary = node.netdev(&vf, "ens4", "52:54:00:00:00:01");
    for netdev in [&master, &standby] {
        node.link(&format!("{netdev}/device"), "../..");
    }
    for port in [&standby, &primary] {
        node.link(&format!("{port}/master"), node.path(&master));
    }
    node.rdma(0, "mlx5_0", Some(&vf));
    let inventory = node.inventory();
    let netdevs = inventory.functions.iter().flat_map(|it| &it.netdevs);
    let found: Vec<(&str, Option<&str>)> = netdevs
        .map(|it| (&*it.name, it.taken_by.as_deref()))
        .collect();
    let taken_by = Some("eth0, which it accelerates");
    let expected = [("eth0", None), ("eth0nsby", taken_by), ("ens4", taken_by)];
    assert_eq!(found, expected);
}

/// The node is a constructed small B200: a rail, and a function that manages NVLink's switches. The vital product data
/// is constructed too. Only its model `SW_MNG` is the real one.
#[test]
fn nvlink_switch_managers_are_recognized_by_vital_product_data() {
    let node = Node::new();
    const CX7: &str = "15B3:1021";
    for (number, address, class, model) in [
        (0, "0000:1a:00.0", "20700", "SMDL=MCX750500B-0D0K"),
        (1, "0000:05:00.0", "20700", "SMDL=SW_MNG"),
        // the scan does not read the vital product data of an Ethernet function
        (2, "0000:06:00.0", "20000", "SMDL=SW_MNG"),
    ] {
        let function = node.pci(ROOT, address, class, CX7);
        node.rdma(number, &format!("mlx5_{number}"), Some(&function));
        let data = format!("\u{2}ConnectX-7\u{0}V0{model}\u{0}");
        node.file(&format!("{function}/vpd"), &data);
    }
    let inventory = node.inventory();
    let functions = inventory.functions.iter();
    let managing = functions.filter(|it| it.device.manages_nvlink);
    let managing: Vec<&str> = managing.map(|it| &*it.device.address).collect();
    assert_eq!(managing, ["0000:05:00.0"]);
    let kernel = node.kernel();
    for Function { device, .. } in &inventory.functions {
        assert_eq!(
            kernel.manages_nvlink(&device.address),
            device.manages_nvlink
        );
    }
}

#[test]
fn hardware_that_disappears_meanwhile_is_absent() {
    let node = Node::new();
    let pf = node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    node.file(&format!("{pf}/sriov_numvfs"), "2");
    node.link("sys/bus/pci/devices/0000:3b:00.2", "../../../devices/gone");
    node.link(&format!("{pf}/virtfn0"), "../0000:3b:00.2");
    node.link(&format!("{pf}/virtfn1"), "../nothing");
    node.link("sys/class/net/ens1f0", "../../devices/gone/net/ens1f0");
    node.directory(&format!("{pf}/net/ens1f0"));
    node.link("sys/class/infiniband_verbs/uverbs0", "../../devices/gone");
    node.rdma(1, "mlx5_1", Some("sys/devices/gone/0000:3b:00.2"));
    node.file("sys/class/infiniband_verbs/uverbs2/ibdev", "mlx5_0");
    node.link("sys/class/infiniband_verbs/uverbs2/device", node.path(&pf));
    assert_eq!(node.names(), [row("0000:3b:00.0", &[], &["mlx5_0"])]);
    let hca = node.inventory().functions.remove(0).hcas.remove(0);
    assert_eq!(hca.char_devices, []);
}

#[test]
fn a_machine_without_any_of_it() {
    let nothing = tempfile::tempdir().expect("a directory");
    let linux = Linux::with_roots(nothing.path(), nothing.path());
    assert_eq!(linux.inventory().expect("none"), Inventory::default());
}

/// Returns the CPU time that this thread has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("a clock of Linux").into()
}

/// Reads a physical function with `count` virtual functions several times. Returns the inventory, and the lowest CPU
/// time of a read.
fn read_virtual_functions(count: u32) -> (Inventory, Duration) {
    let node = Node::new();
    let pf = node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    node.file(&format!("{pf}/sriov_numvfs"), &count.to_string());
    for number in 0..count {
        let address = format!("0000:3c:{:02x}.{}", number / 8, number % 8);
        let vf = node.pci(ROOT, &address, "20000", "15B3:101E");
        node.link(&format!("{vf}/physfn"), "../0000:3b:00.0");
        node.link(&format!("{pf}/virtfn{number}"), format!("../{address}"));
        node.netdev(&vf, &format!("eth{number}"), "94:6d:ae:00:00:01");
        node.rdma(number, &format!("mlx5_{number}"), Some(&vf));
        node.visible(&format!("mlx5_{number}"), "4: ACTIVE");
    }
    let reads = (0..5).map(|_| {
        let begin = cpu_time();
        let inventory = node.inventory();
        (inventory, cpu_time() - begin)
    });
    let quickest = reads.min_by_key(|(_, took)| *took);
    let (inventory, took) = quickest.expect("several reads");
    println!("{count} virtual functions: {took:?}");
    (inventory, took)
}

/// CPU times do not depend on other programs, and their relation does not depend on the machine.
#[test]
fn many_virtual_functions_are_read_quickly() {
    let (few, took_few) = read_virtual_functions(64);
    assert_eq!(few.functions.len(), 65);
    let (many, took_many) = read_virtual_functions(256);
    assert_eq!(many.functions.len(), 257);
    assert!(many.functions[256].hcas[0].char_devices[0].is_in_place());
    assert!(took_many < 6 * took_few, "{took_few:?}, {took_many:?}");
    assert!(took_many < Duration::from_secs(1), "{took_many:?}");
}
