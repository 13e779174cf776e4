// SPDX-License-Identifier: Apache-2.0
//! A pod's life: kubelet's steps from the allocation to the end of the containers.

use super::{
    ContainerRuntime, TOOLS,
    cri::{Cri, Ran, kill},
};
use crate::{Netns, kubelet::Allocation, lab::has_systemd, wait};
use cri_api::{
    Capability, CdiDevice, ContainerConfig, ContainerMetadata, CreateContainerRequest, Device,
    ImageSpec, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerSecurityContext,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::Status;

/// Root of the host's cgroup hierarchy.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Time limit for a program in a container, and for the removal of a cgroup.
const LIMIT: Duration = Duration::from_secs(240);

/// Returns kubelet's default namespaces of a sandbox and of each container.
pub(super) fn namespaces(host_network: bool) -> Option<NamespaceOption> {
    let network = match host_network {
        true => NamespaceMode::Node,
        false => NamespaceMode::Pod,
    };
    Some(NamespaceOption {
        network: network.into(),
        pid: NamespaceMode::Container.into(),
        ipc: NamespaceMode::Pod.into(),
    })
}

/// Specification of a pod to run, `default/<name>`.
#[derive(Clone, Debug)]
pub struct PodSpec {
    name: String,
    uid: String,
    host_network: bool,
    annotations: Vec<(String, String)>,
    containers: Vec<(String, Vec<Allocation>)>,
    mounts: Vec<PathBuf>,
    command: Vec<String>,
    user: Option<i64>,
}

impl PodSpec {
    /// Returns the specification of a pod without containers.
    pub fn new(name: &str) -> Self {
        let digits = name.bytes().flat_map(|it| [it >> 4, it & 15]);
        let uid = digits.filter_map(|it| char::from_digit(it.into(), 16));
        Self {
            name: name.to_owned(),
            uid: uid.collect(),
            host_network: false,
            annotations: vec![],
            containers: vec![],
            mounts: vec![],
            command: vec![],
            user: None,
        }
    }

    /// Adds a container and its allocations.
    pub fn container(mut self, name: &str, given: &[Allocation]) -> Self {
        self.containers.push((name.to_owned(), given.to_vec()));
        self
    }

    /// Sets `hostNetwork: true`.
    pub fn host_network(mut self) -> Self {
        self.host_network = true;
        self
    }

    /// Adds an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets the containers' program, a line of shell, and its user, who has no capabilities.
    pub fn program(mut self, line: &str, user: i64) -> Self {
        self.command = ["sh", "-c", line].map(str::to_owned).to_vec();
        self.user = Some(user);
        self
    }

    /// Mounts a file or directory of the node at the same path, read-only.
    pub fn mount(mut self, path: &Path) -> Self {
        self.mounts.push(path.to_owned());
        self
    }

    /// Runs the pod's sandbox, and returns the sandbox's id. Any thread may call this function.
    pub fn run_sandbox(&self, cri: &Cri) -> Result<String, Status> {
        cri.run_sandbox(&self.sandbox())
    }

    /// Returns the path of the pod's cgroup below the hierarchy's root, as kubelet's cgroup driver makes it, and the
    /// name by which a runtime refers to it.
    fn cgroup(&self) -> (String, String) {
        let uid = &self.uid;
        if has_systemd() {
            let slice = format!("kubepods-pod{uid}.slice");
            return (format!("kubepods.slice/{slice}"), slice);
        }
        let path = format!("kubepods/pod{uid}");
        let name = format!("/{path}");
        (path, name)
    }

    fn sandbox(&self) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: self.name.clone(),
                uid: self.uid.clone(),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: match self.host_network {
                true => String::new(),
                false => self.name.clone(),
            },
            annotations: self.annotations.iter().cloned().collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup().1,
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: namespaces(self.host_network),
                    ..LinuxSandboxSecurityContext::default()
                }),
            }),
            ..PodSandboxConfig::default()
        }
    }

    /// Translates the answers of device plugins into a container's configuration, as kubelet does
    /// (`pkg/kubelet/cm/devicemanager`, `deviceRunContainerOptions`).
    fn config(&self, name: &str, given: &[Allocation]) -> ContainerConfig {
        let answers = || given.iter().map(|it| &it.given);
        let devices = answers().flat_map(|it| &it.devices).map(|it| Device {
            container_path: it.container_path.clone(),
            host_path: it.host_path.clone(),
            permissions: it.permissions.clone(),
        });
        let names = answers().flat_map(|it| &it.cdi_devices);
        let names = names.map(|it| CdiDevice {
            name: it.name.clone(),
        });
        let envs = answers().flat_map(|it| &it.envs);
        let envs = envs.map(|(key, value)| KeyValue {
            key: key.clone(),
            value: value.clone(),
        });
        let given = answers().flat_map(|it| &it.mounts).map(|it| Mount {
            host_path: it.host_path.clone(),
            container_path: it.container_path.clone(),
            readonly: it.read_only,
            ..Mount::default()
        });
        let mounts = self.mounts.iter().map(|path| Mount {
            container_path: path.display().to_string(),
            host_path: path.display().to_string(),
            readonly: true,
            ..Mount::default()
        });
        ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            // `newContainerLabels()`, `pkg/kubelet/kuberuntime/labels.go`; CRI-O has them as annotations
            labels: [
                ("io.kubernetes.container.name", name),
                ("io.kubernetes.pod.name", &self.name),
                ("io.kubernetes.pod.namespace", "default"),
                ("io.kubernetes.pod.uid", &self.uid),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            image: Some(ImageSpec {
                image: TOOLS.to_owned(),
                user_specified_image: TOOLS.to_owned(),
            }),
            command: self.command.clone(),
            devices: devices.collect(),
            cdi_devices: names.collect(),
            envs: envs.collect(),
            mounts: mounts.chain(given).collect(),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    // containerd's default: without it, a test could not distinguish a device that the container must
                    // not open from a missing device node
                    capabilities: Some(Capability {
                        add_capabilities: vec!["MKNOD".into()],
                        ..Capability::default()
                    }),
                    namespace_options: namespaces(self.host_network),
                    run_as_user: self.user.map(|value| Int64Value { value }),
                    ..LinuxContainerSecurityContext::default()
                }),
                ..LinuxContainerConfig::default()
            }),
            ..ContainerConfig::default()
        }
    }
}

/// A running pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The pod's name.
    pub name: String,
    /// The pod's cgroup. `None`: kubelet has created the cgroup, and removes it.
    pub cgroup: Option<PathBuf>,
    /// The sandbox's id.
    pub sandbox: String,
    /// The pod's containers.
    pub containers: Vec<Container>,
    cri: Cri,
}

/// A running container.
#[derive(Clone, Debug)]
pub struct Container {
    /// The container's name.
    pub name: String,
    /// The container's id.
    pub id: String,
    cri: Cri,
}

impl ContainerRuntime {
    /// Runs the pod: the sandbox, then its containers. If a container does not start, removes the pod, as kubelet does
    /// sooner or later.
    pub fn run(&self, spec: &PodSpec) -> Result<Pod, Status> {
        self.run_asking(spec, |_| Ok(()))
    }

    /// Runs a pod like [`Self::run`]. Calls `may_start` for each allocation of a container when kubelet would call
    /// PreStartContainer: after the sandbox exists, and before the runtime makes the container
    /// (`generateContainerConfig` in `pkg/kubelet/kuberuntime`).
    pub fn run_asking(
        &self,
        spec: &PodSpec,
        may_start: impl Fn(&Allocation) -> Result<(), Status>,
    ) -> Result<Pod, Status> {
        let config = spec.sandbox();
        let sandbox = spec.run_sandbox(self.cri())?;
        let mut pod = Pod {
            name: spec.name.clone(),
            cgroup: Some(Path::new(CGROUPS).join(spec.cgroup().0)),
            sandbox,
            containers: vec![],
            cri: self.cri().clone(),
        };
        for (name, given) in &spec.containers {
            let request = CreateContainerRequest {
                pod_sandbox_id: pod.sandbox.clone(),
                config: Some(spec.config(name, given)),
                sandbox_config: Some(config.clone()),
            };
            let allowed = given.iter().try_for_each(&may_start);
            let id = match allowed.and_then(|()| self.cri().start(request)) {
                Ok(id) => id,
                Err(status) => {
                    // the caller gets the error of the start: an error of the removal is only printed
                    let removed = self.cri().remove(&pod.sandbox);
                    removed.unwrap_or_else(|status| println!("{}", status.message()));
                    return Err(status);
                }
            };
            pod.containers.push(Container {
                name: name.clone(),
                id,
                cri: self.cri().clone(),
            });
        }
        Ok(pod)
    }

    /// Runs a pod like [`Self::run`]. The pod must start.
    #[track_caller]
    pub fn pod(&self, spec: &PodSpec) -> Pod {
        let pod = self.run(spec);
        pod.unwrap_or_else(|status| panic!("{}: {}", spec.name, status.message()))
    }

    /// Returns a pod that kubelet itself runs on this runtime, with the containers' names and ids.
    pub fn of_kubelet(&self, name: &str, sandbox: &str, containers: &[(&str, &str)]) -> Pod {
        let container = |&(name, id): &(&str, &str)| Container {
            name: name.to_owned(),
            id: id.to_owned(),
            cri: self.cri().clone(),
        };
        Pod {
            name: name.to_owned(),
            cgroup: None,
            sandbox: sandbox.to_owned(),
            containers: containers.iter().map(container).collect(),
            cri: self.cri().clone(),
        }
    }

    /// Makes the sandbox of a pod, and cancels the call as soon as `enough` returns true. If the call succeeds before
    /// that, returns the sandbox's id.
    pub fn give_up(&self, spec: &PodSpec, enough: impl FnMut() -> bool) -> Result<String, Status> {
        self.cri().run_sandbox_until(&spec.sandbox(), enough)
    }
}

impl Pod {
    /// Returns the first container.
    #[track_caller]
    pub fn main(&self) -> &Container {
        self.containers.first().expect("the pod has a container")
    }

    /// Returns the pod's network namespace.
    #[track_caller]
    pub fn netns(&self) -> Netns {
        let (_, info) = self.cri.sandbox(&self.sandbox).expect("it is known");
        let all = info["runtimeSpec"]["linux"]["namespaces"].as_array();
        let mut all = all.into_iter().flatten();
        let path = all.find(|it| it["type"] == "network");
        let path = path.and_then(|it| it["path"].as_str());
        let path = path.unwrap_or_else(|| panic!("no network namespace: {info:#}"));
        Netns::existing(Path::new(path))
    }

    /// Returns the pod's addresses that the runtime reports to kubelet.
    #[track_caller]
    pub fn addresses(&self) -> Vec<String> {
        let (status, _) = self.cri.sandbox(&self.sandbox).expect("it is known");
        let network = status.network.unwrap_or_default();
        let others = network.additional_ips.into_iter().map(|it| it.ip);
        [network.ip].into_iter().chain(others).collect()
    }

    /// Sends SIGKILL to the containers' processes, and to the process that keeps the sandbox alive, if there is one.
    /// CRI-O needs no such process, because it keeps the namespaces itself.
    #[track_caller]
    pub fn kill(&self) {
        let containers = self.containers.iter().map(|container| {
            let info = self.cri.container(&container.id);
            info.expect("it is known")
        });
        let (_, sandbox) = self.cri.sandbox(&self.sandbox).expect("it is known");
        let keeper = Some(sandbox).filter(|it| !it["pid"].is_null());
        containers.chain(keeper).for_each(|info| kill(&info));
    }

    /// Returns true if the runtime reports no running container of the pod.
    #[track_caller]
    pub fn has_ended(&self) -> bool {
        self.containers.iter().all(|container| {
            let (status, _) = self
                .cri
                .container_status(&container.id)
                .expect("it is known");
            status.state() == cri_api::ContainerState::ContainerExited
        })
    }

    /// Returns true if the runtime reports the sandbox as ready.
    #[track_caller]
    pub fn is_ready(&self) -> bool {
        let (status, _) = self.cri.sandbox(&self.sandbox).expect("it is known");
        status.state() == cri_api::PodSandboxState::SandboxReady
    }

    /// Removes the pod as kubelet does.
    #[track_caller]
    pub fn remove(self) {
        let removed = self.cri.remove(&self.sandbox);
        removed.unwrap_or_else(|status| panic!("{}: {}", self.name, status.message()));
        if let Some(cgroup) = &self.cgroup {
            let gone = wait::within(LIMIT, || remove_cgroup(cgroup).is_ok());
            assert!(gone, "{cgroup:?}: not within {LIMIT:?}");
        }
    }
}

/// Removes a cgroup, and the cgroups below it.
fn remove_cgroup(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}

impl Container {
    /// Runs a line of shell in the container. Returns exit status and output. The shell is busybox's, which runs
    /// busybox's `ip` instead of iproute2's. [`Self::run`] runs iproute2's.
    #[track_caller]
    pub fn try_sh(&self, line: &str) -> Ran {
        self.exec(&["sh", "-c", line])
    }

    /// Runs a line of shell in the container, which must succeed. Returns its output.
    #[track_caller]
    pub fn sh(&self, line: &str) -> String {
        succeeded(self.try_sh(line), line)
    }

    /// Runs a command line, split at white space, in the container. It must succeed. Returns its output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        succeeded(self.exec(&words), line)
    }

    #[track_caller]
    fn exec(&self, words: &[&str]) -> Ran {
        let ran = self.cri.exec(&self.id, words, LIMIT);
        ran.unwrap_or_else(|status| panic!("{}: {words:?}: {}", self.name, status.message()))
    }

    /// Returns the device nodes in the container's `/dev/infiniband` in the order of their names: name, major, minor.
    #[track_caller]
    pub fn rdma_nodes(&self) -> Vec<(String, u64, u64)> {
        let line = "cd /dev/infiniband && for it in *; do \
                    printf '%s %d %d\\n' $it 0x$(stat -c %t $it) 0x$(stat -c %T $it); done";
        let output = self.sh(line);
        let node = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |word: &str| word.parse().expect("a number");
            (words[0].to_owned(), number(words[1]), number(words[2]))
        };
        let mut nodes: Vec<_> = output.lines().map(node).collect();
        nodes.sort();
        nodes
    }
}

/// Returns the output of a program that must succeed.
#[track_caller]
pub(super) fn succeeded(ran: Ran, line: &str) -> String {
    assert_eq!(ran.code, 0, "{line}: {}", ran.output);
    ran.output
}
