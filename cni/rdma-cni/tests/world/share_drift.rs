// SPDX-License-Identifier: Apache-2.0
//! Tests of CHECK for shared rails, their routes and rules, and for IPv6 that is switched off.

use crate::{
    leases::{Leases, link_of},
    node::{Node, Pod, host_change, name},
};
use fake_kernel::Verdict;
use rdma_netns::{Child, IpvlanMode, LinkChange, NetnsSide, Op, Route, Rule, link::MAIN_TABLE};
use serde_json::{Value, json};

const AT: NetnsSide = NetnsSide::Pod;

/// Makes `change` after ADD of a pod with two shared rails. Asserts that CHECK's message contains `words`, and that DEL
/// removes children and rules.
fn drift(config: Value, change: impl Fn(&Node, &Pod), words: &[&str]) {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(config);
    let result = node.add(&pod, &config).must_succeed();
    change(node, &pod);
    let message = leases.check(&pod, &config, &result).must_fail(999);
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
    node.del(&pod, &config).must_succeed();
    let netns = node.netns(&pod);
    node.kernel.with(|world| {
        assert_eq!(
            world
                .links(netns)
                .iter()
                .filter(|it| it.kind.is_some())
                .count(),
            0
        );
        assert_eq!(world.rules(netns), []);
    });
}

#[test]
fn check_sees_what_became_of_rails_and_routes() {
    let link = || name("rdma1");
    let find = |node: &Node, pod: &Pod, wanted: fn(&Route) -> bool| {
        let routes = link_of(node, pod, "rdma1").routes;
        routes.into_iter().find(wanted).unwrap()
    };
    drift(
        json!({}),
        |node, pod| {
            node.change(
                Some(pod),
                &Op::Link {
                    at: AT,
                    link: link(),
                    change: LinkChange::Remove,
                },
            );
        },
        &["rdma1 is not in the pod", "no RoCE v2 GID for 10.1.0.7"],
    );
    drift(
        json!({}),
        |node, pod| {
            let rule = Rule {
                from: "10.1.0.7".parse().unwrap(),
                prefix: 32,
                to: None,
                table: 1001,
                priority: 1000,
            };
            node.change(Some(pod), &Op::RemoveRule { at: AT, rule });
        },
        &["the rule \"from 10.1.0.7/32 lookup 1001 priority 1000\" is gone"],
    );
    drift(
        json!({}),
        |node, pod| {
            let route = find(node, pod, |it| it.table == 1001 && it.prefix == 16);
            node.change(
                Some(pod),
                &Op::Link {
                    at: AT,
                    link: link(),
                    change: LinkChange::RemoveRoute(route),
                },
            );
        },
        &["rdma1 has lost its route to 10.1.0.0/16 in table 1001"],
    );
    drift(
        json!({}),
        |node, pod| {
            let route = find(node, pod, |it| it.table == MAIN_TABLE && it.prefix == 12);
            node.change(
                Some(pod),
                &Op::Link {
                    at: AT,
                    link: link(),
                    change: LinkChange::RemoveRoute(route.clone()),
                },
            );
            let route = Route {
                metric: Some(9),
                ..route
            };
            node.change(
                Some(pod),
                &Op::Link {
                    at: AT,
                    link: link(),
                    change: LinkChange::AddRoute(route),
                },
            );
        },
        &["rdma1 to 172.16.0.0/12 differs from its record"],
    );
    drift(
        json!({}),
        |node, pod| {
            let addresses = link_of(node, pod, "rdma1").addresses;
            let mut address = addresses.into_iter().find(|it| it.ip.is_ipv4()).unwrap();
            address.metric = Some(9);
            node.change(
                Some(pod),
                &Op::Link {
                    at: AT,
                    link: link(),
                    change: LinkChange::AddAddress(address),
                },
            );
        },
        &["10.1.0.7/16 of rdma1 differs from its record (recorded metric 200)"],
    );
    drift(
        json!({ "child": { "type": "ipvlan" } }),
        |node, _| {
            // all children of one netdev have one mode
            let other = node.pod("other");
            node.change(
                Some(&other),
                &Op::AddChild {
                    at: NetnsSide::Pod,
                    parent: name("bond1"),
                    child: Child::Ipvlan {
                        mode: IpvlanMode::L3,
                    },
                    name: name("x"),
                    mtu: 1500,
                },
            );
        },
        &["rdma1 is ipvlan mode l3, not ipvlan mode l2"],
    );
    drift(
        json!({}),
        |node, _| {
            node.change(None, &host_change("bond1", LinkChange::Up(false)));
        },
        &["bond1 is down"],
    );
    drift(
        json!({}),
        |node, pod| {
            node.change(
                Some(pod),
                &Op::Link {
                    at: AT,
                    link: link(),
                    change: LinkChange::Mtu(1400),
                },
            );
        },
        &["the MTU of rdma1 is 1400, not 1500"],
    );
}

#[test]
fn ipv6_that_the_pod_has_switched_off_is_reported() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let netns = node.netns(&pod);
    node.kernel.begin();
    node.kernel.intercept(move |world, step| {
        // disables IPv6, as net.ipv6.conf.default.disable_ipv6 does for a netdev that enters the namespace
        if let Op::Link {
            link,
            change: LinkChange::Up(true),
            ..
        } = step.op
        {
            let key = "ipv6/disable_ipv6".to_owned();
            let off = Op::Link {
                at: AT,
                link: link.clone(),
                change: LinkChange::Sysctl { key, value: 1 },
            };
            world.execute(&off, Some(netns)).unwrap();
        }
        Verdict::Proceed
    });
    let message = node.add(&pod, &leases.config(json!({}))).must_fail(106);
    for word in [
        "IPv6 is switched off in the pod",
        "net.ipv6.conf.rdma0.disable_ipv6 is 1",
    ] {
        assert!(message.contains(word), "{message}");
    }
    leases.must_be(&before, "undone");
}

/// A later plugin of the chain removed an address, and its result lacks this address.
#[test]
fn an_address_that_the_final_result_does_not_have_is_not_missed() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({}));
    let mut result = node.add(&pod, &config).must_succeed();
    let addresses = link_of(node, &pod, "rdma0").addresses;
    let address = addresses.into_iter().find(|it| it.ip.is_ipv4()).unwrap();
    let link = name("rdma0");
    node.change(
        Some(&pod),
        &Op::Link {
            at: AT,
            link,
            change: LinkChange::RemoveAddress(address),
        },
    );
    leases.check(&pod, &config, &result).must_fail(999);
    for list in ["ips", "routes"] {
        let list = result[list].as_array_mut().unwrap();
        list.retain(|it| it.to_string().contains("::"));
    }
    leases.check(&pod, &config, &result).must_succeed();
}

/// The kernel makes connected routes. A program with CAP_NET_ADMIN in the pod can remove them, and then the pod's
/// primary network gets the rail's packets.
#[test]
fn a_connected_route_that_is_gone_or_has_another_metric_is_drift() {
    for prefix in ["10.1.0.0/16", "fd00:1::/64"] {
        for metric in [None, Some(9)] {
            let expected = format!("rdma1 has lost its route to {prefix} with metric 200");
            let change = |node: &Node, pod: &Pod| {
                let routes = link_of(node, pod, "rdma1").routes.into_iter();
                let is_it = |it: &Route| {
                    it.table == MAIN_TABLE && format!("{}/{}", it.destination, it.prefix) == prefix
                };
                let route = routes.into_iter().find(is_it).unwrap();
                let link = name("rdma1");
                let remove = Op::Link {
                    at: AT,
                    link: link.clone(),
                    change: LinkChange::RemoveRoute(route.clone()),
                };
                node.change(Some(pod), &remove);
                if metric.is_some() {
                    let route = Route { metric, ..route };
                    node.change(
                        Some(pod),
                        &Op::Link {
                            at: AT,
                            link,
                            change: LinkChange::AddRoute(route),
                        },
                    );
                }
            };
            drift(json!({}), change, &[&expected]);
        }
    }
}

/// DEL restores the mode of an ipvlan port by a temporary child called `rdmaport0`, which it removes.
#[test]
fn a_rail_of_another_attachment_with_the_name_of_a_plugins_own_child_stays() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let ipvlan = json!({"type": "ipvlan"});
    let devices = json!([{ "netdev": "bond*" }]);
    let first = node.config(json!({"devices": devices, "child": ipvlan}));
    let second = json!({
        "devices": devices, "child": ipvlan, "name": "second", "interfaceName": "rdmaport%d",
    });
    let second = node.config(second);
    node.add(&pod, &first).must_succeed();
    node.add(&pod, &second).must_succeed();
    node.del(&pod, &first).must_succeed();
    let netns = node.netns(&pod);
    let is_there = |name: &str| {
        let is_it = |world: &mut fake_kernel::World| {
            let links = world.links(netns);
            links.iter().any(|it| *it.name == *name)
        };
        node.kernel.with(is_it)
    };
    assert!(is_there("rdmaport0") && is_there("rdmaport1") && !is_there("rdma0"));
    node.del(&pod, &second).must_succeed();
    assert!(!is_there("rdmaport0"));
}
