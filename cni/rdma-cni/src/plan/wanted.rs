//! What a rail's netdev is to have in the pod: kept from the host, or given by IPAM.

use crate::{
    attachment::Attachment,
    conf::{Dad, Ipv6},
};
use rdma_netns::{
    Address, Link, Observed, Route,
    link::{IFA_F_NODAD, IFA_F_OPTIMISTIC},
};
use serde::{Deserialize, Serialize};

/// The metric of a route that must stand back behind another one: that of the eRDMA
/// controller, which leaves room for the node's own.
const LOWEST_METRIC: u32 = 200;

/// The addresses and routes that a rail's netdev is to have in the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Addresses, in order.
    pub addresses: Vec<Address>,
    /// Routes, those on the link first.
    pub routes: Vec<Route>,
}

impl Wanted {
    /// What the netdev had on the host, less what the kernel makes by itself and what needs
    /// that. In the pod nobody renews a lease: the addresses are its for as long as it lives.
    pub fn kept(home: &Link) -> Self {
        let addresses = home.addresses.iter().filter(|address| !address.automatic);
        let addresses = addresses.map(|address| Address {
            lifetime: None,
            label: None,
            ..address.clone()
        });
        let addresses: Vec<Address> = addresses.collect();
        let routes = home
            .lasting_routes()
            .filter(|route| home.can_have(route, &addresses));
        let routes = routes.cloned().collect();
        Self { addresses, routes }
    }

    /// With the duplicate address detection that `ipv6` asks for.
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

/// `wanted`, with routes that stand back behind those that others have to the same
/// destination: the pod's own default route stays the one that is used, and the kernel makes
/// no route of several next hops of the two.
pub fn beside_others(
    attachment: &Attachment,
    observed: &Observed,
    mut wanted: Vec<Wanted>,
) -> Vec<Wanted> {
    let is_rail = |link: &&Link| {
        attachment
            .rails
            .iter()
            .any(|rail| rail.home.is_some() && rail.pod_name == link.name)
    };
    let others = observed
        .pod
        .iter()
        .flat_map(|pod| &pod.links)
        .filter(|link| !is_rail(link));
    let mut present: Vec<Route> = others.flat_map(|link| link.routes.clone()).collect();
    for rail in &mut wanted {
        for route in &mut rail.routes {
            let same = |other: &&Route| {
                (other.destination, other.prefix, other.table)
                    == (route.destination, route.prefix, route.table)
            };
            let highest = present.iter().filter(same).map(metric).max();
            if let Some(highest) = highest {
                let behind = highest.saturating_add(1).max(LOWEST_METRIC);
                route.metric = Some(behind.max(metric(route)));
            }
        }
        present.extend(rail.routes.iter().cloned());
    }
    wanted
}

/// The metric that counts: without one an IPv6 route has 1024 (`IP6_RT_PRIO_USER`).
fn metric(route: &Route) -> u32 {
    let default = if route.destination.is_ipv4() { 0 } else { 1024 };
    route.metric.unwrap_or(default)
}
