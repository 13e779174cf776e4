// SPDX-License-Identifier: Apache-2.0
//! A cluster whose resources are allocated by claims: installs and removes the daemon, and reads the claims.

use super::{Cluster, is_true};
use crate::{container_runtime::installed::root, control_plane::nodes::NODE, pages, slices};
use nix::unistd::Pid;
use serde_json::Value;
use std::{fs, path::Path};

/// Path of the users' pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// Path of the users' claims.
pub const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

/// Path of the users' claim templates.
pub const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";

/// Directories to which an installation writes.
pub const PLACES: [&str; 3] = ["/etc/cni", "/opt/cni", "/var/run/cdi"];

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// Path of the system's pods, among them the daemon's.
pub const DAEMONS: &str = "/api/v1/namespaces/kube-system/pods";

/// Returns the names of the files with records of claims, and of the claims' CDI files.
pub fn files() -> [Vec<String>; 2] {
    ["/var/lib/cni/rdma-cni/claims", "/var/run/cdi"].map(|directory| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|it| it.file_name().into_string().ok());
        let is_of_ids = |it: &String| it == "rdma-device-plugin-rdma.json";
        names
            .filter(|it| it.ends_with(".json") && !is_of_ids(it))
            .collect()
    })
}

/// Returns the devices of the node's slices, and the devices among them that no new pod may use.
pub fn devices<N>(cluster: &Cluster<N>) -> (Vec<String>, Vec<String>) {
    slices::devices(&cluster.list(SLICES))
}

/// Returns an attribute of a device in the node's slices. `Null`: the device has no such attribute.
pub fn attribute<N>(cluster: &Cluster<N>, device: &str, name: &str) -> Value {
    slices::attribute(&cluster.list(SLICES), device, name)
}

/// Returns the daemon's pod. `Null`: no such pod exists.
pub fn daemon<N>(cluster: &Cluster<N>) -> Value {
    let mut pods = cluster.list(DAEMONS);
    pods.retain(|it| it["metadata"]["labels"]["app.kubernetes.io/name"] == "rdma-device-plugin");
    pods.pop().unwrap_or_default()
}

/// Kills the container of the daemon. Waits until kubelet has started the container again.
#[track_caller]
pub fn kill_daemon<N>(cluster: &mut Cluster<N>) {
    let of_container = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let container = of_container(&daemon(cluster));
    assert_eq!(container["restartCount"], 0, "{container:#}");
    let id = container["containerID"].as_str().expect("an id");
    let id = id.split_once("://").expect("a runtime and an id").1;
    cluster.runtime.cri().kill(id);
    cluster.until("kubelet has started the daemon again", |it| {
        let daemon = daemon(it);
        of_container(&daemon)["restartCount"] == 1 && is_true(&daemon, "Ready")
    });
}

/// Returns the daemon's process.
#[track_caller]
pub fn pid_of<N>(cluster: &Cluster<N>) -> Pid {
    let pod = daemon(cluster);
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    let id = id.and_then(|it| it.strip_prefix(cluster.runtime.engine().scheme()));
    let id = id.unwrap_or_else(|| panic!("no container: {pod:#}"));
    let container = cluster.runtime.cri().container(id).expect("it is known");
    let pid = container["pid"].as_i64().expect("a number");
    Pid::from_raw(i32::try_from(pid).expect("a process"))
}

/// Labels the node, and applies `manifest`, a file of this repository. Returns when the slices have the devices
/// `expected`.
#[track_caller]
pub fn install<N>(cluster: &mut Cluster<N>, manifest: &str, expected: &[&str]) {
    cluster.types(&format!(
        "kubectl label node {NODE} aliyun.accelerator/rdma=true"
    ));
    let file = root().join(manifest);
    cluster.types(&format!(
        "kubectl apply --server-side --validate=strict -f {}",
        file.display()
    ));
    cluster.until("the daemon is ready", |it| is_true(&daemon(it), "Ready"));
    cluster.report("the daemon is ready");
    cluster.until("the slices are there", |it| {
        devices(it).0.len() == expected.len()
    });
    let (devices, tainted) = devices(cluster);
    assert_eq!(devices, expected);
    assert_eq!(tainted, [] as [&str; 0]);
    cluster.report("the slices are there");
}

/// Removes the manifest's objects, as `docs/deploy.md` describes. Returns when kubelet has deleted the slices.
#[track_caller]
pub fn remove<N>(cluster: &mut Cluster<N>, manifest: &str) {
    let file = root().join(manifest);
    cluster.types(&format!("kubectl delete -f {}", file.display()));
    for line in pages::commands("docs/deploy.md", "Removal", "kubectl") {
        if line.contains("uninstall") && !line.contains("registry.example") {
            cluster.types(&line);
        }
    }
    cluster.until("kubelet has deleted the slices", |it| {
        devices(it).0.is_empty()
    });
    for directory in ["plugins_registry", "plugins/hca.rdma"] {
        let directory = Path::new("/var/lib/kubelet").join(directory);
        let left = fs::read_dir(&directory).into_iter().flatten().count();
        assert_eq!(left, 0, "{directory:?}");
    }
}

/// Deletes pods. Returns when they no longer exist.
#[track_caller]
pub fn end<N>(cluster: &mut Cluster<N>, names: &[&str]) {
    cluster.delete(PODS, names);
    cluster.until("they are gone", |it| {
        let left = it.list(PODS);
        let is_left = |name: &&str| left.iter().any(|pod| pod["metadata"]["name"] == **name);
        !names.iter().any(is_left)
    });
}

/// Asserts that the pod's first container has never been restarted.
#[track_caller]
pub fn was_never_started_anew<N>(cluster: &Cluster<N>, name: &str) {
    let object = cluster.get(&format!("{PODS}/{name}"));
    let container = &object["status"]["containerStatuses"][0];
    assert_eq!(container["restartCount"], 0, "{object:#}");
}

/// Waits until no claim exists, then asserts that the claims have left no files.
#[track_caller]
pub fn none_is_left<N>(cluster: &mut Cluster<N>) {
    cluster.until("the claims are gone", |it| it.list(CLAIMS).is_empty());
    assert_eq!(files(), [vec![] as Vec<String>, vec![]]);
}
