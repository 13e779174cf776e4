// SPDX-License-Identifier: Apache-2.0
//! Tests of IPoIB children and moved IPoIB netdevs whose ADD or DEL fails or is killed, and of children that the kernel
//! returns to the host when a namespace ends. No child remains on the host or in the pod.

use crate::{
    ipoib::{PORT, children_on_host, world},
    leases::has_link,
    node::{Node, Pod, name},
};
use fake_kernel::{Snapshot, Verdict};
use nix::errno::Errno;
use rdma_netns::{Child, IpoibMode, LinkChange, NetnsSide, Op, Pkey, RdmaMode};
use serde_json::{Value, json};

struct Case {
    node: Node,
    pod: Pod,
    config: Value,
    before: Snapshot,
}

impl Case {
    /// Returns a pod that will get a child of `ib0` in another partition and send mode.
    fn new() -> Self {
        let node = Node::with(world(RdmaMode::Shared, IpoibMode::Datagram));
        let config = node.config(json!({
            "devices": [{ "netdev": "ib0" }], "mode": "share", "pkey": "0x8001",
            "child": { "type": "ipoib", "mode": "connected" }, "mtu": 9000,
        }));
        Self::of(node, config)
    }

    /// Returns a pod that will get the port itself. The port's netdev is in connected mode.
    fn moved(rdma: RdmaMode) -> Self {
        let node = Node::with(world(rdma, IpoibMode::Connected));
        let config = node.config(json!({ "deviceID": PORT, "mode": "move" }));
        Self::of(node, config)
    }

    fn of(node: Node, config: Value) -> Self {
        let pod = node.pod("a");
        let before = node.snapshot();
        Self {
            node,
            pod,
            config,
            before,
        }
    }

    fn added(self) -> Self {
        self.node.add(&self.pod, &self.config).must_succeed();
        self
    }

    #[track_caller]
    fn must_be_as_before(&self, what: &str) {
        let left = self.node.snapshot().without_numbers();
        let differences = self.before.without_numbers().differences(&left);
        let of_host: Vec<&String> = differences
            .iter()
            .filter(|line| !line.contains("/run/netns/"))
            .collect();
        assert!(of_host.is_empty(), "{what}: {of_host:#?}");
        assert_eq!(self.node.records(), [] as [&str; 0], "{what}");
        if self
            .node
            .kernel
            .with(|world| world.namespace_at(&self.pod.netns))
            .is_some()
        {
            assert!(!has_link(&self.node, &self.pod, "rdma0"), "{what}");
        }
    }

    fn end_namespace(&self) {
        self.node
            .kernel
            .with(|world| world.unmount(&self.pod.netns));
    }
}

fn changes(verb: &str, case: &Case) -> usize {
    case.node.kernel.begin();
    case.node.run(verb, Some(&case.pod), &case.config);
    let is_change = |op: &&Op| {
        !matches!(
            op,
            Op::Link {
                change: LinkChange::Announce(_),
                ..
            }
        )
    };
    case.node.kernel.journal().iter().filter(is_change).count()
}

fn cases() -> [fn() -> Case; 3] {
    [
        Case::new,
        || Case::moved(RdmaMode::Exclusive),
        || Case::moved(RdmaMode::Shared),
    ]
}

#[test]
fn any_change_of_add_is_refused() {
    for new in cases() {
        for at in 1..=changes("ADD", &new()) {
            for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
                let case = new();
                case.node.script(move |number| match number == at {
                    true => verdict,
                    false => Verdict::Proceed,
                });
                let answer = case.node.add(&case.pod, &case.config);
                let op = case.node.kernel.journal()[at - 1].clone();
                let what = format!("change {at} {verdict:?}: {op}");
                assert_eq!(answer.code(), 106, "{what}: {}", answer.value);
                case.must_be_as_before(&what);
            }
        }
    }
}

#[test]
fn any_change_of_del_is_refused_once() {
    for new in cases() {
        for at in 1..=changes("DEL", &new().added()) {
            let case = new().added();
            case.node.script(move |number| match number == at {
                true => Verdict::Refuse(Errno::EIO),
                false => Verdict::Proceed,
            });
            case.node.del(&case.pod, &case.config).must_succeed();
            case.must_be_as_before(&format!("change {at}"));
        }
    }
}

/// DEL, GC and the ADD of another pod remove the objects of a killed verb, while the pod's namespace exists and after
/// its end. Also tests kernels that delete the child with the namespace.
#[test]
fn add_and_del_are_killed_at_any_change() {
    for (verb, new) in cases()
        .into_iter()
        .flat_map(|it| [("ADD", it), ("DEL", it)])
    {
        let case = || match verb {
            "ADD" => new(),
            _ => new().added(),
        };
        let last = changes(verb, &case());
        assert!(last > 0);
        for (at, dies) in
            (1..=last).flat_map(|at| [(at, None), (at, Some(true)), (at, Some(false))])
        {
            for restorer in ["DEL", "GC", "ADD"] {
                let what = format!("{verb} {at}, dies and returns: {dies:?}, {restorer}");
                let case = case();
                let Case {
                    node, pod, config, ..
                } = &case;
                let killed = node.kill(at, Verdict::DieAfter, |node| {
                    node.run(verb, Some(pod), config);
                });
                assert!(killed, "{what}");
                if let Some(returns) = dies {
                    node.kernel
                        .with(|world| world.returns_ipoib_children = returns);
                    case.end_namespace();
                }
                match restorer {
                    "DEL" => drop(node.del(pod, config).must_succeed()),
                    "GC" => drop(node.gc(&[], config).must_succeed()),
                    _ => {
                        let other = node.pod("b");
                        node.add(&other, config).must_succeed();
                        node.del(&other, config).must_succeed();
                        node.kernel.with(|world| world.unmount(&other.netns));
                    }
                }
                case.must_be_as_before(&what);
            }
        }
    }
}

/// The returned child has its name in the pod, or a name such as `dev7`. The pod may have removed the child's alias.
#[test]
fn a_child_that_its_namespace_gave_back_goes_at_del() {
    let at = NetnsSide::Pod;
    let link = || name("rdma0");
    let rename = Op::Link {
        at,
        link: link(),
        change: LinkChange::Rename(name("mine")),
    };
    let alias = |alias: &str| Op::Link {
        at,
        link: link(),
        change: LinkChange::Alias(alias.to_owned()),
    };
    let down = Op::Link {
        at,
        link: link(),
        change: LinkChange::Up(false),
    };
    for (ops, is_taken) in [
        (vec![], false),
        (vec![], true),
        (vec![down, rename], false),
        (vec![alias("")], false),
    ] {
        let case = Case::new();
        let node = &case.node;
        if is_taken {
            // an administrator's child, without a mark of `rdma-cni`
            node.change(None, &theirs("rdma0"));
        }
        let before = node.snapshot().without_numbers();
        node.add(&case.pod, &case.config).must_succeed();
        for op in &ops {
            node.change(Some(&case.pod), op);
        }
        case.end_namespace();
        assert_eq!(children_on_host(node).len(), 1 + usize::from(is_taken));
        node.del(&case.pod, &case.config).must_succeed();
        let left = before.differences(&node.snapshot().without_numbers());
        let of_host: Vec<&String> = left
            .iter()
            .filter(|it| !it.contains("/run/netns/"))
            .collect();
        assert!(of_host.is_empty(), "{ops:?}: {of_host:#?}");
    }
}

fn theirs(called: &str) -> Op {
    Op::AddChild {
        at: NetnsSide::Host,
        parent: name("ib0"),
        child: Child::Ipoib {
            pkey: Pkey(0x8001),
            mode: IpoibMode::Datagram,
        },
        name: name(called),
        mtu: 2044,
    }
}

/// A process kept the namespace alive during DEL. The child returned to the host after DEL had removed its record. The
/// next ADD removes this child, but no child of the administrator or of a running pod.
#[test]
fn a_child_that_comes_back_later_goes_with_the_next_pod() {
    let case = Case::new().added();
    let Case {
        node, pod, config, ..
    } = &case;
    node.change(None, &theirs("ib0.8001"));
    let other = node.pod("b");
    node.add(&other, config).must_succeed();
    case.end_namespace();
    std::fs::remove_file(node.record_of(pod)).unwrap();
    assert_eq!(children_on_host(node), ["ib0.8001", "rdma0"].map(name));
    let third = node.pod("c");
    node.add(&third, config).must_succeed();
    assert_eq!(children_on_host(node), ["ib0.8001"].map(name));
    for pod in [&other, &third] {
        assert!(has_link(node, pod, "rdma0"));
    }
}
