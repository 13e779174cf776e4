// SPDX-License-Identifier: Apache-2.0
//! Tests of pods that rename RDMA devices to names with any bytes. In exclusive mode a pod can rename its own RDMA
//! devices, in shared mode all of them.

use crate::node::{Node, Pod};
use fake_kernel::{Nic, world::HOST};
use rdma_netns::{LinkChange, NetnsSide, Op, RdmaMode, rdma::name};
use serde_json::json;

fn rename(from: &str, to: &[u8]) -> Op {
    Op::RenameRdma {
        at: NetnsSide::Pod,
        device: from.to_owned(),
        name: name::text(to),
    }
}

const NAMES: [&[u8]; 3] = [b"roce", b"\xff\xfe", b"a/b\n"];

/// The verb that restores the name: DEL, GC, or the ADD of another pod.
#[derive(Clone, Copy, Debug)]
enum By {
    Del,
    Gc,
    Add,
}

#[track_caller]
fn is_back(name: &[u8], by: By, mode: RdmaMode, dies: bool) {
    let what = format!("{:?} by {by:?}, {mode}, dies: {dies}", name::text(name));
    let node = Node::new(mode);
    let config = node.two_rails();
    let other = node.pod("b");
    let mut before = node.snapshot();
    let pod = node.pod("a");
    if !dies {
        before = node.snapshot();
    }
    node.add(&pod, &config).must_succeed();
    node.change(Some(&pod), &rename("mlx5_2", name));
    if dies {
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    match by {
        By::Del => drop(node.del(&pod, &config).must_succeed()),
        By::Gc => drop(node.gc(&[], &config).must_succeed()),
        By::Add => {
            node.add(&other, &config).must_succeed();
            let netns = match mode {
                RdmaMode::Exclusive => node.netns(&other),
                RdmaMode::Shared => HOST,
            };
            let place = node.kernel.with(|world| world.place_of_rdma("mlx5_2"));
            assert_eq!(place, Some(netns), "{what}");
            node.del(&other, &config).must_succeed();
        }
    }
    node.must_be(&before, &what);
}

#[test]
fn a_renamed_device_comes_home_under_its_name() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        for name in NAMES {
            for dies in [false, true] {
                is_back(name, By::Del, mode, dies);
                is_back(name, By::Gc, mode, dies);
            }
            is_back(name, By::Add, mode, true);
        }
    }
}

/// ADD of the other pod restores the name first, and then finds the device by its RDMA name or by its netdev.
#[test]
fn another_pod_gets_the_device_that_a_living_pod_renamed() {
    for selector in [json!({"rdma": "mlx5_0"}), json!({"netdev": "ens1np0"})] {
        for name in NAMES {
            let node = Node::new(RdmaMode::Shared);
            let up = Op::Link {
                at: NetnsSide::Host,
                link: crate::node::name("ens1np0"),
                change: LinkChange::Up(true),
            };
            node.change(None, &up);
            let config = node.config(json!({"mode": "share", "devices": [selector]}));
            let (one, two) = (node.pod("a"), node.pod("b"));
            let before = node.snapshot();
            let mut checked = config.clone();
            checked["prevResult"] = node.add(&one, &config).must_succeed();
            node.run("CHECK", Some(&one), &checked).must_succeed();
            node.change(Some(&one), &rename("mlx5_0", name));
            let message = node.run("CHECK", Some(&one), &checked).message();
            assert!(
                message.contains("RDMA device mlx5_0 is called"),
                "{message}"
            );
            node.add(&two, &config).must_succeed();
            let place = node.kernel.with(|world| world.place_of_rdma("mlx5_0"));
            assert_eq!(place, Some(HOST));
            node.change(Some(&two), &rename("mlx5_0", name));
            node.del(&two, &config).must_succeed();
            node.del(&one, &config).must_succeed();
            node.must_be(&before, &format!("{:?}", name::text(name)));
        }
    }
}

#[test]
fn two_devices_with_each_others_names() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        for dies in [false, true] {
            let node = Node::new(mode);
            let mut before = node.snapshot();
            let pod = node.pod("a");
            if !dies {
                before = node.snapshot();
            }
            node.add(&pod, &node.two_rails()).must_succeed();
            for (from, to) in [("mlx5_2", "x"), ("mlx5_3", "mlx5_2"), ("x", "mlx5_3")] {
                node.change(Some(&pod), &rename(from, to.as_bytes()));
            }
            if dies {
                node.kernel.with(|world| world.unmount(&pod.netns));
            }
            node.del(&pod, &node.two_rails()).must_succeed();
            node.must_be(&before, &format!("{mode}, dies: {dies}"));
        }
    }
}

/// DEL succeeds, the device gets a temporary name instead of the pod's name, and a note for `doctor` reports this.
#[test]
fn a_name_that_another_device_has_by_now() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let pod = node.pod("a");
        node.add(&pod, &node.two_rails()).must_succeed();
        node.change(Some(&pod), &rename("mlx5_2", b"\xff"));
        node.kernel.with(|world| {
            world.plug(Nic::physical("0000:5e:00.0", "ens9", "mlx5_2"));
        });
        let address = "0000:3b:00.2".to_owned().try_into().expect("an address");
        let device = || {
            node.kernel
                .with(|world| world.rdma_device(&address))
                .expect("it")
        };
        let stopgap = format!("ibdev{}", device().index);
        node.del(&pod, &node.two_rails()).must_succeed();
        assert_eq!(device().name, stopgap, "{mode}");
        let notes = attachments::given_up::read(&node.state.path().join("state")).expect("notes");
        let why: Vec<&str> = notes
            .iter()
            .flat_map(|it| &it.lacks)
            .map(|it| &*it.why)
            .collect();
        let is_reported = why
            .iter()
            .any(|it| it.contains(&format!("rdma dev set {stopgap} name mlx5_2")));
        assert!(is_reported, "{mode}: {why:?}");
    }
}

/// A pod has moved its renamed device into another namespace.
#[test]
fn a_renamed_device_elsewhere_is_not_gone() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let nested: Pod = node.pod("nested");
    node.add(&pod, &node.two_rails()).must_succeed();
    node.change(Some(&pod), &rename("mlx5_2", b"\xff"));
    let device = name::text(b"\xff");
    let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
    node.change(
        Some(&pod),
        &Op::MoveRdma {
            device: device.clone(),
            from,
            to,
        },
    );
    node.change(
        Some(&nested),
        &Op::MoveRdma {
            device: device.clone(),
            from: to,
            to: from,
        },
    );
    let message = node.del(&pod, &node.two_rails()).must_fail(107);
    assert!(
        message.contains("mlx5_2 is not back on the host"),
        "{message}"
    );
    node.kernel.with(|world| world.unmount(&nested.netns));
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "after both");
}
