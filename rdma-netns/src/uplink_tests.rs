// SPDX-License-Identifier: Apache-2.0
use super::*;
use serde_json::{Value, json};

/// Returns a host with eth0 and eth1, bond0 over eth2 and eth3 with the VLAN bond0.100, and eth4.
fn host(routes: &[(&str, &str, Option<u32>, u32)], unkept: &[(u32, &str)]) -> Namespace {
    let link = |index: u32, name: &str, more: Value| {
        let own = routes.iter().filter(|(netdev, ..)| *netdev == name);
        let own = own.map(|(_, destination, metric, table)| {
            let (network, prefix) = destination.split_once('/').expect("a prefix");
            let prefix: u8 = prefix.parse().expect("a length");
            json!({"destination": network, "prefix": prefix, "metric": metric, "table": table})
        });
        let address = json!({"ip": format!("192.0.2.{index}"), "prefix": 24});
        let mut link = json!({
            "index": index, "name": name, "mac": "", "mtu": 1500, "up": true,
            "addresses": [address], "routes": own.collect::<Vec<_>>(),
        });
        let more = more.as_object().cloned().unwrap_or_default();
        link.as_object_mut().expect("an object").extend(more);
        link
    };
    let unkept = unkept
        .iter()
        .map(|(index, network)| json!([index, {"destination": network, "prefix": 0}]));
    let namespace = json!({
        "id": {"device": 4, "inode": 1, "cookie": 1},
        "links": [
            link(2, "eth0", json!({})),
            link(3, "eth1", json!({})),
            link(4, "eth2", json!({"master": 6})),
            link(5, "eth3", json!({"master": 6})),
            link(6, "bond0", json!({"kind": "bond"})),
            link(7, "bond0.100", json!({"kind": "vlan", "lower": 6})),
            link(8, "eth4", json!({})),
        ],
        "unkept_routes": unkept.collect::<Vec<_>>(),
    });
    serde_json::from_value(namespace).expect("a namespace")
}

#[track_caller]
fn are(host: &Namespace, servers: &[&str], expected: &[&str]) {
    let servers: Vec<IpAddr> = servers
        .iter()
        .map(|it| it.parse().expect("an IP"))
        .collect();
    let found: Vec<String> = host
        .uplinks(&servers)
        .keys()
        .map(|index| {
            host.link_by_index(*index)
                .expect("a netdev")
                .name
                .to_string()
        })
        .collect();
    assert_eq!(found, expected, "{servers:?}");
}

const MAIN: u32 = MAIN_TABLE;

#[test]
fn the_default_route_that_is_in_force() {
    let v4 = |netdev, metric| (netdev, "0.0.0.0/0", metric, MAIN);
    are(&host(&[v4("eth0", None)], &[]), &[], &["eth0"]);
    // default routes of rails, as the eRDMA controller or a DHCP client on every NIC makes them
    let behind = [v4("eth0", Some(100)), v4("eth1", Some(200))];
    are(&host(&behind, &[]), &[], &["eth0"]);
    // default routes in each rail's own table
    let own_table = [v4("eth0", None), ("eth1", "0.0.0.0/0", None, 1000)];
    are(&host(&own_table, &[]), &[], &["eth0"]);
    are(&host(&[], &[]), &[], &[]);
}

#[test]
fn all_next_hops_of_a_default_route() {
    are(
        &host(&[], &[(2, "0.0.0.0"), (3, "0.0.0.0")]),
        &[],
        &["eth0", "eth1"],
    );
}

#[test]
fn lower_netdevs_of_the_default_route() {
    let by_vlan = [("bond0.100", "0.0.0.0/0", None, MAIN)];
    are(
        &host(&by_vlan, &[]),
        &[],
        &["eth2", "eth3", "bond0", "bond0.100"],
    );
}

#[test]
fn equal_ipv6_default_routes_of_advertisements() {
    let v6 = |netdev| (netdev, "::/0", None, MAIN);
    let rails = [v6("eth1"), v6("eth4")];
    are(&host(&rails, &[]), &[], &["eth1", "eth4"]);
    let v4 = ("eth0", "0.0.0.0/0", None, MAIN);
    are(&host(&[v4, rails[0], rails[1]], &[]), &[], &["eth0"]);
    are(&host(&[v4, v6("eth0"), rails[0]], &[]), &[], &["eth0"]);
    // a single IPv6 default route counts, although another netdev has the IPv4 default route
    are(&host(&[v4, rails[0]], &[]), &[], &["eth0", "eth1"]);
}

#[test]
fn the_router_that_prefers_itself() {
    let preferring = |preferences: &[(u32, u8)]| {
        let routes: Vec<_> = ["eth0", "eth1", "eth4"]
            .map(|netdev| (netdev, "::/0", None, MAIN))
            .into();
        let mut host = host(&routes, &[]);
        for (index, preference) in preferences {
            let link = host.links.iter_mut().find(|link| link.index == *index);
            link.expect("a netdev").routes[0].preference = *preference;
        }
        host
    };
    are(&preferring(&[(2, HIGH_PREFERENCE)]), &[], &["eth0"]);
    are(&preferring(&[(2, LOW_PREFERENCE)]), &[], &["eth1", "eth4"]);
    // eth1 has the preferred IPv6 default route, and eth0 has the IPv4 default route
    let mut host = preferring(&[(3, HIGH_PREFERENCE)]);
    let by_ipv4 = Route::new(IpAddr::from([0; 4]), 0);
    let eth0 = host.links.iter_mut().find(|link| link.index == 2);
    eth0.expect("eth0").routes.push(by_ipv4);
    are(&host, &[], &["eth0", "eth1"]);
}

#[test]
fn netdevs_to_the_api_server() {
    let routes = [
        ("eth0", "0.0.0.0/0", None, MAIN),
        ("eth1", "198.51.100.0/24", None, MAIN),
        ("bond0", "198.51.100.128/25", None, MAIN),
    ];
    are(&host(&routes, &[]), &["198.51.100.1"], &["eth0", "eth1"]);
    are(
        &host(&routes, &[]),
        &["198.51.100.200"],
        &["eth0", "eth2", "eth3", "bond0"],
    );
    // the node reaches the API server by the default route
    are(&host(&routes, &[]), &["203.0.113.1"], &["eth0"]);
    // the address is the node's own
    are(&host(&routes, &[]), &["192.0.2.8"], &["eth0", "eth4"]);
    let why = host(&routes, &[]).uplinks(&["192.0.2.8".parse().expect("an IP")]);
    assert_eq!(
        why[&8].to_string(),
        "the node reaches its API server 192.0.2.8 through it"
    );
}

#[test]
fn a_netdev_above_another() {
    let mut host = host(&[], &[]);
    let above = |host: &Namespace, name: &str| {
        let link = host.links.iter().find(|it| *it.name == *name);
        let above = link.expect("a netdev").above(&host.links);
        above.map(Link::describe)
    };
    assert_eq!(above(&host, "bond0").as_deref(), Some("the vlan bond0.100"));
    assert_eq!(above(&host, "eth0"), None);
    // the VLAN's lower netdev has the same index in another namespace
    let vlan = host.links.iter_mut().find(|it| it.is_vlan());
    vlan.expect("a VLAN").origin = Some(crate::Origin {
        index: 6,
        netns: 3,
        vlan: 0,
    });
    assert_eq!(above(&host, "bond0"), None);
}
