// SPDX-License-Identifier: Apache-2.0
//! `rdma-cni oci-hook`: the hook of CDI entries that sets a container's limits. The runtime runs it on the host, with
//! the container's state on standard input (`createRuntime`, OCI runtime specification, `runtime.md`).
//!
//! | argument | limit |
//! |---|---|
//! | `--memlock=` | locked memory: the hook raises the limit, and the container's program inherits it under any user id |
//! | `--rdma-handles=`, `--rdma-objects=` | RDMA objects of the pod's cgroup on each RDMA device: the hook lowers the limit |
//!
//! The hook records a container with limits of RDMA objects in `--state-dir=`, because DEL and the daemon must lift
//! the limits before the pod's cgroup ends ([`rdma_resources::limited`]).
//!
//! If the hook fails, the container does not start. Without the limits, the container could use up other containers'
//! objects, or later fail to register memory, with an error that does not name the limit. Kubelet shows the hook's
//! error and tries again.

mod pod_cgroup;

use nix::unistd::Pid;
use pod_cgroup::{CgroupError, Cgroups, find};
use rdma_netns::linux::raise_locked_memory;
use rdma_resources::{
    FileError, HookArguments, LimitedContainers, Memlock, RdmaLimits,
    hook::HOOK,
    limited::{CGROUPS, FORMAT, LimitedContainer, boot_id},
};
use serde::Deserialize;
use serde_json::Value;
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Reason why the hook ends the container's start.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(
        "{HOOK} takes --memlock=unlimited or --memlock=BYTES, --rdma-handles=NUMBER, --rdma-objects=NUMBER and \
         --state-dir=DIRECTORY, and has {0:?}"
    )]
    Arguments(Vec<String>),
    #[error("{HOOK} cannot read the container's state from standard input: {0}")]
    State(#[from] serde_json::Error),
    #[error(
        "cannot raise the limit of locked memory of the container's process {process} to {to}: {source}; give the \
         runtime CAP_SYS_RESOURCE, or remove memlock from the daemon's configuration and delete the pod"
    )]
    Limit {
        process: i32,
        to: Memlock,
        source: io::Error,
    },
    #[error(
        "the runtime itself limits the locked memory of the container to {own} bytes, below memlock ({to}): raise that \
         limit, or remove it (CRI-O: default_ulimits; containerd: base_runtime_spec)"
    )]
    OwnLimit { own: u64, to: Memlock },
    #[error("cannot read the container's specification {path:?}: {source}")]
    Specification { path: PathBuf, source: io::Error },
    #[error(
        "cannot limit the use of RDMA devices by the container's process {process}: {source}; run the node with \
         cgroup version 2 and the controller rdma, or remove limits from the daemon's configuration and delete the \
         pod"
    )]
    Rdma { process: i32, source: CgroupError },
}

/// Fields of a container's state that the hook reads.
#[derive(Deserialize)]
struct State {
    pid: i32,
    /// Directory with the container's specification.
    bundle: PathBuf,
    /// The container's id in the runtime.
    #[serde(default)]
    id: String,
    #[serde(default)]
    annotations: Value,
}

impl State {
    /// Returns the value of the first annotation in `names` that exists. Returns an empty text if none exists.
    fn name(&self, names: [&str; 2]) -> String {
        let mut values = names.iter().filter_map(|it| self.annotations[*it].as_str());
        values.next().unwrap_or_default().to_owned()
    }

    /// Returns the record of the container that has these cgroups.
    fn record(&self, cgroups: Cgroups, limits: RdmaLimits) -> Result<LimitedContainer, FileError> {
        Ok(LimitedContainer {
            format: FORMAT,
            boot_id: boot_id()?,
            // CRI-O's annotations come first, because CRI-O sets them itself, and a pod under CRI-O can set
            // containerd's
            namespace: self.name([
                "io.kubernetes.pod.namespace",
                "io.kubernetes.cri.sandbox-namespace",
            ]),
            pod: self.name(["io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name"]),
            cgroup: cgroups.container,
            pod_cgroup: cgroups.pod,
            limits,
        })
    }
}

/// Runs the hook with its `arguments`. Writes an error to standard error, which the runtime reads.
pub fn run(arguments: &[String], stdin: &mut dyn Read) -> ExitCode {
    match set(arguments, stdin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma-cni: {error}");
            ExitCode::FAILURE
        }
    }
}

fn set(arguments: &[String], stdin: &mut dyn Read) -> Result<(), HookError> {
    let parsed = HookArguments::of(arguments);
    let HookArguments { limits, state_dir } =
        parsed.ok_or_else(|| HookError::Arguments(arguments.to_vec()))?;
    let state: State = serde_json::from_reader(stdin)?;
    let pid = state.pid;
    if let Some(to) = limits.memlock {
        outlasts_specification(&state.bundle, to)?;
        raise(pid, to)?;
    }
    let Some(state_dir) = state_dir.filter(|_| !limits.rdma.is_empty()) else {
        return Ok(());
    };
    limit(&state, &state_dir, limits.rdma).map_err(|source| HookError::Rdma {
        process: pid,
        source,
    })
}

fn limit(state: &State, state_dir: &Path, limits: RdmaLimits) -> Result<(), CgroupError> {
    let root = Path::new(CGROUPS);
    let cgroups = find(root, &cgroup(&state.pid.to_string())?, &cgroup("self")?)?;
    let record = state.record(cgroups, limits)?;
    Ok(LimitedContainers::new(state_dir, root).limit(&state.id, &record)?)
}

/// Returns an error if the container's specification has a lower limit, because runc sets that limit after its hooks
/// (`setupRlimits()`, `libcontainer/process_linux.go`).
fn outlasts_specification(bundle: &Path, to: Memlock) -> Result<(), HookError> {
    let path = bundle.join("config.json");
    let specification = fs::read(&path)
        .and_then(|text| Ok(serde_json::from_slice::<Value>(&text)?))
        .map_err(|source| HookError::Specification { path, source })?;
    let limits = specification["process"]["rlimits"].as_array();
    let mut own = limits.into_iter().flatten();
    let own = own.find(|it| it["type"] == "RLIMIT_MEMLOCK");
    match own.and_then(|it| it["soft"].as_u64()) {
        Some(own) if own < to.bytes().unwrap_or(u64::MAX) => Err(HookError::OwnLimit { own, to }),
        _ => Ok(()),
    }
}

/// Returns the content of `/proc/PROCESS/cgroup`.
fn cgroup(process: &str) -> Result<String, CgroupError> {
    let path = Path::new("/proc").join(process).join("cgroup");
    let text = fs::read_to_string(&path);
    text.map_err(|source| FileError::new("read", &path, source).into())
}

fn raise(pid: i32, to: Memlock) -> Result<(), HookError> {
    // PID 0 would mean the hook itself
    let process = Some(Pid::from_raw(pid)).filter(|it| it.as_raw() > 0);
    let raised = process.map_or(Err(io::ErrorKind::NotFound.into()), |process| {
        raise_locked_memory(process, to.bytes())
    });
    raised.map_err(|source| HookError::Limit {
        process: pid,
        to,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::{
        fs,
        process::{Child, Command},
    };

    /// A `sleep` process instead of a container's process, with soft and hard limits of locked memory in KiB.
    struct Process(Child);

    impl Process {
        fn start(soft: u32, hard: u32) -> Self {
            let line = format!("ulimit -S -l {soft}; ulimit -H -l {hard}; exec sleep 60");
            let child = Command::new("sh").args(["-c", &line]).spawn();
            let process = Self(child.expect("a shell"));
            // the shell has set both limits before it executes `sleep`
            while process.read("comm").trim() != "sleep" {
                std::thread::yield_now();
            }
            process
        }

        fn read(&self, file: &str) -> String {
            let path = format!("/proc/{}/{file}", self.0.id());
            fs::read_to_string(path).expect("the process")
        }

        fn limits(&self) -> Vec<String> {
            let limits = self.read("limits");
            let line = limits
                .lines()
                .find(|it| it.starts_with("Max locked memory"));
            let words = line.expect("the limit").split_whitespace();
            words.skip(3).take(2).map(str::to_owned).collect()
        }

        fn hook(&self, limit: &str, specification: &Value) -> Result<(), String> {
            let bundle = tempfile::tempdir().expect("a directory");
            let path = bundle.path().join("config.json");
            fs::write(path, specification.to_string()).expect("written");
            let state = json!({"status": "creating", "pid": self.0.id(), "bundle": bundle.path()});
            hook(&[limit], &state.to_string())
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn hook(arguments: &[&str], state: &str) -> Result<(), String> {
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        set(&arguments, &mut state.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_limit_of_the_process_is_raised_and_never_lowered() {
        let process = Process::start(64, 256);
        assert_eq!(process.limits(), ["65536", "262144"]);
        // the hard limit of the process stays, so no capability is needed
        let open_files = json!({"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1024});
        let specification = json!({"process": {"rlimits": [&open_files]}});
        let raised = process.hook("--memlock=131072", &specification);
        raised.expect("raised");
        assert_eq!(process.limits(), ["131072", "262144"]);
        let raised = process.hook("--memlock=4096", &json!({"process": {}}));
        raised.expect("nothing to do");
        assert_eq!(process.limits(), ["131072", "262144"]);

        // runc would set this limit after the hook
        let own = json!({"type": "RLIMIT_MEMLOCK", "soft": 131_072, "hard": 262_144});
        let specification = json!({"process": {"rlimits": [open_files, own]}});
        let refused = process.hook("--memlock=131073", &specification);
        let why =
            "limits the locked memory of the container to 131072 bytes, below memlock (131073)";
        assert!(refused.is_err_and(|it| it.contains(why)));
        let raised = process.hook("--memlock=131072", &specification);
        raised.expect("as much");
        assert_eq!(process.limits(), ["131072", "262144"]);

        match process.hook("--memlock=unlimited", &json!({})) {
            Ok(()) => assert_eq!(process.limits(), ["unlimited", "unlimited"]),
            // the test process lacks CAP_SYS_RESOURCE
            Err(error) => assert!(
                error.contains("unlimited: Operation not permitted"),
                "{error}"
            ),
        }
    }

    #[test]
    fn a_record_has_the_names_of_either_runtime() {
        let record = |annotations: Value| {
            let state = json!({"pid": 1, "bundle": "/b", "id": "c1", "annotations": annotations});
            let state: State = serde_json::from_value(state).expect("a state");
            let cgroups = Cgroups {
                container: "kubepods/podone/c1".into(),
                pod: "kubepods/podone".into(),
            };
            let record = state.record(cgroups, RdmaLimits::default());
            let record = record.expect("a boot");
            (record.namespace, record.pod)
        };
        let containerd = record(json!({
            "io.kubernetes.cri.sandbox-name": "a",
            "io.kubernetes.cri.sandbox-namespace": "team",
        }));
        let crio = record(json!({
            "io.kubernetes.pod.name": "a",
            "io.kubernetes.pod.namespace": "team",
        }));
        assert_eq!(containerd, ("team".to_owned(), "a".to_owned()));
        assert_eq!(crio, containerd);
        let unknown = record(json!({"io.kubernetes.pod.name": "a"}));
        assert_eq!(unknown, (String::new(), "a".to_owned()));
    }

    #[test]
    fn a_process_that_is_not_there_is_refused() {
        for (pid, why) in [(0, "entity not found"), (i32::MAX, "No such process")] {
            let error = raise(pid, Memlock::Bytes(1)).expect_err("no process");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_hook_that_cannot_set_a_limit_ends_the_containers_start() {
        for (arguments, state, expected) in [
            (
                &["--memlock=all"][..],
                r#"{"pid":1,"bundle":"/gone"}"#,
                r#"and has ["--memlock=all"]"#,
            ),
            (
                &["--memlock=0"],
                r#"{"pid":1,"bundle":"/gone"}"#,
                r#"and has ["--memlock=0"]"#,
            ),
            (&[], r#"{"pid":1,"bundle":"/gone"}"#, "and has []"),
            (
                &["--memlock=1"],
                "",
                "cannot read the container's state from standard input: EOF",
            ),
            (&["--memlock=1"], r#"{"id":"a"}"#, "missing field `pid`"),
            (&["--memlock=1"], r#"{"pid":1}"#, "missing field `bundle`"),
            (
                &["--memlock=1"],
                r#"{"pid":1,"bundle":"/gone"}"#,
                r#"specification "/gone/config.json": No such file"#,
            ),
            (
                &["--memlock=1", "--rdma-objects=max"],
                r#"{"pid":1,"bundle":"/gone"}"#,
                r#"and has ["--memlock=1", "--rdma-objects=max"]"#,
            ),
            (
                &["--rdma-objects=3", "--state-dir=/gone"],
                r#"{"pid":0,"bundle":"/gone"}"#,
                r#"process 0: cannot read "/proc/0/cgroup": No such file"#,
            ),
        ] {
            let error = hook(arguments, state).expect_err("nothing is set");
            assert!(error.contains(expected), "{error}");
        }
    }
}
