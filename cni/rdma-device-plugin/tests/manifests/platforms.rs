// SPDX-License-Identifier: Apache-2.0
//! Tests of the chart's values for platforms. They override the values of `vf`, which uses all directories of a node.
//! Also tests OpenShift's constraints, which must allow exactly what the DaemonSets request.

use crate::{
    chain::{bin_dirs, installer, uninstall},
    cluster::{Cluster, cluster},
    root,
    wanted::ALL,
};
use conflist::Runtime;
use k8s_openapi::api::core::v1::{Capabilities, Container, SELinuxOptions};
use rdma_device_plugin::cli::Command;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::PathBuf};

pub(crate) const GKE: &str = "integration/manifests/rendered/platforms/gke.yaml";
pub(crate) const K0S: &str = "integration/manifests/rendered/platforms/k0s.yaml";
pub(crate) const K3S: &str = "integration/manifests/rendered/platforms/k3s.yaml";
pub(crate) const KUBESPRAY: &str = "integration/manifests/rendered/platforms/kubespray.yaml";
pub(crate) const MICROK8S: &str = "integration/manifests/rendered/platforms/microk8s.yaml";
pub(crate) const OPENSHIFT: &str = "integration/manifests/rendered/platforms/openshift.yaml";
pub(crate) const SELINUX: &str = "integration/manifests/rendered/platforms/selinux.yaml";
pub(crate) const TALOS: &str = "integration/manifests/rendered/platforms/talos.yaml";

pub(crate) const OPENSHIFT_REFUSED: &str =
    "integration/manifests/rendered/openshift/refused-pods.yaml";
pub(crate) const OPENSHIFT_UNINSTALL: &str =
    "integration/manifests/rendered/openshift/uninstall.yaml";

const VALUES: &str = "conf/helm/rdma-device-plugin/platforms";

/// Returns the node's directory of pods' namespaces. In containers this directory always has the same path.
pub(crate) fn netns_dir(file: &str) -> &'static str {
    match file {
        TALOS => "/var/run/netns",
        _ => "/run/netns",
    }
}

/// Paths that differ between platforms.
#[derive(Debug, PartialEq)]
struct Places {
    kubelet: PathBuf,
    binaries: Vec<PathBuf>,
    networks: PathBuf,
    cdi: PathBuf,
    runtime: Runtime,
    selinux: Option<String>,
}

fn places(cluster: &Cluster) -> Places {
    let arguments = cluster.arguments();
    let chain = cluster.conf().0.chain.expect("a chain");
    let (_, installer) = installer(cluster).expect("an installer");
    let Some(Command::Install(install)) = installer.command else {
        panic!("{}: no installer", cluster.file)
    };
    let context = cluster.pod().security_context.as_ref();
    let selinux = context.and_then(|it| it.se_linux_options.as_ref());
    Places {
        kubelet: arguments.kubelet_dir,
        binaries: bin_dirs(&install),
        networks: chain.conf_dir,
        cdi: arguments.cdi_dir,
        runtime: chain.runtime,
        selinux: selinux.and_then(|it| it.type_.clone()),
    }
}

fn usual() -> Places {
    Places {
        kubelet: "/var/lib/kubelet".into(),
        binaries: vec!["/opt/cni/bin".into()],
        networks: "/etc/cni/net.d".into(),
        cdi: "/var/run/cdi".into(),
        runtime: Runtime::Containerd,
        selinux: None,
    }
}

#[test]
fn each_platform_has_its_places() {
    let spc = || Some("spc_t".to_owned());
    let table = [
        (
            GKE,
            Places {
                binaries: vec!["/home/kubernetes/bin".into()],
                ..usual()
            },
        ),
        (
            K0S,
            Places {
                kubelet: "/var/lib/k0s/kubelet".into(),
                ..usual()
            },
        ),
        (
            K3S,
            Places {
                binaries: vec!["/var/lib/rancher/k3s/data/cni".into()],
                networks: "/var/lib/rancher/k3s/agent/etc/cni/net.d".into(),
                ..usual()
            },
        ),
        (KUBESPRAY, usual()),
        (
            MICROK8S,
            Places {
                kubelet: "/var/snap/microk8s/common/var/lib/kubelet".into(),
                binaries: vec!["/var/snap/microk8s/current/opt/cni/bin".into()],
                networks: "/var/snap/microk8s/current/args/cni-network".into(),
                ..usual()
            },
        ),
        (
            OPENSHIFT,
            Places {
                binaries: vec!["/var/lib/cni/bin".into()],
                networks: "/etc/kubernetes/cni/net.d".into(),
                runtime: Runtime::Crio { network: None },
                selinux: spc(),
                ..usual()
            },
        ),
        (
            SELINUX,
            Places {
                selinux: spc(),
                ..usual()
            },
        ),
        (
            TALOS,
            Places {
                cdi: "/var/cdi/dynamic".into(),
                ..usual()
            },
        ),
    ];
    for (file, expected) in &table {
        assert_eq!(places(&cluster(file)), *expected, "{file}");
    }
    let files = fs::read_dir(root().join(VALUES)).expect("the chart's platforms");
    assert_eq!(files.count(), table.len(), "files in {VALUES}");
}

/// `docs/platforms.md` links to each values file of a platform.
#[test]
fn the_page_leads_to_each_file() {
    let page = root().join("docs/platforms.md");
    let page = fs::read_to_string(&page).expect("the page of platforms");
    for file in fs::read_dir(root().join(VALUES)).expect("the chart's platforms") {
        let name = file.expect("an entry").file_name();
        let link = format!("](../{VALUES}/{})", name.to_string_lossy());
        assert!(page.contains(&link), "{link} is not on the page");
    }
}

/// Type of OpenShift's `security/v1`, because Kubernetes' crate does not have this type.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SecurityContextConstraints {
    api_version: String,
    kind: String,
    metadata: Value,
    allow_host_dir_volume_plugin: bool,
    #[serde(rename = "allowHostIPC")]
    allow_host_ipc: bool,
    allow_host_network: bool,
    #[serde(rename = "allowHostPID")]
    allow_host_pid: bool,
    allow_host_ports: bool,
    allow_privileged_container: bool,
    read_only_root_filesystem: bool,
    priority: Option<i32>,
    allow_privilege_escalation: Option<bool>,
    default_allow_privilege_escalation: Option<bool>,
    allowed_capabilities: Option<Vec<String>>,
    default_add_capabilities: Option<Vec<String>>,
    required_drop_capabilities: Option<Vec<String>>,
    volumes: Option<Vec<String>>,
    allowed_flex_volumes: Option<Vec<Value>>,
    allowed_unsafe_sysctls: Option<Vec<String>>,
    forbidden_sysctls: Option<Vec<String>>,
    seccomp_profiles: Option<Vec<String>>,
    users: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    #[serde(rename = "seLinuxContext")]
    se_linux_context: SELinuxContext,
    run_as_user: Strategy,
    fs_group: Strategy,
    supplemental_groups: Strategy,
}

#[derive(Debug, Deserialize, Serialize)]
struct SELinuxContext {
    #[serde(rename = "type")]
    strategy: String,
    #[serde(rename = "seLinuxOptions")]
    options: Option<SELinuxOptions>,
}

/// A strategy without the ranges of the API's type, because the tested constraints have none.
#[derive(Debug, Deserialize, Serialize)]
struct Strategy {
    #[serde(rename = "type")]
    strategy: String,
}

/// Returns true if the role allows an account to use constraints.
pub(crate) fn uses_constraints(role: &Value) -> bool {
    role["rules"][0]["resources"][0] == "securitycontextconstraints"
}

fn of_kind<'a>(cluster: &'a Cluster, kind: &str) -> Vec<&'a Value> {
    let objects = cluster.others.iter();
    objects.filter(|it| it["kind"] == kind).collect()
}

/// Returns all capabilities that the pod's containers add.
fn added(containers: &[&Container]) -> BTreeSet<String> {
    let contexts = containers
        .iter()
        .filter_map(|it| it.security_context.as_ref());
    contexts
        .flat_map(|it| {
            let Capabilities { add, drop } = it.capabilities.clone().unwrap_or_default();
            assert_eq!(drop, Some(vec!["ALL".to_owned()]));
            assert_eq!(it.privileged, Some(false));
            assert_eq!(it.allow_privilege_escalation, Some(false));
            assert_eq!(it.read_only_root_filesystem, Some(true));
            add.unwrap_or_default()
        })
        .collect()
}

#[test]
fn open_shift_allows_the_requested_rights_and_nothing_else() {
    let clusters = [
        cluster(OPENSHIFT),
        cluster(OPENSHIFT_REFUSED),
        uninstall(OPENSHIFT_UNINSTALL),
    ];
    for cluster in clusters {
        let file = cluster.file;
        let [constraints] = of_kind(&cluster, "SecurityContextConstraints")[..] else {
            panic!("{file}: not one of them")
        };
        let allowed: SecurityContextConstraints =
            serde_json::from_value(constraints.clone()).expect("OpenShift's");
        let pod = cluster.pod();
        let containers: Vec<&Container> = pod
            .containers
            .iter()
            .chain(pod.init_containers.iter().flatten())
            .collect();
        let capabilities = allowed.allowed_capabilities.expect("capabilities");
        let unique: BTreeSet<String> = capabilities.iter().cloned().collect();
        assert_eq!(unique.len(), capabilities.len(), "{file}: {capabilities:?}");
        assert_eq!(unique, added(&containers), "{file}");
        assert_eq!(
            allowed.required_drop_capabilities.as_deref(),
            Some(&["ALL".to_owned()][..])
        );
        assert!(
            allowed.read_only_root_filesystem && allowed.allow_host_network,
            "{file}"
        );
        assert!(
            !allowed.allow_privileged_container && !allowed.allow_host_ipc,
            "{file}"
        );
        assert!(!allowed.allow_host_ports, "{file}: no port is declared");
        assert_eq!(allowed.allow_privilege_escalation, Some(false), "{file}");
        assert_eq!(allowed.allow_host_pid, pod.host_pid == Some(true), "{file}");
        assert_eq!(
            allowed.seccomp_profiles.as_deref(),
            Some(&["runtime/default".to_owned()][..])
        );
        assert_eq!(allowed.se_linux_context.strategy, "RunAsAny");
        let selinux = pod.security_context.as_ref();
        let selinux = selinux.and_then(|it| it.se_linux_options.as_ref());
        assert_eq!(selinux.and_then(|it| it.type_.as_deref()), Some("spc_t"));
        let mut kinds = BTreeSet::new();
        for volume in pod.volumes.iter().flatten() {
            let volume = serde_json::to_value(volume).expect("JSON");
            let fields = volume.as_object().expect("fields").keys();
            kinds.extend(fields.filter(|it| *it != "name").cloned());
        }
        let volumes = allowed.volumes.expect("volumes").into_iter();
        let volumes: BTreeSet<String> = volumes.collect();
        assert!(kinds.is_subset(&volumes), "{file}: {kinds:?}");
        assert_eq!(volumes.contains("projected"), kinds.contains("projected"));
        assert!(
            volumes.iter().all(|it| it != "*" && it != "secret"),
            "{file}"
        );
        // the account that may use the constraints
        let account = pod.service_account_name.as_deref().expect("an account");
        let made = of_kind(&cluster, "ServiceAccount");
        assert_eq!(made.len(), 1, "{file}: {made:?}");
        assert_eq!(made[0]["metadata"]["name"], account, "{file}");
        let mut roles = of_kind(&cluster, "ClusterRole");
        roles.retain(|it| uses_constraints(it));
        let [role] = roles[..] else {
            panic!("{file}: {roles:?}")
        };
        let name = &constraints["metadata"]["name"];
        let rules = json!([{
            "apiGroups": ["security.openshift.io"],
            "resources": ["securitycontextconstraints"],
            "resourceNames": [name],
            "verbs": ["use"],
        }]);
        assert_eq!(role["rules"], rules, "{file}");
        let [binding] = of_kind(&cluster, "RoleBinding")[..] else {
            panic!("{file}: no binding")
        };
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        let subjects =
            json!([{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]);
        assert_eq!(binding["subjects"], subjects, "{file}");
    }
}

#[test]
fn there_are_constraints_on_open_shift_only() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let found = of_kind(&cluster, "SecurityContextConstraints").len();
        let expected = [OPENSHIFT, OPENSHIFT_REFUSED].contains(&wanted.file);
        assert_eq!(found, usize::from(expected), "{}", wanted.file);
    }
}
