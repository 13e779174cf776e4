// SPDX-License-Identifier: Apache-2.0
//! Cost for every pod without RDMA: an ADD that sends kubelet a request and returns prevResult, compared with a
//! process that does nothing.

use super::{
    figures,
    run::{Run, cpu, median, run, runs},
};
use integration::{
    Node,
    kubelet::pod_resources::{Get, PodResourcesServer, pod},
    plugin::rdma_cni,
};
use serde_json::json;
use std::{
    fs::{self, File},
    path::Path,
};

const RUNS: usize = 300;
/// Kubelet's default for the maximum number of pods on a node.
const PODS: usize = 110;

pub(super) fn measure(node: &Node) {
    let kubelet = PodResourcesServer::start(&node.directory().join("kubelet/kubelet.sock"));
    let names: Vec<String> = (0..PODS).map(|number| format!("pod{number}")).collect();
    let gpu: [(&str, &[&str]); 1] = [("nvidia.com/gpu", &["GPU-1"])];
    let pods = names.iter().map(|name| pod("default", name, &[&gpu]));
    kubelet.set_pods(&pods.collect::<Vec<_>>());
    let input = node.directory().join("passing.json");
    let configuration = json!({
        "cniVersion": "1.0.0", "name": "bench", "type": "rdma-cni", "stateDir": node.state(),
        "podResourcesSocket": kubelet.socket(),
        "prevResult": { "cniVersion": "1.0.0", "interfaces": [], "ips": [] },
    });
    fs::write(&input, configuration.to_string()).expect("the configuration");
    let ours = rdma_cni();
    let args = format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod{}", PODS - 1);
    let call = |program: &Path, command: &str| {
        let environment = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "bench"),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/usr/lib/cni"),
            ("CNI_ARGS", &args),
        ];
        run(
            program,
            &environment,
            File::open(&input).expect("the configuration"),
        )
        .0
    };
    let mut times: [Vec<Run>; 5] = Default::default();
    for _ in 0..runs(RUNS) {
        times[0].push(call(Path::new("/bin/true"), "ADD"));
        times[1].push(call(&ours, "VERSION"));
        kubelet.set_get(Get::Works);
        times[2].push(call(&ours, "ADD"));
        kubelet.set_get(Get::TurnedOff);
        times[3].push(call(&ours, "ADD"));
        times[4].push(call(&ours, "DEL"));
    }
    println!(
        "\na pod without an allocation, medians of {} runs, in turn\n",
        runs(RUNS)
    );
    println!(
        "{:<30} {:>9} {:>14} {:>9} {:>14}",
        "", "ms", "to /bin/true", "CPU, ms", "to /bin/true"
    );
    let titles = [
        "/bin/true",
        "VERSION",
        "ADD, kubelet asked by Get",
        "ADD, by List of 110 pods",
        "DEL",
    ];
    let mut rows = vec![];
    let nothing = [median(&times[0]), cpu(&times[0])];
    for (title, runs) in titles.iter().zip(&times) {
        let [wall, cpu] = [median(runs), cpu(runs)];
        println!(
            "{title:<30} {wall:>9.3} {:>14.2} {cpu:>9.3} {:>14.2}",
            wall / nothing[0],
            cpu / nothing[1]
        );
        rows.push(((*title).to_owned(), vec![wall, cpu]));
    }
    figures::keep("passing", &["elapsed", "CPU"], &rows);
}
