// SPDX-License-Identifier: Apache-2.0
//! Pods with `rdma/hca: 1` verify each other: children of shared NICs, with devices that all namespaces
//! see.

use integration::{Bonded, rails::Side, verify};

#[test]
fn pods_of_shared_nics_verify_each_other() {
    let bonded = Bonded::new();
    let pods = [Side::A, Side::B].map(|side| {
        let name = format!("pod-{side:?}").to_lowercase();
        bonded.pod(side, &name, bonded.configuration(side))
    });
    let addresses = pods.each_ref().map(|it| it.address(0, true).0);
    let netns = pods.each_ref().map(|it| &it.netns);
    let exchange = |timeout: &str| {
        let options = ["--count", "2", "--interval", "0.1", "--timeout", timeout];
        verify::exchange(netns, addresses.each_ref().map(String::as_str), &options)
    };
    let mut results = exchange("0.5");
    if results.iter().any(|(code, _)| *code != 0) {
        // an answer was late
        results = exchange("10");
    }
    let [one, two] = results;
    assert_eq!((one.0, two.0), (0, 0), "{}{}", one.1, two.1);
    verify::is_a_table_of_two_rails(&one.1, "node-0", "node-1");
    verify::is_a_table_of_two_rails(&two.1, "node-1", "node-0");
    for pod in &pods {
        bonded.delete(pod);
    }
}
