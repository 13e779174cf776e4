// SPDX-License-Identifier: Apache-2.0
use super::*;
use kubelet_api::pod_resources::v1::{
    CdiDevice, ClaimResource, ContainerDevices, ContainerResources, DynamicResource,
};
use rdma_resources::published;
use std::collections::BTreeMap;

fn address(text: &str) -> DeviceAddress {
    DeviceAddress::try_from(text.to_owned()).expect("an address")
}

fn id(resource: &str, id: &str) -> Id {
    Id {
        resource: resource.into(),
        id: id.into(),
    }
}

fn pod(containers: &[&[(&str, &[&str])]]) -> PodResources {
    let devices = |(resource, ids): &(&str, &[&str])| ContainerDevices {
        resource_name: (*resource).into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let containers = containers.iter().map(|list| ContainerResources {
        name: "c".into(),
        devices: list.iter().map(devices).collect(),
        ..ContainerResources::default()
    });
    PodResources {
        containers: containers.collect(),
        ..PodResources::default()
    }
}

fn resources(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn function(text: &str, rdma: &str) -> Device {
    serde_json::from_value(serde_json::json!({ "address": text, "rdma": [rdma] }))
        .expect("a device")
}

fn grant(resource: &str, of: &str, sharing: Sharing, cdi: bool, devices: &[(&str, u32)]) -> Grant {
    let devices = devices.iter().map(|(text, number)| GrantedDevice {
        address: address(text),
        rdma: format!("mlx5_{number}"),
        parent: None,
        char_devices: vec![node(*number)],
    });
    Grant {
        format: rdma_resources::grant::FORMAT,
        resource: resource.into(),
        id: of.into(),
        sharing,
        cdi,
        chained: false,
        promises_rails: false,
        limits: Default::default(),
        devices: devices.collect(),
    }
}

fn node(number: u32) -> CharNode {
    CharNode {
        name: format!("uverbs{number}"),
        major: 231,
        minor: 192 + number,
    }
}

#[test]
fn ids_are_the_containers_together_each_once() {
    // Two of the three containers share an id. Kubelet lists rdma/vf in two entries, as for ids of two NUMA nodes
    let pod = pod(&[
        &[("rdma/hca", &["7"])],
        &[
            ("rdma/vf", &["0000:3b:00.3"]),
            ("rdma/hca", &["12"]),
            ("rdma/vf", &["0000:3b:00.2", "0000:3b:00.3"]),
            ("nvidia.com/gpu", &["GPU-1"]),
        ],
        &[("rdma/hca", &["7"])],
    ]);
    assert_eq!(
        ids(&pod, &resources(&["rdma/vf", "rdma/hca"])),
        [
            id("rdma/vf", "0000:3b:00.2"),
            id("rdma/vf", "0000:3b:00.3"),
            id("rdma/hca", "7"),
            id("rdma/hca", "12"),
        ]
    );
    assert_eq!(ids(&pod, &resources(&["aliyun/erdma"])), []);
}

#[test]
fn a_grant_counts_more_than_what_is_published_and_that_more_than_the_id() {
    let of = id("rdma/vf", "0000:3b:00.2");
    let published = Published {
        format: published::FORMAT,
        cdi_dir: None,
        boot_id: None,
        resources: [(
            "rdma/vf".to_owned(),
            Resource {
                sharing: Sharing::Shared,
                devices: published::Devices::Every(vec![address("0000:5e:00.1")]),
                parents: BTreeMap::new(),
                limited: false,
                ids: None,
            },
        )]
        .into(),
        chain_names_resources: false,
        physical_functions: BTreeMap::new(),
    };
    let granted = grant(
        "rdma/vf",
        "0000:3b:00.2",
        Sharing::Exclusive,
        true,
        &[("0000:d8:00.2", 3)],
    );
    let meaning = |grant, published| super::meaning(&of, grant, published).expect("a meaning");
    let first = meaning(Some(granted), Some(&published));
    let only = |meaning: &Meaning| match &meaning.devices {
        Named::Devices(devices) if devices.len() == 1 => devices[0].clone(),
        other => panic!("{other:?}"),
    };
    let device = only(&first);
    assert_eq!(device.address, address("0000:d8:00.2"));
    assert_eq!(device.char_devices, [node(3)]);
    assert_eq!((first.sharing, first.cdi), (Sharing::Exclusive, true));
    let second = meaning(None, Some(&published));
    let device = only(&second);
    assert_eq!(device.address, address("0000:5e:00.1"));
    assert_eq!(device.char_devices, []);
    assert_eq!((second.sharing, second.cdi), (Sharing::Shared, false));
    let third = meaning(None, None);
    assert_eq!(only(&third).address, address("0000:3b:00.2"));
    assert_eq!(third.sharing, Sharing::Exclusive);
}

#[test]
fn an_id_that_says_nothing_is_named() {
    let meaning = |text: &str| super::meaning(&id("aliyun/erdma", text), None, None);
    let of_nic = meaning("erdma_0/17").expect("a NIC's");
    assert_eq!(of_nic.devices, Named::Rdma("erdma_0".into()));
    assert_eq!(of_nic.sharing, Sharing::Shared);
    for text in [
        "17",
        "erdma_0",
        "erdma_0/",
        "/17",
        "a/b/17",
        "erdma_0/x",
        "",
    ] {
        let error = meaning(text).expect_err("refused");
        assert_eq!(error, AllocationError::Unrecorded(id("aliyun/erdma", text)));
        let sentence = error.to_string();
        assert!(sentence.contains("aliyun/erdma") && sentence.contains(&format!("{text:?}")));
    }
    let empty = grant("rdma/hca", "1", Sharing::Shared, false, &[]);
    let error = super::meaning(&id("rdma/hca", "1"), Some(empty), None).expect_err("refused");
    assert_eq!(error, AllocationError::Nothing(id("rdma/hca", "1")));
}

#[test]
fn devices_are_in_the_order_of_resources_then_addresses() {
    let of = |resource: &str, text: &str, sharing, devices: &[(&str, u32)]| {
        let grant = grant(resource, text, sharing, false, devices);
        meaning(&id(resource, text), Some(grant), None).expect("a meaning")
    };
    let shared = [("0000:d8:00.0", 1), ("0000:3b:00.0", 0)];
    let meanings = [
        of("rdma/vf", "b", Sharing::Exclusive, &[("0000:d8:00.2", 5)]),
        of("rdma/vf", "a", Sharing::Exclusive, &[("0000:3b:00.2", 4)]),
        of("rdma/hca", "1", Sharing::Shared, &shared),
        of("rdma/hca", "2", Sharing::Shared, &shared),
        meaning(&id("aliyun/erdma", "mlx5_4/3"), None, None).expect("a meaning"),
    ];
    let functions = [function("0000:3b:00.2", "mlx5_4")];
    let found = devices(&meanings, &functions).expect("devices");
    let order: Vec<&str> = found.iter().map(|it| &*it.address).collect();
    assert_eq!(
        order,
        [
            "0000:3b:00.2",
            "0000:d8:00.2",
            "0000:3b:00.0",
            "0000:d8:00.0"
        ]
    );
    // a device is shared if one of its resources shares it
    let sharings: Vec<Sharing> = found.iter().map(|it| it.sharing).collect();
    use Sharing::{Exclusive, Shared};
    assert_eq!(sharings, [Shared, Exclusive, Shared, Shared]);
    assert_eq!(
        found[0].allocated.ids,
        [id("rdma/vf", "a"), id("aliyun/erdma", "mlx5_4/3")]
    );
    assert_eq!(found[2].allocated.ids.len(), 2);
    assert_eq!(found[2].allocated.by_path, [node(0)]);
    let error = devices(&meanings, &[]).expect_err("refused");
    assert!(error.to_string().contains("mlx5_4"), "{error}");
}

const UID: &str = "0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11";

/// Returns a pod whose containers use claims. Each claim is a driver, a device and a CDI name.
fn claiming(containers: &[&[(&str, &str, &str)]]) -> PodResources {
    let resource = |(driver, device, name): &(&str, &str, &str)| ClaimResource {
        cdi_devices: vec![CdiDevice {
            name: (*name).into(),
        }],
        driver_name: (*driver).into(),
        pool_name: "node-1".into(),
        device_name: (*device).into(),
        share_id: None,
    };
    let containers = containers.iter().map(|list| ContainerResources {
        dynamic_resources: vec![DynamicResource {
            claim_name: "a".into(),
            claim_namespace: "default".into(),
            claim_resources: list.iter().map(resource).collect(),
        }],
        ..ContainerResources::default()
    });
    PodResources {
        containers: containers.collect(),
        ..PodResources::default()
    }
}

#[test]
fn claims_of_our_drivers_are_known_by_their_cdi_names() {
    let of = |request: &str| cdi::full_name("hca.rdma", UID, request);
    let device = |name: &str| ClaimDevice {
        driver: "hca.rdma".into(),
        uid: UID.into(),
        device: name.into(),
    };
    for (containers, expected) in [
        // two containers use one claim
        (
            [
                ("hca.rdma", "rdma-hca-all", &*of("one")),
                ("hca.rdma", "rdma-hca-all", &*of("two")),
            ],
            vec![device("rdma-hca-all")],
        ),
        (
            [
                ("hca.rdma", "rdma-vf-1", &*of("one")),
                ("gpu.example.org", "gpu-0", "gpu.example.org/gpu=0"),
            ],
            vec![device("rdma-vf-1")],
        ),
        // a CDI name of another driver and a CDI name without a uid count as no claim
        (
            [
                ("gpu.example.org", "gpu-0", &*of("one")),
                ("hca.rdma", "rdma-vf-1", "hca.rdma/claim=short"),
            ],
            vec![],
        ),
    ] {
        let pod = claiming(&[&containers[..1], &containers[1..]]);
        assert_eq!(claims(&pod), expected, "{containers:?}");
    }
}

#[test]
fn a_claims_device_is_what_it_was_prepared_with() {
    let record: Record = serde_json::from_str(include_str!("../../dra/tests/records/one-vf.json"))
        .expect("a record");
    let device = |name: &str| ClaimDevice {
        driver: "hca.rdma".into(),
        uid: UID.into(),
        device: name.into(),
    };
    let resources = resources(&["rdma/hca", "rdma/vf"]);
    let one = device("rdma-vf-0000-3b-00-1");
    let meaning = of_claim(&one, &record, &resources).expect("a meaning");
    let claim = meaning.claim.as_ref().expect("a claim");
    let mtu = claim.parameters.mtu;
    assert_eq!((&*claim.claim.uid, mtu), (UID, Some(4200)));
    assert_eq!(meaning.sharing, Sharing::Exclusive);
    let words = meaning.id.to_string();
    assert_eq!(words, "rdma/vf id \"default/a/rdma-vf-0000-3b-00-1\"");
    let allotments = devices(&[meaning], &[]).expect("devices");
    assert_eq!(allotments.len(), 1);
    assert_eq!(allotments[0].address, address("0000:3b:00.1"));
    let allocated = &allotments[0].allocated;
    assert!(allocated.by_name.is_empty() && allocated.by_path.is_empty());
    // neither a device of another resource nor a device outside the claim has a result
    assert_eq!(of_claim(&one, &record, &resources[..1]), None);
    assert_eq!(of_claim(&device("other"), &record, &resources), None);
}

#[test]
fn a_device_is_a_rail_for_each_netdev_that_resources_attach_to() {
    let nic = "0000:3b:00.0";
    let tenant = |resource: &str, of: &str, parent: Option<&str>| {
        let mut grant = grant(resource, of, Sharing::Shared, true, &[(nic, 0)]);
        grant.devices[0].parent = parent.map(str::to_owned);
        super::meaning(&id(resource, of), Some(grant), None).expect("a meaning")
    };
    let resource = Resource {
        sharing: Sharing::Shared,
        devices: published::Devices::Every(vec![address(nic)]),
        parents: [(address(nic), "bond0.200".to_owned())].into(),
        limited: false,
        ids: None,
    };
    let published = Published {
        format: published::FORMAT,
        cdi_dir: None,
        boot_id: None,
        resources: [("rdma/tenant-b".to_owned(), resource)].into(),
        chain_names_resources: false,
        physical_functions: BTreeMap::new(),
    };
    let by_file = super::meaning(&id("rdma/tenant-b", "2"), None, Some(&published));
    let meanings = [
        tenant("rdma/tenant-a", "7", Some("bond0.100")),
        tenant("rdma/tenant-b", "1", Some("bond0.200")),
        by_file.expect("a meaning"),
        tenant("rdma/hca", "0", None),
    ];
    let allotments = devices(&meanings, &[function(nic, "mlx5_bond_0")]).expect("devices");
    let seen: Vec<_> = allotments
        .iter()
        .map(|it| (it.parent.as_deref(), it.allocated.ids.len()))
        .collect();
    assert_eq!(
        seen,
        [(Some("bond0.100"), 1), (Some("bond0.200"), 2), (None, 1)]
    );
}
