// SPDX-License-Identifier: Apache-2.0
//! Tests of GUIDs of InfiniBand functions: field `guid` of ib-sriov-cni.

use crate::node::{Answer, Node, Pod, address, furnished, name, settle};
use attachments::{Attribute, Store, given_up};
use fake_kernel::{Nic, Snapshot, Verdict, World, world::HOST};
use nix::errno::Errno;
use rdma_netns::{
    DeviceAddress, Guid, Kernel as _, Link, LinkChange, NetnsId, NetnsSide, Op, RdmaMode,
    VfSetting, VfSettingKind,
};
use serde_json::{Value, json};

pub(crate) const PF: &str = "0000:5e:00.0";
pub(crate) const FUNCTION: &str = "0000:5e:00.2";
pub(crate) const GUID: &str = "02:00:00:00:00:00:00:77";
const NODE: Guid = Guid(0x0200_0000_0000_0a01);
const PORT: Guid = Guid(0x0200_0000_0000_0a02);

fn guid() -> Guid {
    GUID.parse().unwrap()
}

pub(crate) fn function() -> DeviceAddress {
    FUNCTION.to_owned().try_into().unwrap()
}

/// Returns a world with an InfiniBand port and a virtual function of it, with the GUIDs `node` and `port`. A zero GUID
/// means that the physical function has set none.
fn with_function(mode: RdmaMode, nic: Nic, [node, port]: [Guid; 2]) -> World {
    let mut world = furnished(mode);
    world.plug(Nic::infiniband(PF, "mlx5_6"));
    world.plug(nic);
    let named = world.name_by_udev(FUNCTION, name("ibp94s0v0"));
    named.unwrap_or_else(|refusal| panic!("{refusal}"));
    let device = function();
    let (at, link) = (NetnsSide::Host, name("ibp94s0v0"));
    let set = |setting| Op::SetVf {
        pf: name("ib0"),
        number: 0,
        setting,
    };
    for op in [
        set(VfSetting::NodeGuid(node)),
        set(VfSetting::PortGuid(port)),
        Op::RebindDriver {
            device,
            driver: "mlx5_core".to_owned(),
        },
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Up(true),
        },
        Op::Link {
            at,
            link,
            change: LinkChange::AddAddress(address("10.3.0.5/24")),
        },
    ] {
        world
            .execute(&op, None)
            .unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }
    settle(&mut world);
    world
}

fn nic() -> Nic {
    Nic::infiniband_function(FUNCTION, PF, "mlx5_7")
}

/// Returns a node whose set-up has given GUIDs to the function.
pub(crate) fn node(mode: RdmaMode) -> Node {
    Node::with(world(mode))
}

/// Returns a world whose set-up has given GUIDs to the function, without a state directory.
pub(crate) fn world(mode: RdmaMode) -> World {
    with_function(mode, nic(), [NODE, PORT])
}

/// Returns a configuration that gives the function another GUID.
pub(crate) fn config(node: &Node) -> Value {
    node.config(json!({ "deviceID": FUNCTION, "guid": GUID }))
}

fn function_settings(node: &Node) -> Vec<VfSetting> {
    let vf = node.kernel.vf(&function()).unwrap();
    let mut settings = vf.expect("a function").settings;
    settings.retain(|it| it.guid().is_some());
    settings
}

fn both(node: Guid, port: Guid) -> Vec<VfSetting> {
    vec![VfSetting::NodeGuid(node), VfSetting::PortGuid(port)]
}

/// Returns the namespace of the function's netdev, and the GUIDs of the function's devices.
fn own(node: &Node) -> (NetnsId, [Guid; 2]) {
    node.kernel.with(|world| {
        let observed = world.rdma_device(&function()).expect("an RDMA device");
        let namespaces = [Some(HOST), world.namespace_at("/run/netns/a")];
        let mut found = namespaces.into_iter().flatten().flat_map(|netns| {
            let links: Vec<Link> = world.links(netns).into_iter().cloned().collect();
            links.into_iter().map(move |link| (netns, link))
        });
        let (netns, link) = found
            .find(|(_, link)| link.parent == Some(function()))
            .expect("a netdev");
        assert!(!Guid::is_changed(&link), "{link:?}");
        let guids = [Guid::of_node(&observed), Guid::of_port(&link)];
        (netns, guids.map(|it| it.expect("a GUID")))
    })
}

/// Asserts that the host is as before, without records. Ignores numbers and the pods' namespaces.
#[track_caller]
pub(crate) fn must_be_as_before(node: &Node, before: &Snapshot, what: &str) {
    let left = node.snapshot().without_numbers();
    let differences = before.without_numbers().differences(&left);
    let of_host = |line: &&String| !line.contains("/run/netns/");
    let on_host: Vec<&String> = differences.iter().filter(of_host).collect();
    assert!(on_host.is_empty(), "{what}: {on_host:#?}");
    assert_eq!(node.records(), [] as [&str; 0], "{what}");
}

fn check(node: &Node, pod: &Pod, config: &Value, result: &Value) -> Answer {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    node.run("CHECK", Some(pod), &config)
}

#[test]
fn the_pod_has_the_guid_and_the_host_has_back_what_it_had() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = node(mode);
        let (pod, config) = (node.pod("a"), config(&node));
        let before = node.snapshot();
        assert_eq!(own(&node), (HOST, [NODE, PORT]));
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(own(&node), (node.netns(&pod), [guid(); 2]), "{mode}");
        assert_eq!(function_settings(&node), both(guid(), guid()));
        let mac = result["interfaces"][0]["mac"].as_str().unwrap();
        assert!(mac.ends_with(GUID), "{mac}");
        let journal = node.kernel.journal();
        let place = |is_it: fn(&Op) -> bool| journal.iter().rposition(is_it).unwrap();
        let rebind = place(|op| matches!(op, Op::RebindDriver { .. }));
        assert!(place(|op| matches!(op, Op::SetVf { .. })) < rebind);
        let is_move = |op: &Op| matches!(op, Op::MoveRdma { .. } | Op::MoveLink { .. });
        let moves = journal.iter().position(is_move).unwrap();
        assert!(rebind < moves, "{journal:?}");
        check(&node, &pod, &config, &result).must_succeed();
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        assert_eq!(node.rebinds(), 1);
        assert_eq!(own(&node), (HOST, [NODE, PORT]));
        must_be_as_before(&node, &before, "after DEL");
    }
}

#[test]
fn a_function_that_has_the_guid_is_left_as_it_is() {
    let world = with_function(RdmaMode::Exclusive, nic(), [guid(), guid()]);
    let node = Node::with(world);
    let (pod, config) = (node.pod("a"), config(&node));
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    must_be_as_before(&node, &before, "after DEL");
    let is_change = |op: &Op| matches!(op, Op::SetVf { .. } | Op::RebindDriver { .. });
    assert!(!node.kernel.journal().iter().any(is_change));
}

/// The physical function reports zero for a GUID that it has not set, even if the firmware has one.
#[test]
fn firmware_guids_are_restored_or_set_to_ones() {
    let own_guid = Guid(0x0200_0000_0000_0b01);
    for (firmware, expected) in [(own_guid, own_guid), (Guid::ZERO, Guid::ONES)] {
        let nic = nic().with_guid(firmware.0);
        let world = with_function(RdmaMode::Exclusive, nic, [Guid::ZERO; 2]);
        let node = Node::with(world);
        let (pod, config) = (node.pod("a"), config(&node));
        assert_eq!(own(&node).1, [firmware; 2]);
        node.add(&pod, &config).must_succeed();
        assert_eq!(own(&node).1, [guid(); 2]);
        node.del(&pod, &config).must_succeed();
        assert_eq!(function_settings(&node), both(expected, expected));
        assert_eq!(own(&node), (HOST, [expected; 2]));
        // each later pod has the same result
        node.add(&pod, &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        assert_eq!(own(&node), (HOST, [expected; 2]));
    }
}

/// The administrator had set a hardware address that does not end with the port's GUID. DEL also restores this address.
#[test]
fn an_address_that_was_set_on_the_host_is_put_back() {
    let node = node(RdmaMode::Exclusive);
    let (at, link) = (NetnsSide::Host, name("ibp94s0v0"));
    let present = |world: &mut World| world.link(HOST, "ibp94s0v0").unwrap().mac.clone();
    let mut mac = node.kernel.with(present);
    mac.0[19] = 0xee;
    let address = mac.clone();
    node.change(
        None,
        &Op::Link {
            at,
            link,
            change: LinkChange::Mac(mac),
        },
    );
    let (pod, config) = (node.pod("a"), config(&node));
    node.add(&pod, &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.kernel.with(present).0[12..], address.0[12..]);
}

/// A pod's own GUID, from the runtime or from ib-kubernetes, takes precedence over the network's GUID.
#[test]
fn a_pod_chooses_its_guid() {
    let [runtime, by_args] = ["02:00:00:00:00:00:00:01", "02:00:00:00:00:00:00:02"];
    let of_runtime = json!({ "infinibandGUID": runtime });
    let of_args = json!({ "cni": { "guid": by_args } });
    for (runtime_config, args, expected) in [
        (of_runtime.clone(), of_args.clone(), runtime),
        (of_runtime, json!({}), runtime),
        (json!({}), of_args, by_args),
        (json!({ "infinibandGUID": "" }), json!({}), GUID),
    ] {
        let node = node(RdmaMode::Exclusive);
        let (pod, mut config) = (node.pod("a"), config(&node));
        config["podArguments"] = json!(["guid"]);
        config["runtimeConfig"] = runtime_config;
        config["args"] = args;
        node.add(&pod, &config).must_succeed();
        assert_eq!(own(&node).1, [expected.parse().unwrap(); 2]);
    }
}

#[test]
fn check_reports_what_others_have_set_since() {
    let node = node(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), config(&node));
    let result = node.add(&pod, &config).must_succeed();
    let (pf, number) = (name("ib0"), 0);
    let setting = VfSetting::PortGuid(PORT);
    let op = Op::SetVf {
        pf,
        number,
        setting,
    };
    node.change(None, &op);
    let drift = check(&node, &pod, &config, &result).must_fail(999);
    let expected = format!("vf 0 of ib0 has port_guid {PORT}, not port_guid {GUID}");
    assert!(drift.contains(&expected), "{drift}");
}

/// After the driver was bound again, the record has the RDMA device's new name and index.
#[test]
fn a_netdev_that_a_driver_made_again_is_found_after_udev() {
    for udev in [0, 3] {
        let mut world = with_function(RdmaMode::Shared, nic(), [NODE, PORT]);
        world.udev = udev;
        let node = Node::with(world);
        let (pod, config) = (node.pod("a"), config(&node));
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        let store = Store::new(&node.state.path().join("state"));
        let records = store.living(&node.kernel, &node.kernel.boot_id().unwrap());
        let [record] = &records.unwrap()[..] else {
            panic!("one record");
        };
        let present = node.kernel.with(|world| world.rdma_device(&function()));
        let (present, recorded) = (present.unwrap(), record.rails[0].rdma.clone().unwrap());
        assert_eq!(
            (&present.name, present.index),
            (&recorded.name, recorded.index)
        );
        let journal = node.kernel.journal();
        let moved = journal.iter().find_map(|op| match op {
            Op::MoveLink { link, .. } => Some(link.clone()),
            _ => None,
        });
        assert_eq!(moved, Some(name("ibp94s0v0")), "{journal:?}");
        node.del(&pod, &config).must_succeed();
        must_be_as_before(&node, &before, "after DEL");
    }
}

/// The move of the RDMA device also makes a new netdev, and udev renames it.
#[test]
fn a_rebound_function_moves_while_udev_renames_its_netdev() {
    for udev in 0..4 {
        let mut world = world(RdmaMode::Exclusive);
        world.udev = udev;
        let node = Node::with(world);
        let (pod, config) = (node.pod("a"), config(&node));
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        must_be_as_before(&node, &before, &format!("after DEL, {udev}"));
    }
}

#[test]
fn without_guids_the_driver_is_not_bound_anew() {
    let node = node(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let config = node.config(json!({ "deviceID": FUNCTION, "link_state": "enable" }));
    let before = node.snapshot();
    node.add(&pod, &config).must_succeed();
    assert_eq!(node.rebinds(), 0);
    node.del(&pod, &config).must_succeed();
    must_be_as_before(&node, &before, "after DEL");
}

#[test]
fn a_device_without_guids_is_refused_with_a_reason() {
    let node = node(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let of = |device: &str| node.config(json!({ "deviceID": device, "guid": GUID }));
    let mut physical = of(PF);
    physical["mode"] = "move".into();
    let mut both = node.two_rails();
    both["guid"] = GUID.into();
    for (config, reason) in [
        (
            of("0000:3b:00.2"),
            "guid: eth2 cannot have these settings: it is no InfiniBand function",
        ),
        (
            physical,
            "guid: ib0 cannot have these settings: it is no virtual function",
        ),
        (
            both,
            "guid: eth2 cannot have these settings: the pod has several rails",
        ),
    ] {
        let message = node.add(&pod, &config).must_fail(7);
        assert!(message.contains(reason), "{message}");
        node.must_be(&before, reason);
    }
    node.kernel.with(|world| {
        world.unreported_of_vfs = vec![VfSettingKind::NodeGuid, VfSettingKind::PortGuid];
    });
    let message = node.add(&pod, &config(&node)).must_fail(7);
    let expected = "guid: ibp94s0v0 cannot have these settings: the driver of its physical function does not report the GUIDs";
    assert!(message.contains(expected), "{message}");
    assert_eq!(node.records(), [] as [&str; 0]);
}

/// A network of ib-kubernetes has `pkey` and a GUID, but the subnet manager sets the partition. ADD refuses `pkey` for
/// an Ethernet netdev.
#[test]
fn a_partition_is_the_subnet_managers_and_refused_where_there_is_none() {
    let node = node(RdmaMode::Shared);
    let (pod, mut config) = (node.pod("a"), config(&node));
    config["pkey"] = "0x8001".into();
    let before = node.snapshot();
    let result = node.add(&pod, &config).must_succeed();
    assert_eq!(own(&node).1, [guid(); 2]);
    check(&node, &pod, &config, &result).must_succeed();
    node.del(&pod, &config).must_succeed();
    must_be_as_before(&node, &before, "after DEL");
    let ethernet = |mode: &str| {
        node.config(json!({ "deviceID": "0000:3b:00.2", "mode": mode, "pkey": "0x8001" }))
    };
    for mode in ["move", "share"] {
        let message = node.add(&pod, &ethernet(mode)).must_fail(7);
        let expected = "pkey: eth2 cannot have these settings: the netdev is not InfiniBand, so";
        assert!(message.contains(expected), "{message}");
        must_be_as_before(&node, &before, mode);
    }
}

/// The physical function refuses the host's GUIDs, so DEL does not bind the driver in vain. The function keeps the
/// pod's GUIDs, and a note records this.
#[test]
fn an_unrestored_guid_returns_the_device_and_is_noted() {
    let node = node(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), config(&node));
    node.add(&pod, &config).must_succeed();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::SetVf { .. } => Verdict::Refuse(Errno::EIO),
        _ => Verdict::Proceed,
    });
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.rebinds(), 0);
    assert_eq!(own(&node), (HOST, [guid(); 2]));
    let has_name = |world: &mut World| world.link(HOST, "ibp94s0v0").is_some();
    assert!(node.kernel.with(has_name));
    let notes = given_up::read(&node.state.path().join("state")).unwrap();
    let lacks: Vec<&Attribute> = notes[0].lacks.iter().map(|it| &it.attribute).collect();
    let expected = [VfSettingKind::NodeGuid, VfSettingKind::PortGuid].map(Attribute::Vf);
    assert_eq!(lacks, expected.iter().collect::<Vec<_>>());
}

/// The physical function reports the old GUID, but the function keeps the pod's GUID. DEL ends after some tries.
/// `plan::given_up::left` reports the difference while it exists.
#[test]
fn firmware_that_keeps_a_guid_is_not_bound_anew_for_ever() {
    let node = node(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), config(&node));
    node.add(&pod, &config).must_succeed();
    node.kernel
        .with(|world| world.stuck_guids = Some([guid().0; 2]));
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert!((1..20).contains(&node.rebinds()), "{}", node.rebinds());
    let notes = given_up::read(&node.state.path().join("state")).unwrap();
    let lacks: Vec<&Attribute> = notes[0].lacks.iter().map(|it| &it.attribute).collect();
    assert_eq!(lacks, [&Attribute::Rebound]);
    let count = || {
        let functions = notes[0].host_link.parent.iter().cloned().collect();
        let observed = node.kernel.observe_vfs(None, &functions).unwrap();
        plan::given_up::left(&notes[0], &observed).len()
    };
    assert_eq!(count(), 1);
    node.kernel.with(|world| world.stuck_guids = None);
    let driver = "mlx5_core".to_owned();
    let device = notes[0].host_link.parent.clone().unwrap();
    node.change(None, &Op::RebindDriver { device, driver });
    assert_eq!(count(), 0);
}
