// SPDX-License-Identifier: Apache-2.0
//! Reports of rails to the API server (`--report`). The daemon is real, with the token, role and policy of the chart.

use super::{
    kubectl, manifests,
    refused::{bare, name, token, uid},
    text,
};
use integration::{
    CniCache, ControlPlane, Daemon, Machine,
    kubelet::{
        DeviceManager,
        pod_resources::{PodResourcesServer, pod},
    },
    machine::Nic,
    pages,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{fs, thread, time::Duration};

const CHART: &str = "integration/manifests/rendered/report.yaml";

/// Text in the policy's refusals.
const OWN_NODE: &str = "writes the status of its own node only";
const OWN_CONDITION: &str = "writes no other condition than RdmaRailsMissing";
const NOTHING_ELSE: &str = "writes nothing of a node but its condition RdmaRailsMissing";

/// Shortest time after which the daemon regards a start as kubelet's second attempt.
const NEXT_TRY: Duration = Duration::from_millis(5_200);

const NICS: [Nic<'_>; 2] = [
    Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 0,
    },
    Nic {
        address: "0000:af:00.0",
        rdma: "mlx5_1",
        netdev: "ens2",
        numa_node: 1,
        number: 1,
    },
];

fn condition(cluster: &ControlPlane) -> Option<Value> {
    let node = cluster.get("node rdma-1").remove(0);
    let conditions = node["status"]["conditions"].as_array()?.clone();
    let mut own = conditions
        .into_iter()
        .filter(|it| it["type"] == "RdmaRailsMissing");
    let found = own.next();
    assert_eq!(own.next(), None, "it is there twice");
    found
}

/// Waits until the condition has the given status.
#[track_caller]
fn is(cluster: &mut ControlPlane, status: &str) -> Value {
    let what = format!("RdmaRailsMissing is {status}");
    cluster.until(&what, |it| {
        condition(it).is_some_and(|it| it["status"] == status)
    });
    condition(cluster).expect("it is there")
}

/// The messages of a pod's events with a reason, and the uids that the events name.
fn events(cluster: &ControlPlane, reason: &str) -> Vec<(String, Value)> {
    let found = cluster.get(&format!(
        "events -n default --field-selector reason={reason}"
    ));
    let messages = found.into_iter().map(|mut it| {
        assert_eq!(it["source"]["host"], "rdma-1");
        let message = it["message"].as_str().expect("a message").to_owned();
        (message, it["involvedObject"]["uid"].take())
    });
    messages.collect()
}

#[track_caller]
fn until_reported(cluster: &mut ControlPlane, reason: &str) {
    let what = format!("an event {reason}");
    cluster.until(&what, |it| !events(it, reason).is_empty());
}

/// A Python program that sends a strategic merge patch of a node's status with the token, and prints the API server's
/// answer. The test does not use kubectl, which reads an object before it patches it: the token has no right to read.
const PATCH: &str = "
import ssl, sys, urllib.error, urllib.request
url, ca, token, patch = sys.argv[1:]
headers = {'Authorization': 'Bearer ' + token, 'Content-Type': 'application/strategic-merge-patch+json'}
request = urllib.request.Request(url, patch.encode(), headers, method='PATCH')
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca))
    print('done')
except urllib.error.HTTPError as error:
    print(error.read().decode())
";

fn patch(cluster: &ControlPlane, token: &str, node: &str, patch: &Value) -> String {
    let (host, port) = cluster.address();
    let url = format!("https://{host}:{port}/api/v1/nodes/{node}/status?dryRun=All");
    let mut command = cluster.command("python3".as_ref());
    command.args(["-c", PATCH, &url, &cluster.pki("ca.crt"), token]);
    let output = command.arg(patch.to_string()).output().expect("python3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The patch that adds a condition of type `kind`.
fn with(kind: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "Stolen"}]}})
}

/// A thief of the token can only write events and the one condition of its node.
#[track_caller]
fn the_token_is_for_no_more(cluster: &ControlPlane, bound: &str) {
    let unbound = token(cluster, None);
    let own = with("RdmaRailsMissing");
    assert_eq!(patch(cluster, bound, "rdma-1", &own), "done\n");
    for (token, node, tried, words) in [
        (bound, "plain-1", own.clone(), OWN_NODE),
        (&unbound, "rdma-1", own, OWN_NODE),
        (bound, "rdma-1", with("Ready"), OWN_CONDITION),
        (bound, "rdma-1", with("Another"), OWN_CONDITION),
        (
            bound,
            "rdma-1",
            json!({"status": {"capacity": {"rdma/hca": "0"}}}),
            NOTHING_ELSE,
        ),
        (
            bound,
            "rdma-1",
            json!({"status": {"addresses": null}}),
            NOTHING_ELSE,
        ),
        (
            bound,
            "rdma-1",
            json!({"status": {"phase": "Running"}}),
            NOTHING_ELSE,
        ),
        (
            bound,
            "rdma-1",
            json!({"metadata": {"labels": {"stolen": "true"}}}),
            NOTHING_ELSE,
        ),
        (
            bound,
            "rdma-1",
            json!({"metadata": {"annotations": {"stolen": "true"}}}),
            NOTHING_ELSE,
        ),
    ] {
        let reply = patch(cluster, token, node, &tried);
        assert!(reply.contains(words), "{node}: {tried}: {reply}");
    }
    for line in [
        "label node rdma-1 stolen=true",
        "get node rdma-1",
        "delete node rdma-1",
        "get pods -A",
        "delete pod trainer",
    ] {
        let done = cluster.kubectl_as(bound, line);
        let errors = String::from_utf8(done.stderr).expect("UTF-8");
        assert!(
            !done.status.success() && errors.contains("Forbidden"),
            "{line}: {errors}"
        );
    }
}

/// The daemon's condition follows the state of the node's rails. The daemon changes no other field of the node. Pods
/// get events for rails that they lose and get back, and for the reason why they cannot start.
pub(super) fn is_by_the_daemon_of_its_node_and_of_its_own_condition(cluster: &mut ControlPlane) {
    cluster.apply("apply --server-side --validate=strict -f -", &text(CHART));
    let pods = ["trainer", "late"].map(|it| bare(it, json!({})).to_string());
    for pod in &pods {
        cluster.apply("apply -n default -f -", pod);
    }
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    let daemon = cluster.get("pods -n kube-system")[0].clone();
    let bound = token(cluster, Some(name(&daemon)));
    let other = with("Another");
    cluster.until("the policy counts", |it| {
        patch(it, &bound, "rdma-1", &other).contains(OWN_CONDITION)
    });
    let before = cluster.get("node rdma-1").remove(0);

    // the daemon starts with an invalid token, which is replaced later, as kubelet replaces an expired token
    let account = Machine::bare();
    fs::create_dir(account.path("account")).expect("a directory");
    account.write("account/ca.crt", &cluster.ca());
    let claims = bound.rsplit_once('.').expect("a token").0;
    account.write("account/token", &format!("{claims}.AAAA"));
    let machine = Machine::with(&NICS);
    machine.configure(r#"{"resources":[{"name":"rdma/hca","kind":"shared","count":8}]}"#);
    let cache = CniCache::new(&machine.path("results"));
    let trainer = cache.add("trainer", "c1", "cbr0", &["bridge", "rdma-cni"]);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let server = PodResourcesServer::start(&machine.path("kubelet/pod-resources/kubelet.sock"));
    let run = |cluster: &ControlPlane| {
        let mut command = cluster.daemon(&machine, &account);
        command.args(["--report", "events,node-condition"]);
        Daemon::start(&mut command)
    };
    let daemon = run(cluster);
    kubelet.wait_for("rdma/hca", "8 healthy ids", |it| it.healthy().len() == 8);
    daemon.wait_for_log("Unauthorized");
    assert_eq!(condition(cluster), None);
    account.write("account/token", &bound);
    let healthy = is(cluster, "False");
    assert_eq!(healthy["reason"], "NoRailMissing");
    // the runtime's cache entry of this pod, with the uid of the test's pod
    let cached = fs::read_to_string(&trainer).expect("a file");
    let pod_of =
        |it: &ControlPlane, name: &str| it.get(&format!("pod -n default {name}")).remove(0);
    let own = uid(&pod_of(cluster, "trainer")).to_owned();
    fs::write(&trainer, cached.replace("\"7\"", &format!("\"{own}\""))).expect("written");
    for id in ["0", "1"] {
        kubelet
            .ask_for("rdma/hca", &[&[id.to_owned()]])
            .expect("given");
    }
    let given = |pods: &[(&str, &str)]| {
        let pods = pods.iter();
        let pods = pods.map(|(name, id)| pod("default", name, &[&[("rdma/hca", &[*id])]]));
        server.set_pods(&pods.collect::<Vec<_>>());
    };
    given(&[("trainer", "0"), ("late", "1")]);

    // the next daemon writes no event that exists already
    daemon.end(Signal::SIGTERM);
    let daemon = run(cluster);
    kubelet.wait_for("rdma/hca", "a stream of it", |it| {
        it.streams == 1 && it.healthy().len() == 8
    });
    daemon.wait_for_log("metrics are at");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(condition(cluster), Some(healthy));

    // a NIC disappears from its bus, while one pod with it runs and another is to start
    machine.unplug(&NICS[1]);
    daemon.signal(Signal::SIGHUP);
    let missing = is(cluster, "True");
    let transition = missing["lastTransitionTime"].clone();
    assert_eq!(missing["reason"], "DeviceGone");
    let message = missing["message"].as_str().expect("a message");
    assert!(
        message.contains("0000:af:00.0 (mlx5_1) is no longer on this node"),
        "{message}"
    );
    cluster.until("both pods have an event", |it| {
        events(it, "RdmaRailLost").len() == 2
    });
    let reported = events(cluster, "RdmaRailLost");
    let lost = "rails that are unusable: mlx5_1 (0000:af:00.0): it is no longer on this node";
    assert!(
        reported.iter().all(|(message, _)| message == lost),
        "{reported:?}"
    );
    // kubelet does not report the pod's uid, and for a pod with the host's network no file contains it
    assert!(
        reported.iter().any(|(_, it)| it == &own) && reported.iter().any(|(_, it)| it.is_null())
    );
    for pause in [NEXT_TRY, Duration::ZERO, Duration::ZERO] {
        let tried = kubelet.before_start("rdma/hca", &["1".into()]);
        tried.expect_err("it may not start");
        thread::sleep(pause);
    }
    until_reported(cluster, "RdmaPodRefused");
    let [(refused, _)] = &events(cluster, "RdmaPodRefused")[..] else {
        panic!("one event for several tries");
    };
    assert!(refused.contains("0000:af:00.0"), "{refused}");
    the_token_is_for_no_more(cluster, &bound);
    kubectl::shows_conditions_and_events(cluster);
    machine.plug(&NICS[1]);
    daemon.signal(Signal::SIGHUP);
    let healthy = is(cluster, "False");
    assert_ne!(healthy["lastTransitionTime"], transition);
    let after = cluster.get("node rdma-1").remove(0);
    let of_others = |node: &Value| {
        let conditions = node["status"]["conditions"]
            .as_array()
            .expect("a list")
            .iter();
        let others = conditions.filter(|it| it["type"] != "RdmaRailsMissing");
        others.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_others(&after), of_others(&before));
    assert_eq!(after["status"]["capacity"], before["status"]["capacity"]);
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    until_reported(cluster, "RdmaRailRecovered");
    let (back, _) = events(cluster, "RdmaRailRecovered").remove(0);
    assert_eq!(back, "rails that are usable again: mlx5_1 (0000:af:00.0)");

    // remove the condition by the page's command; no daemon writes the condition any more
    drop(daemon);
    let blocks = pages::blocks("docs/observability.md").into_iter();
    let mut lines = blocks.flat_map(|block| block.lines);
    let removal = lines.find(|line| line.contains("\"$patch\":\"delete\""));
    cluster.shell(&removal.expect("the removal").replace("NODE", "rdma-1"));
    assert_eq!(condition(cluster), None);
    let after = cluster.get("node rdma-1").remove(0);
    assert_eq!(of_others(&after), of_others(&before));
    for pod in &pods {
        cluster.apply("delete --wait=false -n default -f -", pod);
    }
    manifests::delete(cluster, &text(CHART));
    cluster.kubectl("-n default delete events --all");
}
