// SPDX-License-Identifier: Apache-2.0
//! Tests of health on the real kernel: a node and a pod in two new network namespaces, with a veth
//! in place of a NIC. The NIC's hardware is made up.

mod node;

use integration::{
    stopwatch::Stopwatch,
    wait::{self, TIMEOUT},
};
use node::{Node, with_node};
use node_state::health::Watch;
use rdma_netns::{HcaPort, LinkType};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Longest promised time until the daemon reports a change.
const SOON: Duration = Duration::from_secs(1);

/// Observes at each event of the watch until the device's health is `wanted`. Returns the time that
/// this took.
#[track_caller]
fn becomes(node: &Node, watch: &mut Watch, wanted: Option<&str>, limit: Duration) -> Duration {
    let begin = Stopwatch::start();
    let mut last = None;
    while begin.elapsed() < limit {
        let rest = limit.saturating_sub(begin.elapsed());
        if !node.wait(rest, watch.next()) {
            continue;
        }
        last = watch.unhealthy(&node.inventory).into_values().next();
        let is_so = match (&last, wanted) {
            (Some(reason), Some(wanted)) => reason.contains(wanted),
            (None, None) => true,
            _ => false,
        };
        if is_so {
            return begin.elapsed();
        }
    }
    panic!("not {wanted:?} but {last:?} after {:?}", begin.elapsed());
}

/// Records that a pod has `nic0`, and gives the netdev its carrier. The device becomes healthy.
#[track_caller]
fn attach_with_carrier(node: &Node, watch: &mut Watch) {
    node.attach("nic0", "attached");
    node.pod("link set nic0 up");
    node.ip("link set wire0 up");
    becomes(node, watch, None, SOON);
}

#[test]
fn a_device_in_a_pod_goes_and_comes_back() {
    with_node(|node| {
        let (mut watch, losses) = node.watch();
        assert!(losses.is_empty(), "{losses:?}");
        becomes(node, &mut watch, None, SOON);
        attach_with_carrier(node, &mut watch);
        quiet(node, &mut watch);

        node.ip("link set wire0 down");
        becomes(node, &mut watch, Some("nic0 has no carrier"), SOON);
        node.ip("link set wire0 up");
        becomes(node, &mut watch, None, SOON);

        // a netdev that was set down inside the pod counts as healthy
        node.pod("link set nic0 down");
        becomes(node, &mut watch, None, SOON);
        quiet(node, &mut watch);
    });
}

/// The daemon reports an observed change 0.3 s later (`damper::DOWN_AFTER`).
#[test]
fn a_port_without_events_is_observed_soon_enough() {
    with_node(|node| {
        node.port("4: ACTIVE\n");
        let (mut watch, _) = node.watch();
        becomes(node, &mut watch, None, SOON);
        quiet(node, &mut watch);
        for state in ["2: INIT\n", "4: ACTIVE\n", "1: DOWN\n", "4: ACTIVE\n"] {
            // the watch observed a moment ago, so its next observation is at most one interval later
            node.port(state);
            let begin = Stopwatch::start();
            assert!(node.wait(TIMEOUT, watch.next()), "{state} was not seen");
            let took = begin.elapsed();
            assert!(took < SOON - Duration::from_millis(300), "{state}{took:?}");
            watch.unhealthy(&node.inventory);
        }
    });
}

/// The port of a rail without a cable is down for days. During this time, the daemon reads the port's state every
/// 0.4 s, and does nothing else.
#[test]
fn a_port_that_stays_down_is_reported_once() {
    with_node(|node| {
        node.port("1: DOWN\n");
        let mut inventory = node.inventory.clone();
        inventory.functions[0].hcas[0].ports = vec![HcaPort {
            number: 1,
            state: 1,
            link_type: LinkType::Infiniband,
            gids: 0,
        }];
        let (watch, _) = node.watch();
        let (observations, reports) = (Cell::new(0), Cell::new(0));
        let followed = watch.follow(
            async || {
                observations.set(observations.get() + 1);
                Some(inventory.clone())
            },
            async |_, unhealthy| {
                assert_eq!(unhealthy.len(), 1, "{unhealthy:?}");
                reports.set(reports.get() + 1);
                true
            },
        );
        assert!(!node.wait(3 * SOON, followed), "it is followed for ever");
        assert_eq!(
            (observations.get(), reports.get()),
            (1, 1),
            "observations, and reports"
        );
    });
}

/// Observes until no observation is due. The device must be healthy all the time.
#[track_caller]
fn quiet(node: &Node, watch: &mut Watch) {
    for _ in 0..10 {
        if !node.wait(Duration::from_millis(1500), watch.next()) {
            return;
        }
        assert_eq!(watch.unhealthy(&node.inventory).len(), 0);
    }
    panic!("a node where nothing happens is observed again and again");
}

#[test]
fn a_flapping_device_is_held() {
    with_node(|node| {
        let (mut watch, _) = node.watch();
        attach_with_carrier(node, &mut watch);
        quiet(node, &mut watch);
        let mut changes = 0;
        let mut was_down = false;
        let begin = Instant::now();
        let mut up = true;
        while begin.elapsed() < 5 * SOON {
            up = !up;
            node.ip(if up {
                "link set wire0 up"
            } else {
                "link set wire0 down"
            });
            node.wait(Duration::from_millis(400), watch.next());
            let is_down = !watch.unhealthy(&node.inventory).is_empty();
            changes += u32::from(is_down != was_down);
            was_down = is_down;
        }
        assert!(was_down, "what flaps is not well");
        assert!(changes <= 3, "{changes} changes in five seconds");
    });
}

#[test]
fn a_device_on_its_way_keeps_its_health() {
    with_node(|node| {
        let (mut watch, _) = node.watch();
        becomes(node, &mut watch, None, SOON);
        node.attach("nic0", "attaching");
        node.pod("link set nic0 up");
        becomes(node, &mut watch, None, SOON);
        quiet(node, &mut watch);
        node.record("attached");
        becomes(node, &mut watch, Some("nic0 has no carrier"), SOON);
    });
}

#[test]
fn the_pods_namespace_ends_although_it_is_watched() {
    with_node(|node| {
        let (mut watch, _) = node.watch();
        node.attach("nic0", "attached");
        node.pod("link set nic0 up");
        node.ip("link set wire0 down");
        becomes(node, &mut watch, Some("no carrier"), SOON);
        node.end_pod();
        // the kernel removes the veth pair only when the namespace has ended
        wait::until("the pod's namespace is not kept alive", || {
            !node.has("wire0")
        });
        // a device that cannot be observed keeps its health
        becomes(node, &mut watch, Some("no carrier"), SOON);
        node.forget();
        node.wait(SOON, watch.next());
        watch.unhealthy(&node.inventory);
    });
}

#[test]
fn changes_are_reported_as_long_as_there_is_a_receiver() {
    with_node(|node| {
        let (watch, _) = node.watch();
        node.attach("nic0", "attached");
        node.pod("link set nic0 up");
        let observed = std::cell::RefCell::new(Vec::new());
        let followed = watch.follow(
            async || {
                // the first observation of the hardware fails
                observed.borrow_mut().push(String::new());
                (observed.borrow().len() > 1).then(|| node.inventory.clone())
            },
            async |_, unhealthy| {
                observed.borrow_mut().extend(unhealthy.into_values());
                observed.borrow().len() < 3
            },
        );
        assert!(node.wait(TIMEOUT, followed), "{:?}", observed.borrow());
        assert_eq!(observed.into_inner(), ["", "", "nic0 has no carrier"]);
    });
}

#[test]
fn a_nic_without_rdma_is_no_concern() {
    with_node(|node| {
        let (mut watch, _) = node.watch();
        let mut inventory = node.inventory.clone();
        inventory.functions[0].hcas.clear();
        assert!(watch.unhealthy(&inventory).is_empty());
        // a NIC that has lost its RDMA device is unhealthy
        watch.unhealthy(&node.inventory);
        watch.unhealthy(&inventory);
        let begin = Stopwatch::start();
        loop {
            let unhealthy = watch.unhealthy(&inventory);
            match unhealthy.into_values().next() {
                Some(reason) => break assert_eq!(reason, "it has no RDMA device"),
                None => assert!(begin.elapsed() < SOON, "it was not noticed"),
            }
            node.wait(SOON, watch.next());
        }
    });
}

#[test]
fn without_events_pods_are_observed() {
    with_node(|node| {
        node::give_up_capability(11);
        let (mut watch, losses) = node.watch();
        assert!(
            matches!(losses.as_slice(), [one] if one.contains("CAP_NET_BROADCAST")),
            "{losses:?}"
        );
        attach_with_carrier(node, &mut watch);
        node.ip("link set wire0 down");
        becomes(node, &mut watch, Some("nic0 has no carrier"), 4 * SOON);
    });
}

/// The kernel refuses a dump of the pod's netdevs, because a netdev of the pod has too many names. No event reports the
/// end of this netdev, because the netdev is none of the pod's devices.
#[test]
fn a_pod_is_observed_again_after_a_failed_observation() {
    with_node(|node| {
        let (mut watch, _) = node.watch();
        attach_with_carrier(node, &mut watch);
        node.pod("link add other0 type bridge");
        // more names do not fit into one request of `ip`
        for numbers in (0..300_u32).collect::<Vec<_>>().chunks(6) {
            let name = |number: &u32| format!(" altname {:x<127}", format!("other0-{number}-"));
            let names: String = numbers.iter().map(name).collect();
            node.pod(&format!("link property add dev other0{names}"));
        }
        quiet(node, &mut watch);
        node.ip("link set wire0 down");
        let begin = Stopwatch::start();
        while begin.elapsed() < 3 * SOON {
            node.wait(SOON, watch.next());
            assert_eq!(watch.unhealthy(&node.inventory).len(), 0);
        }
        node.pod("link delete other0");
        becomes(node, &mut watch, Some("nic0 has no carrier"), 4 * SOON);
        node.ip("link set wire0 up");
        becomes(node, &mut watch, None, SOON);
        quiet(node, &mut watch);
    });
}

/// Changes of `/dev` and of most files of sysfs cause no event of netlink.
#[test]
fn without_events_of_records_the_node_is_observed() {
    with_node(|node| {
        let mut watch = node.watch_without_records();
        becomes(node, &mut watch, None, SOON);
        for _ in 0..3 {
            assert!(node.wait(4 * SOON, watch.next()), "no observation is due");
            assert!(watch.unhealthy(&node.inventory).is_empty());
        }
        node.attach("nic0", "attached");
        node.pod("link set nic0 up");
        becomes(node, &mut watch, Some("nic0 has no carrier"), 4 * SOON);
    });
}

#[test]
fn sources_that_fail_are_replaced_by_polling() {
    with_node(|node| {
        let mut watch = node.watch_of_ended_runtime();
        becomes(node, &mut watch, None, SOON);
        for _ in 0..3 {
            assert!(node.wait(4 * SOON, watch.next()), "no observation is due");
            assert!(watch.unhealthy(&node.inventory).is_empty());
        }
        // without the kernel's events, the daemon does not see the pod's netdevs, but it reads the records
        node.attach("nic0", "attached");
        node.wait(4 * SOON, watch.next());
        watch.unhealthy(&node.inventory);
    });
}
