// SPDX-License-Identifier: Apache-2.0
//! Share mode on real netdevs: macvlan children of a host's veth, in pods. The lab tests the RDMA part of share mode.

use integration::{Netns, Node, Snapshot, ipam, wait};
use serde_json::{Value, json};

/// A node with the rail `eth1`, whose switch has `10.0.0.254/24` and `fd00::fe/64`, and the configuration that shares
/// this rail.
fn shared() -> (Node, Value) {
    let node = Node::with_rails(1);
    node.switch.ip("address add 10.0.0.254/24 dev br0");
    node.switch.ip("address add fd00::fe/64 dev br0 nodad");
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mode"] = "share".into();
    configuration["ipam"] = json!({"type": ipam::NAME});
    (node, configuration)
}

/// Runs ADD for a new pod, whose addresses end with `number`.
#[track_caller]
fn started(node: &Node, configuration: &Value, number: u32) -> (Netns, Value) {
    let ips = json!([
        {"address": format!("10.0.0.{number}/24"), "gateway": "10.0.0.254"},
        {"address": format!("fd00::{number}/64")},
    ]);
    node.ipam.answer("ADD", &json!({ "ips": ips }));
    let pod = node.pod(&format!("pod{number}"));
    let result = node.add(configuration, &number.to_string(), &pod);
    (pod, result)
}

#[track_caller]
fn ping(from: &Netns, address: &str) {
    from.run(&format!("ping -n -c 3 -i 0.05 -W 5 {address}"));
}

#[test]
fn pods_on_one_netdev_reach_each_other_and_the_network() {
    let (node, configuration) = shared();
    let before = Snapshot::of(&node.host);
    let pods: Vec<(Netns, Value)> = [7, 8, 9]
        .into_iter()
        .map(|number| started(&node, &configuration, number))
        .collect();
    for (number, (pod, result)) in [7, 8, 9].into_iter().zip(&pods) {
        let link = pod.link("rdma0").expect("in the pod");
        assert_eq!(link["linkinfo"]["info_kind"], "macvlan");
        assert_eq!(link["linkinfo"]["info_data"]["mode"], "bridge");
        assert_eq!(result["interfaces"][0]["mac"], link["address"]);
        let addresses = [format!("10.0.0.{number}/24"), format!("fd00::{number}/64")];
        assert_eq!(pod.addresses("rdma0"), addresses);
    }
    let [first, second] = [&pods[0].0, &pods[1].0];
    for address in ["10.0.0.8", "fd00::8", "10.0.0.254", "fd00::fe"] {
        ping(first, address);
    }
    ping(second, "10.0.0.9");
    ping(&node.switch, "fd00::7");
    for (number, (pod, result)) in [7, 8, 9].into_iter().zip(&pods) {
        let container = number.to_string();
        let mut with_result = configuration.clone();
        with_result["prevResult"] = result.clone();
        let call = node.invoke("CHECK", &container, pod.path());
        call.input(&with_result).run().silent();
        node.del(&configuration, &container, pod);
        assert!(!pod.has_link("rdma0"));
    }
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "{:?}", node.records());
}

#[test]
fn a_child_that_the_pod_renamed_is_removed() {
    let (node, configuration) = shared();
    let before = Snapshot::of(&node.host);
    let (pod, result) = started(&node, &configuration, 7);
    for line in [
        "link set dev rdma0 down",
        "link set dev rdma0 name net7",
        "link set dev net7 up",
    ] {
        pod.ip(line);
    }
    // another netdev with this name, which rdma-cni did not create
    pod.ip("link add name rdma0 type veth peer name rdma0-peer");
    let mut with_result = configuration.clone();
    with_result["prevResult"] = result;
    let call = node.invoke("CHECK", "7", pod.path());
    call.input(&with_result).run().failure();
    node.del(&configuration, "7", &pod);
    assert!(!pod.has_link("net7") && pod.has_link("rdma0"));
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

#[test]
fn a_namespace_that_was_deleted_leaves_nothing() {
    let (node, configuration) = shared();
    let before = Snapshot::of(&node.host);
    let (pod, _) = started(&node, &configuration, 7);
    let (other, _) = started(&node, &configuration, 8);
    pod.die();
    for _ in 0..2 {
        node.del(&configuration, "7", &pod);
    }
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0", "rdma0"]);
    // the other pod's netdev still works
    ping(&other, "10.0.0.254");
    other.die();
    node.del(&configuration, "8", &other);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

#[test]
fn drift_of_a_child_is_reported() {
    let cases: [(&str, &[&str]); 7] = [
        ("link del dev rdma0", &["rdma0 is not in the pod"]),
        (
            "link set dev rdma0 type macvlan mode private",
            &["rdma0 is macvlan mode private, not macvlan mode bridge"],
        ),
        (
            "link set dev rdma0 type macvlan mode source flag nodst macaddr add 02:00:00:00:00:77",
            &[
                "rdma0 is macvlan mode source nodst, not macvlan mode bridge",
                "a netdev in mode source receives the frames of the senders that it lists",
            ],
        ),
        (
            "link set dev rdma0 type macvlan mode bridge flag nodst",
            &["rdma0 is macvlan mode bridge nodst, not macvlan mode bridge"],
        ),
        ("link set dev rdma0 mtu 1400", &["1400"]),
        (
            "link set dev rdma0 address 02:00:00:00:77:77",
            &["02:00:00:00:77:77"],
        ),
        ("address del 10.0.0.7/24 dev rdma0", &["10.0.0.7/24"]),
    ];
    for (change, words) in cases {
        let (node, configuration) = shared();
        let (pod, result) = started(&node, &configuration, 7);
        pod.ip(change);
        let mut with_result = configuration.clone();
        with_result["prevResult"] = result;
        let call = node.invoke("CHECK", "7", pod.path());
        let text = call.input(&with_result).run().failure().text();
        for word in words {
            assert!(
                text.contains(word),
                "{change}: {word:?} is not reported in {text:?}"
            );
        }
        node.del(&configuration, "7", &pod);
        assert!(!pod.has_link("rdma0"));
    }
}

/// A macvlan that the pod creates on its child lies on the host's netdev. The pod needs no right on the host for this,
/// and could receive other pods' frames with the macvlan as long as the pod's namespace exists.
#[test]
fn a_child_that_the_pod_made_beside_its_own_ends_with_del() {
    let (node, configuration) = shared();
    let before = Snapshot::of(&node.host);
    let (pod, _) = started(&node, &configuration, 7);
    let (other, _) = started(&node, &configuration, 8);
    pod.ip("link add name own0 type veth peer name own1");
    for line in [
        "link add link rdma0 name more0 type macvlan mode source",
        "link add link more0 name more1 type macvtap mode bridge",
        "link add link own0 name kept0 type macvlan mode bridge",
        "link set dev more0 up",
    ] {
        pod.ip(line);
    }
    node.del(&configuration, "7", &pod);
    for link in ["rdma0", "more0", "more1"] {
        assert!(!pod.has_link(link), "{link}: {}", pod.ip("link show"));
    }
    assert!(
        pod.has_link("kept0"),
        "it lies on a netdev of the pod's own"
    );
    ping(&other, "10.0.0.254");
    node.del(&configuration, "8", &other);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

/// Moves `link` of the host into `pod` as `name`, with the name on the host as its alias, as CNI's host-device does.
fn moved_by_host_device(node: &Node, link: &str, pod: &Netns, name: &str) {
    for line in [
        format!("link set dev {link} alias {link}"),
        format!("link set dev {link} netns {} name {name}", pod.name()),
    ] {
        node.host.ip(&line);
    }
}

/// With Multus, the DEL of the attachment at `eth0` runs after host-device's DEL, which can have failed.
#[test]
fn a_netdev_of_the_host_that_another_plugin_left_in_the_pod_stays() {
    let (node, configuration) = shared();
    for line in [
        "link add link eth1 name hosts0 index 90 type macvlan mode bridge",
        "link add link eth1 name hosts1 index 91 type macvlan mode bridge",
        "link set dev hosts0 alias hosts0",
        "link set dev hosts1 alias hosts1",
    ] {
        node.host.ip(line);
    }
    let before = Snapshot::of(&node.host);
    let (pod, _) = started(&node, &configuration, 7);
    moved_by_host_device(&node, "hosts0", &pod, "net1");
    // hosts1 gets another index in the pod
    pod.ip("link add name own0 index 91 type veth peer name own1");
    moved_by_host_device(&node, "hosts1", &pod, "net2");
    node.del(&configuration, "7", &pod);
    assert!(!pod.has_link("rdma0"));
    for (link, name) in [("net1", "hosts0"), ("net2", "hosts1")] {
        assert!(pod.has_link(link), "{link}: {}", pod.ip("link show"));
        let host = node.host.name();
        pod.ip(&format!("link set dev {link} netns {host} name {name}"));
    }
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

/// DEL reports a netdev that may belong to the host, and the next DEL removes it. Either host-device moved it after
/// ADD, or the pod created it and gave it an alias: the kernel does not tell which.
#[test]
fn a_netdev_that_may_be_the_hosts_is_reported_before_it_is_removed() {
    let (node, configuration) = shared();
    let (pod, _) = started(&node, &configuration, 7);
    node.host
        .ip("link add link eth1 name hosts0 type macvlan mode bridge");
    moved_by_host_device(&node, "hosts0", &pod, "net1");
    pod.ip("link add link rdma0 name more0 type macvlan mode bridge");
    let call = node.invoke("DEL", "7", pod.path());
    let text = call.input(&configuration).run().failure().text();
    assert!(
        text.contains("net1 of the pod has the alias hosts0"),
        "{text}"
    );
    assert!(pod.has_link("net1"), "{}", pod.ip("link show"));
    assert!(!pod.has_link("rdma0") && !pod.has_link("more0"));
    node.del(&configuration, "7", &pod);
    assert!(!pod.has_link("net1"), "{}", pod.ip("link show"));
    assert!(node.records().is_empty() && node.ipam.interfaces("DEL") == ["rdma0"]);
}

/// Since ADD, the host has lost a netdev. A netdev in the pod has the lost netdev's index, or its name as alias: the
/// pod may have created this netdev, or host-device may have moved it. DEL leaves the netdev in the pod, and reports
/// it.
#[test]
fn a_netdev_with_the_index_or_the_name_of_one_that_the_host_lost_is_reported() {
    for (index, alias) in [("index 90", "own0"), ("", "hosts0")] {
        let (node, configuration) = shared();
        let hosts = "link add link eth1 name hosts0 index 90 type macvlan mode bridge";
        node.host.ip(hosts);
        let (pod, _) = started(&node, &configuration, 7);
        node.host.ip("link del dev hosts0");
        let made = format!("link add link rdma0 name more0 {index} type macvlan mode bridge");
        pod.ip(&made);
        pod.ip(&format!("link set dev more0 alias {alias}"));
        let call = node.invoke("DEL", "7", pod.path());
        let deleted = call.input(&configuration).run();
        assert!(deleted.status.success(), "{made}: {}", deleted.stderr);
        let message = "more0 stays in the pod";
        assert!(
            deleted.stderr.contains(message),
            "{made}: {}",
            deleted.stderr
        );
        assert!(deleted.stderr.contains("hosts0"), "{}", deleted.stderr);
        assert!(pod.has_link("more0") && !pod.has_link("rdma0"), "{made}");
    }
}

/// Another attachment of the same pod has its own child of the netdev.
#[test]
fn a_child_of_the_pods_other_attachment_stays() {
    let (node, configuration) = shared();
    let (pod, _) = started(&node, &configuration, 7);
    let mut second = configuration.clone();
    second["name"] = "second".into();
    second["interfaceName"] = "net%d".into();
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "fd00::17/64"}]}));
    node.add(&second, "7", &pod);
    node.del(&configuration, "7", &pod);
    assert!(!pod.has_link("rdma0") && pod.has_link("net0"));
    node.del(&second, "7", &pod);
    assert!(!pod.has_link("net0") && node.records().is_empty());
}

#[test]
fn the_doctor_reports_a_child_in_another_mode() {
    let (node, configuration) = shared();
    let (pod, _) = started(&node, &configuration, 7);
    let doctor = || {
        let mut doctor = node.host.command(integration::daemon::rdma_device_plugin());
        let doctor = doctor.args(["doctor", "--state-dir"]).arg(node.state());
        let output = doctor.output().expect("it can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!doctor().contains("mode"), "{}", doctor());
    pod.ip("link set dev rdma0 type macvlan mode source");
    let report = doctor().split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "container 7",
        "rdma0 is macvlan mode source, not macvlan mode bridge",
        "give NET_ADMIN to no pod that has a shared rail",
    ] {
        assert!(report.contains(words), "{words:?} is not in {report}");
    }
    node.del(&configuration, "7", &pod);
}

#[test]
fn shared_devices_stay_and_free_ones_move() {
    let (node, mut configuration) = shared();
    let before = Snapshot::of(&node.host);
    let (pod, _) = started(&node, &configuration, 7);
    let second = node.pod("second");
    configuration["mode"] = "move".into();
    let call = node.invoke("ADD", "8", second.path());
    let text = call.input(&configuration).run().error(101);
    assert!(text.contains("container 7"), "{text}");
    assert!(node.host.has_link("eth1") && pod.has_link("rdma0"));
    configuration["mode"] = "auto".into();
    let (third, _) = started(&node, &configuration, 9);
    assert!(node.host.has_link("eth1"));
    node.del(&configuration, "9", &third);
    node.del(&configuration, "7", &pod);
    before.assert_restored(&node.host);
    let (fourth, _) = started(&node, &configuration, 10);
    assert!(!node.host.has_link("eth1"), "it is free: auto moves it");
    node.del(&configuration, "10", &fourth);
    wait::until("it is on the host", || node.host.has_link("eth1"));
}

/// Without an assigned address, a child has no address to which a route leads. An RDMA program would only run into a
/// timeout.
#[test]
fn a_child_that_nobody_gives_an_address_is_reported() {
    let (node, mut configuration) = shared();
    let pod = node.pod("pod");
    let mut is_reported = |fields: Value| {
        configuration["ipam"] = fields["ipam"].clone();
        configuration["ipv6"] = fields["ipv6"].clone();
        let added = node.invoke("ADD", "7", pod.path()).input(&configuration);
        let added = added.run();
        added.result();
        let sentence = "rdma0 has only a link-local IPv6 address: a child of eth1 gets addresses from `ipam`, which \
                        is not configured";
        let is_logged = added.stderr.contains(sentence);
        node.del(&configuration, "7", &pod);
        is_logged
    };
    assert!(is_reported(json!({})));
    assert!(!is_reported(json!({"ipv6": {"acceptRA": true}})));
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "fd00::7/64"}]}));
    assert!(!is_reported(json!({"ipam": {"type": ipam::NAME}})));
}

#[test]
fn refused_in_words_and_without_a_trace() {
    let (node, configuration) = shared();
    let pod = node.pod("pod");
    let refused = |fields: Value, code| {
        let mut configuration = configuration.clone();
        for (key, value) in fields.as_object().expect("an object") {
            configuration[key] = value.clone();
        }
        let before = Snapshot::of(&node.host);
        let call = node.invoke("ADD", "a", pod.path());
        let text = call.input(&configuration).run().error(code);
        before.assert_restored(&node.host);
        assert!(node.records().is_empty() && !pod.has_link("rdma0"));
        assert!(node.ipam.calls().is_empty());
        text
    };
    let text = refused(json!({"mtu": 1600}), 7);
    assert!(text.contains("1600") && text.contains("1500"), "{text}");
    node.host.ip("link set dev eth1 down");
    let text = refused(json!({}), 100);
    assert!(text.contains("eth1 is down"), "{text}");
    node.host.ip("link set dev eth1 up");
    node.host.ip("link add name br1 type bridge");
    node.host.ip("link set dev eth1 master br1");
    let text = refused(json!({}), 102);
    assert!(text.contains("eth1") && text.contains("bridge"), "{text}");
}

#[test]
fn a_plan_has_the_child() {
    let (node, configuration) = shared();
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let call = node.invoke("ADD", "a", pod.path());
    let call = call.without("CNI_COMMAND").argument("plan");
    let text = call.input(&configuration).run().stdout;
    let name = pod.name();
    let line = format!(
        "ip link add link eth1 name rdma0 netns {name} mtu 1500 type macvlan mode bridge\n"
    );
    assert!(text.contains(&line), "no {line:?} in {text}");
    before.assert_restored(&node.host);
}
