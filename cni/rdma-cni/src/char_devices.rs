// SPDX-License-Identifier: Apache-2.0
//! Keeps kubelet's promises of character devices to containers. When an RDMA device moves, the kernel makes new
//! character devices for it, with the lowest free numbers. Before the move, the daemon has already answered Allocate.
//!
//! A container gets a device by CDI name or by path. For a CDI name, this module updates the CDI entry before the
//! container starts. For a path, the answer to Allocate is final: ADD fails if the path now leads to another device.

use crate::{apply, claims};
use attachments::{Attachment, Rail};
use rdma_netns::{CharDevice, Observed, RdmaDevice};
use rdma_resources::{Cdi, CharNode, FileError, Published};
use std::path::Path;

/// A container would get a device other than the promised one, or no device.
#[derive(Debug, thiserror::Error)]
pub enum CharDeviceError {
    /// `rdma-cni` could not write the CDI entry by which the pod's containers get a device.
    #[error("the CDI entry of RDMA device {rdma} cannot be updated after its move: {source}")]
    Entry {
        /// The RDMA device.
        rdma: String,
        /// Reason.
        source: FileError,
    },
    /// A path that kubelet promised leads to another device after the move.
    #[error(
        "after its move RDMA device {rdma} has {now}, but kubelet promised /dev/infiniband/{promised} ({id}) to a \
         container of the pod, and this path {}; set cdi to true in rdma-device-plugin's configuration, or delete the \
         pod, so that kubelet allocates devices again",
        holder.as_ref().map_or("now belongs to no RDMA device".to_owned(), |it| format!("now belongs to {it}"))
    )]
    Promised {
        /// The RDMA device.
        rdma: String,
        /// Present character devices of the RDMA device.
        now: String,
        /// The character device that kubelet promised to the container.
        promised: String,
        /// The id that kubelet allocated.
        id: String,
        /// The RDMA device that has the promised character device after the move.
        holder: Option<String>,
    },
}

/// Updates the CDI entries after the moves of an ADD, under the node's lock. Then checks that promised paths still lead
/// to their devices.
pub fn settle(
    state_dir: &Path,
    attachment: &Attachment,
    observed: &Observed,
) -> Result<(), CharDeviceError> {
    if !apply::renumbers(attachment) {
        return Ok(());
    }
    let mut failed = follow(state_dir, attachment, observed, true);
    if let Some(needed) = failed.iter().position(|it| it.by_name) {
        let Failed { rdma, source, .. } = failed.swap_remove(needed);
        return Err(CharDeviceError::Entry { rdma, source });
    }
    log_failures(&failed);
    match broken_promise(attachment, observed) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Updates the CDI entries after devices have returned to the host. Usually the daemon updates the entries, but it may
/// be down. If this function cannot write an entry, the daemon or the next move updates the entry.
pub fn settle_on_host(state_dir: &Path, attachment: &Attachment, observed: &Observed) {
    if apply::renumbers(attachment) {
        log_failures(&follow(state_dir, attachment, observed, false));
    }
}

/// A CDI entry that could not be updated.
struct Failed {
    rdma: String,
    /// True if containers of the pod get the device by its CDI name.
    by_name: bool,
    source: FileError,
}

fn log_failures(failed: &[Failed]) {
    for Failed { rdma, source, .. } in failed {
        log::warn!("cannot update the CDI entry of RDMA device {rdma}: {source}");
    }
}

/// Updates the CDI entries of the attachment's RDMA devices, and the specifications of claims. With `need`, also
/// creates missing entries that containers use. After an error, continues with the other entries.
fn follow(
    state_dir: &Path,
    attachment: &Attachment,
    observed: &Observed,
    need: bool,
) -> Vec<Failed> {
    let by_name = |rail: &Rail| rail.allocated.as_ref().is_some_and(|it| it.cdi);
    // errors of entries that containers need precede other errors
    let (needed, others): (Vec<&Rail>, Vec<&Rail>) =
        attachment.rails.iter().partition(|rail| by_name(rail));
    let rails = needed.into_iter().chain(others);
    let present: Vec<(&Rail, &RdmaDevice)> = rails
        .filter_map(|rail| Some((rail, plan::rdma_anywhere(rail, observed)?)))
        .collect();
    let Some((first, device)) = present.first() else {
        return vec![];
    };
    let mut all = vec![];
    let moved: Vec<&RdmaDevice> = present.iter().map(|(_, device)| *device).collect();
    if let Err(source) = claims::follow(state_dir, &moved, observed) {
        // containers get a claim's device by its CDI name
        all.push(Failed {
            rdma: device.name.clone(),
            by_name: true,
            source,
        });
    }
    let failed = |rail: &Rail, device: &RdmaDevice, source| Failed {
        rdma: device.name.clone(),
        by_name: by_name(rail),
        source,
    };
    let directory = match Published::read(state_dir) {
        Ok(published) => published.and_then(|it| it.cdi_dir),
        Err(source) => {
            all.push(failed(first, device, source));
            return all;
        }
    };
    let Some(directory) = directory else {
        return all;
    };
    let cdi = Cdi::new(&directory, state_dir);
    for (rail, device) in present {
        let Some(address) = &device.parent else {
            continue;
        };
        let nodes = claims::nodes_of(device);
        let allocated = rail.allocated.as_ref().filter(|_| need);
        let promised = allocated.map_or(&[] as &[CharNode], |it| &it.by_name);
        match cdi.renumber(address, &nodes, promised) {
            Ok(true) => log::info!("{}: the CDI entry now has {}", device.name, names(device)),
            Ok(false) => {}
            Err(source) => all.push(failed(rail, device, source)),
        }
    }
    all
}

/// Returns an error for the first promised path that does not lead to its RDMA device after the move.
fn broken_promise(attachment: &Attachment, observed: &Observed) -> Option<CharDeviceError> {
    apply::moved(attachment, observed).find_map(|(before, after)| {
        let allocated = attachment.allocated_with(before)?;
        // compares only names: the runtime resolves the path by name, and a reboot may have changed the number
        let kept = |node: &CharNode| after.char_devices.iter().any(|it| it.name == node.name);
        let promised = allocated.by_path.iter().find(|node| !kept(node))?;
        Some(CharDeviceError::Promised {
            rdma: after.name.clone(),
            now: names(after),
            promised: promised.name.clone(),
            id: allocated
                .ids
                .first()
                .map(ToString::to_string)
                .unwrap_or_default(),
            holder: holder(&promised.name, observed),
        })
    })
}

/// Returns the visible RDMA device that has the character device `name` after the move.
fn holder(name: &str, observed: &Observed) -> Option<String> {
    let pod = observed.pod.iter().flat_map(|pod| &pod.rdma);
    let mut devices = pod.chain(&observed.host.rdma);
    let has_it = |device: &&RdmaDevice| device.char_devices.iter().any(|it| it.name == name);
    devices.find(has_it).map(|device| device.name.clone())
}

fn names(device: &RdmaDevice) -> String {
    let names = device.char_devices.iter().map(|it: &CharDevice| &*it.name);
    names.collect::<Vec<_>>().join(" ")
}
