// SPDX-License-Identifier: Apache-2.0
//! Tests of one and of repeated calls of `settle`, which brings NICs up.

use crate::node::{
    NICS, Node, Process, by_hand, changes, furnished, hardware, make, metrics, name, words,
};
use erdma::bring_up::{Outcome, State};
use fake_kernel::{Verdict, world::HOST};
use nix::errno::Errno;
use rdma_netns::{Address, LinkChange, NetnsSide, Op};
use std::{fs, time::Duration};

pub(crate) const AT: NetnsSide = NetnsSide::Host;

fn retries(outcomes: &[Outcome]) -> Vec<u64> {
    let of = |outcome: &Outcome| outcome.retry_after().map_or(0, |it| it.as_secs());
    outcomes.iter().map(of).collect()
}

pub(crate) fn address(link: &str, ip: &str) -> Op {
    Op::Link {
        at: AT,
        link: name(link),
        change: LinkChange::AddAddress(Address::new(ip.parse().expect("an address"), 24)),
    }
}

pub(crate) fn set_up(link: &str, up: bool) -> Op {
    let link = name(link);
    Op::Link {
        at: AT,
        link,
        change: LinkChange::Up(up),
    }
}

#[test]
fn existing_configuration_is_left_alone() {
    let mut world = furnished();
    make(&mut world, &set_up("eth1", true));
    make(&mut world, &address("eth1", "10.0.0.66"));
    world.plug_bond(5);
    world.enslave("eth2", "bond5");
    let node = Node::with(world);
    let before = node.snapshot();
    let mut process = node.process(by_hand());
    let outcomes = process.settle(&node.nics());
    assert_eq!(
        words(&outcomes),
        [
            "erdma_0: left alone: eth1 has 10.0.0.66/24 already",
            "erdma_1: left alone: eth2 is a port of bond5"
        ]
    );
    assert!(outcomes.iter().all(|it| it.is_news));
    assert!(process.settle(&node.nics()).iter().all(|it| !it.is_news));
    assert_eq!((node.kernel.journal(), node.records()), (vec![], vec![]));
    node.must_be(&before, "left alone");
}

#[test]
fn an_address_that_another_netdev_has_is_refused() {
    let mut world = furnished();
    make(&mut world, &address("eth0", NICS[1].4));
    let node = Node::with(world);
    let outcomes = node.settle(by_hand());
    assert_eq!(changes(&outcomes[..1]), [6]);
    let expected = "erdma_1: not configured: 10.0.0.7 is already on eth0: remove it there, or give this NIC another \
                    address";
    assert_eq!(outcomes[1].to_string(), expected);
    assert_eq!(outcomes[1].retry_after(), Some(Duration::from_secs(60)));
    assert!(!node.link("eth2").expect("eth2").up);
    assert_eq!(node.records().len(), 1);
}

#[test]
fn an_impossible_address_in_the_configuration_is_refused() {
    let node = Node::new();
    let mut conf = by_hand();
    conf.addresses[0].gateway = Some([10, 0, 9, 253].into());
    conf.addresses[1].address = "10.0.0.255/24".parse().expect("an address");
    let messages = words(&node.settle(conf));
    assert!(
        messages[0].contains("gateway 10.0.9.253, which is not in 10.0.0.0/24"),
        "{messages:?}"
    );
    assert!(messages[1].contains("10.0.0.255/24"), "{messages:?}");
    assert_eq!(node.kernel.journal(), []);
}

#[test]
fn a_nic_without_carrier_is_configured_and_reported() {
    let mut world = furnished();
    world.cable(None, "eth1", false).expect("eth1");
    let node = Node::with(world);
    let mut process = node.process(by_hand());
    let outcomes = process.settle(&node.nics());
    let expected = "erdma_0: not ready yet: eth1 has 10.0.0.6/24, but no carrier";
    assert_eq!(outcomes[0].to_string(), expected);
    // the carrier may appear in a moment, so there is no report yet
    assert_eq!(
        (retries(&outcomes), outcomes[0].is_news),
        (vec![5, 30], false)
    );
    std::thread::sleep(Duration::from_secs(5));
    for is_news in [true, false] {
        let outcomes = process.settle(&node.nics());
        assert_eq!(
            (retries(&outcomes), outcomes[0].is_news),
            (vec![60, 30], is_news)
        );
    }
    // a NIC that disappears and returns has again the time to get a carrier
    process.settle(&[]);
    let outcomes = process.settle(&node.nics());
    assert_eq!(
        (retries(&outcomes), outcomes[0].is_news),
        (vec![5, 30], false)
    );
    node.kernel
        .with(|world| world.cable(None, "eth1", true).expect("eth1"));
    assert_eq!(changes(&process.settle(&node.nics())), [0, 0]);
}

#[test]
fn a_nic_without_room_for_jumbo_frames_or_without_a_gateway_is_reported() {
    let mut world = furnished();
    world.unplug(NICS[0].0);
    world.plug(hardware(0).with_max_mtu(1500));
    let node = Node::with(world);
    let mac = node.link("eth1").expect("eth1").mac;
    let mut conf = by_hand();
    conf.addresses[0].mac = mac.clone();
    conf.addresses[0].gateway = None;
    let mut nics = node.nics();
    nics[0].mac = Some(mac);
    let outcomes = node.process(conf).settle(&nics);
    let remarks = [
        "eth1 does not support the requested MTU: it keeps MTU 1500",
        "eth1 has no default route: its network has no known gateway",
    ];
    assert_eq!(outcomes[0].remarks, remarks);
    assert_eq!(node.link("eth1").expect("eth1").mtu, 1500);
}

/// Checks that `settle` repairs a node with two configured NICs after `happens`. `wanted` is the number of
/// changes that `settle` makes to each NIC.
fn mends(happens: impl FnOnce(&Node), wanted: [usize; 2]) -> (Node, Process) {
    let node = Node::new();
    let mut process = node.process(by_hand());
    process.settle(&node.nics());
    let before = node.snapshot();
    happens(&node);
    let outcomes = process.settle(&node.nics());
    assert_eq!(changes(&outcomes), wanted);
    let news: Vec<bool> = outcomes.iter().map(|it| it.is_news).collect();
    assert_eq!(news, wanted.map(|changes| changes > 0));
    node.must_be(&before, "mended");
    (node, process)
}

#[test]
fn a_flap_is_mended() {
    let flap = |node: &Node| {
        node.make(&set_up("eth1", false));
        node.make(&set_up("eth1", true));
    };
    mends(flap, [2, 0]);
}

#[test]
fn a_changed_mtu_and_a_deleted_route_are_restored() {
    let take = |node: &Node| {
        let route = node.link("eth2").expect("eth2").routes;
        let route = route
            .into_iter()
            .find(|it| it.prefix == 0)
            .expect("a default route");
        let link = name("eth2");
        node.make(&Op::Link {
            at: AT,
            link: link.clone(),
            change: LinkChange::Mtu(1500),
        });
        node.make(&Op::Link {
            at: AT,
            link,
            change: LinkChange::RemoveRoute(route),
        });
    };
    mends(take, [0, 2]);
}

#[test]
fn a_flushed_address_is_restored() {
    let flush = |node: &Node| {
        let link = node.link("eth1").expect("eth1");
        let given = link.addresses.iter().find(|it| it.ip.is_ipv4());
        node.make(&Op::Link {
            at: AT,
            link: link.name.clone(),
            change: LinkChange::RemoveAddress(given.expect("an address").clone()),
        });
    };
    let (node, mut process) = mends(flush, [3, 0]);
    // no event reports IPv4 addresses and routes, so the daemon observes every 30 s
    let outcomes = process.settle(&node.nics());
    assert_eq!(
        (changes(&outcomes), retries(&outcomes)),
        (vec![0, 0], vec![30, 30])
    );
}

#[test]
fn a_nic_with_an_upper_netdev_of_others_gets_another_prefix() {
    let node = Node::new();
    node.settle(by_hand());
    node.kernel
        .with(|world| world.add_macvlan(HOST, "eth1", &name("macvlan0")));
    let mut conf = by_hand();
    conf.addresses[0].address = "10.0.0.6/20".parse().expect("an address");
    assert_eq!(changes(&node.settle(conf.clone())), [5, 0]);
    assert_eq!(changes(&node.settle(conf)), [0, 0]);
}

#[test]
fn a_default_route_of_others_that_comes_later_stays_in_front() {
    let node = Node::new();
    let mut process = node.process(by_hand());
    process.settle(&node.nics());
    node.make(&Op::Link {
        at: AT,
        link: name("eth0"),
        change: LinkChange::AddRoute(rdma_netns::Route {
            gateway: Some([10, 0, 0, 253].into()),
            metric: Some(1024),
            ..rdma_netns::Route::new([0; 4].into(), 0)
        }),
    });
    assert_eq!(changes(&process.settle(&node.nics())), [2, 2]);
    let metric = |netdev: &str| metrics(&node.link(netdev).expect("a NIC"))[0].1;
    assert_eq!([metric("eth1"), metric("eth2")], [Some(1025), Some(1026)]);
    assert_eq!(changes(&process.settle(&node.nics())), [0, 0]);
}

#[test]
fn a_driver_reload_is_mended_with_the_metrics_that_were() {
    let node = Node::new();
    let mut process = node.process(by_hand());
    process.settle(&node.nics());
    node.kernel.with(|world| {
        world.unplug(NICS[0].0);
        world.plug(hardware(0));
    });
    // the fake kernel assigns new hardware addresses, but a real NIC keeps its address
    let mac = node.link("eth1").expect("eth1").mac;
    node.make(&Op::Link {
        at: AT,
        link: name("eth1"),
        change: LinkChange::Mac(NICS[0].3.parse().expect("a hardware address")),
    });
    assert_ne!(mac.to_string(), NICS[0].3);
    assert_eq!(changes(&process.settle(&node.nics())), [5, 0]);
    let link = node.link("eth1").expect("eth1");
    assert_eq!(metrics(&link)[0].1, Some(200));
}

#[test]
fn a_nic_in_a_pod_is_left_there_and_returns_to_the_host_as_it_was() {
    let node = Node::new();
    let mut process = node.process(by_hand());
    process.settle(&node.nics());
    let before = node.snapshot();
    node.kernel.begin();
    node.cni("ADD", "a");
    node.kernel.begin();
    let outcomes = process.settle(&node.nics());
    let expected = "erdma_0: left alone: it is in pod team/train-0";
    assert_eq!(outcomes[0].to_string(), expected);
    assert_eq!(node.kernel.journal(), []);
    node.kernel.begin();
    node.cni("DEL", "a");
    node.kernel.with(|world| world.unmount("/run/netns/a"));
    node.must_be(&before, "back on the host");
    node.kernel.begin();
    assert_eq!(changes(&process.settle(&node.nics())), [0, 0]);
    assert_eq!(node.kernel.journal(), []);
}

#[test]
fn a_setting_that_is_refused_keeps_no_nic_down() {
    let node = Node::new();
    let mut process = node.process(by_hand());
    node.kernel.intercept(|_, step| match step.op {
        Op::Link {
            change: LinkChange::Sysctl { .. },
            ..
        } => Verdict::Refuse(Errno::EROFS),
        _ => Verdict::Proceed,
    });
    let outcomes = process.settle(&node.nics());
    assert_eq!(changes(&outcomes), [5, 5]);
    assert_eq!(outcomes[0].remarks.len(), 1, "{outcomes:?}");
    assert!(
        outcomes[0].remarks[0].contains("rp_filter=2"),
        "{outcomes:?}"
    );
}

#[test]
fn an_unreadable_record_is_reported_by_its_name() {
    let node = Node::new();
    node.settle(by_hand());
    let path = node.state.path().join("erdma").join("0000:00:06.0.json");
    let whole = fs::read_to_string(&path).expect("a record");
    for (text, expected) in [
        ("{\"format\"".to_owned(), "0000:00:06.0.json"),
        (
            whole.replace("\"format\": 1", "\"format\": 2"),
            "a newer rdma-device-plugin",
        ),
    ] {
        fs::write(&path, text).expect("written");
        let outcomes = node.settle(by_hand());
        assert!(
            matches!(outcomes[0].state, State::Failed { .. }),
            "{outcomes:?}"
        );
        assert!(
            outcomes[0].to_string().contains(expected),
            "{}",
            outcomes[0]
        );
        assert_eq!(changes(&outcomes[1..]), [0]);
    }
}

#[test]
fn only_one_process_brings_nics_up() {
    let node = Node::new();
    let mut first = node.process(by_hand());
    first.settle(&node.nics());
    let outcomes = node.settle(by_hand());
    for outcome in &outcomes {
        assert!(outcome.to_string().contains("a daemon"), "{outcome}");
    }
    assert_eq!(retries(&outcomes), [2, 2]);
    drop(first);
    assert_eq!(changes(&node.settle(by_hand())), [0, 0]);
}

#[test]
fn after_a_reboot_all_is_new() {
    let node = Node::new();
    node.settle(by_hand());
    let before = node.snapshot();
    node.kernel.with(fake_kernel::World::reboot);
    assert_eq!(changes(&node.settle(by_hand())), [6, 6]);
    node.must_be(&before, "rebooted");
    // the node's own set-up configured a NIC after the boot: it stays unchanged
    node.kernel.with(|world| {
        world.reboot();
        make(world, &address("eth1", "10.0.0.6"));
    });
    let outcomes = node.settle(by_hand());
    assert!(
        outcomes[0].to_string().contains("left alone"),
        "{}",
        outcomes[0]
    );
    assert_eq!(changes(&outcomes[1..]), [6]);
}
