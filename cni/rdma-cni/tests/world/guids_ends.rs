// SPDX-License-Identifier: Apache-2.0
//! Tests of a function with another GUID: a verb fails or is killed, or the function's driver fails.

use crate::{
    guids::{FUNCTION, config, function, must_be_as_before, node},
    node::{Node, Pod},
};
use fake_kernel::{Snapshot, Verdict, World};
use nix::errno::Errno;
use rdma_netns::{LinkChange, Op, RdmaMode};
use serde_json::Value;

const MODES: [RdmaMode; 2] = [RdmaMode::Exclusive, RdmaMode::Shared];

struct Case {
    node: Node,
    pod: Pod,
    config: Value,
    before: Snapshot,
}

impl Case {
    fn new(mode: RdmaMode) -> Self {
        let node = node(mode);
        let pod = node.pod("a");
        let (config, before) = (config(&node), node.snapshot());
        Self {
            node,
            pod,
            config,
            before,
        }
    }

    fn added(mode: RdmaMode) -> Self {
        let case = Self::new(mode);
        case.node.add(&case.pod, &case.config).must_succeed();
        case
    }

    fn driver(&self) -> Option<String> {
        self.node.kernel.with(|world| {
            let devices = world.observe(None).devices;
            let device = devices.into_iter().find(|it| it.address == function());
            device.unwrap().driver
        })
    }

    /// Asserts that the host is as before, also after another ADD and DEL.
    #[track_caller]
    fn works_again(&self, what: &str) {
        must_be_as_before(&self.node, &self.before, what);
        self.node.kernel.begin();
        self.node.add(&self.pod, &self.config).must_succeed();
        self.node.del(&self.pod, &self.config).must_succeed();
        must_be_as_before(&self.node, &self.before, what);
    }
}

fn changes(verb: &str, case: Case) -> usize {
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

#[test]
fn any_change_of_add_is_refused() {
    for mode in MODES {
        for at in 1..=changes("ADD", Case::new(mode)) {
            for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
                let case = Case::new(mode);
                case.node.script(move |number| match number == at {
                    true => verdict,
                    false => Verdict::Proceed,
                });
                let answer = case.node.add(&case.pod, &case.config);
                let op = case.node.kernel.journal()[at - 1].clone();
                let what = format!("{mode}: change {at} {verdict:?}: {op}");
                assert_eq!(answer.code(), 106, "{what}: {}", answer.value);
                case.works_again(&what);
            }
        }
    }
}

#[test]
fn any_change_of_del_is_refused_once() {
    for mode in MODES {
        for at in 1..=changes("DEL", Case::added(mode)) {
            let case = Case::added(mode);
            case.node.script(move |number| match number == at {
                true => Verdict::Refuse(Errno::EIO),
                false => Verdict::Proceed,
            });
            case.node.del(&case.pod, &case.config).must_succeed();
            case.works_again(&format!("{mode}: change {at}"));
        }
    }
}

#[test]
fn add_and_del_are_killed_at_any_change() {
    for (verb, mode) in MODES.iter().flat_map(|it| [("ADD", *it), ("DEL", *it)]) {
        let case = || match verb {
            "ADD" => Case::new(mode),
            _ => Case::added(mode),
        };
        let last = changes(verb, case());
        assert!(last > 4, "{last}");
        for (at, dies) in (1..=last).flat_map(|at| [(at, false), (at, true)]) {
            for verdict in [Verdict::DieBefore, Verdict::DieAfter] {
                let Case {
                    node,
                    pod,
                    config,
                    before,
                } = case();
                let run = |node: &Node| drop(node.run(verb, Some(&pod), &config));
                assert!(node.kill(at, verdict, run));
                if dies {
                    node.kernel.with(|world| world.unmount(&pod.netns));
                }
                node.del(&pod, &config).must_succeed();
                let what = format!("{mode}: {verb} {verdict:?} {at}, dies: {dies}");
                must_be_as_before(&node, &before, &what);
            }
        }
    }
}

/// The process is killed between `unbind` and `bind`, which belong to one operation.
#[test]
fn a_driver_that_was_taken_off_only_is_bound() {
    for verb in ["ADD", "DEL"] {
        for mode in MODES {
            let case = match verb {
                "ADD" => Case::new(mode),
                _ => Case::added(mode),
            };
            case.node.kernel.begin();
            case.node.kernel.intercept(|world, step| match step.op {
                Op::RebindDriver { .. } => {
                    world.bind(FUNCTION, None);
                    Verdict::DieBefore
                }
                _ => Verdict::Proceed,
            });
            case.node.run(verb, Some(&case.pod), &case.config);
            case.node.kernel.begin();
            assert_eq!(case.driver(), None);
            case.node.del(&case.pod, &case.config).must_succeed();
            case.works_again(&format!("{mode}: {verb}"));
        }
    }
}

#[test]
fn a_driver_that_fails_is_reported_and_bound_by_the_next_del() {
    for mode in MODES {
        let case = Case::new(mode);
        let broken = |world: &mut World| world.broken_drivers = vec!["mlx5_core".to_owned()];
        case.node.kernel.with(broken);
        let message = case.node.add(&case.pod, &case.config).must_fail(107);
        let expected = format!("echo {FUNCTION} > /sys/bus/pci/drivers/mlx5_core/unbind; ");
        assert!(message.contains(&expected), "{message}");
        assert!(message.contains("restoring is incomplete"), "{message}");
        let message = case.node.del(&case.pod, &case.config).must_fail(107);
        assert!(message.contains("mlx5_core/bind: "), "{message}");
        case.node.kernel.with(|world| world.broken_drivers.clear());
        case.node.del(&case.pod, &case.config).must_succeed();
        case.works_again("mended");
    }
}

/// A virtual machine now has the function, so DEL must not bind another driver.
#[test]
fn a_function_that_was_given_away_keeps_its_driver() {
    let case = Case::added(RdmaMode::Exclusive);
    let given = |world: &mut World| world.bind(FUNCTION, Some("vfio-pci"));
    case.node.kernel.with(given);
    case.node.del(&case.pod, &case.config).must_succeed();
    assert_eq!(case.driver().as_deref(), Some("vfio-pci"));
}

#[test]
fn a_function_whose_pod_died_is_put_back() {
    for mode in MODES {
        let case = Case::added(mode);
        case.node
            .kernel
            .with(|world| world.unmount(&case.pod.netns));
        case.node.del(&case.pod, &case.config).must_succeed();
        must_be_as_before(&case.node, &case.before, "after DEL");
    }
}
