//! SMC-R of a primary interface in another network than the rails: its address is lent to one.

use crate::{
    leases::{Leases, bonds},
    node::{Node, Pod, address, name, route},
    smc::{ask, entry, id_of, one_rail_that_asks, one_rail_with_smc, primary, record, seen},
};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{Address, Op, Place, RdmaMode, Rule};
use serde_json::{Value, json};

/// The name of the pods' primary interface.
pub(crate) const PRIMARY: &str = "net7";

/// What the rail has besides its own: addresses with another end.
pub(crate) fn lent(node: &Node, pod: &Pod) -> Vec<String> {
    let netns = node.netns(pod);
    let words = |it: &Address| Some(format!("{} peer {}/{}", it.ip, it.peer?, it.prefix));
    node.kernel.with(|world| {
        let links = world.links(netns);
        let addresses = links.iter().flat_map(|link| &link.addresses);
        addresses.filter_map(words).collect()
    })
}

/// A pod with a primary interface in a network of its own.
pub(crate) fn pod(node: &Node, mut config: Value) -> (Pod, Value) {
    let pod = node.pod("a");
    config["prevResult"] = primary(node, &pod, PRIMARY, &["10.244.1.5/24"]);
    (pod, config)
}

/// Routes and rules of the pod, but for those of the rail.
fn routing(node: &Node, pod: &Pod) -> String {
    let netns = node.netns(pod);
    node.kernel.with(|world| {
        let eth0 = world.link(netns, PRIMARY).unwrap().routes.clone();
        format!("{eth0:?} {:?}", world.rules(netns))
    })
}

pub(crate) fn carried(record: &Value) -> Vec<&str> {
    let interfaces = record["smc"]["interfaces"].as_array().into_iter().flatten();
    interfaces
        .filter_map(|it| it["interface"].as_str())
        .collect()
}

#[test]
fn the_rail_gets_the_primarys_address_as_the_other_end_of_its_own() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, mut config) = pod(&node, one_rail_with_smc(&node));
    let (before, routing_before) = (node.snapshot(), routing(&node, &pod));
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(lent(&node, &pod), ["10.0.2.5 peer 10.244.1.5/32"]);
    assert_eq!(routing(&node, &pod), routing_before);
    let netns = node.netns(&pod);
    let routes = node.kernel.with(|world| {
        let rail = world.link(netns, "rdma0").unwrap();
        format!("{:?}", rail.routes)
    });
    assert!(!routes.contains("10.244"), "{routes}");
    // a runtime could take it for the pod's
    assert!(!result["ips"].to_string().contains("10.244"), "{result}");
    assert!(!result["rails"].to_string().contains("10.244"), "{result}");
    let record = record(&node, &pod);
    assert_eq!(carried(&record), ["rdma0", PRIMARY], "{record}");
    assert_eq!(record["smc"]["lent"]["rail"], "rdma0");
    assert!(record["smc"]["reason"].is_null(), "{record}");
    let id = id_of_port(&node);
    assert!(
        seen(&node, Some(&pod))
            .pod
            .contains(&entry(&id, Some(PRIMARY), None))
    );

    config["prevResult"] = result;
    node.run("CHECK", Some(&pod), &config).must_succeed();
    node.add(&pod, &config).must_fail(101);
    assert_eq!(lent(&node, &pod).len(), 1);
    node.del(&pod, &config).must_succeed();
    assert_eq!(lent(&node, &pod), [""; 0]);
    node.must_be(&before, "after DEL");
}

fn id_of_port(node: &Node) -> String {
    seen(node, None).host[0].name.to_string()
}

#[test]
fn any_change_of_a_required_add_is_refused() {
    for at in 1.. {
        for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
            let node = Node::new(RdmaMode::Exclusive);
            let (pod, config) = pod(&node, one_rail_with_smc(&node));
            let before = node.snapshot();
            node.script(move |number| match number == at {
                true => verdict,
                false => Verdict::Proceed,
            });
            let answer = node.add(&pod, &config);
            if answer.code() == 0 {
                assert!(node.changes() < at && at > 15, "{at}");
                return;
            }
            answer.must_fail(106);
            node.must_be(&before, &format!("change {at} {verdict:?}"));
        }
    }
}

/// Whatever of SMC-R is refused, a pod that only asked goes on without what depends on it, and has
/// no address that is of no use.
#[test]
fn any_change_of_a_pods_that_only_asked_is_refused() {
    for at in 1.. {
        for verdict in [
            Verdict::Refuse(Errno::EPERM),
            Verdict::Deceive(Errno::EPERM),
        ] {
            let node = Node::new(RdmaMode::Exclusive);
            let (pod, config) = pod(&node, one_rail_that_asks(&node));
            let before = node.snapshot();
            node.kernel.begin();
            let mut met = 0;
            node.kernel.intercept(move |_, step| {
                let is_smcs = match step.op {
                    Op::AddPnet { .. } | Op::AddUeid { .. } | Op::SetMaxLinks { .. } => true,
                    Op::AddAddress { address, .. } => address.peer.is_some(),
                    _ => false,
                };
                met += usize::from(is_smcs);
                match is_smcs && met == at {
                    true => verdict,
                    false => Verdict::Proceed,
                }
            });
            node.add(&pod, &config).must_succeed();
            let record = record(&node, &pod);
            if at > 6 {
                assert_eq!(carried(&record), ["rdma0", PRIMARY]);
                return;
            }
            assert_eq!(lent(&node, &pod), [""; 0], "{at}: {record}");
            assert!(record["smc"]["lent"].is_null(), "{at}: {record}");
            // the first is the address's: the rail is carried without
            let left: &[&str] = if at == 1 { &["rdma0"] } else { &[] };
            assert_eq!(carried(&record), left, "{at}: {record}");
            let reason = record["smc"]["reason"].as_str().unwrap();
            assert_eq!(
                at == 1,
                reason.contains("is not lent to a rail"),
                "{reason}"
            );
            node.kernel.begin();
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, "after DEL");
        }
    }
}

#[test]
fn an_address_that_could_not_be_taken_back_goes_with_the_rail() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = pod(&node, one_rail_that_asks(&node));
    let before = node.snapshot();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::AddPnet { .. } | Op::RemoveAddress { .. } => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    node.add(&pod, &config).must_succeed();
    let record = record(&node, &pod);
    assert_eq!(record["smc"]["state"], "off", "{record}");
    assert_eq!(record["smc"]["lent"]["rail"], "rdma0", "{record}");
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn nothing_is_left_of_an_add_or_del_that_was_killed() {
    for verb in ["ADD", "DEL"] {
        for at in 0.. {
            let node = Node::new(RdmaMode::Exclusive);
            let (pod, config) = pod(&node, one_rail_with_smc(&node));
            let before = node.snapshot();
            if verb == "DEL" {
                node.add(&pod, &config).must_succeed();
            }
            let verdict = match at % 2 {
                0 => Verdict::DieBefore,
                _ => Verdict::DieAfter,
            };
            node.script(move |number| match number == 1 + at / 2 {
                true => verdict,
                false => Verdict::Proceed,
            });
            drop(node.run(verb, Some(&pod), &config));
            let ended = node.kernel.journal().len() < 1 + at / 2;
            node.kernel.begin();
            match at % 3 {
                0 => drop(node.gc(&[], &config).must_succeed()),
                _ => drop(node.del(&pod, &config).must_succeed()),
            }
            node.must_be(&before, &format!("{verb} was killed at {at}"));
            if ended {
                assert!(at > 20, "{verb} has {at}");
                break;
            }
        }
    }
}

#[test]
fn a_namespace_that_dies_takes_it_along() {
    let node = Node::new(RdmaMode::Exclusive);
    let before = node.snapshot();
    let (pod, config) = pod(&node, one_rail_with_smc(&node));
    node.add(&pod, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn check_tells_what_became_of_it() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, mut config) = pod(&node, one_rail_with_smc(&node));
    config["prevResult"] = node.add(&pod, &config).must_succeed();
    let drift = || node.run("CHECK", Some(&pod), &config).must_fail(999);
    let at = Place::Pod;
    let rule = Rule {
        from: [10, 244, 1, 0].into(),
        prefix: 24,
        table: 100,
        priority: 512,
    };
    node.change(
        Some(&pod),
        &Op::AddRule {
            at,
            rule: rule.clone(),
        },
    );
    assert!(
        drift().contains("\"from 10.244.1.0/24 lookup 100"),
        "{}",
        drift()
    );
    node.change(Some(&pod), &Op::RemoveRule { at, rule });
    node.run("CHECK", Some(&pod), &config).must_succeed();
    let link = name("rdma0");
    let netns = node.netns(&pod);
    let address = node.kernel.with(|world| {
        let rail = world.link(netns, "rdma0").unwrap();
        rail.addresses
            .iter()
            .find(|it| it.peer.is_some())
            .unwrap()
            .clone()
    });
    node.change(Some(&pod), &Op::RemoveAddress { at, link, address });
    let told = drift();
    assert!(
        told.contains("rdma0 has lost its address 10.0.2.5 peer 10.244.1.5/32"),
        "{told}"
    );
    assert!(told.contains("SMC-R of net7: no GID fits"), "{told}");
}

#[test]
fn of_two_rails_the_first_that_can_have_it_gets_it() {
    for has_first in [true, false] {
        let node = Node::new(RdmaMode::Exclusive);
        if !has_first {
            let (at, link) = (Place::Host, name("eth2"));
            let (address, to) = (address("10.0.2.5/24"), route("10.2.0.0/16", "10.0.2.1"));
            let route = Op::RemoveRoute {
                at,
                link: link.clone(),
                route: to,
            };
            node.change(None, &route);
            node.change(None, &Op::RemoveAddress { at, link, address });
        }
        let mut config = node.two_rails();
        ask(&mut config);
        let (pod, config) = pod(&node, config);
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        let own = if has_first { "10.0.2.5" } else { "10.0.3.5" };
        assert_eq!(lent(&node, &pod), [format!("{own} peer 10.244.1.5/32")]);
        let record = record(&node, &pod);
        let smc = &record["smc"];
        let rail = if has_first { "rdma0" } else { "rdma1" };
        assert_eq!(smc["lent"]["rail"], rail, "{smc}");
        // its replies leave as before: only the rails' own addresses have rules
        let netns = node.netns(&pod);
        let rules = node.kernel.with(|world| world.rules(netns).to_vec());
        assert!(
            !rules.iter().any(|it| it.from.to_string() == "10.244.1.5"),
            "{rules:?}"
        );
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

#[test]
fn a_child_of_a_shared_netdev_gets_it_too() {
    for has_v1 in [false, true] {
        gets_it_as_a_child(has_v1);
    }
}

/// `has_v1`: SMC-Rv1 would carry it by the parent's GID.
fn gets_it_as_a_child(has_v1: bool) {
    let mut world = bonds(1);
    world.gids_of_roce_v1 = has_v1;
    let leases = Leases::on(Node::with(world));
    let node = &leases.node;
    leases.gives(
        "a.rdma0",
        &json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] }),
    );
    let mut config = leases.config(json!({ "devices": [{ "netdev": "bond0" }] }));
    ask(&mut config);
    let (pod, config) = pod(node, config);
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    assert_eq!(lent(node, &pod), ["10.50.0.7 peer 10.244.1.5/32"]);
    assert_eq!(carried(&record(node, &pod)), ["rdma0", PRIMARY]);

    // a second pod is told apart by neither
    let other = node.pod("b");
    leases.gives(
        "b.rdma0",
        &json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.51.0.7/24" }] }),
    );
    let mut second = config.clone();
    second["prevResult"] = primary(node, &other, PRIMARY, &["10.244.1.6/24"]);
    node.add(&other, &second).must_succeed();
    let record_of_other = record(node, &other);
    let reason = record_of_other["smc"]["reason"].as_str().unwrap();
    assert!(reason.contains("net7: container a"), "{reason}");
    assert_eq!(lent(node, &other), [""; 0]);

    node.del(&other, &second).must_succeed();
    node.kernel.with(|world| world.unmount(&other.netns));
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after both");
}

#[test]
fn a_plan_shows_it() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = pod(&node, one_rail_with_smc(&node));
    let id = id_of(&node, "eth2");
    let mut output = vec![];
    node.run_into("plan", Some(&pod), &config, &mut output);
    let plan = String::from_utf8(output).unwrap();
    for line in [
        "ip -n a address replace 10.0.2.5 peer 10.244.1.5/32 noprefixroute dev rdma0".to_owned(),
        format!("ip netns exec a smc_pnet -a {id} -I {PRIMARY}"),
    ] {
        assert!(plan.lines().any(|it| it == line), "{line}:\n{plan}");
    }
    assert_eq!(lent(&node, &pod), [""; 0]);
}
