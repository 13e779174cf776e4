// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose `rdma/hca` is allocated by claims:
//! `scripts/test --full lab cluster-claims-killed`. The test kills the daemon, which is the DRA driver, before each of
//! its file changes while a pod starts and while a pod ends. Kubelet restarts the daemon, and repeats unanswered
//! Prepare and Unprepare calls.

use integration::{
    Cluster, Snapshot,
    cluster::{
        claims::{CLAIMS, DAEMONS, PLACES, PODS, daemon, install, none_is_left, pid_of, remove},
        is_true,
    },
    container_runtime::{
        TOOLS,
        installed::{Files, records},
        shared::{HCA, has_all_rails},
    },
    tracer::{self, Fault},
};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path};

const MANIFEST: &str = "integration/manifests/rendered/claims.yaml";

const DEVICES: [&str; 3] = [
    "rdma-hca-all",
    "rdma-hca-0000-21-00-0",
    "rdma-hca-0000-41-00-0",
];

const NAME: &str = "killed";

const INJECTOR: &str = env!("CARGO_BIN_EXE_fault-injector");

fn makes_a_pod(cluster: &Cluster) {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"],
        "resources": {"limits": {HCA: 1}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec});
    cluster.make(PODS, &pod);
}

/// Waits until the pod and its claim are gone.
#[track_caller]
fn until_it_is_gone(cluster: &mut Cluster) {
    cluster.until("the pod is gone, and its claim", |it| {
        it.list(PODS).is_empty() && it.list(CLAIMS).is_empty()
    });
}

/// Waits until the pod and its claim are gone. Asserts that `rdma-cni`'s records and the driver's files, except for its
/// lock, are gone, too.
#[track_caller]
fn until_all_is_given_up(cluster: &mut Cluster) {
    until_it_is_gone(cluster);
    assert!(records().is_empty(), "{:?}", records());
    for (directory, left) in [
        ("/var/lib/cni/rdma-cni/claims", &["lock"][..]),
        ("/var/run/cdi", &[]),
    ] {
        let entries = fs::read_dir(directory).expect("a directory");
        let names: Vec<_> = entries
            .map(|it| it.expect("an entry").file_name())
            .collect();
        assert_eq!(names, left, "{directory}");
    }
}

/// Returns a kill before each of `changes`.
fn kills(changes: BTreeMap<&'static str, usize>) -> Vec<Fault> {
    let of_call = |(call, count)| (1..=count).map(move |at| Fault::KillBefore(call, at));
    changes.into_iter().flat_map(of_call).collect()
}

/// Returns a kill before each change of a file by the driver: while a pod starts, and while it ends.
fn all_kills(cluster: &mut Cluster) -> [Vec<Fault>; 2] {
    let driver = pid_of(cluster);
    let coming = tracer::changes(driver, INJECTOR.as_ref(), || {
        makes_a_pod(cluster);
        has_all_rails(&cluster.pod(NAME));
    });
    let ending = tracer::changes(driver, INJECTOR.as_ref(), || {
        cluster.delete(PODS, &[NAME]);
        until_it_is_gone(cluster);
    });
    until_all_is_given_up(cluster);
    // Prepare renames the complete record into place. Unprepare removes the record and the specification, which the
    // daemon wrote when the pod had its network.
    assert_eq!(coming.get("rename"), Some(&1), "{coming:?}");
    assert!(coming.contains_key("fsync"), "{coming:?}");
    assert!(ending["unlink"] >= 2, "{ending:?}");
    cluster.report(&format!("coming changes {coming:?}, ending {ending:?}"));
    [coming, ending].map(kills)
}

/// Kills the driver `pid` by `kill` during the work that `begin` starts, and waits until kubelet has restarted the
/// driver.
#[track_caller]
fn is_killed(
    cluster: &mut Cluster,
    (verb, kill): (&str, Fault),
    pid: Pid,
    begin: impl FnOnce(&Cluster),
) {
    let before = daemon(cluster);
    let what = format!("{verb}, {kill:?}");
    tracer::killed(pid, INJECTOR.as_ref(), kill, || {
        begin(cluster);
        cluster.until(&what, |_| !Path::new(&format!("/proc/{pid}")).exists());
    });
    let restarts = |it: &Value| it["status"]["containerStatuses"][0]["restartCount"].as_u64();
    cluster.until("the driver was started anew", |it| {
        let now = daemon(it);
        restarts(&now) > restarts(&before) && is_true(&now, "Ready")
    });
    cluster.report(&what);
}

/// Replaces the daemon's pod, because kubelet restarts the containers of one pod with growing delays.
#[track_caller]
fn another_daemon(cluster: &mut Cluster) {
    let before = daemon(cluster);
    let name = before["metadata"]["name"].as_str().expect("a name");
    cluster.delete(DAEMONS, &[name]);
    cluster.until("another daemon is ready", |it| {
        let now = daemon(it);
        now["metadata"]["uid"] != before["metadata"]["uid"] && is_true(&now, "Ready")
    });
}

#[test]
fn no_claim_is_lost_with_its_driver() {
    let mut cluster = Cluster::new();
    let files = Files::below(&PLACES);
    let network = Snapshot::of(&cluster.nics.host);
    install(&mut cluster, MANIFEST, &DEVICES);
    let [coming, ending] = all_kills(&mut cluster);
    for number in 0..coming.len().max(ending.len()) {
        if let Some(kill) = coming.get(number) {
            let pid = pid_of(&cluster);
            is_killed(&mut cluster, ("a pod comes", *kill), pid, makes_a_pod);
        } else {
            makes_a_pod(&cluster);
        }
        has_all_rails(&cluster.pod(NAME));
        if let Some(kill) = ending.get(number) {
            let pid = pid_of(&cluster);
            is_killed(&mut cluster, ("a pod ends", *kill), pid, |it| {
                it.delete(PODS, &[NAME]);
            });
        } else {
            cluster.delete(PODS, &[NAME]);
        }
        until_all_is_given_up(&mut cluster);
        another_daemon(&mut cluster);
    }
    none_is_left(&mut cluster);
    remove(&mut cluster, MANIFEST);
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    network.assert_restored(&cluster.nics.host);
}
