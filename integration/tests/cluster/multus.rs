// SPDX-License-Identifier: Apache-2.0
//! Multus' thin plugin in front of `rdma-cni`, with the rights of its own account. `integration/runtimes/build multus`
//! makes its program and its manifest. The rails are veths, on a node that has access to the API server.

use integration::{
    ControlPlane, Node, Snapshot,
    control_plane::kubeconfig,
    plugin::{cni_path, rdma_cni},
};
use serde_json::{Value, json};
use std::{
    env,
    path::{Path, PathBuf},
};

/// Environment variable with the directory that `integration/runtimes/build` made.
const PROGRAMS: &str = "RDMA_MULTUS";

const ADDRESS: &str = "10.56.217.77";

/// Writes the kubeconfig that Multus' DaemonSet writes on each node. Returns its path.
#[track_caller]
fn multus_kubeconfig(cluster: &ControlPlane, directory: &Path) -> PathBuf {
    let token = cluster.kubectl("-n kube-system create token multus");
    let (host, port) = cluster.address();
    let server = format!("https://{host}:{port}");
    kubeconfig::write(directory, "multus", &token, &server, &cluster.pki("ca.crt"))
}

/// A pod's author chooses an address by the annotation. DEL works after the pod's object is gone.
pub(super) fn passes_a_pods_arguments(cluster: &mut ControlPlane) {
    let Some(programs) = env::var_os(PROGRAMS).map(PathBuf::from) else {
        return; // scripts/test --full runs this step, or counts it as skipped
    };
    let manifest = programs.join("multus-daemonset.yml");
    cluster.kubectl(&format!("apply -f {}", manifest.display()));
    cluster.until("networks are served", |it| {
        it.try_kubectl("get net-attach-def -A").status.success()
    });
    let node = Node::on(cluster.netns());
    for rail in ["eth1", "eth2"] {
        node.add_rail(rail);
    }
    let before = Snapshot::of(&node.host);
    let directory = node.directory();
    let ipam = |name: &str, subnet: &str| {
        let data = directory.join(name);
        json!({ "type": "host-local", "dataDir": data, "ranges": [[{ "subnet": subnet }]] })
    };
    let mut entry = node.configuration(&["eth1"]);
    for field in ["cniVersion", "name", "interfaceName"] {
        entry.as_object_mut().expect("an object").remove(field);
    }
    entry["mode"] = "share".into();
    entry["ipam"] = ipam("rails", "10.56.217.0/24");
    entry["capabilities"] = json!({ "ips": true });
    let list = json!({ "cniVersion": "1.0.0", "name": "rails", "plugins": [entry] });
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "rails" }, "spec": { "config": list.to_string() },
    });
    let request = json!([{ "name": "rails", "ips": [format!("{ADDRESS}/24")] }]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "job", "annotations": { "k8s.v1.cni.cncf.io/networks": request.to_string() } },
        "spec": { "containers": [{ "name": "main", "image": "registry.example/job:1" }] },
    });
    for object in [network, pod] {
        cluster.apply("apply -f -", &object.to_string());
    }
    let primary =
        json!({ "type": "macvlan", "master": "eth2", "ipam": ipam("pods", "10.88.0.0/24") });
    let configuration = json!({
        "cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus",
        "kubeconfig": multus_kubeconfig(cluster, directory),
        "confDir": directory.join("multus"), "cniDir": directory.join("delegates"),
        "delegates": [{ "cniVersion": "1.0.0", "name": "pods", "plugins": [primary] }],
    });
    let netns = node.pod("job");
    let path = cni_path(&rdma_cni(), &[&programs]);
    let invoke = |command: &str| {
        let call = node.invoke(command, "job", netns.path());
        let call = call.program(&programs.join("multus"));
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=job";
        let call = call.env("CNI_PATH", &path).env("CNI_ARGS", args);
        call.env("CNI_IFNAME", "eth0").input(&configuration).run()
    };

    invoke("ADD").result();
    assert_eq!(netns.addresses("net1"), [format!("{ADDRESS}/24")]);
    let link = netns.link("net1").expect("a child");
    let pod_object = &cluster.get("-n default pod job")[0];
    let status = &pod_object["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"];
    let status: Value = serde_json::from_str(status.as_str().expect("a text")).expect("JSON");
    let rail = &status[1];
    assert_eq!(rail["name"], "default/rails", "{status}");
    assert_eq!(rail["interface"], "net1", "{status}");
    assert_eq!(rail["ips"], json!([ADDRESS]), "{status}");
    assert_eq!(rail["mac"], link["address"], "{status}");

    cluster.kubectl("-n default delete pod job --force --grace-period=0");
    invoke("DEL").silent();
    node.assert_restored(&before);
    assert!(!netns.has_link("net1"));
    cluster.kubectl(&format!("delete --wait=false -f {}", manifest.display()));
}
