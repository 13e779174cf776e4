// SPDX-License-Identifier: Apache-2.0
//! The daemon's liveness and readiness for kubelet's probes: `/healthz` and `/readyz`.
//!
//! | module | owns |
//! |---|---|
//! | this module | answers of one daemon from its start on |
//! | [`ask`] | `rdma-device-plugin probe`, which kubelet runs in the container |
//!
//! A container's probes use a socket that only this container has (`--probe-socket`). While a DaemonSet is updated, two
//! daemons run in the node's network namespace, and only one of them has the address for metrics. At this address, the
//! probes of both containers would get the answers of the one daemon.

pub mod ask;

use crate::{
    chain::ChainStatus,
    kubelet::PluginContext,
    metrics::{Metrics, View},
};
use node_state::{node::Node, notices::notices};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Instant,
};

/// Stage of the daemon for probes.
#[derive(Clone, Debug)]
pub enum Stage {
    /// The daemon does not offer the node's devices yet. It first observes them, which waits for their firmware.
    Starting,
    /// The daemon is registered with kubelet, or will soon be.
    Serving(View),
    /// A newer daemon of the node leads.
    Superseded,
}

/// Progress of a daemon from its start on. Contains the daemon's state once the daemon offers resources.
#[derive(Clone, Default)]
pub struct Progress(Arc<OnceLock<Arc<PluginContext>>>);

impl Progress {
    /// Records that the daemon has observed the node and now offers its resources.
    pub fn serves(&self, context: Arc<PluginContext>) {
        // cannot fail: the daemon starts only once
        let _ = self.0.set(context);
    }

    /// Returns the present stage.
    pub fn stage(&self) -> Stage {
        match self.0.get() {
            None => Stage::Starting,
            Some(context) if !context.role.borrow().leads => Stage::Superseded,
            Some(context) => Stage::Serving(context.view()),
        }
    }
}

/// Answers of a daemon to probes. `Ok` and `Err` both contain the text of the answer.
#[derive(Clone)]
pub struct Probes {
    metrics: Metrics,
    kubelet: PathBuf,
    stage: Arc<dyn Fn() -> Stage + Send + Sync>,
}

impl Probes {
    /// Returns the probes of the daemon with these `metrics`, for the kubelet of `kubelet_dir`.
    pub fn new(
        metrics: Metrics,
        kubelet_dir: &Path,
        stage: impl Fn() -> Stage + Send + Sync + 'static,
    ) -> Self {
        Self {
            metrics,
            kubelet: kubelet_dir.join("device-plugins/kubelet.sock"),
            stage: Arc::new(stage),
        }
    }

    /// Checks that the daemon needs no restart.
    ///
    /// # Errors
    /// The daemon needs a restart, for the reason given.
    pub fn live(&self) -> Result<String, String> {
        match (self.stage)() {
            Stage::Starting => Ok(STARTING.to_owned()),
            Stage::Superseded => Ok(SUPERSEDED.to_owned()),
            Stage::Serving(view) => {
                let is_there = self.kubelet.exists();
                self.metrics
                    .health(&names(&view.node), is_there, Instant::now())
            }
        }
    }

    /// Checks that kubelet, if present, has the daemon's lists and DRA driver. If a chain is configured, also checks
    /// that the runtime would call `rdma-cni`, or that the daemon withholds it.
    ///
    /// A daemon that is no longer the leader is ready: it still answers kubelet, and leads again when the newer daemon
    /// ends. If it were not ready, Kubernetes would delete its pod before the new pod is ready.
    ///
    /// # Errors
    /// The daemon is not ready, for the reason given.
    pub fn ready(&self) -> Result<String, String> {
        let View { node, chain } = match (self.stage)() {
            Stage::Starting => return Err(STARTING.to_owned()),
            Stage::Superseded => return Ok(SUPERSEDED.to_owned()),
            Stage::Serving(view) => view,
        };
        let is_called = match chain {
            ChainStatus::Unseen | ChainStatus::NotCalled(_) => false,
            ChainStatus::Off
            | ChainStatus::Left(_)
            | ChainStatus::Called(_)
            | ChainStatus::Withheld(_) => true,
        };
        // ignore missing lists and a missing driver if kubelet is absent
        let missing: Vec<String> = match self.kubelet.exists() {
            true => [
                self.metrics.lists_are_out(&names(&node)),
                self.metrics.driver_is_known(),
            ]
            .into_iter()
            .filter_map(Result::err)
            .collect(),
            false => vec![],
        };
        let notices = notices(&node.conf, &node.offers, &node.inventory);
        let warnings = notices.iter().map(|it| format!("warning: {it}\n"));
        let warnings: String = warnings.collect();
        match is_called && missing.is_empty() {
            true => Ok(format!("{chain}\n{warnings}")),
            false => Err(format!("{}{chain}\n{warnings}", missing.concat())),
        }
    }
}

fn names(node: &Node) -> Vec<&str> {
    node.advertised().map(|it| it.name.as_str()).collect()
}

const STARTING: &str = "starting: the node's devices are not offered yet\n";

const SUPERSEDED: &str =
    "a newer daemon of this node leads; this one leads again if the newer one ends\n";
