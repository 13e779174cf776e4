// SPDX-License-Identifier: Apache-2.0
//! Pods whose containers may not start (`--refused-pods delete`). The daemon is real, with the token, role and policy
//! of the chart.

use super::{manifests, text};
use integration::{
    ControlPlane, Daemon, Machine,
    kubelet::{
        DeviceManager,
        pod_resources::{PodResourcesServer, pod},
    },
    machine::NIC,
};
use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// Text in the policy's refusal.
const OWN_NODE: &str = "pods of its own node only";

const CHART: &str = "integration/manifests/rendered/refused-pods.yaml";

/// Shortest time after which the daemon regards a start as kubelet's second attempt. Kubelet itself tries again after
/// 10 s.
const NEXT_TRY: Duration = Duration::from_millis(5_200);

/// Returns a controller object of `kind` whose pods run on `node`.
fn maker(kind: &str, name: &str, node: &str) -> Value {
    let labels = json!({"app": name});
    let container = json!({"name": "main", "image": "example.org/image"});
    let selector = json!({"kubernetes.io/hostname": node});
    let pod = json!({"nodeSelector": selector, "containers": [container]});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

pub(super) fn bare(name: &str, annotations: Value) -> Value {
    let container = json!({"name": "main", "image": "example.org/image"});
    let metadata = json!({"name": name, "labels": {"app": name}, "annotations": annotations});
    let spec = json!({"nodeName": "rdma-1", "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// The apps of the pods, in the order of kubelet's ids: the first app has id 0.
const APPS: [&str; 5] = ["trainer", "rank", "elsewhere", "bare", "static"];

/// For each app, the pod that is not being deleted. Waits until each of these pods is on a node.
#[track_caller]
fn running(cluster: &mut ControlPlane) -> [Value; 5] {
    let mut found = vec![];
    cluster.until("all have a pod on a node", |it| {
        let pods = it.get("pods -n default");
        let is_of = |pod: &&Value, app: &str| {
            pod["metadata"]["labels"]["app"] == app
                && pod["metadata"]["deletionTimestamp"].is_null()
                && !pod["spec"]["nodeName"].is_null()
        };
        let one = |app: &&str| pods.iter().find(|it| is_of(it, app)).cloned();
        found = APPS.iter().filter_map(one).collect();
        found.len() == APPS.len()
    });
    found.try_into().expect("one of each")
}

pub(super) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().expect("a name")
}

pub(super) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("a uid")
}

/// The daemon's token, bound to its pod as kubelet requests it, or without a bound object.
#[track_caller]
pub(super) fn token(cluster: &ControlPlane, bound_to: Option<&str>) -> String {
    let bound = bound_to.map(|it| format!("--bound-object-kind Pod --bound-object-name {it}"));
    let bound = bound.unwrap_or_default();
    let line = format!("-n kube-system create token rdma-device-plugin {bound}");
    cluster.kubectl(&line).trim().to_owned()
}

/// A daemon and a stand-in for kubelet, which has allocated ids of one NIC to pods.
struct Node {
    daemon: Daemon,
    kubelet: DeviceManager,
    _pods: PodResourcesServer,
    machine: Machine,
}

impl Node {
    /// Creates a node whose kubelet has allocated an id to each of `pods`.
    #[track_caller]
    fn new(cluster: &ControlPlane, account: &Machine, pods: &[&str]) -> Self {
        let machine = Machine::with(&[NIC]);
        machine.configure(r#"{"resources":[{"name":"rdma/hca","kind":"shared","count":8}]}"#);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let socket = machine.path("kubelet/pod-resources/kubelet.sock");
        let server = PodResourcesServer::start(&socket);
        let mut command = cluster.daemon(&machine, account);
        command.args(["--refused-pods", "delete"]);
        let daemon = Daemon::start(&mut command);
        kubelet.wait_for("rdma/hca", "8 healthy ids", |it| it.healthy().len() == 8);
        let ids: Vec<String> = (0..pods.len()).map(|it| it.to_string()).collect();
        let each: Vec<[&str; 1]> = ids.iter().map(|it| [it.as_str()]).collect();
        let given = pods.iter().zip(&each);
        let given = given.map(|(name, id)| pod("default", name, &[&[("rdma/hca", id.as_slice())]]));
        server.set_pods(&given.collect::<Vec<_>>());
        for id in &ids {
            let response = kubelet.ask_for("rdma/hca", &[std::slice::from_ref(id)]);
            response.expect("given");
        }
        Self {
            daemon,
            kubelet,
            _pods: server,
            machine,
        }
    }

    /// Lets kubelet try to start `pods` pods. The daemon refuses all of them.
    #[track_caller]
    fn refuses(&self, pods: usize) {
        for id in 0..pods {
            let tried = self.kubelet.before_start("rdma/hca", &[id.to_string()]);
            tried.expect_err("it may not start");
        }
    }
}

/// Controllers of pods, on the daemon's node and on another node, and two pods without a controller.
fn makers() -> String {
    let items = [
        maker("Deployment", "trainer", "rdma-1"),
        maker("StatefulSet", "rank", "rdma-1"),
        maker("Deployment", "elsewhere", "plain-1"),
        bare("bare", json!({})),
        bare("static", json!({"kubernetes.io/config.mirror": "1"})),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A thief of the daemon's token can only write events, read pods of the daemon's node (by DELETE with `dryRun`), and
/// delete the pods of this node that a controller replaces.
#[track_caller]
fn the_token_is_for_no_more(cluster: &ControlPlane, token: &str, pods: &[Value; 5]) {
    let [trainer, _, elsewhere, bare, _] = pods.each_ref().map(name);
    let unbound = self::token(cluster, None);
    for (token, line, words) in [
        (token, format!("delete pod {elsewhere}"), OWN_NODE),
        (
            token,
            format!("delete pod {bare}"),
            "that a controller makes again",
        ),
        (&unbound, format!("delete pod {trainer}"), OWN_NODE),
        (token, format!("get pod {trainer}"), "Forbidden"),
        (token, "delete pods --all".into(), "Forbidden"),
        (token, "get secrets -A".into(), "Forbidden"),
    ] {
        let done = cluster.kubectl_as(token, &line);
        let errors = String::from_utf8(done.stderr).expect("UTF-8");
        assert!(
            !done.status.success() && errors.contains(words),
            "{line}: {errors}"
        );
    }
    let evicts = cluster.kubectl_as(token, "auth can-i create pods --subresource=eviction");
    assert_eq!(String::from_utf8_lossy(&evicts.stdout), "no\n");
}

/// Returns the daemon's metrics, which only a process in its network namespace can read.
fn metrics(cluster: &ControlPlane) -> String {
    let ask =
        "exec 3<>/dev/tcp/127.0.0.1/9102; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
    let mut command = cluster.command("bash".as_ref());
    let output = command.args(["-c", ask]).output().expect("bash");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The daemon deletes a refused pod of its node if a controller replaces the pod, and no other pod. Before the deletion
/// it writes an event.
pub(super) fn are_deleted_by_the_daemon_of_their_node(cluster: &mut ControlPlane) {
    cluster.apply("apply --server-side --validate=strict -f -", &text(CHART));
    cluster.apply("apply -n default -f -", &makers());
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    let daemon = cluster.get("pods -n kube-system")[0].clone();
    let bound = token(cluster, Some(name(&daemon)));
    let pods = running(cluster);
    let [trainer, rank, elsewhere, ..] = &pods;
    let tried = format!("delete --dry-run=server pod {}", name(elsewhere));
    cluster.until("the policy counts", |it| {
        let tried = it.kubectl_as(&bound, &tried);
        String::from_utf8_lossy(&tried.stderr).contains(OWN_NODE)
    });

    // the daemon starts with an invalid token, which is replaced later, as kubelet replaces an expired token
    let account = Machine::bare();
    fs::create_dir(account.path("account")).expect("a directory");
    account.write("account/ca.crt", &cluster.ca());
    let claims = bound.rsplit_once('.').expect("a token").0;
    account.write("account/token", &format!("{claims}.AAAA"));
    let node = Node::new(cluster, &account, &pods.each_ref().map(name));
    node.machine.renumber(&NIC, NIC.number, 7);
    node.refuses(1);
    node.daemon.wait_for_log("Unauthorized");
    account.write("account/token", &bound);

    // kubelet's two attempts for each pod; between them, a new pod with the name of an old one appears
    node.refuses(APPS.len());
    let first = Instant::now();
    node.daemon
        .wait_for_log("default/bare cannot start, and is not deleted: it has no controller");
    node.daemon
        .wait_for_log("default/static cannot start, and is not deleted: it is a static pod");
    node.daemon.wait_for_log(OWN_NODE);
    cluster.kubectl("-n default delete pod rank-0 --force --grace-period=0");
    the_token_is_for_no_more(cluster, &bound, &pods);
    let now = running(cluster);
    assert_ne!(uid(&now[1]), uid(rank));
    thread::sleep(NEXT_TRY.saturating_sub(first.elapsed()));
    node.refuses(APPS.len());
    let is_deleted = format!("deleted pod default/{}: ", name(trainer));
    let line = node.daemon.line(&is_deleted);
    assert!(line.contains("; ReplicaSet trainer-"), "{line}");
    assert!(
        line.contains("delete the pod to get a new allocation"),
        "{line}"
    );
    let after = running(cluster);
    assert_ne!(uid(&after[0]), uid(trainer));

    let events = cluster.get("events -n default --field-selector reason=RdmaPodDeleted");
    let of = |pod: &Value| {
        let of = |it: &&Value| it["involvedObject"]["uid"] == uid(pod);
        events.iter().filter(of).collect::<Vec<_>>()
    };
    let [event] = of(trainer)[..] else {
        panic!("{events:#?}");
    };
    let message = event["message"].as_str().expect("a message");
    assert!(
        message.contains("was granted as /dev/infiniband/uverbs0"),
        "{message}"
    );
    assert_eq!(event["source"]["host"], "rdma-1");
    for app in 1..APPS.len() {
        assert!(of(&now[app]).is_empty(), "{}", APPS[app]);
        assert_eq!(uid(&after[app]), uid(&now[app]), "{}", APPS[app]);
    }
    let metrics = metrics(cluster);
    for (outcome, count) in [("deleted", 1), ("kept", 2)] {
        let name = "rdma_device_plugin_refused_pods_total";
        let line = format!("{name}{{resource=\"rdma/hca\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    drop(node);
    cluster.apply("delete --wait=false -n default -f -", &makers());
    manifests::delete(cluster, &text(CHART));
    cluster.kubectl("-n default delete events --all");
}
