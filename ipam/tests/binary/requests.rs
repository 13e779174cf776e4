// SPDX-License-Identifier: Apache-2.0
//! Tests of addresses that a pod requests.

use super::node::{Node, apart, call, shell};
use serde_json::json;

#[test]
fn every_form_of_a_request() {
    let node = Node::new();
    let conf =
        node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}));
    let conf_with = |place: &[&str], ips: serde_json::Value| {
        let mut conf = conf.clone();
        let mut inner = &mut conf;
        for key in place {
            inner = &mut inner[*key];
        }
        *inner = ips;
        conf
    };
    let by_args = call("ADD", "a", &conf).env("CNI_ARGS", "IgnoreUnknown=1;IP=10.77.0.50");
    assert_eq!(by_args.addresses(), ["10.77.0.50/24", "fd77::2/64"]);
    let by_cni_args = conf_with(&["args", "cni", "ips"], json!(["fd77::50"]));
    // the round robin continues after the requested address, as in host-local
    assert_eq!(
        call("ADD", "b", &by_cni_args).addresses(),
        ["10.77.0.51/24", "fd77::50/64"]
    );
    let by_capability = conf_with(
        &["runtimeConfig", "ips"],
        json!(["10.77.0.60/24", "fd77::60"]),
    );
    assert_eq!(
        call("ADD", "c", &by_capability).addresses(),
        ["10.77.0.60/24", "fd77::60/64"]
    );
    // host-local also accepts this form
    let with_prefix = call("ADD", "e", &conf).env("CNI_ARGS", "IP=10.77.0.70/24");
    assert_eq!(with_prefix.addresses(), ["10.77.0.70/24", "fd77::61/64"]);
    // the form in which Multus passes all `ips` of a network selection
    let several = call("ADD", "g", &conf).env("CNI_ARGS", "IP=10.77.0.80/24,fd77::80/64");
    assert_eq!(several.addresses(), ["10.77.0.80/24", "fd77::80/64"]);
    let bare = call("ADD", "h", &conf).env("CNI_ARGS", "IP=fd77::81,10.77.0.81");
    assert_eq!(bare.addresses(), ["10.77.0.81/24", "fd77::81/64"]);
    for ip in [
        "10.77.0.70/33",
        "10.77.0.70/",
        "10.77.0/24",
        "10.77.0.70/24/1",
        "10.77.0.82,",
        ",10.77.0.82",
        "10.77.0.82,fd77::82/129",
    ] {
        call("ADD", "f", &conf)
            .env("CNI_ARGS", &format!("IP={ip}"))
            .fails(
                7,
                &format!(
                    "CNI_ARGS: IP: \"{ip}\" is not valid: must be addresses, separated by commas, optionally with \
                     prefix lengths"
                ),
            );
    }
    let bad = conf_with(&["runtimeConfig", "ips"], json!(["10.77.0"]));
    call("ADD", "d", &bad).fails(
        7,
        "runtimeConfig.ips: [\"10.77.0\"] is not valid: must list addresses, optionally with prefix lengths",
    );
}

#[test]
fn unavailable_addresses_are_refused() {
    apart(|| {
        shell("ip link add up0 type veth peer name up1; ip addr add 10.77.0.9/24 dev up0");
        let node = Node::new();
        let conf = node.conf(json!({"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.5"}));
        let ask = |ip: &str| call("ADD", "a", &conf).env("CNI_ARGS", &format!("IP={ip}"));
        for (ip, what) in [
            ("10.77.0.1", "a gateway"),
            ("10.77.0.9", "an address of this host itself"),
            ("10.77.0.0", "the network address of 10.77.0.0/24"),
            ("10.77.0.255", "the broadcast address of 10.77.0.0/24"),
        ] {
            let error = format!(
                "the requested address {ip} is {what}: no pod gets it; request another one"
            );
            ask(ip).fails(7, &error);
        }
        for ip in ["10.77.0.4", "10.78.0.4", "fd77::1"] {
            let error = format!(
                "the requested address {ip} is not in 10.77.0.5-10.77.0.254 of 10.77.0.0/24"
            );
            ask(ip).fails(7, &error);
        }
        call("ADD", "b", &conf)
            .env("CNI_ARGS", "IP=10.77.0.7")
            .result();
        ask("10.77.0.7").fails(
            11,
            "the requested address 10.77.0.7 is held by b eth0; retry when the address is free, or request another one",
        );
        let mut two = conf.clone();
        two["runtimeConfig"] = json!({"ips": ["10.77.0.10", "10.77.0.11"]});
        call("ADD", "a", &two).fails(
            7,
            "the requested addresses 10.77.0.10 and 10.77.0.11 are in one range set, \
             10.77.0.5-10.77.0.254 of 10.77.0.0/24, which assigns one address",
        );
        let v6 = node.conf(json!({"subnet": "fd77::/64"}));
        call("ADD", "a", &v6).env("CNI_ARGS", "IP=fd77::").fails(
            7,
            "the requested address fd77:: is the subnet-router anycast address of fd77::/64: no pod gets it; request \
             another one",
        );
        assert_eq!(node.leases(), ["10.77.0.7"]);
    });
}

#[test]
fn the_hosts_own_addresses_are_not_given() {
    apart(|| {
        shell("ip link add up0 type veth peer name up1; ip addr add 10.77.0.2/24 dev up0");
        shell("ip addr add 10.77.0.4/32 dev lo");
        let node = Node::new();
        let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
        assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.3");
        assert_eq!(call("ADD", "b", &conf).address(), "10.77.0.5");
    });
}

#[test]
fn nor_are_those_of_nics_that_are_in_pods() {
    let node = Node::new();
    let ranges = json!({"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]});
    let parent = json!({"from": "parent", "family": "both", "strategy": "sequential"});
    for (ipam, v4, v6) in [
        (ranges, "10.77.0.4/24", "fd77::3/64"),
        // the next address is the parent's own, so ADD does not assign it
        (parent, "10.77.0.5/24", "fd77::4/64"),
    ] {
        let mut conf = node.conf(ipam);
        conf["master"] = "nic1".into();
        conf["masterAddresses"] = json!(["10.77.0.4/24", "fd77::3/64"]);
        conf["hostAddresses"] = json!(["10.77.0.2", "10.77.0.3", "fd77::2", "192.0.2.1"]);
        for ip in ["10.77.0.3", "fd77::2"] {
            let add = call("ADD", "a", &conf).env("CNI_ARGS", &format!("IP={ip}"));
            let error = format!(
                "the requested address {ip} is an address of this host itself: no pod gets it; request another one"
            );
            add.fails(7, &error);
        }
        assert_eq!(call("ADD", "a", &conf).addresses(), [v4, v6]);
        call("STATUS", "", &conf).ok();
        // DEL ignores the field
        conf["hostAddresses"] = json!([5]);
        call("DEL", "a", &conf).ok();
    }
}

#[test]
fn ranges_of_the_runtime_come_first() {
    let node = Node::new();
    let mut conf = node.conf(json!({"ranges": [[{"subnet": "10.77.0.0/24"}]]}));
    conf["runtimeConfig"] = json!({"ipRanges": [[{"subnet": "10.78.0.0/24"}]]});
    assert_eq!(
        call("ADD", "a", &conf).addresses(),
        ["10.78.0.2/24", "10.77.0.2/24"]
    );
}

#[test]
fn a_set_with_several_ranges_goes_on_in_the_next() {
    let node = Node::new();
    let conf = node.conf(json!({"ranges": [[
        {"subnet": "10.77.0.0/29", "rangeStart": "10.77.0.5", "gateway": "10.77.0.6"},
        {"subnet": "10.78.0.0/24"},
    ]]}));
    let result = call("ADD", "a", &conf).result();
    assert_eq!(
        result["ips"][0],
        json!({"address": "10.77.0.5/29", "gateway": "10.77.0.6"})
    );
    let result = call("ADD", "b", &conf).result();
    assert_eq!(
        result["ips"][0],
        json!({"address": "10.78.0.2/24", "gateway": "10.78.0.1"})
    );
}

#[test]
fn a_gateway_outside_the_subnet_is_taken_as_by_host_local() {
    let node = Node::new();
    let conf = node.conf(json!({"subnet": "fd77::/64", "gateway": "fe80::1"}));
    let result = call("ADD", "a", &conf).result();
    assert_eq!(
        result["ips"][0],
        json!({"address": "fd77::1/64", "gateway": "fe80::1"})
    );
}
