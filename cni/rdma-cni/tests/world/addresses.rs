// SPDX-License-Identifier: Apache-2.0
//! Tests of addresses and routes that a netdev keeps when it moves, and of IPv6 settings that affect them.

use crate::node::{Node, address, configure, furnished, name, route, settle};
use fake_kernel::{Nic, World, world::HOST};
use rdma_netns::{Address, LinkChange, NetnsSide, Op, RdmaMode, Route, link::IFA_F_NODAD};
use serde_json::json;

const AT: NetnsSide = NetnsSide::Host;

/// Runs ADD with `fields` and DEL on a node whose rail also got `extra` on the host. The host must then be as before.
/// Returns the node and the result of ADD.
fn goes_and_returns(extra: &[Op], fields: serde_json::Value) -> (Node, serde_json::Value) {
    let mut world = furnished(RdmaMode::Exclusive);
    for op in extra {
        world
            .execute(op, None)
            .unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
        settle(&mut world);
    }
    let node = Node::with(world);
    let pod = node.pod("a");
    let before = node.snapshot();
    let mut config = node.one_rail();
    for (key, value) in fields.as_object().unwrap() {
        config[key] = value.clone();
    }
    let result = node.add(&pod, &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
    (node, result)
}

pub(crate) fn add_address(address: Address) -> Op {
    Op::Link {
        at: AT,
        link: name("eth2"),
        change: LinkChange::AddAddress(address),
    }
}

pub(crate) fn add_route(route: Route) -> Op {
    Op::Link {
        at: AT,
        link: name("eth2"),
        change: LinkChange::AddRoute(route),
    }
}

#[test]
fn several_addresses_keep_their_order() {
    let more = ["fd00:2::6/64", "fd00:2::7/64", "10.0.2.6/24", "10.9.0.1/16"];
    goes_and_returns(&more.map(|text| add_address(address(text))), json!({}));
}

#[test]
fn special_addresses_are_kept() {
    let special = [
        Address {
            flags: IFA_F_NODAD,
            ..address("fd00:9::1/128")
        },
        Address {
            metric: Some(77),
            ..address("10.8.0.1/24")
        },
        Address {
            lifetime: Some((3600, 1800)),
            ..address("10.7.0.1/24")
        },
        Address {
            scope: 253,
            ..address("10.6.0.1/24")
        },
        address("10.5.0.1/32"),
        Address {
            peer: Some("10.4.0.2".parse().unwrap()),
            ..address("10.4.0.1/32")
        },
    ];
    goes_and_returns(&special.map(add_address), json!({}));
}

#[test]
fn special_routes_are_kept() {
    let source = |text: &str, route| Route {
        source: Some(text.parse().unwrap()),
        ..route
    };
    let routes = [
        source("10.0.2.5", route("10.50.0.0/16", "10.0.2.1")),
        Route {
            metric: Some(300),
            table: 1002,
            ..route("0.0.0.0/0", "10.0.2.1")
        },
        Route {
            onlink: true,
            mtu: Some(1400),
            ..route("10.51.0.0/16", "192.0.2.1")
        },
        Route {
            metric: Some(5),
            ..route("fd33::/64", "fe80::1")
        },
        route("10.52.0.0/16", "fe80::1"),
    ];
    goes_and_returns(&routes.map(add_route), json!({}));
}

/// The kernel accepts an IPv6 source only after duplicate address detection of this source.
#[test]
fn a_route_with_an_ipv6_source_is_kept() {
    let route = Route {
        source: Some("fd00:2::5".parse().unwrap()),
        ..route("fd77::/64", "fd00:2::1")
    };
    goes_and_returns(&[add_route(route)], json!({}));
}

#[test]
fn addresses_are_usable_at_once() {
    for (dad, tentative) in [("off", false), ("wait", false)] {
        let node = Node::new(RdmaMode::Exclusive);
        let mut config = node.one_rail();
        config["ipv6"] = json!({ "dad": dad });
        let pod = node.pod("a");
        node.add(&pod, &config).must_succeed();
        let netns = node.netns(&pod);
        let link = node
            .kernel
            .with(|world| world.link(netns, "rdma0").unwrap().clone());
        assert!(
            link.addresses.iter().all(|a| a.tentative == tentative),
            "{dad}: {link:?}"
        );
    }
}

#[test]
fn mtu_is_the_configured_one_and_comes_back() {
    for mtu in [1500, 9000] {
        let (_, result) = goes_and_returns(&[], json!({ "mtu": mtu }));
        assert_eq!(result["interfaces"][0]["mtu"], mtu);
    }
}

#[test]
fn an_mtu_too_small_for_ipv6() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::physical("0000:3b:00.2", "eth2", "mlx5_2"));
    let mtu = Op::Link {
        at: AT,
        link: name("eth2"),
        change: LinkChange::Mtu(1200),
    };
    world.execute(&mtu, None).unwrap();
    let node = Node::with(world);
    let pod = node.pod("a");
    let before = node.snapshot();
    node.add(&pod, &node.one_rail()).must_succeed();
    node.del(&pod, &node.one_rail()).must_succeed();
    node.must_be(&before, "without IPv6");
}

#[test]
fn a_rail_that_was_down_returns_to_the_host_down() {
    for ipv6_off in [false, true] {
        let mut world = World::new(Some(RdmaMode::Exclusive));
        world.plug(Nic::physical("0000:3b:00.2", "eth2", "mlx5_2"));
        configure(&mut world, "eth2", 2);
        let mut ops = vec![Op::Link {
            at: AT,
            link: name("eth2"),
            change: LinkChange::Up(false),
        }];
        if ipv6_off {
            ops.push(Op::Link {
                at: AT,
                link: name("eth2"),
                change: LinkChange::Sysctl {
                    key: "ipv6/disable_ipv6".to_owned(),
                    value: 1,
                },
            });
        }
        for op in ops {
            world.execute(&op, None).unwrap();
        }
        let node = Node::with(world);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.add(&pod, &node.one_rail()).must_succeed();
        node.del(&pod, &node.one_rail()).must_succeed();
        node.must_be(&before, "down");
    }
}

#[test]
fn an_ipoib_netdev_is_made_anew_and_gets_everything_back() {
    for dies in [false, true] {
        let mut world = World::new(Some(RdmaMode::Exclusive));
        world.plug(Nic::infiniband("0000:5e:00.0", "mlx5_0"));
        let address = |text| Op::Link {
            at: AT,
            link: name("ibp94s0"),
            change: LinkChange::AddAddress(address(text)),
        };
        for op in [
            Op::Link {
                at: AT,
                link: name("ib0"),
                change: LinkChange::Rename(name("ibp94s0")),
            },
            Op::Link {
                at: AT,
                link: name("ibp94s0"),
                change: LinkChange::Up(true),
            },
            address("10.3.0.5/24"),
            address("fd03::5/64"),
        ] {
            world.execute(&op, None).unwrap();
        }
        settle(&mut world);
        let node = Node::with(world);
        let config = node.config(json!({ "deviceID": "0000:5e:00.0" }));
        let pod = node.pod("a");
        node.add(&pod, &config).must_succeed();
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.del(&pod, &config).must_succeed();
        node.kernel.with(|world| {
            let link = world.link(HOST, "ibp94s0").unwrap();
            assert!(link.up, "{link:?}");
            assert_eq!(link.addresses.len(), 3, "{link:?}");
        });
        assert_eq!(node.records(), [] as [&str; 0]);
    }
}

#[test]
fn any_kind_of_function_moves() {
    for device in ["0000:3b:00.0", "0000:d8:00.3", "mlx5_core.sf.4"] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = node.config(json!({ "deviceID": device }));
        let pod = node.pod("a");
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, device);
    }
}
