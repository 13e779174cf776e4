// SPDX-License-Identifier: Apache-2.0

use super::*;
use dra::{
    Nic, Resource,
    slices::{Change, Owner, plan},
};
use rdma_resources::Published;
use serde_json::json;

/// ResourceSlices with two NICs as the daemon writes them. The second NIC has no link.
fn slices() -> Value {
    let nic = |address: &str, fault: Option<&str>| Nic {
        address: address.to_owned(),
        rdma: "mlx5_0".to_owned(),
        fault: fault.map(str::to_owned),
        ..Nic::default()
    };
    let resource = Resource {
        name: "rdma/hca".to_owned(),
        whole: true,
        sharers: Some(28),
        evict: false,
        short: None,
        nics: vec![
            nic("0000:3b:00.0", None),
            nic("0000:5e:00.0", Some("no link")),
        ],
    };
    let owner = Owner {
        driver: "hca.rdma".to_owned(),
        node: "node-1".to_owned(),
        node_uid: None,
    };
    let changes = plan(&owner, &dra::pool::devices(&[resource]), &[]);
    let written = changes.into_iter().filter_map(|change| match change {
        Change::Create(slice) => Some(slice),
        _ => None,
    });
    json!({"items": written.collect::<Vec<_>>()})
}

fn published() -> Facts {
    let published = json!({
        "format": 2,
        "resources": {
            "rdma/hca": {"sharing": "shared", "every": ["0000:3b:00.0", "0000:5e:00.0"]},
            "rdma/nic": {"sharing": "exclusive", "byId": {"0": ["0000:3b:00.0"], "1": ["0000:af:00.0"]}},
        },
    });
    let published: Published = serde_json::from_value(published).expect("resources");
    let mut facts = Facts::default();
    facts.daemon.published = Some(published);
    facts
}

#[test]
fn resources_and_rails_are_counted() {
    let amounts = json!({"rdma/hca": "1k", "rdma/nic": "2", "cpu": "8"});
    let node = json!({"status": {"allocatable": amounts, "capacity": amounts}});
    let facts = published();
    let by_daemon = row("node-1", "Ready", &node, &Value::Null, Some(&facts));
    assert_eq!((by_daemon.rails, by_daemon.tainted), (Some(3), None));
    // the observation contains neither modules nor devices, and `doctor` reports both as errors
    assert!(by_daemon.health.contains("error"), "{}", by_daemon.health);
    let by_slices = row("node-1", "NotReady", &Value::Null, &slices(), None);
    assert_eq!((by_slices.rails, by_slices.tainted), (Some(2), Some(1)));
    let elsewhere = row("node-2", "Ready", &node, &slices(), None);
    assert_eq!((elsewhere.rails, elsewhere.resources.len()), (None, 0));
    let health = &by_daemon.health;
    assert_eq!(
        table(&[by_slices, elsewhere]),
        "NAME    DAEMON    RESOURCES           RAILS  HEALTH\n\
         node-1  NotReady  rdma/hca by claims  1/2    not known\n\
         node-2  Ready     -                   -      not known\n"
    );
    assert_eq!(
        table(std::slice::from_ref(&by_daemon)).lines().last(),
        Some(&*format!(
            "node-1  Ready   rdma/hca 1k/1k, rdma/nic 2/2  3      {health}"
        ))
    );
}

#[test]
fn a_condition_comes_before_the_counts_of_doctor() {
    let node = |is_missing| {
        let condition = Condition {
            is_missing,
            reason: "DeviceGone".to_owned(),
            message: "1 of 2 RDMA devices are unusable".to_owned(),
        };
        condition.patch("", "")
    };
    let health = |node: &Value| row("n", "Ready", node, &Value::Null, None).health;
    assert_eq!(
        health(&node(true)),
        "DeviceGone: 1 of 2 RDMA devices are unusable"
    );
    assert_eq!(health(&node(false)), "not known");
}

#[test]
fn a_rail_on_the_switch_of_another_rail_is_marked() {
    let node = |name: &str, switches: &[(&str, &str)]| {
        let seen = |(number, (netdev, switch)): (usize, &(&str, &str))| {
            let seen = json!({"netdev": netdev, "chassis": switch, "portId": "Eth1", "ttl": 120});
            (format!("0000:{number:02x}:00.0"), seen)
        };
        let seen: serde_json::Map<_, _> = switches.iter().enumerate().map(seen).collect();
        let facts = Facts {
            switches: serde_json::from_value(seen.into()).expect("switches"),
            ..Facts::default()
        };
        let mut row = row(name, "Ready", &Value::Null, &Value::Null, Some(&facts));
        row.health = "ok".to_owned();
        row
    };
    let right = [("ens1", "leaf1"), ("ens2", "leaf2")];
    let mut nodes = [
        node("a", &right),
        node("b", &[("ens1", "leaf1"), ("ens2", "leaf1")]),
        node("c", &right),
        // a node in another rack
        node("d", &[("ens1", "leaf3"), ("ens2", "leaf4")]),
        node("e", &[]),
    ];
    mark_misplaced(&mut nodes);
    let health: Vec<&str> = nodes.iter().map(|it| it.health.as_str()).collect();
    let misplaced = "ens2 is on leaf1, which serves ens1 on other nodes";
    assert_eq!(health, ["ok", misplaced, "ok", "ok", "ok"]);
    assert_eq!(
        table(&nodes).lines().nth(1),
        Some("a     Ready   -          0 on leaf1, leaf2  ok")
    );
    assert_eq!(
        serde_json::to_value(&nodes[0].switches).expect("JSON"),
        json!({"ens1": "leaf1", "ens2": "leaf2"})
    );
    // a NIC in a pod has no RDMA device on the host: its rail gets the netdev's name
    let mut nodes = [
        node("a", &[("mlx5_0", "leaf1"), ("mlx5_1", "leaf2")]),
        node("b", &[("ens1", "leaf1"), ("mlx5_1", "leaf2")]),
        node("c", &[("bond0", "leaf1")]),
    ];
    mark_misplaced(&mut nodes);
    assert!(nodes.iter().all(|it| it.health == "ok"));
}
