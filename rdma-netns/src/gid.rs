// SPDX-License-Identifier: Apache-2.0
//! The GID table of an RDMA port. A GID is an address from which the port can make RDMA connections.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr};

/// The GIDs of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidTable {
    /// Size of the table in entries (128 or 256 on mlx5, 1024 on rxe).
    pub size: u32,
    /// GIDs that are not all zeros, in the order of their indexes.
    pub gids: Vec<Gid>,
}

/// One used entry of the GID table: a GID that is not all zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index in the table (`NCCL_IB_GID_INDEX`, `ibv_qp_attr::ah_attr.grh.sgid_index`).
    pub index: u32,
    /// The GID's 128 bits. An IPv4 address has the form `::ffff:a.b.c.d` (`ipv6_addr_set_v4mapped()`).
    pub ip: Ipv6Addr,
    /// Format of the packets that use the GID.
    pub kind: GidKind,
    /// Name of the netdev that has the GID's address, in the netdev's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
}

/// Format of packets that use a GID (`enum ib_gid_type`, `include/rdma/ib_verbs.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand, or Ethernet without IP. Sysfs reports both formats as `IB/RoCE v1`.
    #[serde(rename = "ib-or-roce-v1")]
    InfinibandOrRoceV1,
    /// UDP over IP, which routers can forward.
    #[serde(rename = "roce-v2")]
    RoceV2,
}

impl Gid {
    /// Returns the GID as an IP address.
    pub fn address(&self) -> IpAddr {
        match self.ip.to_ipv4_mapped() {
            Some(ip) => IpAddr::V4(ip),
            None => IpAddr::V6(self.ip),
        }
    }
}

impl GidTable {
    /// Returns the GIDs of `ip` for packets of `kind`. Each netdev with the address has its own GID
    /// (`ib_cache_gid_add()`, `drivers/infiniband/core/cache.c`).
    pub fn all(&self, ip: IpAddr, kind: GidKind) -> impl Iterator<Item = &Gid> {
        let gids = self.gids.iter();
        gids.filter(move |gid| gid.kind == kind && gid.address() == ip)
    }

    /// Returns the present GID of a netdev whose RoCE v2 GID `gid` had `index`: the GID at this index, or the only GID
    /// of the address, because a GID gets another index when a bond fails over. `None`: the netdev has no such GID, or
    /// other netdevs have the address too, and no GID has the index.
    pub fn own(&self, gid: Ipv6Addr, index: u32) -> Option<&Gid> {
        let is_its = |it: &&Gid| it.kind == GidKind::RoceV2 && it.ip == gid;
        let all: Vec<&Gid> = self.gids.iter().filter(is_its).collect();
        match all[..] {
            [only] => Some(only),
            _ => all.into_iter().find(|it| it.index == index),
        }
    }

    /// Returns the number of used entries in the table.
    pub fn used(&self) -> u32 {
        self.gids.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_address() {
        let gid = |index, ip: &str, kind| Gid {
            index,
            ip: ip.parse().expect("an address"),
            kind,
            netdev: None,
        };
        let table = GidTable {
            size: 128,
            gids: vec![
                gid(0, "fe80::1", GidKind::InfinibandOrRoceV1),
                gid(2, "::ffff:10.0.0.5", GidKind::InfinibandOrRoceV1),
                gid(3, "::ffff:10.0.0.5", GidKind::RoceV2),
                gid(7, "fd00::5", GidKind::RoceV2),
                gid(9, "::ffff:10.0.0.5", GidKind::RoceV2),
            ],
        };
        let index = |ip: &str, kind| {
            let mut found = table.all(ip.parse().expect("an address"), kind);
            found.next().map(|gid| gid.index)
        };
        assert_eq!(index("10.0.0.5", GidKind::RoceV2), Some(3));
        assert_eq!(index("10.0.0.5", GidKind::InfinibandOrRoceV1), Some(2));
        assert_eq!(index("fd00::5", GidKind::RoceV2), Some(7));
        assert_eq!(index("10.0.0.6", GidKind::RoceV2), None);
        let all = table.all("10.0.0.5".parse().expect("an address"), GidKind::RoceV2);
        assert_eq!(all.map(|gid| gid.index).collect::<Vec<_>>(), [3, 9]);
        for (ip, index, expected) in [
            ("::ffff:10.0.0.5", 3, Some(3)),
            ("::ffff:10.0.0.5", 9, Some(9)),
            ("::ffff:10.0.0.5", 4, None),
            ("fd00::5", 4, Some(7)),
            ("fd00::6", 7, None),
        ] {
            let own = table.own(ip.parse().expect("an address"), index);
            assert_eq!(own.map(|gid| gid.index), expected, "{ip} at {index}");
        }
        assert_eq!(table.used(), 5);
    }
}
