// SPDX-License-Identifier: Apache-2.0
//! Tests of netdevs that a network manager has set up.

use crate::addresses::{add_address, add_route};
use crate::node::{Node, address, furnished, name, route, settle};
use fake_kernel::{World, world::HOST};
use rdma_netns::{
    Address, LinkChange, NetnsSide, Op, RdmaMode, Route,
    link::{IFA_F_NODAD, IFA_F_NOPREFIXROUTE, PROTOCOL_KERNEL, PROTOCOL_RA, SCOPE_LINK},
};
use serde_json::Value;

const AT: NetnsSide = NetnsSide::Host;

fn run(world: &mut World, ops: impl IntoIterator<Item = Op>) {
    for op in ops {
        world
            .execute(&op, None)
            .unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }
    settle(world);
}

fn on_link(destination: &str) -> Route {
    Route {
        gateway: None,
        ..route(destination, "::")
    }
}

/// Returns the addresses that NetworkManager sets, without prefix routes, and the routes that it sets itself.
pub(crate) fn network_manager() -> Vec<Op> {
    let managed = |text: &str| Address {
        flags: IFA_F_NOPREFIXROUTE,
        ..address(text)
    };
    let connected = |destination: &str| Route {
        protocol: PROTOCOL_KERNEL,
        metric: Some(100),
        ..on_link(destination)
    };
    vec![
        add_address(managed("10.9.0.5/24")),
        add_address(managed("fd00:9::5/64")),
        add_route(Route {
            source: Some("10.9.0.5".parse().unwrap()),
            scope: SCOPE_LINK,
            ..connected("10.9.0.0/24")
        }),
        add_route(connected("fd00:9::/64")),
        add_route(route("0.0.0.0/0", "10.9.0.254")),
        add_route(route("::/0", "fd00:9::254")),
    ]
}

/// Returns the addresses and routes that systemd-networkd sets. It handles router advertisements itself, and gets
/// leases by DHCP.
pub(crate) fn networkd(seconds: u32) -> Vec<Op> {
    let leased = |text: &str, flags| Address {
        lifetime: Some((seconds, seconds / 2)),
        flags,
        ..address(text)
    };
    let advertised = |route: Route| Route {
        protocol: PROTOCOL_RA,
        expires: Some(seconds),
        ..route
    };
    let dhcp = |route: Route| Route {
        protocol: 16,
        source: Some("10.9.0.7".parse().unwrap()),
        ..route
    };
    vec![
        add_address(leased("10.9.0.7/24", 0)),
        add_address(leased("fd00:9::7/64", IFA_F_NODAD | IFA_F_NOPREFIXROUTE)),
        add_route(advertised(on_link("fd00:9::/64"))),
        add_route(Route {
            preference: 1,
            ..advertised(route("::/0", "fe80::1"))
        }),
        add_route(dhcp(Route {
            scope: SCOPE_LINK,
            ..on_link("10.9.0.254/32")
        })),
        add_route(dhcp(route("0.0.0.0/0", "10.9.0.254"))),
    ]
}

/// Returns addresses and routes, with copies of the main table's routes in a table for rules by source, as a script
/// makes them. The copies of connected routes have `proto kernel`.
fn copied_table() -> Vec<Op> {
    let copied = |route: Route| Route {
        table: 100,
        ..route
    };
    let default = route("0.0.0.0/0", "10.9.0.254");
    vec![
        add_address(address("10.9.0.5/24")),
        add_address(address("fd00:9::5/64")),
        add_route(copied(Route {
            source: Some("10.9.0.5".parse().unwrap()),
            scope: SCOPE_LINK,
            protocol: PROTOCOL_KERNEL,
            ..on_link("10.9.0.0/24")
        })),
        add_route(copied(Route {
            protocol: PROTOCOL_KERNEL,
            metric: Some(256),
            ..on_link("fd00:9::/64")
        })),
        add_route(default.clone()),
        add_route(copied(default)),
    ]
}

pub(crate) fn node(ops: Vec<Op>) -> Node {
    let mut world = furnished(RdmaMode::Exclusive);
    run(&mut world, ops);
    Node::with(world)
}

/// Returns a configuration that moves only `eth2`, which has the host's only default route.
pub(crate) fn one_rail(node: &Node) -> Value {
    let mut config = node.one_rail();
    config["mode"] = "move".into();
    config
}

fn destinations(node: &Node) -> Vec<String> {
    node.kernel.with(|world| {
        let link = world.link(HOST, "eth2").unwrap();
        let routes = link.lasting_routes();
        let mut found: Vec<String> = routes
            .map(|route| format!("{}/{}", route.destination, route.prefix))
            .collect();
        found.sort();
        found
    })
}

#[test]
fn settings_of_network_managers_are_restored() {
    for (what, ops) in [
        ("NetworkManager", network_manager()),
        ("systemd-networkd", networkd(3600)),
        ("a copied table", copied_table()),
    ] {
        for (dies, mode) in [
            (false, RdmaMode::Exclusive),
            (true, RdmaMode::Exclusive),
            (false, RdmaMode::Shared),
        ] {
            let mut world = furnished(mode);
            run(&mut world, ops.clone());
            let node = Node::with(world);
            let before = node.snapshot();
            let pod = node.pod("a");
            node.add(&pod, &one_rail(&node)).must_succeed();
            let netns = node.netns(&pod);
            node.kernel.with(|world| {
                let link = world.link(netns, "rdma0").unwrap();
                // default routes outside the rail's own table
                let defaults =
                    (link.routes.iter()).filter(|route| route.prefix == 0 && route.table != 1000);
                assert_eq!(defaults.count(), 2, "{what}: {link:?}");
                let expires = |route: &Route| route.expires.is_some();
                assert!(!link.routes.iter().any(expires), "{what}: {link:?}");
            });
            if dies {
                node.kernel.with(|world| world.unmount(&pod.netns));
            }
            node.del(&pod, &one_rail(&node)).must_succeed();
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.must_be(&before, &format!("{what}, {mode}, namespace dies: {dies}"));
        }
    }
}

/// The kernel itself restores what it made from router advertisements.
#[test]
fn addresses_of_router_advertisements_are_not_restored() {
    let mut ops = networkd(3600);
    let accept = |value| Op::Link {
        at: AT,
        link: name("eth2"),
        change: LinkChange::Sysctl {
            key: "ipv6/accept_ra".to_owned(),
            value,
        },
    };
    ops.push(accept(2));
    let node = node(ops);
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.del(&pod, &one_rail(&node)).must_succeed();
    let advertised = ["fd00:9::/64", "::/0"];
    let found = destinations(&node);
    assert!(
        advertised
            .iter()
            .all(|it| !found.contains(&(*it).to_owned())),
        "{found:?}"
    );
}

#[test]
fn lifetimes_run_on_while_a_netdev_is_away() {
    for dies in [false, true] {
        let node = node(networkd(3600));
        // DEL restores the addresses and routes that the netdev would still have if it had stayed on the host
        let stayed = node_that_waited(networkd(3600), 1000);
        let pod = node.pod("a");
        node.add(&pod, &one_rail(&node)).must_succeed();
        node.kernel.with(|world| world.pass_seconds(1000));
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.del(&pod, &one_rail(&node)).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        node.must_be(&stayed.snapshot(), "after 1000 seconds");
    }
}

#[test]
fn expired_addresses_are_not_restored() {
    let node = node(networkd(60));
    let stayed = node_that_waited(networkd(60), 60);
    let pod = node.pod("a");
    node.add(&pod, &one_rail(&node)).must_succeed();
    node.kernel.with(|world| world.pass_seconds(60));
    node.del(&pod, &one_rail(&node)).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.must_be(&stayed.snapshot(), "after 60 seconds");
    let found = destinations(&node);
    assert_eq!(found, ["10.2.0.0/16", "fd20::/32"]);
}

fn node_that_waited(ops: Vec<Op>, seconds: u64) -> Node {
    let node = node(ops);
    node.kernel.with(|world| world.pass_seconds(seconds));
    node
}
