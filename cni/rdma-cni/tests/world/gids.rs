// SPDX-License-Identifier: Apache-2.0
//! Tests of GIDs: ADD waits until RDMA can use every address, and reports the index of each GID.

use crate::{
    leases::{Leases, answer, bonds, link_of, run_named},
    node::{Node, address},
};
use nix::sys::stat::{Mode, umask};
use rdma_netns::{Kernel as _, LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

/// Returns the rails of the pod `a` from its rails file.
fn of_file(leases: &Leases) -> Value {
    leases.rails_file("a").expect("the pod's file")["rails"].clone()
}

fn index_of(node: &Node, device: &str, ip: &str) -> Option<u32> {
    let table = node
        .kernel
        .with(|world| world.gids(fake_kernel::world::HOST, device, 1));
    let ip = ip.parse().unwrap();
    let table = table?;
    let mut all = table.all(ip, rdma_netns::GidKind::RoceV2);
    all.next().map(|gid| gid.index)
}

#[test]
fn every_rail_is_reported_with_its_index() {
    for v1 in [false, true] {
        let leases = Leases::new(2);
        let node = &leases.node;
        node.kernel.with(|world| world.gids_of_roce_v1 = v1);
        let pod = node.pod("a");
        let result = node.add(&pod, &leases.config(json!({}))).must_succeed();
        assert_eq!(result["rails"], of_file(&leases));
        for rail in [0, 1] {
            let fields = &result["rails"][rail];
            let device = format!("mlx5_bond_{rail}");
            let (ip4, ip6) = (format!("10.{rail}.0.7"), ["fd00::7", "fd00:1::7"][rail]);
            let indices = [&*ip4, ip6].map(|ip| index_of(node, &device, ip).unwrap());
            assert_eq!(fields["interface"], format!("rdma{rail}"));
            assert_eq!(fields["netdev"], format!("bond{rail}"));
            assert_eq!(
                (&fields["mode"], &fields["rdmaDevice"]),
                (&json!("share"), &json!(device))
            );
            let of = |ip: &str, gid: &str, index| json!({ "address": ip, "gid": gid, "port": 1, "index": index });
            let mut gids = fields["gids"].as_array().unwrap().clone();
            gids.sort_by_key(|gid| gid["index"].as_u64());
            assert_eq!(fields["gidIndex"], fields["gids"][0]["index"]);
            // with RoCE v1, each address's RoCE v1 GID directly precedes its RoCE v2 GID, so the indexes of the two
            // RoCE v2 GIDs differ by 2
            assert_eq!(v1, indices[1] - indices[0] == 2, "{indices:?}");
            let mapped = format!("::ffff:{ip4}");
            let mut wanted = [of(&ip4, &mapped, indices[0]), of(ip6, ip6, indices[1])];
            wanted.sort_by_key(|gid| gid["index"].as_u64());
            assert_eq!(gids, wanted);
        }
    }
}

#[test]
fn a_moved_netdev_has_a_file_too() {
    let node = Node::new(RdmaMode::Exclusive);
    let leases = Leases::on(node);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let result = node.add(&pod, &node.two_rails()).must_succeed();
    assert_eq!(result["rails"], of_file(&leases));
    for (rail, fields) in [0, 1].into_iter().zip(result["rails"].as_array().unwrap()) {
        assert_eq!(fields["mode"], "move");
        assert_eq!(fields["netdev"], format!("eth{}", rail + 2));
        assert_eq!(fields["gids"].as_array().unwrap().len(), 2, "{fields}");
    }
    node.del(&pod, &node.two_rails()).must_succeed();
    leases.must_be(&before, "after DEL");
}

#[test]
fn a_gid_that_takes_its_time_is_waited_for() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    node.kernel.with(|world| world.gid_delay = 12);
    let result = node.add(&pod, &leases.config(json!({}))).must_succeed();
    for rail in [0, 1] {
        let gids = result["rails"][rail]["gids"].as_array().unwrap();
        assert_eq!(gids.len(), 2, "{}", result["rails"]);
        for gid in gids {
            let ip = gid["address"].as_str().unwrap();
            let index = index_of(node, &format!("mlx5_bond_{rail}"), ip);
            assert_eq!(index.map(u64::from), gid["index"].as_u64());
        }
    }
    assert_eq!(result["rails"], of_file(&leases));
}

/// The bond and each pod have two addresses and a link-local address. A table of 8 entries is too
/// small for two pods.
#[test]
fn a_full_table_fails_add_and_leaves_nothing() {
    let leases = Leases::new(1);
    let node = &leases.node;
    node.kernel.with(|world| world.gid_table_size = 8);
    let (first, second) = (node.pod("a"), node.pod("b"));
    let config = leases.config(json!({}));
    leases.gives("b.rdma0", &answer(0, 8));
    node.add(&first, &config).must_succeed();
    let before = node.snapshot();
    leases.take_call_names();
    let message = node.add(&second, &config).must_fail(106);
    for word in [
        "mlx5_bond_0 has no RoCE v2 GID for",
        "8 of 8 GIDs",
        "fewer pods",
        "as before",
    ] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(before.differences(&node.snapshot()), [""; 0]);
    assert_eq!(node.records(), ["a@eth0.json", "a@eth0.lock"]);
    assert_eq!(leases.rails_files(), ["a"]);
    assert_eq!(leases.take_call_names(), ["ADD b rdma0", "DEL b rdma0"]);
    assert_eq!(leases.held(), ["a@rdma0"]);
    // the table has space again
    node.del(&first, &config).must_succeed();
    node.add(&second, &config).must_succeed();
}

/// An iWARP device, such as erdma by default, has one GID, which does not derive from an address.
#[test]
fn a_device_whose_gids_are_no_addresses_is_shared_all_the_same() {
    let leases = Leases::new(1);
    let node = &leases.node;
    node.kernel.with(|world| world.gid_table_size = 1);
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(result["rails"][0]["rdmaDevice"], "mlx5_bond_0");
    assert!(result["rails"][0]["gidIndex"].is_null());
    leases.check(&pod, &config, &result).must_succeed();
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
}

#[test]
fn check_sees_another_index() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    let before = index_of(node, "mlx5_bond_0", "10.0.0.7").unwrap();
    let given = link_of(node, &pod, "rdma0").addresses;
    let given = given.into_iter().find(|it| it.ip.is_ipv4()).unwrap();
    let (at, link) = (NetnsSide::Pod, crate::node::name("rdma0"));
    node.change(
        Some(&pod),
        &Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::RemoveAddress(given.clone()),
        },
    );
    let drift = leases.check(&pod, &config, &result).must_fail(999);
    assert!(drift.contains("no RoCE v2 GID for 10.0.0.7"), "{drift}");
    node.change(
        None,
        &Op::Link {
            at: NetnsSide::Host,
            link: crate::node::name("bond0"),
            change: LinkChange::AddAddress(address("10.99.0.1/24")),
        },
    );
    node.change(
        Some(&pod),
        &Op::Link {
            at,
            link,
            change: LinkChange::AddAddress(given),
        },
    );
    let after = index_of(node, "mlx5_bond_0", "10.0.0.7").unwrap();
    let drift = leases.check(&pod, &config, &result).must_fail(999);
    let expected =
        format!("the GID of 10.0.0.7 has index {after} on mlx5_bond_0 port 1, not {before}");
    assert!(drift.contains(&expected), "{drift}");
}

/// The mounted file has the same rails as ADD's result, and also names network and container.
#[test]
fn the_file_names_its_owner() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let result = run_named(node, "ADD", &pod, "trainer-0", &leases.config(json!({})));
    let file = leases.rails_file("ns_trainer-0").unwrap();
    assert_eq!(file["format"], 1);
    assert_eq!(file["network"], "rails");
    assert_eq!(
        (&file["rails"][0]["ifname"], &file["containerID"]),
        (&json!("eth0"), &json!("a"))
    );
    assert_eq!(file["rails"], result["rails"]);
}

/// A rail without an RDMA device and without addresses is not in the rails file.
#[test]
fn without_an_rdma_device_there_is_no_file() {
    let mut world = bonds(0);
    world.plug(fake_kernel::Nic::physical("0000:41:00.0", "eth9", "").without_rdma());
    let leases = Leases::on(Node::with(world));
    let node = &leases.node;
    let pod = node.pod("a");
    let config = node.config(json!({ "deviceID": "0000:41:00.0", "requireRdma": false }));
    let result = node.add(&pod, &config).must_succeed();
    assert!(result["rails"].is_null());
    assert_eq!(leases.rails_files(), [""; 0]);
    node.del(&pod, &config).must_succeed();
}

/// The file's mode does not depend on the runtime's umask.
#[test]
fn the_pods_programs_can_read_the_file() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let usual = umask(Mode::from_bits_truncate(0o077));
    let answer = node.add(&pod, &leases.config(json!({})));
    umask(usual);
    answer.must_succeed();
    let directory = node.state.path().join("state/rails/rails/a");
    for (path, mode) in [(directory.join("rails.json"), 0o644), (directory, 0o755)] {
        let found = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{path:?}");
    }
}

/// A moved netdev does not need its GID. ADD logs the missing GID, and does not wait long.
#[test]
fn a_moved_netdevs_gid_that_never_comes_is_left_out() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        node.kernel.with(|world| world.gid_delay = u32::MAX);
        let pod = node.pod("a");
        let started = node.kernel.now();
        let result = node.add(&pod, &node.two_rails()).must_succeed();
        let waited = node.kernel.now() - started;
        assert!(waited < Duration::from_secs(4), "{mode}: {waited:?}");
        assert_eq!(result["rails"][1]["rdmaDevice"], "mlx5_3");
        assert!(result["rails"][1]["gidIndex"].is_null());
    }
}

/// ADD fails without a child's GID, because RDMA needs the GID.
#[test]
fn a_childs_gid_that_never_comes_fails_add() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    node.kernel.with(|world| world.gid_delay = u32::MAX);
    let message = node.add(&pod, &leases.config(json!({}))).must_fail(106);
    assert!(message.contains("of 128 GIDs are used"), "{message}");
    assert!(message.contains("dmesg"), "{message}");
    assert!(!message.contains("full"), "{message}");
    leases.must_be(&before, "undone");
}
