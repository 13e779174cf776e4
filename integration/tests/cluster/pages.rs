// SPDX-License-Identifier: Apache-2.0
//! The commands in the documentation's pages.

use super::{LABEL, helm, manifests, text};
use integration::{
    ControlPlane,
    control_plane::HELM,
    pages::{self, Block},
};
use std::{env, fs};

/// Returns the `kubectl` commands in those blocks of a page that do not call Helm.
fn commands(page: &str) -> Vec<String> {
    let mut blocks = pages::blocks(page);
    blocks.retain(|block| !block.lines.iter().any(|line| line.starts_with("helm ")));
    let lines = blocks.into_iter().flat_map(|block| block.lines);
    lines.filter(|line| line.starts_with("kubectl ")).collect()
}

/// Returns true if the command needs a kubelet. These tests have no kubelet.
fn needs_kubelet(command: &str) -> bool {
    command.starts_with("kubectl exec ")
        || command.contains(" logs ")
        || command.contains("=Succeeded")
}

/// Runs the `kubectl` commands of `README.md` and `docs/deploy.md`, in order. Replaces only `NODE`, and omits commands
/// that need a kubelet, and blocks that call Helm.
pub(super) fn every_command_works(cluster: &mut ControlPlane) {
    cluster.kubectl("label node rdma-1 aliyun.accelerator/rdma-");
    for page in ["README.md", "docs/deploy.md"] {
        let commands = commands(page);
        assert!(commands.len() >= 3, "{page}: {commands:?}");
        for command in commands.iter().filter(|it| !needs_kubelet(it)) {
            if let Some(name) = command.split("rollout status ds/").nth(1) {
                manifests::roll_out(cluster, name, 1);
            }
            if command.starts_with("kubectl wait ") {
                cluster.until("the pods have a node", |it| {
                    let pods = it.get("pods -n default");
                    pods.iter().all(|pod| pod["spec"]["nodeName"].is_string())
                });
                cluster.start_bound_pods();
            }
            cluster.shell(&command.replace("NODE", "rdma-1"));
        }
    }
    let nodes = cluster.get(&format!("nodes -l {LABEL}"));
    assert_eq!(nodes.len(), 1, "the pages label a node");
}

/// Types the lines of the get-started pages. The pods of each manifest and Helm release on these pages run only on the
/// labelled node. Claims of shared NICs need a later Kubernetes release, so the test only renders the Helm release with
/// claims.
pub(super) fn get_started_installs(cluster: &mut ControlPlane) {
    let files = fs::read_dir(super::root().join("docs/get-started")).expect("the pages");
    let mut names: Vec<_> = files.map(|it| it.expect("a page").file_name()).collect();
    names.sort();
    assert!(names.len() > 4, "{names:?}");
    for name in names {
        let page = format!("docs/get-started/{}", name.display());
        cluster.kubectl("label node rdma-1 aliyun.accelerator/rdma-");
        let lines = pages::blocks(&page).into_iter().flat_map(|it| it.lines);
        let mut installed = 0;
        for line in lines.map(|it| it.replace("NODE", "rdma-1")) {
            if let Some(manifest) = line.strip_prefix("kubectl apply -f ") {
                cluster.shell(&line);
                runs_where_it_is_labelled(cluster, &page);
                manifests::delete(cluster, &text(manifest));
            } else if line.starts_with("kubectl ") {
                cluster.shell(&line);
                continue;
            } else if !line.starts_with("helm ") {
                continue;
            } else if env::var_os(HELM).is_none() {
                // scripts/test reports the pages' commands of Helm as skipped
            } else if page.ends_with("/claims.md") {
                let template = "helm template --kube-version 1.37.0 ";
                let rendered = cluster.shell(&line.replace("helm install ", template));
                assert!(rendered.contains("kind: DaemonSet"), "{page}: {rendered}");
            } else {
                cluster.shell(&line);
                runs_where_it_is_labelled(cluster, &page);
                cluster.shell("helm -n kube-system uninstall rdma");
                helm::are_gone(cluster);
            }
            installed += 1;
        }
        assert!(installed > 0, "{page}");
    }
    the_container_of_the_roce_page_is_taken(cluster);
}

#[track_caller]
fn runs_where_it_is_labelled(cluster: &mut ControlPlane, page: &str) {
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    let pods = cluster.get("pods -n kube-system");
    assert_eq!(pods[0]["spec"]["nodeName"], "rdma-1", "{page}");
}

/// The API server accepts a pod with the page's container fields, which request rails and the right to lock memory.
fn the_container_of_the_roce_page_is_taken(cluster: &ControlPlane) {
    let mut blocks = pages::blocks("docs/get-started/roce-ipv4.md");
    blocks.retain(|it| it.lines[0].starts_with("resources:"));
    let [Block { lines, .. }] = &blocks[..] else {
        panic!("one block: {blocks:?}");
    };
    let fields = lines.join("\n    ");
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: job }}\nspec:\n  containers:\n  - name: job\n    \
         image: registry.example/job:1\n    {fields}\n"
    );
    let taken = cluster.apply(
        "apply -f - --dry-run=server --validate=strict -o json",
        &pod,
    );
    assert!(
        taken.contains("rdma/hca") && taken.contains("IPC_LOCK"),
        "{taken}"
    );
}

/// Builds the kustomizations of `docs/deploy.md`, each with its manifest, and checks their changes. The API server
/// accepts the result in a dry run.
pub(super) fn every_kustomization_works(cluster: &ControlPlane) {
    let page = text("docs/deploy.md");
    let blocks = page.split("```yaml\n").skip(1);
    let kustomizations = blocks.filter_map(|block| {
        let block = block.split("```").next()?;
        let manifest = block.strip_prefix("resources:\n- ")?.lines().next()?;
        Some((manifest, block))
    });
    let mut changes = vec![
        "image: registry.example/team/rdma-device-plugin:",
        r#"config.json: '{"mode":"hca"}'"#,
        "- SYS_ADMIN",
    ];
    for (manifest, text) in kustomizations {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).expect("written");
        };
        let applied = super::text(&format!("conf/manifests/{manifest}"));
        write(manifest, &applied);
        write("kustomization.yaml", text);
        write("config.json", r#"{"mode":"hca"}"#);
        let at = directory.path().display();
        let made = cluster.kubectl(&format!("kustomize {at}"));
        let change = changes.remove(0);
        assert!(made.contains(change) && !applied.contains(change), "{made}");
        cluster.kubectl(&format!("apply -k {at} --dry-run=server --validate=strict"));
    }
    assert!(changes.is_empty(), "not on the page: {changes:?}");
}
