// SPDX-License-Identifier: Apache-2.0
//! What only one daemon of a node does ([`peers`](crate::peers)): it keeps our plugin in the chain,
//! sees to eRDMA NICs, writes the node's labels and condition, tells pods of their rails, and answers at the
//! address for metrics and probes.

use crate::{
    chain::{self, ChainStatus},
    cli::Arguments,
    dra::{publisher::Publisher, reporter::Reporter},
    erdma::reconciler::{self, AnyLoader, ReconcilerContext},
    kubelet::PluginContext,
    metrics::{self, Sources, View},
    node::Node,
    node_features,
    peers::Lead,
    report::{Topic, condition_writer::ConditionWriter, pods, rail_events::RailEvents},
};
use ::erdma::driver::users::Paths;
use std::{fs, io, path::Path, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinSet};

/// Where processes are seen.
const PROC: &str = "/proc";

/// The node's name: kubelet gives it to a container in the node's network, too.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// An address that is somebody else's is tried again after that.
const ADDRESS_AGAIN: Duration = Duration::from_secs(5);

/// The work of the leader, while this daemon does it.
#[derive(Default)]
pub struct Leader {
    /// The lock is waited for.
    status: JoinSet<io::Result<Lead>>,
    office: Option<Office>,
    elected: Option<Lead>,
    /// What was let go of comes to its end.
    ending: JoinSet<()>,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The lock is ours: it can begin.
    Elected,
    /// A reconciler has ended, which it does not while this daemon leads.
    Ended,
}

struct Office {
    /// The reconcilers' end is that it goes.
    node: watch::Sender<Arc<Node>>,
    reconcilers: JoinSet<()>,
    server: JoinSet<()>,
    lead: Option<Lead>,
}

impl Leader {
    /// Waits for the lock, unless it is held or waited for already.
    pub fn stand(&mut self, state_dir: &Path) {
        if self.office.is_none() && self.elected.is_none() && self.status.is_empty() {
            let state_dir = state_dir.to_owned();
            self.status
                .spawn(async move { Lead::wait(&state_dir).await });
        }
    }

    /// Waits until the lock is ours. It may be called again and again.
    pub async fn elected(&mut self) {
        if self.elected.is_some() {
            return;
        }
        match self.status.join_next().await {
            Some(Ok(Ok(lead))) => self.elected = Some(lead),
            Some(Ok(Err(error))) => log::warn!("two daemons would not be kept apart: {error}"),
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// Waits until there is something to do. It may be called again and again.
    pub async fn event(&mut self) -> Event {
        match &mut self.office {
            Some(office) => {
                office.reconcilers.join_next().await;
                Event::Ended
            }
            None => {
                self.elected().await;
                Event::Elected
            }
        }
    }

    /// Whether this daemon leads, or is about to.
    pub fn is_up(&self) -> bool {
        self.office.is_some() || self.elected.is_some() || !self.status.is_empty()
    }

    /// Begins.
    pub fn lead(
        &mut self,
        arguments: &Arguments,
        node: &watch::Sender<Arc<Node>>,
        chain: &watch::Sender<ChainStatus>,
        context: &PluginContext,
        loader: AnyLoader,
    ) {
        let own = watch::Sender::new(node.borrow().clone());
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
        if let Some(dra) = &node.borrow().conf.dra {
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
        server.spawn(serve(
            arguments,
            node.subscribe(),
            chain.subscribe(),
            context,
        ));
        self.office = Some(Office {
            node: own,
            reconcilers,
            server,
            lead: self.elected.take(),
        });
    }

    /// The node is another one.
    pub fn follow(&self, node: &Arc<Node>) {
        if let Some(office) = &self.office {
            office.node.send_replace(node.clone());
        }
    }

    /// Lets go of all: of the address at once; of the rest when what is being done has come to its end,
    /// which is not waited for.
    pub async fn retire(&mut self) {
        self.status.shutdown().await;
        self.elected = None;
        while self.ending.try_join_next().is_some() {}
        if let Some(mut office) = self.office.take() {
            office.server.shutdown().await;
            self.ending.spawn(async move {
                drop(office.node);
                while office.reconcilers.join_next().await.is_some() {}
                drop(office.lead);
            });
        }
    }

    /// Ends it as it is. The lock stays with this value.
    pub async fn stop(&mut self) {
        self.status.shutdown().await;
        if let Some(mut office) = self.office.take() {
            office.server.shutdown().await;
            office.reconcilers.shutdown().await;
            self.elected = office.lead;
        }
    }
}

/// Pods come before figures: without the address, all else goes on, and it is tried again.
fn serve(
    arguments: &Arguments,
    node: watch::Receiver<Arc<Node>>,
    chain: watch::Receiver<ChainStatus>,
    context: &PluginContext,
) -> impl Future<Output = ()> + Send + 'static {
    let sources = Sources {
        view: Arc::new(move || View {
            chain: chain.borrow().clone(),
            ..View::from(&**node.borrow())
        }),
        node: fs::read_to_string(HOSTNAME).unwrap_or_default(),
        state_dir: arguments.state_dir.clone(),
        kubelet_dir: arguments.kubelet_dir.clone(),
        sysfs: arguments.sysfs.clone(),
    };
    let address = arguments.metrics_address;
    let figures = context.metrics.clone();
    async move {
        let _server = metrics::serve_when_free(address, figures, sources, ADDRESS_AGAIN).await;
        std::future::pending().await
    }
}
