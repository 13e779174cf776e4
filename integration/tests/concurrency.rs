// SPDX-License-Identifier: Apache-2.0
//! Several plugins at the same time, and records whose pods are gone.

use integration::{
    Netns, Node, Outcome, Snapshot, ipam,
    stopwatch::{self, Stopwatch},
    wait,
};
use serde_json::{Value, json};
use std::{
    fs,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Number of netdevs of a pod whose removal takes a long time.
const NETDEVS: usize = 6000;

/// Runs ADD for all `pods` at the same moment.
fn add_at_once(node: &Node, configuration: &Value, pods: &[(&str, &Netns)]) -> Vec<Outcome> {
    let start = Barrier::new(pods.len());
    thread::scope(|scope| {
        let threads: Vec<_> = pods
            .iter()
            .map(|(container, pod)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let call = node
                        .invoke("ADD", container, pod.path())
                        .input(configuration);
                    let args = format!("K8S_POD_NAMESPACE=team;K8S_POD_NAME=pod-{container}");
                    call.env("CNI_ARGS", args).run()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn one_of_two_adds_wins_and_the_other_names_the_holder() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    for _ in 0..5 {
        let (first, second) = (node.pod("first"), node.pod("second"));
        let pods = [("first", &first), ("second", &second)];
        let outcomes = add_at_once(&node, &configuration, &pods);
        let winner = outcomes
            .iter()
            .position(|outcome| outcome.status.success())
            .unwrap_or_else(|| panic!("nobody won: {} {}", outcomes[0], outcomes[1]));
        let (name, pod) = pods[winner];
        let (loser, other) = pods[1 - winner];
        let text = outcomes[1 - winner].error(101);
        assert!(
            text.contains(name),
            "the holder's container is not reported: {text}"
        );
        assert!(
            text.contains(&format!("team/pod-{name}")),
            "nor its pod: {text}"
        );
        assert!(pod.has_link("rdma0") && !other.has_link("rdma0"));
        // A runtime sends DEL for an ADD that failed; this must not affect the successful pod.
        node.del(&configuration, loser, other);
        assert!(
            pod.has_link("rdma0"),
            "the loser's DEL took the winner's device"
        );
        node.del(&configuration, name, pod);
        before.assert_restored(&node.host);
        assert!(node.records().is_empty());
    }
}

#[test]
fn a_second_add_for_the_same_attachment_is_refused_and_harms_nothing() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    node.add(&configuration, "a", &pod);
    let in_pod = Snapshot::of(&pod);
    node.invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .failure();
    in_pod.assert_restored(&pod);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn a_slow_del_of_an_old_pod_does_not_reset_what_a_new_pod_holds() {
    let node = Node::with_rails(1);
    let (old, new) = (node.pod("old"), node.pod("new"));
    let before = Snapshot::of(&node.host);
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.0.0.7/24"}]}));
    let mut old_conf = node.configuration(&["eth1"]);
    old_conf["ipam"] = json!({"type": ipam::NAME});
    let mut new_conf = node.configuration(&["eth1"]);
    new_conf["cniVersion"] = "1.0.0".into();
    new_conf["ipam"] = json!({"type": "static", "addresses": [{"address": "10.0.0.8/24"}]});

    node.add(&old_conf, "old", &old);
    node.ipam.hold("DEL");
    let slow = node
        .invoke("DEL", "old", old.path())
        .input(&old_conf)
        .start();
    wait::until("the slow DEL waits for its IPAM plugin", || {
        !node.ipam.interfaces("DEL").is_empty()
    });
    let mut add = node
        .invoke("ADD", "new", new.path())
        .input(&new_conf)
        .start();
    // Meanwhile ADD of a new pod waits, fails, or gets the device. In no case does the new pod lose the device again.
    let early = stopwatch::within(Duration::from_secs(3), || add.ends_within(Duration::ZERO));
    node.ipam.release("DEL");
    slow.wait().silent();
    let outcome = add.wait();
    if !outcome.status.success() {
        assert!(early, "ADD waited, and failed: {outcome}");
        outcome.error(101);
        node.add(&new_conf, "new", &new);
    }
    let in_pod = Snapshot::of(&new);
    assert_eq!(new.addresses("rdma0"), ["10.0.0.8/24"]);
    for _ in 0..2 {
        node.del(&old_conf, "old", &old);
        in_pod.assert_restored(&new);
    }
    assert!(node.record("net", "new").exists());
    node.del(&new_conf, "new", &new);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

#[test]
fn a_record_from_before_a_reboot_does_not_block() {
    let node = Node::with_rails(1);
    let (old, new) = (node.pod("old"), node.pod("new"));
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    node.add(&configuration, "old", &old);
    let record = node.record("net", "old");
    let text = fs::read_to_string(&record).expect("the record");
    node.del(&configuration, "old", &old);

    // This is the state after a reboot: the device is on the host, and the record has the id of another boot.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    assert!(
        text.contains(boot.trim()),
        "the record has no boot id: {text}"
    );
    let text = text.replace(boot.trim(), "11111111-2222-3333-4444-555555555555");
    fs::write(&record, text).expect("the old record");
    node.add(&configuration, "new", &new);
    let in_pod = Snapshot::of(&new);

    // At its start, kubelet deletes the old pod.
    node.del(&configuration, "old", &old);
    assert!(!record.exists(), "the old record was left");
    in_pod.assert_restored(&new);
    node.del(&configuration, "new", &new);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

#[test]
fn a_pod_that_died_without_a_del_does_not_block() {
    let node = Node::with_rails(1);
    let (dead, new) = (node.pod("dead"), node.pod("new"));
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.0.0.7/24"}]}));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    node.add(&configuration, "dead", &dead);
    dead.die();
    wait::until("the kernel destroyed the veth", || {
        !node.switch.has_link("to-eth1")
    });
    node.add_rail("eth1");
    let before = Snapshot::of(&node.host);
    node.add(&configuration, "new", &new);
    assert!(
        !node.record("net", "dead").exists(),
        "the dead pod's record was left"
    );
    let calls = node.ipam.calls();
    let given_back = |call: &ipam::Call| call.command == "DEL" && call.container == "dead";
    assert!(
        calls.iter().any(given_back),
        "its address was not given back: {calls:?}"
    );
    node.del(&configuration, "new", &new);
    before.assert_restored(&node.host);
}

#[test]
fn a_pod_on_another_network_keeps_its_device() {
    let node = Node::with_rails(1);
    let (one, two) = (node.pod("one"), node.pod("two"));
    let configuration = node.configuration(&["eth1"]);
    let mut elsewhere = configuration.clone();
    elsewhere["name"] = "elsewhere".into();
    node.add(&configuration, "one", &one);
    let text = node
        .invoke("ADD", "two", two.path())
        .input(&elsewhere)
        .run()
        .error(101);
    assert!(text.contains("one"), "{text}");
    node.del(&elsewhere, "two", &two);
    assert!(one.has_link("rdma0"));
}

#[test]
fn sixteen_pods_come_and_go_at_once() {
    const PODS: u32 = 16;
    let node = Node::with_rails(PODS);
    let before = Snapshot::of(&node.host);
    let pods: Vec<Netns> = (0..PODS)
        .map(|number| node.pod(&format!("p{number}")))
        .collect();
    let start = Barrier::new(pods.len());
    thread::scope(|scope| {
        for (number, pod) in (1..).zip(&pods) {
            let (node, start) = (&node, &start);
            scope.spawn(move || {
                let netdev = format!("eth{number}");
                let container = format!("container-{number}");
                let mut configuration = node.configuration(&[&netdev]);
                let address = format!("10.0.0.{number}/24");
                configuration["cniVersion"] = "1.0.0".into();
                configuration["ipam"] =
                    json!({"type": "static", "addresses": [{"address": address}]});
                let mac = node.host.link(&netdev).expect("its netdev")["address"].clone();
                start.wait();
                for _ in 0..2 {
                    node.add(&configuration, &container, pod);
                    assert_eq!(pod.link("rdma0").expect("its rail")["address"], mac);
                    assert_eq!(pod.addresses("rdma0"), [address.as_str()]);
                    node.del(&configuration, &container, pod);
                    assert!(!pod.has_link("rdma0"));
                }
            });
        }
    });
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

/// The ADD of another pod continues a killed DEL by one batch of netdevs, and logs no failure.
#[test]
fn a_removal_that_continues_is_no_failure() {
    let node = Node::with_rails(2);
    let (crowded, other) = (node.pod("crowded"), node.pod("other"));
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "crowded", &crowded);
    let uppers = (0..600).map(|it| format!("link add link rdma0 name m{it} type macvlan"));
    crowded.ip_batch(&uppers.collect::<Vec<_>>());
    let record = node.record("net", "crowded");
    let text = std::fs::read_to_string(&record).expect("a record");
    let killed = text.replace("\"attached\"", "\"detaching\"");
    assert_ne!(text, killed);
    std::fs::write(&record, killed).expect("written");
    let mut others = node.configuration(&["eth2"]);
    others["name"] = json!("other");
    let added = node
        .invoke("ADD", "other", other.path())
        .input(&others)
        .run();
    assert!(added.status.success(), "{added}");
    let words = "continues with the next DEL, GC or ADD";
    assert!(added.stderr.contains(words), "{added}");
    for failure in ["cannot be recovered", "another program undid"] {
        assert!(!added.stderr.contains(failure), "{added}");
    }
    assert!(record.exists(), "netdevs are left");
    node.del(&others, "other", &other);
    node.del(&rails, "crowded", &crowded);
    node.assert_restored(&before);
}

/// A pod with `NET_ADMIN` can create as many netdevs on its rail as its memory permits. While DEL removes them, verbs
/// of other pods wait for about one batch.
#[test]
fn a_del_that_removes_thousands_of_netdevs_keeps_no_other_pod_waiting() {
    let node = Node::with_rails(2);
    let (crowded, other) = (node.pod("crowded"), node.pod("other"));
    let before = Snapshot::of(&node.host);
    let rails = node.configuration(&["eth1"]);
    node.add(&rails, "crowded", &crowded);
    let uppers = (0..NETDEVS).map(|it| format!("link add link rdma0 name m{it} type macvlan"));
    crowded.ip_batch(&uppers.collect::<Vec<_>>());
    let mut others = node.configuration(&["eth2"]);
    others["name"] = json!("other");
    let begun = Instant::now();
    let slow = node
        .invoke("DEL", "crowded", crowded.path())
        .input(&rails)
        .start();
    let mut longest = Duration::ZERO;
    while node.record("net", "crowded").exists() {
        let mut timed = |verb: &dyn Fn()| {
            let begun = Stopwatch::start();
            verb();
            longest = longest.max(begun.elapsed());
        };
        timed(&|| drop(node.add(&others, "other", &other)));
        timed(&|| node.del(&others, "other", &other));
    }
    slow.wait().silent();
    let total = begun.elapsed();
    // this ratio does not depend on the speed of the machine
    assert!(longest * 3 < total, "{longest:?} of {total:?}");
    let left = crowded.show("link show type macvlan");
    assert!(left.is_empty(), "{left:?}");
    node.assert_restored(&before);
}
