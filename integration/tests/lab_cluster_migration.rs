// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose NICs k8s-rdma-shared-dev-plugin provides:
//! `scripts/test --full lab cluster-mlx5`. The operator types the commands of `docs/drop-in.md`, from the check to
//! the undo of the migration. The other plugin's program and DaemonSet, control plane, kubelet, container runtime,
//! the daemon's image, mlx5_core and its user-space provider are real. The card is a model.

use integration::{
    Cluster, Netns, Snapshot,
    cluster::{
        claims::{PLACES, PODS},
        migration::Migration,
    },
    container_runtime::{
        Pod, TOOLS,
        installed::{Files, records},
    },
    lab::uverbs,
    mlx5_card::{Mlx5Card, NETDEVS, RDMA},
};
use std::{env, fs, path::Path};

const RESOURCE: &str = "rdma/hca";

/// Environment variable with the directory of the other plugin's program and manifest
/// (`integration/runtimes/build shared-device-plugin`).
const PROGRAMS: &str = "RDMA_SHARED_DEVICE_PLUGIN";

/// The other plugin's configuration, in the form of its own example.
const CONFIG: &str = r#"{
  "periodicUpdateInterval": 300,
  "configList": [{
    "resourceName": "hca",
    "rdmaHcaMax": 63,
    "selectors": {"vendors": ["15b3"], "drivers": ["mlx5_core"]}
  }]
}"#;

/// A part of Alpine's PCI id list, which is in the other plugin's image.
const PCI_IDS: &str = "15b3  Mellanox Technologies\n\t1017  MT27800 Family [ConnectX-5]\n\
                       C 02  Network controller\n\t00  Ethernet controller\n";

/// A card with both functions up. The other plugin accepts only devices with a `umad` device file.
fn card() -> Mlx5Card {
    let card = Mlx5Card::new("shared");
    card.host.run("modprobe ib_umad");
    for (netdev, rdma) in NETDEVS.into_iter().zip(RDMA) {
        card.host.ip(&format!("link set dev {netdev} up"));
        card.has_state(&card.host, rdma, "ACTIVE");
    }
    card
}

/// Applies the other plugin's ConfigMap and its own DaemonSet. The program comes from the node and not from the
/// plugin's image.
fn shared_device_plugin(cluster: &Cluster<Mlx5Card>, name: &str) {
    let programs = env::var(PROGRAMS).expect(PROGRAMS);
    let manifest = fs::read_to_string(Path::new(&programs).join("daemonset.yaml"));
    let manifest = manifest.expect("the plugin's manifest");
    fs::write("/run/pci.ids", PCI_IDS).expect("written");
    let image = "image: ghcr.io/mellanox/k8s-rdma-shared-dev-plugin\n";
    let (mounts, volumes) = ("        volumeMounts:\n", "      volumes:\n");
    for text in [name, image, mounts, volumes] {
        assert!(manifest.contains(text), "{text}: {manifest}");
    }
    let manifest = manifest
        .replace(
            image,
            &format!("image: {TOOLS}\n        command: [/programs/k8s-rdma-shared-dp]\n"),
        )
        .replace(
            mounts,
            &format!(
                "{mounts}          - {{ name: programs, mountPath: /programs }}\n          \
                 - {{ name: ids, mountPath: /usr/share/hwdata/pci.ids }}\n"
            ),
        )
        .replace(
            volumes,
            &format!(
                "{volumes}        - {{ name: programs, hostPath: {{ path: {programs} }} }}\n        \
                 - {{ name: ids, hostPath: {{ path: /run/pci.ids }} }}\n"
            ),
        );
    cluster.types(&format!(
        "kubectl -n kube-system create configmap rdma-devices --from-literal=config.json='{CONFIG}'"
    ));
    cluster.types(&format!("kubectl apply -f - <<'EOF'\n{manifest}\nEOF"));
    cluster.types(&format!(
        "kubectl -n kube-system rollout status ds/{name} --timeout=5m"
    ));
    let log = cluster.types(&format!("kubectl -n kube-system logs ds/{name}"));
    eprintln!("{log}");
    // config.json of the page
    cluster.types(
        "kubectl -n kube-system get cm rdma-devices -o jsonpath='{.data.config\\.json}' >config.json",
    );
}

/// A user's pod with a controller, which replaces it after an eviction.
fn job(cluster: &Cluster<Mlx5Card>) {
    cluster.types(&format!(
        "kubectl apply -f - <<'EOF'\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{ name: job }}\nspec:\n  \
         serviceName: job\n  selector: {{ matchLabels: {{ app: job }} }}\n  template:\n    \
         metadata: {{ labels: {{ app: job }} }}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      \
         - name: main\n        image: {TOOLS}\n        command: [sleep, \"1000000\"]\n        \
         resources: {{ limits: {{ {RESOURCE}: 1 }} }}\nEOF"
    ));
}

/// Asserts that the user's pod has the device files of both NICs and `others`, and that the user-space provider
/// opens both devices.
#[track_caller]
fn has_both_nics(pod: &Pod, others: &[&str]) {
    let nodes = pod.main().rdma_nodes();
    let names: Vec<&str> = nodes.iter().map(|it| it.0.as_str()).collect();
    for rdma in RDMA {
        assert!(nodes.contains(&uverbs(rdma)), "{rdma}: {nodes:?}");
        let shown = pod.main().sh(&format!("ibv_devinfo -d {rdma}"));
        assert!(shown.contains("PORT_ACTIVE"), "{shown}");
    }
    let mut rest: Vec<&str> = names
        .into_iter()
        .filter(|it| !it.starts_with("uverbs"))
        .collect();
    rest.sort_unstable();
    assert_eq!(rest, others);
}

#[test]
fn a_node_goes_from_the_shared_device_plugin_to_ours_and_back() {
    let mut cluster = Cluster::with(card);
    let host = Netns::own();
    let page = Migration::new("k8s-rdma-shared-dev-plugin", false);

    shared_device_plugin(&cluster, &page.name);
    cluster.until("the node has the other plugin's ids", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("63")
    });
    let (files, before) = (Files::below(&PLACES), Snapshot::of(&host));
    job(&cluster);
    let theirs = ["rdma_cm", "umad0", "umad1"];
    has_both_nics(&cluster.pod("job-0"), &theirs);
    cluster.report("a pod runs by the other plugin");

    assert_eq!(page.types(&cluster, "Check"), "");
    page.types(&cluster, "Prepare");
    page.types(&cluster, "Migrate a node");
    cluster.until("the node has our ids", |it| {
        it.allocatable(RESOURCE).as_deref() == Some("63")
    });
    let shown = page.types(&cluster, "Verify a node");
    assert!(shown.contains(r#""rdma/hca":"63""#), "{shown}");
    has_both_nics(&cluster.pod("job-0"), &["rdma_cm"]);
    cluster.report("the same pod runs by ours");

    page.types(&cluster, "Undo a node");
    page.types(&cluster, "Undo all");
    has_both_nics(&cluster.pod("job-0"), &theirs);
    assert!(records().is_empty(), "{:?}", records());
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    cluster.report("the pod runs by the other plugin again");

    cluster.types("kubectl delete statefulset job");
    cluster.until("the pod is gone", |it| it.list(PODS).is_empty());
    before.assert_restored(&host);
}
