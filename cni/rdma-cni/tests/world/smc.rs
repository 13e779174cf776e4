// SPDX-License-Identifier: Apache-2.0
//! Tests of SMC-R for a pod: its set-up, and pods for which SMC-R is not possible.

use crate::node::{Node, Pod, address, name};
use fake_kernel::{Nic, Smc, Verdict, world::HOST};
use nix::errno::Errno;
use rdma_netns::{
    LinkChange, NetnsSide, Op, RdmaMode,
    smc::{PnetEntry, PnetId, SmcState},
};
use serde_json::{Value, json};
use std::fs;

const ANNOTATION: &str = "network.alibabacloud.com/erdma-smcr";

/// Returns the runtime's configuration for a pod with `value` in the annotation.
pub(crate) fn annotated(value: &str) -> Value {
    json!({ "io.kubernetes.cri.pod-annotations": { ANNOTATION: value, "other": "x" } })
}

/// Adds the annotation that requests SMC-R, and a user EID.
pub(crate) fn ask(config: &mut Value) {
    config["runtimeConfig"] = annotated("true");
    config["smcUeid"] = "RACK-1".into();
}

/// Returns the configuration of one rail that requires SMC-R.
pub(crate) fn one_rail_with_smc(node: &Node) -> Value {
    let mut config = node.one_rail();
    config["smcr"] = "on".into();
    config["smcUeid"] = "RACK-1".into();
    config
}

/// Returns the configuration of one rail with SMC-R if possible.
pub(crate) fn one_rail_that_asks(node: &Node) -> Value {
    let mut config = node.one_rail();
    ask(&mut config);
    config
}

pub(crate) fn id(text: &str) -> PnetId {
    PnetId::try_from(text).unwrap()
}

/// Returns an entry with the id `of` for a netdev or for an RDMA port.
pub(crate) fn entry(of: &str, netdev: Option<&str>, rdma: Option<&str>) -> PnetEntry {
    PnetEntry {
        name: id(of),
        netdev: netdev.map(str::to_owned),
        rdma: rdma.map(|device| (device.to_owned(), 1)),
    }
}

pub(crate) fn seen(node: &Node, pod: Option<&Pod>) -> SmcState {
    let netns = pod.map(|pod| node.netns(pod));
    node.kernel.with(|world| world.smc(netns)).unwrap()
}

pub(crate) fn record(node: &Node, pod: &Pod) -> Value {
    serde_json::from_slice(&fs::read(node.record_of(pod)).unwrap()).unwrap()
}

/// Returns the pnet id that `rdma-cni` derives from the netdev's hardware address.
pub(crate) fn id_of(node: &Node, netdev: &str) -> String {
    let mac = node
        .kernel
        .with(|world| world.link(HOST, netdev).unwrap().mac.clone());
    PnetId::from_mac(&mac).unwrap().to_string()
}

/// Gives the pod an interface `link` with `addresses`, as earlier plugins of the chain do. Returns
/// the result of these plugins.
pub(crate) fn primary(node: &Node, pod: &Pod, link: &str, addresses: &[&str]) -> Value {
    node.kernel
        .with(|world| world.plug(Nic::virtual_link(link, "veth")));
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let link = name(link);
    let moved = Op::MoveLink {
        link: link.clone(),
        from,
        to,
        name: link.clone(),
    };
    node.change(Some(pod), &moved);
    let at = NetnsSide::Pod;
    node.change(
        Some(pod),
        &Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Up(true),
        },
    );
    for text in addresses {
        let address = address(text);
        node.change(
            Some(pod),
            &Op::Link {
                at,
                link: link.clone(),
                change: LinkChange::AddAddress(address),
            },
        );
    }
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "cni0" }, { "name": "veth7", "sandbox": "" },
            { "name": &*link, "sandbox": pod.netns.display().to_string() },
        ],
    })
}

#[test]
fn a_pod_that_requests_smc_gets_ids_for_its_rail_and_its_primary_interface() {
    let node = Node::new(RdmaMode::Exclusive);
    node.kernel.with(|world| {
        world.smc = Some(Smc {
            has_tcp2smc: true,
            ..Smc::default()
        })
    });
    let pod = node.pod("a");
    // the address is in the rail's subnet
    let previous = primary(&node, &pod, "net7", &["10.0.2.77/24"]);
    let before = node.snapshot();
    let mut config = one_rail_that_asks(&node);
    config["prevResult"] = previous;
    let id = id_of(&node, "eth2");
    let result = node.add(&pod, &config).must_succeed();
    let found = seen(&node, Some(&pod));
    assert_eq!(found.host, [entry(&id, None, Some("mlx5_2"))]);
    let both = ["rdma0", "net7"].map(|netdev| entry(&id, Some(netdev), None));
    assert_eq!(found.pod, both);
    assert_eq!(found.ueids, ["RACK-1"]);
    assert_eq!((found.tcp2smc, found.max_links), (Some(true), Some(1)));
    let record = record(&node, &pod);
    assert_eq!(record["smc"]["state"], "active");
    assert!(record["smc"]["reason"].is_null(), "{record}");
    let carried = record["smc"]["interfaces"].as_array().unwrap();
    let names: Vec<&Value> = carried.iter().map(|it| &it["interface"]).collect();
    assert_eq!(names, ["rdma0", "net7"]);
    assert_eq!(carried[1]["rdmaDevice"], "mlx5_2");

    config["prevResult"] = result;
    node.run("CHECK", Some(&pod), &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn smc_is_not_queried_for_a_pod_without_a_request() {
    for annotation in [None, Some("false")] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let mut config = node.one_rail();
        if let Some(value) = annotation {
            config["runtimeConfig"] = annotated(value);
            config["smcr"] = "on".into();
        }
        node.add(&pod, &config).must_succeed();
        assert!(record(&node, &pod)["smc"].is_null());
        let found = seen(&node, Some(&pod));
        assert!(found.host.is_empty() && found.pod.is_empty() && found.ueids.is_empty());
        assert_eq!(found.max_links, Some(2));
    }
}

#[test]
fn an_annotation_that_is_neither_yes_nor_no_is_refused_by_name() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let mut config = node.one_rail();
    config["runtimeConfig"] = annotated("yes");
    let message = node.add(&pod, &config).must_fail(7);
    assert!(
        message.contains(ANNOTATION) && message.contains("\"yes\""),
        "{message}"
    );
    node.must_be(&before, "refused");
    node.del(&pod, &config).must_succeed();
    config["smcr"] = "off".into();
    node.add(&pod, &config).must_succeed();
}

/// A change of the node and a change of the configuration that prevent SMC-R, and the message's text about this.
type Hindered = (fn(&Node), fn(&mut Value), &'static str);

const HINDERED: [Hindered; 4] = [
    (
        |node| {
            let smc = Smc {
                ignores: vec!["mlx5_2".to_owned()],
                ..Smc::default()
            };
            node.kernel.with(|world| world.smc = Some(smc));
        },
        |_| {},
        "this kernel's SMC does not use mlx5_2",
    ),
    (
        |node| node.kernel.with(|world| world.smc = None),
        |_| {},
        "this kernel has no SMC",
    ),
    (
        |_| {},
        |config| {
            config["deviceID"] = Value::Null;
            config["devices"] = json!([{ "netdev": "plain0" }]);
            config["requireRdma"] = false.into();
        },
        "the pod has no RDMA device",
    ),
    (
        |node| {
            let taken = entry(&id_of(node, "eth2"), None, Some("mlx5_9"));
            node.change(
                None,
                &Op::AddPnet {
                    at: NetnsSide::Host,
                    entry: taken,
                },
            );
        },
        |_| {},
        "which mlx5_9 has already",
    ),
];

#[test]
fn known_obstacles_are_refused_or_reported_and_change_nothing() {
    for (furnish, configure, words) in HINDERED {
        for required in [true, false] {
            let node = Node::new(RdmaMode::Exclusive);
            node.kernel.with(|world| {
                world.plug(Nic::physical("0000:99:00.0", "plain0", "").without_rdma());
            });
            furnish(&node);
            let pod = node.pod("a");
            let before = node.snapshot();
            let mut config = match required {
                true => one_rail_with_smc(&node),
                false => one_rail_that_asks(&node),
            };
            configure(&mut config);
            let answer = node.add(&pod, &config);
            if required {
                let message = answer.must_fail(102);
                assert!(message.contains(words), "{message}");
                assert!(message.contains("nothing was changed"), "{message}");
                assert_eq!(node.changes(), 0);
                node.must_be(&before, words);
                continue;
            }
            answer.must_succeed();
            let record = record(&node, &pod);
            assert_eq!(record["smc"]["state"], "off", "{record}");
            let reason = record["smc"]["reason"].as_str().unwrap();
            assert!(reason.contains(words), "{reason}");
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, words);
        }
    }
}

#[test]
fn an_interface_that_would_not_be_carried_is_refused_or_left_out() {
    for (ueid, previous, words) in [
        (None, false, "set smcUeid"),
        (Some("RACK-1"), true, "pnet id is already THEIRS"),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let mut config = one_rail_with_smc(&node);
        config["smcUeid"] = ueid.into();
        if previous {
            config["prevResult"] = primary(&node, &pod, "eth0", &["10.0.2.77/24"]);
            let (at, entry) = (NetnsSide::Pod, entry("THEIRS", Some("eth0"), None));
            node.change(Some(&pod), &Op::AddPnet { at, entry });
        }
        let before = node.snapshot();
        let message = node.add(&pod, &config).must_fail(106);
        assert!(message.contains(words), "{message}");
        node.must_be(&before, words);

        ask(&mut config);
        config["smcr"] = "annotation".into();
        config["smcUeid"] = ueid.into();
        node.add(&pod, &config).must_succeed();
        let record = record(&node, &pod);
        let state = if previous { "active" } else { "off" };
        assert_eq!(record["smc"]["state"], state);
        let reason = record["smc"]["reason"].as_str().unwrap();
        assert!(reason.contains(words), "{reason}");
        assert!(
            seen(&node, Some(&pod))
                .pod
                .iter()
                .all(|it| it.netdev.as_deref() != Some("eth0") || *it.name == *"THEIRS")
        );
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, words);
    }
}

/// Whichever change for SMC-R the kernel refuses, a pod that only requests SMC-R starts, and no
/// part of the set-up remains.
#[test]
fn a_refused_change_leaves_a_requesting_pod_without_smc() {
    for at in 1.. {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let before = node.snapshot();
        let config = one_rail_that_asks(&node);
        node.kernel.begin();
        let mut met = 0;
        node.kernel.intercept(move |_, step| {
            let is_smcs = matches!(
                step.op,
                Op::AddPnet { .. } | Op::AddUeid { .. } | Op::SetMaxLinks { .. }
            );
            met += usize::from(is_smcs);
            match is_smcs && met == at {
                true => Verdict::Deceive(Errno::EPERM),
                false => Verdict::Proceed,
            }
        });
        node.add(&pod, &config).must_succeed();
        let record = record(&node, &pod);
        if at > 4 {
            assert_eq!(record["smc"]["state"], "active");
            break;
        }
        assert_eq!(record["smc"]["state"], "off", "{at}: {record}");
        assert!(record["smc"]["entries"].is_null(), "{at}: {record}");
        let found = seen(&node, Some(&pod));
        assert!(
            found.host.is_empty() && found.pod.is_empty() && found.ueids.is_empty(),
            "{at}"
        );
        assert_eq!(found.max_links, Some(2), "{at}");
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

#[test]
fn check_reports_what_was_taken_from_a_pod() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let mut config = one_rail_with_smc(&node);
    config["prevResult"] = node.add(&pod, &config).must_succeed();
    let check = || node.run("CHECK", Some(&pod), &config);
    check().must_succeed();
    let id = id_of_record(&node, &pod);
    for (of, op, words) in [
        (
            None,
            Op::RemovePnet {
                at: NetnsSide::Host,
                id: id.clone(),
            },
            "port 1 of mlx5_2 has lost",
        ),
        (
            Some(&pod),
            Op::RemovePnet {
                at: NetnsSide::Pod,
                id,
            },
            "rdma0 has lost its pnet id",
        ),
        (
            None,
            Op::RemoveUeid {
                ueid: "RACK-1".into(),
            },
            "user EID RACK-1",
        ),
        (
            Some(&pod),
            Op::SetMaxLinks { links: 2 },
            "smcr_max_links_per_lgr",
        ),
    ] {
        node.change(of, &op);
        let message = check().must_fail(999);
        assert!(message.contains(words), "{message}");
    }
    // an entry of another program counts too: the pod uses an operator's id
    let id = id_of_record(&node, &pod);
    let mut text = record(&node, &pod);
    text["smc"]["entries"] = json!([]);
    fs::write(node.record_of(&pod), text.to_string()).unwrap();
    let message = check().must_fail(999);
    assert!(
        message.contains(&format!("port 1 of mlx5_2 has lost its pnet id {id}")),
        "{message}"
    );
    // without a user EID, SMC-Rv2 carries no connection
    let message = check().must_fail(999);
    assert!(
        message.contains("SMC-R of rdma0: the kernel has no user EID"),
        "{message}"
    );
}

fn id_of_record(node: &Node, pod: &Pod) -> PnetId {
    let record = record(node, pod);
    id(record["smc"]["interfaces"][0]["pnetId"].as_str().unwrap())
}

#[test]
fn a_plan_shows_it() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let id = id_of(&node, "eth2");
    let text = |config: &Value| {
        let mut output = vec![];
        node.run_into("plan", Some(&pod), config, &mut output);
        String::from_utf8(output).unwrap()
    };
    let before = node.snapshot();
    let plan = text(&one_rail_with_smc(&node));
    for line in [
        "smcr ueid add RACK-1".to_owned(),
        format!("smc_pnet -a {id} -D mlx5_2 -P 1"),
        format!("ip netns exec a smc_pnet -a {id} -I rdma0"),
    ] {
        assert!(plan.lines().any(|it| it == line), "{line}:\n{plan}");
    }
    assert!(!text(&node.one_rail()).contains("smc"));
    node.kernel.with(|world| world.smc = None);
    let plan = text(&one_rail_that_asks(&node));
    assert!(
        plan.contains("# SMC is not loaded: ADD loads it if this kernel has it\n# then SMC-R"),
        "{plan}"
    );
    assert_eq!(node.snapshot(), before);
}

#[test]
fn status_reports_that_required_smc_is_not_there() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = one_rail_with_smc(&node);
    node.run("STATUS", None, &config).must_succeed();
    node.kernel.with(|world| world.smc = None);
    let message = node.run("STATUS", None, &config).must_fail(50);
    assert!(message.contains("this kernel has no SMC"), "{message}");
    node.run("STATUS", None, &one_rail_that_asks(&node))
        .must_succeed();
}
