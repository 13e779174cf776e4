// SPDX-License-Identifier: Apache-2.0
//! Tests of moved NICs whose carrier is missing in the pod. The kernel drops probes and announcements without a carrier.

use crate::{
    leases::bonds,
    node::{Node, host_change},
    probing::{Network, given, ip},
};
use fake_kernel::{Nic, Verdict};
use nix::errno::Errno;
use rdma_netns::{Kernel as _, LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A NIC that ADD moves, and that loses its carrier in the pod.
#[derive(Clone, Copy, Debug)]
struct Moved {
    /// True if the NIC is up on the host.
    is_up: bool,
    /// True if a cable is plugged into the NIC on the host.
    has_cable: bool,
    /// Number of pauses after which the carrier returns.
    pauses: Option<usize>,
    /// Pause after which an observation fails.
    fails_after: Option<usize>,
    probe: &'static str,
}

const MOVED: Moved = Moved {
    is_up: true,
    has_cable: true,
    pauses: Some(40),
    fails_after: None,
    probe: "on",
};

/// Runs ADD. Another machine has the first address. Returns the rail's addresses, and the time that ADD took.
fn add_moved(moved: Moved) -> (Vec<String>, Duration) {
    let mut world = bonds(1);
    world.plug(Nic::physical("0000:5e:00.0", "eth9", "mlx5_9"));
    let up = host_change("eth9", LinkChange::Up(moved.is_up));
    world.execute(&up, None).unwrap();
    world.cable(None, "eth9", moved.has_cable).unwrap();
    world.rdma_mode = Some(RdmaMode::Exclusive);
    let network = Network::on(Node::with(world), 1);
    let node = &network.node;
    let pod = node.pod("a");
    let netns = node.netns(&pod);
    node.kernel
        .with(|world| world.duplicates.push(ip("10.0.0.70")));
    node.kernel.intercept(move |world, step| {
        let is_up = matches!(
            step.op,
            Op::Link {
                at: NetnsSide::Pod,
                change: LinkChange::Up(true),
                ..
            }
        );
        if is_up {
            world.cable(Some(netns), "rdma0", false).unwrap();
        }
        Verdict::Proceed
    });
    let paused = Arc::new(AtomicUsize::new(0));
    let pauses = paused.clone();
    node.kernel.manage(move |world| {
        let link = world.link(netns, "rdma0");
        if link.is_some_and(|it| it.up && !it.carrier) {
            let number = 1 + pauses.fetch_add(1, Ordering::Relaxed);
            if Some(number) == moved.pauses {
                world.cable(Some(netns), "rdma0", true).unwrap();
            }
        }
    });
    let mut fails_after = moved.fails_after;
    node.kernel.blind(move |_, _| {
        let fails = fails_after == Some(paused.load(Ordering::Relaxed));
        fails.then(|| fails_after.take()).map(|_| Errno::EIO)
    });
    let devices = json!([{ "netdev": "eth9" }]);
    let config = network.config(json!({ "devices": devices, "probe": moved.probe }));
    let start = node.kernel.now();
    node.add(&pod, &config).must_succeed();
    (given(node, &pod, "rdma0"), node.kernel.now() - start)
}

/// After a move a driver reports the carrier later than the kernel reports the netdev up: mlx5 after an event of its
/// firmware, iavf after an answer of the PF's driver.
#[test]
fn a_moved_netdev_is_probed_when_its_carrier_has_come() {
    let is_down = Moved {
        is_up: false,
        ..MOVED
    };
    // a restore returned the netdev just before
    let is_pending = Moved {
        has_cable: false,
        ..MOVED
    };
    for moved in [MOVED, is_down, is_pending] {
        let (addresses, _) = add_moved(moved);
        assert_eq!(addresses, ["10.0.0.71", "fd00::71"], "{moved:?}");
    }
    // ADD also waits before it announces an address without a probe
    let (addresses, time) = add_moved(Moved {
        probe: "off",
        ..MOVED
    });
    assert_eq!(addresses, ["10.0.0.70", "fd00::70"]);
    assert!(time >= Duration::from_millis(400), "{time:?}");
}

#[test]
fn a_carrier_that_does_not_come_is_not_awaited_long() {
    let never = Moved {
        pauses: None,
        ..MOVED
    };
    let (addresses, time) = add_moved(never);
    assert_eq!(addresses, ["10.0.0.70", "fd00::70"]);
    let limits = Duration::from_secs(5)..Duration::from_secs(6);
    assert!(limits.contains(&time), "{time:?}");
    // an observation that fails ends the wait, and not ADD
    let (_, time) = add_moved(Moved {
        fails_after: Some(3),
        ..never
    });
    assert!(time < Duration::from_secs(1), "{time:?}");
}

#[test]
fn without_a_carrier_the_pod_starts() {
    let mut world = bonds(1);
    world.plug(Nic::physical("0000:5e:00.0", "eth9", "mlx5_9"));
    let up = host_change("eth9", LinkChange::Up(true));
    world.execute(&up, None).unwrap();
    world.cable(None, "eth9", false).unwrap();
    let network = Network::on(Node::with(world), 1);
    let node = &network.node;
    node.kernel
        .with(|world| world.duplicates.push(ip("10.0.0.70")));
    let pod = node.pod("a");
    let config = network.config(json!({ "devices": [{ "netdev": "eth9" }] }));
    node.add(&pod, &config).must_succeed();
    assert_eq!(network.probed(), [[""; 0]]);
    assert_eq!(given(node, &pod, "rdma0"), ["10.0.0.70", "fd00::70"]);
}
