// SPDX-License-Identifier: Apache-2.0
//! Ipvlan children of a bond. The mode belongs to the bond and applies to all its children.

use crate::nothing_is_left;
use integration::{Bonded, BondedPod, Snapshot, rails::Side};
use serde_json::json;
use std::fs;

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
