// SPDX-License-Identifier: Apache-2.0
//! Place of a control plane: a network namespace with the control plane's addresses, and the keys
//! of all its clients.

use super::{
    ADDRESS, SERVICE,
    nodes::{self, Member},
    repository,
};
use crate::{Netns, netns::check};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Names of two bridges: the first connects the nodes' management NICs, the second their RDMA NICs.
const BRIDGES: [&str; 2] = ["nodes", "fabric"];

/// Highest MTU of a NIC on a fabric.
const MTU: u32 = 9216;

/// A place in which one control plane runs at a time.
#[derive(Debug)]
pub(super) struct Site {
    netns: Netns,
    pki: PathBuf,
}

impl Site {
    /// Makes a site without nodes. Writes keys, certificates and kubeconfigs into `pki`.
    #[track_caller]
    pub(super) fn new(pki: &Path) -> Self {
        let netns = Netns::new("control-plane");
        netns.ip("link set lo up");
        netns.ip(&format!("address add {ADDRESS}/32 dev lo"));
        let script = repository().join("integration/kubernetes/certificates");
        let nodes = nodes::ALL.map(|it| format!("{}={}", it.name, it.address));
        check(Command::new(script).arg(pki).arg(ADDRESS).args(nodes));
        Self {
            netns,
            pki: pki.to_owned(),
        }
    }

    /// Makes a site for nodes, which are virtual machines whose NICs are connected with the site's
    /// bridges.
    #[track_caller]
    pub(super) fn with_nodes(pki: &Path, members: &[Member]) -> Self {
        let site = Self::new(pki);
        let [nodes, fabric] = BRIDGES;
        let mut lines = vec![
            format!("address delete {ADDRESS}/32 dev lo"),
            format!("address add {SERVICE}/32 dev lo"),
        ];
        // without multicast snooping, multicast reaches all ports
        for bridge in BRIDGES {
            lines.push(format!(
                "link add {bridge} mtu {MTU} type bridge mcast_snooping 0"
            ));
        }
        lines.push(format!("address add {ADDRESS}/24 dev {nodes}"));
        for member in members {
            for (tap, bridge) in [(member.tap(), nodes), (member.fabric(), fabric)] {
                lines.push(format!("tuntap add dev {tap} mode tap"));
                lines.push(format!("link set dev {tap} mtu {MTU} master {bridge} up"));
            }
        }
        // routes for the DNS server's answers to pods
        let pods = members
            .iter()
            .map(|it| format!("route add {} via {}", it.pods(), it.address));
        lines.extend(BRIDGES.map(|it| format!("link set dev {it} up")));
        lines.extend(pods);
        site.netns.ip_batch(&lines);
        site
    }

    pub(super) fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns the path of the file `name` among the certificates and kubeconfigs.
    pub(super) fn pki(&self, name: &str) -> String {
        self.pki.join(name).display().to_string()
    }
}
