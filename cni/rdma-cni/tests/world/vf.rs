// SPDX-License-Identifier: Apache-2.0
//! Tests of virtual functions that the physical function sets up while a pod has them: sriov-cni's fields.

use crate::node::host_change;
use crate::node::{Node, Pod, mac, name};
use attachments::{Attribute, given_up};
use fake_kernel::{Verdict, world::HOST};
use nix::errno::Errno;
use rdma_netns::{
    InterfaceName, Kernel as _, LinkChange, NetnsSide, Op, RdmaMode, VfLinkState, VfRates,
    VfSetting, VfSettingKind, VfVlan, VlanProtocol,
};
use serde_json::{Value, json};

const MAC: &str = "ca:fe:c0:ff:ee:00";

/// Returns the example of sriov-cni's reference (`docs/configuration-reference.md`), with another type and device.
fn example() -> Value {
    json!({
        "cniVersion": "0.3.1",
        "name": "sriov-dpdk",
        "type": "rdma-cni",
        "deviceID": "0000:3b:00.2",
        "mac": "CA:FE:C0:FF:EE:00",
        "vlan": 1000,
        "vlanQoS": 4,
        "vlanProto": "802.1ad",
        "min_tx_rate": 100,
        "max_tx_rate": 200,
        "spoofchk": "off",
        "trust": "on",
        "link_state": "enable",
        "logLevel": "debug",
        "logFile": "/tmp/sriov.log",
    })
}

/// Returns the configuration of one rail with all settings of virtual functions.
pub(crate) fn one_rail_set_up(node: &Node) -> Value {
    with(&node.one_rail(), &example())
}

fn with(config: &Value, settings: &Value) -> Value {
    let mut config = config.clone();
    for (field, value) in settings.as_object().unwrap() {
        if config.get(field).is_none() {
            config[field] = value.clone();
        }
    }
    config
}

fn set_up() -> Vec<VfSetting> {
    vec![
        VfSetting::Vlan(VfVlan {
            id: 1000,
            qos: 4,
            protocol: VlanProtocol::Service,
        }),
        VfSetting::Mac(mac(MAC)),
        VfSetting::Rates(VfRates { min: 100, max: 200 }),
        VfSetting::SpoofCheck(false),
        VfSetting::Trust(true),
        VfSetting::LinkState(VfLinkState::Enable),
    ]
}

fn settings(node: &Node, address: &str) -> Vec<VfSetting> {
    let address = address.to_owned().try_into().unwrap();
    node.kernel
        .vf(&address)
        .unwrap()
        .expect("a function")
        .settings
}

#[track_caller]
fn has(node: &Node, address: &str, expected: &[VfSetting]) {
    let settings = settings(node, address);
    for setting in expected {
        assert!(settings.contains(setting), "{setting}: {settings:?}");
    }
}

/// Returns true if the operation sets up a virtual function: a setting of its PF, or the MAC address of its netdev.
pub(crate) fn sets_up_function(op: &Op) -> bool {
    matches!(
        op,
        Op::SetVf { .. }
            | Op::Link {
                change: LinkChange::Mac(_),
                ..
            }
    )
}

fn set(node: &Node, setting: VfSetting) {
    let pf = name("ens1np0");
    let op = Op::SetVf {
        pf,
        number: 0,
        setting,
    };
    node.kernel.with(|world| world.execute(&op, None).unwrap());
}

fn check(node: &Node, pod: &Pod, config: &Value, result: &Value) -> crate::node::Answer {
    let config = with(config, &json!({ "prevResult": result }));
    node.run("CHECK", Some(pod), &config)
}

/// sriov-cni's documented configuration makes the same settings with `rdma-cni`. DEL restores all settings.
#[test]
fn the_documented_example_does_what_it_does_and_all_of_it_is_put_back() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        // these settings differ from their defaults before ADD
        set(&node, VfSetting::SpoofCheck(true));
        set(&node, VfSetting::Rates(VfRates { min: 1, max: 2 }));
        let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
        let before = node.snapshot();
        let result = node.add(&pod, &config).must_succeed();
        has(&node, "0000:3b:00.2", &set_up());
        assert_eq!(result["interfaces"][0]["mac"], MAC);
        let netns = node.netns(&pod);
        let seen = |world: &mut fake_kernel::World| world.link(netns, "rdma0").unwrap().mac.clone();
        assert_eq!(node.kernel.with(seen), mac(MAC));
        let journal = node.kernel.journal();
        let place = |is_it: fn(&Op) -> bool| journal.iter().rposition(is_it).unwrap();
        let last = place(|op| matches!(op, Op::SetVf { .. }));
        assert!(
            last < place(|op| matches!(op, Op::MoveLink { .. })),
            "{journal:?}"
        );
        check(&node, &pod, &config, &result).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

#[test]
fn nics_that_are_not_requested_are_not_touched() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), with(&node.one_rail(), &json!({"vlan": 7})));
    node.add(&pod, &config).must_succeed();
    // another program changes a setting that the configuration does not request, so DEL keeps the change
    set(&node, VfSetting::Trust(true));
    node.del(&pod, &config).must_succeed();
    has(
        &node,
        "0000:3b:00.2",
        &[VfSetting::Trust(true), VfSetting::Vlan(VfVlan::NONE)],
    );
}

#[test]
fn check_reports_what_others_have_set_since() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let result = node.add(&pod, &config).must_succeed();
    set(&node, VfSetting::Trust(false));
    let drift = check(&node, &pod, &config, &result).must_fail(999);
    let expected = "vf 0 of ens1np0 has trust off, not trust on";
    assert!(drift.contains(expected), "{drift}");
}

#[test]
fn a_function_whose_pod_died_is_put_back() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.del(&pod, &config).must_succeed();
    let left = node.snapshot().without_numbers();
    let differences = before.without_numbers().differences(&left);
    let of_pod = |line: &&String| !line.contains(&*pod.netns.display().to_string());
    let on_host: Vec<_> = differences.iter().filter(of_pod).collect();
    assert_eq!(on_host, [] as [&String; 0]);
}

/// The function has no netdev and no RDMA device, but the physical function would still tag the function's frames.
#[test]
fn a_function_whose_driver_was_taken_off_is_put_back() {
    for driver in [None, Some("vfio-pci")] {
        for lives in [true, false] {
            let node = Node::new(RdmaMode::Exclusive);
            let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
            let before = settings(&node, "0000:3b:00.2");
            node.add(&pod, &config).must_succeed();
            node.kernel.with(|world| world.bind("0000:3b:00.2", driver));
            if !lives {
                node.kernel.with(|world| world.unmount(&pod.netns));
            }
            node.del(&pod, &config).must_succeed();
            assert_eq!(settings(&node, "0000:3b:00.2"), before, "{driver:?}");
        }
    }
}

/// A function that cannot leave its pod yet keeps the pod's VLAN. Otherwise its frames would reach another network.
#[test]
fn a_function_is_its_pods_until_it_has_left() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::MoveLink { .. } => Verdict::Refuse(Errno::EBUSY),
        _ => Verdict::Proceed,
    });
    node.del(&pod, &config).must_fail(107);
    let is_of_hardware = |it: &VfSetting| it.kind() == VfSettingKind::Mac;
    let mut kept = set_up();
    kept.retain(|it| !is_of_hardware(it));
    has(&node, "0000:3b:00.2", &kept);
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after another DEL");
}

/// The function keeps its number when its physical function is renamed.
#[test]
fn a_physical_function_can_have_another_name_by_then() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let before = settings(&node, "0000:3b:00.2");
    node.add(&pod, &config).must_succeed();
    let op = host_change("ens1np0", LinkChange::Rename(name("other")));
    node.kernel.with(|world| world.execute(&op, None).unwrap());
    node.del(&pod, &config).must_succeed();
    assert_eq!(settings(&node, "0000:3b:00.2"), before);
}

#[test]
fn a_setting_that_the_driver_refuses_is_reported_in_the_kernels_words_and_undone() {
    let node = Node::new(RdmaMode::Exclusive);
    node.kernel
        .with(|world| world.fixed_of_vfs = vec![VfSettingKind::LinkState]);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let before = node.snapshot();
    let message = node.add(&pod, &config).must_fail(106);
    let expected = "ip link set dev ens1np0 vf 0 state enable: Operation not supported";
    assert!(message.contains(expected), "{message}");
    node.must_be(&before, "undone");
}

#[test]
fn an_unrestored_vf_setting_returns_the_netdev_and_is_noted() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    node.add(&pod, &config).must_succeed();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::SetVf {
            setting: VfSetting::Vlan(_),
            ..
        } => Verdict::Refuse(Errno::EIO),
        _ => Verdict::Proceed,
    });
    node.del(&pod, &config).must_succeed();
    let eth2 = |world: &mut fake_kernel::World| world.link(HOST, "eth2").is_some();
    assert!(node.kernel.with(eth2));
    let notes = || given_up::read(&node.state.path().join("state")).unwrap();
    let [note] = &notes()[..] else {
        panic!("{:?}", notes());
    };
    let [lack] = &note.lacks[..] else {
        panic!("{note:?}");
    };
    assert_eq!(lack.attribute, Attribute::Vf(VfSettingKind::Vlan));
    assert!(lack.why.contains("vf 0 vlan 0: "), "{}", lack.why);
    let count = || {
        let functions = note.host_link.parent.iter().cloned().collect();
        let observed = node.kernel.observe_vfs(None, &functions).unwrap();
        plan::given_up::left(note, &observed).len()
    };
    assert_eq!(count(), 1);
    set(&node, VfSetting::Vlan(VfVlan::NONE));
    assert_eq!(count(), 0);
}

/// A pod's own address, from the runtime or from Multus, takes precedence over the network's.
#[test]
fn a_pod_chooses_its_hardware_address() {
    let [own, by_args] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
    let args = json!({"podArguments": ["mac"], "args": {"cni": {"mac": by_args}}});
    let runtime = json!({"podArguments": ["mac"], "runtimeConfig": {"mac": own}});
    for (more, expected) in [
        (with(&args, &runtime), own),
        (args, by_args),
        (runtime, own),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, config) = (
            node.pod("a"),
            with(&with(&node.one_rail(), &more), &example()),
        );
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["interfaces"][0]["mac"], expected);
        has(&node, "0000:3b:00.2", &[VfSetting::Mac(mac(expected))]);
    }
}

#[test]
fn a_netdev_that_is_no_vf_is_refused_with_a_reason() {
    let node = Node::new(RdmaMode::Shared);
    let pod = node.pod("a");
    let before = node.snapshot();
    let vlan = json!({"vlan": 7, "trust": "on"});
    let of = |device: &str| with(&json!({"deviceID": device}), &with(&node.one_rail(), &vlan));
    let mut shared = of("0000:3b:00.2");
    shared["mode"] = "share".into();
    let mut both = with(&node.two_rails(), &vlan);
    both["mac"] = MAC.into();
    let mut physical = of("0000:3b:00.0");
    physical["mode"] = "move".into();
    for (config, reason) in [
        (
            physical,
            "vlan, trust: ens1np0 cannot have these settings: it is no virtual function",
        ),
        (
            of("mlx5_core.sf.4"),
            "en4s0 cannot have these settings: it is no virtual function",
        ),
        (
            shared,
            "vlan, trust: eth2 cannot have these settings: pods get children of it",
        ),
        (
            both,
            "vlan, mac, trust: eth2 cannot have these settings: the pod has several rails",
        ),
    ] {
        let message = node.add(&pod, &config).must_fail(7);
        assert!(message.contains(reason), "{message}");
        node.must_be(&before, reason);
    }
}

/// A record with a name that is not UTF-8 could not be read again, and no verb would restore the function.
#[test]
fn a_physical_function_whose_name_is_no_text_is_refused() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    let op = host_change("ens1np0", LinkChange::Rename(InterfaceName::of_index(2)));
    node.kernel.with(|world| world.execute(&op, None).unwrap());
    let before = node.snapshot();
    let message = node.add(&pod, &config).must_fail(7);
    let reason =
        "eth2 cannot have these settings: the name of its physical function's netdev is not UTF-8";
    assert!(message.contains(reason), "{message}");
    node.must_be(&before, reason);
    node.add(&pod, &node.one_rail()).must_succeed();
}

/// sriov-cni, an earlier plugin of the chain, has moved the netdev and set it up. `rdma-cni` does not repeat this.
#[test]
fn a_vf_of_an_earlier_plugin_keeps_its_settings() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let netns = node.netns(&pod);
    let moved = Op::MoveLink {
        link: name("eth2"),
        from: NetnsSide::Host,
        to: NetnsSide::Pod,
        name: name("net1"),
    };
    node.kernel
        .with(|world| world.execute(&moved, Some(netns)).unwrap());
    let before = node.snapshot();
    let previous = json!({
        "args": {"cni": {"mac": MAC}},
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "net1", "sandbox": pod.netns}],
        },
    });
    let config = with(&node.one_rail(), &previous);
    let refused = node
        .add(&pod, &with(&config, &json!({"trust": "on"})))
        .must_fail(7);
    let expected = "trust: net1 cannot have these settings: an earlier plugin of the chain";
    assert!(refused.contains(expected), "{refused}");
    node.must_be(&before, "refused");
    // `args` is for the whole attachment: the earlier plugin has used `args.cni.mac`, and `rdma-cni` ignores it
    node.add(&pod, &config).must_succeed();
    assert!(!node.kernel.journal().iter().any(sets_up_function));
}
