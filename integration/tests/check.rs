// SPDX-License-Identifier: Apache-2.0
//! CHECK reports each difference in a sentence. Changes that later plugins of the chain report in the result are no
//! differences.

use integration::{Netns, Node, ipam};
use serde_json::{Value, json};

/// A pod with one rail, and the configuration for CHECK with the result of the chain.
fn attached() -> (Node, Netns, Value) {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.ipam.answer(
        "ADD",
        &json!({
            "ips": [{"address": "192.0.2.10/24"}, {"address": "2001:db8:1::10/64"}],
            "routes": [
                {"dst": "198.51.100.0/24", "gw": "192.0.2.1"},
                {"dst": "2001:db8:99::/48", "gw": "2001:db8:1::1"},
            ],
        }),
    );
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    configuration["prevResult"] = node.add(&configuration, "a", &pod);
    (node, pod, configuration)
}

#[track_caller]
fn check(node: &Node, configuration: &Value, pod: &Netns) -> integration::Outcome {
    node.invoke("CHECK", "a", pod.path())
        .input(configuration)
        .run()
}

#[test]
fn check_accepts_what_add_left_and_calls_ipam_too() {
    let (node, pod, configuration) = attached();
    check(&node, &configuration, &pod).silent();
    assert_eq!(node.ipam.interfaces("CHECK"), ["rdma0"]);
    node.ipam.fail("CHECK", 100, "this lease is not yours");
    let text = check(&node, &configuration, &pod).failure().text();
    assert!(text.contains("this lease is not yours"), "{text}");
}

#[test]
fn drift_is_reported_in_words() {
    let cases: [(&str, &[&str]); 8] = [
        ("link set dev rdma0 mtu 1300", &["rdma0", "mtu", "1300"]),
        ("link set dev rdma0 down", &["rdma0", "down"]),
        (
            "address del 192.0.2.10/24 dev rdma0",
            &["rdma0", "192.0.2.10"],
        ),
        (
            "address del 2001:db8:1::10/64 dev rdma0",
            &["rdma0", "2001:db8:1::10"],
        ),
        ("route del 198.51.100.0/24", &["198.51.100.0/24"]),
        ("-6 route del 2001:db8:99::/48", &["2001:db8:99::/48"]),
        ("link set dev rdma0 name other", &["rdma0"]),
        ("link del dev rdma0", &["eth1"]),
    ];
    for (change, words) in cases {
        let (node, pod, configuration) = attached();
        pod.ip(change);
        let text = check(&node, &configuration, &pod)
            .failure()
            .text()
            .to_lowercase();
        for word in words {
            assert!(
                text.contains(word),
                "{change}: {word:?} is not reported in {text:?}"
            );
        }
    }
}

#[test]
fn additions_of_later_plugins_are_no_drift() {
    let (node, pod, mut configuration) = attached();
    for line in [
        "address add 172.16.0.1/24 dev rdma0",
        "route add 172.17.0.0/16 dev rdma0",
        "link set dev rdma0 txqueuelen 50 alias by-a-later-plugin",
    ] {
        pod.ip(line);
    }
    // a later plugin reports its changes in the result (the reference plugin `tuning` reports only the MAC)
    pod.ip("link set dev rdma0 mtu 1350");
    pod.ip("link set dev rdma0 address 02:00:00:00:77:77");
    configuration["prevResult"]["interfaces"][0]["mtu"] = 1350.into();
    configuration["prevResult"]["interfaces"][0]["mac"] = "02:00:00:00:77:77".into();
    let list = configuration["prevResult"]["interfaces"]
        .as_array_mut()
        .expect("interfaces");
    list.push(json!({"name": "of-a-later-plugin", "sandbox": ""}));
    check(&node, &configuration, &pod).silent();
}

#[test]
fn an_attachment_that_is_not_there_fails() {
    let (node, pod, configuration) = attached();
    let outcome = node
        .invoke("CHECK", "unknown", pod.path())
        .input(&configuration)
        .run();
    let text = outcome.failure().text();
    assert!(text.contains("unknown"), "{text}");
    node.del(&configuration, "a", &pod);
    check(&node, &configuration, &pod).failure();
}

#[test]
fn another_namespace_than_that_of_add_fails() {
    let (node, _pod, configuration) = attached();
    let other = node.pod("other");
    check(&node, &configuration, &other).failure();
}

#[test]
fn check_without_the_result_of_add_is_a_configuration_error() {
    let (node, pod, mut configuration) = attached();
    configuration
        .as_object_mut()
        .expect("an object")
        .remove("prevResult");
    let text = check(&node, &configuration, &pod).error(7);
    assert!(text.contains("prevResult"), "{text}");
}
