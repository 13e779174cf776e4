// SPDX-License-Identifier: Apache-2.0
//! The other projects' programs on the node: Multus, sriov-cni, rdma-cni of k8snetworkplumbingwg, whereabouts and
//! sriov-network-device-plugin, as `integration/runtimes/build` made them. The DaemonSets run the programs in the lab's
//! image, because the projects' images are not there.

use integration::{
    Cluster,
    container_runtime::{TOOLS, installed::root},
    control_plane::{SERVICE, kubeconfig},
    lab::Lab,
};
use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The device plugin's DaemonSet.
pub(super) const DEVICE_PLUGIN: &str = "kube-sriov-device-plugin-amd64";

/// whereabouts' address pools.
const POOLS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools";

/// The device plugin's configuration. Version 3.0.0 reads `isRdma` outside of `selectors`, and has the prefix as a
/// flag. Later versions, and our daemon, read `isRdma` in `selectors`, and `resourcePrefix`.
const CONFIG: &str = r#"{
  "resourceList": [{
    "resourcePrefix": "rdma",
    "resourceName": "vf",
    "isRdma": true,
    "selectors": {"drivers": ["igbvf"], "pfNames": ["enp33s0"], "isRdma": true}
  }]
}"#;

/// A part of Debian's PCI id list. Without a list the device plugin ends.
const PCI_IDS: &str = "8086  Intel Corporation\n\t10c9  82576 Gigabit Network Connection\n\
                       \t10ca  82576 Virtual Function\nC 02  Network controller\n\t00  Ethernet controller\n";

/// Returns the directory that the environment variable `name` has.
fn programs(name: &str) -> PathBuf {
    let directory = env::var_os(name).map(PathBuf::from);
    directory.unwrap_or_else(|| panic!("{name} is not set: scripts/test --full lab cluster-multus"))
}

/// Reads a manifest, and replaces texts that it must have.
#[track_caller]
fn manifest(file: &Path, changes: &[(&str, String)]) -> String {
    let mut text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    for (old, new) in changes {
        assert!(text.contains(old), "{old}: {text}");
        text = text.replace(old, new);
    }
    text
}

#[track_caller]
fn apply(cluster: &Cluster<Lab>, manifest: &str, daemon_set: &str) {
    cluster.types(&format!("kubectl apply -f - <<'EOF'\n{manifest}\nEOF"));
    cluster.types(&format!(
        "kubectl -n kube-system rollout status ds/{daemon_set} --timeout=5m"
    ));
}

/// Copies a CNI plugin into the node's directory, as the pods of the plugins' DaemonSets do.
#[track_caller]
fn copy(program: &Path) {
    let name = program.file_name().expect("a name");
    fs::copy(program, Path::new("/opt/cni/bin").join(name)).expect("a plugin");
}

/// Installs everything, from the networks' plugins to the device plugin, and writes its `config.json` for the page.
#[track_caller]
pub(super) fn install(cluster: &mut Cluster<Lab>) {
    multus(cluster);
    rdma_cni(cluster);
    copy(&programs("RDMA_SRIOV_CNI").join("sriov"));
    whereabouts(cluster);
    device_plugin(cluster);
}

/// Multus' thin plugin by its own DaemonSet, which makes the runtime's configuration from the primary network's list.
#[track_caller]
fn multus(cluster: &mut Cluster<Lab>) {
    let programs = programs("RDMA_MULTUS");
    let bin = "/usr/src/multus-cni/bin";
    let mount = format!("- {{ name: programs, mountPath: {bin} }}\n");
    let (mounts, mounts_of_init) = (
        "        volumeMounts:\n        - name: cni\n",
        "          volumeMounts:\n            - name: cnibin\n",
    );
    let text = manifest(
        &programs.join("multus-daemonset.yml"),
        &[
            (
                "ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot",
                TOOLS.to_owned(),
            ),
            ("/thin_entrypoint", format!("{bin}/thin_entrypoint")),
            ("/install_multus", format!("{bin}/install_multus")),
            (
                mounts,
                mounts.replace("- name", &format!("{mount}        - name")),
            ),
            (
                mounts_of_init,
                mounts_of_init.replace("- name", &format!("{mount}            - name")),
            ),
            // the node's directory of plugins is in memory, so files there count as memory of the container that copies
            // them
            ("50Mi", "200Mi".to_owned()),
            volume(&programs),
        ],
    );
    apply(cluster, &text, "kube-multus-ds");
    cluster.until("the runtime has Multus' configuration", |_| {
        let files = fs::read_dir("/etc/cni/net.d").expect("a directory");
        let mut names = files.map(|it| it.expect("a file").file_name());
        names.any(|it| it.to_string_lossy().starts_with("00-multus.conf"))
    });
}

/// Returns the change that adds the volume `programs` to a manifest.
fn volume(programs: &Path) -> (&'static str, String) {
    let volumes = "      volumes:\n";
    let path = programs.display();
    (
        volumes,
        format!("{volumes}        - {{ name: programs, hostPath: {{ path: {path} }} }}\n"),
    )
}

/// Installs k8snetworkplumbingwg's rdma-cni by that project's DaemonSet. The DaemonSet's pods copy the program with the
/// script of that project's image.
#[track_caller]
fn rdma_cni(cluster: &Cluster<Lab>) {
    let programs = programs("RDMA_PLUGIN");
    let image = "image: ghcr.io/k8snetworkplumbingwg/rdma-cni\n";
    let mounts = "          volumeMounts:\n";
    let text = manifest(
        &programs.join("rdma-cni-daemonset.yaml"),
        &[
            (
                image,
                format!(
                    "image: {TOOLS}\n          \
                     command: [sh, /programs/entrypoint.sh, --rdma-cni-bin-file=/programs/rdma]\n"
                ),
            ),
            (
                mounts,
                format!("{mounts}            - {{ name: programs, mountPath: /programs }}\n"),
            ),
            volume(&programs),
        ],
    );
    apply(cluster, &text, "kube-rdma-cni-ds");
}

/// Installs whereabouts with its own objects, and with the files that its DaemonSet's script would write. The DaemonSet
/// does not run.
#[track_caller]
fn whereabouts(cluster: &mut Cluster<Lab>) {
    let programs = programs("RDMA_WHEREABOUTS");
    copy(&programs.join("whereabouts"));
    let objects = programs.join("crds");
    cluster.types(&format!("kubectl apply -f {}", objects.display()));
    cluster.types("kubectl -n kube-system delete ds/whereabouts deploy/whereabouts-controller");
    cluster.until("pools are served", |it| !it.get(POOLS).is_null());
    let token = cluster.types("kubectl -n kube-system create token whereabouts --duration=24h");
    let directory = Path::new("/etc/cni/net.d/whereabouts.d");
    fs::create_dir_all(directory).expect("a directory");
    let server = format!("https://{SERVICE}");
    let authority = cluster.plane.pki("ca.crt");
    let path = kubeconfig::write(directory, "whereabouts", &token, &server, &authority);
    let conf = json!({ "datastore": "kubernetes", "kubernetes": { "kubeconfig": path } });
    fs::write(directory.join("whereabouts.conf"), conf.to_string()).expect("written");
}

/// Returns the pods that have an address of whereabouts' pools.
pub(super) fn leases(cluster: &Cluster<Lab>) -> Vec<String> {
    let pools = cluster.list(POOLS);
    let leases = pools
        .iter()
        .filter_map(|it| it["spec"]["allocations"].as_object());
    let pod = |it: &Value| it["podref"].as_str().unwrap_or_default().to_owned();
    leases.flat_map(|it| it.values()).map(pod).collect()
}

/// The device plugin by a DaemonSet like its own, which has an API version that Kubernetes 1.16 removed.
#[track_caller]
fn device_plugin(cluster: &mut Cluster<Lab>) {
    let programs = programs("RDMA_SRIOV_DEVICE_PLUGIN");
    fs::write("/run/pci.ids", PCI_IDS).expect("written");
    cluster.types(&format!(
        "kubectl -n kube-system create configmap sriovdp-config --from-literal=config.json='{CONFIG}'"
    ));
    let mounts = [
        ("devicesock", "/var/lib/kubelet"),
        ("config", "/etc/pcidp"),
        ("programs", "/programs"),
        ("ids", "/usr/share/hwdata/pci.ids"),
    ];
    let mounts = mounts.map(|(name, path)| json!({"name": name, "mountPath": path}));
    let container = json!({
        "name": "kube-sriovdp", "image": TOOLS,
        "command": ["/programs/sriovdp", "--logtostderr", "-v=10", "--resource-prefix=rdma"],
        "securityContext": {"privileged": true}, "volumeMounts": mounts,
    });
    let volumes = json!([
        {"name": "devicesock", "hostPath": {"path": "/var/lib/kubelet"}},
        {"name": "config", "configMap": {"name": "sriovdp-config"}},
        {"name": "programs", "hostPath": {"path": programs}},
        {"name": "ids", "hostPath": {"path": "/run/pci.ids"}},
    ]);
    let labels = json!({"tier": "node", "app": "sriovdp"});
    let tolerations = json!([{"operator": "Exists", "effect": "NoSchedule"}]);
    let spec = json!({
        "hostNetwork": true, "hostPID": true, "tolerations": tolerations,
        "containers": [container], "volumes": volumes,
    });
    let object = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": DEVICE_PLUGIN, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    });
    apply(cluster, &object.to_string(), DEVICE_PLUGIN);
    // config.json of the page
    cluster.types(
        "kubectl -n kube-system get cm sriovdp-config -o jsonpath='{.data.config\\.json}' >config.json",
    );
}

/// Returns an example of a network, with an address from whereabouts and with `changes`.
#[track_caller]
pub(super) fn example(file: &str, ipam: &str, changes: &[(&str, String)]) -> String {
    let range = r#""ipam": { "type": "whereabouts", "range": "10.56.217.0/24" }"#;
    let mut all = changes.to_vec();
    all.push((ipam, range.to_owned()));
    let text = manifest(&root().join("conf/examples/multus").join(file), &all);
    // the network without the example's pod
    text.split("\n---\n").next().expect("a part").to_owned()
}
