// SPDX-License-Identifier: Apache-2.0
//! Tests of a pod with several attachments. Each attachment has its own list, as Multus makes them for
//! `networks: vf,vf`.

use crate::{
    leases::{Leases, answer, has_link},
    node::{Node, Pod},
};
use rdma_netns::RdmaMode;
use serde_json::{Value, json};

/// Returns the configuration for the VF at `address`. It does not set the rail's name in the pod.
fn vf(node: &Node, address: &str) -> Value {
    let mut config = node.config(json!({
        "capabilities": { "deviceID": true },
        "runtimeConfig": { "deviceID": address },
    }));
    config.as_object_mut().unwrap().remove("interfaceName");
    config
}

#[test]
fn each_attachment_has_the_name_that_multus_gives_it() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let pod = node.pod("a");
        let before = node.snapshot();
        let attachments = [("net1", "0000:3b:00.2"), ("net2", "0000:d8:00.2")];
        let mut results = vec![];
        for (ifname, address) in attachments {
            let (pod, config) = (pod.attachment(ifname), vf(&node, address));
            let plan = node.run("plan", Some(&pod), &config);
            assert_eq!(plan.code(), 0);
            let result = node.add(&pod, &config).must_succeed();
            assert_eq!(result["interfaces"][0]["name"], ifname);
            assert_eq!(result["rails"][0]["interface"], ifname);
            assert!(has_link(&node, &pod, ifname));
            results.push(result);
        }
        for ((ifname, address), result) in attachments.into_iter().zip(results) {
            let mut config = vf(&node, address);
            config["prevResult"] = result;
            node.run("CHECK", Some(&pod.attachment(ifname)), &config)
                .must_succeed();
        }
        for (ifname, address) in attachments {
            node.del(&pod.attachment(ifname), &vf(&node, address))
                .must_succeed();
        }
        node.must_be(&before, "after both");
    }
}

#[test]
fn the_name_is_the_runtimes_only_for_one_device_of_the_first_plugin() {
    let node = Node::new(RdmaMode::Shared);
    let pod = node.pod("a").attachment("net1");
    let names = |config: &Value| -> Vec<String> {
        let result = node.add(&pod, config).must_succeed();
        node.del(&pod, config).must_succeed();
        let interfaces = result["interfaces"].as_array().unwrap().iter();
        interfaces
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let one = vf(&node, "0000:3b:00.2");
    assert_eq!(names(&one), ["net1"]);
    let mut named = one.clone();
    named["interfaceName"] = "roce%d".into();
    assert_eq!(names(&named), ["roce0"]);
    named["interfaceName"] = Value::Null;
    assert_eq!(names(&named), ["net1"]);
    let mut behind = one.clone();
    behind["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "sandbox": pod.netns }],
    });
    assert_eq!(names(&behind), ["eth0", "rdma0"]);
    let mut two = node.two_rails();
    two.as_object_mut().unwrap().remove("interfaceName");
    assert_eq!(names(&two), ["rdma0", "rdma1"]);
}

/// The record is unreadable or missing. DEL finds the lease by the runtime's name, and with an unreadable record also
/// the netdev.
#[test]
fn the_runtimes_name_counts_without_a_record() {
    for lost in ["spoilt", "gone"] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pod = node.pod("a").attachment("net1");
        let mut config = leases.config(json!({ "devices": [{ "netdev": "eth8" }] }));
        config.as_object_mut().unwrap().remove("interfaceName");
        leases.gives("net1", &answer(0, 7));
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(leases.held(), ["a@net1"]);
        let record = node.record_of(&pod);
        match lost {
            "spoilt" => std::fs::write(record, "{").unwrap(),
            _ => std::fs::remove_file(record).unwrap(),
        }
        config["prevResult"] = result;
        node.del(&pod, &config).must_succeed();
        assert_eq!(leases.held(), [] as [&str; 0], "{lost}");
        assert_eq!(has_link(node, &pod, "net1"), lost == "gone");
    }
}

/// Returns the configuration of `network` for two `bonds`. `names` is the pattern of the rails' names in the pod.
fn two_bonds(leases: &Leases, bonds: [&str; 2], network: &str, names: &str) -> Value {
    leases.config(json!({
        "name": network, "interfaceName": names,
        "devices": [{ "netdev": bonds[0] }, { "netdev": bonds[1] }],
    }))
}

fn tables(leases: &Leases, pod: &Pod) -> Vec<u32> {
    let node = &leases.node;
    let netns = node.netns(pod);
    let rules = node.kernel.with(|world| world.rules(netns).to_vec());
    let mut tables: Vec<u32> = rules.iter().map(|rule| rule.table).collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}

#[test]
fn attachments_of_one_pod_share_the_allotment_of_tables() {
    let leases = Leases::new(4);
    let node = &leases.node;
    let pod = node.pod("a");
    let first = two_bonds(&leases, ["bond0", "bond1"], "rails", "rdma%d");
    let second = two_bonds(&leases, ["bond2", "bond3"], "more", "more%d");
    for rail in [0, 1] {
        leases.gives(&format!("more{rail}"), &answer(rail + 2, 7));
    }
    let bare = node.snapshot();
    let result = node.add(&pod, &first).must_succeed();
    assert_eq!(tables(&leases, &pod), [1000, 1001]);
    let other = pod.attachment("net1");
    let more = node.add(&other, &second).must_succeed();
    assert_eq!(tables(&leases, &pod), [1000, 1001, 1002, 1003]);
    leases.check(&pod, &first, &result).must_succeed();
    leases.check(&other, &second, &more).must_succeed();
    // a later attachment gets the tables of the ended attachment
    node.del(&pod, &first).must_succeed();
    assert_eq!(tables(&leases, &pod), [1002, 1003]);
    node.add(&pod, &first).must_succeed();
    assert_eq!(tables(&leases, &pod), [1000, 1001, 1002, 1003]);
    node.del(&other, &second).must_succeed();
    node.del(&pod, &first).must_succeed();
    assert_eq!(tables(&leases, &pod), [] as [u32; 0]);
    leases.must_be(&bare, "after both");
}
