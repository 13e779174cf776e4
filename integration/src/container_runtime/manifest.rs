// SPDX-License-Identifier: Apache-2.0
//! A DaemonSet and its ConfigMap, read from `conf/manifests`. Reading fails at an unknown field, so that a new field of
//! a manifest is either translated in [`super::daemon_set`] or ignored by intent.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// Objects of one file.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The daemon.
    pub daemon_set: DaemonSet,
    /// The manifest's configuration, by file name. `None` for `uninstall`.
    pub config_map: Option<ConfigMap>,
}

/// ConfigMap of `v1`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMap {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The ConfigMap's name.
    pub metadata: Metadata,
    /// The ConfigMap's files.
    pub data: BTreeMap<String, String>,
}

/// DaemonSet of `apps/v1`. Fields for the scheduler and fields about other nodes are ignored.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonSet {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The DaemonSet's name.
    pub metadata: Metadata,
    /// Specification.
    pub spec: DaemonSetSpec,
}

/// Specification of a DaemonSet.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonSetSpec {
    #[serde(rename = "selector")]
    _selector: Value,
    #[serde(rename = "updateStrategy")]
    _update_strategy: Value,
    #[serde(default, rename = "minReadySeconds")]
    _min_ready_seconds: u32,
    /// The DaemonSet's pods.
    pub template: Template,
}

/// Template from which pods are made.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Template {
    /// The pod's labels.
    pub metadata: Metadata,
    /// Specification of the pod.
    pub spec: PodSpec,
}

/// Name and namespace of an object.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Name. Empty in a template.
    #[serde(default)]
    pub name: String,
    /// Namespace. Empty in a template.
    #[serde(default)]
    pub namespace: String,
    #[serde(default, rename = "annotations")]
    _annotations: Value,
    /// Labels. The runtime receives them.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Specification of a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSpec {
    #[serde(rename = "nodeSelector")]
    _node_selector: Value,
    #[serde(rename = "affinity")]
    _affinity: Value,
    #[serde(rename = "tolerations")]
    _tolerations: Value,
    /// False: no token is mounted.
    pub automount_service_account_token: bool,
    /// False: the environment has no variables about services.
    pub enable_service_links: bool,
    /// Containers that keep running.
    pub containers: Vec<Container>,
    /// Containers that must end before the other containers start.
    #[serde(default)]
    pub init_containers: Vec<Container>,
    /// True if the pod uses the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// Priority class, which decides the order of eviction.
    pub priority_class_name: String,
    /// Security settings of all containers.
    pub security_context: PodSecurity,
    /// Seconds between SIGTERM and SIGKILL.
    pub termination_grace_period_seconds: u64,
    /// Volumes that containers mount.
    #[serde(default)]
    pub volumes: Vec<Volume>,
}

/// Security settings of a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSecurity {
    /// Permitted system calls.
    pub seccomp_profile: SeccompProfile,
}

/// Permitted system calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SeccompProfile {
    /// `RuntimeDefault` or `Unconfined`.
    pub r#type: String,
}

/// A container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Container {
    #[serde(default, rename = "imagePullPolicy")]
    _image_pull_policy: String,
    /// Ports. Only the scheduler reads them, because the pod uses the node's network.
    #[serde(default, rename = "ports")]
    _ports: Value,
    /// The container's name.
    pub name: String,
    /// The container's image.
    pub image: String,
    /// Arguments of the image's program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Liveness probe: if it fails, kubelet restarts the container.
    pub liveness_probe: Option<Probe>,
    /// Readiness probe.
    pub readiness_probe: Option<Probe>,
    /// Limits and requests.
    pub resources: Resources,
    /// Privileges.
    pub security_context: Security,
    /// Mounts of the node's files.
    #[serde(default)]
    pub volume_mounts: Vec<VolumeMount>,
}

/// A probe of kubelet.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    #[serde(default, rename = "failureThreshold")]
    _failure_threshold: u32,
    #[serde(default, rename = "initialDelaySeconds")]
    _initial_delay_seconds: u32,
    #[serde(default, rename = "periodSeconds")]
    _period_seconds: u32,
    /// Command to run in the container.
    pub exec: Exec,
    /// Time limit for the probe, in seconds.
    pub timeout_seconds: u64,
}

/// Program to run in a container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exec {
    /// Program and arguments.
    pub command: Vec<String>,
}

/// Resources of a container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// Limits.
    pub limits: Memory,
    /// Requests.
    pub requests: Shares,
}

/// Limit of memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Memory {
    /// Memory, as a quantity.
    pub memory: String,
}

/// Request for CPU time.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shares {
    /// Memory. Only the scheduler reads it.
    #[serde(rename = "memory")]
    _memory: String,
    /// CPU time, as a quantity.
    pub cpu: String,
}

/// Privileges of a container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Security {
    /// False: the process gets `no_new_privs`.
    pub allow_privilege_escalation: bool,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// True if the container has all privileges.
    pub privileged: bool,
    /// True if the container's root file system is read-only.
    pub read_only_root_filesystem: bool,
    /// User of the process.
    pub run_as_user: i64,
}

/// Changes of the runtime's default set of capabilities.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Capabilities {
    /// Added capabilities.
    #[serde(default)]
    pub add: Vec<String>,
    /// Removed capabilities.
    #[serde(default)]
    pub drop: Vec<String>,
}

/// Mount of a volume in a container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMount {
    /// Name of the volume.
    pub name: String,
    /// Path in the container.
    pub mount_path: String,
    /// True if the mount is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// `HostToContainer`: the container also sees later mounts below the path.
    pub mount_propagation: Option<String>,
}

/// Volume that containers can mount.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// The volume's name.
    pub name: String,
    /// Directory of the node.
    pub host_path: Option<HostPath>,
    /// Files of a ConfigMap.
    pub config_map: Option<MapName>,
    /// Directory that exists as long as the pod.
    pub empty_dir: Option<EmptyDir>,
}

/// Directory that exists as long as the pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmptyDir {}

/// Directory of the node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPath {
    /// Path.
    pub path: String,
    /// Requirement on the path: `Directory` or `DirectoryOrCreate`.
    pub r#type: String,
}

/// Name of a ConfigMap.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MapName {
    /// The name.
    pub name: String,
}

impl Manifest {
    /// Reads a file of the repository, such as `conf/manifests/lingjun.yaml`.
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
                other => panic!("{file}: unknown kind {other:?}"),
            }
        }
        Self {
            daemon_set: daemon_set.unwrap_or_else(|| panic!("{file}: no DaemonSet")),
            config_map,
        }
    }

    /// Returns the manifest with `image` in place of our image.
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

    /// Returns the manifest with the field `key` of `chain` set to `value` in the daemon's configuration.
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

    /// Returns the specification of the pod.
    pub fn pod(&self) -> &PodSpec {
        &self.daemon_set.spec.template.spec
    }
}

#[track_caller]
fn typed<T: DeserializeOwned>(file: &str, object: Value) -> T {
    serde_json::from_value(object).unwrap_or_else(|error| panic!("{file}: {error}"))
}
