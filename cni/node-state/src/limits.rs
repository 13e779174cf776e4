// SPDX-License-Identifier: Apache-2.0
//! Keeps the limits of pods' use of RDMA devices ([`rdma_resources::limited`]). Lifts the limits of a pod when its
//! limited containers have ended, because no DEL would lift the limits of a pod with `hostNetwork`. Sets the limits
//! again for devices that come back.

use crate::{
    node::Node,
    watch::{Watch, until},
};
use rdma_resources::LimitedContainers;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep},
};

/// Longest interval between an error and the next attempt.
const RETRY: Duration = Duration::from_secs(10);

/// Shortest interval between an error and the next attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the limits of `containers` until the sender of `node` is dropped.
pub async fn keep(containers: LimitedContainers, mut node: watch::Receiver<Arc<Node>>) {
    let mut last = None;
    let watched = || Vec::from_iter(containers.watched());
    let mut changes = Watch::new(watched());
    loop {
        // watch before reading, so that no change is missed; the paths may change meanwhile
        while changes.replace(watched()) {}
        let all = containers.clone();
        let settled = spawn_blocking(move || {
            let error = all.settle().err().map(|error| error.to_string());
            let pods = all.outlasting().into_iter();
            let pods: Vec<_> = pods
                .map(|it| format!("{}/{}", it.namespace, it.pod))
                .collect();
            let outlasting = (!pods.is_empty()).then(|| {
                format!(
                    "the cgroups of {}, or their rdma controller, were removed before the daemon lifted the pods' RDMA \
                     limits: reboot the node before you remove an RDMA device or unload its driver: without the reboot \
                     the kernel can crash",
                    pods.join(", ")
                )
            });
            [error, outlasting]
        });
        let sentences = settled.await.unwrap_or_else(|panic| {
            let error = format!("cannot keep the limits of RDMA devices: {panic}");
            [Some(error), None]
        });
        let retry = sentences[0].is_some().then(|| Instant::now() + RETRY);
        if last.as_ref() != Some(&sentences) {
            sentences.iter().flatten().for_each(|it| log::warn!("{it}"));
            last = Some(sentences);
        }
        if retry.is_some() {
            // wait, because the daemon's own write of a watched file counts as a change, too
            sleep(PAUSE).await;
        }
        tokio::select! {
            () = changes.changed() => {}
            () = until(retry) => {}
            changed = node.changed() => if changed.is_err() { return },
        }
    }
}
