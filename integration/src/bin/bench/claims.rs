// SPDX-License-Identifier: Apache-2.0
//! The daemon as a DRA driver with a real API server on the same machine (`RDMA_KUBERNETES`). A stand-in for kubelet
//! calls the driver for one claim after the other: first it prepares all claims, then prepares them again, then
//! unprepares them. Each claim has all NICs of the node.

use super::daemon::p50_and_p99;
use integration::{ControlPlane, Daemon, Machine, kubelet::ClaimManager, machine::Nic};
use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

/// Number of claims: nearly twice kubelet's default for the maximum number of pods.
const CLAIMS: usize = 200;
const NODE: &str = "bench-1";
const DRIVER: &str = "hca.rdma";

/// Returns a machine with eight rails, four on each NUMA node.
fn machine() -> Machine {
    let machine = Machine::with(&[]);
    for number in 0..8_u64 {
        machine.plug(&Nic {
            address: &format!("0000:{:02x}:00.0", 0x10 + number),
            rdma: &format!("mlx5_{number}"),
            netdev: &format!("ens{number}"),
            numa_node: i32::try_from(number / 4).expect("a node"),
            number,
        });
    }
    machine
}

/// Starts a daemon. Its token is bound to a pod of the node and has all permissions.
fn start(cluster: &mut ControlPlane, machine: &Machine) -> Daemon {
    cluster.add_node(NODE, &[]);
    let all = "create clusterrolebinding bench --clusterrole=cluster-admin --serviceaccount=default:default";
    cluster.kubectl(all);
    cluster.until("the namespace has its account", |it| {
        let account = it.try_kubectl("-n default get serviceaccount default");
        account.status.success()
    });
    let container = json!({"name": "driver", "image": "example.org/image"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"},
        "spec": {"nodeName": NODE, "containers": [container]},
    });
    cluster.apply("create -n default -f -", &pod.to_string());
    let token = cluster.kubectl(
        "-n default create token default --bound-object-kind Pod --bound-object-name driver",
    );
    fs::create_dir_all(machine.path("account")).expect("a directory");
    machine.write("account/ca.crt", &cluster.ca());
    machine.write("account/token", token.trim());
    let resource =
        json!({"name": "rdma/hca", "kind": "shared", "devices": [{"driver": "mlx5_core"}]});
    machine.configure(&json!({"resources": [resource], "dra": {}}).to_string());
    Daemon::start(&mut cluster.daemon(machine, machine))
}

/// Makes claims that are allocated on the node, and returns them.
fn allocated(cluster: &mut ControlPlane) -> Vec<Value> {
    let list =
        |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let request = json!({"name": "nics", "exactly": {"deviceClassName": "rdma-hca"}});
    let claim = |number: usize| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": format!("claim-{number}"), "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        })
    };
    cluster.apply("create -f -", &list((0..CLAIMS).map(claim).collect()));
    let mut claims = cluster.get("resourceclaims -n default");
    for claim in &mut claims {
        let result = json!({
            "request": "nics", "driver": DRIVER, "pool": NODE, "device": "rdma-hca-all",
        });
        claim["status"]["allocation"] = json!({"devices": {"results": [result]}});
    }
    cluster.apply("replace --subresource=status -f -", &list(claims.clone()));
    claims
}

/// Returns the number of GET and PUT requests for claims that the API server has received.
fn requests(cluster: &ControlPlane) -> f64 {
    let text = cluster.ask("/metrics").expect("the API server's metrics");
    let lines = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"resourceclaims\"")
            && (line.contains("verb=\"GET\"") || line.contains("verb=\"PUT\""))
    });
    let numbers = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    numbers.sum()
}

fn each(claims: &[Value], work: impl Fn(&Value)) -> (f64, f64) {
    let took = |claim: &Value| {
        let at = Instant::now();
        work(claim);
        at.elapsed()
    };
    let times: Vec<Duration> = claims.iter().map(took).collect();
    p50_and_p99(times)
}

pub(super) fn measure() {
    let mut cluster = ControlPlane::start();
    let machine = machine();
    let daemon = start(&mut cluster, &machine);
    let kubelet = ClaimManager::register(&machine.path("kubelet"));
    cluster.until("the slices are there", |it| {
        !it.get("resourceslices").is_empty()
    });
    let claims = allocated(&mut cluster);
    let before = (requests(&cluster), daemon.memory());
    let prepare = |claim: &Value| {
        let answer = kubelet.prepare(claim);
        assert_eq!(answer.error, "", "{claim}");
    };
    let first = each(&claims, prepare);
    let sent = requests(&cluster) - before.0;
    let again = each(&claims, prepare);
    let held = daemon.memory();
    let unprepared = each(&claims, |claim| {
        let error = kubelet.unprepare(claim);
        assert_eq!(error, "", "{claim}");
    });
    println!("\nrdma-device-plugin as a DRA driver: {CLAIMS} claims of eight NICs each\n");
    println!(
        "{:<41}{:>10}{:>12}{:>10}{:>12}",
        "", "p50", "to Prepare", "p99", "to Prepare"
    );
    for (name, (p50, p99)) in [
        ("Prepare, ms", first),
        ("the same once more, ms", again),
        ("Unprepare, ms", unprepared),
    ] {
        let [median, slow] = [p50 / first.0, p99 / first.1];
        println!("{name:<41}{p50:>10.2}{median:>12.2}{p99:>10.2}{slow:>12.2}");
    }
    let per_claim = sent / CLAIMS as f64;
    println!(
        "{:<41}{per_claim:>10.2}",
        "requests for a claim at its first Prepare"
    );
    let megabytes = |kib: u64| kib as f64 / 1024.0;
    println!(
        "{:<41}{:>10.1}{:>10.1}{:>12.2}",
        "RSS before and with all claims, MB; ratio",
        megabytes(before.1),
        megabytes(held),
        held as f64 / before.1 as f64
    );
}
