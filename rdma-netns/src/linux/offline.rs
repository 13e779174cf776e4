// SPDX-License-Identifier: Apache-2.0
//! Decoders that need no kernel. They run the code of this crate on messages, packets and directory trees that were
//! constructed, or recorded on another machine. `integration/fuzz` runs them on hostile input.
//!
//! The body of a message is the part after `struct nlmsghdr`.

use super::{
    addresses, api_server, devices,
    devlink::{self, Reporter},
    gids, inventory,
    links::{self, can_ask},
    listeners,
    monitor::{self, Nsid, Uevent},
    neighbours, nexthops,
    nldev::{self, CharDeviceInfo, DeviceInfo, PortInfo},
    probe,
    reach::Reach,
    routes, rules, vfs, vpd,
};
use crate::{
    Address, GeneralRule, GidTable, HardwareAddress, Inventory, Link, Neighbour, RdmaMode, Route,
    Rule, Vf,
    netlink::{Answers, NetlinkError},
    probe::Unasked,
    smc::{self, Connection, LinkGroup, PnetEntry, SmcPort},
};
use std::{collections::BTreeSet, io, net::IpAddr, path::Path};

/// Returns the netdev of an `RTM_NEWLINK`, which is in the namespace that `sysfs` shows.
pub fn link(body: &[u8], sysfs: &Path) -> Option<Link> {
    links::parse_own(body, sysfs)
}

/// Returns the netdev's index in an `RTM_NEWLINK`, and the hardware address from which the netdev can send probes.
pub fn asker(body: &[u8]) -> (Option<u32>, Result<[u8; 6], Unasked>) {
    (links::index(body), can_ask(body))
}

/// Returns the virtual function `number` from an `RTM_NEWLINK` of its physical function.
pub fn virtual_function(body: &[u8], number: u32) -> Option<Vf> {
    vfs::of(body, links::parse(body, Path::new("/nonexistent"))?, number)
}

/// Returns the address of an `RTM_NEWADDR`, with the index of its netdev.
pub fn address(body: &[u8]) -> Option<(u32, Address)> {
    addresses::parse(body).map(|seen| (seen.index, seen.address))
}

/// Returns the routes of an `RTM_NEWROUTE`, one for each next hop, each with the index of its netdev or the id of its
/// nexthop object.
pub fn routes(body: &[u8]) -> Vec<(u32, Route)> {
    let parsed = routes::parse(body).unwrap_or_default();
    parsed.hops.into_iter().chain(parsed.by_object).collect()
}

/// Parses the body of an `RTM_NEWRULE`. The first value is the rule if it selects by source. The second value is the
/// rule if it is a general rule.
pub fn rule(body: &[u8]) -> (Option<Rule>, Option<GeneralRule>) {
    (rules::parse(body), rules::parse_general(body))
}

/// Returns the neighbour of an `RTM_NEWNEIGH`.
pub fn neighbour(body: &[u8]) -> Option<Neighbour> {
    neighbours::parse(body)
}

/// Returns the netdevs that the nexthop object `id` uses, from a dump of `RTM_NEWNEXTHOP`.
pub fn nexthop(answers: &Answers, id: u32) -> BTreeSet<u32> {
    nexthops::Nexthops::of(answers).netdevs(id)
}

/// Returns the namespace's number in an `RTM_NEWNSID`.
pub fn namespace_number(body: &[u8]) -> Option<Nsid> {
    monitor::number(body)
}

/// Returns the uevent in a datagram of the kernel.
pub fn uevent(datagram: &[u8]) -> Option<Uevent> {
    monitor::uevent(datagram)
}

/// Decodes a packet of the Ethernet type `protocol` from the hardware address `from`. Returns the IP address that the
/// sender has or probes, and the sender's hardware address.
pub fn neighbour_packet(
    protocol: u16,
    packet: &[u8],
    from: &[u8],
) -> Option<(IpAddr, HardwareAddress)> {
    probe::decode(protocol, packet, from)
}

/// Returns the API servers that a kubeconfig names by address.
pub fn api_servers(kubeconfig: &str) -> Vec<IpAddr> {
    api_server::named(kubeconfig)
}

/// Returns the value of `keyword` in the read-only part of a PCI function's vital product data.
pub fn vital_product_data<'a>(data: &'a [u8], keyword: &[u8; 2]) -> Option<&'a [u8]> {
    vpd::value(data, keyword)
}

/// Returns true if a socket in `table` receives all events of netdevs, addresses and routes. `table` has the format of
/// `/proc/net/netlink`.
pub fn is_heard_of(table: &str) -> bool {
    listeners::has_one(table)
}

/// Adds to `answers` the messages of one datagram that answer the request `sequence`, in order, up to the message
/// that ends the exchange. Returns true if the datagram has the ending message.
///
/// # Errors
/// The kernel's refusal of the request.
pub fn datagram(bytes: &[u8], sequence: u32, answers: &mut Answers) -> Result<bool, NetlinkError> {
    answers.add(bytes, sequence).map(|read| read.is_end)
}

/// A message of RDMA netlink. Each field decodes the message as the answer to another request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaAnswer {
    /// Answer to `RDMA_NLDEV_CMD_SYS_GET`.
    pub mode: Option<RdmaMode>,
    /// Answer to `RDMA_NLDEV_CMD_GET`.
    pub device: Option<DeviceInfo>,
    /// Answer to `RDMA_NLDEV_CMD_PORT_GET`.
    pub port: Option<PortInfo>,
    /// Answer to `RDMA_NLDEV_CMD_RES_GET`.
    pub resources: Vec<(String, u64)>,
    /// Answer to `RDMA_NLDEV_CMD_RES_CM_ID_GET`.
    pub kernel_users: Vec<String>,
    /// Answer to `RDMA_NLDEV_CMD_GET_CHARDEV`.
    pub char_device: Option<CharDeviceInfo>,
}

/// Decodes a message of RDMA netlink.
pub fn rdma(body: &[u8]) -> RdmaAnswer {
    RdmaAnswer {
        mode: nldev::parse_mode(body),
        device: nldev::parse_device(body),
        port: nldev::parse_port(body),
        resources: nldev::parse_resources(body),
        kernel_users: nldev::parse_kernel_users(body),
        char_device: nldev::parse_char_device(body),
    }
}

/// A message of SMC. Each field decodes the message as the answer to another request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmcAnswer {
    /// Answer to `CTRL_CMD_GETFAMILY`.
    pub family: Option<u16>,
    /// Answer to `SMC_PNETID_GET`.
    pub entry: Option<PnetEntry>,
    /// Answer to `SMC_NETLINK_DUMP_UEID`.
    pub user_eid: Option<String>,
    /// Answer to `SMC_NETLINK_GET_DEV_SMCR`.
    pub ports: Vec<SmcPort>,
    /// Answer to `SMC_NETLINK_GET_LINK_SMCR`.
    pub groups: Vec<LinkGroup>,
    /// Answer to `SOCK_DIAG_BY_FAMILY`.
    pub connection: Option<Connection>,
}

/// Decodes a message of SMC's families.
pub fn smc(body: &[u8]) -> SmcAnswer {
    smc::decode(body)
}

/// Decodes a health reporter of devlink.
pub fn reporter(body: &[u8]) -> Option<Reporter> {
    devlink::parse(body)
}

/// Returns the hardware of a node whose `/sys` and `/dev` are at `sysfs` and `dev`, without netlink queries.
///
/// # Errors
/// A directory cannot be read.
pub fn hardware(sysfs: &Path, dev: &Path) -> io::Result<Inventory> {
    inventory::read_tree(sysfs, dev, Reach::default())
}

/// Returns the GID table of a port of the RDMA device `device` below `sysfs`.
///
/// # Errors
/// The table is missing, or cannot be read.
pub fn gid_table(sysfs: &Path, device: &str, port: u32) -> io::Result<GidTable> {
    gids::read(sysfs, device, port)
}

/// Returns the PCI function or auxiliary device of the netdev `name` with the index `index`, below `sysfs`.
pub fn hardware_of(sysfs: &Path, name: &str, index: u32) -> Option<crate::DeviceAddress> {
    devices::of_netdev(sysfs, name, index)
}
