// SPDX-License-Identifier: Apache-2.0
//! Tests of NICs without an address that may belong to another program, such as the instance's primary NIC.

use crate::{
    node::{
        NICS, Node, by_hand, by_service, changes, furnished, hardware, make, name, service, words,
    },
    settling::{AT, address, set_up},
};
use erdma::bring_up::{Outcome, State};
use rdma_netns::{LinkChange, Op};
use std::time::{Duration, Instant};

const QUIET: Duration = crate::metadata::PACE.quiet;

const EARLY: &str = "erdma_0: not ready yet: eth1 is up without an address: the daemon configures \
                     it if no other program does within 300ms";

fn take(link: &str) -> Op {
    match address(link, "10.0.0.66") {
        Op::Link {
            at,
            link,
            change: LinkChange::AddAddress(address),
        } => Op::Link {
            at,
            link,
            change: LinkChange::RemoveAddress(address),
        },
        other => panic!("{other}"),
    }
}

/// Returns a node whose `eth1` is up and has no configuration.
fn up() -> Node {
    let mut world = furnished();
    make(&mut world, &set_up("eth1", true));
    Node::with(world)
}

#[test]
fn a_nic_that_is_up_and_stays_without_an_owner_is_brought_up() {
    // retry: the machine may be too slow to observe twice within the quiet time
    assert!((0..5).any(|_| is_brought_up_after_the_quiet_time()));
}

/// Returns true if the NIC was observed twice within the quiet time.
fn is_brought_up_after_the_quiet_time() -> bool {
    let node = up();
    let before = node.link("eth1");
    let mut process = node.process(by_hand());
    let begin = Instant::now();
    let outcomes = process.settle(&node.nics());
    assert_eq!(outcomes[0].to_string(), EARLY);
    assert!(outcomes[0].is_news);
    assert_eq!(outcomes[0].retry_after(), Some(Duration::from_secs(2)));
    // a NIC that is down needs no quiet time
    assert_eq!(changes(&outcomes[1..]), [6]);
    let again = process.settle(&node.nics());
    if begin.elapsed() >= QUIET {
        return false;
    }
    assert!(!again[0].is_news);
    assert_eq!(node.link("eth1"), before);
    std::thread::sleep(QUIET);
    assert_eq!(changes(&process.settle(&node.nics())), [5, 0]);
    drop(process);
    // another process does not wait, because a record shows that the daemon brought this NIC up before
    node.make(&set_up("eth1", false));
    node.make(&set_up("eth1", true));
    assert_eq!(changes(&node.settle(by_hand())), [2, 0]);
    true
}

#[test]
fn a_nic_keeps_its_owner_while_it_has_no_address() {
    let node = up();
    let mut process = node.process(by_hand());
    assert_eq!(process.settle(&node.nics())[0].to_string(), EARLY);
    // DHCP assigns an address, and removes it again
    node.make(&address("eth1", "10.0.0.66"));
    let first_message = |outcomes: &[Outcome]| words(outcomes)[0].clone();
    let has = "erdma_0: left alone: eth1 has 10.0.0.66/24 already";
    assert_eq!(first_message(&process.settle(&node.nics())), has);
    node.make(&take("eth1"));
    let before = node.link("eth1");
    let had = "erdma_0: left alone: eth1 had 10.0.0.66/24, which another program set";
    assert_eq!(first_message(&process.settle(&node.nics())), had);
    std::thread::sleep(QUIET);
    assert_eq!(first_message(&process.settle(&node.nics())), had);
    node.make(&set_up("eth1", false));
    assert_eq!(first_message(&process.settle(&node.nics())), had);
    node.make(&set_up("eth1", true));
    assert_eq!(node.link("eth1"), before);
    // after a reload of its driver the netdev is a new one, is down, and is unconfigured
    node.kernel.with(|world| {
        world.unplug(NICS[0].0);
        world.plug(hardware(0));
    });
    node.make(&Op::Link {
        at: AT,
        link: name("eth1"),
        change: LinkChange::Mac(NICS[0].3.parse().expect("a hardware address")),
    });
    assert_eq!(changes(&process.settle(&node.nics()))[1], 0);
    let link = node.link("eth1").expect("eth1");
    assert!(
        link.up
            && link
                .addresses
                .iter()
                .any(|it| it.ip.to_string() == NICS[0].4)
    );
}

#[test]
fn a_nic_that_returns_is_observed_anew() {
    let node = up();
    node.make(&address("eth1", "10.0.0.66"));
    let mut process = node.process(by_hand());
    process.settle(&node.nics());
    node.make(&take("eth1"));
    process.settle(&node.nics()[1..]);
    assert_eq!(process.settle(&node.nics())[0].to_string(), EARLY);
}

#[test]
fn the_instances_primary_nic_is_never_brought_up() {
    let (node, service) = (Node::new(), service());
    service.set_primary(Some(&NICS[0].3.to_uppercase()));
    let before = node.link("eth1");
    let mut process = node.process(by_service(&service.base()));
    for is_news in [true, false] {
        let outcomes = process.settle(&node.nics());
        let expected = "erdma_0: left alone: according to the metadata service, 02:00:00:00:00:03 is the \
                        instance's primary NIC, which the instance's own set-up configures";
        assert_eq!(outcomes[0].to_string(), expected);
        assert_eq!(
            (outcomes[0].is_news, outcomes[0].retry_after()),
            (is_news, None)
        );
        assert_eq!(changes(&outcomes[1..]), [if is_news { 6 } else { 0 }]);
    }
    assert_eq!(node.link("eth1"), before);
    let requests = service.requests();
    let of = |what: &str| requests.iter().filter(|it| it.contains(what)).count();
    assert_eq!(
        (of("/meta-data/mac"), of(NICS[0].3)),
        (1, 0),
        "{requests:?}"
    );
    drop(process);
    // an administrator's configuration takes precedence
    assert_eq!(changes(&node.settle(by_hand())), [6, 0]);
    assert_eq!(service.requests(), requests);
}

#[test]
fn nothing_is_brought_up_before_it_is_known_which_nic_is_the_primary_one() {
    let (node, service) = (Node::new(), service());
    service.set_primary(Some("eth0"));
    let mut process = node.process(by_service(&service.base()));
    let outcomes = process.settle(&node.nics());
    for outcome in &outcomes {
        assert!(matches!(outcome.state, State::Waiting { .. }), "{outcome}");
        let expected = "/latest/meta-data/mac is \"eth0\", which is not a hardware address";
        assert!(outcome.to_string().contains(expected), "{outcome}");
    }
    assert_eq!(node.kernel.journal(), []);
    service.set_primary(None);
    std::thread::sleep(crate::metadata::PACE.again);
    assert_eq!(changes(&process.settle(&node.nics())), [6, 6]);
}

#[test]
fn a_network_that_only_the_nic_reaches_is_reported() {
    let (node, service) = (Node::new(), service());
    for (_, _, _, mac, ip) in NICS {
        let ip = ip.replace("10.0.0", "10.0.9");
        service.add_nic(mac, &ip, "10.0.9.0/24", "10.0.9.253");
    }
    let mut process = node.process(by_service(&service.base()));
    for is_news in [true, false] {
        for (outcome, netdev) in process.settle(&node.nics()).iter().zip(["eth1", "eth2"]) {
            let expected = format!(
                "the node's own traffic to 10.0.9.0/24 may leave by {netdev}: only eRDMA NICs have a \
                 route there"
            );
            assert_eq!(outcome.remarks, [expected]);
            assert_eq!(outcome.is_news, is_news);
        }
    }
}
