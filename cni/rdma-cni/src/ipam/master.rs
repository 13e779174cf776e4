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
    /// belong to another rail's network.
    pub(super) fn handed_on(&self, config: &Map<String, Value>) -> Map<String, Value> {
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
        if let Some(wishes) = config.get_mut("runtimeConfig") {
            self.keep_own(wishes);
        }
        if let Some(wishes) = config.get_mut("args").and_then(|it| it.get_mut("cni")) {
            self.keep_own(wishes);
        }
        config
    }

    /// Returns `CNI_ARGS` without the requested addresses (`IP=`) that belong to another rail's network.
    pub(super) fn args(&self, args: &str) -> String {
        args_without(args, &self.elsewhere)
    }

    fn keep_own(&self, wishes: &mut Value) {
        if let Some(Value::Array(ips)) = wishes.get_mut("ips") {
            ips.retain(|ip| !is_in(ip.as_str().unwrap_or_default(), &self.elsewhere));
        }
    }
}

/// Returns the IP addresses of the `neighbours` whose hardware address `is_it` accepts.
fn addresses_of(neighbours: &[&Neighbour], is_it: impl Fn(&HardwareAddress) -> bool) -> Value {
    let found = neighbours.iter().filter(|it| is_it(&it.mac));
    found.map(|it| it.address.to_string()).collect()
}

fn args_without(args: &str, networks: &[IpNetwork]) -> String {
    let pairs = args.split(';').filter_map(|pair| {
        let Some(list) = pair.strip_prefix("IP=") else {
            return Some(pair.to_owned());
        };
        // the reference plugin `static` accepts several addresses
        let left: Vec<&str> = list.split(',').filter(|ip| !is_in(ip, networks)).collect();
        (!left.is_empty()).then(|| format!("IP={}", left.join(",")))
    });
    pairs.collect::<Vec<_>>().join(";")
}

/// Returns true if `ip`, with or without a prefix length, is in one of `networks`.
fn is_in(ip: &str, networks: &[IpNetwork]) -> bool {
    let ip = ip
        .split('/')
        .next()
        .and_then(|text| text.parse::<IpAddr>().ok());
    ip.is_some_and(|ip| networks.iter().any(|network| network.contains(ip)))
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
    fn arguments_lose_the_other_rails_addresses() {
        let elsewhere = ["10.1.0.0/16", "fd00:1::/64"].map(|it| it.parse().unwrap());
        for (given, left) in [
            ("", ""),
            ("IP=10.1.0.5", ""),
            ("IP=10.0.0.5", "IP=10.0.0.5"),
            ("A=b;IP=fd00:1::5/64;C=10.1.0.5", "A=b;C=10.1.0.5"),
            ("IP=10.1.0.5/16,fd00::5/64;A=b", "IP=fd00::5/64;A=b"),
            ("IP=;A", "IP=;A"),
        ] {
            assert_eq!(args_without(given, &elsewhere), left);
        }
    }
}
