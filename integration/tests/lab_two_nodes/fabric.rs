// SPDX-License-Identifier: Apache-2.0
//! The fabric watch of the chart's second DaemonSet, from a lost packet to kubelet's count of ids. The watches of both
//! nodes are real. Two nodes are too few for a verdict: each pod with rails on the fabric acts as a further node by a
//! ConfigMap.

use super::{FIRST, HCA, NODES, SECOND};
use integration::{
    Cluster,
    container_runtime::shared::IDS,
    nics::rdma,
    pinged::{is_silent_rdma, pinged},
};
use serde_json::{Value, json};
use std::{
    process::Command,
    time::{Duration, Instant},
};

const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// Turns the watch on, with its default interval. With `require: all`, a node with an unhealthy rail has no healthy id;
/// otherwise its pods would get the other rail.
const UPGRADE: &str = "helm upgrade rdma conf/helm/rdma-device-plugin --namespace kube-system --reuse-values \
                       --set fabric.enabled=true,fabric.unhealthyPercent=10,shared.require=all --wait --timeout 10m";

/// A rule that drops RoCE v2 packets from a bond, as a filter in a switch does. The kernel reads the table of local
/// addresses after this rule.
const DROPPED: &str = "pref 5 ipproto udp dport 4791 iif bond0 blackhole";

const FAMILIES: [&str; 2] = ["-4", "-6"];

/// The names of the pods, and their addresses by rail.
pub(super) type Pods<'a> = [(&'a str, [String; 2]); 2];

/// The first node's watch gets answers of the second node on each rail. Then the first node drops UDP port 4791 of one
/// rail. The watch reports this rail, the first node has no allocatable id, and `ping` names the cause. Without the
/// rule the state is as before.
pub(super) fn is_watched(cluster: &mut Cluster, pods: &Pods<'_>) {
    for (name, addresses) in pods {
        cluster.make(CONFIG_MAPS, &map(name, addresses));
    }
    cluster.types(UPGRADE);
    // the watch that started first has not yet listed the other node
    cluster.types("kubectl -n kube-system rollout restart ds/rdma-fabric");
    cluster.types("kubectl -n kube-system rollout status ds/rdma-fabric");
    cluster.until("each rail is answered", |_| {
        let answers = values("rdma_fabric_answer_seconds_count");
        answers.iter().all(|it| *it > Some(3.0))
    });
    cluster.until(
        "each rail's row of the page has an answer of the other node",
        |_| {
            let page = page();
            [0, 1].into_iter().all(|rail| has_answer(&page, rail))
        },
    );
    cluster.until("all ids are healthy", |it| ids(it) == [Some(IDS); 2]);
    assert_eq!(unreachable(), [Some(false); 2]);
    cluster.report("the watch has answers of the other node");

    let map = cluster.get(&format!("{CONFIG_MAPS}/rdma-fabric-{}", SECOND.name));
    let rails: Value =
        serde_json::from_str(map["data"]["rails"].as_str().expect("rails")).expect("JSON");
    for family in FAMILIES {
        cluster.types(&format!("ip {family} rule add pref 10 lookup local"));
        cluster.types(&format!("ip {family} rule del pref 0"));
        cluster.types(&format!("ip {family} rule add {DROPPED}"));
    }
    let fault = Instant::now();
    cluster.until("the rail is unreachable", |_| {
        unreachable()[0] == Some(true)
    });
    let reported = fault.elapsed();
    // 12 requests in a row, two in 30 s
    assert!(reported > Duration::from_secs(150), "{reported:?}");
    cluster.until("kubelet counts no id", |it| ids(it)[0] == Some(0));
    let unhealthy = fault.elapsed();
    assert_eq!(unreachable(), [Some(true), Some(false)]);
    assert_eq!(
        ids(cluster)[1],
        Some(IDS),
        "the other node's rails are healthy"
    );
    assert!(page().contains("it reaches no rail of other nodes: check cable"));
    let address = rails[0]["addresses"][0].as_str().expect("an address");
    let (code, pair) = pinged(&cluster.nics.host, address, "3");
    assert_eq!(code, 1, "{pair}");
    is_silent_rdma(&pair);

    for family in FAMILIES {
        cluster.types(&format!("ip {family} rule del {DROPPED}"));
        cluster.types(&format!(
            "ip {family} rule add pref 0 protocol kernel lookup local"
        ));
        cluster.types(&format!("ip {family} rule del pref 10"));
    }
    let end = Instant::now();
    cluster.until("the rail is reachable", |_| unreachable()[0] == Some(false));
    let reachable = end.elapsed();
    cluster.until("kubelet counts the ids", |it| ids(it) == [Some(IDS); 2]);
    cluster.report(&format!(
        "fault: unreachable after {reported:?}, no id after {unhealthy:?}; repair: reachable after {reachable:?}, ids after {:?}",
        end.elapsed()
    ));
    for (name, _) in pods {
        cluster.delete(CONFIG_MAPS, &[&format!("rdma-fabric-{name}")]);
    }
}

/// A pod of the first node pings an address of the second node, whose kernel answers until the node loses power.
pub(super) fn answers(cluster: &mut Cluster, from: &str, address: &str, has_power: bool) {
    let (code, pair) = pinged(&cluster.pod(from).netns(), address, "10");
    assert_eq!(code, i32::from(!has_power), "{pair}");
    let reason = pair["reason"].as_str().unwrap_or_default();
    let words =
        "the address does not answer ICMP either: check the peer, the cable and the switch port";
    assert_eq!(reason.contains(words), !has_power, "{pair}");
}

/// A ConfigMap that presents a pod as a node.
fn map(pod: &str, addresses: &[String; 2]) -> Value {
    let rail = |rail: usize| json!({"resource": HCA, "number": rail, "device": "", "addresses": [addresses[rail]]});
    json!({
        "metadata": {"name": format!("rdma-fabric-{pod}"), "labels": {"rdma-fabric-group": "5"}},
        "data": {"rails": json!([rail(0), rail(1)]).to_string()},
    })
}

/// Returns true if the page shows a time for the second node in the row of a rail.
fn has_answer(page: &str, rail: usize) -> bool {
    let (_, table) = page.split_once("Rails of other nodes").unwrap_or_default();
    let mut rows = table.split("<tr ").filter(|it| it.contains(&rdma(rail)));
    let row = rows.next().unwrap_or_default();
    let name = format!("{} ", SECOND.name);
    row.split(&name)
        .skip(1)
        .any(|it| it.starts_with(|c: char| c.is_ascii_digit()))
}

/// The page of the daemon on this node.
fn page() -> String {
    get("9102/")
}

fn get(place: &str) -> String {
    let mut curl = Command::new("curl");
    let output = curl
        .args(["-s", &format!("http://127.0.0.1:{place}")])
        .output();
    String::from_utf8_lossy(&output.expect("curl is installed").stdout).into_owned()
}

/// A metric of this node's watch, by rail. `None` if the watch does not report it.
fn values(name: &str) -> [Option<f64>; 2] {
    let text = get("9103/metrics");
    [0, 1].map(|rail| {
        let begin = format!("{name}{{device=\"{}\"", rdma(rail));
        let line = text.lines().find(|it| it.starts_with(&begin))?;
        line.rsplit(' ').next()?.parse().ok()
    })
}

/// For each rail of this node, true if it is unreachable. `None` if its watch does not respond.
fn unreachable() -> [Option<bool>; 2] {
    values("rdma_fabric_unreachable").map(|it| Some(it? > 0.0))
}

/// The allocatable `rdma/hca` of both nodes.
fn ids(cluster: &Cluster) -> [Option<usize>; 2] {
    [FIRST, SECOND].map(|node| {
        let node = cluster.get(&format!("{NODES}/{}", node.name));
        let count = node["status"]["allocatable"][HCA].as_str();
        count.and_then(|it| it.parse().ok())
    })
}
