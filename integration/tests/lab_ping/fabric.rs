// SPDX-License-Identifier: Apache-2.0
//! The fabric watch with the kernel's real connection manager. Two pods' namespaces act as two nodes. One node runs a
//! watch. The other node has only a ConfigMap in a stand-in for the API server.

use crate::TwoPods;
use integration::{
    ApiServer, Daemon,
    api_server::NODE,
    daemon::rdma_device_plugin,
    lab::{ipv4, ipv6},
};
use rdma_netns::netns;
use rdma_resources::Published;
use serde_json::{Value, json};
use std::{
    thread,
    time::{Duration, Instant},
};

const CONFIG_MAPS: &str = "/api/v1/namespaces/rdma/configmaps";

/// Time limit for each wait, enough for twelve lost requests. The watch sends two requests per second, each with a
/// repetition, and waits one second for each answer.
const LOST: Duration = Duration::from_secs(60);

/// The peer drops UDP port 4791 on one rail. The watch reports this rail, and later that it is reachable again.
#[test]
fn the_watch_finds_a_rail_whose_packets_are_dropped() {
    let scene = TwoPods::new();
    let [one, two] = &scene.pods;
    let inside = netns::Netns::open(one.path()).expect("a namespace");
    let api = inside.run(ApiServer::start).expect("entered");
    let functions = scene.lab.rails(0);
    let state = tempfile::tempdir().expect("a directory");
    let pci = functions.map(|it| it.pci.clone());
    let published = json!({"format": 2, "resources": {
        "rdma/hca": {"sharing": "exclusive", "byId": {"0": [pci[0]], "1": [pci[1]]}},
    }});
    let published: Published = serde_json::from_value(published).expect("resources");
    published.write(state.path()).expect("written");
    // the numbers of the rails follow their PCI addresses
    let number = |rail: usize| usize::from(pci[rail] > pci[1 - rail]);
    let rail = |rail: usize| {
        let addresses = [ipv6(rail, 1), ipv4(rail, 1)];
        json!({"resource": "rdma/hca", "number": number(rail), "device": "", "addresses": addresses})
    };
    let metadata = json!({"name": "rdma-fabric-node-2", "labels": {"rdma-fabric-group": "5"}});
    let rails = json!([rail(0), rail(1)]).to_string();
    let object = json!({"metadata": metadata, "data": {"rails": rails}});
    api.put(&format!("{CONFIG_MAPS}/rdma-fabric-node-2"), object);

    let mut command = one.command(rdma_device_plugin());
    command.args(["fabric", "--namespace=rdma", "--interval=1"]);
    command.arg("--metrics-address=127.0.0.1:0");
    command.arg("--service-account-dir").arg(api.account());
    command.arg("--state-dir").arg(state.path());
    let watch = Daemon::start(command.envs(api.environment()));
    let metrics = || inside.run(|| watch.get("/metrics")).expect("entered");
    let value = |name: &str, rail: usize| {
        let begin = format!("{name}{{device=\"{}\"", functions[rail].rdma);
        let text = metrics();
        let line = text.lines().find(|it| it.starts_with(&begin));
        let value = line.and_then(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
        value.unwrap_or_default()
    };
    let until = |what: &str, limit: Duration, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + limit;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: {}", metrics());
            thread::sleep(Duration::from_millis(500));
        }
    };
    until("both rails are answered", LOST, &|| {
        [0, 1].map(|it| value("rdma_fabric_answer_seconds_count", it) > 3.0) == [true; 2]
    });
    let own = api.get(&format!("{CONFIG_MAPS}/rdma-fabric-{NODE}"));
    let own = own.expect("published")["data"]["rails"].take();
    let own: Vec<Value> = serde_json::from_str(own.as_str().expect("a text")).expect("JSON");
    for rail in 0..2 {
        let addresses = json!([ipv6(rail, 0), ipv4(rail, 0)]);
        assert_eq!(own[number(rail)]["addresses"], addresses, "{own:?}");
    }

    // the kernel evaluates the rule before the peer's addresses
    two.ip("-6 rule add pref 10 lookup local");
    two.ip("-6 rule del pref 0");
    let dropped = "pref 5 ipproto udp dport 4791 iif rdma1 blackhole";
    two.ip(&format!("-6 rule add {dropped}"));
    let is_unreachable = |rail: usize| value("rdma_fabric_unreachable", rail) > 0.0;
    until("rail 1 is unreachable", LOST, &|| is_unreachable(1));
    assert!(!is_unreachable(0), "{}", metrics());
    watch.wait_for_log("reaches no rail of other nodes: 12 requests in a row are lost");
    two.ip(&format!("-6 rule del {dropped}"));
    until("rail 1 is reachable", LOST, &|| !is_unreachable(1));
    watch.wait_for_log("reaches rails of other nodes again");
    assert!(!is_unreachable(0), "{}", metrics());
}
