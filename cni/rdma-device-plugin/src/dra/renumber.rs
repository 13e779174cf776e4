// SPDX-License-Identifier: Apache-2.0
//! Keeps what prepared claims give true: devices are renumbered, go and come back while pods have them, and a container
//! that starts again is to get its own, or none.

use super::prepare::in_words;
use crate::{
    hardware::{Hardware, HardwareError},
    node::Node,
    watch::Watch,
};
use ::dra::{Claims, Record, store::Check};
use rdma_netns::{Kernel, Linux};
use rdma_resources::{FileError, grant::GrantedDevice};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

/// A look that failed is tried again after that.
const AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Looks at the claims in `state_dir` now, and whenever they or `node` change, until nobody follows it any more.
pub async fn follow(mut node: watch::Receiver<Arc<Node>>, hardware: Hardware, state_dir: PathBuf) {
    let claims = Claims::new(&state_dir);
    let mut records = Watch::new(vec![claims.directory().to_owned()]);
    // what went wrong last: it is said once
    let mut told = vec![];
    loop {
        node.borrow_and_update();
        let (all, seen) = (claims.clone(), hardware.clone());
        let checked = spawn_blocking(move || check(&all, &seen)).await;
        let checked = checked.unwrap_or_else(|error| Err(HardwareError::Stopped(error).into()));
        let failed = match checked {
            Ok(Check { changed, failed }) => {
                changed.iter().for_each(tell);
                failed.iter().map(ToString::to_string).collect()
            }
            Err(failure) => vec![failure.to_string()],
        };
        for line in failed.iter().filter(|line| !told.contains(*line)) {
            log::error!("claims may give devices with numbers of earlier: {line}");
        }
        told = failed;
        tokio::select! {
            changed = node.changed() => if changed.is_err() {
                return;
            },
            // a device may have gone just before containers could have it
            () = records.changed() => {}
            () = sleep(AGAIN), if !told.is_empty() => {}
        }
    }
}

fn check(claims: &Claims, hardware: &Hardware) -> Result<Check, Failure> {
    let boot_id = Linux::default().boot_id().map_err(HardwareError::from)?;
    claims.check(&boot_id, || Ok(hardware.presence()?))
}

fn tell(record: &Record) {
    let claim = &record.claim;
    let lost: Vec<String> = record.lost().map(named).collect();
    match lost.as_slice() {
        [] => log::info!(
            "claim {claim} gives its devices as they are now: {}",
            in_words(record)
        ),
        lost => log::warn!(
            "claim {claim} has no {} any more: none of its containers starts again until it is back; delete the \
             pod to have other devices allocated",
            lost.join(", ")
        ),
    }
}

/// `mlx5_0 (0000:3b:00.0)`
fn named(nic: &GrantedDevice) -> String {
    format!("{} ({})", nic.rdma, nic.address)
}
