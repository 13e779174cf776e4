//! Whose ports are asked for: a port is asked of the device's firmware, and one VF that is sick and
//! answers after a minute must not stop the pods that have others.

use crate::{
    kubelet::Cluster,
    leases::{Leases, bonds},
    node::Node,
};
use rdma_netns::RdmaMode;
use serde_json::{Value, json};

#[test]
fn only_a_pods_own_devices_are_asked() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let before = node.snapshot();
        let selectors = |selectors: Value| json!({ "devices": selectors });
        for (fields, asked) in [
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
                assert_eq!(node.kernel.answered(), asked, "{verb} {fields}");
                if verb == "ADD" {
                    config["prevResult"] = result;
                }
            }
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.must_be(&before, &fields.to_string());
        }
    }
}

/// The RDMA device of a bond is its first port's, whose hardware nobody has named.
#[test]
fn a_bonds_device_is_asked_and_a_plain_nics_is_not() {
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

/// As the eRDMA controller's ids do, without the daemon's word for what they stand for.
#[test]
fn an_id_that_names_an_rdma_device_asks_no_other() {
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

/// A pod that is refused waits for no other pod's device, and lets none wait.
#[test]
fn a_refusal_asks_no_other_device() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.one_rail();
    node.add(&node.pod("a"), &config).must_succeed();
    node.kernel.begin();
    node.add(&node.pod("b"), &config).must_fail(101);
    assert_eq!(node.kernel.answered(), ["mlx5_2"; 0]);
}
