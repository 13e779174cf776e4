// SPDX-License-Identifier: Apache-2.0
//! Rails whose cables are swapped between two nodes.

use integration::{
    Netns,
    daemon::rdma_device_plugin,
    lab::{Lab, ipv4, ipv6},
};
use serde_json::Value;
use std::process::Stdio;

/// Two namespaces with soft-RoCE on veths, whose cables are swapped. A third veth pair is the pod network.
#[test]
fn wires_that_are_swapped_are_distinguished_from_other_silences() {
    let _lab = Lab::new(2);
    let nodes = ["left", "right"].map(Netns::new);
    let host = Netns::own();
    let [left, right] = nodes.each_ref().map(Netns::name);
    host.ip(&format!(
        "link add eth0 netns {left} type veth peer name eth0 netns {right}"
    ));
    for rail in 0..2 {
        let other = 1 - rail;
        host.ip(&format!(
            "link add rdma{rail} netns {left} type veth peer name rdma{other} netns {right}"
        ));
    }
    for (node, netns) in nodes.iter().enumerate() {
        netns.ip("link set dev lo up");
        netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", node + 1));
        netns.ip("link set dev eth0 up");
        for rail in 0..2 {
            let address = ipv4(rail, node);
            netns.ip(&format!("address add {address}/24 dev rdma{rail}"));
            netns.ip(&format!("link set dev rdma{rail} up"));
            let name = format!("swap{node}{rail}");
            netns.run(&format!("rdma link add {name} type rxe netdev rdma{rail}"));
            // a new device belongs to the host
            host.run(&format!("rdma dev set {name} netns {}", netns.name()));
        }
    }
    for family in ["IPv4", "IPv6"] {
        let run = |node: usize, timeout: &str| {
            let mut command = nodes[node].command(rdma_device_plugin());
            let place = format!("--exchange=192.0.2.{}:7471", 2 - node);
            command.args([
                "ping",
                &place,
                "--count",
                "1",
                "--timeout",
                timeout,
                "--json",
            ]);
            command.stdout(Stdio::piped());
            command.spawn().expect("it starts")
        };
        let both = |timeout: &str| {
            [run(0, timeout), run(1, timeout)].map(|child| {
                let output = child.wait_with_output().expect("it ends");
                let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
                assert_eq!(output.status.code(), Some(1), "{document:#}");
                document
            })
        };
        let mut documents = both("0.5");
        if !documents.iter().all(all_answer_crosswise) {
            // an answer was late
            documents = both("5");
        }
        for document in documents {
            for pair in document["pairs"].as_array().expect("pairs") {
                let [from, to] = [&pair["from"]["rail"], &pair["to"]["rail"]];
                let swapped = pair["swappedWith"].as_str();
                let expected = match (from == to, to.as_str()) {
                    (true, Some("rdma0")) => Some("rdma1"),
                    (true, Some("rdma1")) => Some("rdma0"),
                    _ => None,
                };
                assert_eq!(swapped, expected, "{family}: {document:#}");
                let reason = pair["reason"].as_str().unwrap_or_default();
                assert_eq!(
                    reason.contains("are swapped"),
                    expected.is_some(),
                    "{reason}"
                );
            }
        }
        for (node, netns) in nodes.iter().enumerate() {
            for rail in 0..2 {
                let address = ipv6(rail, node);
                netns.ip(&format!("address flush dev rdma{rail}"));
                netns.ip(&format!("address add {address}/64 dev rdma{rail} nodad"));
            }
        }
    }
    // otherwise the devices would return to the host after the end of their namespaces
    for (node, netns) in nodes.iter().enumerate() {
        for rail in 0..2 {
            netns.run(&format!("rdma link del swap{node}{rail}"));
        }
    }
}

/// Returns true if each rail reached the other rail.
fn all_answer_crosswise(document: &Value) -> bool {
    let pairs = document["pairs"].as_array().expect("pairs");
    let mut others = pairs
        .iter()
        .filter(|it| it["from"]["rail"] != it["to"]["rail"]);
    others.all(|it| it["answered"] == 1)
}
