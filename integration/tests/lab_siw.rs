// SPDX-License-Identifier: Apache-2.0
//! In the lab, the kernel's siw (iWARP in software): `integration/lab/vm --tier fast --exclusive`. Like an eRDMA
//! device, a siw device has one GID, made from the MAC. It cannot be moved.

use integration::{Netns, Node, Snapshot, daemon::doctor, pinged::pinged};
use serde_json::json;
use std::process::Command;

/// A host with the rail `eth1` and `siw0` on it. The RDMA device is deleted on drop.
struct Siw(Node);

impl Siw {
    #[track_caller]
    fn new() -> Self {
        let node = Node::on(Netns::own());
        node.add_rail("eth1");
        node.host.ip("address add 192.0.2.5/24 dev eth1");
        node.host.run("rdma link add siw0 type siw netdev eth1");
        Self(node)
    }
}

impl Drop for Siw {
    fn drop(&mut self) {
        let mut delete = Command::new("rdma");
        let _ = delete.args(["link", "delete", "siw0"]).output();
    }
}

#[test]
fn a_rail_with_siw_is_refused_in_words_and_the_host_is_as_before() {
    let Siw(node) = &Siw::new();
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut required = node.configuration(&["eth1"]);
    required["requireRdma"] = true.into();
    let mut smc_r = required.clone();
    smc_r["smcr"] = "on".into();
    for (configuration, words) in [
        (&required, ["siw0", "the driver supports no move"]),
        (&smc_r, ["siw0", "SMC does not use"]),
    ] {
        let call = node.invoke("ADD", "a", pod.path());
        let text = call.input(configuration).run().error(102);
        println!("{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is missing: {text}");
        }
        before.assert_restored(&node.host);
        node.del(configuration, "a", &pod);
        before.assert_restored(&node.host);
    }
    assert!(node.records().is_empty());

    let configuration = json!({
        "type": "rdma-cni", "mode": "move", "devices": [{"netdev": "eth1"}], "stateDir": node.state(),
    });
    let (_, found) = doctor(&node.host, &[configuration], &[]);
    println!("{found}");
    assert!(
        found.contains("unless their drivers are patched: siw0"),
        "{found}"
    );
    assert!(found.contains("ADD refuses eth1 (102)"), "{found}");
    assert!(!found.contains("ADD moves"), "{found}");
}

#[test]
fn a_ping_from_a_rail_with_siw_is_refused_in_words() {
    let Siw(node) = &Siw::new();
    let neighbour = "192.0.2.6 lladdr 02:00:00:00:00:06 dev eth1 nud permanent";
    node.host.ip(&format!("neigh add {neighbour}"));
    let (code, pair) = pinged(&node.host, "192.0.2.6", "1");
    assert_eq!(code, 1);
    let reason = "siw0 speaks iWARP, which has no RDMA echo: its connections are TCP's, so use ping(8) or rping";
    assert_eq!(pair["reason"], reason, "{pair}");
}
