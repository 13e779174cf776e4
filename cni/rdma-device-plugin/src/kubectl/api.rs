// SPDX-License-Identifier: Apache-2.0
//! Runs `kubectl` with the user's flags, and finds the daemons' pods.

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::Args;
use doctor::facts::Facts;
use nix::sys::signal::SigSet;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Label of the daemons' pods, which chart and manifests set.
const LABEL: &str = "app.kubernetes.io/name=rdma-device-plugin";

/// Name of the daemon's container in its pod.
pub(super) const CONTAINER: &str = "rdma-device-plugin";

/// Number of daemons that `kubectl rdma` queries at a time.
const AT_A_TIME: usize = 16;

/// Interval of checks whether a daemon has answered.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Flags that each `kubectl` gets, and the time limit for daemons.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Flags of kubectl")]
pub(super) struct Flags {
    /// Kubeconfig file
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Cluster of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// User of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "NAME")]
    impersonated: Option<String>,
    /// Namespace whose pods are listed, and of pods named without a namespace; default: the context's namespace
    #[arg(short, long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// Longest time until a daemon answers
    #[arg(
        long, global = true, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    timeout: u64,
}

/// Returns the text at `pointer`, or an empty text if `object` has no text there.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    array(list, "/items")
}

/// Returns the elements of the array at `pointer`. Returns no element if there is no array.
pub(super) fn array<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    let array = object.pointer(pointer).and_then(Value::as_array);
    array.into_iter().flatten()
}

impl Flags {
    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        for (flag, value) in [
            ("--kubeconfig", &self.kubeconfig),
            ("--context", &self.context),
            ("--cluster", &self.cluster),
            ("--user", &self.user),
            ("--as", &self.impersonated),
            ("--namespace", &self.namespace),
        ] {
            command.args(value.iter().map(|it| format!("{flag}={it}")));
        }
        command
    }

    /// Runs `kubectl ARGUMENTS` with the standard input `input`, and returns the output. The error contains the last
    /// line that the command wrote to standard error.
    pub(super) fn output(&self, arguments: &[&str], input: &str) -> Result<Vec<u8>> {
        let mut command = self.command();
        let mut child = piped(command.args(arguments)).map_err(not_run)?;
        if let Some(mut stdin) = child.stdin.take() {
            // ignore an error: a process that does not read its input may have ended already
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(not_run)?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(failed(arguments, &last_error(&output.stderr))),
        }
    }

    /// Runs `kubectl ARGUMENTS` with the standard input `input`, and returns the object that it prints as JSON.
    pub(super) fn object(&self, arguments: &[&str], input: &str) -> Result<Value> {
        let output = self.output(arguments, input)?;
        serde_json::from_slice(&output).map_err(|error| failed(arguments, &error.to_string()))
    }

    pub(super) fn get(&self, arguments: &[&str]) -> Result<Value> {
        self.object(&[&["get"], arguments, &["-o", "json"]].concat(), "")
    }

    /// Waits for the end of `child`, at most for the time limit of a daemon's answer. After this time, kills `child`
    /// and returns `None`.
    fn ended(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let limit = Duration::from_secs(self.timeout);
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            thread::sleep(POLL_INTERVAL);
        }
        child.kill()?;
        child.wait().map(|_| None)
    }

    /// Runs `kubectl ARGUMENTS` at the user's terminal. Returns the exit code of `kubectl`.
    pub(super) fn show(&self, arguments: &[&str]) -> Result<ExitCode> {
        let status = self.command().args(arguments).status();
        status.map(exit_code).map_err(not_run)
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|it| u8::try_from(it).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Reads a pipe to its end. Must run on a separate thread, because the pipe may stay open longer than the command runs.
fn read(pipe: Option<impl Read>) -> Vec<u8> {
    // block all signals: only the thread that waits for signals may receive a signal
    let _ = SigSet::all().thread_block();
    let mut text = Vec::new();
    if let Some(mut pipe) = pipe {
        // an error ends the reading
        let _ = pipe.read_to_end(&mut text);
    }
    text
}

fn piped(command: &mut Command) -> io::Result<Child> {
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn()
}

/// Returns the last line of `errors`. Earlier lines can be about earlier attempts of `kubectl`.
fn last_error(errors: &[u8]) -> String {
    let errors = String::from_utf8_lossy(errors);
    let last = errors.trim_end().lines().last();
    last.unwrap_or_default().to_owned()
}

fn not_run(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            anyhow!("kubectl is not in PATH: install kubectl, or add its directory to PATH")
        }
        _ => anyhow!("cannot run kubectl: {error}"),
    }
}

fn failed(arguments: &[&str], why: &str) -> Error {
    anyhow!("kubectl {}: {why}", arguments.join(" "))
}

/// Pods of the daemons, by node.
#[derive(Debug)]
pub(super) struct Daemons(BTreeMap<String, Daemon>);

/// Pod of a daemon.
#[derive(Debug)]
pub(super) struct Daemon(pub(super) Value);

impl Daemons {
    pub(super) fn get(flags: &Flags) -> Result<Self> {
        let pods = flags.get(&["pods", "--all-namespaces", "--selector", LABEL])?;
        Self::of_list(&pods)
    }

    /// Returns the daemons of a list of pods. If a node has two daemons, as during an upgrade, returns the ready one.
    pub(super) fn of_list(pods: &Value) -> Result<Self> {
        let mut daemons: BTreeMap<String, Daemon> = BTreeMap::new();
        for pod in items(pods) {
            let (node, daemon) = (text(pod, "/spec/nodeName"), Daemon(pod.clone()));
            let is_better = |it: &Daemon| daemon.state() == "Ready" || it.state() != "Ready";
            if !node.is_empty() && daemons.get(node).is_none_or(is_better) {
                daemons.insert(node.to_owned(), daemon);
            }
        }
        match daemons.is_empty() {
            true => bail!(
                "no pod of the cluster has the label {LABEL}: install the DaemonSet, label nodes for its \
                 nodeSelector, or use another --context"
            ),
            false => Ok(Self(daemons)),
        }
    }

    pub(super) fn on(&self, node: &str) -> Option<&Daemon> {
        self.0.get(node)
    }

    /// Returns the daemon of the node `target`. If no node of this name has a daemon, `target` is a pod: returns this
    /// pod and the daemon of its node.
    pub(super) fn find(&self, flags: &Flags, target: &str) -> Result<(&Daemon, Option<Pod>)> {
        if let Some(daemon) = self.on(target) {
            return Ok((daemon, None));
        }
        let pod = Pod::get(flags, target).map_err(|error| {
            anyhow!("{target} is neither a node with a daemon nor a pod: {error}")
        })?;
        Ok((self.of(&pod)?, Some(pod)))
    }

    pub(super) fn of(&self, pod: &Pod) -> Result<&Daemon> {
        match text(&pod.0, "/spec/nodeName") {
            "" => bail!(
                "pod {} is on no node yet: `kubectl describe pod` shows the reason",
                pod.name()
            ),
            node => self.on(node).with_context(|| {
                format!("node {node} has no daemon: check that the DaemonSet's nodeSelector selects the node")
            }),
        }
    }

    pub(super) fn by_node(&self) -> impl Iterator<Item = (&String, &Daemon)> {
        self.0.iter()
    }

    /// Queries the daemons of `nodes` for their observations (`doctor --facts`). Leaves out nodes without a daemon.
    pub(super) fn facts<'a>(
        &self,
        flags: &Flags,
        nodes: &[&'a str],
    ) -> Vec<(&'a str, Result<Facts>)> {
        let mut answers = vec![];
        let facts_of = |node: &'a str| Some((node, self.on(node)?.facts(flags)));
        for nodes in nodes.chunks(AT_A_TIME) {
            thread::scope(|scope| {
                let threads = nodes.iter().map(|node| scope.spawn(move || facts_of(node)));
                let threads: Vec<_> = threads.collect();
                // ignore panics: no thread panics
                answers.extend(
                    threads
                        .into_iter()
                        .filter_map(|it| it.join().ok().flatten()),
                );
            });
        }
        answers
    }
}

impl Daemon {
    /// Returns `Ready`, or the reason why the daemon is not ready.
    pub(super) fn state(&self) -> &str {
        let mut conditions = array(&self.0, "/status/conditions");
        let is_ready = |it: &Value| text(it, "/type") == "Ready" && text(it, "/status") == "True";
        let waits = "/status/containerStatuses/0/state/waiting/reason";
        match (
            text(&self.0, "/metadata/deletionTimestamp"),
            text(&self.0, waits),
        ) {
            ("", _) if conditions.any(is_ready) => "Ready",
            ("", "") => "NotReady",
            ("", reason) => reason,
            _ => "Terminating",
        }
    }

    /// Returns the arguments with which `kubectl` runs `rdma-device-plugin COMMAND` in the daemon's container.
    fn at<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        let namespace = text(&self.0, "/metadata/namespace");
        let name = text(&self.0, "/metadata/name");
        let exec = [
            "exec",
            "--namespace",
            namespace,
            name,
            "--container",
            CONTAINER,
        ];
        [&exec[..], &["--", "rdma-device-plugin"], command].concat()
    }

    fn silent(&self, flags: &Flags) -> Error {
        anyhow!(
            "pod {}, the daemon on node {}, has not answered in {} seconds: read its log, or give it more time \
             with --timeout",
            Pod(self.0.clone()).name(),
            text(&self.0, "/spec/nodeName"),
            flags.timeout
        )
    }

    /// Runs the command at the user's terminal. Returns the command's exit code.
    pub(super) fn exec(&self, flags: &Flags, command: &[&str]) -> Result<ExitCode> {
        let mut kubectl = flags.command();
        let mut child = kubectl.args(self.at(command)).spawn().map_err(not_run)?;
        let status = flags.ended(&mut child).map_err(not_run)?;
        status.map(exit_code).ok_or_else(|| self.silent(flags))
    }

    pub(super) fn facts(&self, flags: &Flags) -> Result<Facts> {
        let line = self.at(&["doctor", "--facts"]);
        let mut command = flags.command();
        let mut child = piped(command.args(&line)).map_err(not_run)?;
        let pipes = (child.stdout.take(), child.stderr.take());
        let output = thread::spawn(|| read(pipes.0));
        let errors = thread::spawn(|| read(pipes.1));
        // wait for the process and not for its pipes: a credential plugin may outlive kubectl and keep the pipe of
        // errors open
        if flags.ended(&mut child).map_err(not_run)?.is_none() {
            return Err(self.silent(flags));
        }
        // ignore panics: no thread panics
        let joined = |it: thread::JoinHandle<Vec<u8>>| it.join().unwrap_or_default();
        // ignore the exit code, because `doctor` also ends with 1 if it finds errors on the node
        let Ok(facts) = serde_json::from_slice::<Value>(&joined(output)) else {
            return Err(failed(&line, &last_error(&joined(errors))));
        };
        let release = text(&facts, "/version").to_owned();
        serde_json::from_value(facts).map_err(|error| {
            anyhow!(
                "cannot read the answer of the daemon on node {} (the daemon has release {release}, this program has \
                 release {}: use one release for both): {error}",
                text(&self.0, "/spec/nodeName"),
                env!("CARGO_PKG_VERSION")
            )
        })
    }
}

/// A pod object of the API server.
#[derive(Debug)]
pub(super) struct Pod(pub(super) Value);

impl Pod {
    /// Returns the pod `namespace/name`. For a `name` without a namespace, uses the namespace of `flags`.
    pub(super) fn get(flags: &Flags, name: &str) -> Result<Self> {
        let pod = match name.split_once('/') {
            Some((namespace, name)) => flags.get(&["pod", name, "--namespace", namespace]),
            None => flags.get(&["pod", name]),
        };
        pod.map(Self)
    }

    pub(super) fn name(&self) -> String {
        let [namespace, name] = ["/metadata/namespace", "/metadata/name"];
        format!("{}/{}", text(&self.0, namespace), text(&self.0, name))
    }

    pub(super) fn events(&self, flags: &Flags) -> Result<Value> {
        let name = text(&self.0, "/metadata/name");
        let selector = format!("involvedObject.kind=Pod,involvedObject.name={name}");
        let namespace = text(&self.0, "/metadata/namespace");
        flags.get(&[
            "events",
            "--namespace",
            namespace,
            "--field-selector",
            &selector,
        ])
    }
}
