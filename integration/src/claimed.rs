// SPDX-License-Identifier: Apache-2.0
//! A node whose devices are allocated by claims (dynamic resource allocation): the daemon with stand-ins for kubelet
//! and the API server, and a claim of one device.

use crate::{
    ApiServer, Attachment, Conflist, Netns, Node as CniNode, Runtime,
    api_server::NODE,
    kubelet::{ClaimManager, node::Node},
    slices::devices,
    wait,
};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// The driver's default name.
pub const DRA: &str = "hca.rdma";
/// The pod of the claim.
pub const POD: &str = "trainer-0";

const UID: &str = "6f1c7a52-0d5e-4a3b-9b7e-2f6d1c8e4a10";

/// The node, and the claim.
#[derive(Debug)]
pub struct ClaimNode {
    /// The API server's stand-in.
    pub api: ApiServer,
    /// The daemon, and kubelet's device manager.
    pub node: Node,
    /// Kubelet's side of claims.
    pub kubelet: ClaimManager,
    claim: Value,
    resource: String,
    device: String,
    /// The `stateDir` of `rdma-cni`.
    state: PathBuf,
}

impl ClaimNode {
    /// Starts the daemon with `configuration`, which has one resource, and makes a claim of `device`.
    #[track_caller]
    pub fn new(cni: &CniNode, mut configuration: Value, device: &str) -> Self {
        let state = cni.state();
        let api = ApiServer::start();
        // `rdma-cni` would make this directory at its first ADD, but `install.json` must exist before
        fs::create_dir_all(&state).expect("a directory");
        let lists = json!({"format": 1, "lists": {"10-a.conflist": {"entries": []}}});
        fs::write(state.join("install.json"), lists.to_string()).expect("written");
        let lists = cni.directory().join("net.d");
        fs::create_dir_all(&lists).expect("a directory");
        let resource = configuration["resources"][0]["name"].as_str();
        let resource = resource.expect("a resource").to_owned();
        configuration["dra"] = json!({});
        configuration["chain"] = json!({"confDir": lists, "plugin": {"resources": [resource]}});
        let node = Node::start_in_cluster(&configuration.to_string(), &state, &api);
        let kubelet = ClaimManager::register(&node.path("kubelet"));
        assert_eq!(kubelet.info.name, DRA);
        let result = json!({"request": "nic", "driver": DRA, "pool": NODE, "device": device});
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
            api,
            node,
            kubelet,
            claim,
            resource,
            device: device.to_owned(),
            state,
        }
    }

    /// Waits until the node's slices have, in addition to devices `*-all`, exactly the devices `names`, and until
    /// exactly the devices `tainted` have a taint that excludes new pods.
    #[track_caller]
    pub fn has_slices(&self, names: &[String; 2], tainted: &[&String]) {
        let expected: Vec<&String> = names.iter().collect();
        wait::until(&format!("slices in which {tainted:?} are tainted"), || {
            let (all, found) = devices(&self.api.slices());
            let mut all: Vec<&String> = all.iter().filter(|it| !it.ends_with("-all")).collect();
            all.sort();
            all == expected && found.iter().collect::<Vec<_>>() == tainted
        });
    }

    /// Returns the container edits of the CDI device `cdi`, or `None` if no CDI file has this device.
    pub fn given(&self, cdi: &str) -> Option<Value> {
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

    /// Prepares the claim as kubelet does, and adds it to the pod's resources. Returns the name of the claim's CDI
    /// device.
    #[track_caller]
    pub fn prepare(&self) -> String {
        let prepared = self.kubelet.prepare(&self.claim);
        assert_eq!(prepared.error, "");
        assert_eq!(prepared.devices.len(), 1);
        assert_eq!(prepared.devices[0].device_name, self.device);
        let cdi = prepared.devices[0].cdi_device_ids[0].clone();
        assert_eq!(self.given(&cdi), None, "the pod has no network yet");
        self.node.claims(POD, &[(DRA, &self.device, &cdi)]);
        cdi
    }

    /// Unprepares the claim as kubelet does.
    #[track_caller]
    pub fn unprepare(&self) {
        assert_eq!(self.kubelet.unprepare(&self.claim), "");
    }

    /// Returns the number of prepared claims in the metrics.
    pub fn prepared(&self) -> f64 {
        let labels = [("resource", &*self.resource)];
        let prepared = self.node.metric("rdma_device_plugin_claims", &labels);
        prepared.unwrap_or_default()
    }

    /// Returns the list with `rdma-cni`'s entry.
    pub fn list(&self) -> Conflist {
        let mut plugin = self.node.chain(&[&self.resource]);
        plugin["stateDir"] = json!(self.state);
        Conflist::new("1.1.0", vec![plugin])
    }

    /// Returns the container runtime.
    pub fn runtime<'a>(&self, host: &'a Netns) -> Runtime<'a> {
        let cache = self.node.path("cache");
        Runtime::new(host, &self.node.cni_path(), &cache)
    }
}

/// Returns the attachment of the claim's pod.
pub fn attachment(pod: &Netns) -> Attachment {
    Attachment::new("sandbox", pod.path(), "eth0").of_pod("default", POD)
}

/// Returns the names and minor numbers of the device nodes in container edits, sorted.
#[track_caller]
pub fn nodes(given: &Value) -> Vec<(String, u64)> {
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
