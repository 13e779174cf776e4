// SPDX-License-Identifier: Apache-2.0
//! Tests of RDMA devices without a netdev: ADD moves the devices that it can move, and reports why the others stay.

use crate::{
    kubelet::{Cluster, every},
    leases::has_link,
    node::{Node, Pod, furnished, name},
};
use fake_kernel::{Nic, World, world::HOST};
use rdma_netns::{NetnsSide, Op, RdmaMode};
use rdma_resources::Sharing;
use serde_json::{Value, json};

const BARE: &str = "0000:5e:00.2";

fn infiniband() -> Nic {
    Nic::infiniband(BARE, "mlx5_9").without_netdev()
}

fn ethernet() -> Nic {
    Nic::virtual_function(BARE, "0000:3b:00.0", "eth9", "mlx5_9").without_netdev()
}

fn with(mode: RdmaMode, nic: Nic) -> World {
    let mut world = furnished(mode);
    world.plug(nic);
    world
}

/// Returns a configuration whose `type` is `of`, after an earlier plugin of the chain that made
/// `eth0`.
fn behind(node: &Node, pod: &Pod, of: &str) -> Value {
    node.config(json!({
        "type": of,
        "deviceID": BARE,
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "eth0", "sandbox": pod.netns }],
        },
    }))
}

#[test]
fn a_drop_in_moves_an_rdma_device_that_has_no_netdev() {
    for nic in [infiniband(), ethernet()] {
        let node = Node::with(with(RdmaMode::Exclusive, nic));
        let side = || node.kernel.with(|world| world.place_of_rdma("mlx5_9"));
        let pod = node.pod("a");
        let before = node.snapshot();
        let config = behind(&node, &pod, "rdma");
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["interfaces"], config["prevResult"]["interfaces"]);
        let rail = json!({
            "ifname": "eth0", "mode": "move", "rdmaDevice": "mlx5_9", "addresses": [],
        });
        assert_eq!(result["rails"], json!([rail]));
        assert_eq!(side(), Some(node.netns(&pod)));
        let other = node.pod("b");
        let message = node
            .add(&other, &behind(&node, &other, "rdma"))
            .must_fail(101);
        assert!(message.contains("container a"), "{message}");
        node.kernel.with(|world| world.unmount(&other.netns));

        let mut checked = config.clone();
        checked["prevResult"] = result;
        node.run("CHECK", Some(&pod), &checked).must_succeed();
        let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
        let device = "mlx5_9".to_owned();
        node.change(Some(&pod), &Op::MoveRdma { device, from, to });
        let drift = node.run("CHECK", Some(&pod), &checked).must_fail(999);
        assert_eq!(drift, "RDMA device mlx5_9 is not in the pod");
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");

        node.add(&pod, &config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        node.del(&pod, &config).must_succeed();
        assert_eq!(side(), Some(HOST));
        assert_eq!(node.records(), [] as [&str; 0]);
    }
}

/// The configuration has a setting of virtual functions, but the device has no netdev.
#[test]
fn a_function_without_a_netdev_is_not_set_up() {
    let node = Node::with(with(RdmaMode::Exclusive, infiniband()));
    let pod = node.pod("a");
    let before = node.snapshot();
    let mut config = behind(&node, &pod, "rdma");
    config["vlan"] = 7.into();
    let refused = node.add(&pod, &config).must_fail(7);
    assert!(
        refused.contains("its RDMA device has no netdev, and rdma-cni sets up only"),
        "{refused}"
    );
    node.must_be(&before, "refused");
}

#[test]
fn the_reason_for_a_missing_netdev_is_reported_and_the_device_is_unused() {
    let cases = [
        (
            ethernet().with_driver(None).without_rdma(),
            "0000:5e:00.2 has no netdev on the host: no driver is bound to it; bind its network driver",
        ),
        (
            ethernet().with_driver(Some("vfio-pci")).without_rdma(),
            "0000:5e:00.2 has no netdev on the host: its driver is vfio-pci, which passes it to a virtual machine or \
             a program; bind its network driver",
        ),
        (
            ethernet(),
            "RDMA device mlx5_9 (0000:5e:00.2) has no netdev on the host: its driver mlx5_core made no netdev; see the \
             kernel's log (dmesg), and check that devlink does not disable the netdev (enable_eth)",
        ),
        (
            infiniband(),
            "RDMA device mlx5_9 (0000:5e:00.2) has no netdev on the host: its InfiniBand port has \
             no IPoIB netdev; load ib_ipoib, or let type \"rdma\" move the RDMA device alone",
        ),
    ];
    for (nic, expected) in cases {
        for mode in [RdmaMode::Shared, RdmaMode::Exclusive] {
            let node = Node::with(with(mode, nic.clone()));
            let pod = node.pod("a");
            let before = node.snapshot();
            let config = behind(&node, &pod, "rdma-cni");
            assert_eq!(node.add(&pod, &config).must_fail(100), expected);
            let message = node.run("STATUS", None, &config).must_fail(50);
            assert!(message.contains(expected), "{message}");
            node.must_be(&before, expected);
        }
    }
}

/// The netdev is neither on the host nor in this pod, and no record names it.
#[test]
fn a_netdev_that_somebody_else_has_is_in_use() {
    let node = Node::new(RdmaMode::Exclusive);
    let (other, pod) = (node.pod("other"), node.pod("a"));
    let (link, name) = (name("eth2"), name("net1"));
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let op = Op::MoveLink {
        link,
        from,
        to,
        name,
    };
    node.change(Some(&other), &op);
    for of in ["rdma-cni", "rdma"] {
        let mut config = behind(&node, &pod, of);
        config["deviceID"] = "0000:3b:00.2".into();
        let message = node.add(&pod, &config).must_fail(101);
        assert!(message.contains("0000:3b:00.2 is in use"), "{message}");
    }
}

#[test]
fn a_shared_ethernet_port_without_netdev_is_an_error_and_infinibands_is_none() {
    for (nic, expected) in [
        (infiniband(), None),
        (
            ethernet(),
            Some(
                "RDMA device mlx5_9 (0000:5e:00.2) has no netdev on the host: an Ethernet port without a netdev has \
                 no GIDs; its driver mlx5_core made no netdev",
            ),
        ),
    ] {
        let cluster = Cluster::with(with(RdmaMode::Shared, nic));
        let config = cluster.config(json!({}));
        let devices = ["0000:3b:00.2", BARE];
        cluster.publish(&[("rdma/hca", every(&devices, Sharing::Shared))], false);
        let pod = cluster.pod("a", &[("rdma/hca", &["17"])]);
        let before = cluster.node.snapshot();
        let answer = cluster.add(&pod, &config);
        match expected {
            None => {
                answer.must_succeed();
                assert!(has_link(&cluster.node, &pod, "rdma0"));
                assert!(!has_link(&cluster.node, &pod, "rdma1"));
            }
            Some(expected) => {
                let message = answer.must_fail(100);
                assert!(message.starts_with(expected), "{message}");
            }
        }
        cluster.del(&pod, &config).must_succeed();
        cluster.node.must_be(&before, "after DEL");
    }
}

/// The daemon published the port as shared, but another program has moved the port's netdev away.
#[test]
fn a_shared_port_whose_netdev_was_moved_is_no_success_without_rails() {
    let cluster = Cluster::new(RdmaMode::Shared);
    let config = cluster.config(json!({}));
    cluster.publish(
        &[("rdma/hca", every(&["0000:3b:00.2"], Sharing::Shared))],
        false,
    );
    let other = cluster.node.pod("other");
    let (link, net1) = (name("eth2"), name("net1"));
    let moved = |link, from, to, name| Op::MoveLink {
        link,
        from,
        to,
        name,
    };
    let away = moved(link.clone(), NetnsSide::Host, NetnsSide::Pod, net1.clone());
    cluster.node.change(Some(&other), &away);
    let pod = cluster.pod("a", &[("rdma/hca", &["17"])]);
    let message = cluster.add(&pod, &config).must_fail(100);
    assert!(
        message.contains("in another network namespace"),
        "{message}"
    );
    // an earlier plugin of the chain has moved the netdev into this pod
    let back = moved(net1.clone(), NetnsSide::Pod, NetnsSide::Host, link.clone());
    cluster.node.change(Some(&other), &back);
    let here = moved(link, NetnsSide::Host, NetnsSide::Pod, net1);
    cluster.node.change(Some(&pod), &here);
    let result = cluster.add(&pod, &config).must_succeed();
    assert_eq!(result["rails"][0]["interface"], "net1", "{result}");
}
