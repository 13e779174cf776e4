// SPDX-License-Identifier: Apache-2.0
//! How far apart two PCI functions are.

use rdma_netns::PciPath;
use std::fmt;

/// What a transfer between two functions has to pass, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// A PCI switch only.
    Switch,
    /// The root port that both are below.
    RootPort,
    /// The host bridge.
    HostBridge,
    /// The memory of one NUMA node.
    NumaNode,
    /// The link between NUMA nodes, or nothing is known of it.
    Far,
}

impl Distance {
    /// Between two functions, each with its place on PCI and its NUMA node.
    pub fn between(a: (&PciPath, Option<u32>), b: (&PciPath, Option<u32>)) -> Self {
        let ((a, a_node), (b, b_node)) = (a, b);
        let known = !a.host_bridge.is_empty() && a.host_bridge == b.host_bridge;
        let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b);
        match (known, shared.count()) {
            (true, 0) => Self::HostBridge,
            (true, 1) => Self::RootPort,
            (true, _) => Self::Switch,
            _ if a_node.is_some() && a_node == b_node => Self::NumaNode,
            _ => Self::Far,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "below the same switch as",
            Self::RootPort => "below the same root port as",
            Self::HostBridge => "below the same host bridge as",
            Self::NumaNode => "on the same NUMA node as",
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
            (path("pci0000:5d", &[]), Some(1), Distance::Far),
            (path("", &[]), Some(0), Distance::NumaNode),
            (path("", &[]), None, Distance::Far),
        ] {
            let found = Distance::between((&nic, Some(0)), (&other, node));
            assert_eq!(found, expected, "{other:?}");
            let back = Distance::between((&other, node), (&nic, Some(0)));
            assert_eq!(back, expected, "{other:?}");
        }
        let unknown = path("", &[]);
        let nowhere = Distance::between((&unknown, None), (&unknown, None));
        assert_eq!(nowhere, Distance::Far);
    }
}
