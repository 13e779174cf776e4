// SPDX-License-Identifier: Apache-2.0
//! Tests which devices' ports ADD queries. A query reaches the device's firmware. One faulty VF that responds after a
//! minute must not delay pods that use other devices.

use crate::{
    kubelet::Cluster,
    leases::{Leases, bonds},
    node::Node,
    wrapped::Wrapped,
};
use fake_kernel::{Nic, World};
use rdma_netns::RdmaMode;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

#[test]
fn only_a_pods_own_devices_are_queried() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let before = node.snapshot();
        let selectors = |selectors: Value| json!({ "devices": selectors });
        for (fields, expected) in [
            (json!({ "deviceID": "0000:3b:00.2" }), &["mlx5_2"][..]),
            (selectors(json!([{ "netdev": "eth2" }])), &["mlx5_2"]),
            (selectors(json!([{ "rdma": "mlx5_2" }])), &["mlx5_2"]),
            (selectors(json!([{ "pci": "0000:3b:00.2" }])), &["mlx5_2"]),
            (
                selectors(json!([{ "netdev": "eth[23]" }])),
                &["mlx5_2", "mlx5_3"],
            ),
        ] {
            let pod = node.pod("a");
            let mut config = node.config(fields.clone());
            for verb in ["ADD", "CHECK", "DEL"] {
                node.kernel.begin();
                let result = node.run(verb, Some(&pod), &config).must_succeed();
                assert_eq!(node.kernel.answered(), expected, "{verb} {fields}");
                if verb == "ADD" {
                    config["prevResult"] = result;
                }
            }
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.must_be(&before, &fields.to_string());
        }
    }
}

/// The configuration names the bond, and not the hardware of the bond's RDMA device.
#[test]
fn a_bonds_device_is_queried_and_a_plain_nics_is_not() {
    let leases = Leases::on(Node::with(bonds(2)));
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({ "devices": [{ "netdev": "bond0" }] }));
    node.kernel.begin();
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(node.kernel.answered(), ["mlx5_bond_0"]);
    assert!(result["rails"][0]["gidIndex"].is_number(), "{result}");
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.kernel.answered(), ["mlx5_bond_0"]);
}

/// An id of the eRDMA controller names an RDMA device. The daemon has not published this id.
#[test]
fn an_id_that_names_an_rdma_device_queries_no_other() {
    let cluster = Cluster::new(RdmaMode::Shared);
    let config = cluster.config(json!({}));
    let kernel = &cluster.node.kernel;
    let pod = cluster.pod("a", &[("aliyun/erdma", &["mlx5_3/17"])]);
    kernel.begin();
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(kernel.answered(), ["mlx5_3"]);
    let pod = cluster.pod("b", &[("aliyun/erdma", &["erdma_9/0"])]);
    kernel.begin();
    cluster.add(&pod, &config).must_fail(100);
    assert_eq!(kernel.answered(), [""; 0]);
}

/// This ADD fails with 101 before it queries a device, so it does not wait for the device of the other pod.
#[test]
fn a_refusal_queries_no_other_device() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.one_rail();
    node.add(&node.pod("a"), &config).must_succeed();
    node.kernel.begin();
    node.add(&node.pod("b"), &config).must_fail(101);
    assert_eq!(node.kernel.answered(), ["mlx5_2"; 0]);
}

/// A NIC that is in another pod and has no RDMA device is not visible on the host. ADD determines the NIC's driver from
/// the recorded PCI function.
#[test]
fn another_pods_device_is_identified_by_its_driver() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    for (address, link) in [("0000:3b:00.0", "eth0"), ("0000:3b:00.1", "eth1")] {
        world.plug(Nic::physical(address, link, "none").without_rdma());
    }
    let node = Node::with(world);
    let of = |selector: Value| node.config(json!({ "devices": [selector], "requireRdma": false }));
    let (held, patterns) = (
        of(json!({ "netdev": "eth0" })),
        [
            json!({ "driver": "mlx5_core" }),
            json!({ "vendor": "15b3" }),
        ],
    );
    node.add(&node.pod("a"), &held).must_succeed();
    for pattern in patterns {
        let message = node.add(&node.pod("b"), &of(pattern)).must_fail(101);
        assert!(message.contains("eth0"), "{message}");
    }
}

/// B200 nodes have more InfiniBand RDMA devices than rails, because some devices only manage NVLink.
#[test]
fn an_nvlink_management_device_matches_no_pattern() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::infiniband("0000:1a:00.0", "mlx5_0"));
    world.plug(Nic::nvlink_manager("0000:05:00.0", "mlx5_1"));
    let node = Node::with(world);
    let of = |selector: Value| node.config(json!({ "devices": [selector] }));
    let rails = |selector: Value| {
        let (pod, config) = (node.pod("a"), of(selector));
        node.run("STATUS", None, &config).must_succeed();
        let result = node.add(&pod, &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        let rails = result["rails"].as_array().expect("rails").clone();
        let names = rails.iter().map(|rail| rail["rdmaDevice"].clone());
        names.collect::<Vec<Value>>()
    };
    assert_eq!(rails(json!({ "driver": "mlx5_core" })), ["mlx5_0"]);
    assert_eq!(rails(json!({ "netdev": "ib*" })), ["mlx5_0"]);
    // a literal name selects even the NVLink management device
    assert_eq!(rails(json!({ "netdev": "ib1" })), ["mlx5_1"]);
    let none = of(json!({ "netdev": "ib[1-9]" }));
    let why = "ib1: it manages NVLink's switches (SW_MNG), and is no network device";
    let pod = node.pod("b");
    for refused in [
        node.add(&pod, &none).must_fail(100),
        node.run("STATUS", None, &none).must_fail(50),
    ] {
        assert!(refused.contains(why), "{refused}");
    }
}

/// Only ports show whether the netdev has an RDMA device. If ADD held the node's lock during the query, all pods of the
/// node would wait for the slowest port.
#[test]
fn other_pods_do_not_wait_where_all_ports_are_queried() {
    let node = Node::new(RdmaMode::Exclusive);
    let lock = Some(node.state.path().join("state/lock"));
    let pod = node.pod("a");
    let by_port = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
    let kernel = Wrapped {
        busless: true,
        lock: lock.clone(),
        ..Wrapped::new(&node)
    };
    let queries = |kernel: &Wrapped<'_>| kernel.all.load(Ordering::Relaxed);
    let result = kernel.run(&node, "ADD", Some(&pod), &by_port);
    let result = result.must_succeed();
    assert_eq!(result["rails"][0]["rdmaDevice"], "mlx5_2");
    assert_eq!(queries(&kernel), 1);
    kernel
        .run(&node, "DEL", Some(&pod), &by_port)
        .must_succeed();
    assert_eq!(queries(&kernel), 1);
    let kernel = Wrapped {
        lock,
        ..Wrapped::new(&node)
    };
    let gone = node.config(json!({ "deviceID": "0000:99:00.0" }));
    kernel.run(&node, "ADD", Some(&pod), &gone).must_fail(100);
    assert_eq!(queries(&kernel), 1);
    assert_eq!(node.records(), [""; 0]);
}

/// The node's lock is free during the query, so another pod may take the device.
#[test]
fn the_pod_that_took_a_device_while_ports_were_queried_is_named() {
    let node = Node::new(RdmaMode::Exclusive);
    let [first, second] = ["a", "b"].map(|name| node.pod(name));
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
    let kernel = Wrapped {
        busless: true,
        meanwhile: Box::new(|| {
            node.add(&second, &config).must_succeed();
        }),
        ..Wrapped::new(&node)
    };
    let refused = kernel.run(&node, "ADD", Some(&first), &config);
    let refused = refused.must_fail(101);
    assert!(refused.contains(&second.container), "{refused}");
    assert!(node.record_of(&second).exists() && !node.record_of(&first).exists());
}
