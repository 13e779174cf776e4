// SPDX-License-Identifier: Apache-2.0
//! Tests of devices that a resource leaves out, mostly because no selector names them, and of the remarks about them.

use crate::node;
use daemon_conf::Conf;
use offer::{PreviousOffers, Unhealthy, offers};
use rdma_netns::{Inventory, RdmaMode};
use std::{collections::BTreeSet, path::Path};

/// Returns the addresses of all offered devices, and the remarks.
fn offered(conf: &str, inventory: &Inventory) -> (Vec<String>, Vec<String>) {
    let conf = Conf::parse(conf, Path::new("config")).expect("a configuration");
    let hidden = BTreeSet::new();
    let (offers, remarks) = offers(
        &conf.conf,
        inventory,
        &hidden,
        &Unhealthy::new(),
        &PreviousOffers::default(),
    );
    let devices = offers.iter().flat_map(|offer| &offer.devices);
    (devices.map(|it| it.address.to_string()).collect(), remarks)
}

const ALL: &str = r#"{"mode":"hca"}"#;

fn selected(kind: &str, selector: &str) -> String {
    format!(r#"{{"resources":[{{"name":"rdma/x","kind":"{kind}","devices":[{selector}]}}]}}"#)
}

/// Returns the node with eight HCAs after `change` of the first HCA, and the address of the first HCA.
fn eight(change: impl FnOnce(&mut rdma_netns::Function)) -> (Inventory, String) {
    let mut inventory = node("eight-hcas");
    let mut functions = inventory.functions.iter_mut();
    let first = functions.find(|it| !it.hcas.is_empty());
    let first = first.expect("an HCA");
    change(first);
    let address = first.device.address.to_string();
    (inventory, address)
}

/// Checks two resources after `change` of a device: a resource of all devices leaves the device out, and a resource
/// that names the device has it.
#[track_caller]
fn is_left_out(change: impl Fn(&mut rdma_netns::Function), why: &str) {
    let (inventory, address) = eight(&change);
    let all = offered(ALL, &node("eight-hcas")).0;
    assert_eq!(all.len(), 8);
    let by_vendor = selected("shared", r#"{"vendor":"15b3"}"#);
    for conf in [ALL, &by_vendor] {
        let (devices, remarks) = offered(conf, &inventory);
        assert_eq!(devices.len(), 7, "{conf}");
        assert!(!devices.contains(&address), "{conf}");
        let remark = remarks.iter().find(|it| it.contains(&address));
        let remark = remark.expect("a remark");
        assert!(
            remark.contains(why) && remark.contains("name it in devices"),
            "{remark}"
        );
    }
    for named in [
        format!(r#"{{"pci":"{address}"}}"#),
        r#"{"rdma":"mlx5_*"}"#.into(),
    ] {
        let (devices, _) = offered(&selected("shared", &named), &inventory);
        assert!(devices.contains(&address), "{named}");
    }
}

/// The remark names fields of the configuration's own format.
#[test]
fn a_device_is_named_in_the_selectors_of_the_format() {
    let (inventory, _) = eight(|function| function.netdevs[0].default_route = true);
    let shared = r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":2,"selectors":{"vendors":["15b3"]}}]}"#;
    for (conf, remedy) in [
        (
            ALL,
            "replace mode by resources, and name it in devices (netdev, rdma, pci or pf)",
        ),
        (
            shared,
            "name it and the resource's other netdevs in selectors.ifNames",
        ),
    ] {
        let (_, remarks) = offered(conf, &inventory);
        let expected = format!("; {remedy} to include it");
        assert!(
            remarks.iter().any(|it| it.ends_with(&expected)),
            "{remarks:?}"
        );
    }
}

#[test]
fn the_nic_of_the_default_route() {
    is_left_out(
        |function| function.netdevs[0].default_route = true,
        "the node's default route, or its route to the API server, uses the device's netdev",
    );
}

/// The node's only RDMA NIC has the default route. Containers get its character devices, unless pods would also get its
/// netdev.
#[test]
fn the_only_nic_is_the_pods_where_no_netdev_is() {
    let (mut inventory, address) = eight(|function| function.netdevs[0].default_route = true);
    let is_it = |function: &rdma_netns::Function| function.device.address.to_string() == address;
    inventory
        .functions
        .retain(|it| it.hcas.is_empty() || is_it(it));
    let by_vendor = selected("shared", r#"{"vendor":"15b3"}"#);
    for conf in [ALL, &by_vendor] {
        let (devices, remarks) = offered(conf, &inventory);
        assert_eq!(devices, [&*address], "{remarks:?}");
    }
    for conf in [
        r#"{"mode":"hca","chain":{}}"#,
        &selected("exclusive", r#"{"vendor":"15b3"}"#),
    ] {
        let (devices, remarks) = offered(conf, &inventory);
        assert_eq!(devices, [""; 0], "{conf}");
        let names_route =
            |it: &String| it.contains(&address) && it.contains("route to the API server");
        assert!(remarks.iter().any(names_route), "{remarks:?}");
    }
}

#[test]
fn a_function_that_accelerates_another_netdev() {
    is_left_out(
        |function| {
            function.netdevs[0].master = Some("hv0".into());
            function.netdevs[0].taken_by = Some("hv0, which it accelerates".into());
        },
        "is a port of hv0, which it accelerates",
    );
}

/// Resources of the kinds `perNic` and `exclusive` leave out a function that accelerates another netdev. The remark
/// does not propose a shared resource.
#[test]
fn a_function_that_accelerates_another_netdev_in_every_kind() {
    let (inventory, address) = eight(|function| {
        function.netdevs[0].master = Some("hv0".into());
        function.netdevs[0].taken_by = Some("hv0, which it accelerates".into());
    });
    for kind in ["perNic", "exclusive"] {
        let (devices, remarks) = offered(&selected(kind, r#"{"vendor":"15b3"}"#), &inventory);
        assert_eq!(devices.len(), 7, "{kind}: {remarks:?}");
        assert!(!devices.contains(&address), "{kind}");
        let remark = remarks.iter().find(|it| it.contains(&address));
        let remark = remark.expect("a remark");
        assert!(
            remark.contains("is a port of hv0, which it accelerates"),
            "{remark}"
        );
        assert!(!remark.contains("shared resource"), "{remark}");
    }
    let named = selected("perNic", r#"{"rdma":"mlx5_*"}"#);
    assert!(offered(&named, &inventory).0.contains(&address));
}

/// The format `mode` has no selectors.
#[test]
fn the_remark_names_a_format_that_can_name_devices() {
    let (inventory, address) = eight(|function| function.hcas[0].soft = true);
    let (_, remarks) = offered(ALL, &inventory);
    let remark = remarks.iter().find(|it| it.contains(&address));
    let remark = remark.expect("a remark");
    assert!(remark.contains("replace mode by resources"), "{remark}");
}

#[test]
fn rdma_in_software() {
    is_left_out(
        |function| function.hcas[0].soft = true,
        "it is a software RDMA device, such as rxe",
    );
}

#[test]
fn managers_of_nvlinks_switches() {
    is_left_out(
        |function| function.device.manages_nvlink = true,
        "it manages NVLink's switches (SW_MNG), and is no network device",
    );
}

#[test]
fn netdevs_of_storage_unless_all_are() {
    let nvme = |function: &mut rdma_netns::Function| {
        function.hcas[0].kernel_users = vec!["nvme_rdma".into()];
    };
    is_left_out(nvme, "the kernel of the host uses it (nvme_rdma)");
    let mut all = node("eight-hcas");
    for function in all.functions.iter_mut().filter(|it| !it.hcas.is_empty()) {
        nvme(function);
    }
    assert_eq!(offered(ALL, &all).0.len(), 8);
    // no pod can have the device exclusively
    let (one, address) = eight(nvme);
    let (devices, remarks) = offered(&selected("exclusive", r#"{"rdma":"mlx5_*"}"#), &one);
    assert!(!devices.contains(&address), "{devices:?}");
    let is_reported = remarks
        .iter()
        .any(|it| it.contains("the kernel of the host uses it (nvme_rdma)"));
    assert!(is_reported, "{remarks:?}");
}

/// In exclusive mode, a move of the device would wait for the sub-device forever.
#[test]
fn a_device_with_a_sub_device_is_not_moved() {
    let (mut inventory, address) =
        eight(|function| function.hcas[0].sub_devices = vec!["smi1".into()]);
    let exclusive = selected("exclusive", r#"{"rdma":"mlx5_*"}"#);
    for (mode, is_offered) in [(RdmaMode::Shared, true), (RdmaMode::Exclusive, false)] {
        inventory.rdma_mode = Some(mode);
        let (devices, remarks) = offered(&exclusive, &inventory);
        assert_eq!(devices.contains(&address), is_offered, "{mode}");
        let names_sub_device =
            |it: &String| it.contains(&address) && it.contains("rdma dev delete smi1");
        assert_eq!(
            remarks.iter().any(names_sub_device),
            !is_offered,
            "{remarks:?}"
        );
    }
}
