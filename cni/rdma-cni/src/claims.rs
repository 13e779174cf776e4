// SPDX-License-Identifier: Apache-2.0
//! Claims (dynamic resource allocation), whose CDI specifications wait for a pod's network: what containers get is
//! final only when nothing moves any more. Without a specification the runtime makes no container.

use dra::Claims;
use plan::select::Choice;
use rdma_netns::{DeviceAddress, Observed, RdmaDevice};
use rdma_resources::{CharNode, FileError};
use std::{collections::BTreeSet, path::Path};

/// A container of the pod would not get what its claim was allocated.
#[derive(Debug, thiserror::Error)]
#[error("the CDI specification of claim {uid} cannot be written: {source}")]
pub struct ClaimError {
    /// The claim's uid.
    uid: String,
    /// Why.
    source: FileError,
}

/// The sandbox `container` has its network: the claims by which `choice` was allocated tell containers of the
/// character devices as they are `observed` now.
pub fn joined(
    state_dir: &Path,
    container: &str,
    choice: &Choice<'_>,
    observed: &Observed,
) -> Result<(), ClaimError> {
    let Choice::Allocated(meanings) = choice else {
        return Ok(());
    };
    let uids: BTreeSet<&String> = meanings.iter().filter_map(|it| it.claim.as_ref()).collect();
    let claims = Claims::new(state_dir);
    for uid in uids {
        let failed = |source| ClaimError {
            uid: uid.clone(),
            source,
        };
        let now = |address: &DeviceAddress| nodes(address, observed);
        let joined = claims.joined(uid, &observed.boot_id, container, |nic| now(&nic.address));
        if joined.map_err(failed)? {
            log::info!("claim {uid}: its containers may have their devices");
        } else {
            log::warn!("claim {uid} was given up while its pod's network was made");
        }
    }
    Ok(())
}

/// The sandbox `container` has its network no more. What cannot be written keeps no pod from its end: the claim goes
/// with its last pod.
pub fn left(state_dir: &Path, container: &str) {
    if let Err(error) = Claims::new(state_dir).left(container) {
        log::warn!("{error}");
    }
}

/// The character devices of the RDMA device at `address`, in the pod or on the host.
fn nodes(address: &DeviceAddress, observed: &Observed) -> Option<Vec<CharNode>> {
    let function = observed.devices.iter().find(|it| it.address == *address);
    let is_its = |rdma: &&RdmaDevice| {
        rdma.parent.as_ref() == Some(address)
            || function.is_some_and(|it| it.rdma.contains(&rdma.name))
    };
    let pod = observed.pod.iter().flat_map(|pod| &pod.rdma);
    let device = pod.chain(&observed.host.rdma).find(is_its)?;
    Some(device.char_devices.iter().map(CharNode::from).collect())
}
