// SPDX-License-Identifier: Apache-2.0
//! Tests of probes on the wire. The other end is a kernel that has the address, or a kernel that probes for the same
//! address.

use crate::world::{World, interface, to_host, to_pod, with_node};
use rdma_netns::{
    Conflict, Kernel, LinkChange, Linux, Pod, Question,
    probe::{PROBE_TIME, ProbeObstacle, Sign},
};
use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

const FREE: [&str; 2] = ["10.1.0.9", "fd01::9"];
const TAKEN: [&str; 2] = ["10.1.0.1", "fd01::1"];

/// Runs `test` with a pod that has `wire0`. The other end of `wire0` is the node's `nic0`, which has the addresses
/// [`TAKEN`].
fn with_pod(test: impl FnOnce(&World) + Send) {
    with_node(|world| {
        world.ip("address add 10.1.0.1/24 dev nic0");
        world.ip("address add fd01::1/64 dev nic0 nodad");
        world.execute(to_pod("wire0", "wire0"));
        world.pod_ip("link set wire0 up");
        let begin = Instant::now();
        while !world.pod_link("wire0").carrier && begin.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        test(world);
    });
}

/// Waits until `is_so` returns true, or fails with the text `otherwise`.
fn soon(otherwise: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{otherwise}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn questions(link: &str, addresses: &[&str]) -> Vec<Question> {
    let question = |address: &&str| Question {
        link: interface(link),
        address: ip(address),
        answered_at: None,
    };
    addresses.iter().map(question).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn found(conflicts: &[Conflict]) -> Vec<(IpAddr, Sign, String)> {
    let mut found: Vec<_> = conflicts
        .iter()
        .map(|it| (it.address, it.sign, it.by.to_string()))
        .collect();
    found.sort_by_key(|(address, ..)| *address);
    found
}

#[test]
fn the_holder_of_an_address_answers_at_once() {
    with_pod(|world| {
        let mac = world.host_link("nic0").mac.to_string();
        let all = [FREE, TAKEN].concat();
        // the first try may wait for the carrier, and each try may wait because the machine is busy
        let at_once = |_| {
            let begin = Instant::now();
            let probed = world.kernel.probe(&world.pod, &questions("wire0", &all));
            let probed = probed.expect("a probe");
            let expected = TAKEN.map(|it| (ip(it), Sign::Has, mac.clone()));
            assert_eq!(found(&probed.conflicts), expected);
            assert_eq!(probed.not_probed, []);
            begin.elapsed() < Duration::from_secs(2)
        };
        assert!((0..5).any(at_once));
        // no neighbour learned an address from a probe
        let known = world.ip("neighbour show dev nic0");
        assert!(
            !known.contains(&world.pod_link("wire0").mac.to_string()),
            "{known}"
        );
    });
}

#[test]
fn a_free_address_takes_the_whole_probe_time() {
    with_pod(|world| {
        let begin = Instant::now();
        let probed = world.kernel.probe(&world.pod, &questions("wire0", &FREE));
        let took = begin.elapsed();
        assert_eq!(probed.expect("a probe").conflicts, []);
        assert!(took >= PROBE_TIME, "{took:?}");
        let conflicts = world
            .kernel
            .conflicts_since_probe(&world.pod, &questions("wire0", &FREE));
        assert_eq!(conflicts.expect("conflicts"), []);
    });
}

/// A probe detects another netdev that probes for the same addresses at the same time.
#[test]
fn another_prober_is_detected() {
    with_pod(|world| {
        let (wire_questions, theirs) = (questions("wire0", &FREE), questions("nic0", &FREE));
        let node = world.node_path();
        let ended = AtomicBool::new(false);
        let conflicts = thread::scope(|scope| {
            scope.spawn(|| {
                // this kernel value has the pod's namespace as host and the node's as pod, so it sends the probes from
                // the node
                let ask = || {
                    let kernel = Linux::new();
                    let node = kernel.open_pod(&node).expect("the node");
                    while !ended.load(Ordering::Relaxed) {
                        kernel.probe(&node, &theirs).expect("a probe");
                    }
                };
                world.pod.netns().run(ask).expect("to enter the pod");
            });
            let mut conflicts = vec![];
            for _ in 0..100 {
                let probed = world
                    .kernel
                    .probe(&world.pod, &wire_questions)
                    .expect("a probe");
                conflicts = probed.conflicts;
                if conflicts.len() == FREE.len() {
                    break;
                }
            }
            ended.store(true, Ordering::Relaxed);
            conflicts
        });
        let mac = world.host_link("nic0").mac.to_string();
        let expected = FREE.map(|it| (ip(it), Sign::Probes, mac.clone()));
        assert_eq!(found(&conflicts), expected);
    });
}

/// A later read returns announcements that other hosts sent after the probe.
#[test]
fn a_later_claim_of_the_address_is_detected() {
    with_pod(|world| {
        let wire_questions = questions("wire0", &FREE);
        let probed = world
            .kernel
            .probe(&world.pod, &wire_questions)
            .expect("a probe");
        assert_eq!(probed.conflicts, []);
        for (index, address) in FREE.iter().enumerate() {
            let announce = rdma_netns::Op::Link {
                at: rdma_netns::NetnsSide::Host,
                link: interface("nic0"),
                change: LinkChange::Announce(ip(address)),
            };
            if index == 1 {
                world.ip("address add fd01::9/64 dev nic0 nodad");
            }
            world.execute(announce);
        }
        let mac = world.host_link("nic0").mac.to_string();
        let conflicts = world
            .kernel
            .conflicts_since_probe(&world.pod, &wire_questions)
            .expect("conflicts");
        let expected = FREE.map(|it| (ip(it), Sign::Has, mac.clone()));
        assert_eq!(found(&conflicts), expected);
        let again = world
            .kernel
            .conflicts_since_probe(&world.pod, &wire_questions)
            .expect("conflicts");
        assert_eq!(again, [], "it was reported");
    });
}

/// A netdev returns to the host and enters the pod again with the same index, as after a second ADD.
#[test]
fn a_netdev_that_returns_hears_as_before() {
    with_pod(|world| {
        let path = world.pod.path().to_owned();
        let pod = world.kernel.open_pod(&path).expect("the pod");
        let wire_questions = questions("wire0", &FREE);
        let group = || {
            world
                .pod_ip("-6 maddress show dev wire0")
                .contains("ff02::1:ff00:9")
        };
        let index = world.pod_link("wire0").index;
        for round in 0..2 {
            world.kernel.probe(&pod, &wire_questions).expect("a probe");
            assert!(
                group(),
                "round {round}: others' solicitations are not received"
            );
            world.pod_ip("address add fd01::9/64 dev wire0 nodad");
            world
                .kernel
                .conflicts_since_probe(&pod, &wire_questions)
                .expect("conflicts");
            if round == 0 {
                world.execute(to_host("wire0", "wire0"));
                world.execute(to_pod("wire0", "wire0"));
                assert_eq!(world.pod_link("wire0").index, index);
                world.pod_ip("link set wire0 up");
            }
        }
        drop(pod);
        // the kernel joins the group of an address in a worker (`addrconf_dad_work()`, `net/ipv6/addrconf.c`)
        soon(
            "the kernel is no member for the address that was set",
            group,
        );
    });
}

/// One of the netdevs no longer exists at the last read. The socket still leaves the groups of the other netdevs.
#[test]
fn a_closed_listener_leaves_its_group() {
    with_pod(|world| {
        world.pod_ip("link add gone0 type veth peer name gone1");
        world.pod_ip("link set gone0 up");
        world.pod_ip("link set gone1 up");
        let mut all_questions = questions("wire0", &FREE);
        all_questions.extend(questions("gone0", &FREE));
        world
            .kernel
            .probe(&world.pod, &all_questions)
            .expect("a probe");
        let groups = || world.pod_ip("-6 maddress show dev wire0");
        assert!(groups().contains("ff02::1:ff00:9"), "{}", groups());
        world.pod_ip("link del gone0");
        let conflicts = world
            .kernel
            .conflicts_since_probe(&world.pod, &all_questions);
        assert!(conflicts.is_err(), "{conflicts:?}");
        // the child process of a parallel test has a copy of the socket until it executes its program
        soon("a member of the group after the last query", || {
            !groups().contains("ff02::1:ff00:9")
        });
    });
}

#[test]
fn where_nobody_can_be_probed_add_does_not_wait() {
    with_pod(|world| {
        let wire_questions = questions("wire0", &[FREE, TAKEN].concat());
        let not_probed = |expected: ProbeObstacle| {
            // a probe that waits takes at least `PROBE_TIME` in every try; a busy machine delays only some tries
            let at_once = (0..100).any(|_| {
                let begin = Instant::now();
                let probed = world
                    .kernel
                    .probe(&world.pod, &wire_questions)
                    .expect("a probe");
                let took = begin.elapsed();
                assert_eq!(probed.conflicts, []);
                assert_eq!(probed.not_probed, [(interface("wire0"), expected)]);
                took < PROBE_TIME
            });
            assert!(at_once, "{expected:?}");
        };
        world.pod_ip("link set wire0 arp off");
        not_probed(ProbeObstacle::NoNeighbours);
        world.pod_ip("link set wire0 arp on");
        world.ip("link set nic0 down");
        not_probed(ProbeObstacle::NoCarrier);
        world.pod_ip("link set wire0 down");
        not_probed(ProbeObstacle::NoCarrier);
        let gone = world
            .kernel
            .probe(&world.pod, &questions("nowhere0", &FREE));
        let message = gone.expect_err("no such netdev").to_string();
        assert!(message.contains("cannot be probed"), "{message}");
    });
}

#[test]
fn neighbours_are_those_that_were_there() {
    with_pod(|world| {
        for entry in [
            "10.1.0.21 lladdr 02:00:00:00:99:21 nud stale",
            "fd01::22 lladdr 02:00:00:00:99:22 nud reachable",
            "10.1.0.23 lladdr 02:00:00:00:99:23 nud permanent",
            "10.1.0.24 nud failed",
        ] {
            world.ip(&format!("neighbour replace {entry} dev nic0"));
        }
        let index = world.host_link("nic0").index;
        let mut known: Vec<(String, String)> = Kernel::neighbours(&world.kernel)
            .expect("the tables")
            .into_iter()
            .filter(|it| it.index == index && it.mac.to_string().contains(":99:"))
            .map(|it| (it.address.to_string(), it.mac.to_string()))
            .collect();
        known.sort();
        let expected = [
            ("10.1.0.21", "02:00:00:00:99:21"),
            ("10.1.0.23", "02:00:00:00:99:23"),
            ("fd01::22", "02:00:00:00:99:22"),
        ];
        let expected = expected.map(|(address, mac)| (address.to_owned(), mac.to_owned()));
        assert_eq!(known, expected);
    });
}
