// SPDX-License-Identifier: Apache-2.0
//! Users' pods.

use super::install;
use integration::{
    Cluster, Netns,
    containerd::{
        Pod, TOOLS,
        installed::records,
        shared::{HCA, address, has_all_rails, links, nodes_of_all_rails, rping_on_all_rails},
        traffic::{End, gid_index},
    },
    nics,
    real_kubelet::{pod_resources, registrations},
    wait,
};
use kubelet_api::pod_resources::of_pod_blocking;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{thread, time::Duration};

/// The pods of the example, in its order.
pub(super) const PAIR: [&str; 2] = ["rdma-test-pod", "rdma-test-pod-1"];

/// The pods of a user, by their path.
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";

/// The links of a pod without RDMA.
const PLAIN: [&str; 2] = ["lo", "eth0"];

/// As long as `kubectl exec` may take until its program runs.
const LIMIT: Duration = Duration::from_secs(60);

/// What kubelet says that the pod was allocated: so many ids.
#[track_caller]
fn allocated(pod: &Pod) -> usize {
    let limit = Duration::from_secs(20);
    let told = of_pod_blocking(&pod_resources(), "default", &pod.name, limit);
    let told = told.unwrap_or_else(|error| panic!("{error}"));
    let told = told.unwrap_or_else(|| panic!("kubelet does not know {}", pod.name));
    let devices = told.containers.iter().flat_map(|it| &it.devices);
    let of_ours = devices.filter(|it| it.resource_name == HCA);
    of_ours.map(|it| it.device_ids.len()).sum()
}

/// A pod that asks for `limits`. Its shell's end is not waited for.
pub(super) fn pod(name: &str, limits: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(limits)})
}

/// What its pods are.
pub(super) fn spec(limits: &Value) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"], "resources": {"limits": limits},
    });
    json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
}

/// A pod without RDMA, and those of the example with `hostNetwork`, which have the devices and the node's
/// NICs.
pub(super) fn without_rails_are_untouched(cluster: &mut Cluster) {
    cluster
        .plane
        .apply("apply -f -", &pod("plain", &json!({})).to_string());
    cluster.types("kubectl apply -f conf/examples/10-bandwidth-host-network.yaml");
    let plain = cluster.pod("plain");
    assert_eq!(links(&plain.netns()), PLAIN);
    assert_eq!(allocated(&plain), 0);
    let told = cluster.look("/api/v1/namespaces/default/pods/plain");
    let addresses = told["status"]["podIPs"].as_array().expect("addresses");
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    let address = addresses[0]["ip"].as_str().expect("an address");
    assert!(address.starts_with("10.88."), "{address}");
    for name in PAIR {
        let pod = cluster.pod(name);
        assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
        assert_eq!(allocated(&pod), 1);
    }
    assert!(records().is_empty(), "{:?}", records());
    cluster.delete(PODS, &["plain", PAIR[0], PAIR[1]]);
    cluster.until("they are gone", |it| it.look_at_all(PODS).is_empty());
    cluster.says("pods without rails are gone");
}

/// The rest of "Verify".
pub(super) fn of_the_example_have_all_rails(cluster: &mut Cluster) -> [Pod; 2] {
    let lines = install::verify();
    let from = lines.iter().position(|it| it.contains("examples/"));
    for line in &lines[from.expect("an example")..] {
        let said = cluster.types(line);
        if line.contains(" exec ") {
            let nodes: Vec<&str> = said.lines().collect();
            assert_eq!(nodes, ["rdma_cm", "uverbs0", "uverbs1"], "{line}");
        }
    }
    let pair = PAIR.map(|name| cluster.pod(name));
    for pod in &pair {
        has_all_rails(pod);
        assert_eq!(allocated(pod), 1);
    }
    assert_eq!(records().len(), 2);
    let said = cluster.types("kubectl logs rdma-test-pod");
    for words in ["rdma_cm", "uverbs0", "rdma0", "rdma1"] {
        assert!(said.contains(words), "{said}");
    }
    pair
}

/// `rping` on each rail, and by `kubectl exec` `rping` on one and `ib_read_bw -q 30` on the other.
pub(super) fn have_rdma_between_them(cluster: &Cluster, [server, client]: [&Pod; 2]) {
    rping_on_all_rails([server, client]);
    let to = address(&server.netns(), 0, true);
    let lines = [
        (server, format!("rping -s -a {to} -v -V -C 5")),
        (client, format!("rping -c -a {to} -v -V -C 5")),
    ];
    let said = between(cluster, lines, ("rdma resource show cm_id", "LISTEN"));
    assert_eq!(said.matches("ping data").count(), 5, "{said}");
    // as long as it takes an emulated machine to read 2.4 MB, and not 2 GB
    let asks = |pod: &Pod| {
        let (rdma, address) = (nics::rdma(1), address(&pod.netns(), 1, true));
        let end = End {
            container: pod.main(),
            rdma: &rdma,
            address: &address,
        };
        format!(
            "ib_read_bw -q 30 -d {rdma} -x {} -s 4096 -n 20 -F",
            gid_index(end)
        )
    };
    // what is exchanged beforehand goes by TCP
    let by_tcp = &server.addresses()[0];
    let lines = [
        (server, asks(server)),
        (client, format!("{} {by_tcp}", asks(client))),
    ];
    let said = between(cluster, lines, ("ss -Hltn", ":18515 "));
    let header = said.lines().position(|it| it.contains("BW average"));
    let figures = said.lines().nth(header.expect("a table") + 1);
    let figures: Vec<&str> = figures.expect("figures").split_whitespace().collect();
    assert_eq!(figures[..2], ["4096", "600"], "{said}");
}

/// Runs the first line in its pod, and when `question` there shows `answer`, the second one, by
/// `kubectl exec`. Both must succeed; what the second one printed.
#[track_caller]
fn between(
    cluster: &Cluster,
    [(server, serving), (client, asking)]: [(&Pod, String); 2],
    (question, answer): (&str, &str),
) -> String {
    let exec =
        |pod: &Pod, line: &str| cluster.types(&format!("kubectl exec {} -- {line}", pod.name));
    thread::scope(|scope| {
        let served = scope.spawn(|| exec(server, &serving));
        let listens = wait::within(LIMIT, || {
            thread::sleep(Duration::from_millis(300));
            server.main().sh(question).contains(answer) || served.is_finished()
        });
        assert!(listens, "not within {LIMIT:?}: {serving} listens");
        let said = exec(client, &asking);
        served.join().expect("the server succeeded");
        said
    })
}

/// Kubelet is started anew: the same containers run, and have what they had been allocated.
pub(super) fn outlive_kubelet(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    cluster.kubelet.go(Signal::SIGTERM);
    pair.iter().for_each(|pod| has_all_rails(pod));
    cluster.kubelet.come();
    cluster.until("the daemon has registered", |_| registrations(HCA) > 0);
    cluster.says("kubelet was started anew, and the daemon has registered");
    are_the_same(cluster, pair);
}

/// The second of the example's pods ends, and comes anew with the example.
pub(super) fn one_comes_again(cluster: &mut Cluster, pod: Pod) -> Pod {
    let path = format!("{PODS}/{}", pod.name);
    cluster.delete(PODS, &[&pod.name]);
    cluster.until("it is gone", |it| it.look(&path).is_null());
    cluster.types("kubectl apply -f conf/examples/10-bandwidth.yaml");
    let again = cluster.pod(&pod.name);
    assert_ne!(again.sandbox, pod.sandbox);
    has_all_rails(&again);
    assert_eq!(allocated(&again), 1);
    assert_eq!(records().len(), 2);
    cluster.says("the second pod has come again");
    again
}

/// The pods are those that they were.
#[track_caller]
pub(super) fn are_the_same(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    for pod in pair {
        let now = cluster.pod(&pod.name);
        assert_eq!(now.main().id, pod.main().id);
        assert_eq!(now.sandbox, pod.sandbox);
        has_all_rails(&now);
        assert_eq!(allocated(&now), 1);
    }
}

/// The example's pods end; nothing of theirs is left.
pub(super) fn end(cluster: &mut Cluster, pair: [&Pod; 2]) {
    let netns: Vec<Netns> = pair.into_iter().map(Pod::netns).collect();
    cluster.delete(PODS, &PAIR);
    // containerd removes a namespace last, DEL included
    cluster.until("they are gone", |it| {
        it.look_at_all(PODS).is_empty() && netns.iter().all(|it| !it.path().exists())
    });
    assert!(records().is_empty(), "{:?}", records());
    cluster.says("the pods are gone");
}
