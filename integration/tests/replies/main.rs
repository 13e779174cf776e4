// SPDX-License-Identifier: Apache-2.0
//! A reply leaves by the interface that has its source address, also by an interface of another plugin. Every interface
//! of the pod has strict `rp_filter`, and the tests count the packets at the far ends of the interfaces.

mod beside;

use integration::{
    Netns, Snapshot,
    replies::{Machine, Primary, way_to, with_rails},
};
use serde_json::json;

/// Modes: moved netdevs, and macvlan children.
const WAYS: [(&str, &str); 2] = [("move", "macvlan"), ("share", "macvlan")];

#[test]
fn one_rail_attracts_no_reply_of_another_interface() {
    with_rails(1, &WAYS);
}

#[test]
fn two_rails_attract_no_reply_of_another_interface() {
    with_rails(2, &WAYS);
}

/// An interface of Multus in addition to `eth0`, and an address with a source rule of another program.
#[test]
fn every_interface_that_is_there_has_a_way_of_its_own() {
    let machine = Machine::new(Primary::Routed, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    let other = Netns::new("other");
    let name = other.name();
    pod.ip(&format!(
        "link add name net1 type veth peer name port netns {name}"
    ));
    other.ip("address add 192.0.2.1/24 dev port");
    other.ip("link set dev lo up");
    other.ip("address add 10.20.0.3/32 dev lo");
    other.ip("link set dev port up");
    pod.ip("link set dev net1 up");
    pod.ip("address add 192.0.2.9/24 dev net1");
    pod.ip("address add 192.0.2.10/24 dev net1");
    pod.ip("route add 10.0.0.0/8 via 192.0.2.1 dev net1");
    pod.ip("rule add from 192.0.2.10 lookup 77 priority 2000");
    pod.ip("route add default via 192.0.2.1 dev net1 table 77");
    let before = Snapshot::of(pod);
    let configuration = machine.configuration("share");
    let result = node.add(&configuration, "a", pod);
    machine.all_replies();
    let sent = machine.received();
    for address in ["192.0.2.9", "192.0.2.10"] {
        other.run(&format!(
            "ping -n -q -c 40 -i 0.01 -W 2 -I 10.20.0.3 {address}"
        ));
        assert_eq!(way_to(pod, &format!("10.20.0.3 from {address}")), "net1");
    }
    let more = machine.received();
    assert!(more.iter().zip(&sent).all(|(more, sent)| more - sent < 20));
    let rules = pod.ip("rule show");
    let of_ten = rules.lines().filter(|it| it.contains("from 192.0.2.10 "));
    assert_eq!(of_ten.count(), 1, "{rules}");
    machine.check(&configuration, &result).silent();
    node.del(&configuration, "a", pod);
    before.assert_restored(pod);
}

#[test]
fn a_way_of_another_interface_that_is_gone_is_drift() {
    for (change, words) in [
        (
            "rule del from 172.16.1.5 lookup 1001",
            "the rule \"from 172.16.1.5/32 to 10.20.0.0/24 lookup 1001 priority 32765\" is gone",
        ),
        (
            "-6 rule del from fd00:172::5 lookup 1001",
            "the rule \"from fd00:172::5/128 to fd00:20::/64 lookup 1001 priority 32765\" is gone",
        ),
        (
            "route del default table 1001",
            "eth0 has lost its route to 0.0.0.0/0 in table 1001",
        ),
        (
            "-6 route flush table 1001",
            "eth0 has lost its route to ::/0 in table 1001",
        ),
    ] {
        let machine = Machine::new(Primary::Routed, 1);
        let (node, pod) = (&machine.node, &machine.pod);
        let before = Snapshot::of(pod);
        let configuration = machine.configuration("share");
        let result = node.add(&configuration, "a", pod);
        pod.ip(change);
        let text = machine.check(&configuration, &result).failure().text();
        assert!(text.contains(words), "{change}: {words:?} is not in {text}");
        node.del(&configuration, "a", pod);
        before.assert_restored(pod);
    }
}

/// Two attachments of one pod, as Multus makes them, which end in either order.
#[test]
fn each_attachment_of_a_pod_takes_its_own_rules_away() {
    for first_goes_first in [true, false] {
        let machine = Machine::new(Primary::Routed, 2);
        let (node, pod) = (&machine.node, &machine.pod);
        let before = Snapshot::of(pod);
        let all = machine.configuration("share");
        let mut attachments = vec![];
        for rail in [0, 1] {
            let mut configuration = all.clone();
            configuration["name"] = format!("rail{rail}").into();
            configuration["devices"] = json!([{"netdev": format!("eth{}", rail + 1)}]);
            configuration["interfaceName"] = format!("rdma{rail}").into();
            node.add(&configuration, "a", pod);
            attachments.push(configuration);
        }
        machine.all_replies();
        let rules = pod.ip("rule show");
        assert_eq!(rules.matches("from 172.16.1.5").count(), 2, "{rules}");
        if !first_goes_first {
            attachments.reverse();
        }
        node.del(&attachments[0], "a", pod);
        for peer in ["10.20.0.1", "10.21.0.1"] {
            assert_eq!(way_to(pod, &format!("{peer} from 172.16.1.5")), "eth0");
        }
        let left = pod.ip("rule show");
        assert_eq!(left.matches("from 172.16.1.5").count(), 1, "{left}");
        node.del(&attachments[1], "a", pod);
        assert_eq!(machine.policy(), [""; 0]);
        before.assert_restored(pod);
    }
}

#[test]
fn without_tables_the_pods_other_interfaces_are_left_alone() {
    let machine = Machine::new(Primary::Routed, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    let mut configuration = machine.configuration("share");
    configuration["routing"] = json!({"tableBase": 0});
    let result = node.add(&configuration, "a", pod);
    assert_eq!(machine.policy(), [""; 0]);
    assert_eq!(way_to(pod, "10.20.0.1 from 172.16.1.5"), "rdma0");
    machine.check(&configuration, &result).silent();
    node.del(&configuration, "a", pod);
}
