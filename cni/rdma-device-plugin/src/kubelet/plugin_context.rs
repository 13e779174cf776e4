// SPDX-License-Identifier: Apache-2.0
//! What all plugins of a node have in common.

use crate::{
    chain::ChainStatus,
    hardware::Hardware,
    metrics::Metrics,
    node::{Node, Signal},
    peers::Role,
    refused::Verdicts,
};
use rdma_resources::{Containers, Grants};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::{mpsc, watch};

/// Where a plugin works, and whom it tells.
pub struct PluginContext {
    /// Where `kubelet.sock` is, and the plugins' own sockets.
    pub device_plugins: PathBuf,
    /// Where kubelet tells what pods have.
    pub pod_resources: PathBuf,
    /// The hardware.
    pub hardware: Hardware,
    /// The state directory of `rdma-cni`.
    pub state_dir: PathBuf,
    /// Where the runtime keeps how it made pods' networks.
    pub cni_cache: PathBuf,
    /// This daemon's name among those of the node.
    pub name: String,
    /// Where it stands among them.
    pub role: watch::Receiver<Role>,
    /// What was given.
    pub grants: Grants,
    /// What containers are told of their pods' rails.
    pub containers: Containers,
    /// What is known of the node.
    pub node: watch::Receiver<Arc<Node>>,
    /// Counts changes in kubelet's directory of device plugins.
    pub directories: watch::Receiver<u64>,
    /// To the daemon.
    pub signals: mpsc::Sender<Signal>,
    /// How it stands with our plugin's place in the chain.
    pub chain: watch::Receiver<ChainStatus>,
    /// Who hears which containers may start, and which may not.
    pub verdicts: Verdicts,
    /// Whoever counts.
    pub metrics: Metrics,
}
