// SPDX-License-Identifier: Apache-2.0
//! Pods to which 1, 4 and 8 netdevs move with their existing addresses, compared with Debian's plugins for the same
//! work: `host-device` with `static` and `sbr`.

use super::{
    by_rails::{ByRails, RUNS},
    peers::Peers,
    rails::{self, COUNTS},
    run::runs,
    together,
};
use integration::Node;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Measures in the host's namespace of `node`, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let inputs = rails::inputs(node, COUNTS).map(|input| moving(&input));
    let configuration = |rail: u32| {
        // no gateway, as in rdma-cni's pod: with a gateway, the plugins would wait for duplicate address detection
        let address = json!({"address": format!("2001:db8:{rail}::1/64")});
        json!({
            "device": format!("eth{rail}"),
            "ipam": {"type": "static", "addresses": [address]},
        })
    };
    let most = COUNTS.into_iter().max().unwrap_or_default();
    // host-device leaves a netdev down and without its earlier addresses
    let afterwards = || rails::furnish(node, most);
    let cni_path = &*node.cni_path();
    let peers = Peers {
        title: "host-device with static, and sbr",
        plugin: "host-device",
        configuration: &configuration,
        afterwards: &afterwards,
        runs: RUNS,
        directory: node.directory().into(),
        cni_path,
    };
    ByRails {
        what: "netdevs that move, each with the address that it has",
        inputs: COUNTS.into_iter().zip(inputs).collect(),
        runs: runs(RUNS),
        cni_path,
        peers: Some(peers),
    }
    .measure("moves");
    together::measure(node);
}

/// Copies the configuration file `input`, so that the netdevs move with their addresses instead of getting children.
/// Returns the copy's path.
pub(super) fn moving(input: &Path) -> PathBuf {
    let file = input.with_extension("moves.json");
    rails::changed(input, file, |it| {
        it["mode"] = "move".into();
        it.as_object_mut().expect("an object").remove("ipam");
    })
}
