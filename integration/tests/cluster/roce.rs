// SPDX-License-Identifier: Apache-2.0
//! The page for RoCE with IPv4, from Helm's command to the addresses of pods on two nodes with eight rails. The rails
//! are veths. The test names them itself, because no kubelet allocates them.

use integration::{ControlPlane, Node, Snapshot, control_plane::HELM, pages};
use serde_json::Value;
use std::{collections::BTreeSet, env};

const PAGE: &str = "docs/get-started/roce-ipv4.md";

const RAILS: u32 = 8;

/// Returns the fields of the entry of `rdma-cni`, as the page's command passes them to the daemon.
#[track_caller]
fn entry(cluster: &ControlPlane) -> Value {
    let commands = pages::blocks(PAGE).into_iter().flat_map(|it| it.lines);
    let mut installs = commands.filter(|it| it.starts_with("helm install "));
    let install = installs.next().expect("a command on the page");
    let rendered = cluster.shell(&install.replace("helm install ", "helm template "));
    let objects = cluster.apply("apply --dry-run=client -o json -f -", &rendered);
    let objects: Value = serde_json::from_str(&objects).expect("JSON");
    let mut objects = objects["items"].as_array().expect("a list").iter();
    let map = objects.find(|it| it["kind"] == "ConfigMap");
    let config = map.expect("a ConfigMap")["data"]["config.json"].as_str();
    let config: Value = serde_json::from_str(config.expect("text")).expect("JSON");
    config["chain"]["plugin"].clone()
}

/// A node with the page's network configuration.
struct Rails {
    node: Node,
    configuration: Value,
}

impl Rails {
    #[track_caller]
    fn of(node: Node, host: u8, entry: &Value) -> Self {
        let names: Vec<String> = (1..=RAILS).map(|it| format!("eth{it}")).collect();
        for (rail, name) in (1..).zip(&names) {
            let address = format!("10.0.{rail}.{host}/24");
            node.add_rail(name);
            node.host.ip(&format!("address add {address} dev {name}"));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut configuration = node.configuration(&names);
        // the mode of a resource that pods share
        configuration["mode"] = "share".into();
        for (field, value) in entry.as_object().expect("fields") {
            configuration[field] = value.clone();
        }
        let leases = node.directory().join("leases");
        configuration["ipam"]["dataDir"] = leases.to_str().expect("UTF-8").into();
        Self {
            node,
            configuration,
        }
    }
}

/// Pods of two nodes get an address of each rail's prefix, from the page's `rangeStart` on, and reach each other by
/// these addresses. If the pods' range contains the node's own address, ADD fails (104) and names this address.
pub(super) fn pods_get_an_address_of_each_rail(cluster: &ControlPlane) {
    if env::var_os(HELM).is_none() {
        return; // scripts/test counts it as skipped
    }
    let entry = entry(cluster);
    let first = Rails::of(Node::new(), 7, &entry);
    let second = Rails::of(first.node.beside(2), 8, &entry);
    let before = [&first, &second].map(|it| Snapshot::of(&it.node.host));
    let pods = [(&first, "a"), (&first, "b"), (&second, "c")]
        .map(|(rails, label)| (rails, label, rails.node.pod(label)));
    let mut taken = BTreeSet::new();
    for (rails, label, pod) in &pods {
        let result = rails.node.add(&rails.configuration, label, pod);
        for rail in 1..=RAILS {
            let addresses = pod.addresses(&format!("rdma{}", rail - 1));
            let [address] = &addresses[..] else {
                panic!("one address: {result}");
            };
            let of_rail = address.strip_prefix(&format!("10.0.{rail}."));
            let host = of_rail.and_then(|it| it.strip_suffix("/24"));
            let host: u8 = host.expect(address).parse().expect("a number");
            assert!(host >= 50, "{address}");
            assert!(taken.insert((rail, host)), "{address} is there twice");
        }
    }
    let [(_, _, a), others @ ..] = &pods;
    for (_, _, other) in others {
        for rail in 0..RAILS {
            let peer = &other.addresses(&format!("rdma{rail}"))[0];
            let peer = peer.split('/').next().expect("an address");
            a.run(&format!("ping -n -c 1 -W 5 -I rdma{rail} {peer}"));
        }
    }
    for (rails, label, pod) in &pods {
        rails.node.del(&rails.configuration, label, pod);
    }
    for (rails, before) in [&first, &second].iter().zip(&before) {
        rails.node.assert_restored(before);
    }

    let Rails {
        node,
        configuration,
    } = &first;
    node.host.ip("address add 10.0.3.77/24 dev eth3");
    let late = node.pod("late");
    let call = node.invoke("ADD", "late", late.path());
    let why = call.input(configuration).run().error(104);
    assert!(why.contains("10.0.3.77"), "{why}");
}
