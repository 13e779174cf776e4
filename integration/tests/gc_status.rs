// SPDX-License-Identifier: Apache-2.0
//! GC removes only stale attachments of its own network. STATUS reports whether ADD could succeed.

use integration::{Conflist, Netns, Node, Outcome, Snapshot, ipam, tmpfs::Tmpfs};
use serde_json::{Value, json};

/// The pods `stay` and `go` on network `net`, and the pod `other` on network `other`.
struct Cluster {
    node: Node,
    pods: [Netns; 3],
    before: Snapshot,
}

impl Cluster {
    fn new() -> Self {
        let node = Node::with_rails(3);
        node.host.ip("address add 192.0.2.2/24 dev eth2");
        let before = Snapshot::of(&node.host);
        let pods = ["stay", "go", "other"].map(|name| node.pod(name));
        let cluster = Self { node, pods, before };
        cluster
            .node
            .add(&cluster.configuration("eth1"), "stay", &cluster.pods[0]);
        cluster
            .node
            .add(&cluster.configuration("eth2"), "go", &cluster.pods[1]);
        let mut other = cluster.configuration("eth3");
        other["name"] = "other".into();
        cluster.node.add(&other, "other", &cluster.pods[2]);
        cluster
    }

    fn configuration(&self, netdev: &str) -> Value {
        self.node.configuration(&[netdev])
    }

    fn gc(&self, key: &str, valid: &[(&str, &str)]) -> Outcome {
        let valid: Vec<Value> = valid
            .iter()
            .map(|(container, ifname)| json!({"containerID": container, "ifname": ifname}))
            .collect();
        let mut configuration = self.configuration("eth1");
        configuration[key] = valid.into();
        self.run(&configuration)
    }

    fn run(&self, configuration: &Value) -> Outcome {
        let path = self.node.cni_path();
        let call = self
            .node
            .bare()
            .env("CNI_COMMAND", "GC")
            .env("CNI_PATH", &path);
        call.input(configuration).run()
    }

    /// For each of the three pods: true if it has its rail.
    fn attached(&self) -> [bool; 3] {
        std::array::from_fn(|pod| self.pods[pod].has_link("rdma0"))
    }
}

#[test]
fn gc_removes_only_what_is_stale_on_its_own_network() {
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        let cluster = Cluster::new();
        cluster.gc(key, &[("stay", "eth0")]).silent();
        assert_eq!(cluster.attached(), [true, false, true], "{key}");
        let host = Snapshot::of(&cluster.node.host);
        assert_eq!(host.part("link eth2 "), cluster.before.part("link eth2 "));
        assert_eq!(cluster.node.records().len(), 2);
        assert!(!cluster.node.record("net", "go").exists());
    }
}

#[test]
fn gc_with_an_empty_list_removes_all_of_its_own_network() {
    let cluster = Cluster::new();
    cluster.gc("cni.dev/valid-attachments", &[]).silent();
    assert_eq!(cluster.attached(), [false, false, true]);
}

#[test]
fn gc_does_not_take_a_missing_list_for_an_empty_one() {
    let cluster = Cluster::new();
    let mut configuration = cluster.configuration("eth1");
    // `rdma-cni` does not call the IPAM plugin's GC, which would regard a missing list as an empty one
    configuration["ipam"] = json!({"type": ipam::NAME});
    cluster.run(&configuration).silent();
    assert_eq!(cluster.attached(), [true, true, true]);
    assert_eq!(cluster.node.records().len(), 3);
    assert_eq!(cluster.node.ipam.interfaces("GC"), [""; 0]);
}

/// CRI-O passes `null`, a nil slice of Go, when it starts on a node without pods.
#[test]
fn gc_takes_null_for_the_empty_list() {
    for keys in [
        &["cni.dev/valid-attachments", "cni.dev/attachments"][..],
        &["cni.dev/valid-attachments"],
        &["cni.dev/attachments"],
    ] {
        let cluster = Cluster::new();
        let mut configuration = cluster.configuration("eth1");
        for key in keys {
            configuration[*key] = Value::Null;
        }
        cluster.run(&configuration).silent();
        assert_eq!(cluster.attached(), [false, false, true], "{keys:?}");
    }
}

#[test]
fn gc_refuses_a_list_that_it_cannot_understand() {
    let cluster = Cluster::new();
    for list in [
        json!("all"),
        json!({}),
        json!([{"containerID": "stay"}]),
        json!([1]),
    ] {
        let mut configuration = cluster.configuration("eth1");
        configuration["cni.dev/valid-attachments"] = list;
        let text = cluster.run(&configuration).error(7);
        assert!(text.contains("cni.dev/valid-attachments"), "{text}");
    }
    assert_eq!(cluster.attached(), [true, true, true]);
}

#[test]
fn gc_distinguishes_interfaces_of_one_container() {
    let cluster = Cluster::new();
    cluster
        .gc(
            "cni.dev/valid-attachments",
            &[("stay", "eth0"), ("go", "net1")],
        )
        .silent();
    assert_eq!(cluster.attached(), [true, false, true]);
}

#[test]
fn gc_goes_on_after_an_error_and_reports_it() {
    let cluster = Cluster::new();
    let host = &cluster.node.host;
    host.ip("link add name eth1 type veth peer name usurper");
    let text = cluster
        .gc("cni.dev/valid-attachments", &[])
        .failure()
        .text();
    assert!(text.contains("eth1") && text.contains("stay"), "{text}");
    assert_eq!(
        cluster.attached(),
        [true, false, true],
        "the other one was not removed"
    );
    host.ip("link del dev eth1");
    cluster.gc("cni.dev/valid-attachments", &[]).silent();
    assert_eq!(cluster.attached(), [false, false, true]);
}

#[test]
fn gc_is_handed_on_to_ipam_with_its_list() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.0.0.1/24"}]}));
    let mut plugin = node.configuration(&["eth1"]);
    plugin["ipam"] = json!({"type": ipam::NAME});
    let list = Conflist::new("1.1.0", vec![plugin]);
    let (runtime, attachment) = (node.runtime(), node.attachment("a", &pod));
    runtime.add(&list, &attachment).expect("ADD");
    for outcome in runtime.gc(&list, &[&attachment]) {
        outcome.silent();
    }
    assert!(pod.has_link("rdma0"));
    let calls = node.ipam.calls();
    let call = calls
        .iter()
        .find(|call| call.command == "GC")
        .expect("IPAM was called");
    // IPAM identifies the attachment by the name of its rail
    let [runtimes, rails] =
        ["eth0", "rdma0"].map(|name| json!({"containerID": "a", "ifname": name}));
    let valid = json!([runtimes, rails]);
    assert_eq!(call.input["cni.dev/valid-attachments"], valid);
    for outcome in runtime.gc(&list, &[]) {
        outcome.silent();
    }
    assert!(!pod.has_link("rdma0"));
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0"]);
}

#[test]
fn status_is_silent_when_add_could_work() {
    let node = Node::with_rails(1);
    let list = Conflist::new("1.1.0", vec![node.configuration(&["eth1"])]);
    for outcome in node.runtime().status(&list) {
        outcome.silent();
    }
}

#[test]
fn status_hands_on_what_ipam_reports() {
    let node = Node::with_rails(1);
    let mut plugin = node.configuration(&["eth1"]);
    plugin["ipam"] = json!({"type": ipam::NAME});
    let list = Conflist::new("1.1.0", vec![plugin.clone()]);
    for outcome in node.runtime().status(&list) {
        outcome.silent();
    }
    assert_eq!(node.ipam.interfaces("STATUS").len(), 1);
    for code in [50, 51] {
        node.ipam.fail("STATUS", code, "the pool is exhausted");
        for outcome in node.runtime().status(&list) {
            let text = outcome.error(code.into());
            assert!(text.contains("the pool is exhausted"), "{text}");
        }
    }
    plugin["ipam"] = json!({"type": "not-installed"});
    let list = Conflist::new("1.1.0", vec![plugin]);
    for outcome in node.runtime().status(&list) {
        assert!(outcome.error(50).contains("not-installed"));
    }
}

#[test]
fn status_reports_that_nothing_can_be_recorded() {
    let node = Node::with_rails(1);
    let state = Tmpfs::mount(&node.state());
    let list = Conflist::new("1.1.0", vec![node.configuration(&["eth1"])]);
    state.fill();
    // runtimes call STATUS every few seconds: the answer requires no write
    let files = || {
        std::fs::read_dir(node.state())
            .expect("a directory")
            .count()
    };
    let before = files();
    for outcome in node.runtime().status(&list) {
        outcome.error(50);
    }
    state.make_room();
    state.make_read_only();
    for outcome in node.runtime().status(&list) {
        let text = outcome.error(50);
        assert!(
            text.contains(node.state().to_str().expect("UTF-8")),
            "{text}"
        );
    }
    assert_eq!(files(), before - 1, "all but the ballast");
}

#[test]
fn status_reports_that_the_kernel_lacks_the_required_rdma() {
    let node = Node::with_rails(1);
    let mut plugin = node.configuration(&["eth1"]);
    plugin["requireRdma"] = true.into();
    let list = Conflist::new("1.1.0", vec![plugin]);
    for outcome in node.runtime().status(&list) {
        if std::path::Path::new("/sys/module/ib_core").exists() {
            outcome.silent();
        } else {
            let text = outcome.error(50);
            assert!(text.contains("RDMA"), "{text}");
        }
    }
}
