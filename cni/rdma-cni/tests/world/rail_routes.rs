// SPDX-License-Identifier: Apache-2.0
//! Tests of the routes of one rail.

use crate::{
    leases::{Leases, answer, link_of},
    node::{Node, Pod, host_change, route},
    routing::with_primary,
};
use rdma_netns::{Link, LinkChange, RdmaMode, Route, link::MAIN_TABLE};
use serde_json::{Value, json};

/// Returns gateway and metric of each route of `link` to `destination` in `table`. A route without a metric has the
/// default metric.
fn ways(link: &Link, table: u32, destination: &str) -> Vec<(String, u32)> {
    let wanted = route(destination, "::");
    let to = |it: &&Route| {
        (it.destination, it.prefix, it.table) == (wanted.destination, wanted.prefix, table)
    };
    let mut ways: Vec<(String, u32)> = link
        .routes
        .iter()
        .filter(to)
        .map(|it| {
            let gateway = it.gateway.map(|it| it.to_string()).unwrap_or_default();
            (gateway, it.metric.unwrap_or(it.default_metric()))
        })
        .collect();
    ways.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    ways
}

fn by<const N: usize>(ways: [(&str, u32); N]) -> Vec<(String, u32)> {
    ways.map(|(gateway, metric)| (gateway.to_owned(), metric))
        .to_vec()
}

/// Runs ADD, CHECK and DEL. `seen` gets the result of ADD, and checks it.
fn round(leases: &Leases, pod: &Pod, config: &Value, seen: impl FnOnce(&Value)) {
    let node = &leases.node;
    let before = node.snapshot();
    let result = node.add(pod, config).must_succeed();
    leases.check(pod, config, &result).must_succeed();
    seen(&result);
    node.del(pod, config).must_succeed();
    leases.must_be(&before, "after DEL");
}

#[test]
fn without_a_metric_ipams_ipv6_routes_are_the_kernels() {
    for bonds in [1, 2] {
        let leases = Leases::new(bonds);
        let node = &leases.node;
        let config = leases.config(json!({ "routing": { "metric": 0 } }));
        for (pod, metrics) in [
            (node.pod("b"), [0, 1024]),
            (with_primary(&leases, 0), [1, 1025]),
        ] {
            for rail in 0..bonds {
                let mut given = answer(rail, 7);
                given["routes"] = json!([
                    { "dst": "0.0.0.0/0" }, { "dst": "::/0" }, { "dst": "2001:db8::/32" },
                ]);
                leases.gives(&format!("rdma{rail}"), &given);
            }
            round(&leases, &pod, &config, |_| {
                let link = link_of(node, &pod, "rdma0");
                let way = |to| ways(&link, MAIN_TABLE, to);
                assert_eq!(way("0.0.0.0/0"), by([("10.0.0.254", metrics[0])]));
                assert_eq!(way("::/0"), by([("fd00::fe", metrics[1])]));
                assert_eq!(way("2001:db8::/32"), by([("fd00::fe", 1024)]));
            });
        }
    }
}

#[test]
fn a_link_local_gateway_is_the_way_of_its_table() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    for rail in [0, 1] {
        let gateway = format!("fe80::{rail}:1");
        leases.gives(
            &format!("rdma{rail}"),
            &json!({ "ips": [{ "address": format!("fd00:{rail}::7/64"), "gateway": gateway }] }),
        );
    }
    round(&leases, &pod, &leases.config(json!({})), |_| {
        for (rail, gateway) in [(0, "fe80::1"), (1, "fe80::1:1")] {
            let link = link_of(node, &pod, &format!("rdma{rail}"));
            let found = ways(&link, 1000 + rail, "::/0");
            assert_eq!(found, by([(gateway, 1024)]));
            assert_eq!(ways(&link, MAIN_TABLE, "::/0"), by([]));
        }
    });
}

#[test]
fn priorities_of_ipam_keep_their_order() {
    let routes = json!([
        { "dst": "172.16.0.0/12", "gw": "10.0.0.2", "priority": 30 },
        { "dst": "172.16.0.0/12", "gw": "10.0.0.3", "priority": 10 },
        { "dst": "0.0.0.0/0", "gw": "10.0.0.2", "priority": 5 },
        { "dst": "0.0.0.0/0", "gw": "10.0.0.3", "priority": 7 },
        { "dst": "::/0", "gw": "fd00::2", "priority": 1024 },
        { "dst": "::/0", "gw": "fd00::3", "priority": 500 },
    ]);
    for bonds in [1, 2] {
        let leases = Leases::new(bonds);
        let node = &leases.node;
        let mut given = answer(0, 7);
        given["routes"] = routes.clone();
        leases.gives("rdma0", &given);
        let config = leases.config(json!({}));
        for (pod, ipv4, ipv6) in [
            (node.pod("b"), [5, 7], [500, 1024]),
            (with_primary(&leases, 0), [200, 202], [1025, 1549]),
        ] {
            round(&leases, &pod, &config, |_| {
                let link = link_of(node, &pod, "rdma0");
                let tables = [MAIN_TABLE, 1000].into_iter().take(bonds.into());
                for table in tables {
                    let way = |to| ways(&link, table, to);
                    let (first, second) = ("10.0.0.3", "10.0.0.2");
                    assert_eq!(way("172.16.0.0/12"), by([(first, 10), (second, 30)]));
                    let found = way("0.0.0.0/0");
                    assert_eq!(found, by([(second, ipv4[0]), (first, ipv4[1])]), "{table}");
                    let found = way("::/0");
                    assert_eq!(
                        found,
                        by([("fd00::3", ipv6[0]), ("fd00::2", ipv6[1])]),
                        "{table}"
                    );
                }
            });
        }
    }
}

/// The node's set-up gave a NIC an IPv6 route with several next hops.
#[test]
fn kept_routes_of_several_next_hops_stay_such() {
    for rails in [1, 2] {
        let leases = Leases::on(Node::new(RdmaMode::Exclusive));
        let node = &leases.node;
        for gateway in ["fd00:2::a", "fd00:2::b"] {
            for (destination, metric) in [("::/0", None), ("2001:db8::/32", Some(50))] {
                let mut route = route(destination, gateway);
                route.metric = metric;
                node.change(None, &host_change("eth2", LinkChange::AddRoute(route)));
            }
        }
        let mut config = match rails {
            1 => node.one_rail(),
            _ => node.two_rails(),
        };
        // the netdev has the host's only default route
        config["mode"] = "move".into();
        for (pod, metric) in [(node.pod("b"), 1024), (with_primary(&leases, 0), 1025)] {
            round(&leases, &pod, &config, |_| {
                let link = link_of(node, &pod, "rdma0");
                for table in [MAIN_TABLE, 1000].into_iter().take(rails) {
                    let both = |metric| by([("fd00:2::a", metric), ("fd00:2::b", metric)]);
                    assert_eq!(ways(&link, table, "::/0"), both(metric), "{table}");
                    assert_eq!(ways(&link, table, "2001:db8::/32"), both(50), "{table}");
                }
            });
        }
    }
}

#[test]
fn a_gateway_of_each_address_is_one_default_of_the_table() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let ips = json!([
        { "address": "fd00::7/64", "gateway": "fd00::fe" },
        { "address": "fd00:0:0:1::7/64", "gateway": "fd00:0:0:1::fe" },
    ]);
    leases.gives("rdma0", &json!({ "ips": ips }));
    round(&leases, &pod, &leases.config(json!({})), |_| {
        let link = link_of(node, &pod, "rdma0");
        assert_eq!(ways(&link, 1000, "::/0"), by([("fd00::fe", 1024)]));
    });
}

/// ADD does not use some fields of an IPAM plugin's answer. It passes them to later plugins of the chain.
#[test]
fn routes_of_the_result_have_all_fields_from_ipam() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let mut given = answer(0, 7);
    given["ips"][0]["x-pool"] = "rails".into();
    given["routes"] = json!([
        { "dst": "172.16.0.0/12", "gw": "10.0.0.2", "scope": 0, "x-why": "storage" },
        { "dst": "198.51.100.0/24", "gw": "", "scope": 253, "x-why": "direct" },
        { "dst": "203.0.113.0/24", "priority": 10, "x-why": "first" },
        { "dst": "203.0.113.0/24", "priority": 20, "x-why": "second" },
        { "dst": "2001:DB8::/32", "gw": "FD00::0:2", "x-why": "spelt otherwise" },
    ]);
    leases.gives("rdma0", &given);
    round(&leases, &pod, &leases.config(json!({})), |result| {
        assert_eq!(result["ips"][0]["x-pool"], "rails");
        let routes = result["routes"].as_array().unwrap();
        let is = |why: &str, field: &str| {
            let found = routes.iter().find(|it| it["x-why"] == why);
            found.unwrap_or_else(|| panic!("{why} in {routes:?}"))[field].clone()
        };
        assert_eq!(is("storage", "scope"), 0);
        assert_eq!(is("storage", "gw"), "10.0.0.2");
        assert_eq!(is("direct", "scope"), 253);
        assert_eq!(
            (is("first", "priority"), is("second", "priority")),
            (json!(10), json!(20))
        );
        assert_eq!(is("spelt otherwise", "gw"), "fd00::2");
        assert_eq!(routes.len(), 5, "{routes:?}");
    });
}
