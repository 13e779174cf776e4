// SPDX-License-Identifier: Apache-2.0
//! Tests of the devices that kubelet allocated: selection, order, moved or shared.

use crate::{
    kubelet::{Cluster, Devices, every, record},
    leases::{bonds, has_link, link_of},
    node::{Pod, furnished},
};
use fake_kernel::{Nic, world::HOST};
use integration::kubelet::pod_resources::pod as kubelet_pod;
use rdma_netns::{Kernel, LinkChange, NetnsSide, Op, RdmaMode};
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::fs;

const TWO: [&str; 2] = ["0000:3b:00.2", "0000:d8:00.2"];

/// Returns the parent of the pod's rail `rail`. Returns `None` if the rail is no child.
fn parent(cluster: &Cluster, pod: &Pod, rail: &str) -> Option<String> {
    let lower = link_of(&cluster.node, pod, rail).lower?;
    cluster.node.kernel.with(|world| {
        let links = world.links(HOST);
        let parent = links.iter().find(|link| link.index == lower)?;
        Some(parent.name.to_string())
    })
}

fn side(cluster: &Cluster, rdma: &str) -> Option<rdma_netns::NetnsId> {
    cluster.node.kernel.with(|world| world.place_of_rdma(rdma))
}

#[test]
fn one_shared_id_is_every_rail_of_every_pod() {
    let cluster = Cluster::new(RdmaMode::Shared);
    cluster.publish(
        &[(
            "rdma/hca",
            every(&["0000:d8:00.2", "0000:3b:00.2"], Sharing::Shared),
        )],
        false,
    );
    let config = cluster.config(json!({}));
    let first = cluster.pod("a", &[("rdma/hca", &["17"])]);
    let before = cluster.node.snapshot();
    let result = cluster.add(&first, &config).must_succeed();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
    // the rails are in the order of PCI addresses, and not in the daemon's order
    assert_eq!(parent(&cluster, &first, "rdma0").as_deref(), Some("eth2"));
    assert_eq!(parent(&cluster, &first, "rdma1").as_deref(), Some("eth3"));
    let ids = &record(&cluster, &first)["rails"][0]["allocated"]["ids"];
    assert_eq!(*ids, json!([{ "resource": "rdma/hca", "id": "17" }]));
    assert_eq!(record(&cluster, &first)["pod"], "default/a");

    let second = cluster.pod("b", &[("rdma/hca", &["18"])]);
    cluster.add(&second, &config).must_succeed();
    assert_eq!(parent(&cluster, &second, "rdma1").as_deref(), Some("eth3"));
    for pod in [&first, &second] {
        cluster.del(pod, &config).must_succeed();
        cluster.node.kernel.with(|world| world.unmount(&pod.netns));
    }
    let differences = before.differences(&cluster.node.snapshot());
    let of_pods = |line: &&String| !line.contains("/run/netns/");
    let others: Vec<&String> = differences.iter().filter(of_pods).collect();
    assert!(
        others.iter().all(|line| line.contains("namespace")),
        "{others:#?}"
    );
    assert_eq!(cluster.node.records(), [] as [&str; 0]);
}

#[test]
fn an_exclusive_device_is_moved_and_has_one_pod() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    let first = cluster.pod("a", &[("rdma/vf", &["0000:3b:00.2"])]);
    let before = cluster.node.snapshot();
    cluster.add(&first, &config).must_succeed();
    assert_eq!(side(&cluster, "mlx5_2"), Some(cluster.node.netns(&first)));
    let second = cluster.node.pod("b");
    let same = [("rdma/vf", ["0000:3b:00.2"].as_slice())];
    cluster.kubelet.set_pods(&[
        kubelet_pod("default", "a", &[&same]),
        kubelet_pod("default", "b", &[&same]),
    ]);
    let message = cluster.add(&second, &config).must_fail(101);
    assert!(message.contains("pod default/a"), "{message}");
    cluster.del(&first, &config).must_succeed();
    cluster.del(&second, &config).must_succeed();
    cluster
        .node
        .kernel
        .with(|world| world.unmount(&second.netns));
    cluster.node.must_be(&before, "after both");
}

#[test]
fn all_containers_of_the_pod_count_and_a_device_once() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({ "resources": ["rdma/sf", "rdma/vf"] }));
    let pod = cluster.node.pod("a");
    cluster.kubelet.set_pods(&[kubelet_pod(
        "default",
        "a",
        &[
            &[("rdma/vf", &["0000:d8:00.2"])],
            &[
                ("rdma/vf", &["0000:d8:00.3", "0000:d8:00.2"]),
                ("cpu/other", &["x"]),
            ],
            &[
                ("rdma/sf", &["mlx5_core.sf.4"]),
                ("rdma/vf", &["0000:3b:00.2"]),
            ],
        ],
    )]);
    let result = cluster.add(&pod, &config).must_succeed();
    let rails: Vec<&Value> = result["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["pciID"])
        .collect();
    assert_eq!(
        rails,
        [
            "mlx5_core.sf.4",
            "0000:3b:00.2",
            "0000:d8:00.2",
            "0000:d8:00.3"
        ]
    );
    let mut checked = config.clone();
    checked["prevResult"] = result;
    cluster.run("CHECK", &pod, &checked).must_succeed();
    cluster.del(&pod, &config).must_succeed();
}

/// Kubelet can give a later container the same devices as an init container. Kubelet reports only the init containers
/// that are sidecars.
#[test]
fn an_init_container_and_a_later_one_with_its_id_have_one_rail() {
    let devices: Devices<'_> = &[("rdma/vf", &["0000:d8:00.2"])];
    for containers in [&[devices][..], &[devices, devices]] {
        let cluster = Cluster::new(RdmaMode::Exclusive);
        let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
        let pod = cluster.node.pod("a");
        let known = kubelet_pod("default", "a", containers);
        cluster.kubelet.set_pods(&[known]);
        let result = cluster.add(&pod, &config).must_succeed();
        let rails = result["interfaces"].as_array().unwrap();
        assert_eq!(rails.len(), 1, "{result}");
        assert_eq!(rails[0]["pciID"], "0000:d8:00.2");
        cluster.del(&pod, &config).must_succeed();
    }
}

#[test]
fn the_configured_mode_wins() {
    let cluster = Cluster::new(RdmaMode::Shared);
    cluster.publish(
        &[
            ("rdma/hca", every(&["0000:3b:00.2"], Sharing::Shared)),
            ("rdma/vf", every(&["0000:d8:00.2"], Sharing::Exclusive)),
        ],
        false,
    );
    let devices: [(&str, &[&str]); 2] = [("rdma/hca", &["1"]), ("rdma/vf", &["1"])];
    for (mode, expected) in [
        ("auto", [Some("eth2"), None]),
        ("share", [Some("eth2"), Some("eth3")]),
        ("move", [None, None]),
    ] {
        let config = cluster.config(json!({ "mode": mode, "resources": ["rdma/hca", "rdma/vf"] }));
        let pod = cluster.pod(mode, &devices);
        cluster.add(&pod, &config).must_succeed();
        let parents = ["rdma0", "rdma1"].map(|rail| parent(&cluster, &pod, rail));
        assert_eq!(parents.each_ref().map(Option::as_deref), expected, "{mode}");
        cluster.del(&pod, &config).must_succeed();
    }
}

#[test]
fn an_exclusive_device_that_another_pod_shares_is_in_use() {
    let cluster = Cluster::new(RdmaMode::Shared);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    let by_hand = cluster.config(json!({ "deviceID": "0000:3b:00.2", "mode": "share" }));
    let sharer = cluster.pod("a", &[]);
    cluster.add(&sharer, &by_hand).must_succeed();
    let pod = cluster.pod("b", &[("rdma/vf", &["0000:3b:00.2"])]);
    let message = cluster.add(&pod, &config).must_fail(101);
    assert!(message.contains("pod default/a"), "{message}");
    cluster.del(&sharer, &by_hand).must_succeed();
    cluster.add(&pod, &config).must_succeed();
    cluster.del(&pod, &config).must_succeed();
}

/// An earlier plugin of the chain, such as sriov-cni or host-device, moved the netdev.
#[test]
fn the_rdma_device_of_a_netdev_in_the_pod_follows_it() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    let pod = cluster.pod("a", &[("rdma/vf", &["0000:3b:00.2"])]);
    let name = |text| crate::node::name(text);
    let (link, (from, to)) = (name("eth2"), (NetnsSide::Host, NetnsSide::Pod));
    let op = Op::MoveLink {
        link,
        from,
        to,
        name: name("net1"),
    };
    cluster.node.change(Some(&pod), &op);
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(side(&cluster, "mlx5_2"), Some(cluster.node.netns(&pod)));
    assert!(has_link(&cluster.node, &pod, "net1") && !has_link(&cluster.node, &pod, "rdma0"));
    assert_eq!(
        record(&cluster, &pod)["rails"][0]["allocated"]["ids"][0]["resource"],
        "rdma/vf"
    );
    cluster.del(&pod, &config).must_succeed();
    assert_eq!(side(&cluster, "mlx5_2"), Some(HOST));
}

#[test]
fn a_grant_overrides_the_published_resource() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    cluster.publish(
        &[("rdma/vf", every(&["0000:d8:00.2"], Sharing::Exclusive))],
        false,
    );
    cluster.grant(
        ("rdma/vf", "7"),
        Sharing::Exclusive,
        false,
        &["0000:3b:00.2"],
    );
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    let pod = cluster.pod("a", &[("rdma/vf", &["7"])]);
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(side(&cluster, "mlx5_2"), Some(cluster.node.netns(&pod)));
    cluster.del(&pod, &config).must_succeed();
}

#[test]
fn the_erdma_controllers_ids_name_their_device() {
    let cluster = Cluster::new(RdmaMode::Shared);
    let config = cluster.config(json!({}));
    let pod = cluster.pod("a", &[("aliyun/erdma", &["mlx5_3/17"])]);
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(parent(&cluster, &pod, "rdma0").as_deref(), Some("eth3"));
    cluster.del(&pod, &config).must_succeed();
    let pod = cluster.pod("b", &[("aliyun/erdma", &["erdma_9/0"])]);
    let message = cluster.add(&pod, &config).must_fail(100);
    assert!(
        message.contains("erdma_9") && message.contains("aliyun/erdma"),
        "{message}"
    );
}

#[test]
fn an_allocation_without_device_changes_nothing() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({}));
    let pod = cluster.pod("a", &[("rdma/hca", &["17"])]);
    let before = cluster.node.snapshot();
    let message = cluster.add(&pod, &config).must_fail(100);
    assert!(
        message.contains("rdma/hca") && message.contains("\"17\""),
        "{message}"
    );

    let granted = cluster.state_dir().join("granted/rdma@hca/17.json");
    fs::create_dir_all(granted.parent().unwrap()).unwrap();
    fs::write(&granted, "{ \"resource\": ").unwrap();
    let message = cluster.add(&pod, &config).must_fail(105);
    assert!(message.contains("17.json"), "{message}");
    fs::remove_file(&granted).unwrap();

    let published = cluster.state_dir().join("resources.json");
    fs::write(&published, "{ \"format\": 3, \"resources\": {} }").unwrap();
    let message = cluster.add(&pod, &config).must_fail(105);
    assert!(message.contains("newer"), "{message}");
    fs::write(&published, "[]").unwrap();
    let message = cluster.add(&pod, &config).must_fail(105);
    assert!(message.contains("resources.json"), "{message}");
    cluster.publish(
        &[("rdma/hca", every(&["0000:99:00.0"], Sharing::Exclusive))],
        false,
    );
    let message = cluster.add(&pod, &config).must_fail(100);
    assert!(message.contains("0000:99:00.0"), "{message}");
    cluster.node.must_be(&before, "refused");
}

#[test]
fn a_device_by_name_wins_over_resources() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({ "deviceID": "0000:3b:00.2", "resources": ["rdma/vf"] }));
    let pod = cluster.pod("a", &[("rdma/vf", &[TWO[1]])]);
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(cluster.kubelet.take_requests(), [] as [&str; 0]);
    assert_eq!(side(&cluster, "mlx5_2"), Some(cluster.node.netns(&pod)));
    assert!(record(&cluster, &pod)["rails"][0]["allocated"].is_null());
    cluster.del(&pod, &config).must_succeed();
}

#[test]
fn a_shared_device_that_is_down_is_left_out_while_there_is_another() {
    let cluster = Cluster::new(RdmaMode::Shared);
    cluster.publish(&[("rdma/hca", every(&TWO, Sharing::Shared))], false);
    let config = cluster.config(json!({}));
    let pod = cluster.pod("a", &[("rdma/hca", &["17"])]);
    let down = |link: &str| {
        let op = Op::Link {
            at: NetnsSide::Host,
            link: link.try_into().unwrap(),
            change: LinkChange::Up(false),
        };
        cluster.node.kernel.execute(&op, None).unwrap();
    };
    down("eth2");
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(parent(&cluster, &pod, "rdma0").as_deref(), Some("eth3"));
    assert!(!has_link(&cluster.node, &pod, "rdma1"));
    cluster.del(&pod, &config).must_succeed();
    down("eth3");
    let message = cluster.add(&pod, &config).must_fail(100);
    assert!(message.contains("is down"), "{message}");
}

#[test]
fn a_shared_device_without_a_netdev_to_share_is_used_by_verbs() {
    let mut world = furnished(RdmaMode::Shared);
    world.plug(Nic::infiniband("0000:5e:00.0", "mlx5_ib"));
    let cluster = Cluster::with(world);
    let config = cluster.config(json!({}));
    let devices = ["0000:5e:00.0", "0000:3b:00.2"];
    cluster.publish(&[("rdma/hca", every(&devices, Sharing::Shared))], false);
    let pod = cluster.pod("a", &[("rdma/hca", &["17"])]);
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(parent(&cluster, &pod, "rdma0").as_deref(), Some("eth2"));
    assert!(!has_link(&cluster.node, &pod, "rdma1"));
    cluster.del(&pod, &config).must_succeed();

    cluster.publish(
        &[("rdma/hca", every(&devices[..1], Sharing::Shared))],
        false,
    );
    let before = cluster.node.snapshot();
    let result = cluster.add(&pod, &config).must_succeed();
    assert_eq!(result["interfaces"], Value::Null);
    let mut checked = config.clone();
    checked["prevResult"] = result;
    cluster.run("CHECK", &pod, &checked).must_succeed();
    cluster.del(&pod, &config).must_succeed();
    cluster.node.must_be(&before, "after DEL");
}

/// Kubelet gives a bonded NIC of an exclusive resource to only one pod, but the pod still gets a child of the bond.
#[test]
fn an_exclusive_nic_of_a_bond_is_a_child_and_all_of_its_device() {
    let cluster = Cluster::with(bonds(1));
    cluster.publish(
        &[("rdma/hca", every(&["0000:01:00.0"], Sharing::Exclusive))],
        true,
    );
    let config = cluster.config(json!({}));
    let pod = cluster.pod("a", &[("rdma/hca", &["0000:01:00.0"])]);
    let before = cluster.node.snapshot();
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(parent(&cluster, &pod, "rdma0").as_deref(), Some("bond0"));
    let rdma = &record(&cluster, &pod)["rails"][0]["rdma"]["name"];
    assert!(rdma.is_string(), "{rdma}");
    cluster.del(&pod, &config).must_succeed();
    cluster.node.must_be(&before, "after DEL");
}
