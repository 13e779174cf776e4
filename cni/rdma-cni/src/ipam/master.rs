// SPDX-License-Identifier: Apache-2.0
//! Description of a rail's netdev for an IPAM plugin. In mode `move` the plugin cannot observe the netdev and its
//! addresses: they are no longer on the host when the plugin runs.

use ipnetwork::IpNetwork;
use rdma_ipam::host::is_a_nics;
use rdma_netns::{Address, HardwareAddress, Link, Neighbour, link::MAIN_TABLE};
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// Addresses in the host's records and neighbour tables, which an IPAM plugin cannot observe.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The host's addresses on netdevs that are in pods now.
    pub away: Vec<IpAddr>,
    /// Addresses of other machines from the host's neighbour tables. When a netdev moves, the kernel removes its
    /// entries from these tables.
    pub neighbours: Vec<Neighbour>,
}

/// A rail's netdev on the host, the networks of the other rails, and known addresses.
#[derive(Clone, Debug)]
pub struct Master<'a> {
    link: &'a Link,
    elsewhere: Vec<IpNetwork>,
    known: &'a Known,
}

impl<'a> Master<'a> {
    /// Returns a description of each of `links`, the netdevs of a pod's rails.
    pub fn of(links: &[&'a Link], known: &'a Known) -> Vec<Self> {
        let elsewhere = |index: usize| {
            let others = links
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index);
            let others = others.flat_map(|(_, link)| networks(link));
            let own: Vec<IpNetwork> = networks(links[index]).collect();
            others.filter(|network| !own.contains(network)).collect()
        };
        links
            .iter()
            .enumerate()
            .map(|(index, link)| Self {
                link,
                elsewhere: elsewhere(index),
                known,
            })
            .collect()
    }

    /// Returns the IPAM configuration for this rail. Adds `master`, `masterAddresses`, `masterRoutes`, `hostAddresses`,
    /// `neighbourAddresses` and `nodeAddresses`. Removes requested addresses (`runtimeConfig.ips`, `args.cni.ips`) that
    /// belong to another rail's network, or that the pod already has (`assigned`).
    pub(super) fn handed_on(
        &self,
        config: &Map<String, Value>,
        assigned: &[IpAddr],
    ) -> Map<String, Value> {
        let mut config = config.clone();
        let addresses = usable(self.link).map(|it| format!("{}/{}", it.ip, it.prefix).into());
        let addresses: Vec<Value> = addresses.collect();
        let routes = self.link.routes.iter();
        let routes = routes.filter(|route| route.table == MAIN_TABLE);
        let routes = routes.filter_map(|route| {
            let gateway = route.gateway?;
            let destination = format!("{}/{}", route.destination, route.prefix);
            Some(json!({ "dst": destination, "gw": gateway.to_string() }))
        });
        let routes: Vec<Value> = routes.collect();
        config.insert("master".into(), self.link.name.to_string().into());
        config.insert("masterAddresses".into(), addresses.into());
        config.insert("masterRoutes".into(), routes.into());
        let away = self.known.away.iter().map(|ip| ip.to_string().into());
        config.insert("hostAddresses".into(), Value::Array(away.collect()));
        let neighbours = self.known.neighbours.iter();
        let neighbours = neighbours.filter(|neighbour| neighbour.index == self.link.index);
        let neighbours: Vec<&Neighbour> = neighbours.collect();
        config.insert(
            "neighbourAddresses".into(),
            addresses_of(&neighbours, |_| true),
        );
        config.insert("nodeAddresses".into(), addresses_of(&neighbours, is_a_nics));
        let is_own = |ip: &str| is_own(ip, &self.elsewhere, assigned);
        if let Some(request) = config.get_mut("runtimeConfig") {
            keep(request, is_own);
        }
        if let Some(request) = config.get_mut("args").and_then(|it| it.get_mut("cni")) {
            keep(request, is_own);
        }
        config
    }

    /// Returns `CNI_ARGS` without the requested addresses (`IP=`) that belong to another rail's network, or that the
    /// pod already has (`assigned`).
    pub(super) fn args(&self, args: &str, assigned: &[IpAddr]) -> String {
        args_with(args, |ip| is_own(ip, &self.elsewhere, assigned))
    }
}

/// Returns true if a request for `ip` may be for a rail. `elsewhere` are the networks of the other rails, `assigned`
/// the addresses that the pod has. A request names no rail. A runtime passes a request for the address of the pod's own
/// network to each plugin of the list.
fn is_own(ip: &str, elsewhere: &[IpNetwork], assigned: &[IpAddr]) -> bool {
    let address = ip.split('/').next().unwrap_or_default();
    address.parse::<IpAddr>().map_or(true, |ip| {
        !assigned.contains(&ip) && !elsewhere.iter().any(|network| network.contains(ip))
    })
}

/// Keeps the requested addresses in `request` that `is_own` accepts.
fn keep(request: &mut Value, is_own: impl Fn(&str) -> bool) {
    if let Some(Value::Array(ips)) = request.get_mut("ips") {
        ips.retain(|ip| is_own(ip.as_str().unwrap_or_default()));
    }
}

/// Returns the IP addresses of the `neighbours` whose hardware address `is_it` accepts.
fn addresses_of(neighbours: &[&Neighbour], is_it: impl Fn(&HardwareAddress) -> bool) -> Value {
    let found = neighbours.iter().filter(|it| is_it(&it.mac));
    found.map(|it| it.address.to_string()).collect()
}

fn args_with(args: &str, is_own: impl Fn(&str) -> bool) -> String {
    let pairs = args.split(';').filter_map(|pair| {
        let Some(list) = pair.strip_prefix("IP=") else {
            return Some(pair.to_owned());
        };
        // `rdma-ipam` and the reference plugin `static` accept several addresses
        let left: Vec<&str> = list.split(',').filter(|ip| is_own(ip)).collect();
        (!left.is_empty()).then(|| format!("IP={}", left.join(",")))
    });
    pairs.collect::<Vec<_>>().join(";")
}

fn networks(link: &Link) -> impl Iterator<Item = IpNetwork> {
    usable(link).filter_map(|it| {
        let network = IpNetwork::new(it.ip, it.prefix).ok()?;
        IpNetwork::new(network.network(), it.prefix).ok()
    })
}

/// Returns the addresses of `link` whose prefix identifies a network.
fn usable(link: &Link) -> impl Iterator<Item = &Address> {
    link.addresses.iter().filter(|it| it.names_a_network())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lose_the_addresses_of_other_rails_and_of_the_pod() {
        let elsewhere = ["10.1.0.0/16", "fd00:1::/64"].map(|it| it.parse().unwrap());
        let assigned = ["10.88.0.50", "fd88::50"].map(|it| it.parse().unwrap());
        for (given, left) in [
            ("", ""),
            ("IP=10.1.0.5", ""),
            ("IP=10.0.0.5", "IP=10.0.0.5"),
            ("A=b;IP=fd00:1::5/64;C=10.1.0.5", "A=b;C=10.1.0.5"),
            ("IP=10.1.0.5/16,fd00::5/64;A=b", "IP=fd00::5/64;A=b"),
            ("IP=10.88.0.50/16,10.88.0.51", "IP=10.88.0.51"),
            ("A=b;IP=FD88::0:50", "A=b"),
            ("IP=;A", "IP=;A"),
        ] {
            let args = args_with(given, |ip| is_own(ip, &elsewhere, &assigned));
            assert_eq!(args, left);
        }
    }
}
