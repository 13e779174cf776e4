// SPDX-License-Identifier: Apache-2.0
//! Calls of the runtime's interface (CRI v1), as kubelet makes them, from any thread.

use cri_api::{
    ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecSyncRequest,
    ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxStatusRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StatusRequest,
    StopContainerRequest, StopPodSandboxRequest, VersionRequest,
    runtime_service_client::RuntimeServiceClient,
};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use serde_json::Value;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::runtime::Runtime;
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

/// Time limit for each call: the default of kubelet's `runtimeRequestTimeout`.
const LIMIT: Duration = Duration::from_secs(120);

type Client = RuntimeServiceClient<Channel>;

/// CRI client for all threads. It makes a new connection for each call, because the runtime may have restarted.
#[derive(Clone, Debug)]
pub struct Cri {
    socket: PathBuf,
    runtime: Arc<Runtime>,
}

/// Result of a program in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The program's exit status.
    pub code: i32,
    /// The program's standard output, followed by its standard error.
    pub output: String,
}

impl Cri {
    /// Makes a client of the runtime that listens at `socket`.
    pub fn new(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Self {
            socket: socket.to_owned(),
            runtime: Arc::new(runtime),
        }
    }

    /// Returns the runtime's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the name and version of the runtime.
    pub fn version(&self) -> Result<String, Status> {
        let answer = self.ask(async |mut it| it.version(VersionRequest::default()).await)?;
        Ok(format!(
            "{} {}",
            answer.runtime_name, answer.runtime_version
        ))
    }

    /// Returns true if the runtime reports that `condition` is true, such as `RuntimeReady` or `NetworkReady`.
    pub fn is_ready(&self, condition: &str) -> bool {
        self.condition(condition).0
    }

    /// Returns the status of `condition`, and the runtime's explanation.
    pub fn condition(&self, condition: &str) -> (bool, String) {
        let answer = self.ask(async |mut it| it.status(StatusRequest::default()).await);
        let status = answer.ok().and_then(|it| it.status).unwrap_or_default();
        let mut all = status.conditions.into_iter();
        let found = all.find(|it| it.r#type == condition).unwrap_or_default();
        (found.status, found.message)
    }

    /// Makes a pod's sandbox, which includes CNI's ADD. Returns the sandbox's id.
    pub fn run_sandbox(&self, config: &PodSandboxConfig) -> Result<String, Status> {
        let config = Some(config.clone());
        let request = RunPodSandboxRequest { config };
        let answer = self.ask(async |mut it| it.run_pod_sandbox(request).await)?;
        Ok(answer.pod_sandbox_id)
    }

    /// Makes a sandbox like [`Self::run_sandbox`], but cancels the call as soon as `enough` returns true. Kubelet
    /// cancels a slow call in the same way: the runtime sees the cancellation.
    pub fn run_sandbox_until(
        &self,
        config: &PodSandboxConfig,
        mut enough: impl FnMut() -> bool,
    ) -> Result<String, Status> {
        let config = Some(config.clone());
        let request = RunPodSandboxRequest { config };
        let given_up = async move {
            while !enough() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let call = async |mut it: Client| {
            tokio::select! {
                answer = it.run_pod_sandbox(request) => answer,
                () = given_up => Err(Status::cancelled("given up")),
            }
        };
        Ok(self.ask(call)?.pod_sandbox_id)
    }

    /// Makes and starts a container. Returns its id.
    pub fn start(&self, request: CreateContainerRequest) -> Result<String, Status> {
        let created = self.ask(async |mut it| it.create_container(request).await)?;
        let container_id = created.container_id;
        let request = StartContainerRequest {
            container_id: container_id.clone(),
        };
        self.ask(async |mut it| it.start_container(request).await)?;
        Ok(container_id)
    }

    /// Stops a pod's sandbox with its containers, which includes CNI's DEL.
    pub fn stop(&self, sandbox: &str) -> Result<(), Status> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: sandbox.to_owned(),
        };
        self.ask(async |mut it| it.stop_pod_sandbox(request).await)?;
        Ok(())
    }

    /// Stops a pod's sandbox, and removes it.
    pub fn remove(&self, sandbox: &str) -> Result<(), Status> {
        self.stop(sandbox)?;
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: sandbox.to_owned(),
        };
        self.ask(async |mut it| it.remove_pod_sandbox(request).await)?;
        Ok(())
    }

    /// Returns all sandboxes that the runtime lists.
    pub fn pods(&self) -> Result<Vec<PodSandbox>, Status> {
        let request = ListPodSandboxRequest {};
        Ok(self
            .ask(async |mut it| it.list_pod_sandbox(request).await)?
            .items)
    }

    /// Stops and removes the pods for which `unwanted` returns true, as kubelet does. Returns true if none of them is
    /// left. Prints a failure, after which kubelet would repeat the call.
    pub fn remove_all(&self, unwanted: impl Fn(&PodSandbox) -> bool) -> bool {
        let print = |status: Status| println!("{}", status.message());
        let left = || {
            let pods = self.pods().map_err(print).ok()?;
            Some(pods.into_iter().filter(&unwanted).collect::<Vec<_>>())
        };
        for sandbox in left().unwrap_or_default() {
            self.remove(&sandbox.id).unwrap_or_else(print);
        }
        // lists again: sandboxes may have been added or removed since the first list
        left().is_some_and(|left| left.is_empty())
    }

    /// Returns a sandbox's status, and the runtime's own information on the sandbox as JSON.
    pub fn sandbox(&self, id: &str) -> Result<(cri_api::PodSandboxStatus, Value), Status> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: true,
        };
        let answer = self.ask(async |mut it| it.pod_sandbox_status(request).await)?;
        Ok((answer.status.unwrap_or_default(), info(&answer.info)))
    }

    /// Returns the runtime's own information on a container as JSON.
    pub fn container(&self, id: &str) -> Result<Value, Status> {
        Ok(self.container_status(id)?.1)
    }

    /// Returns a container's status, and the runtime's own information on the container as JSON.
    pub fn container_status(&self, id: &str) -> Result<(ContainerStatus, Value), Status> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        let answer = self.ask(async |mut it| it.container_status(request).await)?;
        Ok((answer.status.unwrap_or_default(), info(&answer.info)))
    }

    /// Sends SIGKILL to a container's first process, without the runtime's knowledge.
    #[track_caller]
    pub fn kill(&self, container: &str) {
        kill(&self.container(container).expect("it is known"));
    }

    /// Ends a container with SIGTERM, and with SIGKILL after `grace`.
    pub fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Status> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace.as_secs()).expect("seconds"),
        };
        self.ask(async |mut it| it.stop_container(request).await)?;
        Ok(())
    }

    /// Runs a program in a container, for at most `limit`.
    pub fn exec(&self, container: &str, words: &[&str], limit: Duration) -> Result<Ran, Status> {
        let request = ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: words.iter().map(|&word| word.to_owned()).collect(),
            timeout: i64::try_from(limit.as_secs()).expect("seconds"),
        };
        let answer = self.ask(async |mut it| it.exec_sync(request).await)?;
        let output = [answer.stdout, answer.stderr].concat();
        Ok(Ran {
            code: answer.exit_code,
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }

    fn ask<T>(
        &self,
        question: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        let dialled = async {
            let address = format!("unix://{}", self.socket.display());
            let endpoint = Endpoint::from_shared(address).map_err(failed)?;
            let channel = endpoint.connect().await.map_err(failed)?;
            question(Client::new(channel)).await
        };
        let answer = async { tokio::time::timeout(LIMIT, dialled).await };
        let answer = self.runtime.block_on(answer);
        let late = |_| Status::deadline_exceeded(format!("no answer within {LIMIT:?}"));
        Ok(answer.map_err(late)??.into_inner())
    }
}

/// Sends SIGKILL to the process that the runtime's own JSON names.
#[track_caller]
pub(super) fn kill(info: &Value) {
    let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.filter(|pid| *pid > 1);
    let pid = pid.unwrap_or_else(|| panic!("no process: {info:#}"));
    signal::kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a signal sent");
}

fn info(verbose: &HashMap<String, String>) -> Value {
    let text = verbose.get("info").map(String::as_str);
    serde_json::from_str(text.unwrap_or("null")).expect("JSON")
}

fn failed(error: tonic::transport::Error) -> Status {
    Status::unavailable(format!("the runtime cannot be reached: {error}"))
}
