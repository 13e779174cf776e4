// SPDX-License-Identifier: Apache-2.0
//! Machines on one network, each with its own leases. No address is used twice.

use integration::{Netns, Node};
use rdma_netns::{InterfaceName, Kernel, Linux, Question, probe::PROBE_TIME};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// A node whose `eth1` is on the network 10.9.0.0/24 and fd00:9::/64.
#[track_caller]
fn node() -> Node {
    let node = Node::with_rails(1);
    give(&node, 1);
    node
}

/// Another node on the same network.
#[track_caller]
fn beside(node: &Node) -> Node {
    let other = node.beside(2);
    other.add_rail("eth1");
    give(&other, 2);
    other
}

fn give(node: &Node, number: u32) {
    node.host
        .ip(&format!("address add 10.9.0.{number}/24 dev eth1"));
    let address = format!("fd00:9::{number}/64");
    node.host
        .ip(&format!("address add {address} dev eth1 nodad"));
}

/// The entry of the manifests, for both families and with additional `fields`.
fn configuration(node: &Node, fields: &Value) -> Value {
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mode"] = "share".into();
    configuration["ipam"] = json!({
        "type": "rdma-ipam",
        "from": "parent",
        "family": "both",
        "dataDir": node.directory().join("leases"),
    });
    for (key, value) in fields.as_object().expect("fields") {
        configuration[key] = value.clone();
    }
    configuration
}

/// Runs ADD for the pod `name`. Returns the pod's addresses and the log of ADD.
#[track_caller]
fn start(node: &Node, configuration: &Value, name: &str, pod: &Netns) -> (Vec<IpAddr>, String) {
    let args = format!("K8S_POD_NAMESPACE=ns;K8S_POD_NAME={name}");
    let call = node.invoke("ADD", name, pod.path());
    let outcome = call.env("CNI_ARGS", args).input(configuration).run();
    let result = outcome.result();
    let ips = result["ips"].as_array().expect("ips").iter();
    let ips: Vec<IpAddr> = ips
        .map(|ip| {
            let (ip, _) = ip["address"]
                .as_str()
                .and_then(|it| it.split_once('/'))
                .expect("an address");
            ip.parse().expect("an address")
        })
        .collect();
    for ip in &ips {
        let shown = pod.addresses("rdma0");
        assert!(
            shown.iter().any(|it| it.starts_with(&format!("{ip}/"))),
            "{ip} is not in {shown:?}"
        );
    }
    (ips, outcome.stderr)
}

/// Returns the addresses that the pod `name` gets if there is no conflict.
#[track_caller]
fn preferred(node: &Node, configuration: &Value, name: &str) -> Vec<IpAddr> {
    let pod = node.pod(name);
    let (ips, _) = start(node, configuration, name, &pod);
    node.del(configuration, name, &pod);
    ips
}

/// Gives the addresses to the switch. The switch may already have one of them (a chance of about 1 in 250), because
/// stable addresses can be anywhere in the range.
fn occupy(node: &Node, ips: &[IpAddr]) {
    for ip in ips {
        let length = if ip.is_ipv4() { "24" } else { "64 nodad" };
        let (length, flag) = length.split_once(' ').unwrap_or((length, ""));
        node.switch
            .ip(&format!("address replace {ip}/{length} dev br0 {flag}"));
    }
}

#[test]
fn an_address_that_another_machine_has_is_not_used() {
    let node = node();
    node.host
        .ip("link add link eth1 name vf1 type macvlan mode bridge");
    node.host.ip("link set dev vf1 up");
    node.host.ip("address add 10.9.0.200/24 dev vf1");
    node.host.ip("address add fd00:9::200/64 dev vf1 nodad");
    another_is_taken(&node, &configuration(&node, &json!({})), "shared");
    let fields = json!({"mode": "move", "devices": [{"netdev": "vf1"}]});
    let mut configuration = configuration(&node, &fields);
    another_is_taken(&node, &configuration, "moved");
    configuration["ipam"]["strategy"] = "sequential".into();
    configuration["ipam"]["dataDir"] = json!(node.directory().join("in-turn"));
    another_is_taken(&node, &configuration, "in-turn");
}

#[track_caller]
fn another_is_taken(node: &Node, configuration: &Value, name: &str) {
    let mut taken = preferred(node, configuration, name);
    if configuration["ipam"]["strategy"] == "sequential" {
        // the next pod gets the address after the one that was just released
        for ip in &mut taken {
            *ip = match ip {
                IpAddr::V4(ip) => IpAddr::V4((u32::from(*ip) + 1).into()),
                IpAddr::V6(ip) => IpAddr::V6((u128::from(*ip) + 1).into()),
            };
        }
    }
    occupy(node, &taken);
    let pod = node.pod(name);
    let (ips, log) = start(node, configuration, name, &pod);
    assert_eq!(ips.len(), 2, "{name}");
    for ip in &taken {
        assert!(!ips.contains(ip), "{name}: {ip} is the switch's");
        let line = format!("{ip} is in use: ");
        assert!(log.contains(&line), "{name}: no {line:?} in {log}");
    }
    node.del(configuration, name, &pod);
    // rdma-ipam avoids the address from now on; the next address can by chance be one that the switch has from an
    // earlier pod
    let pod = node.pod(name);
    let (_, log) = start(node, configuration, name, &pod);
    for ip in &taken {
        let line = format!("{ip} is in use: ");
        assert!(!log.contains(&line), "{name}: {log}");
    }
    node.del(configuration, name, &pod);
    assert!(node.records().is_empty());
}

#[test]
fn a_child_of_the_same_netdev_is_probed_too() {
    let node = node();
    let configuration = configuration(&node, &json!({}));
    let taken = preferred(&node, &configuration, "a");
    // a pod of another plugin: no lease names its address
    let sibling = Netns::new("sibling");
    let name = sibling.name();
    node.host.ip(&format!(
        "link add link eth1 name mac0 netns {name} type macvlan mode bridge"
    ));
    sibling.ip("link set dev mac0 up");
    for ip in &taken {
        let length = if ip.is_ipv4() { "24" } else { "64" };
        let flag = if ip.is_ipv4() { "" } else { "nodad" };
        sibling.ip(&format!("address add {ip}/{length} dev mac0 {flag}"));
    }
    let pod = node.pod("a");
    let (ips, _) = start(&node, &configuration, "a", &pod);
    assert!(ips.iter().all(|ip| !taken.contains(ip)), "{ips:?}");
    node.del(&configuration, "a", &pod);
}

/// Number of threads that probe for the other machine.
const PROBERS: u32 = 4;

/// Number of ADDs that may miss the other machine's probes. An ADD listens for [`PROBE_TIME`], and the scheduler of a
/// busy machine can keep all probing threads from running for this time.
const ATTEMPTS: u32 = 50;

/// Ends the probing threads of a scope, also if the scope panics: the scope waits for them.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_address_that_another_machine_probes_for_is_left_to_nobody() {
    let node = node();
    let configuration = configuration(&node, &json!({}));
    let wanted = preferred(&node, &configuration, "a");
    let other = Netns::new("other");
    let switch = node.switch.name();
    other.ip(&format!(
        "link add name eth9 type veth peer name to-eth9 netns {switch}"
    ));
    node.switch.ip("link set dev to-eth9 master br0 up");
    other.ip("link set dev eth9 up");
    let questions: Vec<Question> = wanted
        .iter()
        .map(|ip| Question {
            link: InterfaceName::try_from("eth9").expect("a name"),
            address: *ip,
            answered_at: None,
        })
        .collect();
    let ended = AtomicBool::new(false);
    let probe = &|late: Duration| {
        let kernel = Linux::new();
        let other = kernel.open_pod(other.path()).expect("the other machine");
        thread::sleep(late);
        while !ended.load(Ordering::Relaxed) {
            kernel.probe(&other, &questions).expect("a probe");
        }
    };
    // After one conflict, rdma-ipam avoids an address, and no longer probes it.
    let mut reported = BTreeSet::new();
    thread::scope(|scope| {
        let _end = EndOnDrop(&ended);
        for part in 0..PROBERS {
            scope.spawn(move || probe(PROBE_TIME / PROBERS * part));
        }
        for _ in 0..ATTEMPTS {
            let pod = node.pod("a");
            let (ips, log) = start(&node, &configuration, "a", &pod);
            node.del(&configuration, "a", &pod);
            for ip in &wanted {
                if log.contains(&format!("{ip} is about to be used: ")) {
                    reported.insert(*ip);
                }
            }
            for ip in &reported {
                assert!(!ips.contains(ip), "{ip} is the other machine's: {log}");
            }
            if reported.len() == wanted.len() {
                break;
            }
        }
    });
    assert_eq!(reported, wanted.into_iter().collect());
}

#[test]
fn nobody_is_probed_where_that_is_off() {
    let node = node();
    let configuration = configuration(&node, &json!({"probe": "off"}));
    let taken = preferred(&node, &configuration, "a");
    occupy(&node, &taken);
    let pod = node.pod("a");
    let (ips, _) = start(&node, &configuration, "a", &pod);
    assert_eq!(ips, taken);
    node.del(&configuration, "a", &pod);
}

#[test]
fn addresses_in_neighbour_tables_are_avoided() {
    let node = node();
    node.host
        .ip("link add link eth1 name vf1 type macvlan mode bridge");
    node.host.ip("link set dev vf1 up");
    node.host.ip("address add 10.9.0.3/24 dev vf1");
    node.host.ip("address add fd00:9::3/64 dev vf1 nodad");
    let own = node.host.link("eth1").expect("the rail")["address"].clone();
    let own = own.as_str().expect("an address").to_owned();
    for (netdev, mode) in [("eth1", "share"), ("vf1", "move")] {
        let fields = json!({"probe": "off", "mode": mode, "devices": [{"netdev": netdev}]});
        let configuration = configuration(&node, &fields);
        let wanted = preferred(&node, &configuration, mode);
        for (entry, avoided) in [
            ("lladdr 02:00:00:00:99:99 nud stale", true),
            ("lladdr 02:00:00:00:99:99 nud reachable", true),
            ("lladdr 02:00:00:00:99:99 nud permanent", true),
            ("nud failed", false),
            (&format!("lladdr {own} nud stale"), false),
        ] {
            for ip in &wanted {
                node.host
                    .ip(&format!("neighbour replace {ip} dev {netdev} {entry}"));
            }
            let pod = node.pod("a");
            let (ips, _) = start(&node, &configuration, mode, &pod);
            for ip in &wanted {
                assert_eq!(ips.contains(ip), !avoided, "{mode}, {entry}: {ips:?}");
            }
            node.del(&configuration, mode, &pod);
            for ip in &wanted {
                // a move removes the netdev's neighbour entries, so this command may fail
                node.host
                    .ip_succeeds(&format!("neighbour del {ip} dev {netdev}"));
            }
        }
    }
}

/// On a netdev without carrier ADD does not probe, and writes a log line.
#[test]
fn without_a_carrier_nobody_is_probed() {
    let node = node();
    let configuration = configuration(&node, &json!({}));
    node.switch.ip("link set dev to-eth1 down");
    let pod = node.pod("a");
    let (_, log) = start(&node, &configuration, "a", &pod);
    let line = "rdma0: its addresses are not probed: it has no carrier";
    assert!(log.contains(line), "{log}");
    node.del(&configuration, "a", &pod);
}

/// An IPAM plugin with only one address. ADD reports that the address is in use, and leaves nothing behind.
#[test]
fn an_address_without_an_alternative_is_refused() {
    let node = node();
    let ips: [IpAddr; 1] = ["10.9.0.77".parse().expect("an address")];
    occupy(&node, &ips);
    let mut configuration = configuration(&node, &json!({"cniVersion": "1.0.0"}));
    configuration["ipam"] = json!({"type": "static", "addresses": [{"address": "10.9.0.77/24"}]});
    let pod = node.pod("a");
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(&configuration).run().error(106);
    for word in [
        "10.9.0.77 is in use",
        "on the network of rdma0",
        "\"probe\"",
    ] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert!(!pod.has_link("rdma0") && node.records().is_empty());
}

/// Two nodes assign sequentially from one range. After a conflict a node continues at a random address.
#[test]
fn nodes_that_count_through_one_range_part() {
    let first = node();
    let second = beside(&first);
    let nodes = [&first, &second];
    let configurations = nodes.map(|node| {
        let mut configuration = configuration(node, &json!({}));
        configuration["ipam"]["strategy"] = "sequential".into();
        configuration
    });
    let pods: Vec<Vec<Netns>> = nodes
        .iter()
        .map(|node| (0..4).map(|_| node.pod("a")).collect())
        .collect();
    let given: Vec<IpAddr> = thread::scope(|scope| {
        let all = nodes.iter().zip(&configurations).zip(&pods);
        let threads: Vec<_> = all
            .map(|((node, configuration), pods)| {
                scope.spawn(move || {
                    let numbered = pods.iter().enumerate();
                    let ips = numbered.flat_map(|(number, pod)| {
                        start(node, configuration, &format!("p{number}"), pod).0
                    });
                    ips.collect::<Vec<IpAddr>>()
                })
            })
            .collect();
        let ips = threads
            .into_iter()
            .flat_map(|it| it.join().expect("no panic"));
        ips.collect()
    });
    let distinct: BTreeSet<&IpAddr> = given.iter().collect();
    assert_eq!(distinct.len(), 16, "{given:?}");
}
