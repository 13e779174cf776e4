// SPDX-License-Identifier: Apache-2.0
//! Resources that are allocated by claims (`dra` of the configuration): the daemon itself, with the token, the role
//! and the policy that the chart gives it, a real scheduler, and what stands in for kubelet. What the API server of
//! this Kubernetes cannot have is refused in words.

use super::{manifests, text};
use integration::{
    ControlPlane, Daemon, Machine, daemon::rdma_device_plugin, kubelet::ClaimManager, machine::Nic,
    wait,
};
use kubelet_api::dra::NodePrepareResourceResponse;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;

const SHARED: &str = "integration/manifests/rendered/claims.yaml";
const EXCLUSIVE: &str = "integration/manifests/rendered/claims-of-vfs.yaml";

const NODE: &str = "claims-1";

const NICS: [Nic<'_>; 2] = [
    Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 0,
    },
    Nic {
        address: "0000:5e:00.0",
        rdma: "mlx5_1",
        netdev: "ens2",
        numa_node: 1,
        number: 1,
    },
];

/// The release of the API server: 34 of 1.34.
fn release(cluster: &ControlPlane) -> u32 {
    let version = cluster.ask("/version").expect("a version");
    let version: Value = serde_json::from_str(&version).expect("JSON");
    let minor = version["minor"].as_str().expect("a text");
    minor.trim_end_matches('+').parse().expect("a number")
}

/// A daemon, its node and its token.
struct Driver {
    daemon: Daemon,
    kubelet: ClaimManager,
    machine: Machine,
    name: &'static str,
}

/// The daemon's token, bound to its pod on the node as kubelet asks for it.
#[track_caller]
fn token(cluster: &mut ControlPlane, file: &str) -> String {
    cluster.apply("apply --server-side --validate=strict -f -", &text(file));
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    let pods = cluster.get("pods -n kube-system");
    let name = pods[0]["metadata"]["name"].as_str().expect("a name");
    let account = "-n kube-system create token rdma-device-plugin";
    let token = cluster.kubectl(&format!(
        "{account} --bound-object-kind Pod --bound-object-name {name}"
    ));
    token.trim().to_owned()
}

#[track_caller]
fn start(cluster: &ControlPlane, machine: &Machine) -> Daemon {
    let mut command = cluster.command(&rdma_device_plugin());
    machine.arguments(&mut command);
    let (host, port) = cluster.address();
    command.env("KUBERNETES_SERVICE_HOST", host);
    command.env("KUBERNETES_SERVICE_PORT", port.to_string());
    command.arg("--config").arg(machine.path("etc/config.json"));
    command.args(["--metrics-address", "127.0.0.1:9102"]);
    command
        .arg("--service-account-dir")
        .arg(machine.path("account"));
    Daemon::start(&mut command)
}

fn configure(machine: &Machine, (resource, kind, name): (&str, &str, &str), require: Value) {
    let devices = json!([{"driver": "mlx5_core"}]);
    let configuration = json!({
        "resources": [{"name": resource, "kind": kind, "devices": devices, "require": require}],
        "dra": {"driverName": name},
        "chain": {"confDir": machine.path("net.d"), "plugin": {"resources": [resource]}},
    });
    machine.configure(&configuration.to_string());
}

impl Driver {
    /// One of `resource`, which is of `kind`, with a chain that attaches what is allocated of it.
    #[track_caller]
    fn new(
        cluster: &mut ControlPlane,
        file: &str,
        (resource, kind, name): (&str, &str, &'static str),
    ) -> Self {
        let machine = Machine::with(&NICS);
        fs::create_dir_all(machine.path("account")).expect("a directory");
        fs::create_dir_all(machine.path("net.d")).expect("a directory");
        machine.write("account/ca.crt", &cluster.ca());
        machine.write("account/token", &token(cluster, file));
        configure(&machine, (resource, kind, name), Value::Null);
        let daemon = start(cluster, &machine);
        let kubelet = ClaimManager::register(&machine.path("kubelet"));
        assert_eq!(kubelet.info.name, name);
        assert_eq!(kubelet.info.supported_versions, ["v1.DRAPlugin"]);
        daemon.says(&format!("kubelet has registered the DRA driver {name}"));
        Self {
            daemon,
            kubelet,
            machine,
            name,
        }
    }

    /// The same after a SIGKILL, and a start.
    #[track_caller]
    fn killed(self, cluster: &ControlPlane) -> Self {
        let Self { machine, name, .. } = self;
        let (status, _) = self.daemon.end(Signal::SIGKILL);
        assert!(!status.success());
        let daemon = start(cluster, &machine);
        let kubelet = ClaimManager::register(&machine.path("kubelet"));
        Self {
            daemon,
            kubelet,
            machine,
            name,
        }
    }

    /// Another configuration, by which the resource has to have so many devices.
    fn configure(&self, resource: &str, kind: &str, require: Value) {
        configure(&self.machine, (resource, kind, self.name), require);
    }

    /// From now on pods' networks are made with `rdma-cni`.
    fn is_chained(&self) {
        let record = json!({"format": 1, "lists": {"10-a.conflist": {"entries": []}}});
        self.machine
            .write("state/install.json", &record.to_string());
    }

    /// What a runtime finds by the CDI names that the driver has told kubelet; none: nothing yet.
    fn given(&self, prepared: &NodePrepareResourceResponse) -> Option<Vec<Value>> {
        let files = fs::read_dir(self.machine.path("cdi")).expect("a directory");
        let files = files.map(|it| fs::read(it.expect("an entry").path()).expect("a file"));
        let mut all = vec![];
        for file in files {
            let specification: Value = serde_json::from_slice(&file).expect("JSON");
            let kind = specification["kind"].as_str().expect("a kind").to_owned();
            for device in specification["devices"].as_array().expect("a list") {
                let name = device["name"].as_str().expect("a name");
                all.push((format!("{kind}={name}"), device["containerEdits"].clone()));
            }
        }
        let names = prepared.devices.iter().flat_map(|it| &it.cdi_device_ids);
        let find = |name: &String| all.iter().find(|(known, _)| known == name);
        names
            .map(|name| find(name).map(|(_, edits)| edits.clone()))
            .collect()
    }

    fn record(&self, claim: &Value) -> std::path::PathBuf {
        let uid = claim["metadata"]["uid"].as_str().expect("a uid");
        self.machine.path(&format!("state/claims/{uid}.json"))
    }
}

/// The names of character devices in a container's edits.
fn nodes(edits: &Value) -> Vec<&str> {
    let nodes = edits["deviceNodes"].as_array().expect("a list").iter();
    let paths = nodes.map(|it| it["path"].as_str().expect("a path"));
    paths
        .map(|it| it.trim_start_matches("/dev/infiniband/"))
        .collect()
}

/// The devices of the node's slices: names, and those that are tainted.
fn slices(cluster: &ControlPlane) -> (Vec<String>, Vec<String>) {
    let slices = cluster.get("resourceslices");
    let devices = slices
        .iter()
        .flat_map(|it| it["spec"]["devices"].as_array());
    let devices: Vec<&Value> = devices.flatten().collect();
    let name = |it: &&Value| it["name"].as_str().expect("a name").to_owned();
    let is_tainted = |it: &&&Value| it["taints"].is_array();
    let tainted = devices.iter().filter(is_tainted).map(name).collect();
    (devices.iter().map(name).collect(), tainted)
}

/// A pod on the node, with more in its specification.
fn pod(name: &str, limits: Value, more: Value) -> Value {
    let mut container = json!({"name": "main", "image": "example.org/image"});
    container["resources"] = json!({"limits": limits});
    let mut spec = json!({"nodeSelector": {"kubernetes.io/hostname": NODE}});
    for (field, value) in more.as_object().expect("an object") {
        spec[field] = value.clone();
    }
    if spec["resourceClaims"].is_array() {
        container["resources"]["claims"] = json!([{"name": "nic"}]);
    }
    spec["containers"] = json!([container]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The claim of the pod `owner`, as soon as it is allocated and the pod may use it.
#[track_caller]
fn claim(cluster: &mut ControlPlane, owner: &str) -> Value {
    let mut found = Value::Null;
    cluster.until(&format!("{owner} has its claim"), |it| {
        let claims = it.get("resourceclaims -n default");
        let is_its = |it: &&Value| it["status"]["reservedFor"][0]["name"] == owner;
        found = claims.iter().find(is_its).cloned().unwrap_or_default();
        !found.is_null()
    });
    found
}

#[track_caller]
fn ends(cluster: &mut ControlPlane, pods: &[&str]) {
    let pods = pods.join(" ");
    cluster.kubectl(&format!(
        "-n default delete pod {pods} --force --grace-period=0"
    ));
}

/// What somebody can do who has stolen the token: read claims and pods, and write slices of its node.
#[track_caller]
fn the_token_is_for_no_more(cluster: &ControlPlane, driver: &Driver) {
    let token = fs::read_to_string(driver.machine.path("account/token")).expect("a token");
    for (line, words) in [
        ("get resourceclaims -A", "Forbidden"),
        ("get pods -A", "Forbidden"),
        ("get secrets -A", "Forbidden"),
        (
            "delete resourceslice other",
            "of its own node and driver only",
        ),
        (
            "delete resourceslice others-driver",
            "of its own node and driver only",
        ),
    ] {
        let done = cluster.kubectl_as(&token, line);
        let said = String::from_utf8(done.stderr).expect("UTF-8");
        assert!(
            !done.status.success() && said.contains(words),
            "{line}: {said}"
        );
    }
}

/// Slices that are not the daemon's to write.
fn foreign_slices(driver: &str) -> String {
    let slice = |name: &str, node: &str, driver: &str| {
        let pool = json!({"name": name, "generation": 1, "resourceSliceCount": 1});
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": []},
        })
    };
    let items = [
        slice("other", "other-1", driver),
        slice("others-driver", NODE, "gpu.example.org"),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

pub(super) fn are_prepared_by_the_daemon_of_their_node(cluster: &mut ControlPlane) {
    cluster.add_node(NODE, &[]);
    cluster.kubectl(&format!("label node {NODE} {}", super::LABEL));
    virtual_functions_are_claimed(cluster);
    match release(cluster) {
        37.. => shared_nics_are_the_extended_resource(cluster),
        _ => what_cannot_be_shared_is_refused_in_words(cluster),
    }
}

fn template(class: &str) -> String {
    let requests = json!([{"name": "nic", "exactly": {"deviceClassName": class}}]);
    let spec = json!({"spec": {"devices": {"requests": requests}}});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": class}, "spec": spec,
    })
    .to_string()
}

/// Two exclusive devices, by claims of a template.
fn virtual_functions_are_claimed(cluster: &mut ControlPlane) {
    let driver = Driver::new(
        cluster,
        EXCLUSIVE,
        ("rdma/vf", "exclusive", "nic.example.org"),
    );
    let expected = ["rdma-vf-0000-3b-00-0", "rdma-vf-0000-5e-00-0"];
    cluster.until("the slices are there", |it| slices(it).0 == expected);
    cluster.apply("create -f -", &foreign_slices(driver.name));
    the_token_is_for_no_more(cluster, &driver);
    cluster.kubectl("delete resourceslice other others-driver");

    // not healthy: tainted, or left out where the API server passes over taints
    driver.configure("rdma/vf", "exclusive", json!(3));
    let has_taints = release(cluster) >= 37;
    cluster.until("no new pod may have them", |it| {
        let (all, tainted) = slices(it);
        tainted == all && all.len() == if has_taints { 2 } else { 0 }
    });
    driver.configure("rdma/vf", "exclusive", Value::Null);
    cluster.until("they may be had again", |it| {
        slices(it) == (expected.map(str::to_owned).to_vec(), vec![])
    });

    // kubelet, at its start
    cluster.kubectl("delete resourceslices --all");
    cluster.until("they are there again", |it| slices(it).0 == expected);

    cluster.apply("apply -n default -f -", &template("rdma-vf"));
    let more = json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-vf"}]});
    cluster.apply(
        "apply -n default -f -",
        &pod("a", json!({}), more.clone()).to_string(),
    );
    let first = claim(cluster, "a");
    // nothing is known of a chain: containers need not wait for a network
    let prepared = driver.kubelet.prepare(&first);
    assert_eq!(prepared.error, "");
    assert_eq!(prepared.devices.len(), 1);
    assert_eq!(prepared.devices[0].request_names, ["nic"]);
    assert_eq!(prepared.devices[0].pool_name, NODE);
    let given = driver.given(&prepared).expect("a specification");
    let number = expected
        .iter()
        .position(|it| *it == prepared.devices[0].device_name);
    let number = number.expect("one of the two");
    assert_eq!(nodes(&given[0]), [&format!("uverbs{number}"), "rdma_cm"]);
    let env = format!("PCIDEVICE_RDMA_VF={}", NICS[number].address);
    assert_eq!(given[0]["env"], json!([env]));

    driver.is_chained();
    cluster.apply(
        "apply -n default -f -",
        &pod("b", json!({}), more.clone()).to_string(),
    );
    let host = json!({"hostNetwork": true, "resourceClaims": more["resourceClaims"]});
    let second = claim(cluster, "b");
    let waits = driver.kubelet.prepare(&second);
    assert_eq!(waits.error, "");
    assert_eq!(driver.given(&waits), None, "its network is not there yet");
    // the driver was killed
    let driver = driver.killed(cluster);
    assert_eq!(driver.kubelet.prepare(&second), waits);
    assert_eq!(driver.given(&waits), None);
    assert_eq!(driver.kubelet.prepare(&first), prepared);
    assert_eq!(driver.given(&prepared).as_ref(), Some(&given));

    // the first ends, and a pod with hostNetwork has its device
    ends(cluster, &["a"]);
    for _ in 0..2 {
        assert_eq!(driver.kubelet.unprepare(&first), "");
    }
    assert!(!driver.record(&first).exists());
    assert_eq!(driver.given(&prepared), None);
    cluster.apply(
        "apply -n default -f -",
        &pod("host", json!({}), host).to_string(),
    );
    let third = claim(cluster, "host");
    let prepared = driver.kubelet.prepare(&third);
    assert_eq!(prepared.error, "");
    let given = driver.given(&prepared).expect("no network is waited for");
    assert_eq!(nodes(&given[0]), [&format!("uverbs{number}"), "rdma_cm"]);

    // nonsense
    let mut another = third.clone();
    another["metadata"]["uid"] = json!("0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11");
    assert!(
        driver
            .kubelet
            .prepare(&another)
            .error
            .contains("is another one now")
    );
    another["metadata"]["name"] = json!("nothing");
    assert!(driver.kubelet.prepare(&another).error.contains("not found"));
    another["metadata"]["uid"] = json!("../../../etc/passwd");
    assert!(
        driver
            .kubelet
            .prepare(&another)
            .error
            .contains("no usable uid")
    );
    ends(cluster, &["b", "host"]);
    assert_eq!(driver.kubelet.unprepare(&second), "");
    assert_eq!(driver.kubelet.unprepare(&third), "");
    let left = fs::read_dir(driver.machine.path("cdi")).expect("a directory");
    assert_eq!(left.count(), 0);
    manifests::delete(cluster, &text(EXCLUSIVE));
    cluster.kubectl("-n default delete resourceclaimtemplates --all");
    let (status, _) = driver.daemon.end(Signal::SIGTERM);
    assert!(status.success());
    let registry = driver.machine.path("kubelet/plugins_registry");
    assert_eq!(fs::read_dir(registry).expect("a directory").count(), 0);
    // as kubelet does it when the driver was away for long
    cluster.kubectl("delete resourceslices --all");
}

/// `rdma/hca: 1` of an unchanged pod.
fn shared_nics_are_the_extended_resource(cluster: &mut ControlPlane) {
    let driver = Driver::new(cluster, SHARED, ("rdma/hca", "shared", "hca.rdma"));
    let expected = [
        "rdma-hca-all",
        "rdma-hca-0000-3b-00-0",
        "rdma-hca-0000-5e-00-0",
    ];
    cluster.until("the slices are there", |it| slices(it).0 == expected);
    driver.is_chained();
    for name in ["a", "b"] {
        let pod = pod(name, json!({"rdma/hca": "1"}), json!({}));
        cluster.apply("apply -n default -f -", &pod.to_string());
    }
    for name in ["a", "b"] {
        let claim = claim(cluster, name);
        let prepared = driver.kubelet.prepare(&claim);
        assert_eq!(prepared.error, "");
        let [device] = &prepared.devices[..] else {
            panic!("{prepared:?}");
        };
        assert_eq!(device.device_name, "rdma-hca-all");
        assert_eq!(device.request_names, ["container-0-request-0"]);
        assert!(device.share_id.is_some());
        assert_eq!(driver.given(&prepared), None);
    }

    // fewer NICs than there have to be: no new pod has any
    driver.configure("rdma/hca", "shared", json!(3));
    cluster.until("all are tainted", |it| slices(it).1 == expected);
    cluster.apply("apply -n default -f -", &template("rdma-hca-nic"));
    let more =
        json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-hca-nic"}]});
    let pod = pod("one", json!({}), more);
    cluster.apply("apply -n default -f -", &pod.to_string());
    cluster.until("the scheduler says why it waits", |it| {
        let pod = &it.get("pod -n default one")[0];
        let conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions.iter().any(|it| it["reason"] == "Unschedulable")
    });
    driver.configure("rdma/hca", "shared", Value::Null);
    cluster.until("none is tainted any more", |it| slices(it).1.is_empty());
    let one = claim(cluster, "one");
    let prepared = driver.kubelet.prepare(&one);
    let names: Vec<&str> = prepared.devices.iter().map(|it| &*it.device_name).collect();
    assert_eq!(names, [expected[1]], "the first one that fits");
    ends(cluster, &["a", "b", "one"]);
}

/// An API server that passes over `allowMultipleAllocations`.
fn what_cannot_be_shared_is_refused_in_words(cluster: &mut ControlPlane) {
    let driver = Driver::new(cluster, SHARED, ("rdma/hca", "shared", "hca.rdma"));
    driver
        .daemon
        .says("without their field allowMultipleAllocations");
    wait::until("they are taken back", || slices(cluster).0.is_empty());
}
