// SPDX-License-Identifier: Apache-2.0
//! Tests of settings of virtual functions that the driver accepts and does not report. The kernel reports -1
//! for such a setting (`rtnl_fill_vfinfo()`, `net/core/rtnetlink.c`).

use crate::{
    node::{Node, Pod},
    vf::one_rail_set_up,
};
use attachments::{Attribute, given_up};
use fake_kernel::{Snapshot, Verdict};
use nix::errno::Errno;
use rdma_netns::{Op, RdmaMode, VfSetting, VfSettingKind};
use serde_json::{Value, json};

const KINDS: [VfSettingKind; 2] = [VfSettingKind::Trust, VfSettingKind::SpoofCheck];

/// Returns a node whose driver does not report settings of `kinds`. The settings have the initial values of
/// drivers: trust off, spoof check on.
fn node(kinds: &[VfSettingKind]) -> Node {
    let node = Node::new(RdmaMode::Exclusive);
    let set = Op::SetVf {
        pf: crate::node::name("ens1np0"),
        number: 0,
        setting: VfSetting::SpoofCheck(true),
    };
    node.change(None, &set);
    node.kernel
        .with(|world| world.unreported_of_vfs = kinds.to_vec());
    node
}

/// Counts the changes of settings of `kind` since the journal began.
fn times(node: &Node, kind: VfSettingKind) -> usize {
    let journal = node.kernel.journal();
    let is_it = |op: &&Op| matches!(op, Op::SetVf { setting, .. } if setting.kind() == kind);
    journal.iter().filter(is_it).count()
}

/// Runs ADD for a pod whose function is set up. Returns the node, the pod, its configuration, the node's state before
/// ADD, and ADD's result.
fn added(kinds: &[VfSettingKind]) -> (Node, Pod, Value, Snapshot, Value) {
    let node = node(kinds);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let before = node.snapshot();
    node.kernel.begin();
    let result = node.add(&pod, &config).must_succeed();
    (node, pod, config, before, result)
}

/// Like sriov-cni, ADD does not read the setting back.
#[test]
fn an_unreported_setting_is_set_once_and_restored_once() {
    for kinds in [&KINDS[..1], &KINDS[1..], &KINDS] {
        let (node, pod, config, before, result) = added(kinds);
        for kind in kinds {
            assert_eq!(times(&node, *kind), 1, "{kind:?}");
        }
        let now = format!("{:?}", node.snapshot());
        assert!(now.contains("spoofchk off trust on"), "{now}");
        let mut checked = config.clone();
        checked["prevResult"] = result;
        node.run("CHECK", Some(&pod), &checked).must_succeed();
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        for kind in kinds {
            assert_eq!(times(&node, *kind), 1, "{kind:?}");
        }
        node.must_be(&before, "after DEL");
    }
}

#[test]
fn an_unreported_setting_is_restored_without_pod_or_driver() {
    for (what, driver, lives) in [
        ("dead", Some("mlx5_core"), false),
        ("without driver", None, true),
        ("dead, without driver", None, false),
    ] {
        let (node, pod, config, before, _) = added(&KINDS);
        if driver.is_none() {
            node.kernel.with(|world| world.bind("0000:3b:00.2", driver));
        }
        if !lives {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        let is_set_up = |line: &String| line.contains("function 0000:3b:00.2: mac");
        let mut left = before.differences(&node.snapshot());
        left.retain(is_set_up);
        assert_eq!(left, [] as [&str; 0], "{what}");
        assert_eq!(node.records(), [] as [&str; 0], "{what}");
    }
}

#[test]
fn a_failed_add_and_a_killed_one_put_it_back() {
    let (node, ..) = added(&KINDS);
    let changes = node.changes();
    for at in 1..=changes {
        for verdict in [
            Verdict::Refuse(Errno::EIO),
            Verdict::DieBefore,
            Verdict::DieAfter,
        ] {
            let node = self::node(&KINDS);
            let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
            let before = node.snapshot();
            match verdict {
                Verdict::Refuse(_) => {
                    node.script(move |number| match number == at {
                        true => verdict,
                        false => Verdict::Proceed,
                    });
                    node.add(&pod, &config);
                    node.kernel.begin();
                }
                _ => assert!(node.kill(at, verdict, |node| drop(node.add(&pod, &config)))),
            }
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, &format!("{verdict:?} at {at}"));
        }
    }
}

#[test]
fn an_unrestored_setting_is_noted() {
    let (node, pod, config, ..) = added(&KINDS);
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::SetVf {
            setting: VfSetting::Trust(_),
            ..
        } => Verdict::Refuse(Errno::EIO),
        _ => Verdict::Proceed,
    });
    node.del(&pod, &config).must_succeed();
    let notes = given_up::read(&node.state.path().join("state")).unwrap();
    let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
    let [lack] = &lacks[..] else {
        panic!("{lacks:?}");
    };
    assert_eq!(lack.attribute, Attribute::Vf(VfSettingKind::Trust));
}

/// DEL could not restore such a setting, because its earlier value is unknown.
#[test]
fn a_setting_without_default_is_refused_before_any_change() {
    for kind in [
        VfSettingKind::Vlan,
        VfSettingKind::Mac,
        VfSettingKind::Rates,
        VfSettingKind::LinkState,
    ] {
        let node = node(&[kind]);
        let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
        let before = node.snapshot();
        let message = node.add(&pod, &config).must_fail(7);
        let field = network_conf::vf::fields(kind);
        let reason = format!(
            "{field}: eth2 cannot have these settings: the driver of its physical function does not report their present \
             values, so rdma-cni could not restore them"
        );
        assert_eq!(message, reason);
        node.must_be(&before, &reason);
        // ADD succeeds, because the configuration does not request the unreported setting
        let mut config = node.one_rail();
        config["spoofchk"] = json!("off");
        node.add(&pod, &config).must_succeed();
    }
}
