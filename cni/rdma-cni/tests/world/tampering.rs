// SPDX-License-Identifier: Apache-2.0
//! Tests of pods that change their devices: the devices return to the host with their recorded state.

use crate::node::{Node, Pod, address, mac, name, route};
use attachments::{Attribute, given_up};
use fake_kernel::{Nic, Verdict, world::HOST};
use nix::errno::Errno;
use rdma_netns::{Kernel, LinkChange, LinkFlag, LinkSetting, NetnsSide, Op, RdmaMode};

const AT: NetnsSide = NetnsSide::Pod;

/// Makes `changes` to a pod's rails. Asserts that DEL restores the host, while the namespace exists and after its end.
fn is_restored(what: &str, changes: &[Op]) {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        for dies in [false, true] {
            let node = Node::new(mode);
            let mut before = node.snapshot();
            let pod = node.pod("a");
            if !dies {
                before = node.snapshot();
            }
            node.add(&pod, &node.two_rails()).must_succeed();
            for op in changes {
                node.change(Some(&pod), op);
            }
            if dies {
                node.kernel.with(|world| world.unmount(&pod.netns));
            }
            node.del(&pod, &node.two_rails()).must_succeed();
            node.must_be(&before, &format!("{what}, namespace dies: {dies}, {mode}"));
        }
    }
}

fn rail() -> rdma_netns::InterfaceName {
    name("rdma0")
}

fn up(up: bool) -> Op {
    Op::Link {
        at: AT,
        link: rail(),
        change: LinkChange::Up(up),
    }
}

#[test]
fn mtu() {
    for mtu in [1000, 1400, 9000] {
        let link = rail();
        is_restored(
            &format!("MTU {mtu}"),
            &[Op::Link {
                at: AT,
                link,
                change: LinkChange::Mtu(mtu),
            }],
        );
    }
}

#[test]
fn hardware_address() {
    let mac = mac("06:00:00:00:12:34");
    let change = Op::Link {
        at: AT,
        link: rail(),
        change: LinkChange::Mac(mac),
    };
    is_restored("hardware address", &[up(false), change.clone(), up(true)]);
    is_restored("hardware address, left down", &[up(false), change]);
}

#[test]
fn names() {
    let rename = |from: &str, to: &str| Op::Link {
        at: AT,
        link: name(from),
        change: LinkChange::Rename(name(to)),
    };
    is_restored("name", &[up(false), rename("rdma0", "roce")]);
    // the host names of the other rail, and of an existing netdev
    for other in ["eth3", "ens1np0"] {
        is_restored(other, &[up(false), rename("rdma0", other)]);
    }
    let down = |rail: &str| Op::Link {
        at: AT,
        link: name(rail),
        change: LinkChange::Up(false),
    };
    is_restored(
        "names swapped",
        &[
            down("rdma0"),
            down("rdma1"),
            rename("rdma0", "x"),
            rename("rdma1", "rdma0"),
            rename("x", "rdma1"),
        ],
    );
    is_restored(
        "each other's names on the host",
        &[
            down("rdma0"),
            down("rdma1"),
            rename("rdma0", "eth3"),
            rename("rdma1", "eth2"),
        ],
    );
}

#[test]
fn alternative_names() {
    let alt = |name: &str, present| Op::Link {
        at: AT,
        link: rail(),
        change: LinkChange::AltName {
            name: name.to_owned(),
            present,
        },
    };
    is_restored("one more", &[alt("roce-a", true)]);
    is_restored("one less", &[alt("enp2s0v0", false)]);
    // with these alternative names the netdev could not return to the host
    is_restored("the host's", &[alt("ens1np0", true), alt("eth2", true)]);
    is_restored("the other rail's", &[alt("eth3", true), alt("mlx", true)]);
}

#[test]
fn addresses_and_routes() {
    is_restored(
        "addresses and routes",
        &[
            Op::Link {
                at: AT,
                link: rail(),
                change: LinkChange::AddAddress(address("172.16.0.9/16")),
            },
            Op::Link {
                at: AT,
                link: rail(),
                change: LinkChange::RemoveAddress(address("10.0.2.5/24")),
            },
            Op::Link {
                at: AT,
                link: rail(),
                change: LinkChange::AddRoute(route("192.0.2.0/24", "172.16.0.1")),
            },
        ],
    );
}

#[test]
fn flags_and_settings() {
    let flag = |flag, on| Op::Link {
        at: AT,
        link: rail(),
        change: LinkChange::Flag(flag, on),
    };
    let setting = |key: &str, value| Op::Link {
        at: AT,
        link: rail(),
        change: LinkChange::Sysctl {
            key: key.to_owned(),
            value,
        },
    };
    let number = |setting, value| Op::Link {
        at: AT,
        link: rail(),
        change: LinkChange::Setting(setting, value),
    };
    is_restored(
        "flags and settings",
        &[
            flag(LinkFlag::Promisc, true),
            flag(LinkFlag::NoArp, true),
            flag(LinkFlag::AllMulti, false),
            Op::Link {
                at: AT,
                link: rail(),
                change: LinkChange::TxQueueLen(1),
            },
            number(LinkSetting::Mode, 1),
            number(LinkSetting::Group, 7),
            number(LinkSetting::GsoMaxSize, 20_000),
            number(LinkSetting::GsoMaxSegments, 10),
            number(LinkSetting::GroMaxSize, 20_000),
            number(LinkSetting::GsoIpv4MaxSize, 20_000),
            number(LinkSetting::GroIpv4MaxSize, 20_000),
            number(LinkSetting::Xdp, 12),
            Op::Link {
                at: AT,
                link: rail(),
                change: LinkChange::Broadcast(mac("02:00:00:00:00:99")),
            },
            flag(LinkFlag::NoTrailers, true),
            flag(LinkFlag::Dynamic, true),
            flag(LinkFlag::Debug, true),
            flag(LinkFlag::PortSel, true),
            flag(LinkFlag::AutoMedia, true),
            Op::Link {
                at: AT,
                link: rail(),
                change: LinkChange::Alias(String::new()),
            },
            setting("ipv6/disable_ipv6", 1),
            setting("ipv4/rp_filter", 1),
            setting("ipv4/forwarding", 1),
        ],
    );
}

#[test]
fn everything_is_returned_by_the_pod_itself() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod: Pod = node.pod("a");
    let before = node.snapshot();
    node.add(&pod, &node.two_rails()).must_succeed();
    let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
    for op in [
        Op::MoveLink {
            link: rail(),
            from,
            to,
            name: name("lost"),
        },
        Op::MoveRdma {
            device: "mlx5_2".into(),
            from,
            to,
        },
    ] {
        node.change(Some(&pod), &op);
    }
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "back on the host");
}

/// Returns two pods with one rail each. `names` are the names that the pods give to their rails.
fn two_pods(names: [Option<&str>; 2]) -> (Node, [(Pod, serde_json::Value); 2]) {
    let node = Node::new(RdmaMode::Exclusive);
    let rail = |pod: &str, netdev: &str| {
        let config = node.config(serde_json::json!({ "devices": [{ "netdev": netdev }] }));
        let pod = node.pod(pod);
        node.add(&pod, &config).must_succeed();
        (pod, config)
    };
    let pods = [rail("a", "eth2"), rail("b", "eth3")];
    for ((pod, _), to) in pods.iter().zip(names) {
        let Some(to) = to else { continue };
        node.change(Some(pod), &up(false));
        let rename = Op::Link {
            at: AT,
            link: name("rdma0"),
            change: LinkChange::Rename(name(to)),
        };
        node.change(Some(pod), &rename);
    }
    (node, pods)
}

/// Each of two pods has given its rail the host name of the other pod's netdev, and has ended.
#[test]
fn names_of_each_others_netdevs() {
    for order in [[0, 1], [1, 0]] {
        let before = Node::new(RdmaMode::Exclusive).snapshot();
        let (node, pods) = two_pods([Some("eth3"), Some("eth2")]);
        for (pod, _) in &pods {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        for (pod, config) in order.map(|index| &pods[index]) {
            node.del(pod, config).must_succeed();
        }
        node.must_be(&before, &format!("{order:?}"));
    }
}

/// A pod has ended, and its netdev has the host name of another pod's netdev, as its name or as an alternative name.
/// The other netdev still returns under its name.
#[test]
fn a_name_that_another_pods_netdev_gives_up() {
    let alt = Op::Link {
        at: AT,
        link: name("rdma0"),
        change: LinkChange::AltName {
            name: "eth2".to_owned(),
            present: true,
        },
    };
    for (has_alt, dies) in [(false, false), (false, true), (true, false), (true, true)] {
        let before = Node::new(RdmaMode::Exclusive).snapshot();
        let (node, [(a, of_a), (b, of_b)]) = two_pods([None, Some("eth2").filter(|_| !has_alt)]);
        if has_alt {
            node.change(Some(&b), &alt);
        }
        node.kernel.with(|world| world.unmount(&b.netns));
        if dies {
            node.kernel.with(|world| world.unmount(&a.netns));
        }
        node.del(&a, &of_a).must_succeed();
        node.kernel.with(|world| world.unmount(&a.netns));
        node.del(&b, &of_b).must_succeed();
        node.must_be(&before, &format!("alternative {has_alt}, dies {dies}"));
    }
}

/// A program has moved a running pod's netdev to the host, under the name of another pod's netdev. The DEL of
/// the other pod changes nothing of a running pod.
#[test]
fn a_name_that_a_living_pods_netdev_has_is_waited_for() {
    let before = Node::new(RdmaMode::Exclusive).snapshot();
    let (node, [(a, of_a), (b, of_b)]) = two_pods([None, None]);
    let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
    let away = Op::MoveLink {
        link: name("rdma0"),
        from,
        to,
        name: name("eth2"),
    };
    node.change(Some(&b), &away);
    let message = node.del(&a, &of_a).must_fail(107);
    assert!(message.contains("eth2"), "{message}");
    let address = |name: &str| {
        node.kernel.with(|world| {
            let link = world.link(HOST, name).expect("a netdev");
            link.parent.as_deref().map(str::to_owned)
        })
    };
    assert_eq!(address("eth2"), Some("0000:d8:00.2".to_owned()));
    node.kernel.with(|world| world.unmount(&b.netns));
    node.del(&a, &of_a).must_succeed();
    node.kernel.with(|world| world.unmount(&a.netns));
    node.del(&b, &of_b).must_succeed();
    node.must_be(&before, "after both");
}

/// Another pod's netdev has this pod's host name as an alternative name, and the kernel refuses to remove it. The DEL
/// of this pod fails, and the next DEL removes the name.
#[test]
fn a_name_that_another_pods_netdev_keeps_is_reported() {
    let before = Node::new(RdmaMode::Exclusive).snapshot();
    let (node, [(a, of_a), (b, of_b)]) = two_pods([None, None]);
    let alt = Op::Link {
        at: AT,
        link: name("rdma0"),
        change: LinkChange::AltName {
            name: "eth2".to_owned(),
            present: true,
        },
    };
    node.change(Some(&b), &alt);
    node.kernel.with(|world| world.unmount(&b.netns));
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::Link {
            change: LinkChange::AltName { present: false, .. },
            ..
        } => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    let message = node.del(&a, &of_a).must_fail(107);
    assert!(message.contains("eth2"), "{message}");
    node.kernel.begin();
    node.del(&a, &of_a).must_succeed();
    node.kernel.with(|world| world.unmount(&a.netns));
    node.del(&b, &of_b).must_succeed();
    node.must_be(&before, "after both");
}

/// If the kernel refuses an attribute that rtnetlink does not report, DEL restores the other attributes and notes the
/// refused one.
#[test]
fn device_settings() {
    let node = Node::new(RdmaMode::Shared);
    let pod = node.pod("a");
    let before = node.snapshot();
    for is_refused in [false, true] {
        node.add(&pod, &node.two_rails()).must_succeed();
        node.kernel.with(|world| {
            let netns = world.namespace_at(&pod.netns).unwrap();
            for change in [
                ("gro_flush_timeout", "20000"),
                ("ethtool/messages", "00000000"),
            ] {
                world.set_device_setting(netns, "rdma0", change).unwrap();
            }
        });
        node.kernel.begin();
        node.kernel.intercept(move |_, step| match step.op {
            Op::SetDeviceSetting { key, .. } if is_refused && key.starts_with("ethtool") => {
                Verdict::Refuse(Errno::EOPNOTSUPP)
            }
            _ => Verdict::Proceed,
        });
        node.del(&pod, &node.two_rails()).must_succeed();
        node.kernel.begin();
        if !is_refused {
            node.must_be(&before, "both are restored");
        }
    }
    let notes = given_up::read(&node.state.path().join("state")).unwrap();
    let [note] = notes.as_slice() else {
        panic!("{notes:?}");
    };
    let name = &note.host_link.name;
    // observes as `doctor` does
    let left = || {
        let mut observed = node.kernel.observe(None).unwrap();
        let link = observed.host.link(name).unwrap();
        let settings = (link.index, node.kernel.device_settings(link));
        observed.device_settings.push(settings);
        plan::given_up::left(note, &observed).join("; ")
    };
    let reported = left();
    assert!(reported.contains("messages"), "{reported}");
    assert!(!reported.contains("gro_flush_timeout"), "{reported}");
    // an administrator sets the attribute
    let Attribute::DeviceSetting(key, value) = &note.lacks[0].attribute else {
        panic!("{note:?}");
    };
    node.kernel.with(|world| {
        world.set_device_setting(HOST, name, (key, value)).unwrap();
    });
    assert_eq!(left(), "", "it is as it was");
}

/// Between observation and move, a process of the pod gives the rail's name to a netdev of its own. DEL moves the rail
/// nevertheless, and no netdev of the pod comes to the host.
#[test]
fn a_name_that_the_pod_gives_to_another_netdev_during_del() {
    let before = Node::new(RdmaMode::Exclusive).snapshot();
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let config = node.config(serde_json::json!({ "devices": [{ "netdev": "eth2" }] }));
    node.add(&pod, &config).must_succeed();
    node.kernel
        .with(|world| world.plug(Nic::virtual_link("tun9", "tun")));
    let into_pod = Op::MoveLink {
        link: name("tun9"),
        from: NetnsSide::Host,
        to: NetnsSide::Pod,
        name: name("tun9"),
    };
    node.change(Some(&pod), &into_pod);
    let netns = node.netns(&pod);
    let rename = |from: &str, to: &str| Op::link(AT, &name(from), LinkChange::Rename(name(to)));
    let swap = [up(false), rename("rdma0", "x"), rename("tun9", "rdma0")];
    let mut is_due = true;
    node.kernel.begin();
    node.kernel.intercept(move |world, step| {
        if is_due && matches!(step.op, Op::MoveLink { .. }) {
            is_due = false;
            swap.iter()
                .for_each(|op| world.execute(op, Some(netns)).unwrap());
        }
        Verdict::Proceed
    });
    node.del(&pod, &config).must_succeed();
    node.kernel.with(|world| {
        let stayed = world.link(netns, "rdma0").map(|it| it.kind.clone());
        assert_eq!(stayed, Some(Some("tun".to_owned())));
        world.unmount(&pod.netns);
    });
    node.must_be(&before, "the rail is home");
}
