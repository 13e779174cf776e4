// SPDX-License-Identifier: Apache-2.0
//! Pods that get children of 1, 4 and 8 netdevs, compared with Debian's plugins for the same work: `macvlan` with
//! `host-local` and `sbr`.

use super::{
    by_rails::{ByRails, RUNS},
    peers::Peers,
    run::runs,
};
use integration::Node;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Counts of rails per pod, here and in `moves`.
pub(super) const COUNTS: [u32; 3] = [1, 4, 8];
/// Number of runs of the peers. `host-local` gives every address a gateway, so the peers wait some seconds per rail for
/// duplicate address detection.
const SLOW: usize = 3;

/// Measures in the host's namespace of `node`, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let inputs = COUNTS.into_iter().zip(inputs(node, COUNTS)).collect();
    let leases = node.directory().join("peers");
    let configuration = |rail: u32| {
        json!({
            "master": format!("eth{rail}"), "mode": "bridge",
            "ipam": {
                "type": "host-local", "dataDir": leases,
                "ranges": [[{"subnet": format!("2001:db8:{rail}::/64")}]],
            },
        })
    };
    let cni_path = &*node.cni_path();
    let peers = Peers {
        title: "macvlan with host-local, and sbr",
        plugin: "macvlan",
        configuration: &configuration,
        afterwards: &|| {},
        runs: SLOW,
        directory: node.directory().into(),
        cni_path,
    };
    ByRails {
        what: "macvlan children, each with an address from its parent's prefix",
        inputs,
        runs: runs(RUNS),
        cni_path,
        peers: Some(peers),
    }
    .measure("rails");
}

/// Returns the configuration files of pods with `counts` rails. Creates rails and prefixes that `node` lacks.
pub(super) fn inputs<const N: usize>(node: &Node, counts: [u32; N]) -> [PathBuf; N] {
    furnish(node, counts.into_iter().max().unwrap_or_default());
    counts.map(|rails| input(node, rails))
}

/// Ensures that `node` has the rails 1 to `rails`, and that each is up and has its prefix.
pub(super) fn furnish(node: &Node, rails: u32) {
    for rail in 1..=rails {
        let name = format!("eth{rail}");
        if !node.host.has_link(&name) {
            node.add_rail(&name);
        }
        node.host.ip_batch(&[
            format!("link set dev {name} up"),
            format!("address replace 2001:db8:{rail}::1/64 dev {name} nodad"),
        ]);
    }
}

/// Writes the configuration from the file `input`, changed by `change`, to `file`. Returns `file`.
pub(super) fn changed(input: &Path, file: PathBuf, change: impl FnOnce(&mut Value)) -> PathBuf {
    let text = fs::read(input).expect("the configuration");
    let mut configuration = serde_json::from_slice(&text).expect("JSON");
    change(&mut configuration);
    fs::write(&file, configuration.to_string()).expect("the configuration");
    file
}

/// Copies the configuration file `input` to `directory`, with state and leases there. Returns the copy's path.
pub(super) fn kept_in(input: &Path, directory: &Path) -> PathBuf {
    let file = directory.join(input.file_name().expect("a file"));
    changed(input, file, |configuration| {
        configuration["stateDir"] = directory.join("state").to_str().into();
        configuration["ipam"]["dataDir"] = directory.join("leases").to_str().into();
    })
}

/// Writes the configuration of a pod with `rails` rails to a file, and returns the file's path.
fn input(node: &Node, rails: u32) -> PathBuf {
    let devices = (1..=rails).map(|rail| json!({"netdev": format!("eth{rail}")}));
    let configuration = json!({
        "cniVersion": "1.0.0",
        "name": "bench",
        "type": "rdma-cni",
        "devices": devices.collect::<Vec<Value>>(),
        "requireRdma": false,
        "mode": "share",
        "ipam": {"type": "rdma-ipam", "from": "parent", "dataDir": node.directory().join("leases")},
        "stateDir": node.state(),
    });
    let file = node.directory().join(format!("{rails}-rails.json"));
    fs::write(&file, configuration.to_string()).expect("the configuration");
    file
}
