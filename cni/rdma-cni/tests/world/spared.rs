// SPDX-License-Identifier: Apache-2.0
//! Tests of the host's other netdevs that the restore of a rail could change. `rdma-cni` sets `accept_ra` of some
//! netdevs to 2 while it sets `forwarding` of a rail, so that the host keeps its default routers. Other netdevs belong
//! to the same ipvlan port as the rail.

use crate::node::{Node, Pod, host_change, name, route};
use attachments::{Attachment, given_up};
use fake_kernel::{Verdict, World, world::HOST};
use nix::errno::Errno;
use rdma_netns::{
    Child, IpvlanMode, Kernel as _, LinkChange, NetnsSide, Op, RdmaMode, Route, link::PROTOCOL_RA,
};
use serde_json::{Value, json};
use std::fs;

const ACCEPT_RA: &str = "ipv6/accept_ra";
const FORWARDING: &str = "ipv6/forwarding";

fn set(link: &str, key: &str, value: i32) -> Op {
    host_change(
        link,
        LinkChange::Sysctl {
            key: key.to_owned(),
            value,
        },
    )
}

/// Returns a node on which `eth2` has a `forwarding` that is not the default, and `eth3` has a default router. Pod `a`
/// gets `eth2`.
fn node() -> (Node, Pod) {
    let node = Node::new(RdmaMode::Shared);
    node.change(None, &set("eth2", FORWARDING, 2));
    node.change(None, &set("eth3", ACCEPT_RA, 1));
    let default = Route {
        protocol: PROTOCOL_RA,
        ..route("::/0", "fe80::1")
    };
    let route = default;
    node.change(None, &host_change("eth3", LinkChange::AddRoute(route)));
    let pod = node.pod("a");
    node.add(&pod, &rail(&node, "eth2")).must_succeed();
    (node, pod)
}

fn rail(node: &Node, link: &str) -> Value {
    node.config(json!({ "devices": [{ "netdev": link }] }))
}

fn setting(node: &Node, link: &str, key: &str) -> Option<i32> {
    let observed = node.kernel.observe(None).expect("observed");
    observed.host.link(link)?.sysctls.get(key).copied()
}

/// If the kernel refuses to revert the temporary `accept_ra` of a host netdev, DEL fails, and the next DEL tries again.
/// If another pod gets this netdev meanwhile, that pod's record has the earlier value, and not the temporary one.
#[test]
fn an_unreverted_value_is_an_error_and_not_a_host_value() {
    let (node, pod) = node();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::Link {
            change: LinkChange::Sysctl { key, value: 1 },
            ..
        } if key == ACCEPT_RA => Verdict::Refuse(Errno::EIO),
        _ => Verdict::Proceed,
    });
    let message = node.del(&pod, &rail(&node, "eth2")).must_fail(107);
    assert!(
        message.contains("eth3") && message.contains("accept_ra"),
        "{message}"
    );
    assert_eq!(setting(&node, "eth2", FORWARDING), Some(2));
    assert_eq!(setting(&node, "eth3", ACCEPT_RA), Some(2));
    let other = node.pod("b");
    let mut config = rail(&node, "eth3");
    config["mode"] = json!("move");
    node.add(&other, &config).must_succeed();
    let record = fs::read(node.record_of(&other)).expect("its record");
    let record: Attachment = serde_json::from_slice(&record).expect("a record");
    let host_link = record.rails[0].host_link.as_ref().expect("it was moved");
    assert_eq!(host_link.sysctls.get(ACCEPT_RA), Some(&1));
    node.kernel.begin();
    node.del(&other, &config).must_succeed();
    node.del(&pod, &rail(&node, "eth2")).must_succeed();
    assert_eq!(setting(&node, "eth3", ACCEPT_RA), Some(1));
    assert!(!node.record_of(&pod).exists());
}

/// The record cannot be written. If DEL were killed after a change without a record, no verb would undo the change.
#[test]
fn an_unrecorded_change_is_not_made() {
    let (node, pod) = node();
    let new = node.record_of(&pod).with_extension("json.new");
    fs::create_dir_all(new.join("in the way")).expect("a full disk");
    node.kernel.begin();
    let message = node.del(&pod, &rail(&node, "eth2")).must_fail(107);
    assert!(message.contains("cannot write"), "{message}");
    let is_temporary = |op: &&Op| matches!(op, Op::Link { change: LinkChange::Sysctl { key, value: 2 }, .. } if key == ACCEPT_RA);
    let changed = node.kernel.journal().iter().filter(is_temporary).count();
    assert_eq!(changed, 0, "{:?}", node.kernel.journal());
    assert_eq!(setting(&node, "eth2", FORWARDING), Some(1), "it is home");
    fs::remove_dir_all(new).expect("room again");
    node.del(&pod, &rail(&node, "eth2")).must_succeed();
    assert_eq!(setting(&node, "eth2", FORWARDING), Some(2));
    assert_eq!(setting(&node, "eth3", ACCEPT_RA), Some(1));
}

/// All children of an ipvlan port have one mode. If the host has several of them, the host can have set the present
/// mode.
#[test]
fn the_mode_of_the_hosts_other_ipvlan_netdevs_is_reported_and_not_changed() {
    for has_other in [false, true] {
        let node = Node::new(RdmaMode::Shared);
        let maker = node.pod("maker");
        let children: &[&str] = match has_other {
            true => &["ipv0", "ipv1"],
            false => &["ipv0"],
        };
        for link in children {
            let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
            let [parent, name, link] = ["eth2", link, link].map(name);
            let child = Child::Ipvlan {
                mode: IpvlanMode::L2,
            };
            let (at, mtu) = (from, 1500);
            let made = Op::AddChild {
                at,
                parent,
                child,
                name,
                mtu,
            };
            let name = link.clone();
            let moved = Op::MoveLink {
                link,
                from,
                to,
                name,
            };
            [made, moved]
                .iter()
                .for_each(|op| node.change(Some(&maker), op));
        }
        let set = |netns, link, value| {
            let change =
                |world: &mut World| world.set_device_setting(netns, link, ("kind/1", value));
            node.kernel.with(change).expect("it can be set");
        };
        set(HOST, "ipv0", "0000");
        let pod = node.pod("a");
        let mut config = rail(&node, "ipv0");
        config["requireRdma"] = json!(false);
        node.add(&pod, &config).must_succeed();
        set(node.netns(&pod), "rdma0", "0100");
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        let journal = node.kernel.journal();
        let is_mode = |op: &&Op| matches!(op, Op::SetDeviceSetting { key, .. } if key == "kind/1");
        let changes = journal.iter().filter(is_mode).count();
        assert_eq!(changes, usize::from(!has_other), "{journal:?}");
        let notes = given_up::read(&node.state.path().join("state")).expect("notes");
        let reason = "would also change other netdevs of the host";
        let is_reported = notes.iter().any(|it| it.lacks[0].why.contains(reason));
        assert_eq!(is_reported, has_other, "{notes:?}");
    }
}

/// Without a record, the next DEL would not know what a killed DEL had changed.
#[test]
fn a_del_without_a_readable_record_changes_no_other_netdev() {
    let (node, pod) = node();
    let forwarding = Op::Link {
        at: NetnsSide::Pod,
        link: name("rdma0"),
        change: LinkChange::Sysctl {
            key: FORWARDING.to_owned(),
            value: 2,
        },
    };
    node.change(Some(&pod), &forwarding);
    fs::write(node.record_of(&pod), "{").expect("it can be spoilt");
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::Link {
            change: LinkChange::Sysctl { key, value: 2 },
            ..
        } if key == FORWARDING => Verdict::DieBefore,
        _ => Verdict::Proceed,
    });
    node.run("DEL", Some(&pod), &rail(&node, "eth2"));
    node.kernel.begin();
    node.del(&pod, &rail(&node, "eth2")).must_succeed();
    assert_eq!(setting(&node, "eth3", ACCEPT_RA), Some(1));
    assert_eq!(setting(&node, "eth2", FORWARDING), Some(1), "it is home");
}
