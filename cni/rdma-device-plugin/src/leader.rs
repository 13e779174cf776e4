// SPDX-License-Identifier: Apache-2.0
//! Tasks of the leader, which is one of a node's daemons ([`peers`](crate::peers)). The leader keeps `rdma-cni` in the
//! chain, maintains eRDMA NICs, writes the node's ResourceSlices, labels and condition, reports claims and pods' rails,
//! and answers HTTP requests at the metrics address.

use crate::{
    chain::{self, ChainStatus},
    dra::{publisher::Publisher, reporter::Reporter},
    kubelet::PluginContext,
    metrics::{self, Sources},
    node_features,
    peers::lock_leadership,
    report::{Topic, condition_writer::ConditionWriter, pods, rail_events::RailEvents},
};
use ::erdma::driver::users::Paths;
use cni_protocol::lock::Held;
use node_state::{
    erdma::reconciler::{self, AnyLoader, ReconcilerContext},
    node::Node,
};
use std::{fs, io, path::Path, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinSet};

const PROC: &str = "/proc";

/// File with the node's host name. Kubelet sets the same name in a container with `hostNetwork`.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Interval between attempts to bind the metrics address.
const ADDRESS_AGAIN: Duration = Duration::from_secs(5);

/// Leadership of this daemon, and the leader's tasks.
#[derive(Default)]
pub struct Leader {
    /// Task that waits for the leader's lock.
    status: JoinSet<io::Result<Held>>,
    tasks: Option<LeaderTasks>,
    elected: Option<Held>,
    /// Tasks that have not ended yet after this daemon gave up leadership.
    ending: JoinSet<()>,
}

/// Event that the daemon's loop handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This daemon can lead: it has the leader's lock, or locking failed.
    Elected,
    /// A task of the leader has ended unexpectedly.
    Ended,
}

struct LeaderTasks {
    /// Dropping this sender stops the reconcilers.
    node: watch::Sender<Arc<Node>>,
    reconcilers: JoinSet<()>,
    server: JoinSet<()>,
    lead: Option<Held>,
}

impl Leader {
    /// Starts a task that waits for the leader's lock. Does nothing if this daemon leads, has the lock, or already
    /// waits for it.
    pub fn campaign(&mut self, state_dir: &Path) {
        if self.tasks.is_none() && self.elected.is_none() && self.status.is_empty() {
            let state_dir = state_dir.to_owned();
            self.status
                .spawn(async move { lock_leadership(&state_dir).await });
        }
    }

    /// Waits until this daemon has the leader's lock. Also returns if locking fails: the daemon then leads without the
    /// lock. The caller can cancel and repeat the call.
    pub async fn elected(&mut self) {
        if self.elected.is_some() {
            return;
        }
        match self.status.join_next().await {
            Some(Ok(Ok(lead))) => self.elected = Some(lead),
            Some(Ok(Err(error))) => {
                log::warn!("cannot get the leader's lock, so two daemons could lead: {error}")
            }
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// Waits for an event. The caller can cancel and repeat the call.
    pub async fn event(&mut self) -> Event {
        match &mut self.tasks {
            Some(tasks) => {
                tasks.reconcilers.join_next().await;
                Event::Ended
            }
            None => {
                self.elected().await;
                Event::Elected
            }
        }
    }

    /// Returns true if this daemon leads, or has the leader's lock, or waits for it.
    pub fn is_up(&self) -> bool {
        self.tasks.is_some() || self.elected.is_some() || !self.status.is_empty()
    }

    /// Starts the leader's tasks.
    pub fn lead(
        &mut self,
        chain: &watch::Sender<ChainStatus>,
        context: &Arc<PluginContext>,
        loader: AnyLoader,
    ) {
        let arguments = &context.arguments;
        let node = context.node.borrow().clone();
        let own = watch::Sender::new(node.clone());
        let mut reconcilers = JoinSet::new();
        let nics = reconciler::Reconciler::new(ReconcilerContext {
            node: own.subscribe(),
            signals: context.signals.clone(),
            sysfs: arguments.sysfs.clone(),
            dev: arguments.dev.clone(),
            paths: Paths {
                state_dir: arguments.state_dir.clone(),
                socket: arguments.pod_resources(),
                proc: PROC.into(),
            },
            loader,
            again: reconciler::AGAIN,
        });
        reconcilers.spawn(nics.run());
        let paths = (arguments.state_dir.clone(), arguments.cni_cache_dir.clone());
        reconcilers
            .spawn(chain::reconciler::Reconciler::new(own.subscribe(), paths, chain.clone()).run());
        if let Some(dra) = &node.conf.dra {
            let account = arguments.service_account_dir.clone();
            let reporter = Reporter::new(own.subscribe(), account.clone(), &arguments.state_dir);
            let (driver, metrics) = (dra.driver.clone(), context.metrics.clone());
            let publisher = Publisher::new(own.subscribe(), account, driver, metrics);
            reconcilers.spawn(publisher.run());
            reconcilers.spawn(reporter.run());
        }
        if let Some(directory) = &arguments.node_features {
            let writer = node_features::Writer::new(directory.clone(), own.subscribe());
            reconcilers.spawn(writer.run());
        }
        let account = || arguments.service_account_dir.clone();
        if arguments.report.contains(&Topic::NodeCondition) {
            reconcilers.spawn(ConditionWriter::new(own.subscribe(), account()).run());
        }
        if arguments.report.contains(&Topic::Events) {
            let paths = pods::Paths {
                state_dir: arguments.state_dir.clone(),
                pod_resources: arguments.pod_resources(),
                cni_cache: arguments.cni_cache_dir.clone(),
            };
            reconcilers.spawn(RailEvents::new(own.subscribe(), account(), paths).run());
        }
        let mut server = JoinSet::new();
        server.spawn(serve(context.clone()));
        self.tasks = Some(LeaderTasks {
            node: own,
            reconcilers,
            server,
            lead: self.elected.take(),
        });
    }

    /// Sends a new state of the node to the leader's tasks.
    pub fn follow(&self, node: &Arc<Node>) {
        if let Some(tasks) = &self.tasks {
            tasks.node.send_replace(node.clone());
        }
    }

    /// Gives up leadership. Stops the server at the metrics address at once. The other tasks end in the background
    /// after their current step.
    pub async fn retire(&mut self) {
        self.status.shutdown().await;
        self.elected = None;
        while self.ending.try_join_next().is_some() {}
        if let Some(mut tasks) = self.tasks.take() {
            tasks.server.shutdown().await;
            self.ending.spawn(async move {
                drop(tasks.node);
                while tasks.reconcilers.join_next().await.is_some() {}
                drop(tasks.lead);
            });
        }
    }

    /// Stops the leader's tasks at once. Keeps the leader's lock until this value is dropped.
    pub async fn stop(&mut self) {
        self.status.shutdown().await;
        if let Some(mut tasks) = self.tasks.take() {
            tasks.server.shutdown().await;
            tasks.reconcilers.shutdown().await;
            self.elected = tasks.lead;
        }
    }
}

/// Serves HTTP requests at the metrics address. Retries if the address cannot be bound. A failure does not end the
/// daemon, because pods need the daemon and not its metrics.
async fn serve(context: Arc<PluginContext>) {
    let arguments = &context.arguments;
    let of_node = context.clone();
    let sources = Sources {
        view: Arc::new(move || of_node.view()),
        node: fs::read_to_string(HOSTNAME).unwrap_or_default(),
        state_dir: arguments.state_dir.clone(),
        kubelet_dir: arguments.kubelet_dir.clone(),
        sysfs: arguments.sysfs.clone(),
    };
    let address = arguments.metrics_address;
    metrics::serve_when_free(address, context.metrics.clone(), sources, ADDRESS_AGAIN).await;
}
