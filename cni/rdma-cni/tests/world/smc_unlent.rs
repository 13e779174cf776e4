//! Primary interfaces whose address is not lent to a rail, and why.

use crate::{
    leases::Leases,
    node::{Node, Pod, name, route},
    smc::{ask, one_rail_that_asks, one_rail_with_smc, primary, record},
    smc_lent::{PRIMARY, carried, lent, pod},
};
use fake_kernel::{Verdict, World};
use rdma_netns::{NetnsId, Op, Place, RdmaMode, Rule};
use serde_json::json;

/// Why a rail is not lent an address: what the pod has, and words of the reason.
type Unlendable = (fn(&Node, &Pod), &'static [&'static str], &'static str);

const UNLENDABLE: [Unlendable; 4] = [
    (
        |node, pod| {
            let rule = Rule {
                from: [10, 244, 1, 5].into(),
                prefix: 32,
                table: 100,
                priority: 512,
            };
            node.change(
                Some(pod),
                &Op::AddRule {
                    at: Place::Pod,
                    rule,
                },
            );
        },
        &["10.244.1.5/24"],
        "leads elsewhere than the main table",
    ),
    (
        // all that leads by the rail leads by eth0 first
        |node, pod| {
            for destination in ["10.0.2.0/24", "10.2.0.0/16"] {
                let (at, link) = (Place::Pod, name(PRIMARY));
                let route = route(destination, "10.244.1.1");
                node.change(Some(pod), &Op::AddRoute { at, link, route });
            }
        },
        &["10.244.1.5/24"],
        "no route of the pod's main table leads by rdma0",
    ),
    (
        |node, _| {
            node.kernel.with(|world| world.gid_table_size = 3);
        },
        &["10.244.1.5/24"],
        "the table is full",
    ),
    (
        // a place before the rail's own becomes free
        |node, pod| {
            let netns = node.netns(pod);
            node.kernel.begin();
            node.kernel.intercept(move |world, step| {
                if let Op::AddAddress { address, .. } = step.op
                    && address.peer.is_some()
                {
                    drop_link_local(world, netns);
                }
                Verdict::Proceed
            });
        },
        &["10.244.1.5/24"],
        "only as the other end of an address",
    ),
];

fn drop_link_local(world: &mut World, netns: NetnsId) {
    let rail = world.link(netns, "rdma0").unwrap();
    let address = rail
        .addresses
        .iter()
        .find(|it| it.is_link_local())
        .unwrap()
        .clone();
    let (at, link) = (Place::Pod, name("rdma0"));
    world
        .execute(&Op::RemoveAddress { at, link, address }, Some(netns))
        .unwrap();
}

#[test]
fn a_primary_whose_address_is_of_no_use_on_the_rail_goes_without() {
    for (furnish, addresses, words) in UNLENDABLE {
        for required in [false, true] {
            let node = Node::new(RdmaMode::Exclusive);
            let pod = node.pod("a");
            let previous = primary(&node, &pod, PRIMARY, addresses);
            furnish(&node, &pod);
            let mut config = match required {
                true => one_rail_with_smc(&node),
                false => one_rail_that_asks(&node),
            };
            config["prevResult"] = previous;
            let before = node.snapshot();
            let answer = node.add(&pod, &config);
            if required {
                let message = answer.must_fail(106);
                assert!(message.contains(words), "{message}");
                node.must_be(&before, words);
                continue;
            }
            answer.must_succeed();
            let record = record(&node, &pod);
            assert_eq!(carried(&record), ["rdma0"], "{record}");
            let reason = record["smc"]["reason"].as_str().unwrap();
            assert!(reason.contains(words), "{reason}");
            assert_eq!(lent(&node, &pod), [""; 0], "{words}");
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, words);
        }
    }
}

#[test]
fn a_primary_without_ipv4_is_lent_nothing() {
    for addresses in [&[][..], &["fd00:244::5/64"]] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let mut config = one_rail_with_smc(&node);
        config["prevResult"] = primary(&node, &pod, PRIMARY, addresses);
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        assert_eq!(lent(&node, &pod), [""; 0]);
        assert_eq!(carried(&record(&node, &pod)), ["rdma0"]);
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

/// Connections between the two would be addressed to the router of their primary interfaces.
#[test]
fn a_pod_that_has_no_way_to_the_rail_of_another_one_goes_without() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = pod(&node, one_rail_with_smc(&node));
    node.add(&pod, &config).must_succeed();
    for (has_way, words) in [(false, "rail address 10.0.2.5, to which"), (true, "")] {
        let other = node.pod(if has_way { "c" } else { "b" });
        if has_way {
            let (at, link) = (Place::Host, name("eth3"));
            let route = route("10.0.0.0/8", "10.0.3.1");
            node.change(None, &Op::AddRoute { at, link, route });
        }
        let mut config = one_rail_that_asks(&node);
        config["deviceID"] = "0000:d8:00.2".into();
        config["prevResult"] = primary(&node, &other, PRIMARY, &["10.244.1.6/24"]);
        node.add(&other, &config).must_succeed();
        let record = record(&node, &other);
        let reason = record["smc"]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(words), "{reason}");
        assert_eq!(reason.is_empty(), has_way, "{reason}");
        assert_eq!(lent(&node, &other).len(), usize::from(has_way), "{record}");
        node.del(&other, &config).must_succeed();
    }
}

#[test]
fn an_ipvlan_child_is_lent_nothing() {
    let leases = Leases::new(1);
    let node = &leases.node;
    leases.gives(
        "a.rdma0",
        &json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] }),
    );
    let mut config = leases.config(json!({
        "devices": [{ "netdev": "bond0" }], "child": { "type": "ipvlan" },
    }));
    ask(&mut config);
    let (pod, config) = pod(node, config);
    node.add(&pod, &config).must_succeed();
    assert_eq!(lent(node, &pod), [""; 0]);
    let record = record(node, &pod);
    let reason = record["smc"]["reason"].as_str().unwrap();
    assert!(reason.contains("ipvlan"), "{reason}");
}
