// SPDX-License-Identifier: Apache-2.0
//! In the lab, a cluster of two nodes, each a virtual machine with two bonded NICs on one fabric:
//! `scripts/test --full lab cluster-two-nodes`. Both machines run this program; the first machine runs the tests.

mod fabric;
mod roce_page;
mod smc_r;

use integration::{
    Cluster, Snapshot,
    cluster::{is_true, traffic},
    container_runtime::{
        TOOLS,
        installed::records,
        shared::{HCA, IDS, has_all_rails},
    },
    control_plane::nodes::{FIRST, Member, SECOND},
    pages,
    stopwatch::Stopwatch,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, SystemTime},
};

const PAGE: &str = "docs/deploy.md";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// The label with the name of a pod's node.
const HOST: &str = "kubernetes.io/hostname";

/// Longest time from the moment when the rails of a moved pod exist to the pod's first answer.
const REACHED: Duration = Duration::from_secs(1);

#[test]
fn pods_of_two_nodes_have_rdma_between_them_move_and_outlive_a_node() {
    let mut cluster = Cluster::new();
    have_one_secret();
    if Member::this() == SECOND {
        cluster.stays();
    }
    let before = Snapshot::of(&cluster.nics.host);
    cluster.until("the other node is ready", |it| {
        let node = it.get(&format!("{NODES}/{}", SECOND.name));
        is_true(&node, "Ready") && node["spec"]["taints"].is_null()
    });
    roce_page::is_walked(&mut cluster);
    is_installed(&mut cluster, &smc_r::line());
    smc_r::carries_connections_of_annotated_pods(&mut cluster);
    is_configured_as_shipped(&mut cluster);
    have_rdma_between_them(&mut cluster);
    is_reached_where_it_moves(&mut cluster);
    outlive_a_node(&mut cluster);
    before.assert_restored(&cluster.nics.host);
}

/// Gives the node a fixed secret of `rdma-ipam`, so that both nodes assign the same addresses to a pod (docs/ipam.md).
fn have_one_secret() {
    let file = Path::new("/var/lib/cni/networks/.rdma-ipam.secret");
    fs::write(file, [7; 32]).expect("the secret");
    fs::set_permissions(file, Permissions::from_mode(0o600)).expect("its mode");
}

/// Runs the page's commands: a command with `NODE` once for each node, and the command line `manifest` instead of the
/// command that applies the page's manifest. Waits until both nodes have all ids.
fn is_installed(cluster: &mut Cluster, manifest: &str) {
    for line in pages::commands(PAGE, "Which manifest", "kubectl") {
        if line.contains("NODE") {
            for node in [FIRST, SECOND] {
                cluster.types(&line.replace("NODE", node.name));
            }
        } else {
            assert!(line.contains("lingjun.yaml"), "{line}");
            let applied = cluster.plane.try_shell(manifest);
            assert!(applied.status.success(), "{manifest}: {applied:?}");
        }
    }
    cluster.types("kubectl -n kube-system rollout status ds/ack-rdma-dp-ds");
    have_ids(cluster, has_all);
    cluster.report("installed on both nodes");
}

/// Returns true if `count`, a number of allocatable ids, is the number of all ids.
fn has_all(count: &Value) -> bool {
    count.as_str().and_then(|it| it.parse().ok()) == Some(IDS)
}

/// Waits until `is_count` accepts the allocatable `rdma/hca` of both nodes. Null means that the node has no such
/// resource.
fn have_ids(cluster: &mut Cluster, is_count: impl Fn(&Value) -> bool) {
    cluster.until("the ids of both nodes", |it| {
        [FIRST, SECOND].iter().all(|node| {
            let node = it.get(&format!("{NODES}/{}", node.name));
            is_count(&node["status"]["allocatable"][HCA])
        })
    });
}

/// Applies the unchanged manifest instead of another configuration.
fn is_configured_as_shipped(cluster: &mut Cluster) {
    cluster.types("kubectl apply -f conf/manifests/lingjun.yaml");
    cluster.types("kubectl -n kube-system rollout restart ds/ack-rdma-dp-ds");
    cluster.types("kubectl -n kube-system rollout status ds/ack-rdma-dp-ds");
}

/// Returns the specification of a pod with one `rdma/hca`.
fn spec() -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"], "resources": {"limits": {HCA: 1}},
    });
    json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
}

/// Starts a pod with one `rdma/hca` on a node, and waits until it is ready.
fn start(cluster: &mut Cluster, name: &str, node: Member) {
    start_as(cluster, name, node, spec(), &json!({}));
}

/// Starts a pod with this specification and annotations on a node, and waits until it is ready.
fn start_as(cluster: &mut Cluster, name: &str, node: Member, mut spec: Value, annotations: &Value) {
    spec["nodeSelector"] = json!({HOST: node.name});
    let metadata = json!({"name": name, "annotations": annotations});
    cluster.make(PODS, &json!({"metadata": metadata, "spec": spec}));
    let path = format!("{PODS}/{name}");
    cluster.until(&format!("{name} is ready"), |it| {
        is_true(&it.get(&path), "Ready")
    });
    let pod_object = cluster.get(&path);
    assert_eq!(pod_object["spec"]["nodeName"], node.name);
}

/// Starts two pods on each node. No two pods have the same rail address, and RDMA between the nodes works on each rail
/// in both directions.
fn have_rdma_between_them(cluster: &mut Cluster) {
    let pods = [
        ("here", FIRST),
        ("there", SECOND),
        ("here-too", FIRST),
        ("there-too", SECOND),
    ];
    for (name, node) in pods {
        start(cluster, name, node);
    }
    let mut addresses = BTreeSet::new();
    for (name, _) in pods {
        for rail in 0..2 {
            let address = traffic::address(cluster, name, rail);
            assert!(
                addresses.insert(address.clone()),
                "{name}, rail {rail}: {address} is another's, too"
            );
        }
    }
    for rail in 0..2 {
        traffic::rping(cluster, ["there", "here"], rail);
        traffic::rping(cluster, ["here", "there"], rail);
    }
    traffic::read_bandwidth(cluster, ["there", "here"], 0, 30);
    traffic::read_bandwidth(cluster, ["here", "there"], 1, 30);
    gone(cluster, &["here-too", "there-too"]);
    cluster.report("pods of two nodes have RDMA between them");
}

fn gone(cluster: &mut Cluster, names: &[&str]) {
    cluster.delete(PODS, names);
    cluster.until("they are gone", |it| {
        names
            .iter()
            .all(|name| it.get(&format!("{PODS}/{name}")).is_null())
    });
}

/// A pod of the second node ends, and starts again on the first node with the same addresses. A peer that has cached
/// the pod's old location reaches the pod within a second after the pod's rails exist.
fn is_reached_where_it_moves(cluster: &mut Cluster) {
    start(cluster, "mover", SECOND);
    let there = traffic::address(cluster, "mover", 0);
    let near = cluster.pod("here");
    let mut far_ping = Pings::start(near.netns().command("ping"), &there);
    far_ping.next();
    gone(cluster, &["mover"]);
    far_ping.forget();
    let stopwatch = Stopwatch::start();
    start(cluster, "mover", FIRST);
    let here = traffic::address(cluster, "mover", 0);
    assert_eq!(here, there, "one secret, one address");
    let reached = far_ping.next();
    let mover = cluster.pod("mover");
    has_all_rails(&mover);
    let attached = attached(&mover.sandbox);
    // zero if the peer reached the pod before the record showed its rails
    let after = reached.duration_since(attached).unwrap_or_default();
    let after = stopwatch.corrected(after);
    assert!(
        after <= REACHED,
        "the pod is reached {after:?} after its rails are there"
    );
    cluster.report(&format!(
        "the pod that moved is reached {after:?} after its rails are there"
    ));
    // a pod on the earlier node reaches the moved pod, too
    let line = format!("kubectl exec there -- ping -c 1 -W 10 {here}");
    cluster.types(&line);
    traffic::rping(cluster, ["mover", "there"], 1);
    gone(cluster, &["mover"]);
}

/// The time at which the record of the sandbox showed its rails.
fn attached(sandbox: &str) -> SystemTime {
    let networks = fs::read_dir(Path::new("/var/lib/cni/rdma-cni/attachments")).expect("records");
    let files =
        networks.flat_map(|it| fs::read_dir(it.expect("a network").path()).expect("records"));
    let file = files
        .map(|it| it.expect("a record"))
        .find(|it| it.file_name().to_string_lossy().contains(sandbox));
    let file = file.expect("the record of the pod");
    file.metadata()
        .and_then(|it| it.modified())
        .expect("a time")
}

/// A node loses power. A Deployment's pod of this node starts on the other node after an operator has marked the lost
/// node as out of service.
fn outlive_a_node(cluster: &mut Cluster) {
    let labels = json!({"app": "trainer"});
    let mut template = json!({"metadata": {"labels": labels}, "spec": spec()});
    let preferred = json!({"matchExpressions": [
        {"key": HOST, "operator": "In", "values": [SECOND.name]},
    ]});
    template["spec"]["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "preference": preferred},
    ]}});
    let trainer = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "trainer"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    cluster.make(DEPLOYMENTS, &trainer);
    let first = trainer_on(cluster, SECOND);
    let address = traffic::address(cluster, &first, 0);
    traffic::rping(cluster, [&first, "here"], 0);
    fabric::answers(cluster, "here", &address, true);

    cluster.plane.power_off(SECOND);
    let path = format!("{NODES}/{}", SECOND.name);
    cluster.until("the node is lost", |it| !is_true(&it.get(&path), "Ready"));
    fabric::answers(cluster, "here", &address, false);
    cluster.types(&format!(
        "kubectl taint node {} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
        SECOND.name
    ));
    let second = trainer_on(cluster, FIRST);
    assert_ne!(
        traffic::address(cluster, &second, 0),
        address,
        "another pod has another address"
    );
    has_all_rails(&cluster.pod(&second));
    for rail in 0..2 {
        traffic::rping(cluster, ["here", &second], rail);
    }
    cluster.report("the lost node's pod is on the other one");
    cluster.types("kubectl delete deployment trainer --cascade=foreground");
    gone(cluster, &["here"]);
    // otherwise the API server waits for the node's kubelet
    cluster.types(&format!("kubectl delete node {}", SECOND.name));
    for line in pages::commands(PAGE, "Removal", "kubectl") {
        // the line names an image in a placeholder registry
        if !line.contains("registry.example") {
            cluster.types(&line);
        }
    }
    assert!(records().is_empty(), "{:?}", records());
}

/// The Deployment's pod on a node. Waits until it is ready.
fn trainer_on(cluster: &mut Cluster, node: Member) -> String {
    let is_it = |pod: &Value| {
        pod["metadata"]["labels"]["app"] == "trainer"
            && pod["spec"]["nodeName"] == node.name
            && is_true(pod, "Ready")
    };
    let pods = |it: &Cluster| it.list(PODS).into_iter().find(is_it);
    cluster.until("the trainer is ready", |it| pods(it).is_some());
    let pod = pods(cluster).expect("the trainer");
    pod["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// A neighbour that pings an address ten times a second.
struct Pings {
    process: Child,
    answers: Receiver<SystemTime>,
}

impl Pings {
    #[track_caller]
    fn start(mut ping: Command, address: &str) -> Self {
        ping.args(["-n", "-i", "0.1", address]);
        let mut process = ping
            .stdout(Stdio::piped())
            .spawn()
            .expect("ping is installed");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if line.contains("bytes from") && sender.send(SystemTime::now()).is_err() {
                    break;
                }
            }
        });
        Self { process, answers }
    }

    /// Waits for the next answer, and returns its time.
    #[track_caller]
    fn next(&mut self) -> SystemTime {
        let answer = self.answers.recv_timeout(Duration::from_secs(60));
        answer.expect("an answer within a minute")
    }

    /// Discards the answers received so far.
    fn forget(&mut self) {
        while self.answers.try_recv().is_ok() {}
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
