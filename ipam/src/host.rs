// SPDX-License-Identifier: Apache-2.0
//! What the own namespace, the host's, says: its addresses, a parent's, and its neighbours.

use crate::{
    address::number,
    parent::{GatewayRoute, Parent},
};
use ipnetwork::IpNetwork;
use rdma_netns::{
    Asked, HardwareAddress, Kernel, Linux, Namespace, ObserveError, Route, link::MAIN_TABLE,
};
use std::net::IpAddr;

/// The addresses that this host has, on any netdev.
pub fn addresses(linux: &Linux) -> Result<Vec<IpAddr>, ObserveError> {
    linux.addresses()
}

/// The netdev called `name`, if this host has it: its addresses that name a network, and its
/// routes by a gateway in the main table.
pub fn parent(linux: &Linux, name: &str) -> Result<Option<Parent>, ObserveError> {
    let host = state(linux)?;
    let Some(link) = host.link(name) else {
        return Ok(None);
    };
    let addresses = link
        .addresses
        .iter()
        .filter(|address| address.names_a_network())
        .filter_map(|address| IpNetwork::new(address.ip, address.prefix).ok());
    let mut routes: Vec<&Route> = link
        .routes
        .iter()
        .filter(|route| route.table == MAIN_TABLE)
        .collect();
    routes.sort_by_key(|route| (route.prefix, number(route.destination), route.metric));
    Ok(Some(Parent {
        name: name.to_owned(),
        addresses: addresses.collect(),
        routes: routes.into_iter().filter_map(gateway_route).collect(),
    }))
}

/// Its netdevs, addresses and routes. Nobody asks for hardware.
fn state(linux: &Linux) -> Result<Namespace, ObserveError> {
    linux.ask_only(Some(Asked::default()));
    Ok(linux.observe(None)?.host)
}

/// The machines on the network of the netdev called `name` that this host knows.
pub fn neighbours(linux: &Linux, name: &str) -> Result<Vec<IpAddr>, ObserveError> {
    let host = state(linux)?;
    let Some(link) = host.link(name) else {
        return Ok(vec![]);
    };
    let is_own = |mac: &HardwareAddress| host.links.iter().any(|link| link.mac == *mac);
    let neighbours = linux.neighbours()?.into_iter();
    let others = neighbours.filter(|it| it.index == link.index && !is_own(&it.mac));
    Ok(others.map(|it| it.address).collect())
}

fn gateway_route(route: &Route) -> Option<GatewayRoute> {
    Some(GatewayRoute {
        destination: IpNetwork::new(route.destination, route.prefix).ok()?,
        gateway: route.gateway?,
    })
}
