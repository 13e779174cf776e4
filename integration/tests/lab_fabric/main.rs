// SPDX-License-Identifier: Apache-2.0
//! In the lab, nodes whose switch has faults, and nodes that boot again: `integration/lab/vm --tier fast --exclusive`,
//! or another kernel. `rdma-device-plugin ping` and the watch report each fault.

mod nodes;

use integration::{Daemon, Netns, wait};
use nodes::{FILTERED, LOSSY, Nodes, RAILS, SOUND, STRAY, SWAPPED, port};
use serde_json::Value;
use std::{
    env, fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Waits until a ping has answers on all rails, each within 10 s: under emulation an answer can take more than a
/// second.
#[track_caller]
fn all_answer(nodes: &Nodes) {
    let mut result = (1, Value::Null);
    let answers = || {
        result = nodes.ping(&["--count", "1", "--timeout", "10"]);
        result.0 == 0
    };
    let do_all = wait::within(Duration::from_secs(60), answers);
    assert!(do_all, "{:#}", result.1);
    let pairs = result.1["pairs"].as_array().expect("pairs");
    assert_eq!(pairs.len(), RAILS, "{:#}", result.1);
}

/// Returns the pair of a rail and its reason. Asserts that no request of the pair was answered.
#[track_caller]
fn silent(document: &Value, rail: usize) -> (&Value, &str) {
    let pair = &document["pairs"][rail];
    assert_eq!(pair["from"]["rail"], format!("rdma{rail}"));
    assert_eq!(pair["answered"], 0, "{document:#}");
    (pair, pair["reason"].as_str().unwrap_or_default())
}

/// Asserts that the peer is not on the wire: neither RDMA nor ICMP answers. If the peer's hardware address is not
/// cached, the reason names ARP instead of RDMA.
#[track_caller]
fn is_off_the_wire(document: &Value, rail: usize) {
    let causes = [
        "RDMA does not answer: on Ethernet, check that UDP port 4791 passes, that the VLAN is the same",
        "the next hop to the address does not answer ARP or neighbour discovery: check the VLAN;",
    ];
    let (_, reason) = silent(document, rail);
    let has_cause = causes.iter().any(|it| reason.starts_with(it));
    let icmp =
        "the address does not answer ICMP either: check the peer, the cable and the switch port";
    assert!(has_cause && reason.contains(icmp), "{reason}");
}

#[test]
#[ignore = "scripts/test --full: a minute; lab_ping shows silence and swapped wires"]
fn ping_reports_each_fault_of_a_switch_and_a_peer_that_boots() {
    let nodes = Nodes::new();
    all_answer(&nodes);
    nodes.break_switch();
    let attempt = |timeout| nodes.ping(&["--count", "1", "--timeout", timeout]);
    let is_clear = |(_, document): &(i32, Value)| {
        let pairs = &document["pairs"];
        pairs[SOUND]["answered"] == 1 && pairs[FILTERED]["icmp"] == true
    };
    // an answer can be late: the test tries longer timeouts
    let clear = ["0.5", "1", "3"].into_iter().map(attempt).find(is_clear);
    let (code, document) = clear.expect("answers in time");
    assert_eq!(code, 1);
    let (_, reason) = silent(&document, FILTERED);
    assert_eq!(
        reason,
        "RDMA does not answer: on Ethernet, check that UDP port 4791 passes, that the VLAN is the same, and that the RDMA \
         device of the peer has the address as a GID; on InfiniBand, check the partition; the address answers ICMP"
    );
    is_off_the_wire(&document, STRAY);
    for (rail, other) in [(0, 1), (1, 0)].map(|(it, other)| (SWAPPED[it], SWAPPED[other])) {
        let (pair, reason) = silent(&document, rail);
        let words = format!(
            "rdma{other} answers ARP or neighbour discovery on this wire, and rdma{rail} does not: the cables or VLANs of \
             the two are swapped"
        );
        assert!(reason.starts_with(&words), "{reason}");
        assert_eq!(pair["swappedWith"], format!("rdma{other}"));
    }
    let lossy = format!("rdma{LOSSY}");
    let many = ["--count", "20", "--interval", "0.1", "--timeout", "0.5"];
    let (code, document) = nodes.ping(&[&["--from", &lossy], &many[..]].concat());
    let pair = &document["pairs"][0];
    let answered = pair["answered"].as_u64().expect("a number");
    assert_eq!((code, (1..20).contains(&answered)), (1, true), "{pair}");
    let lost = 20 - answered;
    let words = format!("{lost} of 20 requests were lost: look for a congested or faulty link");
    assert_eq!(pair["reason"], words);

    nodes.mend_switch();
    nodes.goes(1);
    let (code, document) = nodes.ping(&["--count", "1", "--timeout", "0.5"]);
    assert_eq!(code, 1);
    (0..RAILS).for_each(|rail| is_off_the_wire(&document, rail));
    nodes.boots(1, 1);
    all_answer(&nodes);

    // the RDMA device is deleted while the ping waits for an answer, as by an unload of the driver
    nodes.filter();
    let from = format!("rdma{FILTERED}");
    let options = ["--from", &from, "--count", "1", "--timeout", "60"];
    let (code, document) = thread::scope(|scope| {
        let ping = scope.spawn(|| nodes.ping(&options));
        let device = port(0, FILTERED);
        wait::until("the request is sent", || {
            let ids = format!("rdma resource show cm_id link {device}/1");
            nodes.host.run(&ids).contains("state CONNECT ")
        });
        nodes.host.run(&format!("rdma link delete {device}"));
        ping.join().expect("a document")
    });
    assert_eq!(code, 1);
    assert_eq!(
        document["pairs"][0]["reason"],
        "the driver has just removed the RDMA device: ping again when the device is back"
    );
}

/// The figures and the report of a watch, by rail.
struct Figures {
    watch: Daemon,
    report: PathBuf,
}

impl Figures {
    /// Starts the watch, and waits until each rail has answers.
    #[track_caller]
    fn new(nodes: &Nodes) -> Self {
        let watch = Daemon::start(&mut nodes.watch());
        let report = nodes.state().join("fabric/rails.json");
        let figures = Self { watch, report };
        wait::until("all rails are answered", || {
            let answered = figures.requests("answered");
            answered.iter().all(|it| *it > Some(1.0))
        });
        figures.until_unreachable(&[], &[], Duration::from_secs(5));
        figures
    }

    fn text(&self) -> String {
        self.watch.get("/metrics")
    }

    /// The metric with these labels of each rail of the first node, or `None` if the rail has none.
    fn values(&self, name: &str, labels: &str) -> [Option<f64>; RAILS] {
        let text = self.text();
        let value = |rail| {
            let begin = format!("{name}{{device=\"{}\"{labels}}} ", port(0, rail));
            let line = text.lines().find_map(|it| it.strip_prefix(&begin));
            line.and_then(|it| it.parse().ok())
        };
        std::array::from_fn(value)
    }

    fn requests(&self, result: &str) -> [Option<f64>; RAILS] {
        let labels = format!(",result=\"{result}\"");
        self.values("rdma_fabric_requests_total", &labels)
    }

    /// The rails that the node's daemon must treat as unhealthy.
    #[track_caller]
    fn unhealthy(&self) -> Vec<usize> {
        let report = fs::read(&self.report).expect("a report");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        let rails = report["rails"].as_array().expect("rails");
        let is_unhealthy = |rail: &usize| {
            let mut rails = rails.iter();
            rails.any(|it| it["device"] == port(0, *rail) && it["isUnhealthy"] == true)
        };
        (0..RAILS).filter(is_unhealthy).collect()
    }

    /// Waits until `is_so` returns true, and returns the time. Asserts that meanwhile only rails in `at_fault` are
    /// unhealthy.
    #[track_caller]
    fn until(&self, at_fault: &[usize], limit: Duration, is_so: impl Fn() -> bool) -> Duration {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < limit, "{}", self.text());
            let unhealthy = self.unhealthy();
            let is_right = unhealthy.iter().all(|it| at_fault.contains(it));
            assert!(is_right, "{unhealthy:?} are unhealthy: {}", self.text());
            thread::sleep(Duration::from_millis(500));
        }
        begin.elapsed()
    }

    /// Waits until exactly these rails are unreachable.
    #[track_caller]
    fn until_unreachable(&self, rails: &[usize], at_fault: &[usize], limit: Duration) -> Duration {
        let expected = std::array::from_fn(|it| Some(f64::from(rails.contains(&it))));
        self.until(at_fault, limit, || {
            self.values("rdma_fabric_unreachable", "") == expected
        })
    }

    /// Waits until exactly these rails are unhealthy.
    #[track_caller]
    fn until_unhealthy(&self, rails: &[usize], limit: Duration) -> Duration {
        self.until(rails, limit, || self.unhealthy() == rails)
    }
}

/// The time of twelve requests on each rail, 4 s for each: a lost request, which is sent twice, takes 2 s, and
/// emulation costs up to 2 s.
const LOST: Duration = Duration::from_secs(12 * RAILS as u64 * 4);

#[test]
#[ignore = "scripts/test --full: minutes of lost requests; lab_ping shows one fault"]
fn the_watch_reports_each_fault_of_a_switch_and_nodes_that_boot() {
    let nodes = Nodes::new();
    all_answer(&nodes);
    let figures = Figures::new(&nodes);

    nodes.break_switch();
    let silent = [FILTERED, STRAY, SWAPPED[0], SWAPPED[1]];
    let took = figures.until_unreachable(&silent, &silent, LOST);
    println!("faults of the switch after {took:?}");
    let words = "reaches no rail of other nodes: 12 requests in a row are lost";
    figures.watch.wait_for_log(words);
    // a silent rail is unhealthy, because two other nodes do not answer on it, and another rail has answers
    let took = figures.until_unhealthy(&silent, wait::TIMEOUT);
    println!("unhealthy {took:?} later");
    // a lossy link loses requests, and is not unreachable
    figures.until(&silent, wait::TIMEOUT, || {
        figures.requests("lost")[LOSSY] > Some(0.0)
    });
    figures.until_unreachable(&silent, &silent, Duration::from_secs(5));
    nodes.mend_switch();
    let took = figures.until_unreachable(&[], &silent, LOST);
    println!("its repair after {took:?}");
    figures
        .watch
        .wait_for_log("reaches rails of other nodes again");
    figures.until_unhealthy(&[], wait::TIMEOUT);

    // a node boots: all rails lose requests, but still reach the other node
    let before = figures.requests("lost");
    nodes.goes(1);
    let took = figures.until(&[], LOST, || {
        let lost = figures.requests("lost");
        (0..RAILS).all(|it| lost[it] >= before[it].map(|it| it + 6.0))
    });
    println!("six requests to the node are lost after {took:?}");
    figures.until_unreachable(&[], &[], Duration::from_secs(5));
    // the last other node boots, too: all rails are unreachable, but none is unhealthy
    nodes.goes(2);
    let all: Vec<usize> = (0..RAILS).collect();
    let took = figures.until_unreachable(&all, &[], LOST);
    println!("no other node is there: after {took:?}");
    let before = figures.requests("lost");
    figures.until(&[], LOST, || {
        let lost = figures.requests("lost");
        (0..RAILS).all(|it| lost[it] >= before[it].map(|it| it + 2.0))
    });
    nodes.boots(1, 1);
    nodes.boots(2, 1);
    let took = figures.until_unreachable(&[], &[], LOST);
    println!("their return after {took:?}");
    figures.until_unhealthy(&[], Duration::from_secs(5));

    if env::var("RDMA_LAB_MODE").as_deref() == Ok("exclusive") {
        leaves_a_rail_to_a_pod(&nodes, &figures);
    }
}

/// A pod gets a rail of this node. The node's watch does not test this rail.
#[track_caller]
fn leaves_a_rail_to_a_pod(nodes: &Nodes, figures: &Figures) {
    let pod = Netns::new("pod");
    let device = port(0, SOUND);
    nodes
        .host
        .ip(&format!("link set dev rdma{SOUND} netns {}", pod.name()));
    nodes
        .host
        .run(&format!("rdma dev set {device} netns {}", pod.name()));
    wait::until("the pod's rail is not watched", || {
        let known = figures.values("rdma_fabric_unreachable", "");
        known[SOUND].is_none() && known[LOSSY].is_some()
    });
    pod.run(&format!("rdma link delete {device}"));
}
