// SPDX-License-Identifier: Apache-2.0
//! Decoders that need no kernel. They run the code of this crate on messages, packets and directory trees that were
//! constructed, or recorded on another machine. `integration/fuzz` runs them on hostile input.
//!
//! The body of a message is the part after `struct nlmsghdr`.

pub use super::{
    api_server::named as api_servers, devices::of_netdev as hardware_of, gids::read as gid_table,
    listeners::has_one as has_listener, monitor::nsid::parse as namespace_number,
    neighbours::parse as neighbour, probe::decode as neighbour_packet,
    vpd::value as vital_product_data,
};
pub use crate::smc::SmcAnswer;

use super::{
    addresses,
    devlink::{self, Reporter},
    inventory, link_messages,
    links::{self, can_ask},
    monitor::Uevent,
    nexthops,
    nldev::{self, CharDeviceInfo, DeviceInfo, PortInfo},
    reach::Reach,
    routes, rules, vfs,
};
use crate::{
    Address, GeneralRule, Inventory, Link, RdmaMode, Route, Rule, Vf,
    netlink::{Answers, NetlinkError},
    probe::ProbeObstacle,
    smc,
};
use std::{collections::BTreeSet, io, path::Path};

/// Returns the netdev of an `RTM_NEWLINK`, without addresses and routes. `sysfs` shows the netdev's namespace.
pub fn link(body: &[u8], sysfs: &Path) -> Option<Link> {
    let alt_names = links::alt_names(body);
    let link = links::parse_in(body, sysfs, true)?;
    Some(Link { alt_names, ..link })
}

/// Returns the netdev's index in an `RTM_NEWLINK`, and the hardware address from which the netdev can send probes.
pub fn asker(body: &[u8]) -> (Option<u32>, Result<[u8; 6], ProbeObstacle>) {
    (link_messages::index(body), can_ask(body))
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

/// Returns the netdevs that the nexthop object `id` uses. `bodies` are the messages of a dump of
/// `RTM_NEWNEXTHOP`.
pub fn nexthop<'a>(bodies: impl Iterator<Item = &'a [u8]>, id: u32) -> BTreeSet<u32> {
    nexthops::Nexthops::of(bodies).netdevs(id)
}

/// Returns the uevent in a datagram of the kernel.
pub fn uevent(datagram: &[u8]) -> Option<Uevent> {
    Uevent::parse(datagram)
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
