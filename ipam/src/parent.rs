// SPDX-License-Identifier: Apache-2.0
//! Pools from the prefixes of the parent netdev, and gateways from the parent's routes.
//!
//! Each family has one prefix: the prefix of a requested address, or else the first usable prefix in the order of the
//! kernel or of `masterAddresses`. If the parent has a gateway in the prefix, the gateway becomes the `gateway` of the
//! address in the result. If it has none, the plugin never assigns the first address of the prefix, because routers
//! usually have this address. The plugin never assigns a router's address.

use crate::{
    address::{Family, prefix},
    bounds::{Bounds, BoundsError},
    range::{Pool, Range},
};
use ipnetwork::IpNetwork;
use rdma_netns::Address;
use serde_json::{Value, json};
use std::net::IpAddr;

/// A parent netdev.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// Name of the netdev on the host.
    pub name: String,
    /// Addresses with their prefix lengths, in order.
    pub addresses: Vec<IpNetwork>,
    /// Routes through a gateway.
    pub routes: Vec<GatewayRoute>,
}

/// A route through a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayRoute {
    /// Destination of the route.
    pub destination: IpNetwork,
    /// Address of the router.
    pub gateway: IpAddr,
}

/// Reason why the plugin can assign no address of the parent's prefixes: the parent has no usable address of a family,
/// all prefixes of the family are too long, or the bounds cannot be applied to the prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParentError(String);

/// Returns true if an address identifies a network. `masterAddresses` may contain any address, and does not contain the
/// address's state.
fn names_a_network(address: &IpNetwork) -> bool {
    Address::new(address.ip(), address.prefix()).names_a_network()
}

impl Parent {
    /// Returns the pool of each family, limited to its bounds, for the pod's interface `rail`.
    pub fn pools(
        &self,
        rail: Option<&str>,
        families: &[Bounds],
        requested: &[IpAddr],
    ) -> Result<Vec<Pool>, ParentError> {
        let pools = families.iter();
        pools.map(|it| self.pool(rail, it, requested)).collect()
    }

    fn pool(
        &self,
        rail: Option<&str>,
        bounds: &Bounds,
        requested: &[IpAddr],
    ) -> Result<Pool, ParentError> {
        let family = bounds.family;
        let addresses: Vec<IpNetwork> = self
            .addresses
            .iter()
            .copied()
            .filter(|address| Family::of(address.ip()) == family && names_a_network(address))
            .collect();
        let ranges: Vec<Range> = addresses
            .iter()
            .filter_map(|address| Range::of_prefix(prefix(*address)).ok())
            .collect();
        let is_requested = |range: &&Range| requested.iter().any(|ip| range.contains(*ip));
        let chosen = ranges.iter().find(is_requested).or_else(|| ranges.first());
        // STATUS has no rail
        let rail = rail.map(|rail| format!(" (rail {rail})"));
        let parent = self.name.clone() + &rail.unwrap_or_default();
        let Some(chosen) = chosen else {
            let longest = family.longest_prefix();
            return Err(ParentError(match addresses.first() {
                None => format!(
                    "{parent} has no global {family} address on this host: give the netdev one (not temporary or \
                     deprecated) with a prefix of /{longest} or shorter, or choose another ipam.family"
                ),
                Some(address) => format!(
                    "{parent} has no {family} prefix with room for pods: the prefix of {address} is too long; give the \
                     netdev an address with a prefix of /{longest} or shorter"
                ),
            }));
        };
        let pool = self.pool_of(chosen.clone(), bounds);
        pool.map_err(|error| ParentError(format!("{parent}: {error}")))
    }

    /// Returns the pool of `range`, which is a whole prefix, limited to `bounds`.
    fn pool_of(&self, mut range: Range, bounds: &Bounds) -> Result<Pool, BoundsError> {
        let subnet = range.subnet;
        let routers: Vec<IpAddr> = self
            .routes
            .iter()
            .map(|route| route.gateway)
            .filter(|gateway| subnet.contains(*gateway))
            .collect();
        range.gateway = routers.first().copied();
        let first = range.family().address(range.start);
        let excluded = bounds.cut(&mut range, &self.addresses)?;
        // without a gateway, excludes the first address, but leaves the range's size unchanged: stable addresses
        // depend on this size, which must not change with the routes
        let router_address = range.gateway.is_none().then_some(first);
        // the pointer is part of a file name, which cannot contain `/`
        let pointer = subnet.to_string().replace('/', "_");
        let mut pool = Pool::of_range(range, pointer);
        pool.routers = routers;
        pool.router_address = router_address;
        pool.excluded = excluded;
        Ok(pool)
    }

    /// Returns the parent's routes that a pod with an address of each of `pools` can use: destination and gateway each
    /// have the family of a pool, and the gateway is in a pool's prefix, or is link-local. The gateway of an IPv4 route
    /// can be an IPv6 address (RFC 8950), if `mixes_families` is true.
    pub fn routes_for(&self, pools: &[Pool], mixes_families: bool) -> Vec<Value> {
        let usable = |route: &&GatewayRoute| {
            let has_family = |ip| pools.iter().any(|pool| Family::of(ip) == pool.family());
            let mut ranges = pools.iter().flat_map(Pool::ranges);
            has_family(route.destination.ip())
                && has_family(route.gateway)
                && (mixes_families
                    || Family::of(route.gateway) == Family::of(route.destination.ip()))
                && (is_link_local(route.gateway)
                    || ranges.any(|range| range.subnet.contains(route.gateway)))
        };
        let routes = self.routes.iter().filter(usable).map(|route| {
            json!({
                "dst": prefix(route.destination).to_string(),
                "gw": route.gateway.to_string(),
            })
        });
        routes.collect()
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{address::cidr, bounds::Offset};

    fn parent(addresses: &[&str], routes: &[(&str, &str)]) -> Parent {
        let route = |(destination, gateway): &(&str, &str)| GatewayRoute {
            destination: cidr(destination).unwrap(),
            gateway: gateway.parse().unwrap(),
        };
        Parent {
            name: "bond1".into(),
            addresses: addresses.iter().map(|text| cidr(text).unwrap()).collect(),
            routes: routes.iter().map(route).collect(),
        }
    }

    fn whole(families: &[Family]) -> Vec<Bounds> {
        families.iter().map(|it| Bounds::none(*it)).collect()
    }

    #[test]
    fn the_first_usable_prefix_of_each_family_is_taken() {
        let parent = parent(
            &[
                "fe80::5/64",
                "2001:db8::7/128",
                "2001:db8:1::10/64",
                "2001:db8:2::10/64",
                "169.254.1.1/16",
                "10.1.0.9/24",
            ],
            &[
                ("::/0", "fe80::1"),
                ("0.0.0.0/0", "10.1.0.253"),
                ("10.8.0.0/16", "10.1.0.252"),
                ("10.9.0.0/16", "192.0.2.1"),
            ],
        );
        let pools = parent
            .pools(Some("net1"), &whole(&[Family::V4, Family::V6]), &[])
            .unwrap();
        let texts: Vec<String> = pools.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "10.1.0.1-10.1.0.254 of 10.1.0.0/24",
                "2001:db8:1::1-2001:db8:1:0:ffff:ffff:ffff:ffff of 2001:db8:1::/64"
            ]
        );
        let pointers: Vec<&str> = pools.iter().map(|pool| &*pool.pointer).collect();
        assert_eq!(pointers, ["10.1.0.0_24", "2001:db8:1::_64"]);
        assert_eq!(pools[0].ranges()[0].gateway, "10.1.0.253".parse().ok());
        assert_eq!(pools[0].routers.len(), 2);
        assert_eq!(pools[0].router_address, None);
        assert_eq!(pools[1].ranges()[0].gateway, None);
        assert_eq!(pools[1].router_address, "2001:db8:1::1".parse().ok());
        assert_eq!(
            Value::from(parent.routes_for(&pools, true)),
            json!([
                {"dst": "::/0", "gw": "fe80::1"},
                {"dst": "0.0.0.0/0", "gw": "10.1.0.253"},
                {"dst": "10.8.0.0/16", "gw": "10.1.0.252"},
            ])
        );
        assert_eq!(
            Value::from(parent.routes_for(&pools[1..], true)),
            json!([{"dst": "::/0", "gw": "fe80::1"}])
        );
    }

    #[test]
    fn a_requested_address_chooses_its_prefix() {
        let parent = parent(&["2001:db8:1::10/64", "2001:db8:2::10/64"], &[]);
        let requested = ["2001:db8:2::5".parse().unwrap()];
        let pools = parent
            .pools(Some("net1"), &whole(&[Family::V6]), &requested)
            .unwrap();
        assert_eq!(pools[0].ranges()[0].subnet.to_string(), "2001:db8:2::/64");
    }

    /// A virtual address of prefix length 32 moves from a node to another node. The nodes' blocks stay disjoint.
    #[test]
    fn an_address_that_moves_between_nodes_moves_no_block() {
        let bounds = Bounds {
            start: Offset::parse("+32768"),
            per_node: Some(64),
            ..Bounds::none(Family::V4)
        };
        let pool = |addresses: &[&str]| {
            let pools = parent(addresses, &[]).pools(None, std::slice::from_ref(&bounds), &[]);
            pools.unwrap()[0].to_string()
        };
        let (one, other) = ("10.1.0.10/16", "10.1.0.11/16");
        for (own, expected) in [
            (one, "10.1.130.128-10.1.130.191 of 10.1.0.0/16"),
            (other, "10.1.130.192-10.1.130.255 of 10.1.0.0/16"),
        ] {
            assert_eq!(pool(&[own]), expected);
            assert_eq!(pool(&[own, "10.1.0.2/32"]), expected);
            assert_eq!(pool(&["10.1.0.2/32", own]), expected);
        }
    }

    #[test]
    fn missing_node_state_is_reported() {
        let message = |addresses: &[&str], family| {
            let error = parent(addresses, &[]).pools(Some("net1"), &whole(&[family]), &[]);
            error.unwrap_err().to_string()
        };
        assert_eq!(
            message(&["fe80::5/64", "10.0.0.1/24"], Family::V6),
            "bond1 (rail net1) has no global IPv6 address on this host: give the netdev one (not temporary or \
             deprecated) with a prefix of /126 or shorter, or choose another ipam.family"
        );
        for (address, family, longest) in [
            ("2001:db8::7/128", Family::V6, "126"),
            ("2001:db8::7/127", Family::V6, "126"),
            ("10.0.0.1/32", Family::V4, "30"),
            ("10.0.0.1/31", Family::V4, "30"),
        ] {
            assert_eq!(
                message(&[address], family),
                format!(
                    "bond1 (rail net1) has no {family} prefix with room for pods: the prefix of {address} is too long; \
                     give the netdev an address with a prefix of /{longest} or shorter"
                )
            );
        }
    }
}
