// SPDX-License-Identifier: Apache-2.0
//! In the lab, two nodes whose switch has faults, and a peer that boots again: `integration/lab/vm --tier fast
//! --exclusive`. The watch tells each fault.

mod nodes;

use integration::{Daemon, Netns, wait};
use nodes::{FILTERED, LOSSY, Nodes, RAILS, SOUND, STRAY, SWAPPED, port};
use rdma_netns::netns;
use serde_json::Value;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Each rail answers within 10 s: under emulation an answer can take more than a second.
#[track_caller]
fn all_answer(nodes: &Nodes) {
    let mut told = (1, Value::Null);
    let answers = || {
        told = nodes.ping(&["--count", "1", "--timeout", "10"]);
        told.0 == 0
    };
    let do_all = wait::within(Duration::from_secs(60), answers);
    assert!(do_all, "{:#}", told.1);
}

/// The figures of a watch, by rail.
struct Figures<'a> {
    inside: netns::Netns,
    watch: &'a Daemon,
}

impl Figures<'_> {
    fn text(&self) -> String {
        self.inside
            .run(|| self.watch.get("/metrics"))
            .expect("entered")
    }

    /// The metric of each rail of the first node, with these labels; `None`: it has none.
    fn values(&self, name: &str, labels: &str) -> [Option<f64>; RAILS] {
        let text = self.text();
        let value = |rail| {
            let begin = format!("{name}{{device=\"{}\"{labels}}} ", port(0, rail));
            let line = text.lines().find_map(|it| it.strip_prefix(&begin));
            line.and_then(|it| it.parse().ok())
        };
        std::array::from_fn(value)
    }

    /// Waits until these rails are unreachable, and no other one is.
    #[track_caller]
    fn until_unreachable(&self, rails: &[usize], limit: Duration) -> Duration {
        let expected = std::array::from_fn(|it| Some(f64::from(rails.contains(&it))));
        let begin = Instant::now();
        while self.values("rdma_fabric_unreachable", "") != expected {
            assert!(begin.elapsed() < limit, "not {rails:?}: {}", self.text());
            thread::sleep(Duration::from_millis(500));
        }
        begin.elapsed()
    }
}

/// Twelve requests of each rail. A lost one takes two seconds and is sent twice; two seconds are for what else a request
/// needs under emulation.
const LOST: Duration = Duration::from_secs(12 * RAILS as u64 * 4);

#[test]
#[ignore = "scripts/test --full: minutes of lost requests; lab_ping shows one fault"]
fn the_watch_tells_each_fault_of_a_switch_and_a_peer_that_boots() {
    let nodes = Nodes::new();
    all_answer(&nodes);
    let watch = Daemon::start(&mut nodes.watch());
    let [one, _] = &nodes.nodes;
    let inside = netns::Netns::open(one.path()).expect("a namespace");
    let figures = Figures {
        inside,
        watch: &watch,
    };
    let requests = |result: &str| {
        let labels = format!(",result=\"{result}\"");
        figures.values("rdma_fabric_requests_total", &labels)
    };
    wait::until("all rails are answered", || {
        requests("answered").iter().all(|it| *it > Some(1.0))
    });
    figures.until_unreachable(&[], Duration::from_secs(5));

    nodes.break_switch();
    let silent = [FILTERED, STRAY, SWAPPED[0], SWAPPED[1]];
    let took = figures.until_unreachable(&silent, LOST);
    println!("faults of the switch after {took:?}");
    watch.says("reaches no rail of other nodes: 12 requests in a row are lost");
    // a lossy link loses requests, and is not unreachable
    wait::until("the lossy rail loses requests", || {
        requests("lost")[LOSSY] > Some(0.0)
    });
    figures.until_unreachable(&silent, Duration::from_secs(5));
    nodes.mend_switch();
    let took = figures.until_unreachable(&[], LOST);
    println!("its repair after {took:?}");
    watch.says("reaches rails of other nodes again");

    nodes.peer_goes();
    let all: Vec<usize> = (0..RAILS).collect();
    let took = figures.until_unreachable(&all, LOST);
    println!("the peer's end after {took:?}");
    nodes.peer_returns();
    let took = figures.until_unreachable(&[], LOST);
    println!("its return after {took:?}");

    // a pod gets a rail of this node: the node's watch leaves it
    let pod = Netns::new("pod");
    let device = port(0, SOUND);
    one.ip(&format!("link set dev rdma{SOUND} netns {}", pod.name()));
    one.run(&format!("rdma dev set {device} netns {}", pod.name()));
    wait::until("the pod's rail is not watched", || {
        let known = figures.values("rdma_fabric_unreachable", "");
        known[SOUND].is_none() && known[LOSSY].is_some()
    });
    pod.run(&format!("rdma link delete {device}"));
}
