// SPDX-License-Identifier: Apache-2.0
//! Tests of IPoIB: children of a shared netdev in partitions, and send modes that a move keeps.

use crate::{
    kubelet::{Cluster, every},
    leases::{Leases, has_link, link_of},
    node::{Answer, Node, Pod, host_change, name, settle},
};
use fake_kernel::{Nic, World, world::HOST};
use rdma_netns::{
    Child, InterfaceName, IpoibMode,
    IpoibMode::{Connected, Datagram},
    Link, LinkChange, NetnsSide, Op, Pkey, RdmaMode,
};
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::fs;

pub(crate) const PORT: &str = "0000:5e:00.0";
const PKEY: Pkey = Pkey(0x8001);

/// Returns a world with a port in two partitions, and with `eth8`. The port's netdev `ib0` is up and has the send mode
/// `mode`.
pub(crate) fn world(rdma: RdmaMode, mode: IpoibMode) -> World {
    let mut world = World::new(Some(rdma));
    world.plug(Nic::infiniband(PORT, "mlx5_0"));
    world.plug(Nic::physical("0000:3b:00.0", "eth8", "mlx5_8"));
    world.set_partitions("mlx5_0", &[Pkey(0xffff), Pkey(0x0001)]);
    let (at, link) = (NetnsSide::Host, name("ib0"));
    for op in [
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::IpoibMode(mode),
        },
        up("eth8"),
        up("ib0"),
    ] {
        world
            .execute(&op, None)
            .unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }
    settle(&mut world);
    world
}

fn up(link: &str) -> Op {
    host_change(link, LinkChange::Up(true))
}

/// Returns a node with an IPAM plugin, and a configuration that makes a child of `ib0` and has the additional `fields`.
pub(crate) fn shared(mode: IpoibMode, fields: Value) -> (Leases, Value) {
    let leases = Leases::on(Node::with(world(RdmaMode::Shared, mode)));
    let mut config = leases.config(json!({ "devices": [{ "netdev": "ib0" }], "mode": "share" }));
    for (key, value) in fields.as_object().unwrap() {
        config[key] = value.clone();
    }
    (leases, config)
}

fn check(node: &Node, pod: &Pod, config: &Value, result: &Value) -> Answer {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    node.run("CHECK", Some(pod), &config)
}

fn on_host(node: &Node) -> Vec<InterfaceName> {
    node.kernel.with(|world| {
        let links = world.links(HOST).into_iter();
        links.map(|it| it.name.clone()).collect()
    })
}

/// Returns the host's netdevs that are children (macvlan, ipvlan or IPoIB).
pub(crate) fn children_on_host(node: &Node) -> Vec<InterfaceName> {
    node.kernel.with(|world| {
        let links = world.links(HOST).into_iter();
        let children = links.filter(|it| it.child.is_some());
        children.map(|it| it.name.clone()).collect()
    })
}

#[test]
fn a_pod_gets_a_child_in_a_partition() {
    let ipoib = |mode| json!({ "type": "ipoib", "mode": mode });
    let own = Pkey(0xffff);
    for (of_parent, fields, (pkey, mode), mtu) in [
        (Datagram, json!({}), (own, Datagram), 2044),
        (Connected, json!({}), (own, Connected), 65520),
        (Connected, json!({ "mtu": 9000 }), (own, Connected), 9000),
        (
            Datagram,
            json!({ "pkey": "0x8001" }),
            (PKEY, Datagram),
            2044,
        ),
        (
            Datagram,
            json!({ "pkey": "0x1", "mtu": 1500 }),
            (PKEY, Datagram),
            1500,
        ),
        (
            Connected,
            json!({ "child": ipoib("datagram") }),
            (own, Datagram),
            2044,
        ),
        (
            Datagram,
            json!({ "child": ipoib("connected"), "pkey": "0x8001" }),
            (PKEY, Connected),
            65520,
        ),
    ] {
        let what = format!("{of_parent:?} {fields}");
        let (leases, config) = shared(of_parent, fields);
        let node = &leases.node;
        let pod = node.pod("a");
        let before = node.snapshot();
        let result = node.add(&pod, &config).must_succeed();
        let link = link_of(node, &pod, "rdma0");
        assert_eq!(link.child, Some(Child::Ipoib { pkey, mode }), "{what}");
        assert_eq!(
            (link.mtu, link.up, link.carrier),
            (mtu, true, true),
            "{what}"
        );
        let [rail] = &result["rails"].as_array().unwrap()[..] else {
            panic!("{what}: {result}");
        };
        assert_eq!(
            (&rail["netdev"], &rail["mode"]),
            (&json!("ib0"), &json!("share"))
        );
        assert_eq!(rail["rdmaDevice"], "mlx5_0");
        assert_eq!((&rail["port"], &rail["gidIndex"]), (&json!(1), &json!(0)));
        assert_eq!(result["interfaces"][0]["mac"], link.mac.to_string());
        assert_eq!(on_host(node), ["lo", "ib0", "eth8"].map(name), "{what}");
        leases.check(&pod, &config, &result).must_succeed();
        for _ in 0..2 {
            node.del(&pod, &config).must_succeed();
            leases.must_be(&before, &what);
        }
    }
}

/// The kernel makes several children in one partition. Each has its own queue pair.
#[test]
fn pods_share_a_port() {
    let (leases, config) = shared(Datagram, json!({ "pkey": "0x8001" }));
    let node = &leases.node;
    let before = node.snapshot();
    let pods: Vec<Pod> = (0..5).map(|n| node.pod(&format!("pod{n}"))).collect();
    let add = |pod| {
        node.add(pod, &config).must_succeed();
        link_of(node, pod, "rdma0").mac.to_string()
    };
    let mut addresses: Vec<String> = pods.iter().map(add).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), pods.len());
    for pod in &pods {
        node.del(pod, &config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    leases.must_be(&before, "after DEL");
}

#[test]
fn a_record_names_the_child() {
    let (leases, config) = shared(Datagram, json!({ "pkey": "0x8001" }));
    let pod = leases.node.pod("a");
    leases.node.add(&pod, &config).must_succeed();
    let record = fs::read(leases.node.record_of(&pod)).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let child = &record["rails"][0]["shared"]["child"];
    assert_eq!(
        *child,
        json!({ "type": "ipoib", "mode": "datagram", "pkey": "0x8001" })
    );
}

#[test]
fn an_impossible_ipoib_child_is_refused() {
    let (leases, config) = shared(Datagram, json!({}));
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let with = |fields: Value| {
        let mut config = config.clone();
        for (key, value) in fields.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    let ethernet = json!([{ "netdev": "eth8" }]);
    for (fields, code, expected) in [
        (
            json!({ "child": { "type": "macvlan" } }),
            102,
            "ib0 cannot be shared: macvlan and ipvlan need Ethernet; leave child out, or set child.type to \"ipoib\"",
        ),
        (
            json!({ "child": { "type": "ipoib" }, "devices": ethernet }),
            102,
            "eth8 cannot be shared: child.type \"ipoib\" needs InfiniBand; leave child out for a macvlan",
        ),
        (
            json!({ "pkey": "0x8001", "devices": ethernet }),
            7,
            "pkey: eth8 cannot have these settings: the netdev is not InfiniBand, so it has no partitions",
        ),
        (
            json!({ "pkey": "0x8002" }),
            7,
            "pkey: port 1 of mlx5_0, the device of ib0, is not in partition 0x8002 (its P_Keys are 0xffff, 0x0001); have \
             the subnet manager add the port",
        ),
    ] {
        let message = node.add(&pod, &with(fields)).must_fail(code);
        assert!(message.contains(expected), "{message}");
        leases.must_be(&before, expected);
    }
    node.kernel.with(|world| world.accelerate_ipoib("mlx5_0"));
    let connected = json!({ "child": { "type": "ipoib", "mode": "connected" } });
    let message = node.add(&pod, &with(connected)).must_fail(102);
    let expected = "its queue pair accepts no connections, as with mlx5's IPoIB netdevs; set child.mode to \
                    \"datagram\"";
    assert!(message.contains(expected), "{message}");
    let child = Op::AddChild {
        at: NetnsSide::Host,
        parent: name("ib0"),
        child: Child::Ipoib {
            pkey: PKEY,
            mode: Datagram,
        },
        name: name("ib0.8001"),
        mtu: 2044,
    };
    node.change(None, &child);
    let of_child = json!({ "devices": [{ "netdev": "ib0.8001" }], "requireRdma": false });
    let message = node.add(&pod, &with(of_child)).must_fail(102);
    let expected = "it is an IPoIB child itself; share its lower netdev";
    assert!(message.contains(expected), "{message}");
}

/// By default, a pod on InfiniBand gets only the character device.
#[test]
fn kubelets_shared_devices_have_children_where_they_are_requested() {
    let cluster = Cluster::with(world(RdmaMode::Shared, Datagram));
    cluster.publish(&[("rdma/hca", every(&[PORT], Sharing::Shared))], false);
    for (fields, has_child) in [
        (json!({}), false),
        (json!({ "child": { "type": "macvlan" } }), false),
        (json!({ "child": { "type": "ipoib" } }), true),
        (json!({ "pkey": "0x8001" }), true),
        (json!({ "mode": "share" }), true),
        (
            json!({ "mode": "share", "child": { "type": "macvlan" } }),
            false,
        ),
    ] {
        let config = cluster.config(fields.clone());
        let pod = cluster.pod("a", &[("rdma/hca", &["1"])]);
        let before = cluster.node.snapshot();
        cluster.add(&pod, &config).must_succeed();
        assert_eq!(
            has_link(&cluster.node, &pod, "rdma0"),
            has_child,
            "{fields}"
        );
        cluster.del(&pod, &config).must_succeed();
        cluster.node.must_be(&before, &fields.to_string());
        cluster.node.kernel.with(|world| world.unmount(&pod.netns));
    }
}

fn changed(node: &Node, pod: &Pod, op: Op) {
    node.change(Some(pod), &op);
}

#[test]
fn check_reports_the_state_of_a_child() {
    let (leases, config) = shared(Datagram, json!({}));
    let node = &leases.node;
    let pod = node.pod("a");
    let result = node.add(&pod, &config).must_succeed();
    let (at, link) = (NetnsSide::Pod, name("rdma0"));
    let drift = || check(node, &pod, &config, &result).must_fail(999);
    changed(node, &pod, mode(at, "rdma0", Connected));
    let message = drift();
    assert!(
        message.contains("IPoIB of rdma0 is not in datagram mode"),
        "{message}"
    );
    changed(node, &pod, mode(at, "rdma0", Datagram));
    // the kernel sets a child down with its parent, and removes the child's addresses
    let down = |up| host_change("ib0", LinkChange::Up(up));
    node.change(None, &down(false));
    let message = drift();
    assert!(message.contains("ib0 is down"), "{message}");
    node.change(None, &down(true));
    changed(
        node,
        &pod,
        Op::Link {
            at,
            link,
            change: LinkChange::Remove,
        },
    );
    let message = drift();
    assert!(
        message.contains("the pod's child of ib0 is missing"),
        "{message}"
    );
}

fn mode(at: NetnsSide, link: &str, mode: IpoibMode) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::IpoibMode(mode),
    }
}

/// When the RDMA device moves, the kernel makes a new netdev in datagram mode.
#[test]
fn a_move_keeps_the_mode_both_ways() {
    for rdma in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::with(world(rdma, Connected));
        let (at, link) = (NetnsSide::Host, name("ib0"));
        for op in [
            Op::Link {
                at,
                link: link.clone(),
                change: LinkChange::Mtu(32000),
            },
            Op::Link {
                at,
                link,
                change: LinkChange::Umcast(true),
            },
        ] {
            node.change(None, &op);
        }
        let pod = node.pod("a");
        let before = node.snapshot().without_numbers();
        let config = node.config(json!({ "deviceID": PORT, "mode": "move" }));
        let result = node.add(&pod, &config).must_succeed();
        let as_set = |link: &Link| {
            let ipoib = link.ipoib.unwrap();
            (ipoib.mode, ipoib.umcast, link.mtu)
        };
        assert_eq!(result["rails"][0]["gidIndex"], 0, "{rdma}");
        let in_pod = link_of(&node, &pod, "rdma0");
        assert_eq!(as_set(&in_pod), (Connected, true, 32000), "{rdma}");
        check(&node, &pod, &config, &result).must_succeed();
        changed(&node, &pod, mode(NetnsSide::Pod, "rdma0", Datagram));
        let message = check(&node, &pod, &config, &result).must_fail(999);
        assert!(
            message.contains("IPoIB of rdma0 is not in connected mode"),
            "{message}"
        );
        node.del(&pod, &config).must_succeed();
        let after = node.snapshot().without_numbers();
        assert_eq!(before.differences(&after), [] as [&str; 0], "{rdma}");
    }
}

/// When the RDMA device moves, the kernel makes a new netdev: since Linux 6.17 in the pod, before 6.17 on the host,
/// where udev renames it. In `lab_mlx5_ib`, udev renamed the netdev between ADD's observation and its move.
#[test]
fn a_netdev_that_udev_renames_meanwhile_is_moved() {
    let ports = [PORT, "0000:5f:00.0", "0000:60:00.0", "0000:61:00.0"];
    for (udev, follows) in (0..8).flat_map(|udev| [(udev, false), (udev, true)]) {
        let mut world = World::new(Some(RdmaMode::Exclusive));
        for (number, port) in ports.into_iter().enumerate() {
            world.plug(Nic::infiniband(port, &format!("mlx5_{number}")));
            let netdev = format!("ibp{number}s0");
            let named = world.name_by_udev(port, name(&netdev));
            named.unwrap_or_else(|refusal| panic!("{refusal}"));
            let set = world.execute(&up(&netdev), None);
            set.unwrap_or_else(|refusal| panic!("{refusal}"));
        }
        settle(&mut world);
        (world.udev, world.ipoib_follows_rdma) = (udev, follows);
        let node = Node::with(world);
        let pod = node.pod("a");
        let before = node.snapshot().without_numbers();
        let devices = ports.map(|port| json!({ "pci": port }));
        let config = node.config(json!({ "devices": devices, "mode": "move" }));
        node.add(&pod, &config).must_succeed();
        for rail in ["rdma0", "rdma1", "rdma2", "rdma3"] {
            assert!(has_link(&node, &pod, rail), "{rail}: {udev} {follows}");
        }
        node.del(&pod, &config).must_succeed();
        assert_eq!(
            node.snapshot().without_numbers(),
            before,
            "{udev} {follows}"
        );
    }
}
