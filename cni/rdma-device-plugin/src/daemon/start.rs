// SPDX-License-Identifier: Apache-2.0
//! Start of the daemon: reads the configuration, observes the hardware, and opens sockets and watches.

use super::{Daemon, log_remarks};
use crate::{
    cannot,
    cli::Arguments,
    kubelet::{PluginContext, socket},
    leader::Leader,
    metrics::{self, Metrics},
    peers::Presence,
    probes::{Probes, Progress},
    publish::Publisher,
    refused::{Deleter, RefusedPods, Verdicts},
    report::{Topic, refusals::Refusals},
};
use ::erdma::{
    driver::{Loader, Modprobe},
    instance,
};
use ::lldp::Switches;
use anyhow::Result;
use daemon_conf::Conf;
use node_state::{
    config_file,
    erdma::{Report, reconciler},
    hardware::Hardware,
    log_once::LogOnce,
    node::Node,
    watch::Watch,
};
use offer::{PreviousOffers, Unhealthy};
use rdma_resources::{Containers, Grants};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// Capacity of the channel of signals. If the channel is full, senders wait.
const SIGNALS: usize = 16;

impl Daemon {
    /// Reads the configuration and observes the hardware. Meanwhile this daemon answers only probes, and an earlier
    /// daemon remains registered with kubelet.
    ///
    /// # Errors
    /// The configuration has an error, sysfs cannot be read, or the probe socket cannot be made.
    pub async fn start(arguments: Arguments, metrics: Metrics) -> Result<Self> {
        let hardware = Hardware::new(&arguments.sysfs, &arguments.dev);
        let hardware = hardware.with_procfs(&arguments.procfs);
        let hardware = hardware.with_records(&arguments.state_dir);
        let (sender, signals) = mpsc::channel(SIGNALS);
        // start watching before the read: a change between read and watch would otherwise be missed
        let file = arguments.config.as_deref().map(config_file::Watched::new);
        let parsed = arguments.conf()?;
        log_remarks(&parsed.remarks);
        let mut watchers = JoinSet::new();
        let progress = Progress::default();
        if let Some(socket) = &arguments.probe_socket {
            let so_far = progress.clone();
            let stage = move || so_far.stage();
            let probes = Probes::new(metrics.clone(), &arguments.kubelet_dir, stage);
            let serving = metrics::serve_probes(socket, probes);
            watchers.spawn(serving.map_err(cannot("listen at --probe-socket"))?);
        }
        let inventory = Arc::new(hardware.observe_blocking().await?);
        let switches = Arc::new(switches(&arguments.state_dir, &parsed.conf));
        let (node, receiver) = watch::channel(Arc::new(Node {
            conf: Arc::new(parsed.conf),
            inventory,
            switches: switches.clone(),
            ..Node::default()
        }));
        let (changes, directories) = watch::channel(0);
        let kubelet = vec![arguments.device_plugins()];
        watchers.spawn(Watch::new(kubelet).count(changes));
        if let Some(file) = file {
            watchers.spawn(file.notify(sender.clone()));
        }
        let chain = watch::Sender::default();
        let (presence, role) = Presence::announce_and_follow(&arguments.state_dir, &mut watchers);
        if let Some(presence) = &presence {
            socket::remove_stale(&arguments.device_plugins(), |owner| presence.runs(owner));
        }
        let mut verdicts = Verdicts::default();
        let account = &arguments.service_account_dir;
        if arguments.refused_pods == RefusedPods::Delete {
            let deleter = Deleter::new(account.clone(), metrics.clone());
            watchers.spawn(deleter.run(verdicts.queue()));
        }
        if arguments.report.contains(&Topic::Events) {
            let refusals = Refusals::new(account.clone(), arguments.cni_cache_dir.clone());
            watchers.spawn(refusals.run(verdicts.queue()));
        }
        let name = presence.as_ref().map_or("alone", Presence::name).to_owned();
        let context = Arc::new(PluginContext {
            hardware: hardware.clone(),
            name,
            role: role.clone(),
            grants: Grants::new(&arguments.state_dir),
            containers: Containers::new(&arguments.cdi_dir, &arguments.state_dir),
            node: receiver,
            directories,
            signals: sender,
            observe: Arc::default(),
            chain: chain.subscribe(),
            verdicts,
            metrics: metrics.clone(),
            arguments,
        });
        let arguments = &context.arguments;
        let publisher = Publisher::new(arguments, hardware.clone());
        let erdma = Arc::new(Report {
            instance: instance::kept(&arguments.state_dir),
            ..Report::default()
        });
        let previous = PreviousOffers::read(&arguments.state_dir);
        let loads = reconciler::is_the_kernels(&arguments.sysfs);
        Ok(Self {
            hardware,
            metrics,
            loader: loads.then(|| Arc::new(Mutex::new(Modprobe)) as Arc<Mutex<dyn Loader + Send>>),
            context,
            node,
            plugins: BTreeMap::new(),
            publisher,
            publish_at: None,
            signals,
            watchers,
            presence: presence.map(Arc::new),
            role,
            progress,
            leader: Leader::default(),
            previous,
            chain,
            unhealthy: Unhealthy::default(),
            erdma,
            switches,
            remarks: vec![],
            refused: LogOnce::default(),
        })
    }
}

/// Returns the switches that an earlier daemon learned by LLDP. Returns no switches if the configuration has no `lldp`,
/// or if the file with the switches cannot be read.
fn switches(state_dir: &Path, conf: &Conf) -> Switches {
    let read = conf.lldp.as_ref().map(|_| Switches::read(state_dir));
    let read = read.unwrap_or_else(|| Ok(Switches::default()));
    read.unwrap_or_else(|error| {
        log::warn!("{error}; the switches of NICs in pods are not known");
        Switches::default()
    })
}
