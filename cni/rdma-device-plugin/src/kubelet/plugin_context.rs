// SPDX-License-Identifier: Apache-2.0
//! Context that all plugins of a node and the DRA driver share.

use crate::{
    chain::ChainStatus,
    cli::Arguments,
    metrics::{Metrics, View},
    peers::Role,
    refused::Verdicts,
};
use node_state::{
    hardware::Hardware,
    node::{Node, Signal},
};
use rdma_resources::{Containers, Grants};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, watch};

/// Command line, state and channels of the daemon.
pub struct PluginContext {
    /// Command line of the daemon.
    pub arguments: Arguments,
    /// Access to the node's hardware.
    pub hardware: Hardware,
    /// Name of this daemon among the node's daemons.
    pub name: String,
    /// Role of this daemon among the node's daemons.
    pub role: watch::Receiver<Role>,
    /// Files of the grants.
    pub grants: Grants,
    /// Files that the daemon writes for containers.
    pub containers: Containers,
    /// Latest state of the node.
    pub node: watch::Receiver<Arc<Node>>,
    /// Counter of changes in kubelet's directory of device plugins.
    pub directories: watch::Receiver<u64>,
    /// Signals to the daemon.
    pub signals: mpsc::Sender<Signal>,
    /// Requests for an observation by the health task. Only the health task waits for a device's firmware.
    pub observe: Arc<Notify>,
    /// Status of `rdma-cni` in the chain.
    pub chain: watch::Receiver<ChainStatus>,
    /// Receivers of the daemon's decisions on containers' starts.
    pub verdicts: Verdicts,
    /// Metrics.
    pub metrics: Metrics,
}

impl PluginContext {
    /// Returns the present state of the node and of the chain.
    pub fn view(&self) -> View {
        View {
            node: self.node.borrow().clone(),
            chain: self.chain.borrow().clone(),
        }
    }
}

#[cfg(test)]
impl PluginContext {
    /// Returns the context of a daemon that is alone on `node`. Its directories are below `root`.
    pub(crate) fn below(root: &std::path::Path, node: Arc<Node>) -> Self {
        let arguments = Arguments::below(root);
        Self {
            hardware: Hardware::new(&arguments.sysfs, &arguments.dev),
            name: "alone".to_owned(),
            role: watch::channel(Role::ALONE).1,
            grants: Grants::new(&arguments.state_dir),
            containers: Containers::new(&arguments.cdi_dir, &arguments.state_dir),
            node: watch::channel(node).1,
            directories: watch::channel(0).1,
            signals: mpsc::channel(1).0,
            observe: Arc::default(),
            chain: watch::channel(ChainStatus::default()).1,
            verdicts: Verdicts::default(),
            metrics: Metrics::new(),
            arguments,
        }
    }
}
