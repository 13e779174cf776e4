// SPDX-License-Identifier: Apache-2.0
//! RDMA devices that the node's fabric watch found unhealthy.

use crate::{log_once::LogOnce, node::Node, watch::until};
use rdma_netns::{Device, Inventory};
use rdma_ping::fabric::Report;
use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

const REASON: &str = "it reaches no rail of other nodes: check cable, switch port and VLAN \
                      (found by rdma-device-plugin fabric)";

/// Interval between readings of the fabric watch's report.
const INTERVAL: Duration = Duration::from_secs(10);

/// Names of RDMA devices.
pub type Devices = BTreeSet<String>;

/// Returns the reason if the device is one of `unhealthy`, the devices that the fabric watch found unhealthy.
pub(super) fn fault(
    unhealthy: &watch::Receiver<Devices>,
    device: &Device,
    inventory: &Inventory,
) -> Option<String> {
    let unhealthy = unhealthy.borrow();
    let mut hcas = inventory.function(&device.address)?.hcas.iter();
    let is_among = hcas.any(|it| unhealthy.contains(&it.name));
    is_among.then(|| REASON.to_owned())
}

/// Waits until `settings` change, and returns the new value. Waits forever if the sender is gone.
pub(super) async fn others<T: Clone>(settings: &mut Option<watch::Receiver<T>>) -> T {
    if let Some(receiver) = settings {
        match receiver.changed().await {
            Ok(()) => return receiver.borrow_and_update().clone(),
            Err(_) => *settings = None,
        }
    }
    std::future::pending().await
}

/// Returns the RDMA devices that are unhealthy according to the fabric watch's report. Returns none if the
/// configuration has no `fabric` (`is_on` is false), or if the report cannot be read.
pub fn read(state_dir: &Path, is_on: bool, failed: &mut LogOnce) -> Devices {
    if !is_on {
        return Devices::new();
    }
    let rails = match Report::read(state_dir) {
        Ok(report) => {
            failed.ends();
            report.rails
        }
        Err(error) => {
            let line = format!("the daemon ignores the results of the fabric watch: {error}");
            failed.warn(&line);
            vec![]
        }
    };
    let unhealthy = rails.into_iter().filter(|it| it.is_unhealthy);
    unhealthy.map(|it| it.device).collect()
}

/// Reads the report repeatedly, and sends the unhealthy devices to `devices`. Ends when the sender of `node` is
/// dropped.
pub async fn follow(
    mut node: watch::Receiver<Arc<Node>>,
    devices: watch::Sender<Devices>,
    state_dir: Arc<Path>,
) {
    let mut failed = LogOnce::default();
    loop {
        let is_on = node.borrow_and_update().conf.fabric;
        let directory = state_dir.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let found = read(&directory, is_on, &mut failed);
            (found, failed)
        });
        let Ok((found, reported)) = reading.await else {
            return;
        };
        failed = reported;
        devices.send_if_modified(|last| {
            let is_other = *last != found;
            *last = found;
            is_other
        });
        let next = is_on.then(|| Instant::now() + INTERVAL);
        tokio::select! {
            changed = node.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = until(next) => {}
        }
    }
}
