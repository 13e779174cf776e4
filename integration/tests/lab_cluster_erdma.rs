// SPDX-License-Identifier: Apache-2.0
//! eRDMA NICs that nobody configured: the manifest's daemon asks the metadata service, brings them up, and pods are
//! given their devices.

use super::{
    Before, install,
    pods::{PODS, pod},
};
use integration::{
    Cluster, ErdmaNics,
    container_runtime::installed::root,
    control_plane::nodes::NODE,
    daemon::rdma_device_plugin,
    erdma_nics::rdma,
    lab::{NICS, uverbs},
};
use serde_json::json;
use std::{fs, process::Command};

const RESOURCE: &str = "aliyun/erdma";
const MANIFEST: &str = "conf/manifests/erdma.yaml";

/// Where the image's user would say `eRDMA`'s driver: the lab has none.
const DRIVER: &str = "\"preferDriver\": \"default\",";

/// The manifest, for the lab's NICs and service.
#[track_caller]
fn manifest(service: &str) -> String {
    let text = fs::read_to_string(root().join(MANIFEST)).expect("a manifest");
    assert_eq!(text.matches(DRIVER).count(), 1, "{MANIFEST}");
    let lab = format!("\"metadata\": \"{service}\", \"devices\": [{{\"rdma\": \"erdma_*\"}}],");
    text.replace(DRIVER, &lab)
}

pub(super) fn nics_are_brought_up_and_given() {
    let mut cluster = Cluster::with(ErdmaNics::new);
    let before = Before::of(&cluster.nics.host);
    cluster.types(&format!(
        "kubectl label node {NODE} aliyun.accelerator/rdma=true"
    ));
    let manifest = manifest(&cluster.nics.service.base());
    cluster.types(&format!(
        "kubectl apply --server-side -f - <<'EOF'\n{manifest}\nEOF"
    ));
    cluster.until("the node has ids", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("400")
    });
    cluster.nics.are_configured();
    for nic in NICS {
        // a container cannot set it, as the page says
        assert_eq!(cluster.nics.filter(nic), "1");
    }
    cluster.says("the NICs have what the metadata service says");

    let names = ["a", "b"];
    for name in names {
        cluster.make(PODS, &pod(name, &json!({RESOURCE: 1})));
    }
    for name in names {
        let nodes = cluster.pod(name).main().rdma_nodes();
        let given: Vec<_> = nodes.iter().filter(|it| it.0 != "rdma_cm").collect();
        let known = [0, 1].map(|rail| uverbs(&rdma(rail)));
        assert!(given.len() == 1 && known.contains(given[0]), "{nodes:?}");
        assert_eq!(nodes.len(), 2, "{nodes:?}");
    }
    cluster.says("each pod has one NIC's device");
    cluster.delete(PODS, &names);
    cluster.until("they are gone", |it| it.look_at_all(PODS).is_empty());
    install::removed_by_the_page(&mut cluster);
    // what the daemon has set stays for the node's own programs, until it is taken back on the node
    let mut release = Command::new(rdma_device_plugin());
    let released = release.arg("--release").output().expect("it runs");
    let words = String::from_utf8_lossy(&released.stdout).into_owned();
    for nic in NICS {
        assert!(words.contains(&format!("{nic}: released")), "{words}");
    }
    before.assert_restored(&cluster.nics.host);
}
