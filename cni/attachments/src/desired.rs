// SPDX-License-Identifier: Apache-2.0
//! Desired state of a rail's netdev in the pod. The netdev keeps the addresses and routes from the host, or IPAM
//! assigns them.

use network_conf::{Dad, Ipv6};
use rdma_netns::{
    Address, Link, Route, Rule,
    link::{IFA_F_NODAD, IFA_F_OPTIMISTIC},
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Desired state of a rail's netdev in the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredLink {
    /// Addresses, in order.
    pub addresses: Vec<Address>,
    /// Routes. A route to a gateway precedes the routes through this gateway.
    pub routes: Vec<Route>,
    /// Rules that select the rail's routing table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Routers of the addresses' networks, from IPAM's result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
}

impl DesiredLink {
    /// Returns the addresses and routes of the netdev on the host that the pod keeps. Leaves out:
    ///
    /// - automatic addresses that are link-local, temporary, deprecated, duplicate or not yet checked for duplicates
    /// - all automatic addresses if the pod accepts router advertisements (`ipv6`): the kernel makes them again in the
    ///   pod
    /// - routes that need an omitted address
    pub fn kept(host_link: &Link, ipv6: Ipv6) -> Self {
        let lasts = |address: &&Address| {
            !address.automatic || (!ipv6.accept_ra && address.names_a_network())
        };
        let addresses = host_link.addresses.iter().filter(lasts);
        let addresses = addresses.map(|address| Address {
            lifetime: None,
            label: None,
            automatic: false,
            ..address.clone()
        });
        let addresses: Vec<Address> = addresses.collect();
        let routes = host_link
            .lasting_routes()
            .filter(|route| host_link.can_have(route, &addresses));
        let routes = routes.map(|route| Route {
            expires: None,
            ..route.clone()
        });
        let routes = routes.collect();
        Self {
            addresses,
            routes,
            ..Self::default()
        }
    }

    /// Sets the mode of duplicate address detection in `ipv6` on all IPv6 addresses.
    pub fn with_detection(mut self, ipv6: Ipv6) -> Self {
        let flag = match ipv6.dad {
            Dad::Off => IFA_F_NODAD,
            Dad::Optimistic => IFA_F_OPTIMISTIC,
            Dad::Wait => 0,
        };
        for address in self
            .addresses
            .iter_mut()
            .filter(|address| address.ip.is_ipv6())
        {
            address.flags = address.flags & !(IFA_F_NODAD | IFA_F_OPTIMISTIC) | flag;
        }
        self
    }
}
