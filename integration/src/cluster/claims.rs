// SPDX-License-Identifier: Apache-2.0
//! A cluster whose resources are allocated by claims: the daemon put there and removed, and what there is of claims.

use super::{Cluster, is_true};
use crate::{container_runtime::installed::root, control_plane::nodes::NODE, pages, slices};
use nix::unistd::Pid;
use serde_json::Value;
use std::{fs, path::Path};

/// Users' pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// Their claims.
pub const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

/// Path of the claim templates of pods.
pub const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";

/// Directories to which an installation writes.
pub const PLACES: [&str; 3] = ["/etc/cni", "/opt/cni", "/var/run/cdi"];

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// The path of the daemon's pods and of other pods of the system.
pub const DAEMONS: &str = "/api/v1/namespaces/kube-system/pods";

/// The records of claims, and the runtime's specifications of them.
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

/// The devices of the node's slices, and those that no new pod may have.
pub fn devices<N>(cluster: &Cluster<N>) -> (Vec<String>, Vec<String>) {
    slices::devices(&cluster.look_at_all(SLICES))
}

/// Returns an attribute of a device in the node's slices. Null: it has none.
pub fn attribute<N>(cluster: &Cluster<N>, device: &str, name: &str) -> Value {
    slices::attribute(&cluster.look_at_all(SLICES), device, name)
}

/// The daemon's pod.
pub fn daemon<N>(cluster: &Cluster<N>) -> Value {
    let mut pods = cluster.look_at_all(DAEMONS);
    pods.retain(|it| it["metadata"]["labels"]["app.kubernetes.io/name"] == "rdma-device-plugin");
    pods.pop().unwrap_or_default()
}

/// The daemon's process.
#[track_caller]
pub fn pid_of<N>(cluster: &Cluster<N>) -> Pid {
    let pod = daemon(cluster);
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    let id = id.and_then(|it| it.strip_prefix(cluster.runtime.engine().scheme()));
    let id = id.unwrap_or_else(|| panic!("no container: {pod:#}"));
    let told = cluster.runtime.cri().container(id).expect("it is known");
    let pid = told["pid"].as_i64().expect("a number");
    Pid::from_raw(i32::try_from(pid).expect("a process"))
}

/// Applies `manifest`, a file of this repository; comes back when the slices have these devices.
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
    cluster.says("the daemon is ready");
    cluster.until("the slices are there", |it| {
        devices(it).0.len() == expected.len()
    });
    let (devices, tainted) = devices(cluster);
    assert_eq!(devices, expected);
    assert_eq!(tainted, [] as [&str; 0]);
    cluster.says("the slices are there");
}

/// Takes it away again, as the page says it; comes back when kubelet has deleted the slices.
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

/// Pods end, and are gone.
#[track_caller]
pub fn end<N>(cluster: &mut Cluster<N>, names: &[&str]) {
    cluster.delete(PODS, names);
    cluster.until("they are gone", |it| {
        let left = it.look_at_all(PODS);
        let is_left = |name: &&str| left.iter().any(|pod| pod["metadata"]["name"] == **name);
        !names.iter().any(is_left)
    });
}

/// The pod's container runs since it came.
#[track_caller]
pub fn was_never_started_anew<N>(cluster: &Cluster<N>, name: &str) {
    let told = cluster.look(&format!("{PODS}/{name}"));
    let container = &told["status"]["containerStatuses"][0];
    assert_eq!(container["restartCount"], 0, "{told:#}");
}

/// No pod has a claim any more, and there is nothing of any.
#[track_caller]
pub fn none_is_left<N>(cluster: &mut Cluster<N>) {
    cluster.until("the claims are gone", |it| {
        it.look_at_all(CLAIMS).is_empty()
    });
    assert_eq!(files(), [vec![] as Vec<String>, vec![]]);
}
