// SPDX-License-Identifier: Apache-2.0
//! A DaemonSet's pod on this node. It has only the properties of its manifest, translated as kubelet does
//! (`pkg/kubelet/kuberuntime`, `pkg/volume` of Kubernetes).

use super::{
    ContainerRuntime,
    cri::Cri,
    manifest::{Container, Manifest, PodSpec, Probe, Volume, VolumeMount},
    pod::namespaces,
};
use cri_api::{
    Capability, ContainerConfig, ContainerMetadata, ContainerState, CreateContainerRequest,
    ImageSpec, Int64Value, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount,
    MountPropagation, PodSandboxConfig, PodSandboxMetadata, SecurityProfile,
    security_profile::ProfileType,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Time limit for an init container, and for a line in the daemon's log, in an emulated machine.
const TO_PREPARE: Duration = Duration::from_secs(240);

/// `defaultMaskedPaths` and `defaultReadonlyPaths` of Kubernetes (`pkg/securitycontext`).
const MASKED: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// OOM score that kubelet gives to a pod of `system-node-critical` (`pkg/kubelet/qos`).
const NODE_CRITICAL: i64 = -997;

/// A running pod of a DaemonSet.
#[derive(Debug)]
pub struct DaemonPod {
    manifest: Manifest,
    sandbox: String,
    logs: PathBuf,
    containers: Vec<(Container, String)>,
    cri: Cri,
}

/// The error that a container has ended. Kubelet would restart it later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The container's exit status.
    pub code: i32,
    /// Output of the program.
    pub output: String,
}

impl ContainerRuntime {
    /// Runs the manifest's pod under the name `name`. The runtime already has its images. Returns the pod, and the
    /// output of its init containers. Removes the pod if an init container fails.
    #[track_caller]
    pub fn daemon_pod(
        &self,
        manifest: &Manifest,
        name: &str,
    ) -> Result<(DaemonPod, String), Ended> {
        let config = sandbox(manifest, name);
        let sandbox = self.cri().run_sandbox(&config);
        let sandbox = sandbox.unwrap_or_else(|status| panic!("{name}: {}", status.message()));
        let mut pod = DaemonPod {
            manifest: manifest.clone(),
            sandbox,
            logs: config.log_directory.clone().into(),
            containers: vec![],
            cri: self.cri().clone(),
        };
        let mut output = String::new();
        for container in &manifest.pod().init_containers {
            let id = pod.start(container, &config);
            let code = pod.ended(&id);
            output += &pod.log(&container.name);
            if code != 0 {
                pod.remove();
                return Err(Ended { code, output });
            }
        }
        for container in &manifest.pod().containers {
            let id = pod.start(container, &config);
            pod.containers.push((container.clone(), id));
        }
        Ok((pod, output))
    }
}

impl DaemonPod {
    #[track_caller]
    fn start(&self, container: &Container, sandbox: &PodSandboxConfig) -> String {
        let request = CreateContainerRequest {
            pod_sandbox_id: self.sandbox.clone(),
            config: Some(self.config(container, sandbox)),
            sandbox_config: Some(sandbox.clone()),
        };
        fs::create_dir_all(self.logs.join(&container.name)).expect("the log's directory");
        let started = self.cri.start(request);
        started.unwrap_or_else(|status| panic!("{}: {}", container.name, status.message()))
    }

    /// Waits until the container has ended, and returns its exit status.
    #[track_caller]
    fn ended(&self, id: &str) -> i32 {
        let end = Instant::now() + TO_PREPARE;
        loop {
            let (status, _) = self.cri.container_status(id).expect("it is known");
            if status.state() == ContainerState::ContainerExited {
                return status.exit_code;
            }
            assert!(Instant::now() < end, "it runs longer than {TO_PREPARE:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn config(&self, container: &Container, sandbox: &PodSandboxConfig) -> ContainerConfig {
        let pod = self.manifest.pod();
        let uid = sandbox.metadata.as_ref().map_or("", |it| &it.uid);
        let volume = |mount: &VolumeMount| {
            let volume = pod.volumes.iter().find(|it| it.name == mount.name);
            let volume = volume.unwrap_or_else(|| panic!("there is no volume {}", mount.name));
            Mount {
                container_path: mount.mount_path.clone(),
                host_path: self.on_node(volume, uid).display().to_string(),
                readonly: mount.read_only,
                propagation: propagation(mount).into(),
            }
        };
        ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: container.name.clone(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: container.image.clone(),
                user_specified_image: container.image.clone(),
            }),
            args: container.args.clone(),
            mounts: container.volume_mounts.iter().map(volume).collect(),
            log_path: log_path(&container.name),
            linux: Some(LinuxContainerConfig {
                resources: Some(resources(pod, container)),
                security_context: Some(rights(pod, container)),
            }),
            ..ContainerConfig::default()
        }
    }

    /// Makes a volume as kubelet does, and returns its path on the node.
    #[track_caller]
    fn on_node(&self, volume: &Volume, uid: &str) -> PathBuf {
        let of_pod = Path::new("/var/lib/kubelet/pods").join(uid).join("volumes");
        match (&volume.host_path, &volume.config_map, &volume.empty_dir) {
            (Some(host), None, None) => {
                let path = PathBuf::from(&host.path);
                match host.r#type.as_str() {
                    "Directory" => assert!(path.is_dir(), "{path:?} is no directory"),
                    "DirectoryOrCreate" => fs::create_dir_all(&path).expect("a directory"),
                    other => panic!("{}: unknown type of hostPath: {other}", volume.name),
                }
                path
            }
            (None, None, Some(_)) => {
                let path = of_pod.join("kubernetes.io~empty-dir").join(&volume.name);
                fs::create_dir_all(&path).expect("a directory");
                path
            }
            (None, Some(named), None) => {
                let map = self.manifest.config_map.as_ref().expect("a ConfigMap");
                assert_eq!(map.metadata.name, named.name);
                let path = of_pod.join("kubernetes.io~configmap").join(&volume.name);
                if !path.exists() {
                    write_atomically(&path, &map.data);
                }
                path
            }
            _ => panic!("{} is of another kind", volume.name),
        }
    }

    /// Returns a container's output so far, without the runtime's time stamps.
    pub fn log(&self, container: &str) -> String {
        let text = fs::read_to_string(self.logs.join(log_path(container))).unwrap_or_default();
        let lines = text.lines().map(|line| {
            // a line's fields: time, stream, mark of a complete line, text
            line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned() + "\n"
        });
        lines.collect()
    }

    /// Returns the pod's only container that is no init container.
    #[track_caller]
    fn main(&self) -> &(Container, String) {
        match self.containers.as_slice() {
            [one] => one,
            several => panic!("{} containers", several.len()),
        }
    }

    /// Returns the daemon's output so far.
    #[track_caller]
    pub fn output(&self) -> String {
        self.log(&self.main().0.name)
    }

    /// Waits until the container has logged `words`.
    ///
    /// # Errors
    /// The container ended before that.
    #[track_caller]
    pub fn wait_for_log(&self, words: &str) -> Result<(), Ended> {
        let end = Instant::now() + TO_PREPARE;
        loop {
            // reads the status before the log, because the log is complete when the runtime reports the end
            let (status, _) = self
                .cri
                .container_status(&self.main().1)
                .expect("it is known");
            let output = self.output();
            if output.contains(words) {
                return Ok(());
            }
            if status.state() == ContainerState::ContainerExited {
                let code = status.exit_code;
                return Err(Ended { code, output });
            }
            assert!(
                Instant::now() < end,
                "not within {TO_PREPARE:?}: {words:?}; {output}"
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the kernel's status of the daemon's process (`/proc/PID/status`), and the OCI configuration of its
    /// container.
    #[track_caller]
    pub fn process(&self) -> (String, Value) {
        let info = self.cri.container(&self.main().1).expect("it is known");
        let status = fs::read_to_string(format!("/proc/{}/status", info["pid"]));
        (status.expect("its status"), info["runtimeSpec"].clone())
    }

    /// Runs the liveness probe, and returns its result and output.
    #[track_caller]
    pub fn lives(&self) -> (bool, String) {
        self.ask(self.main().0.liveness_probe.as_ref().expect("a probe"))
    }

    /// Runs the readiness probe, and returns its result and output.
    #[track_caller]
    pub fn ready(&self) -> (bool, String) {
        self.ask(self.main().0.readiness_probe.as_ref().expect("a probe"))
    }

    /// Runs a probe. It also fails if the container does not run, or if the program exceeds its time limit.
    fn ask(&self, probe: &Probe) -> (bool, String) {
        let words: Vec<&str> = probe.exec.command.iter().map(String::as_str).collect();
        let limit = Duration::from_secs(probe.timeout_seconds);
        match self.cri.exec(&self.main().1, &words, limit) {
            Ok(ran) => (ran.code == 0, ran.output),
            Err(status) => (false, status.message().to_owned()),
        }
    }

    /// Removes the pod as kubelet does.
    #[track_caller]
    pub fn remove(self) {
        let pod = self.manifest.pod();
        let grace = Duration::from_secs(pod.termination_grace_period_seconds);
        for (container, id) in &self.containers {
            let stopped = self.cri.stop_container(id, grace);
            stopped.unwrap_or_else(|status| panic!("{}: {}", container.name, status.message()));
        }
        let removed = self.cri.remove(&self.sandbox);
        removed.unwrap_or_else(|status| panic!("{}", status.message()));
        // the next pod of this name begins a new log
        fs::remove_dir_all(&self.logs).expect("its logs");
    }
}

fn log_path(container: &str) -> String {
    format!("{container}/0.log")
}

fn sandbox(manifest: &Manifest, name: &str) -> PodSandboxConfig {
    let (set, pod) = (&manifest.daemon_set, manifest.pod());
    assert!(!pod.automount_service_account_token && !pod.enable_service_links);
    let (namespace, uid) = (set.metadata.namespace.clone(), format!("uid-of-{name}"));
    PodSandboxConfig {
        log_directory: format!("/var/log/pods/{namespace}_{name}_{uid}"),
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.clone(),
            namespace,
            attempt: 0,
        }),
        labels: set
            .spec
            .template
            .metadata
            .labels
            .clone()
            .into_iter()
            .collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("/kubepods/burstable/pod{uid}"),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: namespaces(pod.host_network),
                seccomp: Some(seccomp(pod)),
            }),
        }),
        ..PodSandboxConfig::default()
    }
}

fn seccomp(pod: &PodSpec) -> SecurityProfile {
    let profile_type = match pod.security_context.seccomp_profile.r#type.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Unconfined" => ProfileType::Unconfined,
        other => panic!("unknown seccomp profile {other}"),
    };
    SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: String::new(),
    }
}

fn rights(pod: &PodSpec, container: &Container) -> LinuxContainerSecurityContext {
    let context = &container.security_context;
    let texts = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect();
    LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: context.capabilities.add.clone(),
            drop_capabilities: context.capabilities.drop.clone(),
        }),
        privileged: context.privileged,
        namespace_options: namespaces(pod.host_network),
        run_as_user: Some(Int64Value {
            value: context.run_as_user,
        }),
        readonly_rootfs: context.read_only_root_filesystem,
        no_new_privs: !context.allow_privilege_escalation,
        masked_paths: texts(&MASKED),
        readonly_paths: texts(&READ_ONLY),
        seccomp: Some(seccomp(pod)),
    }
}

/// Returns a container's resources. CPU shares are computed like `MilliCPUToShares` (`pkg/kubelet/cm`).
#[track_caller]
fn resources(pod: &PodSpec, container: &Container) -> LinuxContainerResources {
    let limit = &container.resources.limits.memory;
    let mebibytes = limit
        .strip_suffix("Mi")
        .and_then(|it| it.parse::<i64>().ok());
    let mebibytes = mebibytes.unwrap_or_else(|| panic!("the memory limit {limit} is not in Mi"));
    let request = &container.resources.requests.cpu;
    let milli = request
        .strip_suffix('m')
        .and_then(|it| it.parse::<i64>().ok());
    let milli = milli.unwrap_or_else(|| panic!("the CPU request {request} is not in millicores"));
    assert_eq!(pod.priority_class_name, "system-node-critical");
    LinuxContainerResources {
        cpu_shares: (milli * 1024 / 1000).max(2),
        memory_limit_in_bytes: mebibytes << 20,
        oom_score_adj: NODE_CRITICAL,
    }
}

#[track_caller]
fn propagation(mount: &VolumeMount) -> MountPropagation {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => MountPropagation::PropagationPrivate,
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some(other) => panic!("{}: {other} is not for a daemon", mount.name),
    }
}

/// Writes files as links through `..data`, so that all of them change in one step (`AtomicWriter` in
/// `pkg/volume/util`).
#[track_caller]
fn write_atomically<'a>(path: &Path, files: impl IntoIterator<Item = (&'a String, &'a String)>) {
    let version = path.join("..2026_01_01_00_00_00.1");
    fs::create_dir_all(&version).expect("a directory");
    symlink(version.file_name().expect("a name"), path.join("..data")).expect("a link");
    for (name, text) in files {
        fs::write(version.join(name), text).expect("a file");
        symlink(Path::new("..data").join(name), path.join(name)).expect("a link");
    }
}
