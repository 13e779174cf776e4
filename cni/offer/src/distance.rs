// SPDX-License-Identifier: Apache-2.0
//! Distance of two PCI functions, in the steps of `nvidia-smi topo -m` and two more: root port and socket. NCCL has no
//! step NODE (`ncclTopoSetPaths()` in `src/graph/paths.cc`).

use rdma_netns::PciPath;
use std::{collections::BTreeMap, fmt};

/// Path of a transfer between two functions. The variants are in the order of distance, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// Through one PCI switch: PIX.
    Switch,
    /// Through several PCI switches, and no root port: PXB.
    Switches,
    /// Through the root port: the functions share it, but no switch.
    RootPort,
    /// Through the host bridge: PHB.
    HostBridge,
    /// Within one NUMA node: NODE. If GPU and NIC have different host bridges, as on GB200, this is the shortest
    /// possible distance. rdma-core's `rdma_topo` also pairs such GPUs and NICs by NUMA node.
    NumaNode,
    /// Through the link between NUMA nodes of one socket.
    Socket,
    /// Through the link between CPU sockets: SYS. Also an unknown distance.
    Far,
}

impl Distance {
    /// Returns the distance of the functions `a` and `b`. Each is given by its PCI path and NUMA node. `sockets` maps
    /// NUMA nodes to CPU sockets.
    pub fn between(
        a: (&PciPath, Option<u32>),
        b: (&PciPath, Option<u32>),
        sockets: &BTreeMap<u32, u32>,
    ) -> Self {
        let ((a, a_node), (b, b_node)) = (a, b);
        let known = !a.host_bridge.is_empty() && a.host_bridge == b.host_bridge;
        let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b);
        let shared = shared.count();
        // within one switch: the paths differ only in the last bridge, because a switch has one upstream bridge and one
        // bridge for each downstream port
        let is_last = |path: &PciPath| path.bridges.len() - shared <= 1;
        let socket = |node: Option<u32>| sockets.get(&node?);
        match (known, shared) {
            (true, 0) => Self::HostBridge,
            (true, 1) => Self::RootPort,
            (true, _) if is_last(a) && is_last(b) => Self::Switch,
            (true, _) => Self::Switches,
            _ if a_node.is_some() && a_node == b_node => Self::NumaNode,
            _ if socket(a_node).is_some() && socket(a_node) == socket(b_node) => Self::Socket,
            _ => Self::Far,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "below the same switch as",
            Self::Switches => "several PCI switches away from",
            Self::RootPort => "below the same root port as",
            Self::HostBridge => "below the same host bridge as",
            Self::NumaNode => "on the same NUMA node as",
            Self::Socket => "on the same socket as",
            Self::Far => "far from",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(host_bridge: &str, bridges: &[&str]) -> PciPath {
        PciPath {
            host_bridge: host_bridge.to_owned(),
            bridges: bridges
                .iter()
                .map(|text| (*text).to_owned().try_into().expect("an address"))
                .collect(),
        }
    }

    #[test]
    fn the_more_they_share_the_nearer_they_are() {
        let nic = path(
            "pci0000:3a",
            &["0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"],
        );
        // the socket of NUMA node 3 is unknown
        let sockets = BTreeMap::from([(0, 0), (1, 0), (2, 1)]);
        for (other, node, expected) in [
            (
                path(
                    "pci0000:3a",
                    &["0000:3a:00.0", "0000:3b:00.0", "0000:3c:08.0"],
                ),
                Some(0),
                Distance::Switch,
            ),
            (
                path(
                    "pci0000:3a",
                    &[
                        "0000:3a:00.0",
                        "0000:3b:00.0",
                        "0000:3c:08.0",
                        "0000:3d:00.0",
                        "0000:3e:00.0",
                    ],
                ),
                Some(0),
                Distance::Switches,
            ),
            (
                path("pci0000:3a", &["0000:3a:00.0"]),
                Some(0),
                Distance::RootPort,
            ),
            (
                path("pci0000:3a", &["0000:3a:02.0"]),
                Some(0),
                Distance::HostBridge,
            ),
            (path("pci0000:3a", &[]), None, Distance::HostBridge),
            (
                path("pci0000:5d", &["0000:3a:00.0"]),
                Some(0),
                Distance::NumaNode,
            ),
            (path("pci0000:5d", &[]), Some(1), Distance::Socket),
            (path("pci0000:5d", &[]), Some(2), Distance::Far),
            (path("pci0000:5d", &[]), Some(3), Distance::Far),
            (path("", &[]), Some(0), Distance::NumaNode),
            (path("", &[]), None, Distance::Far),
        ] {
            let found = Distance::between((&nic, Some(0)), (&other, node), &sockets);
            assert_eq!(found, expected, "{other:?}");
            let back = Distance::between((&other, node), (&nic, Some(0)), &sockets);
            assert_eq!(back, expected, "{other:?}");
        }
        let unknown = path("", &[]);
        let nowhere = Distance::between((&unknown, None), (&unknown, None), &sockets);
        assert_eq!(nowhere, Distance::Far);
    }
}
