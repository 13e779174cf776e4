// SPDX-License-Identifier: Apache-2.0
//! A fabric with two rails and two sides, as a GPU node with bonded NICs sees it, from inside the VM
//! (`integration/lab/vm --shared`, in the tiers `fast` and `full`).
//!
//! | bond | RDMA device | side | rail | prefixes |
//! |---|---|---|---|---|
//! | `bond0` | `mlx5_bond_0` | A | 0 | `10.10.0.0/24`, `fd00:a0::/64` |
//! | `bond1` | `mlx5_bond_1` | A | 1 | `10.10.1.0/24`, `fd00:a1::/64` |
//! | `bond2` | `mlx5_bond_2` | B | 0 | `10.11.0.0/24`, `fd00:b0::/64` |
//! | `bond3` | `mlx5_bond_3` | B | 1 | `10.11.1.0/24`, `fd00:b1::/64` |
//!
//! Every bond is an 802.3ad bond over two veths. The other ends of the veths form a bond of the rail's router. A router
//! has an address in both prefixes of its rail, and forwards between them. Each router has a separate namespace, so
//! there is no path between the rails.
//!
//! Both sides are in the initial namespace, because the kernel makes RDMA devices only there. Pods have separate
//! namespaces, so their packets pass through the router. Packets of the host itself from one side to the other do not.

use crate::{Netns, wait};
use std::{env, fs};

/// One of the two sides of the fabric. A side stands for a node or a group of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `bond0` and `bond1`.
    A,
    /// `bond2` and `bond3`.
    B,
}

impl Side {
    /// Returns the other side.
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
    /// Number of the rail: 0 or 1.
    pub rail: usize,
}

/// All bonds in the order of their numbers.
pub const BONDS: [Bond; 4] = [
    Bond::new(Side::A, 0),
    Bond::new(Side::A, 1),
    Bond::new(Side::B, 0),
    Bond::new(Side::B, 1),
];

/// Number of the host's own address in a prefix. Pods have other numbers.
pub const HOST: u8 = 1;

impl Bond {
    /// Returns the bond of `side` on `rail`.
    pub const fn new(side: Side, rail: usize) -> Self {
        Self { side, rail }
    }

    /// Returns the name of the netdev.
    pub fn netdev(self) -> String {
        format!("bond{}", self.number())
    }

    /// Returns the name of the RDMA device.
    pub fn rdma(self) -> String {
        format!("mlx5_bond_{}", self.number())
    }

    /// Returns the bond of the other side on the same rail.
    pub fn peer(self) -> Self {
        Self::new(self.side.other(), self.rail)
    }

    /// Returns address `number` of the bond's IPv4 prefix, without the prefix length.
    pub fn ipv4(self, number: u8) -> String {
        format!("10.{}.{}.{number}", 10 + self.side as u8, self.rail)
    }

    /// Returns address `number` of the bond's IPv6 prefix, without the prefix length.
    pub fn ipv6(self, number: u8) -> String {
        format!("{}{number:x}", self.ipv6_start())
    }

    /// Returns the IPv4 prefix, such as `10.10.0.0/24`.
    pub fn ipv4_prefix(self) -> String {
        format!("{}/24", self.ipv4(0))
    }

    /// Returns the IPv6 prefix, such as `fd00:a0::/64`.
    pub fn ipv6_prefix(self) -> String {
        format!("{}/64", self.ipv6_start())
    }

    /// Returns the router's address in the bond's IPv4 prefix.
    pub fn ipv4_gateway(self) -> String {
        self.ipv4(254)
    }

    /// Returns the router's address in the bond's IPv6 prefix.
    pub fn ipv6_gateway(self) -> String {
        format!("{}fffe", self.ipv6_start())
    }

    /// Returns the bond's routes to the other side, for IPv4 and IPv6: destination and gateway.
    pub fn routes(self) -> [(String, String); 2] {
        let peer = self.peer();
        [
            (peer.ipv4_prefix(), self.ipv4_gateway()),
            (peer.ipv6_prefix(), self.ipv6_gateway()),
        ]
    }

    /// Returns the router's bond, which is the LACP partner.
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

/// The fabric, and the bonds on it.
#[derive(Debug)]
pub struct Rails {
    /// The VM's own namespace, with the bonds of both sides.
    pub host: Netns,
    /// The routers, one for each rail.
    pub routers: [Netns; 2],
}

impl Default for Rails {
    fn default() -> Self {
        Self::new()
    }
}

impl Rails {
    /// Makes the fabric and the bonds. Returns when LACP is complete on all bonds, the RDMA devices are active, and the
    /// host reaches its gateways.
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
        // These settings precede the first netdev, so that its addresses are usable immediately.
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

    /// Returns the router of the bond's rail.
    pub fn router(&self, bond: Bond) -> &Netns {
        &self.routers[bond.rail]
    }

    /// Returns the number of bytes that `bond` has sent.
    #[track_caller]
    pub fn sent(&self, bond: Bond) -> u64 {
        self.host.tx_bytes(&bond.netdev())
    }

    /// Makes the bonds and their partners, by one program for each namespace.
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

    /// Adds lines for `ip`: the lines that make `bond` to `ours`, the lines that make its partner to `theirs`.
    fn describe(&self, bond: Bond, ours: &mut Vec<String>, theirs: &mut Vec<String>) {
        let (netdev, partner, router) = (bond.netdev(), bond.partner(), self.router(bond));
        // An index that no netdev of a pod has. rdma_cm takes a change of a neighbour in any namespace for a change of
        // its own peer if index and address are equal (`cma_netevent_callback` in drivers/infiniband/core/cma.c, 6.12).
        // The router learns a pod's MAC because of a connection, and with an equal index this would end the connection.
        let index = format!("index {}", 9000 + bond.number());
        // Fast LACP: a frame every second instead of every 30 s.
        let lacp = "type bond mode 802.3ad miimon 100 lacp_rate fast xmit_hash_policy layer3+4";
        // This command sets the MAC, because udev does not change a MAC that was set. udev would replace a MAC chosen
        // by the kernel when the netdev is already a port. Frames to the new MAC would be lost.
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
            // The host has a better route to the other side, which is on the same host.
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

/// MAC that a bond without a partner shows as its partner's.
const NOBODY: &str = "00:00:00:00:00:00";

/// Waits until LACP is complete on `bond`, and the bond's RDMA device is active.
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

/// Returns true if sysfs shows the port of an RDMA device of this namespace as active. Starts no program.
pub(crate) fn is_active(rdma: &str) -> bool {
    let state = fs::read_to_string(format!("/sys/class/infiniband/{rdma}/ports/1/state"));
    state.is_ok_and(|it| it.contains("ACTIVE"))
}

impl Drop for Rails {
    fn drop(&mut self) {
        // The RDMA devices end with the bonds.
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
