// SPDX-License-Identifier: Apache-2.0
//! In the lab, `rdma-device-plugin ping` between pods and from the node: `integration/lab/vm --tier full --exclusive`.

mod fabric;
mod swapped;

use integration::{
    ApiServer, Attachment, Conflist, Netns,
    api_server::NODE,
    daemon::rdma_device_plugin,
    lab::{Lab, ipv4, ipv6, verbs_devices},
    verify,
};
use rdma_netns::netns;
use serde_json::{Value, json};
use std::{thread, time::Duration};

/// Two pods with two rails each, on soft-RoCE with the kernel's real connection manager.
struct TwoPods {
    lab: Lab,
    pods: [Netns; 2],
}

const NAMES: [&str; 2] = ["one", "two"];

impl TwoPods {
    #[track_caller]
    fn new() -> Self {
        let lab = Lab::new(2);
        lab.give_addresses();
        let pods = NAMES.map(|name| lab.pod(name));
        for pod in 0..2 {
            let added = lab
                .runtime()
                .add(&Self::list(&lab, pod), &Self::attachment(&pods, pod));
            added.unwrap_or_else(|outcome| panic!("{outcome}"));
        }
        Self { lab, pods }
    }

    fn list(lab: &Lab, pod: usize) -> Conflist {
        Conflist::new("1.1.0", vec![lab.configuration(pod)])
    }

    fn attachment(pods: &[Netns; 2], pod: usize) -> Attachment {
        let container = format!("container-{pod}");
        Attachment::new(&container, pods[pod].path(), "eth0").of_pod("default", NAMES[pod])
    }

    /// The exit code and the standard output of `ping` on the node.
    #[track_caller]
    fn ping(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = self.lab.host.command(rdma_device_plugin());
        command.arg("ping").args(arguments);
        command.arg("--state-dir").arg(self.lab.state());
        let output = command.output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors, "");
        let code = output.status.code().expect("not killed");
        (code, String::from_utf8(output.stdout).expect("UTF-8"))
    }

    /// The result of `ping --json` with exactly one pair.
    #[track_caller]
    fn pair(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, text) = self.ping(&[arguments, &["--json"]].concat());
        let mut document: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(document["pairs"].as_array().map(Vec::len), Some(1));
        (code, document["pairs"][0].take())
    }
}

impl Drop for TwoPods {
    fn drop(&mut self) {
        for pod in 0..2 {
            let list = Self::list(&self.lab, pod);
            let deleted = self
                .lab
                .runtime()
                .del(&list, &Self::attachment(&self.pods, pod));
            if let Err(outcome) = deleted {
                eprintln!("{outcome}");
            }
        }
    }
}

/// Options for requests that the peer answers. In the emulated machine an answer can take more than a second, and the
/// kernel repeats a lost request after 4 s.
const PATIENT: [&str; 4] = ["--interval", "0.1", "--timeout", "10"];

/// The steps share the pods, because ADD and DEL take longer in the emulated machine than a ping. The last step sets links
/// down, and so removes IPv6 addresses.
#[test]
fn pods_and_nodes_ping_each_other() {
    let scene = TwoPods::new();
    a_pod_pings_each_rail_of_another_one(&scene);
    a_matrix_has_each_rail_by_each_rail(&scene);
    doctor_pings_another_pod(&scene);
    a_node_is_pinged_by_the_slices_of_both(&scene);
    two_pods_verify_each_other(&scene);
    each_silence_has_its_reason(&scene);
}

/// Pings with both address families from inside a pod to the other pod, in which no server listens.
fn a_pod_pings_each_rail_of_another_one(scene: &TwoPods) {
    for address in [ipv4(0, 1), ipv6(0, 1), ipv4(1, 1), ipv6(1, 1)] {
        let options = [&["--pod", "default/one", "--count", "3"], &PATIENT[..]].concat();
        let (code, text) = scene.ping(&[&[address.as_str()], &options[..]].concat());
        assert_eq!(code, 0, "{text}");
        for round in 1..=3 {
            let line = format!("answer from {address}: seq={round} time=");
            assert!(text.contains(&line), "no {line:?} in {text}");
        }
        let summary = format!("{address}: 3 sent, 3 answered; min/median/p99/max ");
        assert!(text.contains(&summary), "{text}");
    }
    let from = &scene.lab.rails(0)[1].rdma;
    let options = [
        "--pod",
        "default/one",
        "--count",
        "1",
        "--traffic-class",
        "106",
        "--timeout",
        "10",
    ];
    let address = ipv4(1, 1);
    for own in ["rdma1", from, &ipv4(1, 0)] {
        let (code, pair) = scene.pair(&[&[&*address, "--from", own], &options[..]].concat());
        assert_eq!(code, 0, "{pair}");
        assert_eq!(pair["from"]["device"], **from, "{pair}");
        assert_eq!(pair["from"]["address"], ipv4(1, 0), "{pair}");
    }
}

/// A StatefulSet's pod is created again with its name while the record of the previous sandbox exists.
#[test]
#[ignore = "scripts/test --full: a unit test tries the newest record of a pod first"]
fn the_newer_of_two_sandboxes_pings() {
    let scene = TwoPods::new();
    let (lab, pods) = (&scene.lab, &scene.pods);
    let list = TwoPods::list(lab, 1);
    let two = TwoPods::attachment(pods, 1);
    let deleted = lab.runtime().del(&list, &two);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    // the times in records have a resolution of seconds
    thread::sleep(Duration::from_secs(1));
    let anew = Attachment::new("container-9", pods[1].path(), "eth0").of_pod("default", "one");
    let added = lab.runtime().add(&list, &anew);
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    let options = [&["--pod", "default/one", "--count", "1"], &PATIENT[..]].concat();
    let (code, pair) = scene.pair(&[&[&*ipv4(0, 0)], &options[..]].concat());
    assert_eq!(code, 0, "{pair}");
    assert_eq!(pair["from"]["address"], ipv4(0, 1), "{pair}");
    let (_, text) = scene.ping(&[
        "default/one",
        "--pod",
        "default/one",
        "--count",
        "1",
        "--json",
    ]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let pairs = document["pairs"].as_array().expect("pairs");
    assert_eq!(pairs.len(), 4, "two rails to two: {text}");
    let deleted = lab.runtime().del(&list, &anew);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
}

fn a_matrix_has_each_rail_by_each_rail(scene: &TwoPods) {
    let options = [&["--pod", "default/one", "--count", "2"], &PATIENT[..]].concat();
    let (code, text) = scene.ping(&[&["default/two"], &options[..]].concat());
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["rdma0", "of", "default/two", "rdma1", "of", "default/two"],
        "{text}"
    );
    for (rail, line) in lines[1..3].iter().enumerate() {
        let cells: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect();
        assert_eq!(cells[0], format!("rdma{rail}"), "{text}");
        // both NICs are on one hub
        assert_eq!(cells.len(), 3, "{text}");
        assert!(cells[1..].iter().all(|it| it.ends_with(" ms")), "{text}");
    }
}

/// `doctor pod` shows the rails, and pings from inside the pod.
fn doctor_pings_another_pod(scene: &TwoPods) {
    let doctor = |arguments: &[&str]| {
        let mut command = scene.lab.host.command(rdma_device_plugin());
        command
            .args(["doctor", "pod", "one", "--to"])
            .args(arguments);
        command.arg("--state-dir").arg(scene.lab.state());
        let output = command.output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        (output.status.code(), text, errors)
    };
    // `doctor` waits a second for each answer, which can be too short in an emulated machine
    let answered = |arguments: &[&str]| {
        let attempt = || doctor(arguments);
        let first = (0..4)
            .map(|_| attempt())
            .find(|(code, ..)| *code == Some(0));
        let (code, text, errors) = first.unwrap_or_else(attempt);
        assert_eq!((code, &*errors), (Some(0), ""), "{text}");
        text
    };
    let text = answered(&["two"]);
    let (rails, answers) = text.split_once("rdma0 of default/two").expect("a matrix");
    assert!(rails.starts_with("default/one, "), "{text}");
    assert!(rails.contains("NCCL_IB_GID_INDEX=3"), "{text}");
    assert_eq!(answers.matches(" ms").count(), 4, "{text}");
    let text = answered(&[&*ipv6(1, 1), "--json"]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["pairs"][0]["answered"], 5);
    let (code, text, errors) = doctor(&["three"]);
    assert_eq!((code, &*text), (Some(2), ""));
    assert!(
        errors.contains("no pod \"three\" has rails on this node"),
        "{errors}"
    );
}

/// RDMA fails in three ways, and each failure has its own message.
fn each_silence_has_its_reason(scene: &TwoPods) {
    let [_, two] = &scene.pods;
    let address = ipv4(0, 1);
    let ping = |address: &str, timeout: &str| {
        let options = ["--pod", "default/one", "--count", "1", "--timeout", timeout];
        scene.pair(&[&[address], &options[..]].concat())
    };
    let pair = |address: &str| ping(address, "2");
    let (code, answered) = ping(&address, "10");
    assert_eq!((code, &answered["answered"]), (0, &1.into()), "{answered}");

    // The peer drops UDP port 4791, as a firewall or a switch does. ICMP passes.
    for line in [
        "rule add pref 10 lookup local",
        "rule del pref 0",
        "rule add pref 5 ipproto udp dport 4791 blackhole",
    ] {
        two.ip(line);
    }
    let (mut code, mut dropped) = pair(&address);
    if dropped["icmp"] == false {
        // the ICMP answer was late
        (code, dropped) = ping(&address, "10");
    }
    assert_eq!((code, &dropped["icmp"]), (1, &true.into()), "{dropped}");
    let reason = dropped["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("RDMA does not answer: ")
            && reason.ends_with("; the address answers ICMP"),
        "{reason}"
    );
    two.ip("rule del pref 5");
    assert_eq!(ping(&address, "10").0, 0, "it answers again");

    // The peer does not respond at all.
    two.ip("link set dev rdma0 down");
    let (code, gone) = pair(&address);
    assert_eq!(code, 1, "{gone}");
    let reason = gone["reason"].as_str().expect("a reason");
    assert!(reason.contains("does not answer"), "{reason}");
    assert_ne!(gone["icmp"], Value::Bool(true), "{gone}");
    two.ip("link set dev rdma0 up");

    // No route and no RDMA device leads to this address.
    let (code, unrouted) = pair("192.0.2.1");
    assert_eq!((code, &unrouted["answered"]), (1, &0.into()), "{unrouted}");
    let reason = unrouted["reason"].as_str().expect("a reason");
    assert_eq!(reason, "no route leads to 192.0.2.1");
    assert_eq!(verbs_devices(&scene.lab.host), Vec::<String>::new());
}

/// Two pods verify each other as in `conf/examples/verify.yaml`: each pod sees only its own RDMA devices, and has no
/// capability.
fn two_pods_verify_each_other(scene: &TwoPods) {
    let pods = scene.pods.each_ref();
    let addresses = [ipv4(0, 0), ipv4(0, 1)];
    let addresses = addresses.each_ref().map(String::as_str);
    let options = [&["--count", "2"], &PATIENT[..]].concat();
    let [one, two] = verify::exchange(pods, addresses, &options);
    assert_eq!((one.0, two.0), (0, 0), "{}{}", one.1, two.1);
    verify::is_a_table_of_two_rails(&one.1, "node-0", "node-1");
    verify::is_a_table_of_two_rails(&two.1, "node-1", "node-0");

    // If a rail's peer drops UDP port 4791, both directions of this rail fail, and the other rail is still reported.
    for line in [
        "rule add pref 10 lookup local",
        "rule del pref 0",
        "rule add pref 5 ipproto udp dport 4791 iif rdma1 blackhole",
        "-6 rule add pref 10 lookup local",
        "-6 rule del pref 0",
        "-6 rule add pref 5 ipproto udp dport 4791 iif rdma1 blackhole",
    ] {
        pods[1].ip(line);
    }
    let verify = |timeout: &str| {
        let json = [
            "--count",
            "2",
            "--interval",
            "0.1",
            "--timeout",
            timeout,
            "--json",
        ];
        let [one, two] = verify::exchange(pods, addresses, &json);
        assert_eq!((one.0, two.0), (1, 1), "{}{}", one.1, two.1);
        let document: Value = serde_json::from_str(&one.1).expect("JSON");
        document
    };
    let same = |document: &Value, rail: &str| {
        let pairs = document["pairs"].as_array().expect("pairs");
        assert_eq!(pairs.len(), 4);
        let is_same = |it: &&Value| {
            [&it["from"]["rail"], &it["to"]["rail"]].map(|it| it == rail) == [true; 2]
        };
        pairs.iter().find(is_same).expect("the pair").clone()
    };
    let mut document = verify("2");
    if same(&document, "rdma0")["answered"] != 2 {
        // an answer was late
        document = verify("10");
    }
    assert_eq!(same(&document, "rdma0")["answered"], 2, "{document}");
    let silent = same(&document, "rdma1");
    assert_eq!(silent["answered"], 0, "{document}");
    let reason = silent["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("RDMA does not answer: "), "{reason}");
    for line in [
        "rule add pref 0 lookup local",
        "rule del pref 10",
        "rule del pref 5",
        "-6 rule add pref 0 lookup local",
        "-6 rule del pref 10",
        "-6 rule del pref 5",
    ] {
        pods[1].ip(line);
    }
}

/// The two pods act as nodes, which have slices in a stand-in for the API server.
fn a_node_is_pinged_by_the_slices_of_both(scene: &TwoPods) {
    let [one, _] = &scene.pods;
    one.ip("link set dev lo up");
    let inside = netns::Netns::open(one.path()).expect("a namespace");
    let api = inside.run(ApiServer::start).expect("entered");
    let publish = |node: &str, pod: usize, rails: &[usize]| {
        let device = |rail: &usize| {
            json!({"attributes": {
                "resource": {"string": "rdma/hca"}, "rail": {"int": rail},
                "netdev": {"string": format!("rdma{rail}")},
                "ipv6Address": {"string": ipv6(*rail, pod)}, "ipv4Address": {"string": ipv4(*rail, pod)},
            }})
        };
        let devices: Vec<Value> = rails.iter().map(device).collect();
        let path = format!("/apis/resource.k8s.io/v1/resourceslices/{node}");
        api.put(
            &path,
            json!({"spec": {"nodeName": node, "devices": devices}}),
        );
    };
    let ping = |options: &[&str]| {
        let mut command = one.command(rdma_device_plugin());
        command.args(["ping", "node-2", "--count", "2"]);
        command.args(PATIENT).args(options).envs(api.environment());
        command.arg("--service-account-dir").arg(api.account());
        let output = command.output().expect("it starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        let code = output.status.code().expect("not killed");
        (code, text(output.stdout), text(output.stderr))
    };
    publish(NODE, 0, &[0, 1]);
    let (code, _, errors) = ping(&[]);
    assert_eq!(code, 1);
    let words = "no ResourceSlice of node node-2 has a rail";
    assert!(errors.contains(words), "{errors}");

    publish("node-2", 1, &[0, 1]);
    let (code, text, errors) = ping(&[]);
    assert_eq!((code, &*errors), (0, ""), "{text}");
    let head = "rails of node-1 (rows) to rails of node-2 (columns)";
    assert!(text.starts_with(head), "{text}");
    let answers = text.matches(" ms").count();
    assert_eq!(answers, 2, "each rail to the same one: {text}");
    let (code, text, errors) = ping(&["--all"]);
    assert_eq!((code, &*errors), (0, ""), "{text}");
    verify::is_a_table_of_two_rails(&text, NODE, "node-2");
    let (code, text, _) = ping(&["--from", "rdma1", "--json"]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let pairs = document["pairs"].as_array().expect("pairs");
    assert_eq!((code, pairs.len()), (0, 1), "{text}");
    assert_eq!(pairs[0]["to"]["address"], ipv6(1, 1), "{text}");

    publish("node-2", 1, &[0]);
    let (code, text, _) = ping(&[]);
    assert_eq!(code, 1, "{text}");
    let last = "rdma1: node-2 has no such rail\n";
    assert!(text.ends_with(last), "{text}");
}
