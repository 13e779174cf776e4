// SPDX-License-Identifier: Apache-2.0
//! Installation and removal on the node, by the page's commands.

use super::{PAGE, upgrade::NO_IDS};
use integration::{
    Cluster,
    container_runtime::{
        installed::records,
        shared::{HCA, IDS},
    },
    control_plane::nodes::NODE,
    pages, real_kubelet,
};
use std::{collections::BTreeSet, ffi::OsString, fs};

/// Kubelet's directory for the sockets of device plugins.
const SOCKETS: &str = "/var/lib/kubelet/device-plugins";

/// Types the commands of "Which manifest".
pub(super) fn manifest_is_applied(cluster: &Cluster) {
    for line in pages::commands(PAGE, "Which manifest", "kubectl") {
        cluster.types(&line.replace("NODE", NODE));
    }
}

/// Types the commands of "Which manifest", and those of "Verify" before the first pod.
pub(super) fn by_the_page(cluster: &mut Cluster) {
    manifest_is_applied(cluster);
    for line in verify() {
        if line.contains("examples/") {
            return;
        }
        if line.contains(" get node ") {
            // kubelet reports to the API server every ten seconds
            cluster.until("the node has ids", Cluster::has_ids);
        }
        let output = cluster.types(&line.replace("NODE", NODE));
        let shows = |words: &str| assert!(output.contains(words), "{line}: {output}");
        if line.contains("rollout status") {
            shows("successfully rolled out");
        } else if line.contains(" logs ") {
            shows("install] ");
            shows("the runtime calls rdma-cni for network pods");
            shows("registered with kubelet");
        } else if line.contains(" get node ") {
            shows(&format!("\"rdma/hca\":\"{IDS}\""));
        }
    }
    panic!("{PAGE} has an example's pods");
}

/// The commands of "Verify".
#[track_caller]
pub(super) fn verify() -> Vec<String> {
    pages::commands(PAGE, "Verify", "kubectl")
}

/// Types the commands of "Removal".
pub(super) fn removed_by_the_page<N>(cluster: &mut Cluster<N>) {
    let gaps = || real_kubelet::log().matches(NO_IDS).count();
    let before = gaps();
    for line in pages::commands(PAGE, "Removal", "kubectl") {
        // the line names an image in a placeholder registry
        if !line.contains("registry.example") {
            let output = cluster.types(&line);
            assert!(!output.is_empty(), "{line}");
        }
    }
    cluster.until("kubelet reports that there are no ids", |_| gaps() > before);
    assert!(records().is_empty(), "{:?}", records());
    let left: BTreeSet<OsString> = fs::read_dir(SOCKETS)
        .expect("kubelet's directory")
        .map(|it| it.expect("a file").file_name())
        .collect();
    let of_kubelet = ["kubelet.sock", "kubelet_internal_checkpoint"];
    assert_eq!(left, of_kubelet.map(OsString::from).into());
    cluster.until("the node has no ids any more", |it| {
        it.allocatable(HCA).is_none_or(|count| count == "0")
    });
}
