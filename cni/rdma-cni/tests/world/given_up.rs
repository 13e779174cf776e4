// SPDX-License-Identifier: Apache-2.0
//! Tests of attributes that DEL cannot restore. DEL restores the netdev without them, succeeds, and reports
//! them.

use crate::node::{Node, Pod, name};
use attachments::{
    Attribute,
    given_up::{self, Lack, Note},
};
use fake_kernel::{Nic, Verdict, world::HOST};
use integration::{
    OddFile,
    stopwatch::{Stopwatch, WITHOUT_A_LOCK},
};
use nix::errno::Errno;
use rdma_netns::{LinkChange, LinkFlag, NetnsSide, Op, RdmaMode};
use std::{
    fs::{self, File},
    time::Duration,
};

const AT: NetnsSide = NetnsSide::Host;

type Kind = fn(&LinkChange) -> bool;

/// Kinds of changes that a kernel may refuse on the host, each with the minimum number of such changes for `eth2`.
const KINDS: [(&str, Kind, usize); 9] = [
    ("MAC", |it| matches!(it, LinkChange::Mac(_)), 1),
    ("MTU", |it| matches!(it, LinkChange::Mtu(_)), 1),
    ("queue", |it| matches!(it, LinkChange::TxQueueLen(_)), 1),
    ("flag", |it| matches!(it, LinkChange::Flag(_, _)), 1),
    ("alias", |it| matches!(it, LinkChange::Alias(_)), 1),
    (
        "name",
        |it| matches!(it, LinkChange::AltName { present: true, .. }),
        1,
    ),
    ("sysctl", |it| matches!(it, LinkChange::Sysctl { .. }), 4),
    ("address", |it| matches!(it, LinkChange::AddAddress(_)), 2),
    ("route", |it| matches!(it, LinkChange::AddRoute(_)), 2),
];

fn is(op: &Op, kind: Kind) -> bool {
    matches!(op, Op::Link { change, .. } if kind(change))
}

fn notes(node: &Node) -> Vec<Note> {
    given_up::read(&node.state.path().join("state")).unwrap()
}

/// Returns a pod that has changed attributes of its rail `rdma0` ([`spoil`]).
fn spoilt(node: &Node) -> Pod {
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    spoil(node, &pod);
    pod
}

/// Changes state, MAC, MTU, queue, flag, alias and alternative name of the rail `rdma0` of `pod`.
fn spoil(node: &Node, pod: &Pod) {
    let (at, link) = (NetnsSide::Pod, name("rdma0"));
    for op in [
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Up(false),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Mac(crate::node::mac("06:00:00:00:12:34")),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Mtu(1300),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::TxQueueLen(1),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Flag(LinkFlag::AllMulti, false),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Alias(String::new()),
        },
        Op::Link {
            at,
            link,
            change: LinkChange::AltName {
                name: "enp2s0v0".into(),
                present: false,
            },
        },
    ] {
        node.change(Some(pod), &op);
    }
}

#[test]
fn any_one_kind_is_given_up_and_reported() {
    for (what, kind, count) in KINDS {
        for dies in [false, true] {
            let node = Node::new(RdmaMode::Exclusive);
            let before = node.snapshot();
            let pod = spoilt(&node);
            if dies {
                node.kernel.with(|world| world.unmount(&pod.netns));
            }
            node.kernel.begin();
            node.kernel.intercept(move |_, step| {
                let on_rail = format!("{} ", step.op).contains("eth2 ");
                match is(step.op, kind)
                    && (on_rail || format!("{}", step.op).contains("conf/eth2/"))
                {
                    true => Verdict::Refuse(Errno::EPERM),
                    false => Verdict::Proceed,
                }
            });
            node.del(&pod, &node.two_rails()).must_succeed();
            let tries = node.kernel.journal();
            let tries = tries.iter().filter(|op| is(op, kind)).count();
            assert!(tries >= 3, "{what}: {tries}, in every round on the host");
            node.kernel.begin();
            assert_eq!(node.records(), [""; 0], "{what}");

            let [note] = &notes(&node)[..] else {
                panic!("{what}: {:?}", notes(&node));
            };
            assert_eq!(&*note.host_link.name, "eth2");
            let observed = node.kernel.with(|world| world.observe(None));
            let left = plan::given_up::left(note, &observed);
            let is_named = |why: &&str| why.contains("not permitted");
            assert!(
                left.iter().filter(|it| is_named(it)).count() >= count,
                "{left:?}"
            );
            // no other attribute is missing (not checked: the state up, and any attribute after a refused MAC)
            let link = observed.host.link("eth2").unwrap();
            let missing = plan::missing_of(&note.host_link, link, &observed);
            let missing: Vec<_> = missing.iter().filter_map(Attribute::of).collect();
            let lacks: Vec<_> = note.lacks.iter().map(|it| it.attribute.clone()).collect();
            let else_missing: Vec<_> = missing
                .iter()
                .filter(|it| !lacks.contains(it) && **it != Attribute::Up)
                .collect();
            let flushed = what == "MAC";
            assert!(
                flushed || else_missing.is_empty(),
                "{what}: {else_missing:?}"
            );

            // an administrator restores the attribute. Then ADD and DEL of the next pod work as usual
            for op in plan::missing_of(&note.host_link, link, &observed) {
                node.change(None, &op);
            }
            let observed = node.kernel.with(|world| world.observe(None));
            assert_eq!(plan::given_up::left(note, &observed), [""; 0], "{what}");
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.must_be(&before, what);
            let pod = node.pod("b");
            node.add(&pod, &node.two_rails()).must_succeed();
            assert_eq!(notes(&node), []);
            node.del(&pod, &node.two_rails()).must_succeed();
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.must_be(&before, what);
            assert_eq!(notes(&node), []);
        }
    }
}

/// A link, a pipe or a similar object is at the note's path or at its temporary path.
#[test]
fn an_object_at_a_notes_path_is_not_written_to() {
    for (odd, unfinished) in OddFile::ALL
        .into_iter()
        .flat_map(|odd| [(odd, false), (odd, true)])
    {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = spoilt(&node);
        let elsewhere = tempfile::tempdir().unwrap();
        let file = node.state.path().join("state/given-up/eth2.json");
        let path = match unfinished {
            true => file.with_added_extension("new"),
            false => file.clone(),
        };
        odd.put(&path, elsewhere.path());
        node.kernel.begin();
        node.kernel.intercept(|_, step| match step.op {
            Op::Link {
                change: LinkChange::Mtu(_),
                ..
            } => Verdict::Refuse(Errno::EPERM),
            _ => Verdict::Proceed,
        });
        let began = Stopwatch::start();
        node.del(&pod, &node.two_rails()).must_succeed();
        assert!(began.elapsed() < WITHOUT_A_LOCK, "{odd:?}");
        assert_eq!(node.records(), [""; 0], "{odd:?}");
        let of_eth2 = notes(&node)
            .iter()
            .filter(|it| *it.host_link.name == *"eth2")
            .count();
        // a directory at the path stays, so only the log has the missing attributes
        assert_eq!(of_eth2, usize::from(odd != OddFile::Directory), "{odd:?}");
        if odd != OddFile::Directory {
            let found = fs::symlink_metadata(&file).unwrap();
            assert!(found.is_file() && found.len() < 1 << 20, "{odd:?}");
        }
        OddFile::assert_left_alone(elsewhere.path());
        // the next pod's ADD removes the object, unless it is a directory
        odd.put(&file, elsewhere.path());
        node.kernel.begin();
        node.add(&node.pod("b"), &node.two_rails()).must_succeed();
        assert_eq!(file.is_dir(), odd == OddFile::Directory, "{odd:?}");
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// Another netdev of the host has meanwhile got the netdev's alternative name. With this name, the kernel would refuse
/// the whole move.
#[test]
fn an_alternative_name_that_is_taken_meanwhile() {
    for dies in [false, true] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        node.add(&pod, &node.two_rails()).must_succeed();
        node.kernel
            .with(|world| world.plug(Nic::virtual_link("dummy0", "dummy")));
        let (link, alt) = (name("dummy0"), "enp2s0v0".to_owned());
        let take = Op::Link {
            at: AT,
            link,
            change: LinkChange::AltName {
                name: alt.clone(),
                present: true,
            },
        };
        node.change(None, &take);
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.del(&pod, &node.two_rails()).must_succeed();
        assert_eq!(node.records(), [""; 0]);
        let notes = notes(&node);
        let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
        assert_eq!(lacks.len(), 1, "{lacks:?}");
        assert_eq!(lacks[0].attribute, Attribute::AltName(alt));
        node.kernel.with(|world| {
            assert!(world.link(HOST, "eth2").unwrap().up);
        });
    }
}

/// The host itself has meanwhile got the gateway's address, as a backup router does.
#[test]
fn a_gateway_that_is_not_reachable_any_more() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    let (link, address) = (name("lo"), crate::node::address("fd00:2::1/128"));
    let up = Op::Link {
        at: AT,
        link: link.clone(),
        change: LinkChange::Up(true),
    };
    node.change(None, &up);
    node.change(
        None,
        &Op::Link {
            at: AT,
            link,
            change: LinkChange::AddAddress(address),
        },
    );
    node.kernel.with(crate::node::settle);
    node.del(&pod, &node.two_rails()).must_succeed();
    assert_eq!(node.records(), [""; 0]);
    let notes = notes(&node);
    let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
    assert!(
        matches!(&lacks[..], [lack] if matches!(&lack.attribute, Attribute::Route(route)
            if route.destination == "fd20::".parse::<std::net::IpAddr>().unwrap())),
        "{lacks:?}"
    );
}

/// DEL must restore a rail's namespace, name and RDMA device.
#[test]
fn an_unrestored_mandatory_setting_keeps_the_record() {
    type Mandatory = fn(&Op) -> bool;
    let kinds: [(&str, Mandatory); 3] = [
        ("place", |op| matches!(op, Op::MoveLink { .. })),
        ("name", |op| {
            is(op, |it| matches!(it, LinkChange::Rename(_)))
        }),
        ("RDMA device", |op| matches!(op, Op::MoveRdma { .. })),
    ];
    for (what, is_it) in kinds {
        let node = Node::new(RdmaMode::Exclusive);
        let before = node.snapshot();
        let pod = spoilt(&node);
        // the netdev returns under the pod's name, so DEL must rename it
        let dies = what == "name";
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.kernel.begin();
        node.kernel.intercept(move |_, step| match is_it(step.op) {
            true => Verdict::Refuse(Errno::EPERM),
            false => Verdict::Proceed,
        });
        node.del(&pod, &node.two_rails()).must_fail(107);
        assert_eq!(notes(&node), [], "{what}");
        node.kernel.begin();
        node.del(&pod, &node.two_rails()).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        node.must_be(&before, what);
    }
}

/// Refuses the first `times` changes of this kind of `eth2`, for lack of memory.
fn without_memory(node: &Node, kind: Kind, times: usize) {
    node.kernel.begin();
    let mut refused = 0;
    node.kernel.intercept(move |_, step| {
        let text = format!("{} ", step.op);
        let on_rail = text.contains("eth2 ") || text.contains("conf/eth2/");
        match is(step.op, kind) && on_rail && refused < times {
            true => {
                refused += 1;
                Verdict::Refuse(Errno::ENOMEM)
            }
            false => Verdict::Proceed,
        }
    });
}

/// DEL waits for memory. If there is still none, the first DEL reports the missing attribute, and the next DEL gives
/// the attribute up.
#[test]
fn a_machine_without_memory_keeps_a_pod_for_one_del() {
    for (what, kind, _) in KINDS {
        let node = Node::new(RdmaMode::Exclusive);
        let before = node.snapshot();
        let pod = spoilt(&node);
        without_memory(&node, kind, 15);
        node.del(&pod, &node.two_rails()).must_succeed();
        assert_eq!(notes(&node), [], "{what}");
        node.kernel.with(|world| world.unmount(&pod.netns));
        node.kernel.begin();
        node.must_be(&before, what);

        let pod = node.pod("b");
        node.add(&pod, &node.two_rails()).must_succeed();
        spoil(&node, &pod);
        without_memory(&node, kind, usize::MAX);
        let message = node.del(&pod, &node.two_rails()).must_fail(107);
        assert!(message.contains("Cannot allocate memory"), "{message}");
        assert!(node.record_of(&pod).exists(), "{what}");
        assert_eq!(notes(&node), [], "{what}");
        without_memory(&node, kind, usize::MAX);
        node.del(&pod, &node.two_rails()).must_succeed();
        assert_eq!(node.records(), [""; 0], "{what}");
        let notes = notes(&node);
        let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
        assert!(!lacks.is_empty(), "{what}");
        let is_named = lacks.iter().any(|it| it.why.contains("allocate memory"));
        assert!(is_named, "{what}: {lacks:?}");
    }
}

/// A DEL that did not get the node's lock in time does not count as an attempt to restore.
#[test]
fn a_del_that_did_not_begin_was_no_try() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = spoilt(&node);
    let path = node.state.path().join("state/lock");
    let file = File::options().write(true).open(path).unwrap();
    file.lock().unwrap();
    let (code, message) = node.del_within(&pod, &node.two_rails(), Duration::ZERO);
    assert_eq!(code, 11, "{message}");
    drop(file);
    let is_mtu: Kind = |it| matches!(it, LinkChange::Mtu(_));
    for expected in [Some(107), None] {
        without_memory(&node, is_mtu, usize::MAX);
        let del = node.del(&pod, &node.two_rails());
        match expected {
            Some(code) => drop(del.must_fail(code)),
            None => drop(del.must_succeed()),
        }
    }
    assert_eq!(node.records(), [""; 0]);
    assert_eq!(notes(&node).len(), 1);
}

/// A failed ADD could not restore an attribute for lack of memory. DEL gives it up.
#[test]
fn a_failed_add_was_a_try_as_well() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let is_refused = |op: &Op| match op {
        Op::Link {
            at,
            change: LinkChange::AddAddress(_),
            ..
        } => *at == NetnsSide::Pod,
        Op::Link {
            at,
            change: LinkChange::AddRoute(_),
            ..
        } => *at == AT,
        _ => false,
    };
    node.kernel.begin();
    node.kernel
        .intercept(move |_, step| match is_refused(step.op) {
            true => Verdict::Refuse(Errno::ENOMEM),
            false => Verdict::Proceed,
        });
    node.add(&pod, &node.two_rails()).must_fail(107);
    node.del(&pod, &node.two_rails()).must_succeed();
    assert_eq!(node.records(), [""; 0]);
    let notes = notes(&node);
    let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
    let is_route = |it: &&Lack| matches!(it.attribute, Attribute::Route(_));
    assert!(lacks.iter().all(is_route), "{lacks:?}");
    assert_eq!(lacks.len(), 2, "{lacks:?}");
}
