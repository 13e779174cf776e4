// SPDX-License-Identifier: Apache-2.0
//! Ipvlan children of a bond. The mode belongs to the bond and applies to all its children.

use crate::nothing_is_left;
use integration::{Bonded, BondedPod, Invocation, Netns, Snapshot, plugin, rails::Side};
use serde_json::json;
use std::{fs, path::Path};

/// A pod with `NET_ADMIN` changes the mode or a flag for all pods of a bond. CHECK of each pod reports the change. DEL
/// of the pod that made the change restores the value. The next ADD on the bond restores the value, too, and logs a
/// warning.
#[test]
fn a_mode_that_one_pod_sets_ends_with_that_pod_or_with_the_next_one() {
    let bonded = Bonded::new();
    let before = Snapshot::of(&bonded.rails.host);
    let log = bonded.state(Side::A).with_extension("log");
    let mut configuration = bonded.configuration(Side::A);
    configuration["child"] = json!({"type": "ipvlan", "mode": "l2"});
    configuration["log"] = json!({"file": log});
    let pod = |name: &str| bonded.pod(Side::A, name, configuration.clone());
    let [hostile, other] = ["hostile", "other"].map(pod);
    let words = "rdma0 is ipvlan mode l3 private, not ipvlan mode l2";
    let change = || {
        for line in ["mode l3 private", "mode l3"] {
            hostile
                .netns
                .ip(&format!("link set dev rdma0 type ipvlan {line}"));
            for pod in [&hostile, &other] {
                let checked = bonded.runtime().check(&pod.list, &pod.attachment);
                let text = checked
                    .expect_err("the port's mode is another")
                    .failure()
                    .text();
                assert!(text.contains("all ipvlan children of bond0"), "{text}");
                assert!(text.contains("not ipvlan mode l2"), "{text}");
                let is_private = line.contains("private");
                assert_eq!(text.contains(words), is_private, "{line}: {text}");
            }
        }
        hostile
            .netns
            .ip("link set dev rdma0 type ipvlan mode l3 private");
    };
    let is_as_made = |pod: &BondedPod| {
        let checked = bonded.runtime().check(&pod.list, &pod.attachment);
        checked.unwrap_or_else(|outcome| panic!("{outcome}"));
    };
    change();
    let next = pod("next");
    let log = fs::read_to_string(log).expect("a log");
    assert!(
        log.contains(words) && log.contains("next: warn: pod default/hostile"),
        "{log}"
    );
    for pod in [&hostile, &other, &next] {
        is_as_made(pod);
    }
    change();
    bonded.delete(&hostile);
    let left = hostile.netns.ip("-brief link show");
    assert!(!left.contains("ipvlan") && !left.contains('@'), "{left}");
    for pod in [&other, &next] {
        is_as_made(pod);
        bonded.delete(pod);
    }
    nothing_is_left(&bonded, Side::A);
    before.assert_restored(&bonded.rails.host);
}

/// A pod with `CAP_NET_ADMIN` may have as many routes as its memory permits. ADD of the next pod compares the modes of the
/// ipvlan port's children, and must not need this memory.
#[test]
fn a_pods_many_routes_take_no_memory_of_the_next_add() {
    /// Memory limit in bytes: less than a third of the size of these routes.
    const LIMIT: u32 = 32 << 20;
    let bonded = Bonded::new();
    let before = Snapshot::of(&bonded.rails.host);
    let mut configuration = bonded.configuration(Side::A);
    configuration["child"] = json!({"type": "ipvlan", "mode": "l2"});
    let hostile = bonded.pod(Side::A, "hostile", configuration.clone());
    let places = |count: u32| (0..count).map(|it| [it >> 16, it >> 8 & 255, it & 255]);
    let ipv4 = places(200_000).map(|[a, b, c]| format!("route add 11.{a}.{b}.{c}/32 dev lo"));
    let ipv6 = places(50_000)
        .map(|[_, b, c]| format!("route add 2001:db8:{b:x}:{c:x}::/64 dev lo metric 7"));
    hostile
        .netns
        .ip_batch(&ipv4.chain(ipv6).collect::<Vec<_>>());
    let next = Netns::new("next");
    configuration["cniVersion"] = "1.1.0".into();
    configuration["name"] = "net".into();
    let call = |command: &str| {
        Invocation::new(&bonded.rails.host, &plugin::rdma_cni())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", "next")
            .env("CNI_NETNS", next.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", bonded.cni_path())
            .input(&configuration)
    };
    let limit = vec![format!("--as={LIMIT}")];
    call("ADD")
        .by(Path::new("/usr/bin/prlimit"), limit)
        .run()
        .result();
    call("DEL").run().silent();
    bonded.delete(&hostile);
    nothing_is_left(&bonded, Side::A);
    before.assert_restored(&bonded.rails.host);
}
