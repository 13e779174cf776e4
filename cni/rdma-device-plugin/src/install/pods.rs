// SPDX-License-Identifier: Apache-2.0
//! Finds pods that still need the installed `rdma-cni`. Reads the records of `rdma-cni` and the pods' network
//! namespaces.

use crate::chain::programs::is_mounted;
use anyhow::{Result, anyhow};
use attachments::pods::{is_out_of_sight, netns_seen};
use attachments::{Attachment, Store, store::Record};
use rdma_netns::{Kernel, Linux};
use serde_json::{Value, json};
use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Pods that have devices, or addresses that IPAM has not released yet.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Names of living pods as `namespace/name`.
    pub living: Vec<String>,
    /// Attachments of pods that ended without a DEL of `rdma-cni`.
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct Ended {
    attachment: Attachment,
    state_dir: PathBuf,
}

/// Reads the records below `state_dirs`, and returns the pods of this boot.
///
/// # Errors
/// A record cannot be read.
pub(super) fn read(state_dirs: &[PathBuf]) -> Result<Pods> {
    let kernel = Linux::new();
    let mut pods = Pods::default();
    for state_dir in state_dirs {
        let store = Store::new(state_dir);
        for key in store.keys(None)? {
            let unreadable = |why: &str| {
                anyhow!(
                    "the record of {key} in {state_dir:?} cannot be read: {why}; its pod may have devices: end \
                     this pod, or remove the record"
                )
            };
            let attachment = match store.load(&key)? {
                Record::None => continue,
                Record::Good(attachment) => *attachment,
                Record::Corrupt(why) => return Err(unreadable(&why)),
                Record::Newer(format) => {
                    let why = format!("its format is {format}, which a newer version wrote");
                    return Err(unreadable(&why));
                }
            };
            // skip records from before a reboot: the reboot returned all devices to the host
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

/// Removes unfinished records and unused lock files below `state_dirs`, which killed calls of `rdma-cni` left. Without
/// `rdma-cni`, no other program would remove these files.
///
/// # Errors
/// The files cannot be listed.
pub(super) fn sweep(state_dirs: &[PathBuf]) -> Result<()> {
    for state_dir in state_dirs {
        Store::new(state_dir).sweep(None, None)?;
    }
    Ok(())
}

impl Pods {
    /// Restores the devices of ended pods by running `rdma-cni` from the first directory of `bin_dirs`. Returns the
    /// pods that were not restored, with the reasons.
    pub(super) fn restore_ended(&self, bin_dirs: &[PathBuf]) -> Vec<String> {
        let mut left = vec![];
        for ended in &self.ended {
            let name = name(&ended.attachment);
            match bin_dirs.iter().any(|it| is_mounted(it)) || is_mounted(&ended.state_dir) {
                // skip this pod: in a container, IPAM plugins do not find their leases, which are elsewhere on the node
                true => left.push(format!(
                    "{name}: the devices can only be restored on the node itself"
                )),
                false => match delete(ended, bin_dirs) {
                    Ok(()) => println!("{name}: it has ended, and its devices are restored"),
                    Err(why) => left.push(format!("{name}: {why}")),
                },
            }
        }
        left
    }
}

/// Runs DEL of `rdma-cni`, as a runtime does for a pod whose namespace is gone.
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
            let texts = ["msg", "details"].map(|it| answer[it].as_str().unwrap_or_default());
            Err(format!("{binary:?}: {} {}", output.status, texts.join(" ")))
        }
    }
}

fn run(command: &mut Command, conf: &Value) -> io::Result<Output> {
    let (reader, mut writer) = io::pipe()?;
    // the configuration is short enough for the pipe's buffer
    io::Write::write_all(&mut writer, conf.to_string().as_bytes())?;
    drop(writer);
    command.stdin(reader).stdout(Stdio::piped()).output()
}

/// Returns true if the pod may be alive. A namespace that cannot be read, or whose directory is not visible here,
/// counts as alive. Without `CAP_SYS_ADMIN`, this process can read no namespace.
fn lives(kernel: &Linux, attachment: &Attachment) -> bool {
    let netns = netns_seen(attachment.netns.clone(), attachment.netns_id);
    attachment.lives(kernel, &netns, &attachment.boot_id) || is_out_of_sight(&netns)
}

/// Returns the pod as `namespace/name`, or otherwise the container's id.
fn name(attachment: &Attachment) -> &str {
    let pod = attachment.pod.as_deref();
    pod.unwrap_or(&attachment.key.container)
}
