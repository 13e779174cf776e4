// SPDX-License-Identifier: Apache-2.0
//! A fabric with two rails and two sides, from inside the VM, as a GPU node with bonded
//! NICs sees it (`integration/lab/vm --shared`, either tier).
//!
//! | bond | RDMA device | side | rail | prefixes |
//! |---|---|---|---|---|
//! | `bond0` | `mlx5_bond_0` | A | 0 | `10.10.0.0/24`, `fd00:a0::/64` |
//! | `bond1` | `mlx5_bond_1` | A | 1 | `10.10.1.0/24`, `fd00:a1::/64` |
//! | `bond2` | `mlx5_bond_2` | B | 0 | `10.11.0.0/24`, `fd00:b0::/64` |
//! | `bond3` | `mlx5_bond_3` | B | 1 | `10.11.1.0/24`, `fd00:b1::/64` |
//!
//! Every bond is an 802.3ad one over two veths, whose other ends are a bond of the rail's
//! router. A router has an address in both prefixes of its rail and forwards between them;
//! it is a namespace of its own, so that there is no way from one rail to the other.
//!
//! Both sides are in the initial namespace, as only there RDMA devices can be made. Pods
//! have namespaces of their own, so what they send goes through the router; what the host
//! itself sends from one side to the other does not.

use crate::{Netns, wait};
use std::{env, fs};

/// The two sides of the fabric: two nodes, or two groups of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `bond0` and `bond1`.
    A,
    /// `bond2` and `bond3`.
    B,
}

impl Side {
    /// Returns the side that this one talks to.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A node's end of a rail: a bond with an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bond {
    /// Side of the fabric.
    pub side: Side,
    /// 0 or 1.
    pub rail: usize,
}

/// All bonds, by number.
pub const BONDS: [Bond; 4] = [
    Bond::new(Side::A, 0),
    Bond::new(Side::A, 1),
    Bond::new(Side::B, 0),
    Bond::new(Side::B, 1),
];

/// The number of the host's own address in a prefix; pods have others.
pub const HOST: u8 = 1;

impl Bond {
    /// The bond of `side` on `rail`.
    pub const fn new(side: Side, rail: usize) -> Self {
        Self { side, rail }
    }

    /// The netdev's name.
    pub fn netdev(self) -> String {
        format!("bond{}", self.number())
    }

    /// The RDMA device's name.
    pub fn rdma(self) -> String {
        format!("mlx5_bond_{}", self.number())
    }

    /// The rail's bond on the other side.
    pub fn peer(self) -> Self {
        Self::new(self.side.other(), self.rail)
    }

    /// Address `number` of its IPv4 prefix, without the length.
    pub fn ipv4(self, number: u8) -> String {
        format!("10.{}.{}.{number}", 10 + self.side as u8, self.rail)
    }

    /// Address `number` of its IPv6 prefix, without the length.
    pub fn ipv6(self, number: u8) -> String {
        format!("{}{number:x}", self.ipv6_start())
    }

    /// The IPv4 prefix, `10.10.0.0/24`.
    pub fn ipv4_prefix(self) -> String {
        format!("{}/24", self.ipv4(0))
    }

    /// The IPv6 prefix, `fd00:a0::/64`.
    pub fn ipv6_prefix(self) -> String {
        format!("{}/64", self.ipv6_start())
    }

    /// The router's address in its IPv4 prefix.
    pub fn ipv4_gateway(self) -> String {
        self.ipv4(254)
    }

    /// The router's address in its IPv6 prefix.
    pub fn ipv6_gateway(self) -> String {
        format!("{}fffe", self.ipv6_start())
    }

    /// The bond's routes to the other side: destination and gateway, IPv4 and IPv6.
    pub fn routes(self) -> [(String, String); 2] {
        let peer = self.peer();
        [
            (peer.ipv4_prefix(), self.ipv4_gateway()),
            (peer.ipv6_prefix(), self.ipv6_gateway()),
        ]
    }

    /// The router's bond, its LACP partner.
    pub fn partner(self) -> &'static str {
        match self.side {
            Side::A => "to-a",
            Side::B => "to-b",
        }
    }

    fn ipv6_start(self) -> String {
        let side = match self.side {
            Side::A => 'a',
            Side::B => 'b',
        };
        format!("fd00:{side}{}::", self.rail)
    }

    fn number(self) -> usize {
        self.side as usize * 2 + self.rail
    }
}

/// The fabric and the bonds on it.
#[derive(Debug)]
pub struct Rails {
    /// The VM's own namespace, with the bonds of both sides.
    pub host: Netns,
    /// The routers, one a rail.
    pub routers: [Netns; 2],
}

impl Default for Rails {
    fn default() -> Self {
        Self::new()
    }
}

impl Rails {
    /// Makes all of it; comes back when LACP is through on all bonds, the RDMA devices are
    /// active, and the host reaches its gateways.
    #[track_caller]
    pub fn new() -> Self {
        assert_eq!(
            env::var("RDMA_LAB_MODE").as_deref(),
            Ok("shared"),
            "this test runs in the lab, by integration/lab/vm --shared"
        );
        let rails = Self {
            host: Netns::own(),
            routers: ["rail0", "rail1"].map(Netns::new),
        };
        // Before the first netdev: addresses are usable at once.
        rails.host.ip("link set dev lo up");
        for netns in rails.routers.iter().chain([&rails.host]) {
            netns.set_sysctl("ipv6/conf/default/dad_transmits", "0");
            netns.set_sysctl("ipv6/conf/default/router_solicitation_delay", "0");
        }
        for router in &rails.routers {
            router.set_sysctl("ipv4/ip_forward", "1");
            router.set_sysctl("ipv6/conf/all/forwarding", "1");
        }
        rails.make();
        BONDS.into_iter().for_each(wait_for_ports);
        for bond in BONDS {
            rails.wait_for(bond);
        }
        rails
    }

    /// The router of the bond's rail.
    pub fn router(&self, bond: Bond) -> &Netns {
        &self.routers[bond.rail]
    }

    /// Returns the bytes sent by `bond`.
    #[track_caller]
    pub fn sent(&self, bond: Bond) -> u64 {
        self.host.tx_bytes(&bond.netdev())
    }

    /// Makes the bonds and their partners, by one program in each namespace.
    fn make(&self) {
        let (mut ours, mut theirs, mut devices) = (vec![], [vec![], vec![]], vec![]);
        for bond in BONDS {
            self.describe(bond, &mut ours, &mut theirs[bond.rail]);
            let (rdma, netdev) = (bond.rdma(), bond.netdev());
            devices.push(format!("link add {rdma} type rxe netdev {netdev}"));
        }
        self.host.ip_batch(&ours);
        for (router, lines) in self.routers.iter().zip(&theirs) {
            router.ip_batch(lines);
        }
        self.host.rdma_batch(&devices);
    }

    /// Adds lines for `ip` that make `bond`, to `ours`, and its partner, to `theirs`.
    fn describe(&self, bond: Bond, ours: &mut Vec<String>, theirs: &mut Vec<String>) {
        let (netdev, partner, router) = (bond.netdev(), bond.partner(), self.router(bond));
        // An index that no netdev of a pod has. rdma_cm takes a change of a neighbour for one
        // of its own peer when index and address are the same, in whatever namespace
        // (`cma_netevent_callback` in drivers/infiniband/core/cma.c, 6.12): the router's
        // learning of a pod's MAC would end the connection that made it do so.
        let index = format!("index {}", 9000 + bond.number());
        // Fast LACP: a frame a second, not one in 30 s.
        let lacp = "type bond mode 802.3ad miimon 100 lacp_rate fast xmit_hash_policy layer3+4";
        // With MACs of its own choice udev would come in between: it gives a port another one
        // when it is a port already, and what comes in by that is for nobody.
        let mac = format!("02:00:00:00:b0:{:02x}", bond.number() * 4);
        ours.push(format!("link add name {netdev} address {mac} {lacp}"));
        theirs.push(format!("link add name {partner} {index} {lacp}"));
        for port in 0..2 {
            let mac = format!("02:00:00:00:b0:{:02x}", bond.number() * 4 + 1 + port);
            ours.push(format!(
                "link add name {netdev}p{port} address {mac} type veth \
                 peer name {partner}p{port} netns {}",
                router.name()
            ));
            ours.push(format!("link set dev {netdev}p{port} master {netdev}"));
            theirs.push(format!("link set dev {partner}p{port} master {partner}"));
        }
        for (lines, name, ipv4, ipv6) in [
            (&mut *ours, &*netdev, bond.ipv4(HOST), bond.ipv6(HOST)),
            (
                &mut *theirs,
                partner,
                bond.ipv4_gateway(),
                bond.ipv6_gateway(),
            ),
        ] {
            lines.push(format!("link set dev {name} up"));
            lines.push(format!("address add {ipv4}/24 dev {name}"));
            lines.push(format!("address add {ipv6}/64 dev {name} nodad"));
        }
        for (prefix, gateway) in bond.routes() {
            // The other side's own route has a better metric, being on the same host.
            ours.push(format!(
                "route add {prefix} via {gateway} dev {netdev} metric 1024"
            ));
        }
    }

    fn wait_for(&self, bond: Bond) {
        let (netdev, partner) = (bond.netdev(), bond.partner());
        wait::until(
            &format!("{partner} has both ports in one aggregate"),
            || {
                let link = self.router(bond).link(partner).expect("it was made");
                let lacp = &link["linkinfo"]["info_data"]["ad_info"];
                lacp["num_ports"] == 2 && lacp["partner_mac"] != NOBODY
            },
        );
        for gateway in [bond.ipv4_gateway(), bond.ipv6_gateway()] {
            wait::until(&format!("{gateway} answers by {netdev}"), || {
                let mut ping = self.host.command("ping");
                ping.args(["-c1", "-W1", "-I", &netdev, &gateway]);
                ping.output().expect("ping").status.success()
            });
        }
    }
}

/// MAC of the partner of a bond that has none.
const NOBODY: &str = "00:00:00:00:00:00";

/// Waits until LACP is through on `bond`, and its RDMA device is active.
#[track_caller]
fn wait_for_ports(bond: Bond) {
    let (netdev, rdma) = (bond.netdev(), bond.rdma());
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let lacp = |what: &str| read(format!("/sys/class/net/{netdev}/bonding/ad_{what}"));
    wait::until(&format!("{netdev} has both ports in one aggregate"), || {
        let partner = lacp("partner_mac");
        lacp("num_ports").trim() == "2" && !["", NOBODY].contains(&partner.trim())
    });
    wait::until(&format!("{rdma} is active"), || is_active(&rdma));
}

/// Returns true if the port of an RDMA device of this namespace is active. sysfs tells, for which no program starts.
pub(crate) fn is_active(rdma: &str) -> bool {
    let state = fs::read_to_string(format!("/sys/class/infiniband/{rdma}/ports/1/state"));
    state.is_ok_and(|it| it.contains("ACTIVE"))
}

impl Drop for Rails {
    fn drop(&mut self) {
        // The RDMA devices go with the bonds.
        let lines = BONDS.map(|bond| {
            let netdev = bond.netdev();
            let delete = |name: &str| format!("link delete {name}");
            [
                delete(&netdev),
                delete(&format!("{netdev}p0")),
                delete(&format!("{netdev}p1")),
            ]
        });
        self.host.ip_batch_of_attempts(&lines.concat());
    }
}
