// SPDX-License-Identifier: Apache-2.0
//! Tests of sriov-cni's documented examples with another type, as Multus passes them: the examples of its `README.md`,
//! present and former, and of its `docs/configuration-reference.md`. Examples of userspace drivers (DPDK) are omitted,
//! because a function of such a driver has no RDMA device.

use crate::{leases::install, node::Node};
use rdma_netns::{DeviceAddress, Kernel as _, RdmaMode, link::MAIN_TABLE};
use serde_json::{Value, json};
use std::{fs, net::IpAddr};

const FUNCTION: &str = "0000:3b:00.2";

/// An example, and its expected result.
struct Example {
    name: &'static str,
    config: Value,
    /// Settings in the syntax of `ip link set dev PF vf N`.
    set: &'static [&'static str],
    /// Address that `host-local` assigns.
    address: Option<&'static str>,
}

/// Returns the IPAM part of `README.md`, "Basic configuration", and of the former "Usage", for `host-local`.
fn ipam() -> Value {
    json!({
        "type": "host-local",
        "subnet": "10.56.217.0/24",
        "routes": [{ "dst": "0.0.0.0/0" }],
        "gateway": "10.56.217.1",
    })
}

fn examples() -> Vec<Example> {
    let mut range = ipam();
    range["rangeStart"] = "10.56.217.171".into();
    range["rangeEnd"] = "10.56.217.181".into();
    vec![
        Example {
            name: "Kernel driver config",
            config: json!({ "name": "sriov-network", "ipam": ipam() }),
            set: &[],
            address: Some("10.56.217.2"),
        },
        Example {
            name: "Extended kernel driver config",
            config: json!({
                "name": "sriov-advanced",
                "vlan": 1000,
                "spoofchk": "off",
                "trust": "on",
                "ipam": ipam(),
            }),
            set: &["vlan 1000", "spoofchk off", "trust on"],
            address: Some("10.56.217.2"),
        },
        Example {
            name: "Configuration with IPAM",
            config: json!({
                "name": "sriov-net",
                "deviceID": FUNCTION,
                "vlan": 2222,
                "ipam": range,
            }),
            set: &["vlan 2222"],
            address: Some("10.56.217.171"),
        },
        Example {
            name: "Configuration with VF Flags",
            config: json!({
                "name": "sriov-dpdk",
                "deviceID": FUNCTION,
                "vlan": 1000,
                "max_tx_rate": 100,
                "spoofchk": "off",
                "trust": "on",
                "link_state": "enable",
            }),
            set: &[
                "vlan 1000",
                "min_tx_rate 0 max_tx_rate 100",
                "spoofchk off",
                "trust on",
                "state enable",
            ],
            address: None,
        },
        Example {
            name: "each field filled out",
            config: json!({
                "name": "sriov-dpdk",
                "deviceID": FUNCTION,
                "mac": "CA:FE:C0:FF:EE:00",
                "vlan": 1000,
                "vlanQoS": 4,
                "vlanProto": "802.1ad",
                "min_tx_rate": 100,
                "max_tx_rate": 200,
                "spoofchk": "off",
                "trust": "on",
                "link_state": "enable",
                "logLevel": "debug",
                "logFile": "/tmp/sriov.log",
            }),
            set: &[
                "mac ca:fe:c0:ff:ee:00",
                "vlan 1000 qos 4 proto 802.1ad",
                "min_tx_rate 100 max_tx_rate 200",
                "spoofchk off",
                "trust on",
                "state enable",
            ],
            address: None,
        },
    ]
}

/// Returns the configuration of `example` as the plugin on `node` gets it.
fn handed_over(node: &Node, example: &Example) -> Value {
    let mut config = json!({
        "cniVersion": "0.3.1",
        "type": "rdma-cni",
        "deviceID": FUNCTION,
        "stateDir": node.state.path().join("state"),
        "log": { "level": "off" },
    });
    for (field, value) in example.config.as_object().unwrap() {
        config[field] = value.clone();
    }
    config
}

/// Returns the settings that the physical function reports for the virtual function.
fn settings(node: &Node) -> Vec<String> {
    let function: DeviceAddress = FUNCTION.to_owned().try_into().unwrap();
    let vf = node.kernel.vf(&function).unwrap().expect("a function");
    vf.settings.iter().map(ToString::to_string).collect()
}

/// Installs a `host-local` that answers ADD for a network of version 0.3.1, and keeps a lease.
fn install_host_local(node: &Node, address: &str) {
    let answer = json!({
        "cniVersion": "0.3.1",
        "ips": [{ "version": "4", "address": format!("{address}/24"), "gateway": "10.56.217.1" }],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": {},
    });
    let script = format!(
        "#!/bin/sh\ncat > /dev/null\n\
         case $CNI_COMMAND in\n\
         ADD) : > \"$0.$CNI_CONTAINERID.$CNI_IFNAME\"; echo '{answer}' ;;\n\
         DEL) rm -f \"$0.$CNI_CONTAINERID.$CNI_IFNAME\" ;;\n\
         esac\n"
    );
    install(node, "host-local", script.as_bytes());
}

#[test]
fn a_documented_example_does_what_it_does_and_all_of_it_is_put_back() {
    for example in examples() {
        let name = example.name;
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a").attachment("net1");
        let config = handed_over(&node, &example);
        if let Some(address) = example.address {
            install_host_local(&node, address);
        }
        let (before, set_before) = (node.snapshot(), settings(&node));
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["cniVersion"], "0.3.1", "{name}");
        assert_eq!(result["interfaces"][0]["name"], "net1", "{name}");

        let present = settings(&node);
        for setting in example.set {
            assert!(
                present.iter().any(|it| it == setting),
                "{name}: {present:?}"
            );
        }
        let changed = present.iter().filter(|it| !set_before.contains(it));
        let changed: Vec<_> = changed
            .filter(|it| !example.set.contains(&it.as_str()))
            .collect();
        assert_eq!(
            changed,
            [] as [&String; 0],
            "{name} sets attributes without a request"
        );

        let netns = node.netns(&pod);
        let link = node.kernel.with(|world| world.link(netns, "net1").cloned());
        let link = link.expect(name);
        assert!(link.up, "{name}");
        let lease = node.plugins.join("host-local.a.net1");
        if let Some(address) = example.address {
            assert_eq!(result["ips"][0]["address"], format!("{address}/24"));
            let ip: IpAddr = address.parse().unwrap();
            assert!(link.addresses.iter().any(|it| it.ip == ip), "{name}");
            let router: IpAddr = "10.56.217.1".parse().unwrap();
            let is_default = |it: &&rdma_netns::Route| it.prefix == 0 && it.gateway == Some(router);
            let default = link.routes.iter().find(is_default);
            let default = default.unwrap_or_else(|| panic!("{name}: {:?}", link.routes));
            assert_eq!(
                (default.table, default.metric),
                (MAIN_TABLE, Some(200)),
                "{name}"
            );
            assert!(lease.exists(), "{name}");
        }
        node.del(&pod, &config).must_succeed();
        assert!(!lease.exists(), "{name}");
        let differences = before.differences(&node.snapshot());
        assert_eq!(differences, [] as [&str; 0], "{name}");
        let network = example.config["name"].as_str().unwrap();
        let records = node.state.path().join("state/attachments").join(network);
        let left = fs::read_dir(records).map_or(0, |files| files.count());
        assert_eq!(left, 0, "{name}");
    }
}
