//! Whose ports are asked for: a port is asked of the device's firmware, and one VF that is sick and
//! answers after a minute must not stop the pods that have others.

use crate::{
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
