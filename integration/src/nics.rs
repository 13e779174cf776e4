// SPDX-License-Identifier: Apache-2.0
//! The lab's NICs as a node with bonded rails has them, from inside the VM
//! (`integration/lab/vm --tier full --shared`): a bond with an RDMA device over each, on NUMA
//! nodes 0 and 1.
//!
//! | bond | RDMA device | port | prefixes |
//! |---|---|---|---|
//! | `bond0` | `mlx5_bond_0` | `enp33s0` | `10.20.0.0/24`, `fd00:c0::/64` |
//! | `bond1` | `mlx5_bond_1` | `enp65s0` | `10.20.1.0/24`, `fd00:c1::/64` |
//!
//! The address of a node ends with its number. The nodes of a cluster have these prefixes together.
//!
//! Other than those of [`crate::Rails`], these have hardware: PCI functions with NUMA nodes. Their
//! bonds are active-backup ones, as nobody answers LACP on the lab's fabric.

use crate::{
    Netns,
    control_plane::nodes::Member,
    lab::{self, NICS},
    netns::parse_list,
    wait,
};
use std::{fs, process::Command};

/// The node.
#[derive(Debug)]
pub struct BondedNics {
    /// The VM's own namespace.
    pub host: Netns,
}

/// The bond's netdev on `rail`.
pub fn netdev(rail: usize) -> String {
    format!("bond{rail}")
}

/// Returns the number of packets that an RDMA device has sent, by its own counter
/// (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`).
#[track_caller]
pub fn sent_packets(rdma: &str) -> u64 {
    let file = format!("/sys/class/infiniband/{rdma}/ports/1/hw_counters/sent_pkts");
    let text = fs::read_to_string(file).expect("a counter");
    text.trim().parse().expect("a number")
}

/// The bond's RDMA device on `rail`.
pub fn rdma(rail: usize) -> String {
    format!("mlx5_bond_{rail}")
}

/// Returns the prefix of all IPv6 addresses of `rail`.
pub fn ipv6_start(rail: usize) -> String {
    format!("fd00:c{rail}::")
}

impl Default for BondedNics {
    fn default() -> Self {
        Self::new()
    }
}

impl BondedNics {
    /// Makes the bonds; comes back when their RDMA devices are active.
    #[track_caller]
    pub fn new() -> Self {
        let host = lab::shared();
        let nics = Self { host };
        for (rail, nic) in NICS.into_iter().enumerate() {
            nics.bond(rail, nic);
        }
        nics
    }

    fn bond(&self, rail: usize, nic: &str) {
        let (bond, rdma) = (netdev(rail), rdma(rail));
        let node = Member::this().number;
        // before udev's policy gives it one of its own
        let mac = fs::read_to_string(format!("/sys/class/net/{nic}/address")).expect("a NIC");
        self.host.ip(&format!(
            "link add name {bond} address {} type bond mode active-backup miimon 50",
            mac.trim()
        ));
        self.host.ip(&format!("link set dev {nic} down"));
        self.host.ip(&format!("link set dev {nic} master {bond}"));
        self.host.ip(&format!("link set dev {bond} up"));
        self.host
            .ip(&format!("address add 10.20.{rail}.{node}/24 dev {bond}"));
        let address = format!("{}{node}/64", ipv6_start(rail));
        self.host
            .ip(&format!("address add {address} dev {bond} nodad"));
        self.host
            .run(&format!("rdma link add {rdma} type rxe netdev {bond}"));
        wait::until("the bond's RDMA device is active", || {
            let ports = parse_list(&self.host.run("rdma -j link show"));
            ports
                .iter()
                .any(|port| port["ifname"] == rdma && port["state"] == "ACTIVE")
        });
    }
}

impl Drop for BondedNics {
    fn drop(&mut self) {
        for (rail, nic) in NICS.into_iter().enumerate() {
            let mut rdma_tool = Command::new("rdma");
            let _ = rdma_tool.args(["link", "delete", &rdma(rail)]).output();
            let mut ip = Command::new("ip");
            let _ = ip.args(["link", "delete", &netdev(rail)]).output();
            let mut ip = Command::new("ip");
            let _ = ip.args(["link", "set", "dev", nic, "up"]).output();
        }
    }
}
