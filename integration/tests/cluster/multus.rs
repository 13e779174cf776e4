// SPDX-License-Identifier: Apache-2.0
//! Multus' thin plugin in front of `rdma-cni`, with the rights of its own account. `integration/runtimes/build multus`
//! makes its program and its manifest. The rails are veths, on a node that has access to the API server. Kubelet's
//! pod-resources are a stand-in, and so are sriov-cni and the plugin behind it.

use super::root;
use integration::{
    ControlPlane, Node, Snapshot,
    control_plane::kubeconfig,
    kubelet::pod_resources::{PodResourcesServer, pod},
    plugin::{cni_path, rdma_cni},
};
use serde_json::{Value, json};
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Environment variable with the directory that `integration/runtimes/build` made.
const PROGRAMS: &str = "RDMA_MULTUS";

const ADDRESS: &str = "10.56.217.77";

/// The PCI address that kubelet allocated.
const FUNCTION: &str = "0000:21:10.0";

/// Writes the kubeconfig that Multus' DaemonSet writes on each node. Returns its path.
#[track_caller]
fn multus_kubeconfig(cluster: &ControlPlane, directory: &Path) -> PathBuf {
    let token = cluster.kubectl("-n kube-system create token multus");
    let (host, port) = cluster.address();
    let server = format!("https://{host}:{port}");
    kubeconfig::write(directory, "multus", &token, &server, &cluster.pki("ca.crt"))
}

/// Writes a program of a shell.
#[track_caller]
fn script(path: &Path, lines: &str) {
    fs::write(path, format!("#!/bin/sh -e\n{lines}\n")).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Writes stand-ins for the plugins of the example behind sriov-cni. They store their input. Returns their directory.
#[track_caller]
fn recorders(directory: &Path) -> PathBuf {
    let recorders = directory.join("recorders");
    fs::create_dir(&recorders).expect("a directory");
    for name in ["sriov", "rdma"] {
        script(
            &recorders.join(name),
            "cat >$0.$CNI_COMMAND\nif [ $CNI_COMMAND = ADD ]; then echo '{\"cniVersion\": \"0.4.0\"}'; fi",
        );
    }
    recorders
}

/// Writes a program that calls Multus with a mount namespace in which kubelet's socket is the stand-in's. Returns its
/// path.
#[track_caller]
fn multus(directory: &Path, programs: &Path, socket: &Path) -> PathBuf {
    let (multus, socket) = (
        programs.join("multus"),
        socket.parent().expect("a directory"),
    );
    let (inside, path) = (directory.join("inside"), directory.join("multus-on-node"));
    let place = "/var/lib/kubelet/pod-resources";
    let lines = format!(
        "mount -t tmpfs none /var/lib\nmkdir -p {place}\nmount --bind {} {place}\nexec {}",
        socket.display(),
        multus.display()
    );
    script(&inside, &lines);
    script(&path, &format!("exec unshare --mount {}", inside.display()));
    path
}

/// A pod's author chooses an address by the annotation. DEL works after the pod's object is gone. The plugins of the
/// example behind sriov-cni both get the device that kubelet allocated.
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
    let wish =
        json!([{ "name": "rails", "ips": [format!("{ADDRESS}/24")] }, { "name": "sriov-rdma" }]);
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "job", "annotations": { "k8s.v1.cni.cncf.io/networks": wish.to_string() } },
        "spec": { "containers": [{ "name": "main", "image": "registry.example/job:1" }] },
    });
    for object in [network, object] {
        cluster.apply("apply -f -", &object.to_string());
    }
    let example = root().join("conf/examples/multus/30-behind-sriov-cni.yaml");
    cluster.kubectl(&format!("apply -f {}", example.display()));
    let socket = directory.join("pod-resources/kubelet.sock");
    let kubelet = PodResourcesServer::start(&socket);
    kubelet.set_pods(&[pod("default", "job", &[&[("rdma/vf", &[FUNCTION])]])]);
    let primary =
        json!({ "type": "macvlan", "master": "eth2", "ipam": ipam("pods", "10.88.0.0/24") });
    let configuration = json!({
        "cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus",
        "kubeconfig": multus_kubeconfig(cluster, directory),
        "confDir": directory.join("multus"), "cniDir": directory.join("delegates"),
        "delegates": [{ "cniVersion": "1.0.0", "name": "pods", "plugins": [primary] }],
    });
    let netns = node.pod("job");
    let recorders = recorders(directory);
    let path = cni_path(&rdma_cni(), &[&recorders]);
    let multus = multus(directory, &programs, &socket);
    let invoke = |command: &str| {
        let call = node.invoke(command, "job", netns.path());
        let call = call.program(&multus);
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=job";
        let call = call.env("CNI_PATH", &path).env("CNI_ARGS", args);
        call.env("CNI_IFNAME", "eth0").input(&configuration).run()
    };

    invoke("ADD").result();
    assert_eq!(netns.addresses("net1"), [format!("{ADDRESS}/24")]);
    let link = netns.link("net1").expect("a child");
    let told = &cluster.get("-n default pod job")[0];
    let status = &told["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"];
    let status: Value = serde_json::from_str(status.as_str().expect("a text")).expect("JSON");
    let rail = &status[1];
    assert_eq!(rail["name"], "default/rails", "{status}");
    assert_eq!(rail["interface"], "net1", "{status}");
    assert_eq!(rail["ips"], json!([ADDRESS]), "{status}");
    assert_eq!(rail["mac"], link["address"], "{status}");

    for name in ["sriov.ADD", "rdma.ADD"] {
        let input = fs::read_to_string(recorders.join(name)).expect("an input");
        let input: Value = serde_json::from_str(&input).expect("JSON");
        assert_eq!(input["deviceID"], FUNCTION, "{input}");
        assert_eq!(input["pciBusID"], FUNCTION, "{input}");
    }

    cluster.kubectl("-n default delete pod job --force --grace-period=0");
    invoke("DEL").silent();
    node.assert_restored(&before);
    assert!(!netns.has_link("net1"));
    for name in ["sriov.DEL", "rdma.DEL"] {
        assert!(recorders.join(name).exists(), "{name}");
    }
    cluster.kubectl(&format!("delete --wait=false -f {}", manifest.display()));
}
