// SPDX-License-Identifier: Apache-2.0
//! Tests of ResourceSlices as data: from a node's devices to the slices in the API server.

use dra::{
    Nic, Resource,
    pool::{self, Effect, PoolDevice},
    slices::{self, Change, Owner},
};
use serde_json::{Value, json};

/// The time that the API server gives taints.
const ADDED: &str = "2026-11-23T00:00:00Z";

fn owner() -> Owner {
    Owner {
        driver: "hca.rdma".into(),
        node: "node-1".into(),
        node_uid: Some("n-1".into()),
    }
}

fn nic(number: u32) -> Nic {
    Nic {
        address: format!("0000:{number:02x}:00.0"),
        rdma: format!("mlx5_{number}"),
        netdev: Some(format!("ens{number}")),
        link_layer: Some("ethernet".into()),
        ipv6_prefix: Some(format!("fd00:{number}::/64")),
        ipv6_address: Some(format!("fd00:{number}::1")),
        ipv4_address: Some(format!("10.0.{number}.1")),
        hardware_address: Some(format!("02:00:00:00:00:{number:02x}")),
        driver: Some("mlx5_core".into()),
        vendor: Some("15b3".into()),
        numa_node: Some(number / 2),
        pcie_root: Some(format!("pci0000:{}0", number / 2)),
        ..Nic::default()
    }
}

/// Returns `rdma/hca` with `nics` NICs, which pods share.
fn whole(nics: u32) -> Resource {
    Resource {
        name: "rdma/hca".into(),
        whole: true,
        sharers: Some(28),
        evict: false,
        short: None,
        nics: (0..nics).map(nic).collect(),
    }
}

fn exclusive(nics: u32) -> Resource {
    Resource {
        name: "rdma/vf".into(),
        whole: false,
        sharers: None,
        ..whole(nics)
    }
}

fn devices(resources: &[Resource]) -> Vec<PoolDevice> {
    pool::devices(resources)
}

/// Returns the API server's slices after `changes`.
fn after(changes: &[Change], mut slices: Vec<Value>) -> Vec<Value> {
    for change in changes {
        let name = |it: &Value| it["metadata"]["name"].clone();
        match change {
            Change::Create(new) => {
                assert!(slices.iter().all(|it| name(it) != name(new)));
                slices.push(new.clone());
            }
            Change::Replace(new) => {
                let at = slices.iter().position(|it| name(it) == name(new));
                slices[at.expect("it is there")] = new.clone();
            }
            Change::Delete(gone) => slices.retain(|it| name(it) != **gone),
        }
    }
    // an API server adds the time of a taint, and the version of an object
    for slice in &mut slices {
        slice["metadata"]["resourceVersion"] = json!("7");
        for device in slice["spec"]["devices"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            let taints = device.get_mut("taints").and_then(Value::as_array_mut);
            for taint in taints.into_iter().flatten() {
                taint["timeAdded"] = json!(ADDED);
            }
        }
    }
    slices
}

fn generations(slices: &[Value]) -> Vec<i64> {
    let of = |it: &Value| it["spec"]["pool"]["generation"].as_i64().expect("a number");
    slices.iter().map(of).collect()
}

#[test]
fn a_node_with_two_nics_has_one_slice() {
    let changes = slices::plan(&owner(), &devices(&[whole(2)]), &[]);
    let [Change::Create(slice)] = &changes[..] else {
        panic!("{changes:#?}");
    };
    let text = include_str!("pools/two-nics.json");
    let expected: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(*slice, expected, "{slice:#}");
}

#[test]
fn with_one_shared_nic_per_id_each_nic_is_of_the_extended_resource() {
    let mut resource = whole(2);
    resource.name = "aliyun/erdma".into();
    resource.whole = false;
    resource.nics[0].fault = Some("port 1 is down".into());
    let changes = slices::plan(&owner(), &devices(&[resource]), &[]);
    let [Change::Create(slice)] = &changes[..] else {
        panic!("{changes:#?}");
    };
    let text = include_str!("pools/two-nics-of-one-id-each.json");
    let expected: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(*slice, expected, "{slice:#}");
}

/// The API server writes a thousand as `1k`. The plan must use the same form, because another form would be a
/// difference.
#[test]
fn a_number_of_sharers_is_in_the_form_of_the_api_server() {
    for (sharers, quantity) in [
        (1, "1"),
        (999, "999"),
        (1000, "1k"),
        (1001, "1001"),
        (50_000, "50k"),
    ] {
        let mut resource = whole(1);
        resource.sharers = Some(sharers);
        let changes = slices::plan(&owner(), &devices(&[resource]), &[]);
        let [Change::Create(slice)] = &changes[..] else {
            panic!("{changes:#?}");
        };
        for device in slice["spec"]["devices"].as_array().expect("a list") {
            assert_eq!(device["capacity"]["sharers"]["value"], quantity);
        }
    }
}

#[test]
fn a_switch_is_an_attribute_unless_its_name_is_too_long_for_one() {
    for (switch, is_attribute) in [("x".repeat(64), true), ("x".repeat(65), false)] {
        let mut resource = exclusive(1);
        resource.nics[0].switch = Some(switch.clone());
        resource.nics[0].switch_port = Some("Ethernet1/1".into());
        let devices = devices(&[resource]);
        let attributes = &devices[0].attributes;
        assert_eq!(attributes["switchPort"], json!({"string": "Ethernet1/1"}));
        let expected = json!({"string": switch});
        assert_eq!(attributes.get("switch"), is_attribute.then_some(&expected));
    }
}

#[test]
fn equal_slices_are_not_written() {
    let mut resources = [whole(3), exclusive(2)];
    resources[0].nics[1].fault = Some("port 1 is down".into());
    let required = devices(&resources);
    let slices = after(&slices::plan(&owner(), &required, &[]), vec![]);
    assert_eq!(slices::plan(&owner(), &required, &slices), []);
}

#[test]
fn each_change_increments_the_generation() {
    type Edit = fn(&mut Resource);
    let edits: [(&str, Edit); 8] = [
        ("a fault", |it| it.nics[0].fault = Some("down".into())),
        ("a netdev's name", |it| it.nics[0].netdev = Some("x".into())),
        ("an attribute less", |it| it.nics[0].netdev = None),
        ("another network", |it| it.nics[0].ipv6_prefix = None),
        ("a NIC less", |it| drop(it.nics.pop())),
        ("a NIC more", |it| it.nics.push(nic(9))),
        ("no longer shared", |it| it.sharers = None),
        ("other sharers", |it| it.sharers = Some(60)),
    ];
    for (what, edit) in edits {
        let mut resource = whole(2);
        let slices = after(
            &slices::plan(&owner(), &devices(&[resource.clone()]), &[]),
            vec![],
        );
        let before = resource.clone();
        edit(&mut resource);
        for resource in [resource, before] {
            let required = devices(&[resource]);
            let now = after(&slices::plan(&owner(), &required, &slices), slices.clone());
            if now != slices {
                assert_eq!(generations(&now), [2], "{what}");
            }
            // the slices have these devices now, so a second plan is empty
            assert_eq!(slices::plan(&owner(), &required, &now), [], "{what}");
        }
    }
}

/// A NIC with a fault gets a taint that keeps new pods away. The device with all NICs gets this taint if each NIC has a
/// fault. A degraded, usable device gets a taint without an effect.
#[test]
fn taints_follow_faults_and_degraded_nics() {
    const UNHEALTHY: Option<Effect> = Some(Effect::NoSchedule);
    const EVICTED: Option<Effect> = Some(Effect::NoExecute);
    const DEGRADED: Option<Effect> = Some(Effect::None);
    let taints = |resource: &Resource| -> Vec<Option<Effect>> {
        let devices = devices(std::slice::from_ref(resource));
        devices.iter().map(|it| it.taint).collect()
    };
    let mut resource = whole(2);
    assert_eq!(taints(&resource), [None, None, None]);
    resource.nics[0].degraded = Some("slow".into());
    assert_eq!(taints(&resource), [DEGRADED, DEGRADED, None]);
    resource.nics[1].fault = Some("down".into());
    assert_eq!(taints(&resource), [DEGRADED, DEGRADED, UNHEALTHY]);
    resource.nics[0].degraded = None;
    assert_eq!(taints(&resource), [DEGRADED, None, UNHEALTHY]);
    resource.evict = true;
    assert_eq!(taints(&resource), [DEGRADED, None, EVICTED]);
    resource.nics[0].fault = Some("down".into());
    assert_eq!(taints(&resource), [EVICTED; 3]);
    // pods keep the working NICs of a resource that has too few NICs
    resource.short = Some("rdma/hca has 2 devices, and is to have 3".into());
    resource.nics[0].fault = None;
    assert_eq!(taints(&resource), [UNHEALTHY, UNHEALTHY, EVICTED]);
}

/// Another change does not extend the time for which a pod tolerates a taint.
#[test]
fn a_taint_keeps_its_time() {
    let mut resource = whole(2);
    resource.nics[0].fault = Some("down".into());
    let slices = after(
        &slices::plan(&owner(), &devices(&[resource.clone()]), &[]),
        vec![],
    );
    let times = |resource: &Resource| {
        let required = devices(std::slice::from_ref(resource));
        let changes = slices::plan(&owner(), &required, &slices);
        let [Change::Replace(slice)] = &changes[..] else {
            panic!("{changes:?}");
        };
        [1, 2].map(|device| slice["spec"]["devices"][device]["taints"][0]["timeAdded"].clone())
    };
    resource.nics[1].fault = Some("down".into());
    assert_eq!(times(&resource), [json!(ADDED), Value::Null]);
    // another effect is another taint
    resource.evict = true;
    assert_eq!(times(&resource), [Value::Null, Value::Null]);
}

#[test]
fn many_devices_are_in_several_slices_of_one_generation() {
    let many = devices(&[exclusive(150)]);
    let slices = after(&slices::plan(&owner(), &many, &[]), vec![]);
    assert_eq!(generations(&slices), [1, 1, 1]);
    for slice in &slices {
        assert!(slice["spec"]["devices"].as_array().expect("a list").len() <= 64);
        assert_eq!(slice["spec"]["pool"]["resourceSliceCount"], 3);
    }
    // one VF has a fault: the plan writes all slices, because a scheduler uses only a complete generation
    let mut resource = exclusive(150);
    resource.nics[149].fault = Some("down".into());
    let slices = after(
        &slices::plan(&owner(), &devices(&[resource]), &slices),
        slices,
    );
    assert_eq!(generations(&slices), [2, 2, 2]);
    // kubelet has deleted one of the slices
    let lost = slices[1..].to_vec();
    let changes = slices::plan(&owner(), &many, &lost);
    assert!(matches!(changes[0], Change::Create(_)));
    assert_eq!(generations(&after(&changes, lost)), [3, 3, 3]);
    // fewer VFs: surplus slices are deleted last
    let changes = slices::plan(&owner(), &devices(&[exclusive(2)]), &slices);
    assert!(matches!(changes[0], Change::Replace(_)));
    assert!(matches!(
        changes[1..],
        [Change::Delete(_), Change::Delete(_)]
    ));
    assert_eq!(generations(&after(&changes, slices)), [3]);
}

#[test]
fn a_node_without_devices_has_an_empty_slice() {
    let slices = after(&slices::plan(&owner(), &[], &[]), vec![]);
    assert_eq!(slices[0]["spec"]["devices"], json!([]));
    // an API server leaves an empty list out, or returns null
    let mut returned = slices;
    returned[0]["spec"]["devices"] = json!(null);
    assert_eq!(slices::plan(&owner(), &[], &returned), []);
    let spec = returned[0]["spec"].as_object_mut();
    spec.expect("an object").remove("devices");
    assert_eq!(slices::plan(&owner(), &[], &returned), []);
}

#[test]
fn a_dropped_field_is_named() {
    let mut resource = whole(2);
    resource.nics[0].fault = Some("down".into());
    let required = slices::plan(&owner(), &devices(&[resource]), &[]);
    let [Change::Create(required)] = &required[..] else {
        panic!("{required:?}");
    };
    assert_eq!(slices::lacks(&required["spec"], required), None);
    for (at, field) in [(0, "allowMultipleAllocations"), (1, "taints")] {
        let mut found = required.clone();
        let device = found["spec"]["devices"][at]
            .as_object_mut()
            .expect("a device");
        device.remove(field);
        assert_eq!(
            slices::lacks(&required["spec"], &found).as_deref(),
            Some(field)
        );
    }
}

#[test]
fn long_names_of_nodes_have_slices() {
    let node = format!("{}.example.org", "n".repeat(60)).repeat(3);
    let owner = Owner {
        node: format!("{node}{}", "x".repeat(253 - node.len())),
        ..owner()
    };
    let changes = slices::plan(&owner, &devices(&[exclusive(100)]), &[]);
    let names = changes.iter().map(|change| match change {
        Change::Create(slice) => slice["metadata"]["name"].as_str().expect("a name"),
        other => panic!("{other:?}"),
    });
    let names: std::collections::BTreeSet<&str> = names.collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.len() <= 253));
}
