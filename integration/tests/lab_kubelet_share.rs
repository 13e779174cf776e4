// SPDX-License-Identifier: Apache-2.0
//! In the lab, the health of shared devices: `integration/lab/vm --tier full --shared`, one test at a time. The node
//! has bonds on its NICs. `lab_pods_share` tests the pods.

use integration::{
    BondedNics,
    kubelet::{AllocationRequest, node::Node},
    lab::{NICS, REPORT_LIMIT, uverbs},
    wait,
};
use std::fs;

struct Scene {
    nics: BondedNics,
    node: Node,
}

impl Scene {
    fn new(configuration: &str) -> Self {
        let nics = BondedNics::new();
        let node = Node::start(configuration);
        Self { nics, node }
    }

    fn healthy(&self) -> usize {
        let known = self.node.kubelet.resource("rdma/hca");
        known.map_or(0, |it| it.healthy().len())
    }
}

#[test]
fn a_rail_that_goes_down_is_reported_within_a_second_and_its_return_within_another() {
    let scene = Scene::new(
        r#"{"resources": [{"name": "rdma/hca", "kind": "shared", "count": 100, "allocate": "numa"}]}"#,
    );
    let kubelet = &scene.node.kubelet;
    let known = kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 100);
    // each id belongs to one NIC and has this NIC's NUMA node
    for node in [0, 1] {
        let on_node = known.devices.iter().filter(|it| {
            let nodes = it.topology.iter().flat_map(|it| &it.nodes);
            nodes.map(|it| it.id).eq([node])
        });
        assert_eq!(on_node.count(), 50);
    }
    let aligned = scene
        .node
        .allocate(&AllocationRequest::new("aligned", "main", "rdma/hca", 1).on_numa_node(1));
    let paths: Vec<&str> = aligned
        .given
        .devices
        .iter()
        .map(|it| &*it.host_path)
        .collect();
    assert!(paths.contains(&&*format!("/dev/infiniband/{}", uverbs("mlx5_bond_1").0)));
    assert!(!paths.contains(&&*format!("/dev/infiniband/{}", uverbs("mlx5_bond_0").0)));

    scene
        .nics
        .host
        .ip(&format!("link set dev {} down", NICS[0]));
    wait::until("the bond has lost its carrier", || {
        fs::read_to_string("/sys/class/net/bond0/carrier").is_ok_and(|it| it.trim() == "0")
    });
    let is_reported = kubelet.within(REPORT_LIMIT, "rdma/hca", |it| {
        it.is_some_and(|it| it.healthy().len() == 50)
    });
    assert!(is_reported, "{} healthy", scene.healthy());
    scene.nics.host.ip(&format!("link set dev {} up", NICS[0]));
    wait::until("the bond has its carrier again", || {
        fs::read_to_string("/sys/class/net/bond0/carrier").is_ok_and(|it| it.trim() == "1")
    });
    let is_reported = kubelet.within(REPORT_LIMIT, "rdma/hca", |it| {
        it.is_some_and(|it| it.healthy().len() == 100)
    });
    assert!(is_reported, "{} healthy", scene.healthy());
}
