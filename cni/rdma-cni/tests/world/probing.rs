// SPDX-License-Identifier: Apache-2.0
//! Tests of probes: ADD probes the addresses that IPAM assigned. If another machine uses an address, IPAM assigns
//! another address.

use crate::{
    leases::{Leases, bonds, install},
    node::{Node, Pod, host_change, mac},
};
use attachments::given_up;
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{Link, LinkChange, Neighbour, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::{fs, net::IpAddr};

/// An IPAM plugin that assigns the next address if another machine has the present one: `70`, then `71`… DEL fails
/// while the file `next.refuses` exists.
const SCRIPT: &[u8] = br#"#!/bin/sh
read -r config
echo "$CNI_COMMAND $CNI_IFNAME $config" >> "$0.log"
count="$0.$CNI_IFNAME.count"
number=$(cat "$count" 2>/dev/null || echo 70)
case $CNI_COMMAND in
ADD) sed "s/%/$number/g" "$0.$CNI_IFNAME" ;;
DEL)
    if [ -e "$0.refuses" ]; then echo '{"code":11,"msg":"later"}'; exit 1; fi
    case $config in *'"conflicts":['*) echo $((number + 1)) > "$count" ;; esac ;;
esac
exit 0
"#;

/// A node with bonds and the IPAM plugin [`SCRIPT`].
pub(crate) struct Network {
    pub(crate) node: Node,
}

impl Network {
    fn new(rails: u8) -> Self {
        Self::on(Node::with(bonds(rails)), rails)
    }

    pub(crate) fn on(node: Node, rails: u8) -> Self {
        install(&node, "next", SCRIPT);
        for rail in 0..rails {
            let ips = json!([
                { "address": format!("10.{rail}.0.%/16") },
                { "address": format!("fd00:{rail}::%/64") },
            ]);
            let answer = json!({ "cniVersion": "1.1.0", "ips": ips });
            let file = node.plugins.join(format!("next.rdma{rail}"));
            fs::write(file, answer.to_string()).unwrap();
        }
        Self { node }
    }

    pub(crate) fn config(&self, fields: Value) -> Value {
        let mut config = self.node.config(json!({
            "devices": [{ "netdev": "bond*" }],
            "ipam": { "type": "next" },
        }));
        for (key, value) in fields.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    /// Returns the calls of the plugin since this function last ran, with the addresses of conflicts and nodes in the
    /// calls' input.
    fn calls(&self) -> Vec<String> {
        let log = self.node.plugins.join("next.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        let call = |line: &str| {
            let (what, config) = line.split_at(line.find('{').unwrap());
            let config: Value = serde_json::from_str(config).unwrap();
            let conflicts = config["conflicts"].as_array().into_iter().flatten();
            // ADD also passes addresses of nodes, which IPAM must remember
            let nodes = config["nodeAddresses"].as_array().into_iter().flatten();
            let addresses: Vec<&str> = conflicts.chain(nodes).filter_map(Value::as_str).collect();
            format!("{what}{}", addresses.join(" "))
                .trim_end()
                .to_owned()
        };
        text.lines().map(call).collect()
    }

    /// Returns the probes of each round, such as `rdma0 10.0.0.70`.
    pub(crate) fn probed(&self) -> Vec<Vec<String>> {
        let probed = self.node.kernel.with(|world| world.probed.clone());
        let line = |(link, ip): &(_, IpAddr)| format!("{link} {ip}");
        let rounds = probed.iter();
        rounds
            .map(|round| round.iter().map(line).collect())
            .collect()
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link_of(node: &Node, pod: &Pod, link: &str) -> Link {
    let netns = node.netns(pod);
    node.kernel
        .with(|world| world.link(netns, link).unwrap().clone())
}

/// Returns the addresses of `link` in the pod that are not link-local.
pub(crate) fn given(node: &Node, pod: &Pod, link: &str) -> Vec<String> {
    let addresses = link_of(node, pod, link).addresses.into_iter();
    let given = addresses.filter(|address| !address.is_link_local());
    given.map(|address| address.ip.to_string()).collect()
}

#[test]
fn all_rails_are_probed_at_once() {
    let network = Network::new(3);
    let pod = network.node.pod("a");
    let config = network.config(json!({}));
    network.node.add(&pod, &config).must_succeed();
    let round = [
        "rdma0 10.0.0.70",
        "rdma0 fd00::70",
        "rdma1 10.1.0.70",
        "rdma1 fd00:1::70",
        "rdma2 10.2.0.70",
        "rdma2 fd00:2::70",
    ];
    assert_eq!(network.probed(), [round]);
    assert_eq!(network.calls(), ["ADD rdma0", "ADD rdma1", "ADD rdma2"]);
}

#[test]
fn another_is_taken_where_one_is_in_use() {
    let network = Network::new(2);
    let node = &network.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let has = ["10.1.0.70", "fd00:1::70", "fd00:1::71"].map(ip);
    node.kernel.with(|world| {
        world.duplicates.extend(has);
        world.probing.push(ip("10.0.0.70"));
    });
    let config = network.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(given(node, &pod, "rdma0"), ["10.0.0.71", "fd00::71"]);
    assert_eq!(given(node, &pod, "rdma1"), ["10.1.0.72", "fd00:1::72"]);
    assert_eq!(result["ips"][2]["address"], "10.1.0.72/16");
    let calls = [
        "ADD rdma0",
        "ADD rdma1",
        "DEL rdma0 10.0.0.70",
        "ADD rdma0 10.0.0.70",
        "DEL rdma1 10.1.0.70 fd00:1::70",
        "ADD rdma1 10.1.0.70 fd00:1::70",
        "DEL rdma1 fd00:1::71",
        "ADD rdma1 10.1.0.70 fd00:1::70 fd00:1::71",
    ];
    assert_eq!(network.calls(), calls);
    assert_eq!(network.probed().len(), 3);
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
    let record = node.records();
    assert_eq!(record, [""; 0]);
}

/// Two machines set the address at the same moment. At least one of them receives the other's announcement, and tries
/// again with another address.
#[test]
fn a_late_add_starts_again() {
    let network = Network::new(2);
    let node = &network.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    node.kernel
        .with(|world| world.taken_late.push(ip("fd00:1::70")));
    let config = network.config(json!({}));
    node.add(&pod, &config).must_succeed();
    assert_eq!(given(node, &pod, "rdma0"), ["10.0.0.70", "fd00::70"]);
    assert_eq!(given(node, &pod, "rdma1"), ["10.1.0.71", "fd00:1::71"]);
    let calls = [
        "ADD rdma0",
        "ADD rdma1",
        "DEL rdma0",
        "DEL rdma1 fd00:1::70",
        "ADD rdma0",
        "ADD rdma1",
    ];
    assert_eq!(network.calls(), calls);
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

/// The time limit of an ADD suffices for two rounds of probes without an answer.
#[test]
fn an_add_that_is_late_twice_fails() {
    let network = Network::new(1);
    let node = &network.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let late = ["fd00::70", "fd00::71"].map(ip);
    node.kernel.with(|world| world.taken_late.extend(late));
    let message = node.add(&pod, &network.config(json!({}))).must_fail(106);
    assert!(message.contains("fd00::71 is in use"), "{message}");
    let calls = network.calls();
    assert_eq!(calls.last().map(String::as_str), Some("DEL rdma0 fd00::71"));
    node.must_be(&before, "undone");
}

/// A second try would call IPAM's DEL again, and would not report the conflict if the call fails again.
#[test]
fn an_add_whose_addresses_stay_assigned_does_not_start_again() {
    let network = Network::new(1);
    let node = &network.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    node.kernel
        .with(|world| world.taken_late.push(ip("fd00::70")));
    let refuses = node.plugins.join("next.refuses");
    fs::write(&refuses, "").unwrap();
    let config = network.config(json!({}));
    let message = node.add(&pod, &config).must_fail(107);
    for words in ["fd00::70 is in use", "may still have addresses", "later"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(network.calls(), ["ADD rdma0", "DEL rdma0 fd00::70"]);
    fs::remove_file(refuses).unwrap();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

/// If the second try of an ADD also fails, the error includes the attributes that the first try could not restore.
#[test]
fn the_second_try_reports_lacks_of_the_first() {
    for late in [1, 2] {
        let network = Network::on(Node::new(RdmaMode::Exclusive), 1);
        let node = &network.node;
        let pod = node.pod("a");
        let late = (70..70 + late).map(|number| ip(&format!("fd00:0::{number}")));
        node.kernel
            .with(|world| world.taken_late.extend(late.clone()));
        let lost = ip("10.2.0.0");
        node.kernel.intercept(move |_, step| match step.op {
            Op::Link {
                at: NetnsSide::Host,
                change: LinkChange::AddRoute(route),
                ..
            } if route.destination == lost => Verdict::Refuse(Errno::EPERM),
            _ => Verdict::Proceed,
        });
        let config = network.config(json!({ "devices": [{ "netdev": "eth2" }] }));
        let answer = node.add(&pod, &config);
        if late.count() == 1 {
            answer.must_succeed();
            node.del(&pod, &config).must_succeed();
        } else {
            let message = answer.must_fail(106);
            let words = ["not fully restored", "10.2.0.0/16", "not permitted"];
            assert!(words.iter().all(|it| message.contains(it)), "{message}");
        }
        let notes = given_up::read(&node.state.path().join("state")).unwrap();
        let observed = node.kernel.with(|world| world.observe(None));
        let left: Vec<&str> = notes
            .iter()
            .flat_map(|it| plan::given_up::left(it, &observed))
            .collect();
        assert!(
            matches!(left[..], [why] if why.contains("10.2.0.0/16")),
            "{left:?}"
        );
    }
}

#[test]
fn where_all_are_in_use_all_is_as_before() {
    let network = Network::new(2);
    let node = &network.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let all = (70..200).map(|number| ip(&format!("fd00:1::{number}")));
    node.kernel.with(|world| world.duplicates.extend(all));
    let message = node.add(&pod, &network.config(json!({}))).must_fail(106);
    assert!(
        message.contains("is in use: 0c:42:a1:00:ff:fe"),
        "{message}"
    );
    let calls = network.calls();
    assert_eq!(calls[calls.len() - 2], "DEL rdma0");
    assert!(calls[calls.len() - 1].starts_with("DEL rdma1 fd00:1::"));
    let count = |call: &str| calls.iter().filter(|it| it.starts_with(call)).count();
    assert_eq!((count("ADD rdma0"), count("ADD rdma1")), (1, 32));
    node.must_be(&before, "undone");
}

/// The IPAM plugin has only one address.
#[test]
fn the_same_again_is_no_other() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    node.kernel
        .with(|world| world.duplicates.push(ip("10.1.0.7")));
    let config = leases.config(json!({}));
    let message = node.add(&pod, &config).must_fail(106);
    for word in [
        "10.1.0.7 is in use",
        "network of rdma1",
        "\"probe\" to \"off\"",
    ] {
        assert!(message.contains(word), "{message}");
    }
    leases.must_be(&before, "undone");
}

#[test]
fn nobody_is_probed_where_that_is_off_or_no_address_is_given() {
    let network = Network::new(1);
    let node = &network.node;
    let pod = node.pod("a");
    let off = network.config(json!({ "probe": "off" }));
    node.kernel
        .with(|world| world.duplicates.push(ip("10.0.0.70")));
    node.add(&pod, &off).must_succeed();
    assert_eq!(network.probed(), [[""; 0]; 0]);
    node.del(&pod, &off).must_succeed();
    let wrong = network.config(json!({ "probe": "yes" }));
    let message = node.add(&pod, &wrong).must_fail(7);
    assert!(
        message.contains("probe") && message.contains("yes"),
        "{message}"
    );

    // addresses that the netdev already had on the host are not probed
    let moved = Network::on(Node::new(RdmaMode::Exclusive), 0);
    let pod = moved.node.pod("a");
    moved.node.add(&pod, &moved.node.two_rails()).must_succeed();
    assert_eq!(moved.probed(), [[""; 0]; 0]);
}

/// The parent does not receive its children's frames, so a child's probe does not reach the parent.
#[test]
fn an_address_of_the_parent_is_no_childs() {
    let network = Network::new(1);
    let node = &network.node;
    let own = host_change(
        "bond0",
        LinkChange::AddAddress(crate::node::address("10.0.0.70/16")),
    );
    node.change(None, &own);
    let pod = node.pod("a");
    node.add(&pod, &network.config(json!({}))).must_succeed();
    assert_eq!(given(node, &pod, "rdma0"), ["10.0.0.71", "fd00::71"]);
}

#[test]
fn each_rail_gets_the_neighbours_of_its_own_netdev() {
    let leases = Leases::new(2);
    let node = &leases.node;
    node.kernel.with(|world| {
        let host = fake_kernel::world::HOST;
        let [first, second] =
            ["bond0", "bond1"].map(|bond| world.link(host, bond).unwrap().clone());
        world.neighbours = [
            (first.index, "10.0.0.9", mac("02:00:00:00:99:01")),
            (first.index, "10.0.0.7", mac("0c:42:a1:00:99:01")),
            (second.index, "fd00:1::9", mac("02:00:00:00:99:02")),
            (second.index, "10.1.0.9", mac("02:00:00:00:99:02")),
            (second.index, "10.1.0.8", first.mac.clone()),
        ]
        .map(|(index, address, mac)| Neighbour {
            index,
            address: ip(address),
            mac,
        })
        .into();
    });
    let pod = node.pod("a");
    node.add(&pod, &leases.config(json!({}))).must_succeed();
    let calls = leases.calls();
    let neighbours = |index: usize| calls[index].config["neighbourAddresses"].clone();
    assert_eq!(neighbours(0), json!(["10.0.0.9", "10.0.0.7"]));
    assert_eq!(neighbours(1), json!(["fd00:1::9", "10.1.0.9"]));
    // a neighbour whose hardware address comes from a NIC's vendor is a node: a pod's child has another kind of address
    let nodes = |index: usize| calls[index].config["nodeAddresses"].clone();
    assert_eq!((nodes(0), nodes(1)), (json!(["10.0.0.7"]), json!([])));
}
