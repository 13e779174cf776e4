// SPDX-License-Identifier: Apache-2.0
//! Tests of GPUs by name, of Data Direct, and of NUMA nodes of one socket.

use super::*;
use crate::accelerator_names;

/// Returns the content of the file `information` of NVIDIA's driver 535.
fn information(uuid: &str, address: &str, minor: u32) -> String {
    format!(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 10\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.99.00.01\n\
         Bus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {address}\nDevice Minor: \t {minor}\n\
         GPU Excluded:\t No"
    )
}

const UUID: &str = "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b";

#[test]
fn accelerators_have_the_names_that_device_plugins_know() {
    let node = Node::new();
    for (address, uuid, minor) in [
        ("0000:62:00.0", UUID, 5),
        (
            "0000:63:00.0",
            "GPU-????????-????-????-????-????????????",
            6,
        ),
    ] {
        let file = format!("proc/driver/nvidia/gpus/{address}/information");
        node.file(&file, &information(uuid, address, minor));
    }
    node.directory("proc/driver/nvidia/gpus/0000:64:00.0");
    for name in ["card1", "card1-DP-1", "renderD128"] {
        let link = format!("sys/class/drm/{name}/device");
        node.link(&link, "../../../0000:72:00.0");
    }
    let names = accelerator_names(&node.path("sys"), &node.path("proc"));
    let names: Vec<(&str, &str)> = names.iter().map(|(name, at)| (&**name, &**at)).collect();
    assert_eq!(
        names,
        [
            (UUID, "0000:62:00.0"),
            ("card1", "0000:72:00.0"),
            ("nvidia5", "0000:62:00.0"),
            ("nvidia6", "0000:63:00.0"),
        ]
    );
    let none = accelerator_names(&node.path("none"), &node.path("none"));
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn an_nvswitch_is_no_accelerator() {
    let node = Node::new();
    node.pci(ROOT, "0000:07:00.0", "68000", "10DE:22A3");
    node.pci(ROOT, "0000:1b:00.0", "30200", "10DE:2330");
    let found = node.inventory().accelerators;
    let found: Vec<&str> = found.iter().map(|it| &*it.address).collect();
    assert_eq!(found, ["0000:1b:00.0"]);
}

fn vpd(id: &str) -> Vec<u8> {
    let mut fields = b"PN\x03CX8V3".to_vec();
    fields.push(u8::try_from(id.len()).expect("short"));
    fields.extend(id.as_bytes());
    let length = u16::try_from(fields.len()).expect("short").to_le_bytes();
    [&[0x90][..], &length, &fields, &[0x78]].concat()
}

/// Models a small GB300 tray: each ConnectX-8 is below its own root port, and its Data Direct function is below the
/// switch of a GPU.
#[test]
fn a_nic_knows_where_its_data_direct_function_is() {
    let node = Node::new();
    let write = |function: &str, id: &str| {
        fs::write(node.path(function).join("vpd"), vpd(id)).expect("written");
    };
    for (number, nic, gpu_root) in [(0, "0000:03:00.0", "0009"), (1, "0010:03:00.0", "0019")] {
        let root = format!("pci{}:00/{}:00:00.0", &nic[..4], &nic[..4]);
        let function = node.pci(&root, nic, "20700", "15B3:1023");
        node.rdma(number, &format!("mlx5_{number}"), Some(&function));
        write(&function, &format!("card-{number}"));
        let below =
            format!("pci{gpu_root}:00/{gpu_root}:00:00.0/{gpu_root}:01:00.0/{gpu_root}:02:00.0");
        let direct = node.pci(&below, &format!("{gpu_root}:03:00.0"), "80100", "15B3:2100");
        write(&direct, &format!("card-{number}"));
    }
    // a virtual function gets the Data Direct function of its physical function; another card gets none
    let virtual_one = node.pci("pci0000:00/0000:00:00.0", "0000:03:00.1", "20700", PF);
    node.link(&format!("{virtual_one}/physfn"), "../0000:03:00.0");
    node.rdma(2, "mlx5_2", Some(&virtual_one));
    let other = node.pci("pci0006:00/0006:00:00.0", "0006:03:00.0", "20000", PF);
    node.rdma(3, "mlx5_3", Some(&other));
    write(&other, "card-9");
    let inventory = node.inventory();
    let functions = inventory.functions.iter();
    let found: Vec<(&str, Option<&str>)> = functions
        .filter(|it| !it.hcas.is_empty())
        .map(|it| {
            let bridge = it.data_direct.as_ref().map(|path| &*path.host_bridge);
            (&*it.device.address, bridge)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("0000:03:00.0", Some("pci0009:00")),
            ("0000:03:00.1", Some("pci0009:00")),
            ("0006:03:00.0", None),
            ("0010:03:00.0", Some("pci0019:00")),
        ]
    );
}

#[test]
fn numa_nodes_have_sockets_and_memory_without_processors_has_the_nearest() {
    let node = Node::new();
    for (number, cpus, distances) in [
        (0, "0-35,72-107", "10 12 40 40 80"),
        (1, "36-71", "12 10 40 40 80"),
        (2, "108-143", "40 40 10 80 40"),
        (3, "", "80 80 40 40 10"),
        (9, "", ""),
    ] {
        let directory = format!("sys/devices/system/node/node{number}");
        node.file(&format!("{directory}/cpulist"), cpus);
        node.file(&format!("{directory}/distance"), distances);
    }
    node.file("sys/devices/system/node/possible", "0-9");
    for (cpu, socket) in [(0, 0), (36, 0), (108, 1)] {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        node.file(&file, &socket.to_string());
    }
    let sockets = node.inventory().sockets;
    let sockets: Vec<(u32, u32)> = sockets.into_iter().collect();
    assert_eq!(sockets, [(0, 0), (1, 0), (2, 1), (3, 1)]);
}
