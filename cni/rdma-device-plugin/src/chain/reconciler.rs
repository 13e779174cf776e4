// SPDX-License-Identifier: Apache-2.0
//! Keeps `rdma-cni` in the chain, although network programs rewrite their lists when they start. Each change of the
//! directory causes a turn: the reconciler reads the lists and adds `rdma-cni` where it is missing.
//!
//! - After a turn that changed a file, another turn follows soon, because another program may have written at the same
//!   time.
//! - The reconciler reads a half-written file again without an event, for up to 5 s.
//! - If a program removes `rdma-cni` repeatedly, the interval between turns grows to at most 250 ms.

use super::{
    Chain, ChainStatus, Turn, evidence,
    file::Held,
    kept_entry::KeptEntry,
    record::{self, Record},
};
use conflist::{Obstacle, TYPE};
use daemon_conf::Chain as Conf;
use node_state::{
    ipv6_prerequisite,
    log_once::LogOnce,
    node::Node,
    watch::{Watch, until},
};
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Delay after an event, so that one turn handles all events of this time.
const TOGETHER: Duration = Duration::from_millis(20);
/// Delay before the next turn if a file is incomplete, if another program may still write to a replaced file, or if the
/// program of `rdma-cni` is missing.
const SOON: Duration = Duration::from_millis(200);
/// Longest delay between an event and the next turn.
const SLOWEST: Duration = Duration::from_millis(250);
/// Period in which the reconciler counts the files that its turns changed.
const LATELY: Duration = Duration::from_secs(10);
/// Number of files changed within [`LATELY`] from which the reconciler reports a dispute: another program keeps
/// removing `rdma-cni`.
const DISPUTE: usize = 10;
/// Time for which the reconciler rereads a broken file without an event. A program may still be writing the file.
const UNFINISHED: Duration = Duration::from_secs(5);
/// Interval of turns while an obstacle exists whose end causes no event, such as a NIC without an address.
const HINDERED: Duration = Duration::from_secs(2);
/// Time for which the program of `rdma-cni` may be missing before the reconciler removes the entry from the lists. An
/// installation that replaces the program removes it for a moment.
const VANISHED: Duration = Duration::from_secs(1);
const DISPUTE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps `rdma-cni` in the chain as the node's configuration requires.
pub struct Reconciler {
    node: watch::Receiver<Arc<Node>>,
    state_dir: PathBuf,
    cni_cache: PathBuf,
    status: watch::Sender<ChainStatus>,
    held: Vec<Held>,
    kept: KeptEntry,
    keeps_anothers_entry: bool,
    /// Chain configuration for which the reconciler watches the directories.
    watched: Option<Conf>,
    /// Times at which recent turns changed files.
    changes: VecDeque<Instant>,
    dispute_reported: Option<Instant>,
    /// Broken file that prevents a change, and the time when the reconciler first found it broken.
    broken: Option<(Obstacle, Instant)>,
    /// Time when the reconciler first found the program of `rdma-cni` missing.
    gone: Option<Instant>,
    warned: LogOnce,
    /// Last remark, which is logged once.
    remarked: LogOnce,
}

impl Reconciler {
    /// Returns a reconciler that publishes its status in `status`. The paths are the state directory of `rdma-cni` and
    /// libcni's cache of pods' networks.
    pub fn new(
        node: watch::Receiver<Arc<Node>>,
        (state_dir, cni_cache): (PathBuf, PathBuf),
        status: watch::Sender<ChainStatus>,
    ) -> Self {
        Self {
            node,
            state_dir,
            cni_cache,
            status,
            held: vec![],
            kept: KeptEntry::default(),
            keeps_anothers_entry: false,
            watched: None,
            changes: VecDeque::new(),
            dispute_reported: None,
            broken: None,
            gone: None,
            warned: LogOnce::default(),
            remarked: LogOnce::default(),
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        loop {
            let conf = self.node.borrow_and_update().conf.chain.clone();
            let Some(conf) = conf else {
                match self.off().await {
                    true => continue,
                    false => return,
                }
            };
            let chain = Chain {
                conf,
                state_dir: self.state_dir.clone(),
                cni_cache: Some(self.cni_cache.clone()),
                needs_kubelet: true,
            };
            let paths = self.paths(&chain);
            let mut watch = Watch::new(paths.clone());
            if self.watched.replace(chain.conf.clone()).as_ref() != Some(&chain.conf) {
                log::info!(
                    "the daemon keeps {TYPE} in the CNI list in {:?}",
                    chain.conf.conf_dir
                );
            }
            loop {
                let again = self.turn(&chain).await;
                if self.paths(&chain) != paths {
                    break;
                }
                tokio::select! {
                    other = self.is_other(Some(&chain)) => match other {
                        true => {
                            self.kept = KeptEntry::default();
                            break;
                        }
                        false => return,
                    },
                    () = watch.changed() => tokio::time::sleep(self.pause()).await,
                    () = until(again.map(|it| tokio::time::Instant::now() + it)) => {}
                }
            }
        }
    }

    /// Waits while the configuration has no chain. Reports the lists that still have an entry according to the record.
    /// Returns false when the sender of `node` is dropped.
    async fn off(&mut self) -> bool {
        let mut watch = Watch::new(vec![record::path(&self.state_dir)]);
        loop {
            let record = Record::read(&self.state_dir).unwrap_or_else(|error| {
                self.warned.warn(&format!(
                    "cannot determine whether CNI lists still have an entry of {TYPE}: {error}"
                ));
                None
            });
            let record = record.filter(|it| !it.withdrawn).unwrap_or_default();
            let left: Vec<_> = record.lists_with_entry().cloned().collect();
            let mut status = ChainStatus::Off;
            if !left.is_empty() {
                status = ChainStatus::Left(left);
                self.warned.warn(&status.to_string());
            }
            self.status.send_replace(status);
            tokio::select! {
                other = self.is_other(None) => return other,
                () = watch.changed() => tokio::time::sleep(TOGETHER).await,
            }
        }
    }

    /// Returns the paths to watch: the record, the directories of lists, plugins and evidence, and the networks' own
    /// directories.
    fn paths(&self, chain: &Chain) -> Vec<PathBuf> {
        let record = Record::read(&self.state_dir).ok().flatten();
        let record = record.unwrap_or_default();
        let mut paths = vec![chain.conf.conf_dir.clone(), record::path(&self.state_dir)];
        paths.extend(record.bin_dirs());
        paths.extend(record.directories().map(|it| chain.conf.conf_dir.join(it)));
        paths.extend(Some(evidence::directory(&self.state_dir)).filter(|it| it.is_dir()));
        paths
    }

    /// Waits until the chain's configuration differs from `present`. Returns false when the sender of `node` is
    /// dropped.
    async fn is_other(&mut self, present: Option<&Chain>) -> bool {
        let present = present.map(|chain| &chain.conf);
        let other = self
            .node
            .wait_for(|node| node.conf.chain.as_ref() != present);
        other.await.is_ok()
    }

    /// Runs one turn. Returns the delay after which the next turn runs if no event starts it earlier.
    async fn turn(&mut self, chain: &Chain) -> Option<Duration> {
        let mut held = std::mem::take(&mut self.held);
        let mut kept = std::mem::take(&mut self.kept);
        let of_turn = chain.clone();
        let node = self.node.borrow().clone();
        let turn = tokio::task::spawn_blocking(move || {
            let blocker = || {
                let (chain, offers) = (Some(&of_turn.conf), &node.offers);
                ipv6_prerequisite::blocker_now(&ipv6_prerequisite::parents(
                    chain,
                    offers,
                    &node.inventory,
                ))
            };
            let turn = of_turn.take(&mut held, &mut kept, blocker);
            (turn, held, kept)
        });
        let (turn, held, kept) = match turn.await {
            Ok(done) => done,
            Err(error) => {
                log::error!("an update of the CNI list failed: {error}");
                return Some(SLOWEST);
            }
        };
        self.held = held;
        self.keeps(chain, kept);
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => {
                let status = ChainStatus::NotCalled(error.to_string());
                self.warned.warn(&status.to_string());
                self.status.send_replace(status);
                return Some(Duration::from_secs(1));
            }
        };
        self.report(chain, &turn);
        let is_gone = self.is_gone(chain, turn.obstacle.as_ref()).await;
        self.held.extend(turn.held);
        self.status.send_if_modified(|status| {
            let differs = *status != turn.status;
            *status = turn.status;
            differs
        });
        let is_unfinished = self.is_unfinished(turn.obstacle);
        if is_gone {
            return Some(SOON);
        }
        match (turn.again, is_unfinished || !self.held.is_empty()) {
            (true, _) => Some(self.pause()),
            (false, true) => Some(SOON),
            (false, false) => turn.hindered.then_some(HINDERED),
        }
    }

    /// Returns true if the program of `rdma-cni` has been missing for less than [`VANISHED`]. After this time, removes
    /// `rdma-cni` from the lists, and returns false.
    async fn is_gone(&mut self, chain: &Chain, obstacle: Option<&Obstacle>) -> bool {
        if !obstacle.is_some_and(Obstacle::is_ours_gone) {
            self.gone = None;
            return false;
        }
        let since = *self.gone.get_or_insert_with(Instant::now);
        if since.elapsed() < VANISHED {
            return true;
        }
        let of_chain = chain.clone();
        match tokio::task::spawn_blocking(move || of_chain.take_out()).await {
            Ok(Ok(files)) => {
                for file in files {
                    log::warn!(
                        "{:?}: removed {TYPE}, because its program is missing; the daemon adds {TYPE} again when the \
                         program is back",
                        chain.conf.conf_dir.join(file)
                    );
                }
            }
            Ok(Err(error)) => log::error!("cannot remove {TYPE} from the chain: {error}"),
            Err(error) => log::error!("the removal of {TYPE} from the chain failed: {error}"),
        }
        false
    }

    /// Returns true while the runtime's list is broken and a program may still be writing it ([`UNFINISHED`]).
    fn is_unfinished(&mut self, obstacle: Option<Obstacle>) -> bool {
        let now = Instant::now();
        let broken = obstacle.filter(|it| matches!(it, Obstacle::Broken { .. }));
        let before = self.broken.take();
        self.broken = broken.map(|broken| match before {
            Some((before, since)) if before == broken => (before, since),
            _ => (broken, now),
        });
        let since = self.broken.as_ref().map(|(_, since)| *since);
        since.is_some_and(|since| now.duration_since(since) < UNFINISHED)
    }

    /// Stores `kept`, the selected entry, for the next turn. Logs a warning when the reconciler begins to keep another
    /// process's entry.
    fn keeps(&mut self, chain: &Chain, kept: KeptEntry) {
        let own = &chain.conf.entry;
        if kept.is_anothers(own) && !self.keeps_anothers_entry {
            log::warn!(
                "{:?}: install wrote another entry of {TYPE} than this daemon's configuration has; this daemon keeps \
                 install's entry until it restarts, or another daemon becomes the leader",
                chain.conf.conf_dir
            );
        }
        self.keeps_anothers_entry = kept.is_anothers(own);
        self.kept = kept;
    }

    fn report(&mut self, chain: &Chain, turn: &Turn) {
        let now = Instant::now();
        self.changes.retain(|at| now.duration_since(*at) < LATELY);
        for file in &turn.changed {
            self.changes.push_back(now);
            log::debug!(
                "{:?}: wrote the entry of {TYPE}",
                chain.conf.conf_dir.join(file)
            );
        }
        match &turn.status {
            status @ (ChainStatus::NotCalled(_) | ChainStatus::Withheld(_)) => {
                self.warned.warn(&status.to_string());
            }
            status => {
                if *self.status.borrow() != *status || self.warned.is_something() {
                    log::info!("{status}");
                }
                self.warned.ends();
            }
        }
        match &turn.remark {
            Some(remark) => self.remarked.warn(remark),
            None => {
                self.remarked.ends();
            }
        }
        let is_reported = self
            .dispute_reported
            .is_some_and(|at| now.duration_since(at) < DISPUTE_REPORT_INTERVAL);
        if self.changes.len() >= DISPUTE && !is_reported {
            self.dispute_reported = Some(now);
            log::warn!(
                "{:?}: the daemon had to change lists {} times within {LATELY:?}: does another program write lists \
                 without {TYPE}? (Cilium: set cni.exclusive to false)",
                chain.conf.conf_dir,
                self.changes.len()
            );
        }
    }

    /// Returns the delay before a turn. The delay grows with the number of files that recent turns changed.
    fn pause(&self) -> Duration {
        let doubled = u32::try_from(self.changes.len() / 8).unwrap_or(u32::MAX);
        TOGETHER
            .saturating_mul(2_u32.saturating_pow(doubled))
            .min(SLOWEST)
    }
}
