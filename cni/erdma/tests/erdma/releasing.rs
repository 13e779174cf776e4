// SPDX-License-Identifier: Apache-2.0
//! Tests of `--release`: it removes the daemon's configuration, and no other configuration.

use crate::node::{NICS, Node, by_hand, changes, hardware, make, name};
use erdma::bring_up::{End, ReleaseError, Released, release};
use rdma_netns::{Address, LinkChange, NetnsSide, Op, Route};
use std::fs;

fn ends(released: &[Released]) -> Vec<String> {
    released.iter().map(Released::to_string).collect()
}

#[test]
fn release_leaves_the_node_as_it_was_and_can_be_repeated() {
    let node = Node::new();
    let before = node.snapshot();
    assert!(node.release().is_empty(), "nothing was given");
    node.settle(by_hand());
    let released = node.release();
    let expected = ["eth1: released, 6 changes", "eth2: released, 6 changes"];
    assert_eq!(ends(&released), expected);
    node.must_be(&before, "released");
    assert_eq!(node.records(), [""; 0]);
    assert!(node.release().is_empty());
    // a daemon can bring the NICs up again
    assert_eq!(changes(&node.settle(by_hand())), [6, 6]);
}

#[test]
fn later_addresses_of_others_stay_and_are_reported() {
    let node = Node::new();
    node.settle(by_hand());
    let (at, link) = (NetnsSide::Host, name("eth1"));
    node.make(&Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::AddAddress(Address::new("10.9.9.9".parse().expect("an address"), 24)),
    });
    node.make(&Op::Link {
        at,
        link,
        change: LinkChange::Mtu(4200),
    });
    let released = node.release();
    let expected = "eth1: released, 4 changes; eth1 has 10.9.9.9/24, which another program added later: not removed; \
                    eth1 stays up, because another program uses it; eth1 has MTU 4200, which another program set \
                    later: not changed";
    assert_eq!(ends(&released)[0], expected);
    assert!(released[0].is_complete());
    let link = node.link("eth1").expect("eth1");
    assert!(link.up);
    let ipv4: Vec<_> = link.addresses.iter().filter(|it| it.ip.is_ipv4()).collect();
    assert_eq!(ipv4.len(), 1);
    assert_eq!(node.records(), [""; 0]);
}

/// The gateway of the route is in the network of the daemon's address. After the release, the kernel refuses the route.
#[test]
fn a_route_of_others_that_the_kernel_refuses_to_set_again_is_reported() {
    let node = Node::new();
    let before = node.snapshot();
    node.settle(by_hand());
    let route = Route {
        gateway: Some([10, 0, 0, 253].into()),
        ..Route::new([10, 8, 0, 0].into(), 16)
    };
    node.make(&Op::Link {
        at: NetnsSide::Host,
        link: name("eth1"),
        change: LinkChange::AddRoute(route),
    });
    let released = node.release();
    let expected = "eth1: released, 6 changes; the kernel refuses to restore what another program added to eth1: \
                    ip route append 10.8.0.0/16 via 10.0.0.253 dev eth1: ";
    assert!(ends(&released)[0].starts_with(expected), "{released:?}");
    assert_eq!(ends(&released)[1], "eth2: released, 6 changes");
    assert!(released[0].is_complete());
    node.must_be(&before, "released");
    assert_eq!(node.records(), [""; 0]);
}

#[test]
fn a_nic_in_a_pod_is_released_when_it_has_return_to_the_host() {
    let node = Node::new();
    let before = node.snapshot();
    node.settle(by_hand());
    node.cni("ADD", "a");
    let in_pod = node.snapshot();
    let released = node.release();
    assert_eq!(released[0].end, End::InPod("team/train-0".to_owned()));
    assert!(!released[0].is_complete());
    assert!(released[1].is_complete());
    assert!(
        ends(&released)[0].contains("release it after the pod has ended"),
        "{released:?}"
    );
    assert_ne!(node.snapshot(), in_pod, "the other one was released");
    node.kernel.begin();
    node.cni("DEL", "a");
    node.kernel.with(|world| world.unmount("/run/netns/a"));
    assert!(node.release()[0].is_complete());
    node.must_be(&before, "released");
}

#[test]
fn a_nic_that_is_gone_has_nothing_to_release() {
    let node = Node::new();
    node.settle(by_hand());
    node.kernel.with(|world| world.unplug(NICS[0].0));
    let released = node.release();
    assert_eq!(released[0].end, End::Gone);
    assert_eq!(node.records(), [""; 0]);
}

#[test]
fn another_nic_in_the_same_place_is_not_touched() {
    let node = Node::new();
    node.settle(by_hand());
    node.kernel.with(|world| {
        world.unplug(NICS[0].0);
        // another NIC, with another hardware address, is in the slot now
        world.plug(hardware(0));
        make(
            world,
            &Op::Link {
                at: NetnsSide::Host,
                link: name("eth1"),
                change: LinkChange::Up(true),
            },
        );
    });
    let released = node.release();
    assert_eq!(released[0].end, End::Gone);
    assert!(node.link("eth1").expect("eth1").up);
}

#[test]
fn after_a_reboot_there_is_nothing_to_release() {
    let node = Node::new();
    node.settle(by_hand());
    node.kernel.with(fake_kernel::World::reboot);
    let before = node.snapshot();
    let released = node.release();
    assert!(
        released.iter().all(|it| it.end == End::Rebooted),
        "{released:?}"
    );
    assert_eq!((node.kernel.journal(), node.records()), (vec![], vec![]));
    node.must_be(&before, "nothing was done");
}

#[test]
fn a_daemon_that_runs_is_not_worked_against() {
    let node = Node::new();
    let mut process = node.process(by_hand());
    process.settle(&node.nics());
    let refused = release(&node.kernel, node.state.path());
    assert!(
        matches!(refused, Err(ReleaseError::Record(_))),
        "{refused:?}"
    );
    drop(process);
    assert_eq!(node.release().len(), 2);
}

#[test]
fn a_record_that_cannot_be_read_does_not_keep_the_others() {
    let node = Node::new();
    node.settle(by_hand());
    let path = node.state.path().join("erdma").join("0000:00:06.0.json");
    fs::write(&path, "{}").expect("written");
    let released = node.release();
    assert!(matches!(released[0].end, End::Failed(_)), "{released:?}");
    assert!(released[1].is_complete());
    assert!(path.exists());
}
