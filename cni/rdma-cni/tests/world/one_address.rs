// SPDX-License-Identifier: Apache-2.0
//! Tests of pods with one address on two VLANs of a NIC: their GIDs, and the end of one of the pods.

use crate::{
    leases::{Leases, link_of},
    node::{Node, Pod, address, host_change, name},
    tenants::{on_vlan, vlans},
};
use attachments::Store;
use cni_protocol::lock::LockDeadline;
use fake_kernel::{Verdict, World, world::HOST};
use rdma_netns::{Address, GidKind, Kernel as _, LinkChange, NetnsSide, Op};
use serde_json::{Value, json};
use std::{
    fs,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Returns the indexes of the RoCE v2 GIDs of `ip` on the bond's RDMA device.
fn indexes(node: &Node, ip: &str) -> Vec<u32> {
    let ip: IpAddr = ip.parse().unwrap();
    let table = node.kernel.with(|world| world.gids(HOST, "mlx5_bond_0", 1));
    let gids = table.unwrap().gids.into_iter();
    let gids = gids.filter(|gid| gid.kind == GidKind::RoceV2 && gid.address() == ip);
    gids.map(|gid| gid.index).collect()
}

/// Returns the pods `a` on VLAN 100 and `b` on VLAN 200, whose IPAM plugins give one IPv4 address. `a` is attached.
/// The tuples have each pod, and its configuration.
fn with_one_address(leases: &Leases) -> ([(Pod, Value); 2], Value) {
    let node = &leases.node;
    let pods = [("a", 100), ("b", 200)].map(|(name, id)| (node.pod(name), on_vlan(leases, id)));
    leases.gives(
        "rdma0",
        &json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.7.0.2/24" }] }),
    );
    let result = node.add(&pods[0].0, &pods[0].1).must_succeed();
    (pods, result)
}

/// The kernel has a GID for each netdev with an address, and all VLANs of a bond share one table.
#[test]
fn pods_of_two_vlans_with_one_address_get_different_gids() {
    for delay in [0, 12] {
        let leases = Leases::on(Node::with(vlans()));
        let node = &leases.node;
        node.kernel.with(|world| world.gid_delay = delay);
        let ([(first, config), (second, other)], of_first) = with_one_address(&leases);
        let index = indexes(node, "10.7.0.2")[0];
        assert_eq!(of_first["rails"][0]["gidIndex"], index);
        let of_second = node.add(&second, &other).must_succeed();
        let both = indexes(node, "10.7.0.2");
        assert_eq!((both.len(), both[0]), (2, index));
        assert_eq!(of_second["rails"][0]["gidIndex"], both[1]);
        leases.check(&first, &config, &of_first).must_succeed();
        leases.check(&second, &other, &of_second).must_succeed();
        // CHECK does not take the GID of `a` for a lost GID of `b`
        let given = given(node, &second);
        node.kernel.with(|world| world.gid_table_size = both[1]);
        for change in [
            LinkChange::RemoveAddress(given.clone()),
            LinkChange::AddAddress(given),
        ] {
            node.change(Some(&second), &of_pod(change));
        }
        assert_eq!(indexes(node, "10.7.0.2"), [index]);
        let drift = leases.check(&second, &other, &of_second).must_fail(999);
        assert!(drift.contains("GID of 10.7.0.2"), "{drift}");
        leases.check(&first, &config, &of_first).must_succeed();
        for (pod, config) in [(&first, &config), (&second, &other)] {
            node.del(pod, config).must_succeed();
        }
    }
}

#[test]
fn another_pods_gid_does_not_replace_one_that_finds_no_room() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let ([(first, config), (second, other)], result) = with_one_address(&leases);
    let table = node.kernel.with(|world| world.gids(HOST, "mlx5_bond_0", 1));
    let last = table.unwrap().gids.last().map(|gid| gid.index);
    // the link-local address of the second child takes the last entry
    node.kernel
        .with(|world| world.gid_table_size = last.unwrap() + 2);
    let before = node.snapshot();
    let message = node.add(&second, &other).must_fail(106);
    for words in ["no RoCE v2 GID for 10.7.0.2", "table is full"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(before.differences(&node.snapshot()), [] as [&str; 0]);
    leases.check(&first, &config, &result).must_succeed();
}

/// Two ADDs that set one address at once would each see two new GIDs.
#[test]
fn one_add_at_a_time_awaits_the_gid_of_an_address() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let observed = node.kernel.observe(None).unwrap().host.rdma;
    let device = observed.iter().find(|it| it.name == "mlx5_bond_0").unwrap();
    let store = Store::new(&node.state.path().join("state"));
    let address = [(device.index, "10.7.0.2".parse().unwrap())].into();
    let [(first, config), (second, other)] = with_one_address(&leases).0;
    let before = node.snapshot();
    let held = store.lock_gids(&address).unwrap();
    let (code, message) = node.within(Duration::ZERO, "ADD", Some(&second), &other, |node| {
        let error = rdma_cni::verb::add::add(node).err().unwrap();
        (rdma_cni::reply::code(&error), error.to_string())
    });
    assert_eq!(code, 11, "{message}");
    assert!(message.contains("10.7.0.2"), "{message}");
    assert_eq!(before.differences(&node.snapshot()), [] as [&str; 0]);
    drop(held);
    // ADD keeps the lock until the address has its GID
    node.kernel.with(|world| world.gid_delay = 2);
    let waits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&waits);
    node.kernel.meanwhile(move |_| {
        let now = Store::within(store.root(), LockDeadline::until(Instant::now()));
        assert!(now.lock_gids(&address).unwrap_err().is_held());
        counted.fetch_add(1, Ordering::Relaxed);
    });
    node.add(&second, &other).must_succeed();
    assert!(waits.load(Ordering::Relaxed) > 0);
    for (pod, config) in [(&first, &config), (&second, &other)] {
        node.del(pod, config).must_succeed();
    }
    let left = fs::read_dir(node.state.path().join("state/gids")).unwrap();
    assert_eq!(left.count(), 0);
}

/// Returns the change of an address of `rdma0` in a pod.
fn of_pod(change: LinkChange) -> Op {
    Op::Link {
        at: NetnsSide::Pod,
        link: name("rdma0"),
        change,
    }
}

/// Returns the IPv4 address of a pod's child.
fn given(node: &Node, pod: &Pod) -> Address {
    let addresses = link_of(node, pod, "rdma0").addresses;
    addresses.into_iter().find(|it| it.ip.is_ipv4()).unwrap()
}

/// Changes the world before ADD sets the IPv4 address of a child, in the first `tries` tries of ADD.
fn before_the_address(
    node: &Node,
    mut tries: usize,
    mut change: impl FnMut(&mut World) + Send + 'static,
) {
    node.kernel.begin();
    node.kernel.intercept(move |world, step| {
        let is_it = match step.op {
            Op::Link {
                at: NetnsSide::Pod,
                change: LinkChange::AddAddress(it),
                ..
            } => it.ip.is_ipv4(),
            _ => false,
        };
        if is_it && tries > 0 {
            tries -= 1;
            change(world);
        }
        Verdict::Proceed
    });
}

/// The new GID gets the index of the GID that has gone, and looks like it. ADD can have waited long for the node's lock
/// before.
#[test]
fn the_other_gid_goes_while_add_sets_the_address() {
    for waited in [0, 60] {
        let leases = Leases::on(Node::with(vlans()));
        let node = &leases.node;
        let ([(first, _), (second, other)], _) = with_one_address(&leases);
        let (netns, address) = (node.netns(&first), given(node, &first));
        before_the_address(node, 1, move |world| {
            let remove = of_pod(LinkChange::RemoveAddress(address.clone()));
            world.execute(&remove, Some(netns)).unwrap();
            world.pass_seconds(waited);
        });
        let result = node.add(&second, &other).must_succeed();
        let index = result["rails"][0]["gidIndex"].as_u64().unwrap();
        assert_eq!(indexes(node, "10.7.0.2"), [u32::try_from(index).unwrap()]);
        leases.check(&second, &other, &result).must_succeed();
    }
}

/// The GID of a netdev under another name is not the pod's, also when the netdev gets the child's name before the
/// child's own GID is there.
#[test]
fn the_other_netdev_gets_the_childs_name_while_add_sets_the_address() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let ([(first, _), (second, other)], _) = with_one_address(&leases);
    let netns = node.netns(&first);
    let of_first = indexes(node, "10.7.0.2")[0];
    node.kernel.with(|world| world.renames_while_up = true);
    node.change(Some(&first), &of_pod(LinkChange::Rename(name("x0"))));
    before_the_address(node, 1, move |world| {
        let rename = Op::Link {
            at: NetnsSide::Pod,
            link: name("x0"),
            change: LinkChange::Rename(name("rdma0")),
        };
        world.execute(&rename, Some(netns)).unwrap();
        world.gid_delay = 12;
    });
    let result = node.add(&second, &other).must_succeed();
    assert_ne!(
        result["rails"][0]["gidIndex"].as_u64(),
        Some(of_first.into())
    );
    leases.check(&second, &other, &result).must_succeed();
}

/// A pod that removes and sets the address does not stop another pod's ADD permanently.
#[test]
fn the_other_gid_goes_and_comes_in_several_tries_of_add() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let ([(first, _), (second, other)], _) = with_one_address(&leases);
    let (netns, given) = (node.netns(&first), given(node, &first));
    let mut is_set = true;
    before_the_address(node, 3, move |world| {
        let change = match is_set {
            true => LinkChange::RemoveAddress(given.clone()),
            false => LinkChange::AddAddress(given.clone()),
        };
        is_set = !is_set;
        world.execute(&of_pod(change), Some(netns)).unwrap();
    });
    let result = node.add(&second, &other).must_succeed();
    let index = result["rails"][0]["gidIndex"].as_u64().unwrap();
    assert_eq!(indexes(node, "10.7.0.2"), [u32::try_from(index).unwrap()]);
}

/// A failover of the bond removes all GIDs and adds them again. The other GID then has a new index, and the pod's GID
/// is not there yet.
#[test]
fn the_other_gid_gets_another_index_while_add_sets_the_address() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let ([(first, _), (second, other)], _) = with_one_address(&leases);
    let (netns, given) = (node.netns(&first), given(node, &first));
    before_the_address(node, 1, move |world| {
        let remove = of_pod(LinkChange::RemoveAddress(given.clone()));
        world.execute(&remove, Some(netns)).unwrap();
        let between = host_change("bond0", LinkChange::AddAddress(address("10.99.0.1/24")));
        world.execute(&between, None).unwrap();
        let add = of_pod(LinkChange::AddAddress(given.clone()));
        world.execute(&add, Some(netns)).unwrap();
        world.gid_delay = 12;
    });
    let of_first = || indexes(node, "10.7.0.2")[0];
    let result = node.add(&second, &other).must_succeed();
    let own = result["rails"][0]["gidIndex"].as_u64();
    assert_ne!(own, Some(of_first().into()));
    leases.check(&second, &other, &result).must_succeed();
}

#[test]
fn check_sees_a_host_gid_at_the_recorded_index() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let ([(pod, config), _], result) = with_one_address(&leases);
    let (index, given) = (indexes(node, "10.7.0.2")[0], given(node, &pod));
    node.change(
        Some(&pod),
        &of_pod(LinkChange::RemoveAddress(given.clone())),
    );
    let of_host = LinkChange::AddAddress(address("10.7.0.2/24"));
    node.change(None, &host_change("bond0.200", of_host));
    node.change(Some(&pod), &of_pod(LinkChange::AddAddress(given)));
    let both = indexes(node, "10.7.0.2");
    assert_eq!((both.len(), both[0]), (2, index));
    let drift = leases.check(&pod, &config, &result).must_fail(999);
    let words = format!("the GID of 10.7.0.2 has index {} on", both[1]);
    assert!(drift.contains(&words), "{drift}");
}

/// The address of the other pod does not hide that the first pod's namespace has not ended.
#[test]
fn a_namespace_that_is_kept_alive_keeps_its_lease_beside_the_other_pod() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let [(first, config), (second, other)] = with_one_address(&leases).0;
    node.add(&second, &other).must_succeed();
    let process = node.kernel.open_pod(&first.netns).unwrap();
    node.kernel.with(|world| world.unmount(&first.netns));
    let message = node.del(&first, &config).must_fail(107);
    assert!(
        message.contains("10.7.0.2 is still configured"),
        "{message}"
    );
    assert_eq!(leases.held(), ["a@rdma0", "b@rdma0"]);
    drop(process);
    node.del(&first, &config).must_succeed();
    assert_eq!(leases.held(), ["b@rdma0"]);
    node.del(&second, &other).must_succeed();
}

/// The host's address is not one that the ended pod still has.
#[test]
fn an_address_of_the_host_keeps_no_lease() {
    let leases = Leases::on(Node::with(vlans()));
    let node = &leases.node;
    let [(pod, config), _] = with_one_address(&leases).0;
    let of_host = LinkChange::AddAddress(address("10.7.0.2/24"));
    node.change(None, &host_change("bond0.200", of_host));
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.del(&pod, &config).must_succeed();
    assert_eq!(leases.held(), [""; 0]);
}
