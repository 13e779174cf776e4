// SPDX-License-Identifier: Apache-2.0
//! Routes, rules and tables of other programs in the pod remain in force, may change, and are never
//! removed.

use integration::replies::{Machine, OF_NODE, Primary, way_to};
use integration::{Netns, Snapshot, wait};
use serde_json::{Value, json};
use std::fs;

/// The address of `eth0`, from which packets are routed.
const OF_ETH0: &str = "172.16.1.5";

/// Returns the configurations of two attachments of one pod, one for each rail.
fn by_two_networks(machine: &Machine) -> [Value; 2] {
    let all = machine.configuration("share");
    [0, 1].map(|rail| {
        let mut configuration = all.clone();
        configuration["name"] = format!("rail{rail}").into();
        configuration["devices"] = json!([{"netdev": format!("eth{}", rail + 1)}]);
        configuration["interfaceName"] = format!("rdma{rail}").into();
        configuration
    })
}

/// The gateway of the route to `address`.
fn router_to(pod: &Netns, address: &str) -> Value {
    pod.show(&format!("route get {address}"))[0]["gateway"].clone()
}

/// A VPN routes packets from `eth0`'s address, including those to a part of the rail's network. An `unreachable` route
/// closes another network.
#[test]
fn a_vpn_and_a_closed_network_stay_in_force() {
    let machine = Machine::new(Primary::Routed, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    let vpn = Netns::new("vpn");
    let name = vpn.name();
    pod.ip(&format!(
        "link add name tun0 type veth peer name port netns {name}"
    ));
    vpn.ip("link set dev port up");
    pod.ip("link set dev tun0 up");
    vpn.ip("route add 172.16.1.5/32 dev port");
    let peers = ["10.9.0.1", "10.20.0.129"];
    for (peer, network) in peers.iter().zip(["10.9.0.0/16", "10.20.0.128/26"]) {
        vpn.ip(&format!("address add {peer}/32 dev port"));
        pod.ip(&format!("route add {network} dev tun0 src {OF_ETH0}"));
    }
    pod.ip("route add unreachable 10.11.0.0/16");
    let before = Snapshot::of(pod);
    let configuration = machine.configuration("share");
    let result = node.add(&configuration, "a", pod);
    for peer in peers {
        assert_eq!(way_to(pod, &format!("{peer} from {OF_ETH0}")), "tun0");
        pod.run(&format!("ping -n -q -c 3 -W 2 -I {OF_ETH0} {peer}"));
    }
    assert!(!pod.ip_succeeds(&format!("route get 10.11.0.1 from {OF_ETH0}")));
    machine.all_replies();
    machine.check(&configuration, &result).silent();
    node.del(&configuration, "a", pod);
    before.assert_restored(pod);
}

/// The rules of a transparent proxy. Their table delivers marked packets locally, and has no other route.
#[test]
fn a_mark_decides_before_and_keeps_its_table() {
    let machine = Machine::new(Primary::Routed, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    for family in ["-4", "-6"] {
        pod.ip(&format!("{family} rule add fwmark 1337 lookup 1001"));
        pod.ip(&format!(
            "{family} route add local default dev lo table 1001"
        ));
    }
    // a table that no rule uses at present
    pod.ip("route add blackhole 192.0.2.0/24 table 1003");
    let before = Snapshot::of(pod);
    let configuration = machine.configuration("share");
    let result = node.add(&configuration, "a", pod);
    for (peer, address) in OF_NODE.iter().zip(machine.primary.addresses()) {
        let way = format!("{peer} from {address}");
        assert_eq!(way_to(pod, &format!("{way} mark 1337")), "lo");
        assert_eq!(way_to(pod, &way), "eth0");
    }
    assert_eq!(pod.show("-j route show table 1001").len(), 1);
    assert_eq!(pod.show("-j route show table 1003").len(), 1);
    machine.all_replies();
    machine.check(&configuration, &result).silent();
    node.del(&configuration, "a", pod);
    before.assert_restored(pod);
}

/// The pod's default routers change: an IPv4 router, and an IPv6 router that sends advertisements.
#[test]
fn packets_follow_the_pods_routes_when_they_change() {
    let machine = Machine::new(Primary::Routed, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    let advertised = "default via fe80::ee dev eth0 proto ra metric 1024 expires 1000";
    pod.ip("-6 route del default");
    pod.ip(&format!("-6 route add {advertised}"));
    let configuration = machine.configuration("share");
    let result = node.add(&configuration, "a", pod);
    // rdma-cni copies no advertised route
    let policy = machine.policy();
    assert!(
        !policy.iter().any(|it| it.contains("fd00:172::5")),
        "{policy:?}"
    );
    machine.check(&configuration, &result).silent();
    pod.ip("route add 169.254.1.2 dev eth0 scope link");
    pod.ip("route replace default via 169.254.1.2 dev eth0");
    pod.ip(&format!("-6 route del {advertised}"));
    pod.ip(&format!(
        "-6 route add {}",
        advertised.replace("::ee", "::ef")
    ));
    assert_eq!(
        router_to(pod, &format!("192.0.2.1 from {OF_ETH0}")),
        "169.254.1.2"
    );
    assert_eq!(router_to(pod, "2001:db8:5::1 from fd00:172::5"), "fe80::ef");
    machine.check(&configuration, &result).silent();
    node.del(&configuration, "a", pod);
    assert_eq!(machine.policy(), [""; 0]);
}

/// A failed ADD waits for IPAM's DEL while the pod's other attachment ends.
#[test]
fn two_that_end_at_once_leave_nothing() {
    let machine = Machine::new(Primary::Routed, 2);
    let (node, pod) = (&machine.node, &machine.pod);
    let before = Snapshot::of(pod);
    let [first, second] = by_two_networks(&machine);
    node.add(&first, "a", pod);
    // ADD fails after it has changed the pod
    machine.node.ipam.answer(
        "ADD.rdma1",
        &json!({"ips": [{"address": "10.21.0.7/24"}], "routes": [{"dst": "10.77.0.0/16", "gw": "10.99.0.1"}]}),
    );
    node.ipam.hold("DEL");
    let failing = node.invoke("ADD", "a", pod.path()).input(&second).start();
    let wait_for_del = |ifname: &str| {
        let is_called = || node.ipam.interfaces("DEL").iter().any(|it| it == ifname);
        wait::until(&format!("{ifname} gives its address back"), is_called);
    };
    wait_for_del("rdma1");
    // the devices of the failed ADD are on the host: only the other attachment has rules in the pod
    let record = fs::read_to_string(node.record("rail1", "a")).expect("a record");
    let record: Value = serde_json::from_str(&record).expect("a record");
    assert_eq!(record["phase"], "home");
    let ending = node.invoke("DEL", "a", pod.path()).input(&first).start();
    wait_for_del("rdma0");
    node.ipam.release("DEL");
    failing.wait().failure();
    ending.wait().silent();
    assert_eq!(machine.policy(), [""; 0]);
    before.assert_restored(pod);
}

#[test]
fn another_address_of_eth0_is_no_drift() {
    let machine = Machine::new(Primary::Bridged, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    let configuration = machine.configuration("share");
    let result = node.add(&configuration, "a", pod);
    for line in [
        "address del 10.244.0.9/24 dev eth0",
        "address add 10.244.0.10/24 dev eth0",
        "route add default via 10.244.0.1 dev eth0",
    ] {
        pod.ip(line);
    }
    machine.check(&configuration, &result).silent();
    // the IPv6 rule still needs its table
    pod.ip("-6 route flush table 1001");
    let text = machine.check(&configuration, &result).failure().text();
    assert!(text.contains("::/0 in table 1001"), "{text}");
    node.del(&configuration, "a", pod);
    assert_eq!(machine.policy(), [""; 0]);
}

/// A routing daemon has added thousands of routes.
#[test]
fn only_routes_beside_a_rails_are_copied() {
    let machine = Machine::new(Primary::Routed, 1);
    let (node, pod) = (&machine.node, &machine.pod);
    let far = (0..5000).map(|it| format!("20.{}.{}.0/24", it >> 8, it & 255));
    let within = (0..300).map(|it| format!("10.200.{}.{}/32", it >> 8, it & 255));
    let near = ["10.20.0.64/27".to_owned()];
    let lines = far.chain(within).chain(near);
    let lines = lines.map(|it| format!("route add {it} via 169.254.1.1 dev eth0"));
    pod.ip_batch(&lines.collect::<Vec<_>>());
    let answer = json!({
        "ips": [{"address": "10.20.0.7/24", "gateway": "10.20.0.254"}],
        "routes": [{"dst": "10.200.0.0/16"}],
    });
    node.ipam.answer("ADD.rdma0", &answer);
    let before = Snapshot::of(pod);
    let configuration = machine.configuration("share");
    let result = node.add(&configuration, "a", pod);
    let copies = pod.show("-j route show table 1001");
    let mut copies: Vec<&str> = copies.iter().filter_map(|it| it["dst"].as_str()).collect();
    copies.sort_unstable();
    assert_eq!(copies, ["10.20.0.64/27", "default"]);
    // this destination has no copied route, because its network has too many routes
    assert_eq!(way_to(pod, &format!("10.200.9.9 from {OF_ETH0}")), "rdma0");
    assert_eq!(way_to(pod, &format!("10.20.0.1 from {OF_ETH0}")), "eth0");
    let record = fs::metadata(node.record("net", "a")).expect("a record");
    assert!(record.len() < 100_000, "{record:?}");
    machine.check(&configuration, &result).silent();
    node.del(&configuration, "a", pod);
    before.assert_restored(pod);
}

/// The routes of `eth0` differ when the second attachment copies them.
#[test]
fn each_attachment_removes_what_it_has_copied() {
    for first_goes_first in [true, false] {
        let machine = Machine::new(Primary::Routed, 2);
        let (node, pod) = (&machine.node, &machine.pod);
        let mut attachments = by_two_networks(&machine);
        node.add(&attachments[0], "a", pod);
        pod.ip("route add 169.254.1.2 dev eth0 scope link");
        pod.ip("route add 10.0.0.0/8 via 169.254.1.2 dev eth0");
        pod.ip("route replace default via 169.254.1.2 dev eth0");
        node.add(&attachments[1], "a", pod);
        if !first_goes_first {
            attachments.reverse();
        }
        for (done, configuration) in attachments.iter().enumerate() {
            assert!(!machine.policy().is_empty(), "after {done}");
            node.del(configuration, "a", pod);
        }
        assert_eq!(machine.policy(), [""; 0]);
    }
}
