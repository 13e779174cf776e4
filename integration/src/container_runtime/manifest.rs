// SPDX-License-Identifier: Apache-2.0
//! A DaemonSet and its ConfigMap as `conf/manifests` has them. A field that is not translated in
//! [`super::daemon_set`] is none that can be read here: whoever puts one into a manifest has to say
//! what kubelet makes of it.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// One file's objects.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The daemon.
    pub daemon_set: DaemonSet,
    /// Its configuration, by file name; `uninstall` has none.
    pub config_map: Option<ConfigMap>,
}

/// `v1`, `ConfigMap`
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMap {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// Its files.
    pub data: BTreeMap<String, String>,
}

/// `apps/v1`, `DaemonSet`. What the scheduler reads, and what is about other nodes, is not looked at.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonSet {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// What it says.
    pub spec: DaemonSetSpec,
}

/// What a DaemonSet says.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonSetSpec {
    #[serde(rename = "selector")]
    _selector: Value,
    #[serde(rename = "updateStrategy")]
    _update_strategy: Value,
    #[serde(default, rename = "minReadySeconds")]
    _min_ready_seconds: u32,
    /// Its pods.
    pub template: Template,
}

/// A pod that is not yet one.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Template {
    /// Its labels.
    pub metadata: Metadata,
    /// What it says.
    pub spec: PodSpec,
}

/// Whose it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// A template has none.
    #[serde(default)]
    pub name: String,
    /// A template has none.
    #[serde(default)]
    pub namespace: String,
    #[serde(default, rename = "annotations")]
    _annotations: Value,
    /// Handed on to the runtime.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// A pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSpec {
    #[serde(rename = "nodeSelector")]
    _node_selector: Value,
    #[serde(rename = "affinity")]
    _affinity: Value,
    #[serde(rename = "tolerations")]
    _tolerations: Value,
    /// No token is mounted.
    pub automount_service_account_token: bool,
    /// No variables tell of services.
    pub enable_service_links: bool,
    /// What stays.
    pub containers: Vec<Container>,
    /// What runs to its end before that.
    #[serde(default)]
    pub init_containers: Vec<Container>,
    /// Whether it has the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// Who goes last when memory is short.
    pub priority_class_name: String,
    /// Of all containers.
    pub security_context: PodSecurity,
    /// Seconds between SIGTERM and SIGKILL.
    pub termination_grace_period_seconds: u64,
    /// What containers mount.
    #[serde(default)]
    pub volumes: Vec<Volume>,
}

/// Rights of a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSecurity {
    /// Which system calls there are.
    pub seccomp_profile: SeccompProfile,
}

/// Which system calls there are.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SeccompProfile {
    /// `RuntimeDefault`
    pub r#type: String,
}

/// A container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Container {
    #[serde(default, rename = "imagePullPolicy")]
    _image_pull_policy: String,
    /// The scheduler's, as the pod has the node's network.
    #[serde(default, rename = "ports")]
    _ports: Value,
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// What the image's program is called with.
    #[serde(default)]
    pub args: Vec<String>,
    /// Whether it is to be restarted.
    pub liveness_probe: Option<Probe>,
    /// Whether it works.
    pub readiness_probe: Option<Probe>,
    /// What it may use.
    pub resources: Resources,
    /// What it may do.
    pub security_context: Security,
    /// What it sees of the node.
    #[serde(default)]
    pub volume_mounts: Vec<VolumeMount>,
}

/// A question of kubelet's.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    #[serde(default, rename = "failureThreshold")]
    _failure_threshold: u32,
    #[serde(default, rename = "initialDelaySeconds")]
    _initial_delay_seconds: u32,
    #[serde(default, rename = "periodSeconds")]
    _period_seconds: u32,
    /// What is run in the container.
    pub exec: Exec,
    /// How long the answer may take, seconds.
    pub timeout_seconds: u64,
}

/// A program of the container's.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exec {
    /// It, and what it is called with.
    pub command: Vec<String>,
}

/// What a container may use.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// At most.
    pub limits: Memory,
    /// At least.
    pub requests: Shares,
}

/// At most.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Memory {
    /// A quantity.
    pub memory: String,
}

/// At least.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shares {
    /// The scheduler's.
    #[serde(rename = "memory")]
    _memory: String,
    /// A quantity.
    pub cpu: String,
}

/// What a container may do.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Security {
    /// False: `no_new_privs`.
    pub allow_privilege_escalation: bool,
    /// Of the runtime's default set, and beside it.
    pub capabilities: Capabilities,
    /// Everything.
    pub privileged: bool,
    /// Whether the image cannot be written to.
    pub read_only_root_filesystem: bool,
    /// Whose the process is.
    pub run_as_user: i64,
}

/// Of the runtime's default set, and beside it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Capabilities {
    /// Beside it.
    #[serde(default)]
    pub add: Vec<String>,
    /// Not even these.
    #[serde(default)]
    pub drop: Vec<String>,
}

/// What a container sees of a volume.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMount {
    /// The volume's.
    pub name: String,
    /// Where in the container.
    pub mount_path: String,
    /// Whether it cannot be written to.
    #[serde(default)]
    pub read_only: bool,
    /// `HostToContainer`: what is mounted below it later is seen too.
    pub mount_propagation: Option<String>,
}

/// Something that containers mount.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// A directory of the node.
    pub host_path: Option<HostPath>,
    /// A ConfigMap's files.
    pub config_map: Option<MapName>,
    /// A directory that comes and goes with the pod.
    pub empty_dir: Option<EmptyDir>,
}

/// A directory that comes and goes with the pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmptyDir {}

/// A directory of the node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPath {
    /// Where.
    pub path: String,
    /// `Directory`, `DirectoryOrCreate`
    pub r#type: String,
}

/// A ConfigMap's name.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MapName {
    /// The name.
    pub name: String,
}

impl Manifest {
    /// What is in a file of the repository, `conf/manifests/lingjun.yaml`.
    #[track_caller]
    pub fn read(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut daemon_set = None;
        let mut config_map = None;
        for object in objects.into_iter().filter(|it| !it.is_null()) {
            match object["kind"].as_str() {
                Some("DaemonSet") => daemon_set = Some(typed(file, object)),
                Some("ConfigMap") => config_map = Some(typed(file, object)),
                other => panic!("{file}: nobody makes a {other:?} here"),
            }
        }
        Self {
            daemon_set: daemon_set.unwrap_or_else(|| panic!("{file}: no DaemonSet")),
            config_map,
        }
    }

    /// The same with another image of ours.
    pub fn with_our_image(&self, image: &str) -> Self {
        let mut manifest = self.clone();
        let pod = &mut manifest.daemon_set.spec.template.spec;
        for container in pod.containers.iter_mut().chain(&mut pod.init_containers) {
            if container.image.starts_with("rdma-device-plugin:") {
                container.image = image.to_owned();
            }
        }
        manifest
    }

    /// The same with `chain.KEY`, in its configuration.
    #[track_caller]
    pub fn with_chain(&self, key: &str, value: &str) -> Self {
        let mut manifest = self.clone();
        let files = manifest.config_map.as_mut().map(|it| &mut it.data);
        let text = files.and_then(|it| it.get_mut("config.json"));
        let text = text.expect("a configuration");
        let mut configuration: Value = serde_json::from_str(text).expect("JSON");
        configuration["chain"][key] = value.into();
        *text = configuration.to_string();
        manifest
    }

    /// The pod.
    pub fn pod(&self) -> &PodSpec {
        &self.daemon_set.spec.template.spec
    }
}

#[track_caller]
fn typed<T: DeserializeOwned>(file: &str, object: Value) -> T {
    serde_json::from_value(object).unwrap_or_else(|error| panic!("{file}: {error}"))
}
