// SPDX-License-Identifier: Apache-2.0
//! Observation of a parent netdev of the host, and of the parent's neighbours.

use crate::{
    address::number,
    parent::{GatewayRoute, Parent},
};
use ipnetwork::IpNetwork;
use rdma_netns::{
    HardwareAddress, Kernel, Linux, Namespace, Neighbour, ObservationScope, ObserveError, Route,
    link::MAIN_TABLE,
};

/// Returns the netdev `name` of this host, with its addresses that identify a network, and with its routes to gateways
/// in the main table. Returns `None` if the host has no such netdev.
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

/// Observes netdevs, addresses and routes. Does not read hardware.
fn state(linux: &Linux) -> Result<Namespace, ObserveError> {
    linux.limit_observation(Some(ObservationScope::default()));
    Ok(linux.observe(None)?.host)
}

/// Returns the entries for other machines in the host's neighbour table of the netdev `name`.
pub fn neighbours(linux: &Linux, name: &str) -> Result<Vec<Neighbour>, ObserveError> {
    let host = state(linux)?;
    let Some(link) = host.link(name) else {
        return Ok(vec![]);
    };
    let is_own = |mac: &HardwareAddress| host.links.iter().any(|link| link.mac == *mac);
    let neighbours = linux.neighbours()?.into_iter();
    let others = neighbours.filter(|it| it.index == link.index && !is_own(&it.mac));
    Ok(others.collect())
}

/// Returns true if the machine with this hardware address is probably a node, and not a pod. A NIC has an address from
/// its maker, which is neither a group address nor locally administered (IEEE 802, section 8.2). A pod's macvlan has a
/// random, locally administered address.
pub fn is_a_nics(mac: &HardwareAddress) -> bool {
    matches!(mac.0[..], [first, _, _, _, _, _] if first & 3 == 0)
}

fn gateway_route(route: &Route) -> Option<GatewayRoute> {
    Some(GatewayRoute {
        destination: IpNetwork::new(route.destination, route.prefix).ok()?,
        gateway: route.gateway?,
    })
}
