// SPDX-License-Identifier: Apache-2.0
//! IP addresses: their order, duplicate address detection, and their prefix routes.

use crate::{
    netdev::Netdev,
    world::{Refusal, World, refuse},
};
use nix::errno::Errno;
use rdma_netns::{
    Address, HardwareAddress, LinkFlag, LinkType, NetnsId, Route,
    link::{
        GIVEN_FLAGS, IFA_F_NODAD, IFA_F_NOPREFIXROUTE, IFA_F_OPTIMISTIC, PROTOCOL_KERNEL,
        SCOPE_LINK,
    },
};
use std::net::{IpAddr, Ipv6Addr};

/// `IP6_RT_PRIO_ADDRCONF`
const PREFIX_ROUTE_METRIC: u32 = 256;

impl World {
    /// Adds an address, or changes a present one (`NLM_F_REPLACE`).
    pub(crate) fn add_address(
        &mut self,
        netns: NetnsId,
        link: &str,
        address: &Address,
    ) -> Result<(), Refusal> {
        let detection = self.detection;
        let netdev = self.netdev(netns, link)?;
        match address.ip {
            IpAddr::V4(_) => netdev.add_ipv4(address),
            IpAddr::V6(_) => netdev.add_ipv6(address, detection),
        }
    }

    /// Removes an address, its prefix route, and the routes that have it as source (`fib_del_ifaddr()`,
    /// `cleanup_prefix_route()`). With an IPv4 primary, its secondaries are removed too (`promote_secondaries` is off).
    /// With the last IPv4 address, all IPv4 routes are removed (`fib_disable_ip()`).
    pub(crate) fn remove_address(
        &mut self,
        netns: NetnsId,
        link: &str,
        address: &Address,
    ) -> Result<(), Refusal> {
        let netdev = self.netdev(netns, link)?;
        let addresses = &mut netdev.link.addresses;
        let Some(found) = addresses.iter().position(|other| other.same_as(address)) else {
            return Err(Errno::EADDRNOTAVAIL.into());
        };
        let removed = addresses.remove(found);
        let primary = !addresses[..found]
            .iter()
            .any(|other| same_subnet(other, &removed));
        if removed.ip.is_ipv4() && primary {
            addresses.retain(|other| !same_subnet(other, &removed));
        }
        let left: Vec<Route> = addresses.iter().filter_map(prefix_route).collect();
        let gone = prefix_route(&removed).filter(|route| !left.contains(route));
        let stays = addresses.iter().any(|other| other.ip == removed.ip);
        let is_last = removed.ip.is_ipv4() && !addresses.iter().any(|other| other.ip.is_ipv4());
        netdev.detecting.remove(&removed.ip);
        netdev.link.routes.retain(|route| {
            let has_source = stays || route.source != Some(removed.ip);
            let has_family = !is_last || route.destination.is_ipv6();
            Some(route) != gone.as_ref() && has_source && has_family
        });
        Ok(())
    }

    /// Announces an address to neighbours, if the netdev is up, is Ethernet and uses neighbour discovery. The netdev
    /// need not have the address, because a packet socket sends any packet.
    pub(crate) fn announce(
        &mut self,
        netns: NetnsId,
        link: &str,
        address: IpAddr,
    ) -> Result<(), Refusal> {
        let link = &self.netdev(netns, link)?.link;
        if link.up && link.link_type == LinkType::Ether && !link.has(LinkFlag::NoArp) {
            let mac = link.mac.clone();
            self.announced.push((mac, address));
        }
        Ok(())
    }

    /// Adds the prefix routes and the link-local address of a netdev that goes up or gets IPv6 back, and starts the
    /// detection of its tentative addresses.
    pub(crate) fn start_addresses(&mut self, netns: NetnsId, link: &str) -> Result<(), Refusal> {
        let detection = self.detection;
        let netdev = self.netdev(netns, link)?;
        if !netdev.link.up {
            return Ok(());
        }
        for route in netdev.prefix_routes() {
            netdev.add_prefix_route(route);
        }
        let pending = netdev.link.addresses.iter().filter(|a| a.tentative);
        let pending: Vec<IpAddr> = pending.map(|address| address.ip).collect();
        for ip in pending {
            netdev.detecting.insert(ip, detection);
        }
        if let Some(address) = netdev.link_local() {
            netdev.insert_ipv6(address, detection);
        }
        Ok(())
    }
}

impl Netdev {
    /// Inserts a primary before the secondaries. An address whose subnet is present is a secondary
    /// (`__inet_insert_ifa()`, `net/ipv4/devinet.c`). If the address is present, changes only its metric and lifetime
    /// (`inet_rtm_newaddr()`).
    fn add_ipv4(&mut self, address: &Address) -> Result<(), Refusal> {
        let addresses = &mut self.link.addresses;
        if let Some(present) = addresses.iter_mut().find(|a| a.same_as(address)) {
            let before = prefix_route(present);
            present.metric = address.metric;
            present.lifetime = address.lifetime;
            let after = prefix_route(present);
            if before != after && self.link.up {
                self.link
                    .routes
                    .retain(|route| Some(route) != before.as_ref());
                after
                    .into_iter()
                    .for_each(|route| self.add_prefix_route(route));
            }
            return Ok(());
        }
        let is_secondary = |list: &[Address], address: &Address| {
            list.iter().any(|other| same_subnet(other, address))
        };
        let secondary = is_secondary(addresses, address);
        let mut at = addresses.len();
        if !secondary {
            let primary = |at: &usize| !is_secondary(&addresses[..*at], &addresses[*at]);
            let ipv4 = (0..addresses.len()).filter(|at| addresses[*at].ip.is_ipv4());
            let after = ipv4
                .filter(primary)
                .filter(|at| addresses[*at].scope >= address.scope)
                .max();
            at = after.map_or(0, |after| after + 1);
        } else if let Some(ipv6) = addresses.iter().position(|other| other.ip.is_ipv6()) {
            at = ipv6;
        }
        let mut added = address.clone();
        added.flags &= GIVEN_FLAGS;
        (added.tentative, added.automatic) = (false, false);
        addresses.insert(at, added);
        if self.link.up && !secondary {
            prefix_route(address)
                .into_iter()
                .for_each(|route| self.add_prefix_route(route));
        }
        Ok(())
    }

    fn add_ipv6(&mut self, address: &Address, detection: u32) -> Result<(), Refusal> {
        if !self.has_ipv6() {
            return match self.link.sysctls.get("ipv6/disable_ipv6") {
                None => Err(Errno::EINVAL.into()),
                Some(_) => refuse(Errno::EACCES, "IPv6 is disabled on this device"),
            };
        }
        let mut added = address.clone();
        // ipv6_allow_optimistic_dad(): without the sysctl the kernel drops the flag and reports no error
        added.flags &= GIVEN_FLAGS;
        if self.link.sysctls.get("ipv6/optimistic_dad") == Some(&0) {
            added.flags &= !IFA_F_OPTIMISTIC;
        }
        added.scope = if address.is_link_local() {
            SCOPE_LINK
        } else {
            0
        };
        added.automatic = false;
        added.label = None;
        added.broadcast = None;
        let present = self.link.addresses.iter_mut();
        if let Some(present) = present.into_iter().find(|other| other.ip == added.ip) {
            // inet6_addr_modify(): the prefix stays
            present.flags = added.flags;
            present.metric = added.metric;
            present.lifetime = added.lifetime;
            present.automatic = false;
            return Ok(());
        }
        self.insert_ipv6(added, detection);
        Ok(())
    }

    /// Inserts the newest address of a scope first, and link-local addresses after global ones (`ipv6_link_dev_addr()`,
    /// `net/ipv6/addrconf.c`).
    fn insert_ipv6(&mut self, mut address: Address, detection: u32) {
        let probes = self
            .link
            .sysctls
            .get("ipv6/accept_dad")
            .is_some_and(|v| *v > 0);
        address.tentative = address.flags & IFA_F_NODAD == 0
            && !self.link.has(LinkFlag::NoArp)
            && (probes || !self.link.up);
        if address.tentative {
            self.detecting.insert(address.ip, detection);
        }
        let addresses = &mut self.link.addresses;
        let at = addresses
            .iter()
            .position(|other| other.ip.is_ipv6() && other.scope >= address.scope)
            .unwrap_or(addresses.len());
        if self.link.up {
            let route = prefix_route(&address);
            addresses.insert(at, address);
            route
                .into_iter()
                .for_each(|route| self.add_prefix_route(route));
        } else {
            addresses.insert(at, address);
        }
    }

    /// Returns the link-local address that the kernel adds to a netdev that is up and lacks one
    /// (`addrconf_addr_gen()`). A netdev without IPv6 or with `addr_gen_mode` 1 (none), and a bond's port
    /// (`IFF_NO_ADDRCONF`), get none.
    fn link_local(&self) -> Option<Address> {
        let wants = self.has_ipv6()
            && self.link.master.is_none()
            && self.link.sysctls.get("ipv6/addr_gen_mode") != Some(&1)
            && self.link.link_type != LinkType::Other
            && !self.link.addresses.iter().any(Address::is_link_local);
        let mut address = Address::new(IpAddr::V6(link_local_of(&self.link.mac)?), 64);
        address.scope = SCOPE_LINK;
        address.automatic = true;
        wants.then_some(address)
    }

    fn prefix_routes(&self) -> Vec<Route> {
        let addresses = &self.link.addresses;
        let primary = |at: usize| {
            addresses[at].ip.is_ipv6()
                || !addresses[..at]
                    .iter()
                    .any(|other| same_subnet(other, &addresses[at]))
        };
        (0..addresses.len())
            .filter(|at| primary(*at))
            .filter_map(|at| prefix_route(&addresses[at]))
            .collect()
    }

    fn add_prefix_route(&mut self, route: Route) {
        if !self.link.routes.contains(&route) {
            self.insert_route(route);
        }
    }
}

/// Returns the route that the kernel adds with an address. IPv4 addresses of prefix length 32 without a peer
/// (`fib_add_ifaddr()`) and addresses with `IFA_F_NOPREFIXROUTE` have none.
fn prefix_route(address: &Address) -> Option<Route> {
    if address.flags & IFA_F_NOPREFIXROUTE != 0 {
        return None;
    }
    let end = address.peer.unwrap_or(address.ip);
    let mut route = Route::new(network(end, address.prefix), address.prefix);
    route.protocol = PROTOCOL_KERNEL;
    route.metric = address.metric;
    match address.ip {
        IpAddr::V4(_) if address.prefix == 32 && address.peer.is_none() => return None,
        IpAddr::V4(_) => (route.source, route.scope) = (Some(address.ip), SCOPE_LINK),
        IpAddr::V6(_) => route.metric = route.metric.or(Some(PREFIX_ROUTE_METRIC)),
    }
    Some(route)
}

/// Returns true if both are IPv4 addresses of one subnet. The subnet of an address with a peer is that of the peer
/// (`inet_ifa_match()`).
fn same_subnet(one: &Address, other: &Address) -> bool {
    let subnet = |it: &Address| network(it.peer.unwrap_or(it.ip), it.prefix);
    one.ip.is_ipv4()
        && other.ip.is_ipv4()
        && one.prefix == other.prefix
        && subnet(one) == subnet(other)
}

/// Returns `ip` with all bits after the prefix set to 0.
pub(crate) fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

/// Returns the link-local address of a hardware address: from its EUI-64 for Ethernet, from the port's GUID for IPoIB.
fn link_local_of(mac: &HardwareAddress) -> Option<Ipv6Addr> {
    let identifier: [u8; 8] = match mac.0.as_slice() {
        [a, b, c, d, e, f] => [a ^ 2, *b, *c, 0xff, 0xfe, *d, *e, *f],
        long if long.len() == 20 => long[12..].try_into().ok()?,
        _ => return None,
    };
    let identifier = u128::from(u64::from_be_bytes(identifier));
    Some(Ipv6Addr::from(0xfe80_u128 << 112 | identifier))
}
