// SPDX-License-Identifier: Apache-2.0
//! Settings of a rail that a pod can change in addition to its names and addresses, and random sequences of such
//! changes. The tests use real namespaces and real netdevs of this kernel (veth, macvlan).

mod change;
mod inside;
mod programs;
mod sequences;

use inside::{driver_settings, inside, set_channels, set_features, write_attribute};
use integration::{Netns, Node, Snapshot};
use programs::{Place, attach};
use rdma_netns::{DeviceSettings, Kernel, LinkSetting, Linux};
use serde_json::Value;

/// The settings of the host's `eth1` that this project reads.
#[track_caller]
fn seen(host: &Netns) -> (DeviceSettings, Option<u32>) {
    let kernel = Linux::new();
    inside(host, || {
        let observed = kernel.observe(None).expect("a state");
        let link = observed.host.link("eth1").expect("eth1");
        let xdp = link.settings.get(&LinkSetting::Xdp).copied();
        (kernel.device_settings(link), xdp)
    })
}

/// A node with `eth1`, which has four queues, a pod, and the configuration that moves `eth1` into the pod.
struct Given {
    node: Node,
    pod: Netns,
    rails: Value,
}

impl Given {
    fn new() -> Self {
        Self::prepared(|_| {})
    }

    /// Creates the node, its pod and the configuration. `host` changes `eth1` on the host.
    fn prepared(host: impl FnOnce(&Netns)) -> Self {
        let node = Node::with_rails(0);
        let switch = node.switch.name();
        node.host.ip(&format!(
            "link add name eth1 numtxqueues 4 numrxqueues 4 type veth peer name to-eth1 numtxqueues 4 numrxqueues 4 \
             netns {switch}"
        ));
        node.switch.ip("link set dev to-eth1 master br0 up");
        node.host.ip("link set dev eth1 up");
        host(&node.host);
        let pod = node.pod("pod");
        let rails = node.configuration(&["eth1"]);
        Self { node, pod, rails }
    }

    fn add(&self) {
        self.node.add(&self.rails, "a", &self.pod);
    }

    fn del(&self) {
        self.node.del(&self.rails, "a", &self.pod);
    }
}

fn index(link: &str) -> u32 {
    let index = std::fs::read_to_string(format!("/sys/class/net/{link}/ifindex"));
    index.expect("an index").trim().parse().expect("a number")
}

#[test]
fn where_broadcasts_go_is_restored() {
    let given = Given::new();
    let before = Snapshot::of(&given.node.host);
    given.add();
    given
        .pod
        .ip("link set dev rdma0 broadcast 02:00:00:00:00:99");
    given.del();
    before.assert_restored(&given.node.host);
}

#[test]
fn attributes_of_sysfs_are_restored() {
    let set_by_the_host = [("gro_flush_timeout", "500"), ("queues/rx-1/rps_cpus", "3")];
    let given = Given::prepared(|host| {
        inside(host, || {
            for (attribute, value) in set_by_the_host {
                write_attribute("eth1", attribute, value).expect(attribute);
            }
        });
    });
    let before = inside(&given.node.host, inside::attributes);
    given.add();
    let changed = inside(&given.pod, || {
        for (attribute, value) in [
            ("gro_flush_timeout", "20000"),
            ("napi_defer_hard_irqs", "7"),
            ("queues/rx-0/rps_cpus", "1"),
            ("queues/rx-1/rps_cpus", "0"),
            ("queues/rx-0/rps_flow_cnt", "32"),
            ("queues/tx-0/xps_cpus", "1"),
            ("queues/tx-3/xps_rxqs", "1"),
        ] {
            write_attribute("rdma0", attribute, value).expect(attribute);
        }
        inside::attributes()
    });
    assert_eq!(changed["/sys/class/net/rdma0/gro_flush_timeout"], "20000");
    given.del();
    assert_eq!(inside(&given.node.host, inside::attributes), before);
    let value = &before["/sys/class/net/eth1/gro_flush_timeout"];
    assert_eq!(value, "500", "the host's own");
}

/// DEL restores the protocol state (`protodown`) of a macvlan. A veth has no such state.
#[test]
fn a_protocol_state_that_a_pod_has_set_is_restored() {
    let node = Node::with_macvlan();
    let pod = node.pod("pod");
    let rails = node.configuration(&["eth1"]);
    let before = Snapshot::of(&node.host);
    node.add(&rails, "a", &pod);
    pod.ip("link set dev rdma0 protodown on");
    node.del(&rails, "a", &pod);
    before.assert_restored(&node.host);
}

/// DEL restores the macvlan settings that a pod has changed (`IFLA_INFO_DATA`). With the pod's mode, a macvlan on the
/// host would receive frames for others.
#[test]
fn the_mode_the_flags_and_the_senders_of_a_macvlan_are_restored() {
    let source = "link set dev eth1 type macvlan mode source";
    let sender = "link set dev eth1 type macvlan macaddr add 02:00:00:00:00:";
    let of_host = [
        source.to_owned(),
        format!("{sender}01"),
        format!("{sender}02"),
    ];
    for of_host in [&[][..], &of_host] {
        let node = Node::with_macvlan();
        of_host.iter().for_each(|line| drop(node.host.ip(line)));
        let pod = node.pod("pod");
        let rails = node.configuration(&["eth1"]);
        let kept = |netns: &Netns, name: &str| {
            let link = netns.link(name).expect("there");
            let [mut kind, reason] = ["linkinfo", "proto_down_reason"].map(|it| link[it].clone());
            if let Some(senders) = kind["info_data"]["macaddr_data"].as_array_mut() {
                senders.sort_by_key(Value::to_string);
            }
            (kind, reason)
        };
        let before = kept(&node.host, "eth1");
        node.add(&rails, "a", &pod);
        for line in [
            "type macvlan mode bridge",
            "type macvlan mode source nodst bcqueuelen 5",
            "type macvlan macaddr add 02:00:00:00:00:02",
            "type macvlan macaddr add 02:00:00:00:00:99",
            "protodown on",
            "protodown_reason 3 on",
        ] {
            pod.ip(&format!("link set dev rdma0 {line}"));
        }
        assert_ne!(kept(&pod, "rdma0"), before);
        node.del(&rails, "a", &pod);
        assert_eq!(kept(&node.host, "eth1"), before);
    }
}

#[test]
fn features_and_channels_of_the_driver_are_restored() {
    let given = Given::new();
    let settings = || driver_settings("eth1").expect("settings");
    let before = inside(&given.node.host, settings);
    given.add();
    let changed = inside(&given.pod, || {
        // scatter-gather, checksums, GRO
        set_features("rdma0", 0x4009, false).expect("features");
        set_channels("rdma0", 2).expect("channels");
        driver_settings("rdma0").expect("settings")
    });
    assert_ne!(changed, before);
    given.del();
    assert_eq!(inside(&given.node.host, settings), before);
}

/// DEL detaches the pod's BPF programs. They could drop, change, or redirect packets of the next pod.
#[test]
fn programs_of_a_pod_are_detached() {
    for link in [false, true] {
        let given = Given::new();
        let before = seen(&given.node.host);
        assert_eq!(before.1, Some(0), "an XDP program of nobody");
        given.add();
        let held = inside(&given.pod, || {
            let index = index("rdma0");
            [Place::Xdp, Place::Ingress, Place::Egress]
                .map(|place| attach(place, index, link).expect("a program"))
        });
        given.del();
        let after = seen(&given.node.host);
        assert_eq!(after, before, "by link: {link}");
        drop(held);
    }
}

/// The host's own BPF programs stay attached, also together with programs of the pod.
#[test]
fn programs_of_the_host_stay_attached() {
    let mut held = vec![];
    let given = Given::prepared(|host| {
        held.push(inside(host, || attach(Place::Xdp, index("eth1"), true)));
        held.push(inside(host, || {
            attach(Place::Ingress, index("eth1"), false)
        }));
    });
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    let before = seen(&given.node.host);
    given.add();
    let own = inside(&given.pod, || attach(Place::Ingress, index("rdma0"), true));
    own.as_ref().expect("a program");
    given.del();
    assert_eq!(seen(&given.node.host), before);
}

/// rdma-cni cannot attach the program again: the log and the file that `doctor` reads (`given-up/eth1.json`) report
/// this.
#[test]
fn a_program_of_the_host_that_the_pod_detached_is_reported() {
    let given = Given::prepared(|host| {
        inside(host, || attach(Place::Ingress, index("eth1"), false)).expect("a program");
    });
    given.add();
    inside(&given.pod, || {
        let kernel = Linux::new();
        let op = rdma_netns::Op::SetDeviceSetting {
            link: "rdma0".try_into().expect("a name"),
            key: "tcx/ingress".to_owned(),
            value: String::new(),
        };
        kernel.execute(&op, None).expect("the pod may");
    });
    let deleted = given.node.invoke("DEL", "a", given.pod.path());
    let deleted = deleted.input(&given.rails).run();
    assert!(deleted.status.success(), "{deleted}");
    let message = "eth1 is back on the host, but not fully restored: tcx of eth1: ingress";
    assert!(deleted.stderr.contains(message), "{deleted}");
    let note = given.node.state().join("given-up/eth1.json");
    let note = std::fs::read_to_string(note).expect("a note");
    assert!(note.contains("tcx of eth1"), "{note}");
}

/// DEL restores a macvlan that a pod has made dormant. The kernel itself would evaluate the state again only after a
/// change of the carrier, and a move does not change a macvlan's carrier.
#[test]
fn a_rail_that_a_pod_made_dormant_is_used_again() {
    for line in ["mode dormant", "state dormant"] {
        let node = Node::with_macvlan();
        let pod = node.pod("pod");
        let rails = node.configuration(&["eth1"]);
        let before = Snapshot::of(&node.host);
        assert!(!before.part("link eth1 ipv6 address").is_empty());
        node.add(&rails, "a", &pod);
        pod.ip(&format!("link set dev rdma0 {line}"));
        node.del(&rails, "a", &pod);
        before.assert_restored(&node.host);
    }
}
