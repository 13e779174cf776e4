// SPDX-License-Identifier: Apache-2.0
//! The procedures of `docs/drop-in.md`, from the check to the undo and to the final migration. `kubectl` and Helm use
//! the API server; the commands of a node use files of the test instead of the node's. The other plugins are DaemonSets
//! with the right names, whose pods do nothing. [`ControlPlane::start_bound_pods`] acts as kubelet.

use super::{root, text};
use integration::{
    ControlPlane,
    control_plane::HELM,
    daemon::rdma_device_plugin,
    pages::{self, Block},
    plugin::rdma_cni,
};
use serde_json::{Value, json};
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
    thread,
};
use tempfile::TempDir;

const PAGE: &str = "docs/drop-in.md";

/// The runtime's CNI list before the migration.
const LIST: &str = r#"{"cniVersion":"0.3.1","name":"cbr0","plugins":[{"type":"flannel"}]}"#;

/// The shells of an operator and of a node, with the values for the page's names in capital letters.
pub(super) struct Operator<'a> {
    cluster: &'a ControlPlane,
    desk: TempDir,
    node: TempDir,
    names: Vec<(&'static str, String)>,
}

impl<'a> Operator<'a> {
    pub(super) fn new(cluster: &'a ControlPlane, names: &[(&'static str, &str)]) -> Self {
        let [desk, node] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        symlink(root().join("conf"), desk.path().join("conf")).expect("a link");
        for directory in ["opt/cni/bin", "etc/cni/net.d", "var/lib/cni"] {
            fs::create_dir_all(node.path().join(directory)).expect("made");
        }
        let names = names.iter().map(|&(name, value)| (name, value.to_owned()));
        let mut names: Vec<_> = names.collect();
        names.push(("NODE", "rdma-1".into()));
        let operator = Self {
            cluster,
            desk,
            node,
            names,
        };
        operator.write("etc/cni/net.d/10-flannel.conflist", LIST);
        operator.write("opt/cni/bin/flannel", "flannel");
        operator.write("opt/cni/bin/rdma", "#!/bin/sh\necho the other plugin\n");
        operator.in_node("chmod 755 /opt/cni/bin/*");
        operator
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.node.path().join(path), text).expect("written");
    }

    /// Types the lines of a block, one by one. Omits lines that need a kubelet: the log of a pod and programs in a pod.
    #[track_caller]
    pub(super) fn types(&self, block: &Block) -> String {
        let mut output = String::new();
        for line in &block.lines {
            let names = self.names.iter();
            let line = names.fold(line.clone(), |line, (name, value)| {
                line.replace(name, value)
            });
            let program = line.split(' ').next().expect("a program");
            output += &match program {
                "kubectl" if [" logs ", " exec "].iter().any(|it| line.contains(it)) => continue,
                "kubectl" | "helm" | "jq" => self.at_desk(&line),
                _ => self.in_node(&line),
            };
        }
        output
    }

    /// Types a line at the operator's workstation, while pods start and end.
    #[track_caller]
    pub(super) fn at_desk(&self, line: &str) -> String {
        let typed = format!("cd {}; {line}", self.desk.path().display());
        let output = thread::scope(|scope| {
            let command = scope.spawn(|| self.cluster.try_shell(&typed));
            while !command.is_finished() {
                self.cluster.start_bound_pods();
            }
            command.join().expect("a command's end")
        });
        succeeded(line, output)
    }

    /// Types a line on the node: paths are in the node's directories, and the line finds this project's programs.
    fn try_in_node(&self, line: &str) -> Output {
        let mut command = Command::new("bwrap");
        for directory in ["/usr", "/sys"] {
            command.args(["--ro-bind", directory, directory]);
        }
        for directory in ["bin", "sbin", "lib", "lib64"] {
            let link = format!("/{directory}");
            command.args(["--symlink", &format!("usr/{directory}"), &link]);
        }
        for directory in ["opt", "etc", "var"] {
            let own = self.node.path().join(directory);
            command.arg("--bind").arg(own).arg(format!("/{directory}"));
        }
        let plugin = rdma_cni();
        for (name, program) in [
            ("rdma-ipam", plugin.with_file_name("rdma-ipam")),
            ("rdma-device-plugin", rdma_device_plugin()),
            ("rdma-cni", plugin),
        ] {
            let to = Path::new("/programs").join(name);
            command.arg("--ro-bind").arg(program).arg(to);
        }
        command.args(["--proc", "/proc", "--dev", "/dev", "--chdir", "/programs"]);
        command.args(["--setenv", "PATH", "/programs:/usr/bin:/bin"]);
        command
            .args(["sh", "-e", "-c", line])
            .output()
            .expect("bwrap")
    }

    #[track_caller]
    fn in_node(&self, line: &str) -> String {
        succeeded(line, self.try_in_node(line))
    }

    /// The mode, digest and name of each of the node's files.
    fn files(&self) -> String {
        self.in_node("find /opt /etc /var -type f -printf '%m ' -exec sha256sum {} ';' | sort -k 3")
    }

    /// Returns the nodes of the pods that `kubectl get pods` lists with the flags `pods`: one name for each pod,
    /// sorted. The name is empty for a pod without a node.
    pub(super) fn nodes_of(&self, pods: &str) -> Vec<String> {
        let pods = self.cluster.get(&format!("pods {pods}"));
        let nodes = pods.iter().map(|pod| pod["spec"]["nodeName"].as_str());
        let mut nodes: Vec<_> = nodes.map(|it| it.unwrap_or_default().to_owned()).collect();
        nodes.sort();
        nodes
    }
}

#[track_caller]
fn succeeded(line: &str, output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("programs print UTF-8")
}

/// The rows of the page's table of plugins: name, NAMESPACE, NAME and VALUES of each.
fn plugins() -> Vec<Vec<String>> {
    pages::rows(PAGE, "| from | NAMESPACE | NAME | VALUES |")
}

/// Creates the DaemonSet of another plugin on both nodes, with a label of its pods.
fn another(operator: &Operator, namespace: &str, name: &str, (key, value): (&str, &str)) {
    let labels = json!({ key: value });
    let container = json!({ "name": "plugin", "image": "registry.example/plugin:1" });
    let tolerations = json!([{ "operator": "Exists" }]);
    let object = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [container], "tolerations": tolerations },
            },
        },
    });
    operator.cluster.apply("apply -f -", &object.to_string());
    operator.at_desk(&format!("kubectl -n {namespace} rollout status ds/{name}"));
}

/// Returns the cluster state that a migration changes: the pod specification of the other DaemonSet, and the node's
/// labels, taints and cordon.
fn state(cluster: &ControlPlane, daemon_set: &str) -> Value {
    let other = &cluster.get(&format!("-n kube-system ds/{daemon_set}"))[0];
    let node = &cluster.get("node rdma-1")[0];
    json!([
        other["spec"]["template"]["spec"],
        node["metadata"]["labels"],
        node["spec"]
    ])
}

/// Creates another owner's custom resource definition, without a schema.
fn custom_resource(cluster: &mut ControlPlane, kind: &str, plural: &str, group: &str) {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let singular = kind.to_lowercase();
    let versions = json!([{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": any } }]);
    let names = json!({ "plural": plural, "singular": singular, "kind": kind });
    let object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": { "group": group, "scope": "Cluster", "names": names, "versions": versions },
    });
    cluster.apply("apply -f -", &object.to_string());
    cluster.until(&format!("{plural} are served"), |it| {
        it.try_kubectl(&format!("get {plural}")).status.success()
    });
}

/// Migrates a node from each plugin of the table to this project and back. Migrates from the first plugin permanently,
/// too.
pub(super) fn a_node_goes_to_ours_and_back(cluster: &mut ControlPlane) {
    if env::var_os(HELM).is_none() {
        return; // scripts/test counts it as skipped
    }
    let plugins = plugins();
    assert_eq!(plugins.len(), 4);
    for (number, cells) in plugins.iter().enumerate() {
        let [_, namespace, name, values] = &cells[..] else {
            panic!("four cells: {cells:?}");
        };
        assert_eq!(namespace, "kube-system");
        let names = [
            ("NAMESPACE", namespace.as_str()),
            ("NAME", name),
            ("VALUES", values),
        ];
        let operator = Operator::new(cluster, &names);
        let config = r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":9,"selectors":{"vendors":["15b3"]}}]}"#;
        fs::write(operator.desk.path().join("config.json"), config).expect("written");
        another(&operator, namespace, name, ("name", name));
        let (before, files) = (state(cluster, name), operator.files());
        let [theirs, ours] = [
            format!("-n kube-system -l name={name}"),
            "-n rdma -l app.kubernetes.io/name=rdma-device-plugin".into(),
        ];
        let types = |heading: &str| {
            eprintln!("{name}: {heading}");
            pages::shell(PAGE, heading)
                .iter()
                .map(|it| operator.types(it))
                .collect::<String>()
        };

        assert_eq!(types("Check"), "");
        types("Prepare");
        assert_eq!(operator.nodes_of(&theirs), ["plain-1", "rdma-1"]);
        assert_eq!(operator.nodes_of(&ours), [""; 0]);
        types("Migrate a node");
        assert_eq!(operator.nodes_of(&theirs), ["plain-1"]);
        assert_eq!(operator.nodes_of(&ours), ["rdma-1"]);
        assert!(types("Verify a node").contains("rdma/hca"));
        // on a real node, the init container of the daemon's pod runs this `install`
        operator.write("etc/config.json", r#"{"mode":"hca","chain":{}}"#);
        operator.in_node("rdma-device-plugin install --config /etc/config.json --without-kubelet; rm /etc/config.json");
        assert_ne!(operator.files(), files);

        types("Undo a node");
        assert_eq!(operator.files(), files);
        assert_eq!(operator.nodes_of(&ours), [""; 0]);
        types("Undo all");
        operator.at_desk(&format!("kubectl -n kube-system rollout status ds/{name}"));
        assert_eq!(operator.nodes_of(&theirs), ["plain-1", "rdma-1"]);
        assert_eq!(state(cluster, name), before);
        assert!(!cluster.try_kubectl("get namespace rdma").status.success());

        if number == 0 {
            types("Prepare");
            types("Migrate a node");
            types("Finish");
            operator.at_desk("kubectl -n rdma rollout status ds/ack-rdma-dp-ds");
            assert_eq!(operator.nodes_of(&ours), ["rdma-1"]);
            for line in [
                "helm -n rdma uninstall rdma",
                "kubectl delete namespace rdma",
            ] {
                operator.at_desk(line);
            }
            operator.at_desk("kubectl label node rdma-1 rdma-migrated-");
            operator.at_desk("kubectl uncordon rdma-1");
        } else {
            operator.at_desk(&format!("kubectl -n kube-system delete ds {name}"));
        }
    }
}

/// The API server accepts the page's claim for users of dranet.
pub(super) fn a_claim_for_dranets_users_is_taken(cluster: &ControlPlane) {
    let page = text(PAGE);
    let claims = page.split("```yaml\n").skip(1);
    let mut claims = claims.filter(|it| it.starts_with("requests:"));
    let claim = claims.next().expect("a claim on the page");
    let requests = claim.split("```").next().expect("its end");
    let object = format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{ name: nic }}\nspec:\n  devices:\n    {}\n",
        requests.trim().replace('\n', "\n    ")
    );
    let taken = cluster.apply(
        "apply -f - --dry-run=server --validate=strict -o json",
        &object,
    );
    assert!(
        taken.contains("rdma-vf") && taken.contains("ens1f0v2"),
        "{taken}"
    );
}

/// The page's commands remove what the eRDMA controller leaves: custom resources with a finalizer that only the
/// controller would remove.
pub(super) fn what_the_erdma_controller_leaves_goes(cluster: &mut ControlPlane) {
    custom_resource(
        cluster,
        "ERdmaDevice",
        "erdmadevices",
        "network.alibabacloud.com",
    );
    let metadata =
        json!({ "name": "rdma-1", "finalizers": ["network.alibabacloud.com/erdma-controller"] });
    let device = json!({ "apiVersion": "network.alibabacloud.com/v1", "kind": "ERdmaDevice", "metadata": metadata });
    cluster.apply("apply -f -", &device.to_string());
    cluster.kubectl("-n kube-system create configmap eni-config --from-literal=eni_conf={}");
    let operator = Operator::new(cluster, &[]);
    let [check, finish] = &pages::shell(PAGE, "The eRDMA controller")[..] else {
        panic!("two blocks");
    };
    assert_eq!(operator.types(check), "{}");
    operator.types(finish);
    assert!(!cluster.try_kubectl("get erdmadevices").status.success());
    cluster.kubectl("-n kube-system delete configmap eni-config");
}

/// The page's commands remove a section of the network operator's policy and restore it.
pub(super) fn a_policys_section_is_put_back(cluster: &mut ControlPlane) {
    if env::var_os(HELM).is_none() {
        return;
    }
    custom_resource(
        cluster,
        "NicClusterPolicy",
        "nicclusterpolicies",
        "mellanox.com",
    );
    let config = r#"{"configList":[{"resourceName":"hca","rdmaHcaMax":63,"selectors":{"vendors":["15b3"]}}]}"#;
    let section_of_plugin = json!({ "image": "k8s-rdma-shared-dev-plugin", "config": config });
    let spec = json!({ "rdmaSharedDevicePlugin": section_of_plugin, "secondaryNetwork": { "multus": {} } });
    let metadata = json!({ "name": "nic-cluster-policy" });
    let policy = json!({ "apiVersion": "mellanox.com/v1", "kind": "NicClusterPolicy", "metadata": metadata, "spec": spec });
    cluster.apply("apply -f -", &policy.to_string());
    cluster.kubectl("label node rdma-1 aliyun.accelerator/rdma-");
    let operator = Operator::new(cluster, &[]);
    let [check, migrate, undo] = &pages::shell(PAGE, "NVIDIA's network operator")[..] else {
        panic!("three blocks");
    };
    let theirs = "nvidia-network-operator";
    cluster.kubectl(&format!("create namespace {theirs}"));
    another(
        &operator,
        theirs,
        "rdma-shared-dp-ds",
        ("app", "rdma-shared-dp"),
    );
    operator.types(check);
    let [first, rest] = [&migrate.lines[..1], &migrate.lines[1..]].map(|lines| Block {
        heading: migrate.heading.clone(),
        lines: lines.to_vec(),
    });
    operator.types(&first);
    // the network operator deletes this DaemonSet after the policy's section is gone
    cluster.kubectl(&format!(
        "-n {theirs} delete ds rdma-shared-dp-ds --wait=false"
    ));
    operator.types(&rest);
    assert_eq!(operator.nodes_of(&format!("-n {theirs}")), [""; 0]);
    let stays = &cluster.get("nicclusterpolicy nic-cluster-policy")[0]["spec"];
    assert_eq!(*stays, json!({ "secondaryNetwork": { "multus": {} } }));
    let ours =
        cluster.kubectl("-n kube-system get cm rdma-devices -o jsonpath={.data.config\\.json}");
    let ours: Value = serde_json::from_str(&ours).expect("JSON");
    assert_eq!(ours, serde_json::from_str::<Value>(config).expect("JSON"));
    let daemons = "-n kube-system -l app.kubernetes.io/name=rdma-device-plugin";
    assert_eq!(operator.nodes_of(daemons), ["rdma-1"]);
    operator.types(undo);
    let restored = &cluster.get("nicclusterpolicy nic-cluster-policy")[0]["spec"];
    assert_eq!(*restored, spec);
    operator.at_desk("kubectl delete crd nicclusterpolicies.mellanox.com");
    operator.at_desk(&format!("kubectl delete namespace {theirs}"));
    operator.at_desk(&format!("kubectl wait pod --for=delete {daemons}"));
    cluster.kubectl(&format!("label node rdma-1 {}", super::LABEL));
}

/// The page's commands save the binary of another rdma-cni, replace it and restore it. The API server has the networks
/// of the examples.
pub(super) fn the_binary_of_rdma_cni_is_put_back(cluster: &mut ControlPlane) {
    // pods of the pages' examples have no controller: `drain` refuses to evict them
    cluster.kubectl("-n default delete pods --all --force --grace-period=0");
    let operator = Operator::new(cluster, &[]);
    another(
        &operator,
        "kube-system",
        "kube-rdma-cni-ds",
        ("name", "rdma-cni"),
    );
    let (before, files) = (state(cluster, "kube-rdma-cni-ds"), operator.files());
    let blocks = pages::shell(PAGE, "rdma-cni");
    let [
        check,
        leave,
        replace,
        verify,
        uncordon,
        drain,
        put_back,
        come_back,
        undo,
    ] = &blocks[..]
    else {
        panic!("nine blocks: {blocks:?}");
    };
    operator.types(check);
    operator.types(leave);
    let theirs = "-n kube-system -l name=rdma-cni";
    assert_eq!(operator.nodes_of(theirs), ["plain-1"]);
    operator.types(replace);
    let version = format!("rdma-cni {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(operator.types(verify), version);
    // a second `ln` fails, and does not replace the saved file
    assert!(!operator.try_in_node(&replace.lines[0]).status.success());
    operator.types(uncordon);
    for block in [drain, put_back, come_back, undo] {
        operator.types(block);
    }
    assert_eq!(operator.files(), files);
    operator.at_desk("kubectl -n kube-system rollout status ds/kube-rdma-cni-ds");
    assert_eq!(operator.nodes_of(theirs), ["plain-1", "rdma-1"]);
    assert_eq!(state(cluster, "kube-rdma-cni-ds"), before);
    operator.at_desk("kubectl -n kube-system delete ds kube-rdma-cni-ds");
    operator.at_desk("kubectl delete crd network-attachment-definitions.k8s.cni.cncf.io");
}
