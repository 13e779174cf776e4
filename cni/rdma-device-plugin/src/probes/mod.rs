// SPDX-License-Identifier: Apache-2.0
//! Whether the daemon does its work, for kubelet's probes: `/healthz` and `/readyz`.
//!
//! | module | owns |
//! |---|---|
//! | this one | the answers of one daemon, from its start on |
//! | [`ask`] | `rdma-device-plugin probe`: what kubelet runs in the container |
//!
//! Two daemons are beside each other while a DaemonSet is updated, in the network of their node. An
//! address has one of them: asked there, it would answer for the other one too. So a container's probes
//! ask by a socket that only this container has (`--probe-socket`).

pub mod ask;

use crate::{
    chain::ChainStatus,
    metrics::{Metrics, View},
    node::Node,
    offer::Offer,
    peers::Role,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Instant,
};
use tokio::sync::watch;

/// How far a daemon has come.
#[derive(Clone, Debug)]
pub enum Stage {
    /// It has not seen the node's devices yet, which may take long: a device's firmware is waited for.
    Starting,
    /// It serves, or is about to.
    Serving(Box<View>),
    /// A newer daemon of the node does.
    Superseded,
}

/// A daemon's way from its start on.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<OnceLock<Served>>);

#[derive(Debug)]
struct Served {
    role: watch::Receiver<Role>,
    node: watch::Receiver<Arc<Node>>,
    chain: watch::Receiver<ChainStatus>,
}

impl Progress {
    /// The daemon has seen the node, and offers what there is.
    pub fn serves(
        &self,
        role: watch::Receiver<Role>,
        node: watch::Receiver<Arc<Node>>,
        chain: watch::Receiver<ChainStatus>,
    ) {
        // it starts once
        let _ = self.0.set(Served { role, node, chain });
    }

    /// How far it has come.
    pub fn stage(&self) -> Stage {
        match self.0.get() {
            None => Stage::Starting,
            Some(served) if !served.role.borrow().leads => Stage::Superseded,
            Some(served) => Stage::Serving(Box::new(View {
                chain: served.chain.borrow().clone(),
                ..View::from(&**served.node.borrow())
            })),
        }
    }
}

/// What a daemon answers: words, as `Ok` if it is so.
#[derive(Clone)]
pub struct Probes {
    metrics: Metrics,
    kubelet: PathBuf,
    stage: Arc<dyn Fn() -> Stage + Send + Sync>,
}

impl Probes {
    /// Those of the daemon whose figures are `metrics`, for the kubelet of `kubelet_dir`.
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

    /// Whether it need not be started anew.
    ///
    /// # Errors
    /// It had better be, and why.
    pub fn live(&self) -> Result<String, String> {
        match (self.stage)() {
            Stage::Starting => Ok(STARTING.to_owned()),
            Stage::Superseded => Ok(SUPERSEDED.to_owned()),
            Stage::Serving(view) => {
                let is_there = self.kubelet.exists();
                self.metrics
                    .health(&names(&view.offers), is_there, Instant::now())
            }
        }
    }

    /// Whether kubelet has its lists and its DRA driver, and the runtime would call our plugin where it is to. One that a
    /// newer daemon took over from is ready: it answers what kubelet asks it still, and takes over again
    /// when the newer one goes. Kubernetes deletes an old pod that is not ready whatever the new one is.
    ///
    /// # Errors
    /// Not yet, or not any more, and why.
    pub fn ready(&self) -> Result<String, String> {
        let View {
            chain,
            offers,
            notices,
            ..
        } = match (self.stage)() {
            Stage::Starting => return Err(STARTING.to_owned()),
            Stage::Superseded => return Ok(SUPERSEDED.to_owned()),
            Stage::Serving(view) => *view,
        };
        let is_called = match chain {
            ChainStatus::Unseen | ChainStatus::NotCalled(_) => false,
            ChainStatus::Off
            | ChainStatus::Left(_)
            | ChainStatus::Called { .. }
            | ChainStatus::Withheld(_) => true,
        };
        // while kubelet is away nobody waits for it
        let missing: Vec<String> = match self.kubelet.exists() {
            true => [
                self.metrics.lists_are_out(&names(&offers)),
                self.metrics.driver_is_known(),
            ]
            .into_iter()
            .filter_map(Result::err)
            .collect(),
            false => vec![],
        };
        let warnings = notices.iter().map(|it| format!("warning: {it}\n"));
        let warnings: String = warnings.collect();
        match is_called && missing.is_empty() {
            true => Ok(format!("{chain}\n{warnings}")),
            false => Err(format!("{}{chain}\n{warnings}", missing.concat())),
        }
    }
}

fn names(offers: &[Offer]) -> Vec<&str> {
    offers.iter().map(|it| it.name.as_str()).collect()
}

const STARTING: &str = "starting: the node's devices have not been looked at yet\n";

const SUPERSEDED: &str =
    "a newer daemon of this node serves; this one stands by until it has gone\n";
