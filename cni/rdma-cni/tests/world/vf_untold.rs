// SPDX-License-Identifier: Apache-2.0
//! Settings of virtual functions that their driver takes and does not tell: the kernel has -1 for such a switch
//! (`rtnl_fill_vfinfo()`, `net/core/rtnetlink.c`).

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

/// A node whose driver tells no switch of `kinds`, with what drivers begin with: no trust, and spoof checks.
fn node(kinds: &[VfSettingKind]) -> Node {
    let node = Node::new(RdmaMode::Exclusive);
    let set = Op::SetVf {
        pf: crate::node::name("ens1np0"),
        number: 0,
        setting: VfSetting::SpoofCheck(true),
    };
    node.change(None, &set);
    node.kernel
        .with(|world| world.untold_of_vfs = kinds.to_vec());
    node
}

/// Counts the settings of `kind` since the process began.
fn times(node: &Node, kind: VfSettingKind) -> usize {
    let journal = node.kernel.journal();
    let is_it = |op: &&Op| matches!(op, Op::SetVf { setting, .. } if setting.kind() == kind);
    journal.iter().filter(is_it).count()
}

/// A pod with a function that is set up, on a node that was as the snapshot tells.
fn added(kinds: &[VfSettingKind]) -> (Node, Pod, Value, Snapshot, Value) {
    let node = node(kinds);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let before = node.snapshot();
    node.kernel.begin();
    let result = node.add(&pod, &config).must_succeed();
    (node, pod, config, before, result)
}

/// sriov-cni does not read back what it has set either.
#[test]
fn it_is_set_once_and_put_back_once() {
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
fn it_is_put_back_whatever_became_of_the_pod_and_the_driver() {
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
fn what_cannot_be_put_back_is_noted() {
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

/// The earlier value of other settings is unknown.
#[test]
fn what_has_no_default_is_refused_before_any_change() {
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
            "{field}: eth2 cannot be set up so: its driver does not report this setting, so rdma-cni could not \
             restore it"
        );
        assert_eq!(message, reason);
        node.must_be(&before, &reason);
        // a setting that is not requested need not be readable
        let mut config = node.one_rail();
        config["spoofchk"] = json!("off");
        node.add(&pod, &config).must_succeed();
    }
}
