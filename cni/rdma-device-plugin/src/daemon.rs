// SPDX-License-Identifier: Apache-2.0
//! The daemon's loop. After each change the daemon plans a new [`Node`] and applies the differences.
//!
//! ```text
//! SIGHUP, the file, netlink → Signal → Node → files for the chain → streams → plugins
//! ```
//! A resource that is offered before and after a change keeps its plugin: socket, server, streams and registration are
//! unchanged.

mod start;

use crate::{
    chain::ChainStatus,
    dra,
    kubelet::{Plugin, PluginContext, streams::End},
    leader::{Event, Leader},
    metrics::Metrics,
    peers::{Presence, Role},
    privilege,
    probes::Progress,
    publish::Publisher,
    signals::{Received, Signals},
};
use ::lldp::Switches;
use anyhow::{Result, anyhow};
use daemon_conf::{Conf, ResourceName};
use node_state::{
    erdma::{Report, Side, discover, reconciler::AnyLoader},
    hardware::Hardware,
    health::{self, unreachable},
    ipv6_prerequisite, limits, lldp,
    log_once::LogOnce,
    node::{Node, Signal},
    notices::notices,
    watch::until,
};
use offer::{PreviousOffers, Unhealthy, connection_manager, offers};
use rdma_netns::Inventory;
use rdma_resources::LimitedContainers;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

/// Longest time for which an ending daemon waits until its reload of the eRDMA driver is complete.
const DRIVER_RELOAD_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time for which a starting daemon waits until another daemon releases leadership. After this time the daemon
/// registers with kubelet without being the leader.
const LEADER_RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between attempts to publish the node's files after a failure.
const PUBLISH_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Remark for a configuration file whose `chain` differs from the `chain` that the daemon applies.
const CHAIN_CHANGED: &str = "chain has changed in the file: the change takes effect when this daemon restarts, so that \
                           the nodes change one after the other (run kubectl rollout restart, unless the DaemonSet's \
                           annotation checksum/chain has changed too)";

/// Remark for a configuration file whose `dra` differs from the `dra` that the daemon applies.
const DRA_CHANGED: &str =
    "dra has changed in the file: the change takes effect when this daemon restarts";

/// A running daemon.
pub struct Daemon {
    hardware: Hardware,
    metrics: Metrics,
    context: Arc<PluginContext>,
    node: watch::Sender<Arc<Node>>,
    plugins: BTreeMap<ResourceName, Plugin>,
    publisher: Publisher,
    /// Time of the next attempt to publish.
    publish_at: Option<Instant>,
    signals: mpsc::Receiver<Signal>,
    watchers: JoinSet<()>,
    /// Announcement by which other daemons on the node detect this daemon. `None`: the daemons cannot detect each
    /// other.
    presence: Option<Arc<Presence>>,
    role: watch::Receiver<Role>,
    /// Progress of the daemon since its start, which the probes report.
    progress: Progress,
    /// Leadership of this daemon, and the tasks that run only in the leader.
    leader: Leader,
    /// Loader of the eRDMA driver, locked during a reload.
    loader: AnyLoader,
    /// Devices that each resource offered last.
    previous: PreviousOffers,
    chain: watch::Sender<ChainStatus>,
    /// Devices that were unhealthy at the last observation.
    unhealthy: Unhealthy,
    erdma: Arc<Report>,
    /// Latest switch of each NIC, from LLDP.
    switches: Arc<Switches>,
    remarks: Vec<String>,
    /// Last error of the changed configuration file, which the daemon does not log again.
    refused: LogOnce,
}

impl Daemon {
    /// Returns the announcement by which other daemons detect this daemon. Drop the announcement after all streams to
    /// kubelet have ended: another daemon then registers with kubelet.
    pub fn presence(&self) -> Option<Arc<Presence>> {
        self.presence.clone()
    }

    /// Runs the daemon until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// A task of the daemon has ended.
    pub async fn run(mut self, mut signals: Signals) -> Result<()> {
        let conf = self.node.borrow().conf.clone();
        log_remarks(&privilege::missing(&self.context.arguments, &conf));
        let first = self.node.borrow().clone();
        self.unhealthy = self.follow_health(&first.inventory);
        self.leader.campaign(&self.context.arguments.state_dir);
        if !self.role.borrow().is_alone {
            log::info!("another daemon runs on this node; this one takes over");
        }
        let elected = tokio::time::timeout(LEADER_RELEASE_TIMEOUT, self.leader.elected()).await;
        self.take(first.conf.clone(), first.inventory.clone()).await;
        if elected.is_ok() {
            self.lead();
        }
        let neighbours = lldp::follow(self.node.subscribe(), self.context.signals.clone());
        self.watchers.spawn(neighbours);
        let containers = LimitedContainers::new(
            &self.context.arguments.state_dir,
            &self.context.arguments.sysfs.join("fs/cgroup"),
        );
        let limits = limits::keep(containers, self.node.subscribe());
        self.watchers.spawn(limits);
        if let Some(claims) = dra::serve(&self.context, self.presence.as_deref()) {
            self.watchers.spawn(claims);
        }
        self.progress.serves(self.context.clone());
        if self.plugins.is_empty() && first.conf.dra.is_none() {
            log::info!("nothing is advertised on this node; waiting for RDMA devices");
        }
        let served = loop {
            let signal = tokio::select! {
                biased;
                received = signals.next() => match received {
                    Received::End => break Ok(()),
                    Received::Reload => {
                        match &self.context.arguments.config {
                            Some(file) => log::info!("SIGHUP: reading {file:?} again"),
                            None => log::info!("SIGHUP: observing the devices again"),
                        }
                        Signal::Reload
                    }
                },
                Ok(()) = self.role.changed() => {
                    self.change_role().await;
                    continue;
                }
                event = self.leader.event() => match event {
                    Event::Elected => {
                        self.lead();
                        Signal::Configuration
                    }
                    Event::Ended => {
                        break Err(anyhow!(
                            "cannot go on as the leader: one of the leader's tasks has ended"
                        ));
                    }
                },
                // end the daemon, which would miss changes without the ended watcher. Kubelet restarts the container.
                Some(_) = self.watchers.join_next() => {
                    break Err(anyhow!(
                        "cannot go on: one of the daemon's tasks has ended"
                    ));
                }
                () = until(self.publish_at) => {
                    let node = self.node.borrow().clone();
                    self.publish(&node).await;
                    continue;
                }
                Some(signal) = self.signals.recv() => signal,
            };
            self.follow(signal).await;
        };
        log::info!("the daemon ends; its files for the chain and the runtime stay");
        let plugins = std::mem::take(&mut self.plugins);
        stop(plugins.into_values(), End::Daemon).await;
        self.leader.stop().await;
        self.watchers.shutdown().await;
        // wait until a reload of the eRDMA driver is complete: no other daemon would load an unloaded driver again
        if let Some(loader) = self.loader.take() {
            let free = tokio::task::spawn_blocking(move || drop(loader.lock()));
            let _ = tokio::time::timeout(DRIVER_RELOAD_TIMEOUT, free).await;
        }
        served
    }

    fn lead(&mut self) {
        self.leader
            .lead(&self.chain, &self.context, self.loader.clone());
    }

    /// Campaigns for leadership, or gives it up, after another daemon started or ended.
    async fn change_role(&mut self) {
        let role = *self.role.borrow_and_update();
        match role.leads {
            true => self.leader.campaign(&self.context.arguments.state_dir),
            false if self.leader.is_up() => {
                log::info!(
                    "a newer daemon runs on this node and takes over; this one leads again if the newer one ends"
                );
                self.leader.retire().await;
            }
            false => {}
        }
    }

    /// Returns the devices that are unhealthy now. Starts the tasks that send a signal after later changes of hardware
    /// or health.
    fn follow_health(&mut self, inventory: &Inventory) -> Unhealthy {
        let (watch, remarks) = health::Watch::open(
            &self.context.arguments.sysfs,
            &self.context.arguments.state_dir,
        );
        let state_dir: Arc<Path> = self.context.arguments.state_dir.as_path().into();
        let node = self.node.subscribe();
        let is_on = node.borrow().conf.fabric;
        // read the last verdicts of the fabric watch, so that the first list for kubelet includes them
        let unreachable = unreachable::read(&state_dir, is_on, &mut LogOnce::default());
        let unreachable = watch::Sender::new(unreachable);
        let mut watch = watch
            .with_unreachable(unreachable.subscribe())
            .following(node.clone())
            .observing_on(self.context.observe.clone());
        log_remarks(&remarks);
        let now = watch.unhealthy(inventory);
        let hardware = self.hardware.clone();
        let observe = move || {
            let hardware = hardware.clone();
            async move {
                let seen = hardware.observe_blocking().await;
                seen.inspect_err(|error| log::error!("cannot observe the devices: {error}"))
                    .ok()
            }
        };
        let signals = self.context.signals.clone();
        let send = move |inventory, unhealthy| {
            let signals = signals.clone();
            async move {
                signals
                    .send(Signal::Observed(inventory, unhealthy))
                    .await
                    .is_ok()
            }
        };
        self.watchers.spawn(watch.follow(observe, send));
        let reports = unreachable::follow(node, unreachable, state_dir);
        self.watchers.spawn(reports);
        now
    }

    /// Handles a signal: updates the configuration or the observed state, and plans the node again.
    async fn follow(&mut self, signal: Signal) {
        let node = self.node.borrow().clone();
        let (mut conf, mut inventory) = (node.conf.clone(), node.inventory.clone());
        match signal {
            Signal::Observed(hardware, health) => (inventory, self.unhealthy) = (hardware, health),
            Signal::Erdma(report) => self.erdma = Arc::new(report),
            Signal::Switches(switches) => self.switches = switches,
            Signal::Configuration => conf = self.reload(conf),
            Signal::Reload => {
                conf = self.reload(conf);
                // the health task observes the hardware, and sends the result as a separate signal
                self.context.observe.notify_one();
            }
        }
        self.take(conf, inventory).await;
    }

    /// Returns the configuration of the changed file with the present `chain` and `dra`. Returns `present` if the file
    /// has an error or the configuration is the same.
    fn reload(&mut self, present: Arc<Conf>) -> Arc<Conf> {
        let parsed = self.context.arguments.conf().map(|mut parsed| {
            // keep the present chain until the daemon restarts: a wrong chain would otherwise be written to the CNI
            // lists of all nodes at once
            let other = std::mem::replace(&mut parsed.conf.chain, present.chain.clone());
            if other != parsed.conf.chain {
                parsed.remarks.push(CHAIN_CHANGED.to_owned());
            }
            let other = std::mem::replace(&mut parsed.conf.dra, present.dra.clone());
            if other != parsed.conf.dra {
                parsed.remarks.push(DRA_CHANGED.to_owned());
            }
            parsed
        });
        match parsed {
            Ok(parsed) if parsed.conf == *present => {
                let of_start =
                    |remark: &&String| [CHAIN_CHANGED, DRA_CHANGED].contains(&remark.as_str());
                log_remarks(parsed.remarks.iter().filter(of_start));
                self.refused.ends();
                present
            }
            Ok(parsed) => {
                log::info!("the new configuration takes effect");
                log_remarks(&parsed.remarks);
                let before = privilege::missing(&self.context.arguments, &present);
                let missing = privilege::missing(&self.context.arguments, &parsed.conf);
                log_remarks(missing.iter().filter(|it| !before.contains(it)));
                self.refused.ends();
                self.metrics.reloaded(true);
                Arc::new(parsed.conf)
            }
            Err(error) => {
                if self.refused.is_news(&error.to_string()) {
                    log::error!("keeping the previous configuration: {error}");
                }
                self.metrics.reloaded(false);
                present
            }
        }
    }

    /// Writes the files of `node` for `rdma-cni`, the runtime and other programs, if this daemon leads. Schedules a
    /// retry after a failure.
    async fn publish(&mut self, node: &Arc<Node>) {
        self.publish_at = None;
        if self.role.borrow().leads && !self.publisher.publish(node.clone()).await {
            self.publish_at = Some(Instant::now() + PUBLISH_RETRY_INTERVAL);
        }
    }

    /// Plans the offers and advertises them to kubelet. The leader first writes the files for `rdma-cni`, which a pod
    /// with these offers needs.
    async fn take(&mut self, conf: Arc<Conf>, inventory: Arc<Inventory>) {
        let erdma = Side {
            discovery: discover(&conf.erdma, &inventory, self.erdma.instance.as_deref()),
            report: self.erdma.clone(),
        };
        let unhealthy = self.erdma.withheld(&inventory, &self.unhealthy);
        let hidden = erdma.discovery.hidden_addresses();
        let (offers, mut remarks) = offers(&conf, &inventory, &hidden, &unhealthy, &self.previous);
        remarks.extend(erdma.discovery.remarks.iter().cloned());
        remarks.extend(self.erdma.sentences());
        let sysfs = &self.context.arguments.sysfs;
        remarks.extend(health::unknown_counters(sysfs, &conf.errors, &inventory));
        let parents = ipv6_prerequisite::parents(conf.chain.as_ref(), &offers, &inventory);
        let lacking = ipv6_prerequisite::lacking(parents).await;
        remarks.extend(ipv6_prerequisite::remark(&lacking));
        remarks.extend(notices(&conf, &offers, &inventory));
        self.previous.remember(&offers, &inventory);
        let gone = conf.resources.iter().map(|resource| {
            let name = resource.name.as_str();
            (name.to_owned(), self.previous.gone(name, &inventory))
        });
        let gone = gone.filter(|(_, devices)| !devices.is_empty()).collect();
        let is_new = |remark: &&String| !self.remarks.contains(remark);
        log_remarks(remarks.iter().filter(is_new));
        self.remarks = remarks;
        let manager = connection_manager(&conf, &inventory);
        let node = Arc::new(Node {
            conf,
            inventory,
            unhealthy,
            offers,
            manager,
            gone,
            erdma,
            switches: self.switches.clone(),
        });
        self.metrics.history().follow(&node, SystemTime::now());
        self.publish(&node).await;
        let had_some = !self.plugins.is_empty();
        let gone: Vec<_> = self
            .plugins
            .extract_if(.., |name, _| {
                !node.advertised().any(|offer| offer.name == *name)
            })
            .collect();
        for (name, _) in &gone {
            log::info!("{name}: no longer offered");
        }
        self.node.send_replace(node.clone());
        self.leader.follow(&node);
        for offer in node.advertised() {
            self.plugins.entry(offer.name.clone()).or_insert_with(|| {
                log::info!("{}: offered, {} ids", offer.name, offer.ids.len());
                Plugin::start(offer.name.clone(), self.context.clone())
            });
        }
        let (names, plugins): (Vec<_>, Vec<_>) = gone.into_iter().unzip();
        stop(plugins.into_iter(), End::Withdrawn).await;
        // remove the metrics after the plugins have ended, because the metrics count the plugins' last lists
        for name in names {
            self.metrics.withdrawn(name.as_str());
        }
        if had_some && self.plugins.is_empty() {
            log::info!("nothing is advertised on this node any more; waiting for RDMA devices");
        }
    }
}

/// Stops `plugins` in parallel, and waits until all have ended.
async fn stop(plugins: impl Iterator<Item = Plugin>, why: End) {
    let mut ending: JoinSet<()> = plugins.map(|plugin| plugin.stop(why)).collect();
    while ending.join_next().await.is_some() {}
}

fn log_remarks<'a>(remarks: impl IntoIterator<Item = &'a String>) {
    for remark in remarks {
        log::warn!("{remark}");
    }
}
