// SPDX-License-Identifier: Apache-2.0
//! The real program and a stand-in for kubelet. Pods without an allocation pass, and misbehaviour of kubelet soon leads
//! to a clear error. Devices cannot be allocated here, because no netdev is on a bus: the tests of `rdma-cni` have such
//! devices on a fake kernel, and the lab's tests on a real one.

use integration::{
    Conflist, Netns, Node, OddFile, Outcome, Snapshot,
    kubelet::pod_resources::{Get, Mood, PodResourcesServer, pod},
    stopwatch::Stopwatch,
};
use serde_json::{Value, json};
use std::{fs, path::PathBuf, sync::mpsc, thread, time::Duration};

/// A node whose kubelet has the pod `default/web` with only a GPU.
struct Cluster {
    node: Node,
    kubelet: PodResourcesServer,
    pod: Netns,
}

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";

impl Cluster {
    fn new() -> Self {
        let node = Node::with_rails(1);
        let kubelet =
            PodResourcesServer::start(&node.directory().join("pod-resources/kubelet.sock"));
        kubelet.set_pods(&[pod("default", "web", &[&[("nvidia.com/gpu", &["GPU-1"])]])]);
        let pod = node.pod("web");
        Self { node, kubelet, pod }
    }

    fn configuration(&self) -> Value {
        json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "rdma-cni",
            "stateDir": self.node.state(),
            "podResourcesSocket": self.kubelet.socket(),
            "prevResult": previous(),
        })
    }

    fn run(&self, command: &str, configuration: &Value) -> Outcome {
        let call = self.node.invoke(command, "web", self.pod.path());
        call.env("CNI_ARGS", ARGS).input(configuration).run()
    }

    fn add(&self) -> Outcome {
        self.run("ADD", &self.configuration())
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.node.state()).into_iter().flatten();
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    }
}

/// Returns a result as another plugin writes it, with unknown fields.
fn previous() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500, "own": [1] }],
        "ips": [{ "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0 }],
        "routes": [{ "dst": "0.0.0.0/0", "priority": 7 }],
        "dns": { "nameservers": ["10.1.0.10"] },
        "example.com/note": { "kept": true },
    })
}

#[test]
fn a_pod_without_an_allocation_passes_with_its_result_unchanged() {
    let cluster = Cluster::new();
    let before = [Snapshot::of(&cluster.node.host), Snapshot::of(&cluster.pod)];
    let outcome = cluster.add();
    assert_eq!(outcome.stdout.trim_end(), previous().to_string());
    assert_eq!(cluster.kubelet.take_requests(), ["Get"]);
    cluster.run("CHECK", &cluster.configuration()).silent();
    assert_eq!(cluster.files(), [] as [PathBuf; 0]);
    let after = [Snapshot::of(&cluster.node.host), Snapshot::of(&cluster.pod)];
    assert!(before == after, "something was changed");
}

/// Kubelet does not report an init container that has ended, or its devices. `rdma-cni` passes a pod without other
/// devices through, and logs the reason.
#[test]
fn a_pod_whose_init_container_alone_requests_passes_and_the_log_has_the_reason() {
    let cluster = Cluster::new();
    cluster.kubelet.set_pods(&[pod("default", "web", &[&[]])]);
    let mut configuration = cluster.configuration();
    configuration["log"] = json!({ "level": "debug" });
    let outcome = cluster.run("ADD", &configuration);
    assert_eq!(outcome.stdout.trim_end(), previous().to_string());
    let line = "kubelet allocated no device to the pod";
    assert!(outcome.stderr.contains(line), "{outcome}");
}

#[test]
fn kubelet_is_not_queried_when_pods_end() {
    let mut cluster = Cluster::new();
    cluster.kubelet.go();
    fs::remove_file(cluster.kubelet.socket()).expect("the socket");
    cluster.run("DEL", &cluster.configuration()).silent();
    let mut configuration = cluster.configuration();
    configuration["cni.dev/valid-attachments"] = json!([]);
    cluster.run("GC", &configuration).silent();
    let host = cluster.node.runtime();
    let list = Conflist::new(
        "1.1.0",
        vec![json!({
            "type": "rdma-cni", "stateDir": cluster.node.state(), "ipam": { "type": "rdma-ipam", "from": "parent" },
        })],
    );
    let gone = cluster
        .node
        .attachment("web", &cluster.pod)
        .of_pod("default", "web");
    host.del(&list, &gone).expect("DEL without a result");
}

#[test]
fn behind_a_primary_plugin_every_verb_of_the_chain_passes() {
    let cluster = Cluster::new();
    let ours = json!({
        "type": "rdma-cni",
        "stateDir": cluster.node.state(),
        "podResourcesSocket": cluster.kubelet.socket(),
        "ipam": { "type": "rdma-ipam", "from": "parent" },
    });
    let primary = json!({
        "type": "bridge", "bridge": "cni0",
        "ipam": {
            "type": "host-local", "subnet": "10.9.0.0/24",
            "dataDir": cluster.node.directory().join("leases"),
        },
    });
    // the versions that Debian's plugins support
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        let alone = Conflist::new(version, vec![primary.clone()]);
        let chain = Conflist::new(version, vec![primary.clone(), ours.clone()]);
        let runtime = cluster.node.runtime();
        let pod = cluster.node.pod("web");
        let attachment = cluster
            .node
            .attachment("web", &pod)
            .of_pod("default", "web");
        let result = runtime
            .add(&chain, &attachment)
            .unwrap_or_else(|it| panic!("{it}"));
        assert_eq!(
            result["interfaces"].as_array().map(Vec::len),
            Some(3),
            "{result}"
        );
        if !version.starts_with("0.3.") {
            runtime
                .check(&chain, &attachment)
                .unwrap_or_else(|it| panic!("{it}"));
        }
        runtime
            .del(&chain, &attachment)
            .unwrap_or_else(|it| panic!("{it}"));
        // the result of the chain is that of the primary network
        let other = cluster.node.pod("web");
        let attachment = cluster
            .node
            .attachment("web", &other)
            .of_pod("default", "web");
        let expected = runtime
            .add(&alone, &attachment)
            .unwrap_or_else(|it| panic!("{it}"));
        let shape = |result: &Value| {
            let keys = result.as_object().expect("an object").keys();
            keys.cloned().collect::<Vec<_>>()
        };
        assert_eq!(shape(&result), shape(&expected), "{version}");
        runtime
            .del(&alone, &attachment)
            .unwrap_or_else(|it| panic!("{it}"));
    }
}

#[test]
fn a_list_of_all_pods_larger_than_4_mib_is_read() {
    let cluster = Cluster::new();
    cluster.kubelet.set_get(Get::TurnedOff);
    let long = "x".repeat(1024);
    let ids: Vec<&str> = vec![&long; 100];
    let mut pods = vec![pod("other", "web", &[&[("rdma/hca", &["17"])]])];
    pods.extend((0..60).map(|number| pod("default", &format!("p{number}"), &[&[("a/b", &ids)]])));
    pods.push(pod("default", "web", &[&[]]));
    cluster.kubelet.set_pods(&pods);
    assert_eq!(cluster.add().result(), previous());
    assert_eq!(cluster.kubelet.take_requests(), ["Get", "List"]);
}

#[test]
fn an_allocation_that_leads_nowhere_changes_nothing() {
    let cluster = Cluster::new();
    let before = Snapshot::of(&cluster.node.host);
    for (id, code, words) in [
        ("17", 100, "rdma/hca id \"17\""),
        ("0000:ff:1f.7", 100, "0000:ff:1f.7"),
        ("no_such/3", 100, "no_such"),
    ] {
        let devices: [(&str, &[&str]); 1] = [("rdma/hca", &[id])];
        cluster
            .kubelet
            .set_pods(&[pod("default", "web", &[&devices])]);
        let mut configuration = cluster.configuration();
        configuration["requireRdma"] = false.into();
        let text = cluster.run("ADD", &configuration).error(code);
        assert!(text.contains(words), "{text}");
        let text = cluster.run("CHECK", &configuration).failure().text();
        assert!(text.contains(id), "{text}");
        cluster.run("DEL", &configuration).silent();
    }
    assert!(
        before == Snapshot::of(&cluster.node.host),
        "something was changed"
    );
    assert_eq!(cluster.node.records(), [] as [PathBuf; 0]);
}

#[test]
fn a_temporary_error_is_code_11_within_three_seconds() {
    let mut cluster = Cluster::new();
    let fails = |cluster: &Cluster, code: u64, words: &str| {
        let start = Stopwatch::start();
        let text = cluster.add().error(code);
        assert!(text.contains(words), "{text}");
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{words}: {:?}",
            start.elapsed()
        );
    };
    cluster.kubelet.set_mood(Mood::Silent);
    fails(&cluster, 11, "did not answer within 2s");
    cluster.kubelet.set_mood(Mood::Busy(u32::MAX));
    fails(&cluster, 11, "rejected by rate limit");
    cluster.kubelet.set_mood(Mood::Prompt);
    cluster.kubelet.set_pods(&[]);
    fails(&cluster, 11, "does not know pod default/web");
    cluster.kubelet.go();
    fails(&cluster, 11, "Connection refused");
    fs::remove_file(cluster.kubelet.socket()).expect("the socket");
    fails(&cluster, 103, "No such file");
    fs::write(cluster.kubelet.socket(), "").expect("a file");
    fails(&cluster, 103, "it is not a socket");
}

#[test]
fn pods_that_start_while_kubelet_restarts_start() {
    let Cluster {
        node,
        mut kubelet,
        pod,
    } = Cluster::new();
    let configuration = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "rdma-cni", "stateDir": node.state(),
        "podResourcesSocket": kubelet.socket(), "prevResult": previous(),
    });
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(100)).is_err() {
                kubelet.go();
                thread::sleep(Duration::from_millis(100));
                kubelet.come();
            }
        });
        for _ in 0..40 {
            let call = node.invoke("ADD", "web", pod.path()).env("CNI_ARGS", ARGS);
            let outcome = call.input(&configuration).run();
            // if kubelet ends during its answer, the runtime calls ADD again
            match outcome.status.success() {
                true => assert_eq!(outcome.result(), previous()),
                false => assert_eq!(outcome.failure().code, 11, "{outcome}"),
            }
        }
        stop.send(()).expect("kubelet goes on");
    });
}

#[test]
fn status_takes_no_node_from_pods_without_a_request() {
    let mut cluster = Cluster::new();
    let configuration = cluster.configuration();
    cluster.run("STATUS", &configuration).silent();
    cluster.kubelet.set_mood(Mood::Silent);
    let start = Stopwatch::start();
    cluster.run("STATUS", &configuration).silent();
    assert!(start.elapsed() < Duration::from_secs(2));
    cluster.kubelet.go();
    cluster.run("STATUS", &configuration).silent();
    fs::remove_file(cluster.kubelet.socket()).expect("the socket");
    cluster.run("STATUS", &configuration).silent();
    assert!(!cluster.node.state().exists(), "STATUS wrote something");
}

#[test]
fn an_object_at_a_daemon_files_path_is_reported() {
    for odd in OddFile::ALL {
        for file in ["resources.json", "granted/rdma@hca/17.json"] {
            let cluster = Cluster::new();
            let elsewhere = tempfile::tempdir().expect("a directory");
            cluster
                .kubelet
                .set_pods(&[pod("default", "web", &[&[("rdma/hca", &["17"])]])]);
            let path = cluster.node.state().join(file);
            odd.put(&path, elsewhere.path());
            let at = Stopwatch::start();
            let mut configuration = cluster.configuration();
            configuration["resources"] = json!(["rdma/hca"]);
            let text = cluster.run("ADD", &configuration).failure().text();
            assert!(at.elapsed() < Duration::from_secs(10), "{:?}", at.elapsed());
            assert!(
                text.contains(path.to_str().expect("text")),
                "{odd:?}: {text}"
            );
            OddFile::assert_left_alone(elsewhere.path());
        }
    }
}
