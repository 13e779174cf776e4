// SPDX-License-Identifier: Apache-2.0
//! The daemon's one loop: something has changed, so everything is planned anew, and what differs
//! is done.
//!
//! ```text
//! SIGHUP, the file, netlink → Signal → Node → files for the chain → streams → plugins
//! ```
//! A resource that is offered before and after keeps its plugin: socket, server, streams and
//! registration are untouched by any change.

mod start;

use start::system;

use crate::{
    chain::ChainStatus,
    cli::Arguments,
    conf::{Conf, ConfError, ErrorThreshold, ResourceName},
    dra,
    erdma::{Report, Side, discover, reconciler::AnyLoader},
    hardware::{Hardware, HardwareError},
    health, ipv6_prerequisite,
    kubelet::{Plugin, PluginContext, streams::End},
    leader::{Event, Leader},
    metrics::Metrics,
    node::{Node, Signal},
    notices::notices,
    offer::{PreviousOffers, Unhealthy, offers},
    peers::{Presence, Role},
    privilege,
    probes::Progress,
    publish::Publisher,
    signals::{Signals, Told},
    watch::until,
};
use rdma_netns::Inventory;
use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::Instant,
};

/// For a driver that is being loaded anew when the daemon ends.
const LOADED: Duration = Duration::from_secs(20);

/// Another daemon lets go of what only one may do within this time, or kubelet is served without.
const TO_LET_GO: Duration = Duration::from_secs(3);

/// What could not be published is tried again after that.
const PUBLISHED_AGAIN: Duration = Duration::from_secs(5);

/// What is said of a file whose `chain` is not the one in force.
const OTHER_CHAIN: &str = "chain of the file is another one: it counts when this daemon is started anew, \
                           so that it comes to the nodes one after the other (kubectl rollout restart, \
                           where no checksum of the DaemonSet does that)";

/// What is said of a file whose `dra` is not the one in force.
const OTHER_DRA: &str =
    "dra of the file is another one: it counts when this daemon is started anew";

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The hardware cannot be seen.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The system does not give what the daemon needs.
    #[error("cannot {what}: {source}")]
    System {
        /// `listen at --probe-socket`
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A running daemon.
pub struct Daemon {
    arguments: Arguments,
    hardware: Hardware,
    metrics: Metrics,
    context: Arc<PluginContext>,
    node: watch::Sender<Arc<Node>>,
    plugins: BTreeMap<ResourceName, Plugin>,
    publisher: Publisher,
    /// When what could not be published is tried again.
    publish_at: Option<Instant>,
    signals: mpsc::Receiver<Signal>,
    watchers: JoinSet<()>,
    /// That this daemon runs; none: others cannot see it, nor it others.
    presence: Option<Arc<Presence>>,
    role: watch::Receiver<Role>,
    /// What probes are told.
    progress: Progress,
    /// What only one daemon of a node does.
    leader: Leader,
    /// Held while the eRDMA driver is being loaded anew.
    loader: AnyLoader,
    /// What was offered last.
    previous: PreviousOffers,
    /// Our plugin's place in the chain.
    chain: watch::Sender<ChainStatus>,
    /// What was seen to be unhealthy last.
    unhealthy: Unhealthy,
    /// How many errors its devices may have.
    errors: watch::Sender<Vec<ErrorThreshold>>,
    /// Has whoever follows their health look at them: a device's firmware is not waited for here.
    look: Arc<Notify>,
    /// How it stands with the eRDMA NICs.
    erdma: Arc<Report>,
    remarks: Vec<String>,
    /// The last error of a new configuration: it is said once.
    refused: Option<String>,
}

impl Daemon {
    /// What others know this daemon by. It is to go when all of it has ended, streams included: another
    /// daemon then has kubelet for itself.
    pub fn presence(&self) -> Option<Arc<Presence>> {
        self.presence.clone()
    }

    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// Nothing is heard of the node any more.
    pub async fn run(mut self, mut signals: Signals) -> Result<(), StartError> {
        let conf = self.node.borrow().conf.clone();
        tell(&privilege::missing(&self.arguments, &conf));
        let first = self.node.borrow().clone();
        self.unhealthy = self.follow_health(&first.inventory);
        self.leader.stand(&self.arguments.state_dir);
        if !self.role.borrow().is_alone {
            log::info!("another daemon runs on this node; this one takes over");
        }
        let elected = tokio::time::timeout(TO_LET_GO, self.leader.elected()).await;
        self.take(first.conf.clone(), first.inventory.clone()).await;
        if elected.is_ok() {
            self.lead();
        }
        let claims = dra::serve(&self.arguments, &self.context, self.presence.as_deref());
        if let Some(serving) = claims.map_err(system("listen for kubelet's claims"))? {
            self.watchers.spawn(serving);
        }
        let (node, chain) = (self.node.subscribe(), self.chain.subscribe());
        self.progress.serves(self.role.clone(), node, chain);
        if self.plugins.is_empty() && first.conf.dra.is_none() {
            log::info!("nothing is advertised on this node; waiting for RDMA devices");
        }
        let served = loop {
            let signal = tokio::select! {
                biased;
                told = signals.next() => match told {
                    Told::End => break Ok(()),
                    Told::Reload => {
                        match &self.arguments.config {
                            Some(file) => log::info!("SIGHUP: reading {file:?} again"),
                            None => log::info!("SIGHUP: looking at the devices again"),
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
                        break Err(StartError::System {
                            what: "go on as the leader",
                            source: io::Error::other("one of the leader's tasks has ended"),
                        });
                    }
                },
                // better started anew than deaf: what ended it is in the log
                Some(_) = self.watchers.join_next() => {
                    break Err(StartError::System {
                        what: "follow the node's changes any more",
                        source: io::Error::other("a task that watches has ended"),
                    });
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
        log::info!("ending; the files for the chain and the runtime stay");
        let plugins = std::mem::take(&mut self.plugins);
        stop(plugins.into_values(), End::Daemon).await;
        self.leader.stop().await;
        self.watchers.shutdown().await;
        // a driver that is unloaded by now is loaded first: the next daemon may never come
        if let Some(loader) = self.loader.take() {
            let free = tokio::task::spawn_blocking(move || drop(loader.lock()));
            let _ = tokio::time::timeout(LOADED, free).await;
        }
        served
    }

    /// Does what only one daemon of a node does.
    fn lead(&mut self) {
        self.leader.lead(
            &self.arguments,
            &self.node,
            &self.chain,
            &self.context,
            self.loader.clone(),
        );
    }

    /// Another daemon has come or gone.
    async fn change_role(&mut self) {
        let role = *self.role.borrow_and_update();
        match role.leads {
            true => self.leader.stand(&self.arguments.state_dir),
            false if self.leader.is_up() => {
                log::info!(
                    "a newer daemon runs on this node and takes over; this one waits for its end"
                );
                self.leader.retire().await;
            }
            false => {}
        }
    }

    /// What is not healthy now; later ones come as signals.
    fn follow_health(&mut self, inventory: &Inventory) -> Unhealthy {
        let (watch, deaf) = health::Watch::open(&self.arguments.sysfs, &self.arguments.state_dir);
        let mut watch = watch
            .with_errors(self.errors.subscribe())
            .asked_by(self.look.clone());
        tell(&deaf);
        let now = watch.unhealthy(inventory);
        let hardware = self.hardware.clone();
        let look = move || {
            let hardware = hardware.clone();
            async move {
                let seen = hardware.look_aside().await;
                seen.inspect_err(|error| log::error!("the devices cannot be looked at: {error}"))
                    .ok()
            }
        };
        let signals = self.context.signals.clone();
        let tell = move |inventory, unhealthy| {
            let signals = signals.clone();
            async move {
                signals
                    .send(Signal::Seen(inventory, unhealthy))
                    .await
                    .is_ok()
            }
        };
        self.watchers.spawn(watch.follow(look, tell));
        now
    }

    /// Makes the node anew.
    async fn follow(&mut self, signal: Signal) {
        let node = self.node.borrow().clone();
        let (mut conf, mut inventory) = (node.conf.clone(), node.inventory.clone());
        match signal {
            Signal::Seen(hardware, health) => (inventory, self.unhealthy) = (hardware, health),
            Signal::Erdma(report) => self.erdma = Arc::new(report),
            // what is seen then comes as a signal of its own
            Signal::Hardware => return self.look.notify_one(),
            Signal::Configuration => conf = self.reload(conf),
            Signal::Reload => {
                conf = self.reload(conf);
                self.look.notify_one();
            }
        }
        self.take(conf, inventory).await;
    }

    /// The new configuration, or the present one if there is something wrong with the new one.
    fn reload(&mut self, present: Arc<Conf>) -> Arc<Conf> {
        let parsed = self.arguments.conf().map(|mut parsed| {
            // a wrong one would be in the lists of all nodes at once: it goes with the roll-out
            let other = std::mem::replace(&mut parsed.conf.chain, present.chain.clone());
            if other != parsed.conf.chain {
                parsed.remarks.push(OTHER_CHAIN.to_owned());
            }
            let other = std::mem::replace(&mut parsed.conf.dra, present.dra.clone());
            if other != parsed.conf.dra {
                parsed.remarks.push(OTHER_DRA.to_owned());
            }
            parsed
        });
        match parsed {
            Ok(parsed) if parsed.conf == *present => {
                let of_start =
                    |remark: &&String| [OTHER_CHAIN, OTHER_DRA].contains(&remark.as_str());
                tell(parsed.remarks.iter().filter(of_start));
                self.refused = None;
                present
            }
            Ok(parsed) => {
                log::info!("a new configuration is in force");
                tell(&parsed.remarks);
                let before = privilege::missing(&self.arguments, &present);
                let missing = privilege::missing(&self.arguments, &parsed.conf);
                tell(missing.iter().filter(|it| !before.contains(it)));
                self.refused = None;
                self.metrics.reloaded(true);
                Arc::new(parsed.conf)
            }
            Err(error) => {
                let refused = Some(error.to_string());
                if refused != self.refused {
                    log::error!("the configuration stays as it was: {error}");
                    self.refused = refused;
                }
                self.metrics.reloaded(false);
                present
            }
        }
    }

    /// Tells the chain and the runtime of `node`, if this daemon is the one that does.
    async fn publish(&mut self, node: &Arc<Node>) {
        self.publish_at = None;
        if self.role.borrow().leads && !self.publisher.publish(node.clone()).await {
            self.publish_at = Some(Instant::now() + PUBLISHED_AGAIN);
        }
    }

    /// Offers what there is to offer now: the chain knows of it before kubelet does.
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
        let sysfs = &self.arguments.sysfs;
        remarks.extend(health::unknown_counters(sysfs, &conf.errors, &inventory));
        self.errors.send_if_modified(|errors| {
            let are_others = *errors != conf.errors;
            errors.clone_from(&conf.errors);
            are_others
        });
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
        tell(remarks.iter().filter(is_new));
        self.remarks = remarks;
        let node = Arc::new(Node {
            conf,
            inventory,
            unhealthy,
            offers,
            gone,
            erdma,
        });
        let gone = node.gone.values().flatten();
        let history = self.metrics.history();
        history.follow(&node.inventory, &node.unhealthy, gone, SystemTime::now());
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
        // its last list counted, too
        for name in names {
            self.metrics.withdrawn(name.as_str());
        }
        if had_some && self.plugins.is_empty() {
            log::info!("nothing is advertised on this node any more; waiting for RDMA devices");
        }
    }
}

/// Ends plugins, all at the same time.
async fn stop(plugins: impl Iterator<Item = Plugin>, why: End) {
    let mut ending: JoinSet<()> = plugins.map(|plugin| plugin.stop(why)).collect();
    while ending.join_next().await.is_some() {}
}

fn tell<'a>(remarks: impl IntoIterator<Item = &'a String>) {
    for remark in remarks {
        log::warn!("{remark}");
    }
}
