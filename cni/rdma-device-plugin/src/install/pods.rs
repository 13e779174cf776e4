// SPDX-License-Identifier: Apache-2.0
//! The pods that the installed `rdma-cni` is needed for: by its records, and by whether their network
//! namespaces are there still.

use crate::chain::programs::is_mounted;
use attachments::pods::{is_out_of_sight, netns_seen};
use attachments::{
    Attachment, Store,
    store::{Record, StoreError},
};
use rdma_netns::{Kernel, Linux, ObserveError, OpenPodError, Pod};
use serde_json::{Value, json};
use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// It cannot be told which pods have devices.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// The records.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The boot that records are of.
    #[error(transparent)]
    Boot(#[from] ObserveError),
    /// A record that nothing can be said of.
    #[error(
        "the record of {key} in {state_dir:?} cannot be read: {why}; its pod may have devices: let it \
         end, or take the record away"
    )]
    Unreadable {
        /// `container c1 (eth0 of network pods)`
        key: String,
        /// The state directory.
        state_dir: PathBuf,
        /// Why.
        why: String,
    },
}

/// Pods that have something: devices, or addresses that are still to be given back.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// `namespace/name` of those that live.
    pub living: Vec<String>,
    /// What ended without `rdma-cni`.
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct Ended {
    attachment: Attachment,
    state_dir: PathBuf,
}

/// What the records below `state_dirs` say.
///
/// # Errors
/// One cannot be read.
pub(super) fn look(state_dirs: &[PathBuf]) -> Result<Pods, PodsError> {
    let kernel = Linux::new();
    let mut pods = Pods::default();
    for state_dir in state_dirs {
        let store = Store::new(state_dir);
        for key in store.keys(None)? {
            let unreadable = |why| PodsError::Unreadable {
                key: key.to_string(),
                state_dir: state_dir.clone(),
                why,
            };
            let attachment = match store.load(&key)? {
                Record::None => continue,
                Record::Good(attachment) => *attachment,
                Record::Corrupt(why) => return Err(unreadable(why)),
                Record::Newer(format) => {
                    return Err(unreadable(format!(
                        "its format is {format}, of a newer version"
                    )));
                }
            };
            // after another boot everything is on the host
            if attachment.boot_id != kernel.boot_id()? {
                continue;
            }
            if store.is_at_work(&key) || lives(&kernel, &attachment) {
                pods.living.push(name(&attachment).to_owned());
            } else {
                pods.ended.push(Ended {
                    attachment,
                    state_dir: state_dir.clone(),
                });
            }
        }
    }
    pods.living.sort();
    pods.living.dedup();
    Ok(pods)
}

/// Takes away what verbs of `rdma-cni` that were killed have left below `state_dirs` of pods that have no record any more:
/// nobody else does, when it is gone.
///
/// # Errors
/// It cannot be told what is there.
pub(super) fn sweep(state_dirs: &[PathBuf]) -> Result<(), PodsError> {
    for state_dir in state_dirs {
        Store::new(state_dir).sweep(None, None)?;
    }
    Ok(())
}

impl Pods {
    /// Lets the `rdma-cni` of the first of `bin_dirs` restore what the pods that ended have left. Those
    /// that it could not be done for, each with the reason.
    pub(super) fn restore_ended(&self, bin_dirs: &[PathBuf]) -> Vec<String> {
        let mut left = vec![];
        for ended in &self.ended {
            let name = name(&ended.attachment);
            match bin_dirs.iter().any(|it| is_mounted(it)) || is_mounted(&ended.state_dir) {
                // IPAM plugins have their leases elsewhere on the node
                true => left.push(format!("{name}: this can only be done on the node itself")),
                false => match delete(ended, bin_dirs) {
                    Ok(()) => println!("{name}: it has ended, and what it had is restored"),
                    Err(why) => left.push(format!("{name}: {why}")),
                },
            }
        }
        left
    }
}

/// `rdma-cni`'s DEL, as a runtime calls it for a pod whose namespace is gone.
fn delete(ended: &Ended, bin_dirs: &[PathBuf]) -> Result<(), String> {
    let key = &ended.attachment.key;
    let conf = json!({
        "cniVersion": "1.0.0", "name": key.network, "type": "rdma-cni", "stateDir": ended.state_dir,
    });
    let first = bin_dirs.first().map(PathBuf::as_path);
    let binary = first.unwrap_or(Path::new("/")).join("rdma-cni");
    let path = std::env::join_paths(bin_dirs).map_err(|error| error.to_string())?;
    let mut command = Command::new(&binary);
    command
        .env("CNI_COMMAND", "DEL")
        .env("CNI_CONTAINERID", &key.container)
        .env("CNI_IFNAME", &*key.interface)
        .env("CNI_PATH", path)
        .env_remove("CNI_NETNS")
        .env_remove("CNI_ARGS");
    let output = run(&mut command, &conf).map_err(|error| format!("{binary:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let answer = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
            let said = ["msg", "details"].map(|it| answer[it].as_str().unwrap_or_default());
            Err(format!("{binary:?}: {} {}", output.status, said.join(" ")))
        }
    }
}

fn run(command: &mut Command, conf: &Value) -> io::Result<Output> {
    let (reader, mut writer) = io::pipe()?;
    // a few bytes, which the pipe holds
    io::Write::write_all(&mut writer, conf.to_string().as_bytes())?;
    drop(writer);
    command.stdin(reader).stdout(Stdio::piped()).output()
}

/// Whether its pod lives, as far as can be seen from here: what cannot be looked at counts as living.
/// Without `CAP_SYS_ADMIN` that is each namespace that is still there.
fn lives(kernel: &Linux, attachment: &Attachment) -> bool {
    let netns = netns_seen(attachment.netns.clone(), attachment.netns_id);
    match kernel.open_pod(&netns) {
        Ok(pod) => pod.id() == attachment.netns_id,
        Err(OpenPodError::Missing(_)) => is_out_of_sight(&netns),
        Err(OpenPodError::NotNamespace(_) | OpenPodError::HostNamespace(_)) => false,
        Err(_) => true,
    }
}

/// `namespace/name` of the pod, else the container's id.
fn name(attachment: &Attachment) -> &str {
    let pod = attachment.pod.as_deref();
    pod.unwrap_or(&attachment.key.container)
}
