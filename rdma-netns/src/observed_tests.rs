// SPDX-License-Identifier: Apache-2.0
use super::*;
use serde_json::{Value, json};

/// Returns a host with `bond0` over `eth0` and `eth1`, and the bridge `br0` over `eth2`.
fn host(rdma: &[Value]) -> Namespace {
    let link = |index: u32, name: &str, more: Value| {
        let mut link = json!({"index": index, "name": name, "mac": "", "mtu": 1500, "up": true});
        link.as_object_mut()
            .expect("an object")
            .extend(more.as_object().cloned().unwrap_or_default());
        link
    };
    let namespace = json!({
        "id": {"device": 4, "inode": 1, "cookie": 1},
        "links": [
            link(2, "eth0", json!({"parent": "0000:01:00.0", "master": 5})),
            link(3, "eth1", json!({"parent": "0000:01:00.1", "master": 5})),
            link(4, "eth2", json!({"parent": "0000:02:00.0", "master": 6})),
            link(5, "bond0", json!({"kind": "bond"})),
            link(6, "br0", json!({"kind": "bridge"})),
        ],
        "rdma": rdma,
    });
    serde_json::from_value(namespace).expect("a namespace")
}

fn device(name: &str, parent: Option<&str>, netdev: Option<u32>) -> Value {
    json!({
        "name": name, "index": 0, "node_guid": "", "parent": parent,
        "ports": [{"number": 1, "netdev": netdev, "state": 4}],
    })
}

#[track_caller]
fn of(host: &Namespace, link: &str) -> Option<String> {
    let link = host.link(link).expect("a netdev");
    host.rdma_of(link).map(|rdma| rdma.name.clone())
}

#[test]
fn a_bonds_rdma_device_is_found_by_either_netdev_or_its_hardware() {
    for (parent, netdev) in [
        (Some("0000:01:00.0"), Some(5)),
        (Some("0000:09:00.0"), Some(3)),
        (Some("0000:01:00.0"), None),
        (None, Some(2)),
    ] {
        let other = device("mlx5_2", Some("0000:02:00.0"), Some(4));
        let host = host(&[other, device("mlx5_bond_0", parent, netdev)]);
        assert_eq!(of(&host, "bond0").as_deref(), Some("mlx5_bond_0"));
        assert_eq!(of(&host, "eth2").as_deref(), Some("mlx5_2"));
    }
}

#[test]
fn a_bridges_ports_lend_it_nothing() {
    let host = host(&[device("mlx5_2", Some("0000:02:00.0"), Some(4))]);
    assert_eq!(of(&host, "br0"), None);
    assert_eq!(of(&host, "bond0"), None);
    assert_eq!(of(&host, "eth1"), None);
}

/// `erdma_0` belongs to another function than `eth2`. Its GUID derives from the address of `eth2`.
#[test]
fn an_rdma_device_of_another_function_is_found_by_its_guid() {
    let erdma = |guid: &str, netdev: Option<u32>| {
        let mut erdma = device("erdma_0", Some("0000:07:00.0"), netdev);
        erdma["node_guid"] = guid.into();
        let mut host = host(&[erdma]);
        for (link, mac) in [("eth2", "00:16:3e:00:00:01"), ("br0", "00:16:3e:00:00:01")] {
            let found = host.links.iter_mut().find(|it| &*it.name == link);
            found.expect("a netdev").mac = mac.parse().expect("an address");
        }
        host
    };
    let address = DeviceAddress::try_from("0000:07:00.0".to_owned()).expect("an address");
    let links_of = |host: &Namespace| -> Vec<String> {
        let links = host.links_of(&address, host).into_iter();
        links.map(|link| link.name.to_string()).collect()
    };
    let by_guid = erdma("0216:3eff:fe00:0001", None);
    assert_eq!(of(&by_guid, "eth2").as_deref(), Some("erdma_0"));
    // a bridge has its port's address, and no hardware
    assert_eq!(of(&by_guid, "br0"), None);
    assert_eq!(of(&by_guid, "eth0"), None);
    assert_eq!(links_of(&by_guid), ["eth2"]);

    // the netdev is in a pod, and its RDMA device is on the host
    let mut without = by_guid.clone();
    let moved = without.links.remove(2);
    let here = of_any(&without, &moved);
    assert_eq!(here.as_deref(), Some("erdma_0"));
    let pod = Namespace {
        links: vec![moved],
        ..without.clone()
    };
    assert_eq!(pod.links_of(&address, &without).len(), 1);

    // a port that the kernel reports takes precedence over the GUID
    let reported = erdma("0216:3eff:fe00:0001", Some(2));
    assert_eq!(of(&reported, "eth0").as_deref(), Some("erdma_0"));
    assert_eq!(of(&reported, "eth2"), None);
    assert_eq!(links_of(&reported), ["eth0"]);
    assert_eq!(
        links_of(&erdma("0000:0000:0000:0000", None)),
        [] as [&str; 0]
    );
}

/// Mainline's driver sets no parent. The RDMA device gets the function of its netdev, whichever namespaces they are in.
#[test]
fn an_rdma_device_without_a_parent_has_its_netdevs_function() {
    let mut erdma = device("erdma_0", None, None);
    erdma["node_guid"] = "0216:3eff:fe00:0001".into();
    let mut soft = erdma.clone();
    soft["name"] = "rxe0".into();
    let mut both = host(&[soft, erdma]);
    let nic = both.links.iter_mut().find(|it| &*it.name == "eth2");
    nic.expect("a netdev").mac = "00:16:3e:00:00:01".parse().expect("an address");
    let nothing = host(&[]);
    let without_nic = Namespace {
        links: both
            .links
            .iter()
            .filter(|it| &*it.name != "eth2")
            .cloned()
            .collect(),
        ..both.clone()
    };
    let only_nic = Namespace {
        links: both
            .links
            .iter()
            .filter(|it| &*it.name == "eth2")
            .cloned()
            .collect(),
        ..nothing.clone()
    };
    let empty = Namespace {
        links: Vec::new(),
        ..nothing.clone()
    };
    let hardware = BTreeMap::from([("erdma_0".to_owned(), pairing::ERDMA_ID)]);
    for (host, pod, is_paired) in [
        (&both, None, true),
        (&without_nic, Some(&only_nic), true),
        (&empty, Some(&both), true),
        (&only_nic, Some(&without_nic), true),
        (&without_nic, None, false),
        (&empty, None, false),
    ] {
        let devices = json!([
            {"address": "0000:02:00.0", "driver": "virtio-pci"},
            {"address": "0000:06:00.0", "driver": "erdma"},
        ]);
        let mut observed = Observed {
            boot_id: String::new(),
            at: None,
            rdma_mode: Some(RdmaMode::Exclusive),
            devices: serde_json::from_value(devices).expect("devices"),
            inodes: BTreeMap::new(),
            unpaired: vec!["erdma_0".to_owned(), "rxe0".to_owned()],
            vfs: BTreeMap::new(),
            device_settings: vec![],
            api_servers: vec![],
            host: host.clone(),
            pod: pod.cloned(),
        };
        observed.pair(&hardware);
        let left: &[&str] = if is_paired {
            &["rxe0"]
        } else {
            &["erdma_0", "rxe0"]
        };
        assert_eq!(observed.unpaired, left);
        let all = std::iter::once(&observed.host).chain(&observed.pod);
        let parents: Vec<_> = all
            .clone()
            .flat_map(|it| &it.rdma)
            .map(|it| (&*it.name, it.parent.as_deref()))
            .collect();
        let wanted = is_paired.then_some("0000:02:00.0");
        assert!(
            parents
                .iter()
                .all(|it| it.1 == wanted.filter(|_| it.0 == "erdma_0"))
        );
        assert_eq!(observed.devices[0].rdma.len(), usize::from(is_paired));
        let links = all.flat_map(|it| &it.links);
        for nic in links.filter(|it| &*it.name == "eth2") {
            let rdma = [&observed.host].into_iter().chain(&observed.pod);
            let rdma = rdma.flat_map(|it| &it.rdma).find(|it| it.name == "erdma_0");
            let functions = observed.functions_of(nic, rdma).into_iter();
            let drivers: Vec<_> = functions.filter_map(|it| it.driver.as_deref()).collect();
            assert_eq!(drivers, ["virtio-pci", "erdma"]);
        }
        // an RDMA device of another driver, also without a parent: no function of eRDMA has made it
        let mut of_another = Observed {
            devices: serde_json::from_value(json!([
                {"address": "0000:02:00.0", "driver": "virtio-pci"},
                {"address": "0000:06:00.0", "driver": "erdma"},
            ]))
            .expect("devices"),
            unpaired: vec!["erdma_0".to_owned()],
            host: host.clone(),
            pod: pod.cloned(),
            ..observed
        };
        of_another.pair(&BTreeMap::from([("erdma_0".to_owned(), 11)]));
        assert_eq!(of_another.unpaired.is_empty(), is_paired);
        assert_eq!(of_another.devices[0].rdma_functions, []);
    }
}

fn of_any(host: &Namespace, link: &Link) -> Option<String> {
    host.rdma_of(link).map(|rdma| rdma.name.clone())
}

/// A VLAN on a NIC that is a bridge's port also has the NIC's RDMA device, because the VLAN receives frames before the
/// bridge does (`__netif_receive_skb_core()`, `net/core/dev.c`).
#[test]
fn a_vlans_rdma_device_is_that_of_the_netdev_below_it() {
    let bond = device("mlx5_bond_0", Some("0000:01:00.0"), Some(3));
    let nic = device("mlx5_2", Some("0000:02:00.0"), Some(4));
    let mut host = host(&[bond, nic]);
    let mut add = |name: &str, kind: &str, lower: &str| {
        let index = 10 + u32::try_from(host.links.len()).expect("few");
        let below = host.link(lower).expect("a netdev").index;
        let link = json!({
            "index": index, "name": name, "mac": "", "mtu": 1500, "up": true, "kind": kind, "lower": below,
        });
        host.links
            .push(serde_json::from_value(link).expect("a netdev"));
    };
    for (name, kind, lower) in [
        ("bond0.100", "vlan", "bond0"),
        ("bond0.100.7", "vlan", "bond0.100"),
        ("eth2.7", "vlan", "eth2"),
        ("eth0.7", "vlan", "eth0"),
        ("br0.7", "vlan", "br0"),
        ("own0", "macvlan", "eth2"),
    ] {
        add(name, kind, lower);
    }
    assert_eq!(of(&host, "bond0.100").as_deref(), Some("mlx5_bond_0"));
    assert_eq!(of(&host, "eth2.7").as_deref(), Some("mlx5_2"));
    // a VLAN of a VLAN, a VLAN of a bond's port, a VLAN of a netdev without an RDMA device, and a netdev that is no
    // VLAN
    for none in ["bond0.100.7", "eth0.7", "br0.7", "own0"] {
        assert_eq!(of(&host, none), None, "{none}");
    }
    // the index of a lower netdev in another namespace identifies no netdev of the host
    let pods = Link {
        index: 77,
        ..host.link("bond0.100").expect("a netdev").clone()
    };
    assert_eq!(host.rdma_of(&pods), None);
    // a soft-RoCE device on the VLAN itself takes precedence
    let mut own = host.rdma[0].clone();
    own.name = "rxe100".into();
    own.parent = None;
    own.ports[0].netdev = Some(host.link("bond0.100").expect("a netdev").index);
    host.rdma.push(own);
    assert_eq!(of(&host, "bond0.100").as_deref(), Some("rxe100"));
}

#[test]
fn two_things_without_hardware_have_nothing_in_common() {
    let host = host(&[device("rxe0", None, None)]);
    assert_eq!(of(&host, "bond0"), None);
}
