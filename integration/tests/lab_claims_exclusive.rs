// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose virtual functions are allocated by claims.
//! `scripts/test --full lab cluster-claims-exclusive` uses unchanged pods that request `rdma/vf: 1`.
//! `cluster-claims-1.34` uses pods with a claim template, the only way with this API server. RDMA devices move into
//! pods and are renumbered.

use integration::{
    Cluster, Snapshot,
    cluster::claims::{
        CLAIMS, PLACES, PODS, TEMPLATES, attribute, devices as of_slices, end, install,
        none_is_left, remove,
    },
    container_runtime::{
        Pod, TOOLS,
        installed::{Files, records, root},
        shared::links,
    },
    lab::{Function, Lab, uverbs, verbs_devices},
};
use serde_json::{Value, json};
use std::fs;

const MANIFEST: &str = "integration/manifests/rendered/claims-of-moved-vfs.yaml";

/// The manifest with shared resources, which the API server of 1.34 does not support.
const SHARED: &str = "integration/manifests/rendered/claims.yaml";

/// Minor release of the newer of the two API servers with which this test runs (1.34 and 1.37). Only this API server
/// supports extended resources by claims, and shared devices.
const SHARES: u32 = 37;

const ROOT: &str = "resource.kubernetes.io/pcieRoot";

const NAMES: [&str; 3] = ["a", "b", "c"];

fn release(cluster: &Cluster<Lab>) -> u32 {
    let version = cluster.get("/version");
    let minor = version["minor"].as_str().expect("a text");
    minor.trim_end_matches('+').parse().expect("a number")
}

/// A template of claims for `count` functions, with the constraints.
fn template(name: &str, count: u32, constraints: Value) -> Value {
    let exactly = json!({"deviceClassName": "rdma-vf", "count": count});
    let requests = json!([{"name": "functions", "exactly": exactly}]);
    let devices = json!({"requests": requests, "constraints": constraints});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    })
}

/// A pod that requests `rdma/vf: 1`, or has a claim from `template`.
fn pod(name: &str, template: Option<&str>) -> Value {
    let mut container = json!({"name": "main", "image": TOOLS, "command": ["sleep", "1000000"]});
    let mut spec = json!({"terminationGracePeriodSeconds": 1});
    if let Some(template) = template {
        container["resources"] = json!({"claims": [{"name": "nic"}]});
        spec["resourceClaims"] = json!([{"name": "nic", "resourceClaimTemplateName": template}]);
    } else {
        container["resources"] = json!({"limits": {"rdma/vf": 1}});
    }
    spec["containers"] = json!([container]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The name of a function's device in a slice.
fn device(function: &Function) -> String {
    format!("rdma-vf-{}", function.pci.replace([':', '.'], "-"))
}

/// Returns the RDMA devices in the pod's namespace. Asserts that the container has the device files of exactly these
/// devices, and that their ports are active.
#[track_caller]
fn all_own(pod: &Pod) -> Vec<String> {
    let mut devices = verbs_devices(&pod.netns());
    devices.sort();
    let mut nodes = pod.main().rdma_nodes();
    nodes.retain(|(name, ..)| name != "rdma_cm");
    let mut expected: Vec<_> = devices.iter().map(|it| uverbs(it)).collect();
    expected.sort();
    nodes.sort();
    assert_eq!(nodes, expected);
    for device in &devices {
        let output = pod.main().sh(&format!("ibv_devinfo -d {device}"));
        assert!(output.contains("PORT_ACTIVE"), "{output}");
    }
    devices
}

/// Returns the RDMA device of a pod that has exactly one.
#[track_caller]
fn own(pod: &Pod) -> String {
    let mut devices = all_own(pod);
    let device = devices.pop().expect("an RDMA device");
    assert_eq!(devices, [] as [&str; 0]);
    device
}

/// The scheduler allocates two functions of the same NIC to a claim for two devices below one root. Of the `functions`,
/// one NIC has one and the other NIC has two.
fn two_are_below_one_root(cluster: &mut Cluster<Lab>, functions: &[Vec<&Function>]) {
    let constraint = json!([{"requests": ["functions"], "matchAttribute": ROOT}]);
    cluster.make(TEMPLATES, &template("two", 2, constraint));
    cluster.make(PODS, &pod("two", Some("two")));
    let two = cluster.pod("two");
    let claims = cluster.list(CLAIMS);
    let results = claims[0]["status"]["allocation"]["devices"]["results"].as_array();
    let results = results.expect("it is allocated").iter();
    let mut given: Vec<&str> = results
        .map(|it| it["device"].as_str().expect("a name"))
        .collect();
    given.sort_unstable();
    let of_one = functions.iter().find(|it| it.len() == 2);
    let of_one = of_one.expect("a NIC with two of them");
    let mut expected: Vec<String> = of_one.iter().map(|it| device(it)).collect();
    expected.sort();
    assert_eq!(given, expected);
    let roots = given.iter().map(|it| attribute(cluster, it, ROOT));
    let roots: Vec<Value> = roots.collect();
    assert!(roots[0]["string"].is_string(), "{roots:?}");
    assert_eq!(roots[0], roots[1]);
    let mut had: Vec<&str> = of_one.iter().map(|it| &*it.rdma).collect();
    had.sort_unstable();
    assert_eq!(all_own(&two), had);
    assert_eq!(links(&two.netns()), ["lo", "eth0", "rdma0", "rdma1"]);
    cluster.report(&format!(
        "a pod has {given:?}, below {}",
        roots[0]["string"]
    ));
    end(cluster, &["two"]);
    cluster.delete(TEMPLATES, &["two"]);
}

/// The API server drops `allowMultipleAllocations`. The daemon then deletes the slices, and logs the reason.
fn shared_devices_are_refused_in_words(cluster: &mut Cluster<Lab>) {
    let manifest = fs::read_to_string(root().join(SHARED)).expect("a manifest");
    // a shared resource offers soft-RoCE devices only if its selector names them
    let kind = r#""kind": "shared","#;
    assert!(manifest.contains(kind), "{manifest}");
    let manifest = manifest.replace(kind, &format!(r#"{kind} "devices": [{{"rdma": ["*"]}}],"#));
    cluster.types(&format!(
        "kubectl apply --server-side -f - <<'EOF'\n{manifest}\nEOF"
    ));
    let mut log = String::new();
    cluster.until("the daemon reports what it cannot have", |it| {
        let line = "kubectl -n kube-system logs ds/ack-rdma-dp-ds";
        log = String::from_utf8_lossy(&it.tries(line).stdout).into_owned();
        log.contains("drops the field allowMultipleAllocations")
    });
    cluster.until("its slices are taken back", |it| of_slices(it).0.is_empty());
    let line = log.lines().find(|it| it.contains("drops the field"));
    cluster.report(line.expect("a line"));
    remove(cluster, SHARED);
}

#[test]
fn each_container_has_its_own_function() {
    let mut cluster = Cluster::with(|| {
        let lab = Lab::new(2);
        lab.give_addresses();
        lab
    });
    let files = Files::below(&PLACES);
    // the lowest number is free: the device that moves first gets it
    let all = cluster.nics.functions.clone();
    let mut functions: Vec<(u64, &Function)> = all
        .iter()
        .flatten()
        .map(|function| (uverbs(&function.rdma).2, function))
        .collect();
    functions.sort_by_key(|(number, _)| *number);
    let (_, first) = functions.remove(0);
    let line = format!("rdma link delete {}", first.rdma);
    cluster.nics.host.run(&line);
    let network = Snapshot::of(&cluster.nics.host);
    let mut expected: Vec<String> = functions.iter().map(|(_, it)| device(it)).collect();
    expected.sort();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    install(&mut cluster, MANIFEST, &expected);

    let shares = release(&cluster) >= SHARES;
    let template = (!shares).then(|| {
        cluster.make(TEMPLATES, &self::template("one", 1, json!([])));
        "one"
    });
    for name in NAMES {
        cluster.make(PODS, &pod(name, template));
    }
    let pods = NAMES.map(|name| cluster.pod(name));
    let mut had: Vec<String> = pods.iter().map(own).collect();
    let is_another = |(number, function): &&(u64, &Function)| uverbs(&function.rdma).2 != *number;
    let others = functions.iter().filter(is_another).count();
    assert!(others > 0, "all have the numbers that they had");
    cluster.report(&format!(
        "three pods have a function each, {others} of them with another number than before"
    ));
    had.sort();
    let mut names: Vec<&String> = functions.iter().map(|(_, it)| &it.rdma).collect();
    names.sort();
    assert_eq!(had.iter().collect::<Vec<_>>(), names);

    cluster.runtime.cri().kill(&pods[1].main().id);
    let again = cluster.pod_started("default", &pods[1].name, 1);
    own(&again);
    cluster.report("a container that was started again has its own function");

    // another pod gets the function that a removed pod returned
    let given_back = own(&pods[0]);
    end(&mut cluster, &["a"]);
    cluster.make(PODS, &pod("d", template));
    let last = cluster.pod("d");
    assert_eq!(own(&last), given_back);
    for pod in [&again, &pods[2]] {
        own(pod);
    }
    cluster.report("the next pod has the function that is free");
    end(&mut cluster, &["b", "c", "d"]);
    let usable: Vec<Vec<&Function>> = all
        .iter()
        .map(|of_nic| of_nic.iter().filter(|it| it.pci != first.pci).collect())
        .collect();
    two_are_below_one_root(&mut cluster, &usable);
    if let Some(template) = template {
        cluster.delete(TEMPLATES, &[template]);
    }
    assert!(records().is_empty(), "{:?}", records());
    none_is_left(&mut cluster);
    remove(&mut cluster, MANIFEST);
    if !shares {
        shared_devices_are_refused_in_words(&mut cluster);
    }
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    network.assert_restored(&cluster.nics.host);
}
