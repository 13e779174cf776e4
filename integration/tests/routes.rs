//! Routes of IPAM plugins beside those that the pod has, and MTUs that IPv6 cannot do with.

use integration::{Netns, Node, Outcome, Snapshot, ipam};
use serde_json::{Value, json};

/// A pod as its primary network leaves it: with a default route of both families.
fn pod_with_default_routes(node: &Node) -> Netns {
    let pod = node.pod("pod");
    pod.ip("link add name eth0 type veth peer name uplink");
    pod.ip("link set dev uplink up");
    pod.ip("link set dev eth0 up");
    pod.ip("address add 10.244.0.9/24 dev eth0");
    pod.ip("address add fd00:244::9/64 dev eth0 nodad");
    pod.ip("route add default via 10.244.0.1 dev eth0");
    pod.ip("-6 route add default via fd00:244::1 dev eth0");
    pod
}

/// The routes of a family to `destination`, which ip lists by their metric.
fn routes(pod: &Netns, family: u8, destination: &str) -> Vec<Value> {
    let mut routes = pod.show(&format!("-{family} route show table main"));
    routes.retain(|route| route["dst"] == destination);
    routes
}

/// The metric that counts.
fn metric(route: &Value) -> u64 {
    route["metric"].as_u64().unwrap_or(0)
}

/// The netdev by which `address` is reached.
fn way_to(pod: &Netns, address: &str) -> Value {
    pod.show(&format!("route get {address}"))[0]["dev"].clone()
}

fn check(node: &Node, configuration: &Value, result: Value, pod: &Netns) -> Outcome {
    let mut configuration = configuration.clone();
    configuration["prevResult"] = result;
    node.invoke("CHECK", "a", pod.path())
        .input(&configuration)
        .run()
}

#[test]
fn the_pods_own_default_route_stays_the_one_that_is_used() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let pod = pod_with_default_routes(&node);
    let own = [4, 6].map(|family| routes(&pod, family, "default"));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["cniVersion"] = "1.0.0".into();
    configuration["ipam"] = json!({
        "type": "static",
        "addresses": [
            {"address": "192.0.2.10/24", "gateway": "192.0.2.1"},
            {"address": "2001:db8:1::10/64", "gateway": "2001:db8:1::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    let result = node.add(&configuration, "a", &pod);
    for (family, own) in [4, 6].into_iter().zip(&own) {
        let now = routes(&pod, family, "default");
        assert_eq!(now.len(), 2, "{now:?}");
        assert_eq!(now[0], own[0], "the pod's own has changed");
        assert_eq!(now[1]["dev"], "rdma0");
        assert!(metric(&now[1]) > metric(&now[0]), "{now:?}");
    }
    assert_eq!(way_to(&pod, "203.0.113.1"), "eth0");
    assert_eq!(way_to(&pod, "2001:db8:ffff::1"), "eth0");
    assert_eq!(way_to(&pod, "203.0.113.1 from 192.0.2.10"), "eth0");
    assert_eq!(way_to(&pod, "203.0.113.1 oif rdma0"), "rdma0");
    check(&node, &configuration, result.clone(), &pod).silent();
    pod.ip("route del default dev rdma0");
    let text = check(&node, &configuration, result, &pod).failure().text();
    assert!(
        text.contains("rdma0") && text.contains("0.0.0.0/0"),
        "{text}"
    );
    node.del(&configuration, "a", &pod);
    for (family, own) in [4, 6].into_iter().zip(own) {
        assert_eq!(routes(&pod, family, "default"), own);
    }
    before.assert_restored(&node.host);
}

#[test]
fn rails_with_one_destination_each_have_their_route_to_it() {
    let node = Node::with_rails(2);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    for rail in [0, 1] {
        let answer = json!({
            "ips": [
                {"address": format!("10.9.{rail}.7/24"), "gateway": format!("10.9.{rail}.1")},
                {"address": format!("fd00:9:{rail}::7/64"), "gateway": format!("fd00:9:{rail}::1")},
            ],
            "routes": [
                {"dst": "198.51.100.0/24"}, {"dst": "2001:db8:99::/48"},
                {"dst": "0.0.0.0/0"}, {"dst": "::/0"},
            ],
        });
        node.ipam.answer(&format!("ADD.rdma{rail}"), &answer);
    }
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    let result = node.add(&configuration, "a", &pod);
    for (family, destination) in [
        (4, "198.51.100.0/24"),
        (6, "2001:db8:99::/48"),
        (4, "default"),
        (6, "default"),
    ] {
        let now = routes(&pod, family, destination);
        let rails: Vec<&Value> = now.iter().map(|route| &route["dev"]).collect();
        assert_eq!(rails, ["rdma0", "rdma1"], "{destination}: {now:?}");
        assert!(metric(&now[0]) < metric(&now[1]), "{now:?}");
    }
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn an_mtu_below_what_ipv6_needs_is_refused_where_there_is_ipv6() {
    let node = Node::with_rails(1);
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let ipv4_only = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mtu"] = 1000.into();
    let pod = node.pod("pod");
    let result = node.add(&configuration, "a", &pod);
    assert_eq!(result["interfaces"][0]["mtu"], 1000);
    assert_eq!(pod.link("rdma0").expect("in the pod")["mtu"], 1000);
    assert_eq!(pod.addresses("rdma0"), ["192.0.2.5/24"]);
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    ipv4_only.assert_restored(&node.host);

    node.host.ip("address add 2001:db8::5/64 dev eth1 nodad");
    let before = Snapshot::of(&node.host);
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(&configuration).run().failure().text();
    assert!(text.contains("1280") && text.contains("eth1"), "{text}");
    assert!(!pod.has_link("rdma0"));
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "{:?}", node.records());
    configuration["mtu"] = 1280.into();
    node.add(&configuration, "a", &pod);
    assert_eq!(pod.addresses("rdma0"), ["192.0.2.5/24", "2001:db8::5/64"]);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn ipv6_addresses_of_ipam_need_their_mtu_too() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    let ips = json!([{"address": "10.0.0.7/24"}, {"address": "2001:db8::7/64"}]);
    node.ipam.answer("ADD", &json!({ "ips": ips }));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    configuration["mtu"] = 1000.into();
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(&configuration).run().failure().text();
    assert!(text.contains("1280"), "{text}");
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0"]);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "{:?}", node.records());
}
