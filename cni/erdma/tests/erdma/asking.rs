// SPDX-License-Identifier: Apache-2.0
//! Tests of the bring-up of NICs whose addresses come from the metadata service, also while the service fails.

use crate::{
    metadata::{IMPATIENT, PACE},
    node::{CIDR, GATEWAY, NICS, Node, by_service, changes, metrics, service, words},
};
use erdma::bring_up::Outcome;
use integration::{MetadataService, stopwatch::Stopwatch};
use rdma_netns::link::IFA_F_NOPREFIXROUTE;
use std::time::{Duration, Instant};

#[test]
fn unconfigured_nics_get_the_addresses_of_the_cloud() {
    let (node, service) = (Node::new(), service());
    let mut process = node.process(by_service(&service.base()));
    let outcomes = process.settle(&node.nics());
    assert_eq!(changes(&outcomes), [6, 6]);
    assert_eq!(
        words(&outcomes),
        [
            "erdma_0: eth1 has 10.0.0.6/24",
            "erdma_1: eth2 has 10.0.0.7/24"
        ]
    );
    assert!(
        outcomes
            .iter()
            .all(|it| it.is_news && it.remarks.is_empty())
    );
    for (index, (_, netdev, _, _, ip)) in NICS.into_iter().enumerate() {
        let link = node.link(netdev).expect("the netdev");
        assert!(link.up);
        let rp_filter = link.sysctls.get("ipv4/rp_filter");
        assert_eq!((link.mtu, rp_filter), (8500, Some(&2)));
        let given = link.addresses.iter().find(|it| it.ip.is_ipv4());
        let given = given.expect("an address");
        assert_eq!(given.ip.to_string(), ip);
        assert_eq!(given.flags, IFA_F_NOPREFIXROUTE);
        let metric = Some(200 + u32::try_from(index).expect("a number"));
        let wanted = [("0.0.0.0/0".to_owned(), metric), (CIDR.to_owned(), metric)];
        assert_eq!(metrics(&link), wanted);
    }
    // a second call sends no request, makes no change and has no report
    let count = service.requests().len();
    node.kernel.begin();
    let outcomes = process.settle(&node.nics());
    assert_eq!(changes(&outcomes), [0, 0]);
    assert!(outcomes.iter().all(|it| !it.is_news));
    assert_eq!(
        (node.kernel.journal(), service.requests().len()),
        (vec![], count)
    );
}

#[test]
fn a_new_process_changes_nothing_even_without_the_service() {
    let (node, service) = (Node::new(), service());
    let base = service.base();
    node.settle(by_service(&base));
    let before = node.snapshot();
    for there in [true, false] {
        if !there {
            service.behave(|behaviour| behaviour.status = Some(500));
        }
        assert_eq!(changes(&node.settle(by_service(&base))), [0, 0]);
        assert_eq!(node.kernel.journal(), []);
        node.must_be(&before, "again");
    }
}

#[test]
fn another_address_in_the_cloud_takes_the_place_of_the_old_one() {
    let (node, service) = (Node::new(), service());
    node.settle(by_service(&service.base()));
    service.add_nic(NICS[0].3, "10.0.9.9", "10.0.9.0/24", "10.0.9.253");
    assert_eq!(changes(&node.settle(by_service(&service.base()))), [6, 0]);
    let fresh = Node::new();
    fresh.settle(by_service(&service.base()));
    let link = node.link("eth1").expect("eth1");
    assert_eq!(
        link.addresses.iter().filter(|it| it.ip.is_ipv4()).count(),
        1
    );
    assert_eq!(metrics(&link)[1], ("10.0.9.0/24".to_owned(), Some(200)));
    node.release();
    node.must_be(&Node::new().snapshot(), "released");
}

/// Settles the NICs while the service fails, and again after it works. Between two requests there is a period without
/// requests. Repeats the test if the machine was too slow to observe this period.
fn waits(misbehave: impl Fn(&MetadataService), expected: &str, requests: usize, last: [usize; 2]) {
    let in_time = || waited(&misbehave, expected, requests, last);
    assert!((0..5).any(|_| in_time()), "the machine is too slow");
}

/// Returns true if the period without requests was observed.
fn waited(
    misbehave: impl Fn(&MetadataService),
    expected: &str,
    requests: usize,
    last: [usize; 2],
) -> bool {
    let (node, service) = (Node::new(), service());
    let before = node.link("eth1");
    misbehave(&service);
    let mut process = node.process(by_service(&service.base()));
    let mut seen = vec![];
    for round in 0..4 {
        let (sent, since) = (service.requests().len(), Instant::now());
        let outcomes = process.settle(&node.nics());
        assert_eq!(outcomes[0].is_news, round == 0, "{outcomes:?}");
        assert!(
            outcomes[0].to_string().contains(expected),
            "{}",
            outcomes[0]
        );
        let wait = outcomes[0].retry_after().expect("it is tried again");
        seen.push(wait.as_millis());
        assert!(service.requests().len() > sent, "{expected}");
        if round == 0 {
            assert_eq!(service.requests().len(), requests, "{expected}");
        }
        // a further call of `settle` sends no request during this period
        let sent = service.requests().len();
        let again = process.settle(&node.nics());
        if since.elapsed() >= wait {
            return false;
        }
        assert_eq!(
            again[0],
            Outcome {
                is_news: false,
                ..outcomes[0].clone()
            }
        );
        assert_eq!(service.requests().len(), sent, "{expected}");
        std::thread::sleep(wait);
    }
    assert_eq!(seen, [400, 800, 1000, 1000]);
    assert_eq!(node.link("eth1"), before);
    assert!(!node.records().contains(&"0000:00:06.0.json".to_owned()));
    service.behave(|behaviour| {
        behaviour.status = None;
        behaviour.raw.clear();
    });
    for (_, _, _, mac, ip) in NICS {
        service.add_nic(mac, ip, CIDR, GATEWAY);
    }
    assert_eq!(changes(&process.settle(&node.nics())), last);
    true
}

#[test]
fn a_service_that_fails_is_waited_for() {
    // four requests: one for a token, and three attempts of the first query; further queries are not sent
    waits(
        |it| it.behave(|it| it.status = Some(500)),
        "answers 500",
        4,
        [6, 6],
    );
}

#[test]
fn a_service_that_is_slow_is_waited_for() {
    let (node, service) = (Node::new(), service());
    let before = node.link("eth1");
    service.behave(|it| it.delay = Duration::from_secs(3600));
    let mut process = node.process_of(by_service(&service.base()), IMPATIENT);
    let outcomes = process.settle(&node.nics());
    let words = outcomes[0].to_string();
    assert!(
        outcomes[0].is_news && words.contains("not answered"),
        "{words}"
    );
    // three attempts to get a token, and no further request
    assert_eq!(service.requests().len(), 3);
    assert_eq!(node.link("eth1"), before);
    assert!(!node.records().contains(&"0000:00:06.0.json".to_owned()));
    service.behave(|it| it.delay = Duration::ZERO);
    std::thread::sleep(outcomes[0].retry_after().expect("it is tried again"));
    assert_eq!(changes(&process.settle(&node.nics())), [6, 6]);
}

#[test]
fn garbage_is_waited_out() {
    let path = integration::metadata::nic_path(NICS[0].3, "primary-ip-address");
    let misbehave = |service: &MetadataService| {
        service.set(NICS[0].3, "primary-ip-address", Some(b"<html>"));
    };
    // only the answer for the first NIC is garbage, so the client also sends the requests for the second NIC
    waits(misbehave, &path, 7, [6, 0]);
}

#[test]
fn a_nic_that_the_cloud_does_not_know_yet_is_waited_for() {
    let misbehave = |service: &MetadataService| {
        service.set(NICS[0].3, "primary-ip-address", None);
    };
    waits(misbehave, "knows no NIC with 02:00:00:00:00:03", 6, [6, 0]);
}

#[test]
fn an_absent_service_gets_one_request_for_all() {
    let node = Node::new();
    let hole = integration::metadata::BlackHole::new();
    let mut process = node.process_of(by_service(&hole.base()), IMPATIENT);
    let begin = Stopwatch::start();
    let outcomes = process.settle(&node.nics());
    // if the daemon did not stop after the first NIC, the second NIC would also need all attempts
    assert!(begin.elapsed() < 2 * IMPATIENT.attempts * IMPATIENT.connect);
    for outcome in &outcomes {
        assert!(
            outcome.to_string().contains("cannot be reached"),
            "{outcome}"
        );
    }
    assert!(
        outcomes
            .iter()
            .all(|it| it.retry_after() == Some(PACE.again))
    );
}
