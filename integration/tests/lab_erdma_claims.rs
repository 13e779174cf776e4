// SPDX-License-Identifier: Apache-2.0
//! In the lab, eRDMA NICs that are allocated by claims (dynamic resource allocation), and the GIDs in the environment
//! of a pod's programs: `integration/lab/vm --tier erdma --monitor`, one test at a time. Driver and netdevs are real,
//! the functions are models; kubelet and the API server are stand-ins.

use integration::{
    ApiServer, Attachment, Conflist, Netns, Qemu, Runtime, Snapshot,
    api_server::NODE,
    daemon::rdma_device_plugin,
    erdma_functions::{ADDRESSES, Driver, ErdmaNode, FUNCTIONS, NIC_FUNCTIONS, NICS},
    kubelet::{ClaimManager, node::Node},
    lab::uverbs,
    slices::{attribute, devices},
    wait,
};
use serde_json::{Value, json};
use std::fs;

const RESOURCE: &str = "aliyun/erdma";

/// The driver's name by default.
const DRA: &str = "hca.rdma";

const POD: &str = "trainer-0";

const UID: &str = "6f1c7a52-0d5e-4a3b-9b7e-2f6d1c8e4a10";

struct Scene {
    erdma: ErdmaNode,
    api: ApiServer,
    node: Node,
    kubelet: ClaimManager,
    claim: Value,
    /// The names of the devices in the node's slices.
    names: [String; 2],
}

/// `aliyun-erdma-0000-21-02-0`
fn name(address: &str) -> String {
    format!("aliyun-erdma-{}", address.replace([':', '.'], "-"))
}

impl Scene {
    /// A resource of `kind` by claims, of which a pod has that with the first NIC.
    #[track_caller]
    fn new(driver: Driver, mode: &str, kind: &str) -> Self {
        let erdma = ErdmaNode::new(driver, mode);
        let state = erdma.node.state();
        let api = ApiServer::start();
        // pods' networks are made with `rdma-cni`
        fs::create_dir_all(&state).expect("a directory");
        let lists = json!({"format": 1, "lists": {"10-a.conflist": {"entries": []}}});
        fs::write(state.join("install.json"), lists.to_string()).expect("written");
        let lists = erdma.node.directory().join("net.d");
        fs::create_dir_all(&lists).expect("a directory");
        let configuration = json!({
            "erdma": {"configureNICs": false},
            "resources": [{"name": RESOURCE, "kind": kind, "devices": [{"driver": "erdma"}]}],
            "dra": {},
            "chain": {"confDir": lists, "plugin": {"resources": [RESOURCE]}},
        });
        let node = Node::start_in_cluster(&configuration.to_string(), &state, &api);
        let kubelet = ClaimManager::register(&node.path("kubelet"));
        assert_eq!(kubelet.info.name, DRA);
        // an RDMA device without a parent has the address of its netdev's function
        let names = match driver {
            Driver::Kernel => NIC_FUNCTIONS.map(name),
            Driver::WithParent => FUNCTIONS.map(name),
        };
        let result = json!({"request": "nic", "driver": DRA, "pool": NODE, "device": names[0]});
        let claim = json!({
            "metadata": {"name": "claim", "namespace": "default", "uid": UID},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": POD, "uid": "0000-trainer"}],
            },
        });
        let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim";
        api.put(path, claim.clone());
        let pod = json!({"metadata": {"name": POD, "uid": "0000-trainer"}, "spec": {}});
        api.put(&format!("/api/v1/namespaces/default/pods/{POD}"), pod);
        Self {
            erdma,
            api,
            node,
            kubelet,
            claim,
            names,
        }
    }

    #[track_caller]
    fn has_slices(&self, tainted: &[&String]) {
        let expected: Vec<&String> = self.names.iter().collect();
        wait::until(&format!("slices in which {tainted:?} are tainted"), || {
            let (all, found) = devices(&self.api.slices());
            let mut all: Vec<&String> = all.iter().filter(|it| !it.ends_with("-all")).collect();
            all.sort();
            all == expected && found.iter().collect::<Vec<_>>() == tainted
        });
    }

    /// Returns what a container of the claim gets, or `None` if it gets nothing yet.
    fn given(&self, cdi: &str) -> Option<Value> {
        let files = fs::read_dir(self.node.path("cdi")).ok()?;
        let texts = files.filter_map(|it| fs::read(it.ok()?.path()).ok());
        texts
            .filter_map(|it| serde_json::from_slice::<Value>(&it).ok())
            .find_map(|it| {
                let kind = it["kind"].as_str()?;
                let devices = it["devices"].as_array()?;
                let is_it = |device: &&Value| {
                    let name = device["name"].as_str();
                    name.is_some_and(|name| cdi == format!("{kind}={name}"))
                };
                Some(devices.iter().find(is_it)?["containerEdits"].clone())
            })
    }

    /// Kubelet has the claim prepared; its CDI name.
    #[track_caller]
    fn prepare(&self) -> String {
        let prepared = self.kubelet.prepare(&self.claim);
        assert_eq!(prepared.error, "");
        assert_eq!(prepared.devices.len(), 1);
        assert_eq!(prepared.devices[0].device_name, self.names[0]);
        let cdi = prepared.devices[0].cdi_device_ids[0].clone();
        assert_eq!(self.given(&cdi), None, "the pod has no network yet");
        self.node.claims(POD, &[(DRA, &self.names[0], &cdi)]);
        cdi
    }

    fn list(&self, more: &Value) -> Conflist {
        let mut plugin = self.node.chain(&[RESOURCE]);
        plugin["stateDir"] = json!(self.erdma.node.state());
        for (field, value) in more.as_object().expect("fields") {
            plugin[field] = value.clone();
        }
        Conflist::new("1.1.0", vec![plugin])
    }

    fn runtime(&self) -> Runtime<'_> {
        let cache = self.node.path("cache");
        Runtime::new(&self.erdma.node.host, &self.node.cni_path(), &cache)
    }
}

fn attachment(pod: &Netns) -> Attachment {
    Attachment::new("sandbox", pod.path(), "eth0").of_pod("default", POD)
}

/// The device nodes that a container gets: their names, and their numbers.
fn nodes(given: &Value) -> Vec<(String, u64)> {
    let nodes = given["deviceNodes"].as_array().expect("a list").iter();
    let mut nodes: Vec<_> = nodes
        .map(|it| {
            let path = it["path"].as_str().expect("a path");
            let minor = it["minor"].as_u64().expect("a number");
            (path.replace("/dev/infiniband/", ""), minor)
        })
        .collect();
    nodes.sort();
    nodes
}

#[test]
fn a_claimed_nic_goes_into_its_pod_and_the_container_has_its_device_files() {
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = Scene::new(driver, "exclusive", "exclusive");
        let host = &scene.erdma.node.host;
        let before = Snapshot::of(host);
        scene.has_slices(&[]);
        let slices = scene.api.slices();
        for (nic, device) in scene.names.iter().enumerate() {
            let rdma = scene.erdma.erdma.rdma(nic);
            for (name, value) in [
                ("driver", json!({"string": "erdma"})),
                ("vendor", json!({"string": "1ded"})),
                ("rdmaDevice", json!({"string": rdma})),
                ("netdev", json!({"string": NICS[nic]})),
                ("mode", json!({"string": "exclusive"})),
                ("resource.kubernetes.io/numaNode", json!({"int": nic})),
            ] {
                let found = attribute(&slices, device, name);
                assert_eq!(found, value, "{driver:?}: {name} of {device}");
            }
        }

        let rdma = scene.erdma.erdma.rdma(0);
        let cdi = scene.prepare();
        let claims = [("resource", RESOURCE)];
        let prepared = scene.node.metric("rdma_device_plugin_claims", &claims);
        assert_eq!(prepared, Some(1.0));
        let pod = scene.erdma.node.pod("pod");
        let list = scene.list(&json!({}));
        let added = scene.runtime().add(&list, &attachment(&pod));
        added.unwrap_or_else(|outcome| panic!("{driver:?}: {outcome}"));
        assert_eq!(scene.erdma.erdma.rdma_in(host, 0), None);
        let given = scene.given(&cdi).expect("a specification");
        let nodes = nodes(&given);
        let (own, _, minor) = uverbs(&rdma);
        assert!(nodes.contains(&(own, minor)), "{nodes:?}");
        assert_eq!(nodes.len(), 2, "{nodes:?}");
        assert!(nodes.iter().any(|it| it.0 == "rdma_cm"), "{nodes:?}");

        // the device is the pod's, and its counters are known by the record of the attachment
        let labels = [("device", rdma.as_str())];
        wait::until("the page of metrics knows the device in the pod", || {
            let of = |name: &str| scene.node.metric(name, &labels);
            of("rdma_device_healthy") == Some(1.0)
                && of("rdma_hw_tx_bytes_cnt_total").is_some()
                && of("rdma_device_counters_known") == Some(1.0)
        });
        let text = scene.node.metrics();
        let line = text.lines().find(|it| {
            it.starts_with("rdma_device_info") && it.contains(&format!("device=\"{rdma}\""))
        });
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("driver=\"erdma\""), "{line}");

        let deleted = scene.runtime().del(&list, &attachment(&pod));
        deleted.unwrap_or_else(|outcome| panic!("{driver:?}: {outcome}"));
        assert_eq!(scene.kubelet.unprepare(&scene.claim), "");
        assert_eq!(scene.given(&cdi), None);
        let prepared = scene.node.metric("rdma_device_plugin_claims", &claims);
        assert_eq!(prepared.unwrap_or_default(), 0.0);
        scene.erdma.node.assert_restored(&before);
        scene.has_slices(&[]);
    }
}

#[test]
fn a_nic_without_carrier_or_driver_is_tainted() {
    let mut qemu = Qemu::monitor();
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = Scene::new(driver, "exclusive", "exclusive");
        scene.has_slices(&[]);
        let mut health = scene.kubelet.health();
        assert_eq!(health.report(), [] as [&str; 0]);
        qemu.set_link(1, false);
        scene.has_slices(&[&scene.names[1]]);
        let sick = health.until(|sick| !sick.is_empty());
        assert_eq!(sick.len(), 1, "{sick:?}");
        assert!(sick[0].contains(&scene.names[1]), "{sick:?}");
        qemu.set_link(1, true);
        scene.has_slices(&[]);
        health.until(<[String]>::is_empty);

        // its RDMA device is gone, as after a probe that failed
        fs::write("/sys/bus/pci/drivers/erdma/unbind", FUNCTIONS[0]).expect("unbound");
        wait::until("no new pod may have the NIC", || {
            let (all, tainted) = devices(&scene.api.slices());
            let is_free = |it: &&String| it.ends_with(&scene.names[0]) && !tainted.contains(it);
            all.iter().filter(is_free).count() == 0 && all.contains(&scene.names[1])
        });
        fs::write("/sys/bus/pci/drivers/erdma/bind", FUNCTIONS[0]).expect("bound");
        scene.erdma.erdma.are_home();
        scene.has_slices(&[]);
    }
}

/// iWARP has no GIDs of addresses: an index is neither right nor wrong.
#[test]
fn doctor_pod_explains_an_index_of_an_iwarp_device() {
    let scene = Scene::new(Driver::Kernel, "exclusive", "exclusive");
    scene.has_slices(&[]);
    let rdma = scene.erdma.erdma.rdma(0);
    scene.prepare();
    let pod = scene.erdma.node.pod("pod");
    let list = scene.list(&json!({}));
    let added = scene.runtime().add(&list, &attachment(&pod));
    added.unwrap_or_else(|outcome| panic!("{outcome}"));
    let state = scene.erdma.node.state();
    let line = format!(
        "{} doctor pod default/{POD} --gid-index 0 --state-dir {}",
        rdma_device_plugin().display(),
        state.display()
    );
    let told = scene.erdma.node.host.run(&line);
    println!("{told}");
    assert!(told.contains(&format!("{rdma} port 1")), "{told}");
    assert!(told.contains("iWARP"), "{told}");
    assert!(!told.contains("RoCE"), "{told}");
    let deleted = scene.runtime().del(&list, &attachment(&pod));
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    let addresses = scene.erdma.node.host.addresses(NICS[0]);
    assert!(
        addresses.contains(&format!("{}/24", ADDRESSES[0])),
        "{addresses:?}"
    );
}
