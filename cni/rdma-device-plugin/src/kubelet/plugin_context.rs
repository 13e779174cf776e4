// SPDX-License-Identifier: Apache-2.0
//! Context that all plugins of a node share.

use crate::{chain::ChainStatus, metrics::Metrics, peers::Role, refused::Verdicts};
use node_state::{
    hardware::Hardware,
    node::{Node, Signal},
};
use rdma_resources::{Containers, Grants};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::{Notify, mpsc, watch};

/// Paths, state and channels for plugins.
pub struct PluginContext {
    /// Directory of `kubelet.sock` and of the plugins' sockets.
    pub device_plugins: PathBuf,
    /// Kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// Access to the node's hardware.
    pub hardware: Hardware,
    /// State directory of `rdma-cni`.
    pub state_dir: PathBuf,
    /// Directory of libcni's cache of pods' networks.
    pub cni_cache: PathBuf,
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
