// SPDX-License-Identifier: Apache-2.0

use super::*;
use daemon_conf::Conf;
use offer::{PreviousOffers, Unhealthy, offers};
use rdma_netns::Inventory;
use std::{path::Path, sync::Arc};

const NICS: [&str; 2] = ["0000:3b:00.0", "0000:5e:00.0"];

fn inventory(addresses: &[&str]) -> Inventory {
    let function = |(number, address): (usize, &&str)| {
        let hca = json!({"name": format!("mlx5_{number}")});
        json!({"address": address, "driver": "mlx5_core", "hcas": [hca]})
    };
    let functions: Vec<Value> = addresses.iter().enumerate().map(function).collect();
    serde_json::from_value(json!({"functions": functions})).expect("an inventory")
}

fn node(require: &Value, before: &[&str], now: &[&str], unhealthy: &[(&str, &str)]) -> Node {
    let mut resource = json!({"name": "rdma/hca", "kind": "shared"});
    if !require.is_null() {
        resource["require"] = require.clone();
    }
    let text = json!({"resources": [resource]}).to_string();
    let conf = Conf::parse(&text, Path::new("config.json")).expect("a configuration");
    let conf = conf.conf;
    let before = inventory(before);
    let none = (&BTreeSet::new(), &Unhealthy::new());
    let (offered, _) = offers(&conf, &before, none.0, none.1, &PreviousOffers::default());
    let previous = PreviousOffers::of(&offered);
    let inventory = inventory(now);
    let unhealthy: Unhealthy = unhealthy
        .iter()
        .map(|(address, why)| {
            let address = serde_json::from_value(json!(address)).expect("an address");
            (address, (*why).to_owned())
        })
        .collect();
    let (offers, _) = offers(&conf, &inventory, none.0, &unhealthy, &previous);
    let gone = previous.gone("rdma/hca", &inventory);
    Node {
        conf: Arc::new(conf),
        inventory: Arc::new(inventory),
        unhealthy,
        offers,
        gone: [("rdma/hca".to_owned(), gone)].into(),
        ..Node::default()
    }
}

/// Returns a node with one NIC in two resources, unusable for `rdma/a`.
pub(in crate::report) fn tenants(names: [&str; 2]) -> Node {
    let mut node = node(&json!(null), &NICS[..1], &NICS[..1], &[]);
    let resources = names.map(|name| json!({"name": name, "kind": "shared"}));
    let text = json!({"resources": resources}).to_string();
    let conf = Conf::parse(&text, Path::new("config.json")).expect("a configuration");
    let none = (&BTreeSet::new(), &Unhealthy::new());
    let before = PreviousOffers::default();
    (node.offers, _) = offers(&conf.conf, &node.inventory, none.0, none.1, &before);
    node.conf = Arc::new(conf.conf);
    let own = node
        .offers
        .iter_mut()
        .find(|it| it.name.as_str() == "rdma/a");
    own.expect("it is offered").devices[0].fault = Some("bond0.100 is down".into());
    node
}

fn condition(node: &Node) -> (bool, String, String) {
    let condition = Condition::of(node);
    (condition.is_missing, condition.reason, condition.message)
}

fn is(missing: bool, reason: &str, message: &str) -> (bool, String, String) {
    (missing, reason.into(), message.into())
}

#[test]
fn missing_rails_are_named_with_the_reason() {
    let none = json!(null);
    let carrier = "its netdev ens1 has no carrier";
    assert_eq!(
        condition(&node(&none, &NICS, &NICS, &[])),
        is(false, "NoRailMissing", "all of 2 RDMA devices are usable")
    );
    assert_eq!(
        condition(&node(&none, &NICS, &NICS, &[(NICS[0], carrier)])),
        is(
            true,
            "DeviceUnhealthy",
            "1 of 2 RDMA devices are unusable: 0000:3b:00.0 (mlx5_0): its netdev ens1 has no carrier"
        )
    );
    assert_eq!(
        condition(&node(&none, &NICS, &NICS[..1], &[(NICS[0], carrier)])),
        is(
            true,
            "DeviceGone",
            "2 of 2 RDMA devices are unusable: 0000:5e:00.0 (mlx5_1) is no longer on this node; 0000:3b:00.0 \
             (mlx5_0): its netdev ens1 has no carrier"
        )
    );
    // without its only device, the daemon does not offer the resource
    assert_eq!(
        condition(&node(&none, &NICS[..1], &[], &[])),
        is(
            true,
            "DeviceGone",
            "1 of 1 RDMA devices are unusable: 0000:3b:00.0 (mlx5_0) is no longer on this node"
        )
    );
    // no rail is missing on a node that never had devices
    assert_eq!(
        condition(&node(&none, &[], &[], &[])),
        is(false, "NoRailMissing", "all of 0 RDMA devices are usable")
    );
}

#[test]
fn a_device_unusable_for_one_resource_is_missing() {
    for names in [["rdma/a", "rdma/b"], ["rdma/b", "rdma/a"]] {
        let mut node = tenants(names);
        let own = "0000:3b:00.0 (mlx5_0) in rdma/a: bond0.100 is down";
        assert_eq!(
            condition(&node),
            is(
                true,
                "DeviceUnhealthy",
                &format!("1 of 1 RDMA devices are unusable: {own}")
            )
        );
        // the message has a device with two reasons only once
        let other = node
            .offers
            .iter_mut()
            .find(|it| it.name.as_str() == "rdma/b");
        other.expect("it").devices[0].fault = Some("bond0.200 is down".into());
        let other = "0000:3b:00.0 (mlx5_0) in rdma/b: bond0.200 is down";
        let (_, _, message) = condition(&node);
        let expected = format!("1 of 1 RDMA devices are unusable: {own}; {other}");
        assert_eq!(message, expected);
    }
}

#[test]
fn fewer_devices_than_required_are_missing() {
    let four = json!(4);
    for (before, now, found) in [(&NICS[..], &NICS[..], 2), (&[], &[], 0)] {
        let (is_missing, reason, message) = condition(&node(&four, before, now, &[]));
        let sentence = format!("rdma/hca has {found} devices, and require is 4");
        assert_eq!((is_missing, &*reason), (true, "TooFewDevices"));
        assert_eq!(message, sentence);
    }
    let (_, reason, message) = condition(&node(&four, &NICS, &NICS[..1], &[]));
    assert_eq!(reason, "DeviceGone");
    assert!(
        message.ends_with("is no longer on this node; rdma/hca has 2 devices, and require is 4"),
        "{message}"
    );
    let (is_missing, ..) = condition(&node(&json!(2), &NICS, &NICS, &[]));
    assert!(!is_missing);
}

#[test]
fn many_devices_and_long_reasons_are_cut() {
    let addresses: Vec<String> = (0..64).map(|it| format!("0000:{it:02x}:00.0")).collect();
    let addresses: Vec<&str> = addresses.iter().map(|it| &**it).collect();
    let reason = "\u{e9}".repeat(1000);
    let unhealthy: Vec<(&str, &str)> = addresses.iter().map(|it| (*it, &*reason)).collect();
    let (_, _, message) = condition(&node(&json!(null), &addresses, &addresses, &unhealthy));
    let (_, named) = message.split_once(": ").expect("devices");
    let named: Vec<&str> = named.split("; ").collect();
    assert_eq!((named.len(), named[8]), (9, "and 56 more"), "{message}");
    assert!(named[7].starts_with("0000:07:00.0 ("), "{message}");
    let is_cut = |it: &&str| it.chars().count() == LONGEST;
    assert!(named[..8].iter().all(is_cut), "{message}");
    assert!(message.chars().count() < 2000, "{}", message.len());
}

#[test]
fn the_condition_is_written_after_changes_and_every_five_minutes() {
    let start = Instant::now();
    let condition = |is_missing: bool, message: &str| Condition {
        is_missing,
        reason: "DeviceGone".into(),
        message: message.into(),
    };
    let (one, two) = (condition(true, "one"), condition(true, "two"));
    let healthy = condition(false, "one");
    assert_eq!(due(None, &one, start), Duration::ZERO);
    for (wanted, pause) in [(&one, 300), (&two, 60), (&healthy, 10)] {
        let pause = Duration::from_secs(pause);
        assert_eq!(due(Some((&one, start)), wanted, start), pause);
        assert_eq!(
            due(Some((&one, start)), wanted, start + pause),
            Duration::ZERO
        );
    }
}

#[test]
fn a_written_condition_is_read_again() {
    let condition = Condition {
        is_missing: true,
        reason: "DeviceGone".into(),
        message: "0000:5e:00.0".into(),
    };
    let (heartbeat, transition) = ("2026-01-31T10:05:00Z", "2026-01-31T10:00:00Z");
    let mut node = condition.patch(heartbeat, transition);
    let ready = json!({"type": "Ready", "status": "True"});
    let conditions = node["status"]["conditions"].as_array_mut();
    conditions.expect("a list").insert(0, ready);
    assert_eq!(
        Condition::read(&node),
        Some((condition, heartbeat, transition))
    );
    assert_eq!(Condition::read(&json!({"status": {}})), None);
}
