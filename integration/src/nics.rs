// SPDX-License-Identifier: Apache-2.0
//! The lab's NICs as a node's bonded rails, as seen from inside the VM (`integration/lab/vm --tier full --shared`): a
//! bond with an RDMA device over each NIC, on NUMA nodes 0 and 1.
//!
//! | bond | RDMA device | port | prefixes |
//! |---|---|---|---|
//! | `bond0` | `mlx5_bond_0` | `enp33s0` | `10.20.0.0/24`, `fd00:c0::/64` |
//! | `bond1` | `mlx5_bond_1` | `enp65s0` | `10.20.1.0/24`, `fd00:c1::/64` |
//!
//! The last part of a node's address is its number. The nodes of a cluster share these prefixes.
//!
//! These bonds have hardware, unlike those of [`crate::Rails`]: PCI functions with NUMA nodes. They
//! are active-backup bonds, because no switch on the lab's fabric answers LACP.

use crate::{
    Netns,
    control_plane::nodes::Member,
    files,
    lab::{self, NICS},
    netns::parse_list,
    wait,
};
use std::{fs, process::Command};

/// A node with a bond over each NIC.
#[derive(Debug)]
pub struct BondedNics {
    /// The VM's own namespace.
    pub host: Netns,
}

/// Returns the netdev of the bond on `rail`.
pub fn netdev(rail: usize) -> String {
    format!("bond{rail}")
}

/// Returns the number of packets that an RDMA device has sent, from the device's own counter
/// (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`).
#[track_caller]
pub fn sent_packets(rdma: &str) -> u64 {
    let file = format!("/sys/class/infiniband/{rdma}/ports/1/hw_counters/sent_pkts");
    let text = fs::read_to_string(file).expect("a counter");
    text.trim().parse().expect("a number")
}

/// Returns the RDMA device of the bond on `rail`.
pub fn rdma(rail: usize) -> String {
    format!("mlx5_bond_{rail}")
}

/// Returns the number of used entries of the GID table of the RDMA device `rdma`.
#[track_caller]
pub fn gids(rdma: &str) -> usize {
    let directory = format!("/sys/class/infiniband/{rdma}/ports/1/gids");
    let opened = fs::File::open(&directory).expect("the device's GIDs");
    let files = fs::read_dir(directory).expect("the device's GIDs");
    let text = files.map(|file| {
        let name = file.expect("a GID").file_name();
        files::read_short(&opened, name.to_str().expect("a number")).expect("a GID")
    });
    let is_used = |gid: &String| gid.bytes().any(|b| !matches!(b, b'0' | b':' | b'\n'));
    text.filter(is_used).count()
}

/// Returns the prefix of all IPv6 addresses of `rail`, without its length.
pub fn ipv6_start(rail: usize) -> String {
    format!("fd00:c{rail}::")
}

impl Default for BondedNics {
    fn default() -> Self {
        Self::new()
    }
}

impl BondedNics {
    /// Makes the bonds. Returns when their RDMA devices are active.
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
        // sets the MAC here: udev's policy would otherwise set another one later
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
