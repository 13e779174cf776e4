// SPDX-License-Identifier: Apache-2.0
//! Pairing of RDMA devices with netdevs and functions.

use super::*;

#[test]
fn a_virtio_nics_netdev_is_one_level_further_down() {
    let node = Node::new();
    let nic = node.pci("pci0000:00", "0000:00:05.0", "20000", "1DED:107F");
    node.netdev(&format!("{nic}/virtio3"), "eth1", "00:16:3e:00:00:01");
    node.rdma(0, "erdma_0", Some(&nic));
    assert_eq!(node.names(), [row("0000:00:05.0", &["eth1"], &["erdma_0"])]);
    let path = &node.inventory().functions[0].path;
    assert_eq!(
        (path.host_bridge.as_str(), path.bridges.len()),
        ("pci0000:00", 0)
    );
}

#[test]
fn soft_roce_belongs_to_the_hardware_below_its_netdev() {
    let node = Node::new();
    for (address, netdev, master) in [
        ("0000:01:00.0", "eth0", None),
        ("0000:02:00.0", "eth3", Some("bond0")),
        ("0000:02:00.1", "eth2", Some("bond0")),
        ("0000:03:00.0", "eth4", None),
    ] {
        let function = node.pci(ROOT, address, "20000", "8086:10C9");
        let directory = node.netdev(&function, netdev, "52:54:00:00:00:01");
        if let Some(master) = master {
            node.link(&format!("{directory}/master"), format!("../../{master}"));
        }
    }
    // the netdev is a NIC, a NIC, a bond, without hardware, in another namespace
    let ports = [
        ("rxe0", "eth0"),
        ("siw1", "eth4"),
        ("rxe2", "bond0"),
        ("rxe3", "veth7"),
    ];
    for (number, name, file, text) in [
        (0, "rxe0", "parent", "eth0"),
        (1, "siw1", "node_desc", SOFT_IWARP),
        (2, "rxe2", "parent", "bond0"),
        (3, "rxe3", "parent", "veth7"),
        (4, "rxe4", "parent", "eth0"),
    ] {
        node.rdma(number, name, None);
        node.file(&format!("sys/class/infiniband/{name}/{file}"), text);
    }
    // the function's own RDMA device precedes a software device
    node.rdma(
        5,
        "zzz",
        Some("sys/devices/pci0000:3a/0000:3a:00.0/0000:01:00.0"),
    );
    let inventory = node.inventory_with(&ports);
    // soft-RoCE on a bond is the bond's RDMA device
    let is_soft = |place: usize| inventory.functions[place].hcas.last().map(|it| it.soft);
    assert_eq!(
        [0, 2, 3].map(is_soft),
        [Some(true), Some(false), Some(true)]
    );
    assert_eq!(
        Node::names_in(inventory),
        [
            row("0000:01:00.0", &["eth0"], &["zzz", "rxe0"]),
            row("0000:02:00.0", &["eth3"], &[]),
            row("0000:02:00.1", &["eth2"], &["rxe2"]),
            row("0000:03:00.0", &["eth4"], &["siw1"]),
        ]
    );
}

/// A pod has called a netdev of its namespace like the host's second port of a bond, and has made soft-RoCE on it. The
/// kernel reports no netdev of this namespace for the port of `mlx5_bond_9`.
#[test]
fn a_pods_soft_roce_belongs_to_no_hardware_of_the_host() {
    for pods_netdev in ["ens1f1", "bond0"] {
        let node = Node::new();
        for (number, netdev) in ["ens1f0", "ens1f1"].into_iter().enumerate() {
            let address = format!("0000:3b:00.{number}");
            let function = node.pci(ROOT, &address, "20000", PF);
            let directory = node.netdev(&function, netdev, "94:6d:ae:00:00:01");
            node.link(&format!("{directory}/master"), "../../../bond0");
            if number == 0 {
                node.rdma(0, "mlx5_bond_0", Some(&function));
            }
        }
        node.rdma(1, "mlx5_bond_9", None);
        node.visible("mlx5_bond_9", "4: ACTIVE");
        node.file("sys/class/infiniband/mlx5_bond_9/parent", pods_netdev);
        let expected = [
            row("0000:3b:00.0", &["ens1f0"], &["mlx5_bond_0"]),
            row("0000:3b:00.1", &["ens1f1"], &[]),
        ];
        assert_eq!(node.names(), expected, "{pods_netdev}");
        assert_eq!(node.inventory().unpaired, []);
    }
}

#[test]
fn rdma_in_software_is_distinguished_from_hardware() {
    let node = Node::new();
    let nic = node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    node.netdev(&nic, "eth0", "94:6d:ae:00:00:01");
    node.rdma(0, "mlx5_0", Some(&nic));
    node.rdma(1, "rxe0", None);
    node.file("sys/class/infiniband/rxe0/parent", "eth0");
    // Linux 5.10 reports the NIC's hardware as the parent of siw devices
    node.rdma(2, "siw0", Some(&nic));
    node.file("sys/class/infiniband/siw0/node_desc", SOFT_IWARP);
    let inventory = node.inventory_with(&[("rxe0", "eth0")]);
    let hcas = &inventory.functions[0].hcas;
    let mut found: Vec<(&str, bool)> = hcas.iter().map(|it| (&*it.name, it.soft)).collect();
    found.sort_unstable();
    assert_eq!(found, [("mlx5_0", false), ("rxe0", true), ("siw0", true)]);
}

/// On eRDMA, the virtio function has the netdev, and another function has the RDMA device. The RDMA device's GUID
/// derives from the netdev's address.
#[test]
fn an_rdma_device_finds_its_netdev_on_another_function() {
    let node = Node::new();
    for (number, guid) in [
        (1, "0216:3eff:fe00:0001"),
        (2, "0016:3eff:fe00:0002"),
        (3, "odd"),
    ] {
        let virtio = node.pci(
            "pci0000:00",
            &format!("0000:00:0{number}.0"),
            "20000",
            "1AF4:1000",
        );
        let below = format!("{virtio}/virtio{number}");
        let mac = format!("00:16:3e:00:00:0{number}");
        node.netdev(&below, &format!("eth{number}"), &mac);
        let erdma = node.pci(
            "pci0000:00",
            &format!("0000:00:1{number}.0"),
            "20000",
            "1DED:107F",
        );
        let rdma = format!("erdma_{number}");
        node.rdma(number, &rdma, Some(&erdma));
        node.visible(&rdma, "4: ACTIVE");
        node.file(&format!("sys/class/infiniband/{rdma}/node_guid"), guid);
    }
    assert_eq!(
        node.names(),
        [
            row("0000:00:01.0", &["eth1"], &[]),
            row("0000:00:02.0", &["eth2"], &[]),
            row("0000:00:03.0", &["eth3"], &[]),
            row("0000:00:11.0", &["eth1"], &["erdma_1"]),
            row("0000:00:12.0", &["eth2"], &["erdma_2"]),
            // an RDMA device with an invalid GUID does not hide the other RDMA devices
            row("0000:00:13.0", &[], &["erdma_3"]),
        ]
    );
    let functions = node.inventory().functions;
    assert_eq!(functions[0].netdev_function, None);
    let of = functions[3].netdev_function.as_deref();
    assert_eq!(of, Some("0000:00:01.0"));
    assert_eq!(node.inventory().erdma, None);
}

/// The driver derived the RDMA device's GUID from an earlier MAC of the netdev. So the inventory finds the netdev as the
/// RDMA device's port. It does not use the name in the GID table, because a netdev in a pod can have this name.
#[test]
fn an_erdma_netdev_with_another_mac_is_found_by_its_port() {
    for has_parent in [true, false] {
        let node = Node::new();
        erdma(&node, 1, has_parent);
        node.file("sys/class/net/eth1/address", "00:16:3e:00:00:99");
        node.file("sys/class/net/eth1/addr_assign_type", "3");
        let table = "sys/class/infiniband/erdma_1/ports/1/gid_attrs/ndevs/0";
        node.file(table, "eth1");
        for (ports, is_paired) in [(&[("erdma_1", "eth1")][..], true), (&[], false)] {
            let functions = node.inventory_with(ports).functions;
            let has_both = |it: &Function| !it.netdevs.is_empty() && !it.hcas.is_empty();
            let found = functions.iter().any(has_both);
            assert_eq!(found, is_paired, "{has_parent} {ports:?}");
        }
    }
}

/// The inventory does not pair two of the RDMA devices by GUID. One is of another vendor: its virtual function's netdev
/// is in a pod, and its GUID derives from a MAC that a second netdev also has. One is eRDMA's, but the netdev with the
/// fitting MAC is on a function that already has an RDMA device.
#[test]
fn only_erdma_finds_its_netdev_on_another_function() {
    for (id, peer_has_rdma, wanted) in [
        ("1DED:107F", false, &["eth1"][..]),
        ("15B3:101E", false, &[]),
        ("1DED:107F", true, &[]),
    ] {
        let node = Node::new();
        let peer = node.pci("pci0000:00", "0000:00:01.0", "20000", "1AF4:1000");
        node.netdev(&peer, "eth1", "00:16:3e:00:00:01");
        if peer_has_rdma {
            node.rdma(1, "mlx5_1", Some(&peer));
        }
        let function = node.pci("pci0000:00", "0000:00:11.0", "20000", id);
        node.rdma(2, "rdma_2", Some(&function));
        node.file(
            "sys/class/infiniband/rdma_2/node_guid",
            "0216:3eff:fe00:0001",
        );
        let functions = node.inventory().functions;
        let found: Vec<&str> = functions[1].netdevs.iter().map(|it| &*it.name).collect();
        assert_eq!(found, wanted, "{id} {peer_has_rdma}");
    }
}

/// Adds an eRDMA NIC in one of two layouts. The in-tree driver sets no parent, so the RDMA device is below
/// `devices/virtual`. Alibaba's own driver sets the PCI function as the parent.
fn erdma(node: &Node, number: u32, has_parent: bool) {
    let virtio = node.pci(
        "pci0000:00",
        &format!("0000:00:0{number}.0"),
        "20000",
        "1AF4:1000",
    );
    let mac = format!("00:16:3e:00:00:0{number}");
    node.netdev(
        &format!("{virtio}/virtio{number}"),
        &format!("eth{number}"),
        &mac,
    );
    let address = format!("0000:00:1{number}.0");
    let function = node.pci("pci0000:00", &address, "ff00", "1DED:107F");
    let link = format!("sys/bus/pci/drivers/erdma/{address}");
    node.link(&link, format!("../../../../devices/pci0000:00/{address}"));
    let name = format!("erdma_{number}");
    node.rdma(number, &name, has_parent.then_some(&*function));
    visible_erdma(node, number);
}

/// Adds the sysfs entries that only the RDMA device's own namespace shows.
fn visible_erdma(node: &Node, number: u32) {
    let name = format!("erdma_{number}");
    node.visible(&name, "4: ACTIVE");
    let directory = format!("sys/class/infiniband/{name}");
    let guid = format!("0216:3eff:fe00:000{number}");
    node.file(&format!("{directory}/node_guid"), &guid);
    node.file(&format!("{directory}/node_desc"), "");
}

#[test]
fn an_rdma_device_without_a_parent_is_its_netdevs() {
    let node = Node::new();
    erdma(&node, 1, false);
    let inventory = node.inventory();
    assert_eq!(
        node.names(),
        [
            row("0000:00:01.0", &["eth1"], &["erdma_1"]),
            row("0000:00:11.0", &[], &[]),
        ]
    );
    let function = &inventory.functions[0];
    assert!(!function.hcas[0].soft);
    assert_eq!(function.device.rdma, ["erdma_1"]);
    let made_by: Vec<&str> = function
        .device
        .rdma_functions
        .iter()
        .map(|it| &**it)
        .collect();
    assert_eq!(made_by, ["0000:00:11.0"]);
    assert_eq!(inventory.unpaired, []);
}

/// The RDMA device is still paired with its netdev. Without netlink, the inventory recognizes the driver by the RDMA
/// device's name.
#[test]
fn an_rdma_device_of_another_driver_was_made_by_no_function_of_erdma() {
    let node = Node::new();
    erdma(&node, 1, false);
    fs::remove_dir_all(node.path("sys/class/infiniband/erdma_1")).expect("removed");
    fs::remove_dir_all(node.path("sys/class/infiniband_verbs")).expect("removed");
    node.rdma(2, "other_1", None);
    node.visible("other_1", "4: ACTIVE");
    let guid = "sys/class/infiniband/other_1/node_guid";
    node.file(guid, "0216:3eff:fe00:0001");
    let inventory = node.inventory();
    let function = &inventory.functions[0];
    assert_eq!(function.device.rdma, ["other_1"]);
    assert_eq!(function.device.rdma_functions, []);
}

/// Sysfs does not show which of two functions made which RDMA device. It shows the netdev of each RDMA device.
#[test]
fn two_rdma_devices_without_a_parent_are_each_its_netdevs() {
    let node = Node::new();
    erdma(&node, 1, false);
    erdma(&node, 2, false);
    node.file("sys/devices/pci0000:00/0000:00:01.0/numa_node", "0");
    assert_eq!(
        node.names(),
        [
            row("0000:00:01.0", &["eth1"], &["erdma_1"]),
            row("0000:00:02.0", &["eth2"], &["erdma_2"]),
            row("0000:00:11.0", &[], &[]),
            row("0000:00:12.0", &[], &[]),
        ]
    );
    let functions = node.inventory().functions;
    let made_by: Vec<&str> = functions[0]
        .device
        .rdma_functions
        .iter()
        .map(|it| &**it)
        .collect();
    assert_eq!(made_by, ["0000:00:11.0", "0000:00:12.0"]);
    // both candidates are on NUMA node 1
    assert_eq!(functions[0].device.numa_node, Some(1));
    node.file("sys/devices/pci0000:00/0000:00:12.0/numa_node", "0");
    let functions = node.inventory().functions;
    assert_eq!(functions[0].device.numa_node, Some(0));
    assert_eq!(functions[1].device.numa_node, Some(1));
}

/// A pod has the RDMA device's netdev, or both RDMA device and netdev. [`Inventory::pair`] then repeats an earlier
/// pairing.
#[test]
fn an_rdma_device_without_a_parent_is_remembered_while_a_pod_has_it() {
    let node = Node::new();
    erdma(&node, 1, false);
    fs::remove_file(node.path("sys/class/net/eth1")).expect("moved");
    for has_rdma in [false, true] {
        if has_rdma {
            fs::remove_dir_all(node.path("sys/class/infiniband/erdma_1")).expect("moved");
        }
        let mut inventory = node.inventory();
        let unpaired: Vec<&str> = inventory.unpaired.iter().map(|it| &*it.name).collect();
        assert_eq!(unpaired, ["erdma_1"]);
        let virtio = inventory.functions[0].device.address.clone();
        inventory.pair("erdma_1", &virtio);
        let function = &inventory.functions[0];
        assert_eq!(function.hcas[0].char_devices[0].name, "uverbs1");
        assert_eq!(function.hcas[0].ports.is_empty(), has_rdma);
        assert_eq!(function.device.rdma_functions.len(), 1);
        assert_eq!(inventory.unpaired, []);
    }
}

/// In shared mode, a pod has the netdev and has given it the name of the host's uplink. The GID table contains this
/// name. The uplink's MAC decides nothing: it can be the MAC of the hardware, or one that an administrator has set.
#[test]
fn a_name_that_a_pod_gives_its_netdev_pairs_nothing() {
    for assigned in ["0", "3"] {
        let node = Node::new();
        erdma(&node, 1, false);
        let uplink = node.pci("pci0000:00", "0000:00:03.0", "20000", "1AF4:1000");
        node.netdev(&format!("{uplink}/virtio3"), "eth0", "00:16:3e:00:00:99");
        node.file("sys/class/net/eth0/addr_assign_type", assigned);
        fs::remove_file(node.path("sys/class/net/eth1")).expect("moved");
        let table = "sys/class/infiniband/erdma_1/ports/1/gid_attrs/ndevs/0";
        node.file(table, "eth0");
        let expected = [
            row("0000:00:01.0", &[], &[]),
            row("0000:00:03.0", &["eth0"], &[]),
            row("0000:00:11.0", &[], &[]),
        ];
        assert_eq!(node.names(), expected, "{assigned}");
        let unpaired = node.inventory().unpaired.into_iter().map(|it| it.name);
        assert_eq!(unpaired.collect::<Vec<_>>(), ["erdma_1"]);
    }
}

/// The pod that had `eth2` has given it the MAC of `eth1`, and has ended. `eth1` is in another pod. The kernel reports
/// `eth2` as the port of `erdma_2`.
#[test]
fn a_port_precedes_a_mac_that_a_pod_has_set() {
    for has_parent in [false, true] {
        let node = Node::new();
        erdma(&node, 1, has_parent);
        erdma(&node, 2, has_parent);
        fs::remove_file(node.path("sys/class/net/eth1")).expect("moved");
        node.file("sys/class/net/eth2/address", "00:16:3e:00:00:01");
        let inventory = node.inventory_with(&[("erdma_2", "eth2")]);
        assert_eq!(inventory.unpaired.len(), usize::from(!has_parent));
        let mut rows = Node::names_in(inventory);
        rows.retain(|(_, netdevs, hcas)| !netdevs.is_empty() && !hcas.is_empty());
        let of_both = if has_parent {
            "0000:00:12.0"
        } else {
            "0000:00:02.0"
        };
        assert_eq!(rows, [row(of_both, &["eth2"], &["erdma_2"])]);
    }
}

/// Tests eRDMA and soft-RoCE on one netdev, and eRDMA in the layout with a parent.
#[test]
fn the_function_that_has_a_parentless_device_is_no_others() {
    let node = Node::new();
    erdma(&node, 1, true);
    erdma(&node, 2, false);
    node.rdma(5, "aaa_rxe", None);
    node.file("sys/class/infiniband/aaa_rxe/parent", "eth2");
    node.file(
        "sys/class/infiniband/aaa_rxe/node_guid",
        "0216:3eff:fe00:0002",
    );
    let inventory = node.inventory_with(&[("aaa_rxe", "eth2")]);
    let functions = &inventory.functions;
    let soft: Vec<bool> = functions[1].hcas.iter().map(|it| it.soft).collect();
    assert_eq!(soft, [false, true]);
    let made_by = &functions[1].device.rdma_functions;
    assert_eq!(
        made_by.iter().map(|it| &**it).collect::<Vec<_>>(),
        ["0000:00:12.0"]
    );
    assert_eq!(
        Node::names_in(inventory),
        [
            row("0000:00:01.0", &["eth1"], &[]),
            row("0000:00:02.0", &["eth2"], &["erdma_2", "aaa_rxe"]),
            row("0000:00:11.0", &["eth1"], &["erdma_1"]),
            row("0000:00:12.0", &[], &[]),
        ]
    );
}

/// A constructed multi-plane ConnectX-8, as Mellanox/rdmamap#17 lists it. `smi1` has a port for each plane, and no
/// `uverbs` device.
#[test]
fn a_sub_devices_umad_devices_are_its_parents() {
    let node = Node::new();
    let nic = node.pci(ROOT, "0000:0b:00.0", "20700", "15B3:1023");
    node.netdev(&nic, "ibs192", "00:00:00:01");
    node.rdma(0, "mlx5_0", Some(&nic));
    let port = |device: &str, port: u32, state: &str| {
        let port = format!("sys/class/infiniband/{device}/ports/{port}");
        node.file(&format!("{port}/state"), state);
        node.file(&format!("{port}/link_layer"), "InfiniBand");
    };
    let mad = |name: &str, device: &str, port: u32, minor: u32| {
        let directory = format!("sys/class/infiniband_mad/{name}");
        node.file(&format!("{directory}/ibdev"), device);
        node.file(&format!("{directory}/port"), &port.to_string());
        node.file(&format!("{directory}/dev"), &format!("231:{minor}"));
        node.link(&format!("{directory}/device"), node.path(&nic));
    };
    port("mlx5_0", 1, "4: ACTIVE");
    mad("umad0", "mlx5_0", 1, 0);
    for plane in 1..=4 {
        let state = if plane == 3 { "1: DOWN" } else { "4: ACTIVE" };
        port("smi1", plane, state);
        mad(&format!("umad{plane}"), "smi1", plane, plane);
        mad(&format!("issm{plane}"), "smi1", plane, 64 + plane);
    }
    let function = node.inventory().functions.remove(0);
    assert_eq!(function.device.rdma, ["mlx5_0"]);
    let [hca] = function.hcas.as_slice() else {
        panic!("{:?}", function.hcas)
    };
    assert_eq!((&*hca.name, hca.ports.len()), ("mlx5_0", 1));
    assert_eq!(hca.sub_devices, ["smi1"]);
    let names: Vec<&str> = hca.char_devices.iter().map(|it| &*it.name).collect();
    let expected = [
        "uverbs0", "issm1", "issm2", "issm3", "issm4", "umad0", "umad1", "umad2", "umad3", "umad4",
    ];
    assert_eq!(names, expected);
}

/// A pod with `NET_ADMIN` has renamed the RDMA device, which keeps its function, its character devices and its ports.
#[test]
fn a_device_that_is_called_by_any_bytes() {
    let bytes = b"\xff a\n";
    let name = name::text(bytes);
    let node = Node::new();
    let nic = node.pci(ROOT, "0000:0b:00.0", "20000", "15B3:101d");
    node.netdev(&nic, "ens1", "02:00:00:00:00:01");
    node.rdma(0, "mlx5_0", Some(&nic));
    node.visible("mlx5_0", "4: ACTIVE");
    let class = |name: &str| name::directory(&node.path("sys"), name);
    fs::rename(class("mlx5_0"), class(&name)).expect("renamed");
    let ibdev = node.path("sys/class/infiniband_verbs/uverbs0/ibdev");
    fs::write(ibdev, [&bytes[..], b"\n"].concat()).expect("written");
    let function = node.inventory().functions.remove(0);
    assert_eq!(function.device.rdma, [&*name]);
    let [hca] = function.hcas.as_slice() else {
        panic!("{:?}", function.hcas)
    };
    assert_eq!((&hca.name, hca.ports.len()), (&name, 1));
    assert_eq!(hca.char_devices.len(), 1);
    let read: Inventory =
        serde_json::from_str(&serde_json::to_string(&node.inventory()).expect("text"))
            .expect("JSON");
    assert_eq!(read, node.inventory());
}
