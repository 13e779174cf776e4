// SPDX-License-Identifier: Apache-2.0
//! Pods that name their claims: several pods with one claim, parameters, and init containers. The tests also check the
//! devices of a claim while devices, containers and kubelet restart.

use integration::{
    Cluster, Netns,
    cluster::claims::{CLAIMS, PODS, TEMPLATES, devices as of_slices, end, was_never_started_anew},
    container_runtime::{
        Pod, TOOLS,
        installed::records,
        shared::{has_all_rails, links, nodes_of_all_rails, rping_on_all_rails},
    },
    lab::{NICS, uverbs},
    nics::{netdev, rdma},
    wait,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";

/// The field `config` of a claim with the parameters `fields`.
fn config(fields: Value) -> Value {
    let mut parameters = json!({"apiVersion": "hca.rdma/v1alpha1", "kind": "AttachmentParameters"});
    for (name, value) in fields.as_object().expect("an object") {
        parameters[name] = value.clone();
    }
    json!([{"opaque": {"driver": "hca.rdma", "parameters": parameters}}])
}

/// Returns the specification of a claim for one device of `class`, with `parameters`.
fn devices(class: &str, parameters: Value) -> Value {
    let request = json!({"name": "nic", "exactly": {"deviceClassName": class}});
    let mut devices = json!({"requests": [request]});
    if !parameters.is_null() {
        devices["config"] = config(parameters);
    }
    json!({"devices": devices})
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    })
}

/// A pod with one claim, which its containers in the list `users` (`containers` or `initContainers`) use.
fn pod(name: &str, claim: &Value, users: &str) -> Value {
    let mut main = json!({"name": "main", "image": TOOLS, "command": ["sleep", "1000000"]});
    let script = "cat /sys/class/net/rdma0/address && ls /dev/infiniband/uverbs*";
    let mut init = json!({"name": "init", "image": TOOLS, "command": ["sh", "-e", "-c", script]});
    let mut claim = claim.clone();
    claim["name"] = "nic".into();
    let resources = json!({"claims": [{"name": "nic"}]});
    let mut spec = json!({"terminationGracePeriodSeconds": 1, "resourceClaims": [claim]});
    match users {
        "containers" => main["resources"] = resources,
        _ => {
            init["resources"] = resources;
            spec["initContainers"] = json!([init]);
        }
    }
    spec["containers"] = json!([main]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Returns the status of the claim's one device.
fn device_status(cluster: &Cluster, claim: &str) -> Value {
    cluster.get(&format!("{CLAIMS}/{claim}"))["status"]["devices"][0].clone()
}

/// Returns the number of pod rails in the claim's status.
fn rails(cluster: &Cluster, claim: &str) -> usize {
    let status = device_status(cluster, claim);
    status["data"]["rails"].as_array().map_or(0, Vec::len)
}

#[track_caller]
fn mtu(netns: &Netns, link: &str) -> u64 {
    let found = netns.show(&format!("link show dev {link}"));
    found[0]["mtu"].as_u64().expect("a number")
}

/// Two pods share a claim. Each has its own rails, with the MTU of the claim.
fn of_one_claim_have_their_own_rails(cluster: &mut Cluster) -> [Pod; 2] {
    let spec = devices("rdma-hca", json!({"mtu": 1400}));
    cluster.make(CLAIMS, &object("ResourceClaim", "both", spec));
    let claim = json!({"resourceClaimName": "both"});
    let pods = ["first", "second"].map(|name| {
        cluster.make(PODS, &pod(name, &claim, "containers"));
        name
    });
    let pods = pods.map(|name| cluster.pod(name));
    for pod in &pods {
        has_all_rails(pod);
        assert_eq!(mtu(&pod.netns(), "rdma0"), 1400);
    }
    rping_on_all_rails(pods.each_ref());
    cluster.until("the claim reports the rails of both pods", |it| {
        rails(it, "both") == 4
    });
    let status = device_status(cluster, "both");
    assert_eq!(status["conditions"][0]["status"], "True", "{status:#}");
    assert_eq!(status["networkData"], Value::Null, "{status:#}");
    cluster.report("two pods of one claim have their own rails, and reach each other");
    pods
}

/// ADD attaches a claim that only an init container uses, although kubelet does not report the claim to plugins.
fn of_an_init_container_is_attached(cluster: &mut Cluster) {
    let spec = json!({"spec": devices("rdma-hca-nic", Value::Null)});
    cluster.make(TEMPLATES, &object("ResourceClaimTemplate", "nic", spec));
    let claim = json!({"resourceClaimTemplateName": "nic"});
    cluster.make(PODS, &pod("init", &claim, "initContainers"));
    let pod = cluster.pod("init");
    assert_eq!(links(&pod.netns()), ["lo", "eth0", "rdma0"]);
    let devices = pod.main().try_sh("ls /dev/infiniband");
    assert_ne!(
        devices.code, 0,
        "the other container has none: {}",
        devices.output
    );
    let pod_object = cluster.get(&format!("{PODS}/init"));
    let name = pod_object["status"]["resourceClaimStatuses"][0]["resourceClaimName"].clone();
    let name = name.as_str().expect("a claim").to_owned();
    cluster.until("the claim reports its network", |it| {
        device_status(it, &name)["networkData"]["interfaceName"] == "rdma0"
    });
    let network = device_status(cluster, &name)["networkData"].clone();
    let mut own = pod.netns().addresses("rdma0");
    own.retain(|it| !it.starts_with("fe80:"));
    own.sort();
    let ips = network["ips"].as_array().expect("addresses").iter();
    let mut ips: Vec<String> = ips.map(|it| it.as_str().expect("a text").into()).collect();
    ips.sort();
    assert_eq!(ips, own);
    let mac = &pod.netns().show("link show dev rdma0")[0]["address"];
    assert_eq!(network["hardwareAddress"], *mac);
    cluster.report("an init container has its rail");
    end(cluster, &["init"]);
}

/// Both RDMA devices are removed, and return in the other order.
fn change_numbers(cluster: &mut Cluster) {
    let before = [0, 1].map(|rail| uverbs(&rdma(rail)));
    let host = &cluster.nics.host;
    for rail in [0, 1] {
        host.run(&format!("rdma link delete {}", rdma(rail)));
    }
    for rail in [1, 0] {
        let (rdma, netdev) = (rdma(rail), netdev(rail));
        host.run(&format!("rdma link add {rdma} type rxe netdev {netdev}"));
    }
    let after = [1, 0].map(|rail| uverbs(&rdma(rail)));
    assert_eq!(before.map(|it| it.0), after.map(|it| it.0));
    cluster.report("the devices have each other's numbers");
}

/// An operator's own class sets the netdev settings and the routes of its pods. A restarted container gets its own
/// device, whose old number another device now has.
fn keep_their_device(cluster: &mut Cluster) {
    let all = r#"device.driver == "hca.rdma" && device.attributes["hca.rdma"].scope == "all""#;
    let fields =
        json!({"child": {"type": "macvlan", "mode": "private"}, "routing": {"metric": 77}});
    let class = json!({"selectors": [{"cel": {"expression": all}}], "config": config(fields)});
    cluster.make(CLASSES, &object("DeviceClass", "private", class));
    let spec = devices("private", json!({"rails": [1]}));
    cluster.make(CLAIMS, &object("ResourceClaim", "one", spec));
    let claim = json!({"resourceClaimName": "one"});
    cluster.make(PODS, &pod("one", &claim, "containers"));
    let one = cluster.pod("one");
    let own = || {
        let mut nodes = nodes_of_all_rails();
        nodes.retain(|it| it.0 == "rdma_cm" || *it == uverbs(&rdma(1)));
        nodes
    };
    let before = own();
    assert_eq!(one.main().rdma_nodes(), before);
    let netns = one.netns();
    assert_eq!(links(&netns), ["lo", "eth0", "rdma0"]);
    let [link, routes] = netns.show_each(6, ["link show dev rdma0", "route show dev rdma0"]);
    assert_eq!(
        link[0]["linkinfo"]["info_data"]["mode"], "private",
        "{link:?}"
    );
    let metrics: Vec<_> = routes.iter().map(|it| it["metric"].as_u64()).collect();
    assert!(metrics.contains(&Some(77)), "{routes:?}");
    assert!(!metrics.contains(&Some(200)), "{routes:?}");
    change_numbers(cluster);
    cluster.runtime.cri().kill(&one.main().id);
    let again = cluster.pod_started("default", "one", 1);
    assert_ne!(own(), before);
    assert_eq!(again.main().rdma_nodes(), own());
    cluster.report("a container that was started again has its own device");
    end(cluster, &["one"]);
    cluster.delete(CLAIMS, &["one"]);
    cluster.delete(CLASSES, &["private"]);
}

/// Kubelet restarts: it deletes the slices, and prepares its claims again.
fn outlive_kubelet(cluster: &mut Cluster, pods: &[Pod; 2]) {
    cluster.kubelet.go(Signal::SIGTERM);
    cluster.kubelet.come();
    cluster.report("kubelet was started anew");
    cluster.until("the slices are there", |it| of_slices(it).0.len() == 3);
    let claim = json!({"resourceClaimName": "both"});
    cluster.make(PODS, &pod("third", &claim, "containers"));
    has_all_rails(&cluster.pod("third"));
    for name in ["first", "second"] {
        was_never_started_anew(cluster, name);
    }
    assert!(pods.iter().all(Pod::is_ready));
    cluster.report("a third pod has come to the claim");
    end(cluster, &["third"]);
}

/// Kubelet reports a NIC without carrier as unhealthy in the status of a container that has this NIC.
fn report_their_devices_health(cluster: &mut Cluster) {
    let is = |cluster: &mut Cluster, state: &str| {
        let change = if state == "Healthy" { "up" } else { "down" };
        let line = format!("ip link set dev {} {change}", NICS[0]);
        cluster.nics.host.run(&line);
        let mut reported = Value::Null;
        cluster.until(&format!("its device is {state}"), |it| {
            let pod = it.get(&format!("{PODS}/second"));
            let container = &pod["status"]["containerStatuses"][0];
            reported = container["allocatedResourcesStatus"][0]["resources"][0].clone();
            reported["health"] == state
        });
        cluster.report(&format!("{state}: {reported}"));
    };
    is(cluster, "Unhealthy");
    is(cluster, "Healthy");
}

/// A claim with wrong parameters: its pod does not start, and an event of the pod says why.
fn are_refused_in_words(cluster: &mut Cluster) {
    let spec = devices("rdma-hca", json!({"mtu": "9000"}));
    cluster.make(CLAIMS, &object("ResourceClaim", "wrong", spec));
    let claim = json!({"resourceClaimName": "wrong"});
    cluster.make(PODS, &pod("wrong", &claim, "containers"));
    let mut events = String::new();
    cluster.until("the pod's events report what is wrong", |it| {
        events = it.types("kubectl events --for pod/wrong -o json");
        events.contains("mtu: must be a whole number from 68 to 65535")
    });
    assert!(events.contains("FailedPrepareDynamicResources"), "{events}");
    assert_eq!(records().len(), 2, "of the other pods alone");
    cluster.report("a claim with nonsense is refused in words");
    end(cluster, &["wrong"]);
    cluster.delete(CLAIMS, &["wrong"]);
}

/// Runs all steps. Asserts that nothing remains.
pub(super) fn claims(cluster: &mut Cluster) {
    let pods = of_one_claim_have_their_own_rails(cluster);
    of_an_init_container_is_attached(cluster);
    are_refused_in_words(cluster);
    report_their_devices_health(cluster);
    outlive_kubelet(cluster, &pods);
    let [_, second] = &pods;
    end(cluster, &["first"]);
    has_all_rails(second);
    cluster.until("the claim reports the rails of one pod", |it| {
        rails(it, "both") == 2
    });
    let status = device_status(cluster, "both");
    assert!(status["networkData"]["ips"].is_array(), "{status:#}");
    end(cluster, &["second"]);
    cluster.until("the claim reports no rails", |it| rails(it, "both") == 0);
    cluster.delete(CLAIMS, &["both"]);
    keep_their_device(cluster);
    cluster.delete(TEMPLATES, &["nic"]);
    wait::until("the bonds' devices are active", || {
        let output = cluster.nics.host.run("rdma link show");
        output.matches("state ACTIVE").count() == 2
    });
}
