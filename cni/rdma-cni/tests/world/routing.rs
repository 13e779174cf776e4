// SPDX-License-Identifier: Apache-2.0
//! Tests of metrics, tables and rules of the rails.

use crate::{
    leases::{Leases, answer, link_of},
    node::{Node, Pod, address, name, route},
};
use fake_kernel::{Nic, World};
use rdma_netns::{
    Link, LinkChange, NetnsSide, Op, RdmaMode, Route, Rule,
    link::{MAIN_TABLE, PROTOCOL_KERNEL},
};
use serde_json::json;

const AT: NetnsSide = NetnsSide::Pod;

pub(crate) fn rules(node: &Node, pod: &Pod) -> Vec<String> {
    let netns = node.netns(pod);
    let shown = |world: &mut World| -> Vec<String> {
        world.rules(netns).iter().map(Rule::to_string).collect()
    };
    node.kernel.with(shown)
}

/// Returns the metrics of the main table's routes to `destination`. A route without a metric has 0.
fn metrics(link: &Link, destination: &str) -> Vec<u32> {
    let wanted = route(destination, "::");
    let to = |it: &&Route| {
        (it.destination, it.prefix, it.table) == (wanted.destination, wanted.prefix, MAIN_TABLE)
    };
    link.routes
        .iter()
        .filter(to)
        .map(|it| it.metric.unwrap_or(0))
        .collect()
}

/// Returns a pod whose primary network has addresses and default routes, as usual. The prefixes are
/// the same as those of `bond0`.
pub(crate) fn with_primary(leases: &Leases, metric: u32) -> Pod {
    let node = &leases.node;
    let pod = node.pod("a");
    node.kernel
        .with(|world| world.plug(Nic::virtual_link("eth0-a", "veth")));
    let link = name("eth0");
    let ops = [
        Op::MoveLink {
            link: name("eth0-a"),
            from: NetnsSide::Host,
            to: AT,
            name: link.clone(),
        },
        Op::Link {
            at: AT,
            link: link.clone(),
            change: LinkChange::Up(true),
        },
    ];
    ops.iter().for_each(|op| node.change(Some(&pod), op));
    for text in ["10.0.9.9/16", "fd00::99/64"] {
        let mut address = address(text);
        address.metric = Some(metric).filter(|metric| *metric != 0);
        node.change(
            Some(&pod),
            &Op::Link {
                at: AT,
                link: link.clone(),
                change: LinkChange::AddAddress(address),
            },
        );
    }
    for (destination, gateway) in [("0.0.0.0/0", "10.0.9.1"), ("::/0", "fd00::91")] {
        let route = route(destination, gateway);
        node.change(
            Some(&pod),
            &Op::Link {
                at: AT,
                link: link.clone(),
                change: LinkChange::AddRoute(route),
            },
        );
    }
    pod
}

#[test]
fn every_rail_has_its_table_and_rules() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(
        rules(node, &pod),
        [
            "from 10.0.0.7/32 lookup 1000 priority 1000",
            "from 10.1.0.7/32 lookup 1001 priority 1000",
            "from fd00::7/128 lookup 1000 priority 1000",
            "from fd00:1::7/128 lookup 1001 priority 1000",
        ]
    );
    for rail in [0, 1] {
        let link = link_of(node, &pod, &format!("rdma{rail}"));
        let own = link.routes.iter().filter(|it| it.table == 1000 + rail);
        let mut own: Vec<String> = own
            .map(|it| format!("{}/{}", it.destination, it.prefix))
            .collect();
        own.sort();
        let networks = [
            format!("10.{rail}.0.0/16"),
            ["fd00::/64", "fd00:1::/64"][rail as usize].into(),
        ];
        let mut wanted = vec![
            "0.0.0.0/0".to_owned(),
            "172.16.0.0/12".into(),
            "::/0".into(),
        ];
        wanted.extend(networks);
        wanted.sort();
        assert_eq!(own, wanted);
        assert!(
            link.routes
                .iter()
                .all(|it| it.table == MAIN_TABLE || it.table == 1000 + rail)
        );
        assert_eq!(metrics(&link, &format!("10.{rail}.0.0/16")), [200]);
        assert_eq!(metrics(&link, "172.16.0.0/12"), [200 + rail]);
    }
    // a rail's table has copies of the main table's routes, but the result has each route once
    let routes = result["routes"].as_array().unwrap();
    assert!(routes.iter().all(|it| it["table"].is_null()), "{routes:?}");
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
}

#[test]
fn no_base_makes_no_table() {
    for count in [1, 2] {
        let routing = json!({ "tableBase": 0, "metric": 77 });
        let leases = Leases::new(count);
        let node = &leases.node;
        let pod = node.pod("a");
        let config = leases.config(json!({ "routing": routing }));
        let result = node.add(&pod, &config).must_succeed();
        let link = link_of(node, &pod, "rdma0");
        assert!(link.routes.iter().all(|it| it.table == MAIN_TABLE));
        assert_eq!(rules(node, &pod), [""; 0]);
        assert_eq!(metrics(&link, "10.0.0.0/16"), [77]);
        leases.check(&pod, &config, &result).must_succeed();
    }
}

#[test]
fn the_pods_own_routes_stay_in_front() {
    for (metric, behind) in [(0, [200, 257]), (500, [501, 501])] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pod = with_primary(&leases, metric);
        let before = node.snapshot();
        let mut given = answer(0, 7);
        given["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
        leases.gives("rdma0", &given);
        let config = leases.config(json!({}));
        let result = node.add(&pod, &config).must_succeed();
        let link = link_of(node, &pod, "rdma0");
        let prefixes = ["10.0.0.0/16", "fd00::/64"].map(|it| metrics(&link, it));
        assert_eq!(prefixes, behind.map(|metric| vec![metric]));
        assert_eq!(metrics(&link, "0.0.0.0/0"), [200]);
        assert_eq!(metrics(&link, "::/0"), [1025]);
        leases.check(&pod, &config, &result).must_succeed();
        node.del(&pod, &config).must_succeed();
        leases.must_be(&before, "after DEL");
    }
}

/// Users of host-local name the network itself as a route. A route without `gw` gets the router as
/// its gateway.
#[test]
fn a_prefix_that_ipam_names_as_a_route_is_there_once() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({}));
    for gateway in [true, false] {
        let mut given = answer(0, 7);
        given["routes"] = json!([
            { "dst": "10.0.0.0/16" }, { "dst": "10.0.1.0/16" }, { "dst": "fd00::/64" },
            { "dst": "10.0.5.0/24", "gw": "10.0.0.9" },
        ]);
        if !gateway {
            for ip in given["ips"].as_array_mut().unwrap() {
                ip.as_object_mut().unwrap().remove("gateway");
            }
        }
        leases.gives("rdma0", &given);
        let result = node.add(&pod, &config).must_succeed();
        let link = link_of(node, &pod, "rdma0");
        for prefix in ["10.0.0.0/16", "fd00::/64", "10.0.5.0/24"] {
            assert_eq!(
                metrics(&link, prefix),
                [200],
                "{prefix} of {:?}",
                link.routes
            );
        }
        let connected = link
            .routes
            .iter()
            .filter(|it| it.table == MAIN_TABLE && (it.prefix == 16 || it.prefix == 64));
        let mut lasting = connected.filter(|it| it.destination.to_string() != "fe80::");
        assert!(lasting.all(|it| it.protocol == PROTOCOL_KERNEL && it.gateway.is_none()));
        leases.check(&pod, &config, &result).must_succeed();
        node.del(&pod, &config).must_succeed();
    }
}

#[test]
fn tables_that_somebody_else_uses_are_passed_over() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let foreign = |table| Rule {
        from: "192.0.2.1".parse().unwrap(),
        prefix: 32,
        to: None,
        table,
        priority: 999,
    };
    for table in [1001, 1003] {
        let rule = foreign(table);
        node.change(Some(&pod), &Op::AddRule { at: AT, rule });
    }
    let mut config = leases.config(json!({
        "devices": [{ "netdev": "bond0" }, { "netdev": "bond1" }],
    }));
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    let has = |table: u32| {
        let text = format!(" lookup {table} ");
        rules(node, &pod).iter().any(|rule| rule.contains(&text))
    };
    assert!(has(1004) && has(1005), "{:?}", rules(node, &pod));
    node.del(&pod, &config).must_succeed();
    assert_eq!(before.differences(&node.snapshot()), [""; 0]);
    // no two consecutive table numbers are free
    let last = u32::MAX - 1000;
    config["routing"] = json!({ "tableBase": last });
    for table in (last..=u32::MAX).step_by(2) {
        let rule = foreign(table);
        node.change(Some(&pod), &Op::AddRule { at: AT, rule });
    }
    let full = node.snapshot();
    leases.take_call_names();
    let message = node.add(&pod, &config).must_fail(7);
    assert!(message.contains("routing.tableBase"), "{message}");
    assert_eq!(full.differences(&node.snapshot()), [""; 0]);
    assert_eq!(leases.take_call_names(), [""; 0]);
}

#[test]
fn rules_of_moved_rails_go_while_the_pod_lives() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.add(&pod, &node.two_rails()).must_succeed();
        assert_eq!(rules(&node, &pod).len(), 4);
        let foreign = Rule {
            from: "192.0.2.1".parse().unwrap(),
            prefix: 32,
            to: None,
            table: 1000,
            priority: 999,
        };
        node.change(
            Some(&pod),
            &Op::AddRule {
                at: AT,
                rule: foreign.clone(),
            },
        );
        node.del(&pod, &node.two_rails()).must_succeed();
        assert_eq!(rules(&node, &pod), [foreign.to_string()]);
        node.change(
            Some(&pod),
            &Op::RemoveRule {
                at: AT,
                rule: foreign,
            },
        );
        node.must_be(&before, "after DEL");
    }
}
