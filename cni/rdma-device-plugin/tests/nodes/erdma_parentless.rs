// SPDX-License-Identifier: Apache-2.0
//! Tests of eRDMA with the driver of mainline Linux: the RDMA device is below `devices/virtual`, and no link leads from
//! it to a PCI function. The made-up trees are like those of Linux 6.12 with the real driver.

use crate::erdma::{FIRST, SECOND, inventory_of, node, offered, own};
use integration::{Machine, machine::Erdma};
use node_state::{erdma::discover, hardware::Hardware};
use rdma_netns::{Function, Inventory, Linux};
use serde_json::json;
use std::{fs, path::Path};

/// Returns a node with two NICs. Their RDMA devices have a parent if `has_parent` is true.
fn machine(has_parent: bool) -> Machine {
    let machine = node();
    if !has_parent {
        machine.erdma_without_parent(&FIRST);
        machine.erdma_without_parent(&SECOND);
    }
    machine
}

fn addresses(conf: &str, machine: &Machine) -> Vec<String> {
    let (offers, _) = offered(&own(conf), &inventory_of(machine));
    let devices = offers.into_iter().flat_map(|it| it.devices);
    devices.map(|it| it.address.to_string()).collect()
}

#[test]
fn both_layouts_are_offered_alike() {
    for has_parent in [true, false] {
        let machine = machine(has_parent);
        let inventory = inventory_of(&machine);
        let parsed = own("erdma: {}");
        let found = discover(&parsed.conf.erdma, &inventory, None);
        let described: Vec<_> = found
            .nics
            .iter()
            .map(|nic| format!("{} {:?} {:?}", nic.rdma, nic.netdev, nic.mac))
            .collect();
        let of = |name: &str, netdev: &str, mac: &str| {
            let mac = Some(
                mac.parse::<rdma_netns::HardwareAddress>()
                    .expect("an address"),
            );
            format!("{name} {:?} {mac:?}", Some(netdev))
        };
        let wanted = [
            of("erdma_0", "eth1", FIRST.mac),
            of("erdma_1", "eth2", SECOND.mac),
        ];
        assert_eq!(described, wanted, "{has_parent}");

        let (offers, remarks) = offered(&parsed, &inventory);
        assert_eq!(remarks, [] as [&str; 0], "{has_parent}");
        assert_eq!(offers[0].name.as_str(), "aliyun/erdma");
        assert_eq!(offers[0].ids.len(), 400, "{has_parent}");
        let (response, _) = offers[0]
            .answer(&["erdma_1/7".to_owned()], &inventory)
            .expect("an answer");
        assert_eq!(response.envs["SMCR_PNET"], "00163E0A0B02");
        let paths: Vec<&str> = response.devices.iter().map(|it| &*it.host_path).collect();
        assert_eq!(
            paths,
            ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]
        );
    }
}

/// Tests selectors of every format, by driver, vendor, device, address, netdev, RDMA device and link type.
#[test]
fn a_device_matches_by_any_of_its_functions() {
    let of = |devices: &str| {
        format!("resources: [{{name: rdma/x, kind: shared, devices: [{{{devices}}}]}}]")
    };
    let network = |selectors: &str| {
        format!("resourceList: [{{resourceName: x, selectors: {{isRdma: true, {selectors}}}}}]")
    };
    let shared = |selectors: &str| {
        format!("configList: [{{resourceName: x, rdmaHcaMax: 9, selectors: {{{selectors}}}}}]")
    };
    let own = |it: &str| of(it);
    for (conf, count) in [
        (own("driver: erdma"), 2),
        (own("driver: virtio-pci"), 2),
        (own("vendor: 1ded"), 2),
        (own("vendor: 1DED"), 2),
        (own("vendor: 1af4"), 2),
        (own("vendor: 15b3"), 0),
        (own("netdev: eth2"), 1),
        (own("rdma: erdma_1"), 1),
        (own("linkType: ether"), 2),
        (network("drivers: [erdma]"), 2),
        (network("vendors: ['1ded'], devices: ['107f']"), 2),
        (network("pciAddresses: ['0000:00:05.0']"), 1),
        (shared("drivers: [erdma]"), 2),
        (shared("vendors: ['1ded'], deviceIDs: ['107f']"), 2),
        (shared("ifNames: [eth1]"), 1),
        ("mode: hca".to_owned(), 2),
    ] {
        for has_parent in [true, false] {
            let found = addresses(&conf, &machine(has_parent));
            assert_eq!(found.len(), count, "{conf} {has_parent}: {found:?}");
        }
    }
    // the address of an RDMA function selects a NIC only if the node has no other eRDMA NIC. With two NICs, the
    // function could belong to either NIC, so the address selects none
    let both = machine(false);
    let conf = of("pci: '0000:00:07.0'");
    assert_eq!(addresses(&conf, &both), [] as [&str; 0]);
    assert_eq!(
        addresses(&of("pci: '0000:00:06.0'"), &both),
        ["0000:00:06.0"]
    );
    both.unplug_erdma(&SECOND);
    assert_eq!(addresses(&conf, &both), ["0000:00:05.0"]);
}

/// Hides the netdev, and with `has_rdma` also the RDMA device, as a move into a pod does.
fn hide(machine: &Machine, has_rdma: bool) {
    fs::remove_file(machine.path("sys/class/net/eth1")).expect("moved");
    if has_rdma {
        fs::remove_dir_all(machine.path("sys/class/infiniband/erdma_0")).expect("moved");
    }
}

#[test]
fn an_erdma_device_keeps_its_identity_in_a_pod() {
    for has_rdma in [false, true] {
        let machine = machine(false);
        let hardware = Hardware::new(&machine.path("sys"), &machine.path("dev"));
        let parsed = own("erdma: {}");
        let before = hardware.observe().expect("an inventory");
        hide(&machine, has_rdma);
        for after in [hardware.observe(), hardware.presence()] {
            let after = after.expect("an inventory");
            let (offers, _) = offered(&parsed, &after);
            assert_eq!(offers[0].ids.len(), 400);
            let hca = &after.functions[0].hcas[0];
            assert_eq!(hca.char_devices, before.functions[0].hcas[0].char_devices);
        }
    }
}

/// Returns the functions with RDMA devices, each with the first character device of its RDMA device.
fn numbers(inventory: &Inventory) -> Vec<(String, String)> {
    let with_rdma = inventory.functions.iter().filter(|it| !it.hcas.is_empty());
    let number = |it: &Function| {
        let node = it.hcas[0].char_devices[0].name.clone();
        (it.device.address.to_string(), node)
    };
    with_rdma.map(number).collect()
}

/// Gives both RDMA devices the name of the other one, as `rdma dev set` does.
fn swap_names(machine: &Machine) {
    let class = |name: &str| machine.path("sys/class/infiniband").join(name);
    for (from, to) in [
        ("erdma_0", "other"),
        ("erdma_1", "erdma_0"),
        ("other", "erdma_1"),
    ] {
        fs::rename(class(from), class(to)).expect("renamed");
    }
    for (number, name) in [(FIRST.number, "erdma_1"), (SECOND.number, "erdma_0")] {
        let ibdev = format!("sys/class/infiniband_verbs/uverbs{number}/ibdev");
        machine.write(&ibdev, name);
    }
}

/// In shared mode, both netdevs are in pods, and a pod exchanges the names of the RDMA devices. The daemon has seen the
/// netdevs on the host (`is_remembered`), or the daemon starts now and reads the records of `rdma-cni`.
#[test]
fn an_erdma_device_keeps_its_function_under_another_name() {
    for is_remembered in [true, false] {
        let machine = machine(false);
        let hardware = || Hardware::new(&machine.path("sys"), &machine.path("dev"));
        let earlier = hardware();
        let before = numbers(&earlier.observe().expect("an inventory"));
        for netdev in ["eth1", "eth2"] {
            fs::remove_file(machine.path("sys/class/net").join(netdev)).expect("moved");
        }
        swap_names(&machine);
        let state = machine.path("state");
        for (nic, container) in [(&FIRST, "c1"), (&SECOND, "c2")] {
            record(&state, container, nic, nic.guid().trim(), None);
        }
        let hardware = match is_remembered {
            true => earlier,
            false => hardware().with_records(&state),
        };
        for after in [hardware.observe(), hardware.presence()] {
            let after = numbers(&after.expect("an inventory"));
            assert_eq!(after, before, "{is_remembered}");
        }
        // the kernel makes the character device again with another number
        let verbs =
            |number: u64| machine.path(&format!("sys/class/infiniband_verbs/uverbs{number}"));
        fs::rename(verbs(FIRST.number), verbs(7)).expect("renumbered");
        let after = numbers(&hardware.presence().expect("an inventory"));
        let first = (FIRST.netdev_address.to_owned(), "uverbs7".to_owned());
        assert_eq!(after, [first, before[1].clone()], "{is_remembered}");
    }
}

/// In exclusive mode, a pod with both NICs exchanges the names of their RDMA devices. The daemon has seen the NICs on the
/// host (`is_remembered`), or the daemon starts now. The record of `rdma-cni` shows the character devices.
#[test]
fn an_erdma_device_keeps_its_function_in_a_pod_that_exchanges_names() {
    for is_remembered in [true, false] {
        let machine = machine(false);
        let state = machine.path("state");
        let hardware =
            || Hardware::new(&machine.path("sys"), &machine.path("dev")).with_records(&state);
        let earlier = hardware();
        let before = numbers(&earlier.observe().expect("an inventory"));
        swap_names(&machine);
        for (nic, container) in [(&FIRST, "c1"), (&SECOND, "c2")] {
            for below in ["net", "infiniband"] {
                let name = if below == "net" { nic.netdev } else { nic.rdma };
                let entry = machine.path("sys/class").join(below).join(name);
                fs::remove_file(&entry)
                    .or_else(|_| fs::remove_dir_all(&entry))
                    .expect("moved");
            }
            record(&state, container, nic, "", Some(nic.number));
        }
        let hardware = match is_remembered {
            true => earlier,
            false => hardware(),
        };
        for after in [hardware.observe(), hardware.presence()] {
            let after = numbers(&after.expect("an inventory"));
            assert_eq!(after, before, "{is_remembered}");
        }
    }
}

/// Writes the record of a pod that has `nic`. `verbs` is the number of the RDMA device's character device in the pod.
fn record(state: &Path, container: &str, nic: &Erdma<'_>, guid: &str, verbs: Option<u64>) {
    let (rdma, function) = (nic.rdma, nic.netdev_address);
    let boot_id = rdma_netns::Kernel::boot_id(&Linux::new()).expect("a boot's id");
    let record = json!({
        "format": 8, "key": {"network": "rdma-net", "container": container, "interface": "eth0"},
        "pod": "default/p1", "bootId": boot_id, "netns": "/run/netns/p1",
        "netnsId": {"device": 4, "inode": 5, "cookie": 6}, "phase": "attached",
        "dad": "off", "acceptRa": false, "config": {},
        "rails": [{
            "podName": "rdma0",
            "home": {
                "name": "eth1", "index": 4, "mac": "02:00:00:00:00:04", "mtu": 1500, "up": true,
                "parent": function,
            },
            "rdma": {"name": rdma, "index": 1, "node_guid": guid, "parent": function},
            "erdmaVerbs": verbs.map(|it| format!("uverbs{it}")),
        }],
    });
    let directory = state.join("attachments/rdma-net");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(
        directory.join(format!("{container}@eth0.json")),
        record.to_string(),
    )
    .expect("a record");
}

/// A pod has the device while the daemon starts, or while `--check-config` runs. The record of `rdma-cni` shows the
/// device's function.
#[test]
fn a_record_names_its_attachment() {
    let machine = machine(false);
    hide(&machine, true);
    let state = machine.path("state");
    let hardware = || Hardware::new(&machine.path("sys"), &machine.path("dev"));
    let parsed = own("erdma: {}");
    let count = |hardware: Hardware| {
        let (offers, _) = offered(&parsed, &hardware.observe().expect("an inventory"));
        offers[0].ids.len()
    };
    assert_eq!(count(hardware().with_records(&state)), 200);
    record(&state, "c1", &FIRST, "", None);
    assert_eq!(count(hardware().with_records(&state)), 400);
}
