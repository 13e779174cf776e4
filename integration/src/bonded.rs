// SPDX-License-Identifier: Apache-2.0
//! The chain on both nodes of the lab's bonded rails: `rdma-cni` in `share` mode with `rdma-ipam`, configured as an
//! operator configures it, and pods that the chain attaches.

use crate::{
    Attachment, Conflist, Netns, Rails, Runtime, nics,
    plugin::rdma_cni,
    rails::{Bond, Side},
    traffic::{self, End, Write},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Both nodes, each with its own state.
#[derive(Debug)]
pub struct Bonded {
    /// The fabric and the bonds.
    pub rails: Rails,
    directory: TempDir,
}

/// A pod with its rails attached.
#[derive(Debug)]
pub struct BondedPod {
    /// The pod's side of the fabric.
    pub side: Side,
    /// The pod's namespace.
    pub netns: Netns,
    /// ADD's result.
    pub result: Value,
    /// Conflist of the attachment.
    pub list: Conflist,
    /// The parameters of the runtime's calls.
    pub attachment: Attachment,
}

impl Default for Bonded {
    fn default() -> Self {
        Self::new()
    }
}

impl Bonded {
    /// Makes a host on which all rails are up.
    #[track_caller]
    pub fn new() -> Self {
        Self {
            rails: Rails::new(),
            directory: TempDir::new().expect("a temporary directory"),
        }
    }

    /// Returns the configuration of `rdma-cni` for both rails of `side`. The bonds' names differ between the nodes,
    /// because the lab has the bonds of both nodes in one namespace. The state and lease directories differ, too.
    pub fn configuration(&self, side: Side) -> Value {
        let devices = [0, 1].map(|rail| json!({ "netdev": Bond::new(side, rail).netdev() }));
        json!({
            "type": "rdma-cni",
            "stateDir": self.state(side),
            "devices": devices,
            "ipam": {
                "type": "rdma-ipam",
                "from": "parent",
                "family": "both",
                "strategy": "stable",
                "dataDir": self.leases(side),
            },
        })
    }

    /// Returns the `stateDir` of `side`.
    pub fn state(&self, side: Side) -> PathBuf {
        self.directory.path().join(format!("state-{side:?}"))
    }

    /// Returns the `dataDir` of `side`.
    pub fn leases(&self, side: Side) -> PathBuf {
        self.directory.path().join(format!("leases-{side:?}"))
    }

    /// Returns the leased addresses on `side`, which are the names of the lease files.
    pub fn held(&self, side: Side) -> Vec<String> {
        let files = std::fs::read_dir(self.leases(side).join("net"));
        let names = files.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
            .collect()
    }

    /// Returns the `CNI_PATH` with the plugins under test.
    pub fn cni_path(&self) -> String {
        let plugin = rdma_cni();
        let own = plugin.parent().and_then(Path::to_str).expect("UTF-8");
        own.to_owned()
    }

    /// Returns a runtime of the nodes.
    pub fn runtime(&self) -> Runtime<'_> {
        let cache = self.directory.path().join("cache");
        Runtime::new(&self.rails.host, &self.cni_path(), &cache)
    }

    /// Makes a pod called `name`, and attaches it with `configuration`.
    #[track_caller]
    pub fn pod(&self, side: Side, name: &str, configuration: Value) -> BondedPod {
        let netns = Netns::new(name);
        netns.ip("link set dev lo up");
        let list = Conflist::new("1.1.0", vec![configuration]);
        let container = format!("sandbox-{name}");
        let attachment = Attachment::new(&container, netns.path(), "eth0").of_pod("default", name);
        let added = self.runtime().add(&list, &attachment);
        let result = added.unwrap_or_else(|outcome| panic!("{outcome}"));
        BondedPod {
            side,
            netns,
            result,
            list,
            attachment,
        }
    }

    /// Calls DEL for `pod`, which must succeed.
    #[track_caller]
    pub fn delete(&self, pod: &BondedPod) {
        let deleted = self.runtime().del(&pod.list, &pod.attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    }

    /// Returns the number of GIDs of the RDMA device of `bond`.
    #[track_caller]
    pub fn gids(&self, bond: Bond) -> usize {
        nics::gids(&bond.rdma())
    }
}

impl BondedPod {
    /// Returns the pod's bond on `rail`.
    pub fn bond(&self, rail: usize) -> Bond {
        Bond::new(self.side, rail)
    }

    /// Returns the element of `rails` in ADD's result for `rail`: RDMA device, port, GID indexes.
    pub fn rail(&self, rail: usize) -> &Value {
        &self.result["rails"][rail]
    }

    /// Returns the pod's IPv6 or IPv4 address on `rail`, and the index of the address's GID.
    #[track_caller]
    pub fn address(&self, rail: usize, ipv6: bool) -> (String, usize) {
        let gids = self.rail(rail)["gids"].as_array().expect("a list");
        let is_it = |gid: &&Value| {
            let address = gid["address"].as_str().expect("an address");
            address.contains(':') == ipv6
        };
        let gid = gids.iter().find(is_it);
        let gid = gid.unwrap_or_else(|| panic!("IPv6 {ipv6}: {}", self.result));
        let index = gid["index"].as_u64().expect("an index");
        let address = gid["address"].as_str().expect("an address");
        (address.to_owned(), index as usize)
    }
}

/// Runs `rping` and `ib_write_bw` from `client` to `server` on `rail`, the latter with the GID indexes of ADD's
/// results. Returns the bandwidth in MB/s that `ib_write_bw` reports, which is sometimes 0 on a busy machine.
#[track_caller]
pub fn traffic(server: &BondedPod, client: &BondedPod, rail: usize, ipv6: bool) -> f64 {
    let pods = [server, client];
    let devices = pods.map(|pod| pod.bond(rail).rdma());
    let addresses = pods.map(|pod| pod.address(rail, ipv6));
    let end = |index: usize| End {
        pod: &pods[index].netns,
        rdma: &devices[index],
        address: &addresses[index].0,
    };
    traffic::rping(end(0), end(1));
    let (by_tcp, _) = server.address(rail, false);
    Write::new(end(0), end(1), &by_tcp)
        .gids(addresses[0].1, addresses[1].1)
        .start()
        .bandwidth()
}
