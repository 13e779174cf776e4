// SPDX-License-Identifier: Apache-2.0
//! In the lab, settings that a pod changes by ethtool on a real driver (igb):
//! `integration/lab/vm --tier full --exclusive`.

use integration::{Netns, Node, lab::NICS};
use rdma_netns::{DeviceSettings, Kernel, Linux, Op, netns};

#[track_caller]
fn settings(netns: &Netns, link: &str) -> DeviceSettings {
    let read = || {
        let kernel = Linux::new();
        let observed = kernel.observe(None).expect("a state");
        kernel.device_settings(observed.host.link(link).expect("a netdev"))
    };
    let netns = netns::Netns::open(netns.path()).expect("a namespace");
    netns.run(read).expect("a thread")
}

/// DEL restores rings, channels, flow control, private flags, the message level, features and receive hashing.
#[test]
fn driver_settings_of_a_pod_are_reverted() {
    let node = Node::on(Netns::own());
    let nic = NICS[0];
    node.host.ip(&format!("link set dev {nic} up"));
    let before = settings(&node.host, nic);
    let value = |key: &str| {
        let found = before.iter().find(|(it, _)| *it == key);
        let (_, value) = found.unwrap_or_else(|| panic!("igb has no {key}: {before:?}"));
        value
    };
    let spread = value("ethtool/rss");
    let first_queue = format!("{}{}", &spread[..32], "0".repeat(spread.len() - 32));
    let changes = [
        ("ethtool/messages", "00000001"),
        ("ethtool/rings", "00000200000000000000000000000200"),
        ("ethtool/pause", "000000000000000100000000"),
        ("ethtool/private", "00000001"),
        ("ethtool/channels", "00000000000000000000000100000001"),
        ("ethtool/features", "1fd1008000000192"),
        ("ethtool/rss", &first_queue),
    ];
    let pod = node.pod("pod");
    let rails = node.configuration(&[nic]);
    node.add(&rails, "a", &pod);
    let opened = netns::Netns::open(pod.path()).expect("a namespace");
    let make = || {
        let kernel = Linux::new();
        for (key, value) in changes {
            let op = Op::SetDeviceSetting {
                link: "rdma0".try_into().expect("a name"),
                key: key.to_owned(),
                value: value.to_owned(),
            };
            kernel.execute(&op, None).expect("the pod may");
        }
    };
    opened.run(make).expect("a thread");
    let changed = settings(&pod, "rdma0");
    for (key, _) in changes {
        let now = changed.iter().find(|(it, _)| *it == key);
        assert_ne!(now, Some((key, value(key))), "{key} did not change");
    }
    node.del(&rails, "a", &pod);
    let lacking = settings(&node.host, nic);
    assert_eq!(before.lacking(&lacking), []);
}

/// DEL restores the settings of a VLAN or an ipvlan in `IFLA_INFO_DATA`.
#[test]
fn vlan_and_ipvlan_settings_of_a_pod_are_reverted() {
    let node = Node::on(Netns::own());
    let nic = NICS[0];
    let vlan = "vlan id 100 loose_binding on egress-qos-map 0:3 4:4 ingress-qos-map 1:2";
    let of_vlan =
        "vlan loose_binding off reorder_hdr off egress-qos-map 0:5 6:6 ingress-qos-map 3:3";
    for (made, changed) in [
        (vlan, of_vlan),
        ("ipvlan mode l2", "ipvlan mode l3 private"),
    ] {
        node.host
            .ip(&format!("link add link {nic} name upper0 type {made}"));
        let data = |netns: &Netns, name| {
            let mut link = netns.link(name).expect("there")["linkinfo"].clone();
            for map in ["ingress_qos", "egress_qos"] {
                if let Some(list) = link["info_data"][map].as_array_mut() {
                    list.sort_by_key(serde_json::Value::to_string);
                }
            }
            link
        };
        let before = data(&node.host, "upper0");
        let pod = node.pod("pod");
        let rails = node.configuration(&["upper0"]);
        node.add(&rails, "a", &pod);
        pod.ip(&format!("link set dev rdma0 type {changed}"));
        assert_ne!(data(&pod, "rdma0"), before);
        node.del(&rails, "a", &pod);
        assert_eq!(data(&node.host, "upper0"), before);
        node.host.ip("link del dev upper0");
    }
}
