// SPDX-License-Identifier: Apache-2.0
//! Tests of VLANs as parents: selected by their names, or by resources of the daemon, for two tenants of one NIC.

use crate::{
    claims,
    kubelet::{Cluster, every, record},
    leases::{Leases, answer, bonds, has_link, link_of},
    node::{Node, Pod, host_change, name, settle},
};
use fake_kernel::{Verdict, World, world::HOST};
use nix::errno::Errno;
use rdma_netns::{Address, LinkChange, NetnsSide, Op};
use rdma_resources::{Sharing, published::Resource};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The first PCI function of `bond0`.
const NIC: &str = "0000:01:00.0";

/// Returns a world with `bond0` and its VLANs 100 and 200, each with an IPv6 address of its own network.
pub(crate) fn vlans() -> World {
    let mut world = bonds(1);
    for id in [100_u16, 200] {
        world.add_vlan("bond0", id);
        let (at, link) = (NetnsSide::Host, name(&format!("bond0.{id}")));
        let ip = IpAddr::from([0xfd00, id, 0, 0, 0, 0, 0, 1]);
        let address = Address::new(ip, 64);
        for op in [
            Op::Link {
                at,
                link: link.clone(),
                change: LinkChange::Up(true),
            },
            Op::Link {
                at,
                link,
                change: LinkChange::AddAddress(address),
            },
        ] {
            world.execute(&op, None).unwrap();
        }
    }
    settle(&mut world);
    world
}

fn by_name(leases: &Leases) -> Value {
    on_vlan(leases, 100)
}

pub(crate) fn on_vlan(leases: &Leases, id: u16) -> Value {
    leases.config(json!({ "devices": [{ "netdev": format!("bond0.{id}") }] }))
}

fn parent(node: &Node, pod: &Pod, rail: &str) -> Option<String> {
    let lower = link_of(node, pod, rail).lower?;
    node.kernel.with(|world| {
        let links = world.links(HOST);
        let parent = links.iter().find(|link| link.index == lower)?;
        Some(parent.name.to_string())
    })
}

#[test]
fn a_vlan_bears_a_child_whose_gids_are_the_bonds() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = by_name(&leases);
    leases.gives("rdma0", &answer(100, 7));
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(parent(node, &pod, "rdma0").as_deref(), Some("bond0.100"));
    let received = leases.calls().remove(0).config;
    assert_eq!(received["master"], "bond0.100");
    assert!(
        received["masterAddresses"]
            .to_string()
            .contains("fd00:64::1"),
        "{received}"
    );
    let rail = &leases.rails_file("a").expect("a file")["rails"][0];
    assert_eq!(rail["netdev"], "bond0.100");
    assert_eq!(rail["rdmaDevice"], "mlx5_bond_0");
    assert!(rail["gidIndex"].is_u64(), "{rail}");
    leases.check(&pod, &config, &result).must_succeed();
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
}

#[test]
fn any_change_of_add_is_refused() {
    let changes = {
        let leases = Leases::on(Node::with(vlans()));
        let config = by_name(&leases);
        leases
            .node
            .add(&leases.node.pod("a"), &config)
            .must_succeed();
        leases.node.changes()
    };
    for at in 1..=changes {
        let leases = Leases::on(Node::with(vlans()));
        let node = &leases.node;
        let pod = node.pod("a");
        let before = node.snapshot();
        node.script(move |number| match number == at {
            true => Verdict::Refuse(Errno::EIO),
            false => Verdict::Proceed,
        });
        node.add(&pod, &by_name(&leases)).must_fail(106);
        leases.must_be(&before, &format!("change {at}"));
    }
}

/// A move of the NIC would take the pods' children with it.
#[test]
fn a_nic_is_not_moved_away_below_a_vlan_that_a_pod_shares() {
    let mut world = bonds(0);
    world.add_vlan("eth8", 100);
    let up = host_change("eth8.100", LinkChange::Up(true));
    world.execute(&up, None).unwrap();
    settle(&mut world);
    let node = Node::with(world);
    let (first, second) = (node.pod("a"), node.pod("b"));
    let vlan = node.config(json!({ "devices": [{ "netdev": "eth8.100" }] }));
    let nic = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    let before = node.snapshot();
    node.add(&first, &vlan).must_succeed();
    node.add(&second, &nic).must_fail(101);
    assert!(parent(&node, &first, "rdma0").is_some_and(|it| it == "eth8.100"));
    node.del(&first, &vlan).must_succeed();
    node.must_be(&before, "both have ended");
}

#[test]
fn a_vlan_that_is_removed_below_its_pods_fails_no_del() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let (pod, other) = (node.pod("a"), node.pod("b"));
    let config = by_name(&leases);
    let result = node.add(&pod, &config).must_succeed();
    let remove = host_change("bond0.100", LinkChange::Remove);
    node.kernel
        .with(|world| world.execute(&remove, None).unwrap());
    assert!(!has_link(node, &pod, "rdma0"));
    let before = node.snapshot();
    let drift = leases.check(&pod, &config, &result).must_fail(999);
    assert!(
        drift.contains("bond0.100 is neither on the host nor in the pod"),
        "{drift}"
    );
    let refused = node.add(&other, &config).must_fail(100);
    assert!(refused.contains("bond0.100"), "{refused}");
    for _ in 0..2 {
        node.del(&pod, &config).must_succeed();
    }
    assert_eq!(leases.held(), [""; 0]);
    // after its child is removed, the pod has no rules of this child
    let rules = ["10.0.0.7/32", "fd00::7/128"]
        .map(|it| format!("- /run/netns/a: rule from {it} lookup 1000 priority 1000"));
    assert_eq!(before.differences(&node.snapshot()), rules);
}

/// Returns two resources: `rdma/tenant-a` on VLAN 100, `rdma/tenant-b` on VLAN 200.
fn tenants() -> [(&'static str, Resource); 2] {
    let resource = |parent: &str| {
        let mut resource = every(&[NIC], Sharing::Shared);
        let devices = [(crate::kubelet::address(NIC), parent.to_owned())];
        resource.parents = devices.into();
        resource
    };
    [
        ("rdma/tenant-a", resource("bond0.100")),
        ("rdma/tenant-b", resource("bond0.200")),
    ]
}

#[test]
fn two_resources_of_one_nic_are_two_rails() {
    let cluster = Cluster::with(vlans());
    let node = &cluster.node;
    cluster.publish(&tenants(), false);
    let config = cluster.config(json!({ "resources": ["rdma/tenant-a", "rdma/tenant-b"] }));
    let both = [
        ("rdma/tenant-b", ["4"].as_slice()),
        ("rdma/tenant-a", ["17"].as_slice()),
    ];
    let first = cluster.pod("a", &both);
    cluster.add(&first, &config).must_succeed();
    assert_eq!(parent(node, &first, "rdma0").as_deref(), Some("bond0.100"));
    assert_eq!(parent(node, &first, "rdma1").as_deref(), Some("bond0.200"));
    let rails = &record(&cluster, &first)["rails"];
    for (rail, resource) in [(0, "rdma/tenant-a"), (1, "rdma/tenant-b")] {
        assert_eq!(rails[rail]["allocated"]["ids"][0]["resource"], resource);
    }
    let second = cluster.pod("b", &both[..1]);
    cluster.add(&second, &config).must_succeed();
    assert_eq!(parent(node, &second, "rdma0").as_deref(), Some("bond0.200"));
    assert!(!has_link(node, &second, "rdma1"));
    for pod in [&first, &second] {
        cluster.del(pod, &config).must_succeed();
        assert!(!has_link(node, pod, "rdma0"));
    }
    assert_eq!(node.records(), [] as [&str; 0]);
}

/// A claim attaches its pod like an id does: the claim's record names the netdev.
#[test]
fn a_claim_attaches_its_pod_to_its_resources_netdev() {
    for vlan in ["bond0.100", "bond0.200"] {
        let cluster = Cluster::with(vlans());
        let mut nic = claims::granted(NIC, cluster.rdma(&crate::kubelet::address(NIC)));
        nic.parent = Some(vlan.to_owned());
        claims::prepare_nics(&cluster, vec![nic], Sharing::Shared, true);
        let pod = claims::pods(&cluster, &["a"]).remove(0);
        let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
        cluster.add(&pod, &config).must_succeed();
        assert_eq!(parent(&cluster.node, &pod, "rdma0").as_deref(), Some(vlan));
        assert!(claims::given(&cluster).is_some());
        cluster.del(&pod, &config).must_succeed();
    }
}

/// `rdma-cni` does not attach the pod to the bond instead, because the bond is another network.
#[test]
fn a_pod_is_not_attached_elsewhere_than_its_resource_requires() {
    let cluster = Cluster::with(bonds(2));
    cluster
        .node
        .kernel
        .with(|world| world.add_vlan("bond1", 100));
    for (parent, resource) in ["bond0.100", "bond1", "bond1.100"].iter().zip(0..) {
        let mut tenants = tenants();
        let devices = [(crate::kubelet::address(NIC), (*parent).to_owned())];
        tenants[0].1.parents = devices.into();
        cluster.publish(&tenants, false);
        let config = cluster.config(json!({ "resources": ["rdma/tenant-a"] }));
        let pod = cluster.pod(&format!("pod{resource}"), &[("rdma/tenant-a", &["0"])]);
        let before = cluster.node.snapshot();
        let refused = cluster.add(&pod, &config).must_fail(100);
        let words = format!(
            "pods with rdma/tenant-a are attached to {parent}, which on this node is neither bond0 nor a VLAN of bond0"
        );
        assert!(refused.contains(&words), "{refused}");
        cluster.node.must_be(&before, parent);
    }
}

/// The bond stays on the host, because it cannot be moved. Kubelet counts the allocated devices of each resource
/// separately, so it can allocate the bond again as a device of another resource.
#[test]
fn an_exclusive_bond_has_one_pod() {
    for parent in [None, Some("bond0.100")] {
        let cluster = Cluster::with(vlans());
        let mut resource = every(&[NIC], Sharing::Exclusive);
        let devices = parent.map(|it: &str| (crate::kubelet::address(NIC), it.to_owned()));
        let mut other = resource.clone();
        other.parents = devices.into_iter().collect();
        resource.parents = [].into();
        cluster.publish(&[("rdma/old", other), ("rdma/new", resource)], false);
        let config = cluster.config(json!({ "resources": ["rdma/old", "rdma/new"] }));
        let first = cluster.pod("a", &[("rdma/old", &["0"])]);
        cluster.add(&first, &config).must_succeed();
        let second = cluster.pod("b", &[("rdma/new", &["0"])]);
        let before = cluster.node.snapshot();
        let refused = cluster.add(&second, &config).must_fail(101);
        assert!(refused.contains("bond0"), "{refused}");
        assert!(refused.contains("pod default/a"), "{refused}");
        assert_eq!(
            before.differences(&cluster.node.snapshot()),
            [] as [&str; 0]
        );
        cluster.del(&first, &config).must_succeed();
        cluster.add(&second, &config).must_succeed();
        cluster.del(&second, &config).must_succeed();
    }
}
