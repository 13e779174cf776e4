// SPDX-License-Identifier: Apache-2.0
//! Sends RDMA requests from a node, or from inside one of its pods. A separate privileged pod with the daemon's image
//! sends the requests. This pod sees the same records and namespaces as the daemon.
//!
//! The daemon's container cannot send the requests. It cannot open `/dev/infiniband/rdma_cm`, and may lack the right to
//! enter a pod's network namespace. A command by `kubectl exec` has only the container's rights.

use super::{
    NAME,
    api::{CONTAINER, Daemon, Daemons, Flags, Pod, array, text},
    pods::rails,
};
use crate::cannot;
use anyhow::{Result, anyhow, bail};
use conf_reader::one_line;
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    net::IpAddr,
    process::{self, ExitCode},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// Volumes of the daemon's pod that the pod for `ping` also mounts: records, and network namespaces.
const VOLUMES: [&str; 2] = ["state", "netns"];

/// Longest lifetime of the pod, in seconds.
const LIMIT: u32 = 600;

/// Interval of queries for the pod's state.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time limit of each request to the API server about the pod for `ping`.
const REQUEST: &str = "--request-timeout=30s";

/// Longest time until kubelet starts the pod.
const START: Duration = Duration::from_secs(120);

/// Sends RDMA requests to `to` from `from`. Returns the exit code of `ping`.
pub(super) fn ping(flags: &Flags, from: &str, to: &str, options: &[String]) -> Result<ExitCode> {
    let daemons = Daemons::get(flags)?;
    let mut arguments = vec!["ping".to_owned()];
    let (daemon, pod) = daemons.find(flags, from)?;
    if let Some(pod) = pod {
        arguments.extend(["--pod".to_owned(), pod.name()]);
    }
    match to.parse::<IpAddr>() {
        Ok(address) => arguments.push(address.to_string()),
        Err(_) => arguments.extend(addresses(flags, &daemons, to)?),
    }
    arguments.extend_from_slice(options);
    let (namespace, made) = (
        text(&daemon.0, "/metadata/namespace"),
        self::pod(daemon, &arguments).to_string(),
    );
    let create = [
        "create",
        "--namespace",
        namespace,
        "--filename",
        "-",
        "-o",
        "json",
        REQUEST,
    ];
    let interrupts = blocked().map_err(cannot("wait for Ctrl-C"))?;
    let (created, pod) = mpsc::channel();
    delete_on(interrupts, flags.clone(), namespace.to_owned(), pod);
    let made = flags.object(&create, &made)?;
    let name = text(&made, "/metadata/name").to_owned();
    // ignore an error: the receiver reads the name only after a signal
    let _ = created.send(name.clone());
    let code = outcome(flags, namespace, &name);
    let deleted = delete(flags, namespace, &name);
    code.and_then(|code| deleted.map(|_| code))
}

/// Blocks SIGINT, SIGTERM and SIGHUP for this thread, and for threads and processes that it starts later. Returns these
/// signals.
fn blocked() -> io::Result<SigSet> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block()?;
    Ok(signals)
}

/// Deletes the created pod when one of `signals` arrives, and then ends the process with the exit code that a shell
/// uses for this signal. A second signal ends the process at once.
fn delete_on(signals: SigSet, flags: Flags, namespace: String, created: Receiver<String>) {
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else {
            return;
        };
        let code = 128 + signal as i32;
        thread::spawn(move || signals.wait().map(|_| process::exit(code)));
        // ignore errors: after SIGHUP the terminal may be closed
        let print_error = |what: &str| drop(writeln!(io::stderr(), "{NAME}: {what}"));
        print_error("deleting the pod; after another Ctrl-C the pod may run for up to 10 minutes");
        // `recv` fails if the API server created no pod
        let deleted = created.recv().map(|it| delete(&flags, &namespace, &it));
        if let Ok(Err(error)) = deleted {
            print_error(&one_line(&error.to_string()));
        }
        process::exit(code)
    });
}

fn delete(flags: &Flags, namespace: &str, name: &str) -> Result<Vec<u8>> {
    let pod = ["delete", "pod", name, "--namespace", namespace];
    flags.output(&[&pod[..], &["--wait=false", REQUEST]].concat(), "")
}

fn addresses(flags: &Flags, daemons: &Daemons, pod: &str) -> Result<Vec<String>> {
    let pod = Pod::get(flags, pod)?;
    let facts = daemons.of(&pod)?.facts(flags)?;
    let rails = rails(&facts).remove(&pod.name()).unwrap_or_default();
    let addresses = rails.iter().flat_map(|it| &it.addresses);
    let addresses: Vec<String> = addresses.map(|it| it.ip.to_string()).collect();
    match addresses.is_empty() {
        true => {
            let name = pod.name();
            bail!("pod {name} has no rails: `kubectl rdma doctor {name}` shows the reason")
        }
        false => Ok(addresses),
    }
}

/// Waits for the end of the pod, and prints the pod's output. Returns the pod's exit code, or an error if the pod did
/// not start or did not end by itself.
fn outcome(flags: &Flags, namespace: &str, name: &str) -> Result<ExitCode> {
    let no_result = |why: &str| anyhow!("pod {namespace}/{name} has no result: {why}");
    let until = Instant::now() + START;
    let status = loop {
        let pod = flags.get(&["pod", name, "--namespace", namespace, REQUEST])?;
        let waits = "/status/containerStatuses/0/state/waiting/reason";
        match (text(&pod, "/status/phase"), text(&pod, waits)) {
            ("Succeeded" | "Failed", _) => break pod,
            // kubelet has not started the pod: the pod's own deadline begins only after kubelet has seen the pod
            ("Pending" | "", _) if Instant::now() >= until => {
                let (node, limit) = (text(&pod, "/spec/nodeName"), START.as_secs());
                let why = format!(
                    "kubelet of node {node} has not started the pod within {limit} seconds"
                );
                return Err(no_result(&why));
            }
            (_, "" | "ContainerCreating" | "PodInitializing") => thread::sleep(INTERVAL),
            (_, why) => return Err(no_result(why)),
        }
    };
    let shown = flags.show(&["logs", name, "--namespace", namespace, REQUEST])?;
    let ended = text(&status, "/status/reason");
    if !ended.is_empty() {
        let message = text(&status, "/status/message");
        let why =
            format!("the pod ended with {ended} (its time limit is {LIMIT} seconds): {message}");
        return Err(no_result(&why));
    }
    let code = status.pointer("/status/containerStatuses/0/state/terminated/exitCode");
    let code = code
        .and_then(Value::as_u64)
        .and_then(|it| u8::try_from(it).ok());
    match code {
        Some(0) => Ok(shown),
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(no_result("its container has no exit code")),
    }
}

/// Returns a pod for the daemon's node that runs `rdma-device-plugin ARGUMENTS` once. `kubectl rdma` deletes this pod.
/// The owner of this pod is the daemon's pod. If `kubectl rdma` cannot delete the pod, Kubernetes deletes it together
/// with the daemon's pod.
fn pod(daemon: &Daemon, arguments: &[String]) -> Value {
    let Daemon(daemon) = daemon;
    let container = array(daemon, "/spec/containers").find(|it| text(it, "/name") == CONTAINER);
    let container = container.unwrap_or(&Value::Null);
    let of_daemon = |object, list, name| -> Vec<&Value> {
        let all = array(object, list);
        all.filter(|it| VOLUMES.contains(&text(it, name))).collect()
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "rdma-ping-",
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod",
                "name": daemon["metadata"]["name"], "uid": daemon["metadata"]["uid"],
            }],
        },
        "spec": {
            "nodeName": daemon["spec"]["nodeName"],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIMIT,
            "automountServiceAccountToken": false,
            "serviceAccountName": daemon["spec"]["serviceAccountName"],
            "imagePullSecrets": daemon["spec"]["imagePullSecrets"],
            "hostNetwork": true,
            "tolerations": [{"operator": "Exists"}],
            "volumes": of_daemon(daemon, "/spec/volumes", "/name"),
            "containers": [{
                "name": "ping",
                "image": container["image"],
                "imagePullPolicy": container["imagePullPolicy"],
                "args": arguments,
                "securityContext": {"privileged": true},
                "volumeMounts": of_daemon(container, "/volumeMounts", "/name"),
            }],
        },
    })
}

#[cfg(test)]
#[path = "ping_tests.rs"]
mod tests;
