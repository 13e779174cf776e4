// SPDX-License-Identifier: Apache-2.0
//! Keeps our place in the chain: networks rewrite their lists whenever they start.
//!
//! There is a turn after each change of the directory, and soon again after a turn that changed
//! something: somebody may have been writing at the same moment. A file that is half-written is
//! looked at until it is whole. Somebody who takes our plugin out again and again is followed ever
//! more slowly, but always within a second.

use super::{
    Chain, ChainStatus, Turn,
    claim::Claim,
    evidence,
    file::Held,
    record::{self, Record},
};
use crate::{
    conf::Chain as Conf,
    ipv6_prerequisite,
    node::Node,
    said::Said,
    watch::{Watch, until},
};
use conflist::{Obstacle, TYPE};
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// What comes together is looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Before a look at what cannot be right yet, or may be written late.
const SOON: Duration = Duration::from_millis(200);
/// No two turns are further apart, however often the files change.
const SLOWEST: Duration = Duration::from_millis(250);
/// Changes within this time are counted.
const LATELY: Duration = Duration::from_secs(10);
/// So many of them are a dispute, and told.
const DISPUTE: usize = 10;
/// A broken file is looked at so long without an event, as long as it may take to be written.
const UNFINISHED: Duration = Duration::from_secs(5);
/// What hinders us is looked at so often: nothing tells of an address.
const HINDERED: Duration = Duration::from_secs(2);
/// So long our plugin's program may be away, as while it is replaced, before it is taken out of the lists.
const VANISHED: Duration = Duration::from_secs(1);
/// It is told so often.
const TOLD: Duration = Duration::from_secs(60);

/// Keeps our place, as the node's configuration says.
pub struct Reconciler {
    node: watch::Receiver<Arc<Node>>,
    state_dir: PathBuf,
    cni_cache: PathBuf,
    status: watch::Sender<ChainStatus>,
    held: Vec<Held>,
    /// Whose configuration is kept.
    claim: Claim,
    claimed_by_another: bool,
    /// The configuration whose directories are watched.
    watched: Option<Conf>,
    /// When files were changed lately.
    changes: VecDeque<Instant>,
    told: Option<Instant>,
    /// What is broken, and since when.
    broken: Option<(Obstacle, Instant)>,
    /// Since when the program is gone.
    gone: Option<Instant>,
    /// An error or obstacle that is said once.
    said: Said,
    /// The same of what hinders nothing.
    remarked: Option<String>,
}

impl Reconciler {
    /// A reconciler that tells `status` how it stands. The paths are the state directory of `rdma-cni`, and where
    /// the runtime keeps how it made pods' networks.
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
            claim: Claim::default(),
            claimed_by_another: false,
            watched: None,
            changes: VecDeque::new(),
            told: None,
            broken: None,
            gone: None,
            said: Said::default(),
            remarked: None,
        }
    }

    /// Keeps it until the daemon ends.
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
                log::info!("{TYPE} is kept in the chain of {:?}", chain.conf.conf_dir);
            }
            loop {
                let again = self.turn(&chain).await;
                if self.paths(&chain) != paths {
                    break;
                }
                tokio::select! {
                    other = self.is_other(Some(&chain)) => match other {
                        true => {
                            self.claim = Claim::default();
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

    /// Keeps nothing, and says what is left of a daemon that did. False: there is no daemon.
    async fn off(&mut self) -> bool {
        let mut watch = Watch::new(vec![record::path(&self.state_dir)]);
        loop {
            let record = Record::read(&self.state_dir).unwrap_or_else(|error| {
                self.say(format!(
                    "it is not known whether lists have an entry of ours: {error}"
                ));
                None
            });
            let record = record.filter(|it| !it.withdrawn).unwrap_or_default();
            let left: Vec<_> = record.lists_with_entry().cloned().collect();
            let mut status = ChainStatus::Off;
            if !left.is_empty() {
                status = ChainStatus::Left(left);
                self.say(status.to_string());
            }
            self.status.send_replace(status);
            tokio::select! {
                other = self.is_other(None) => return other,
                () = watch.changed() => tokio::time::sleep(TOGETHER).await,
            }
        }
    }

    /// Where something can change: lists and plugins, ours in networks' own directories, and what the runtime
    /// was seen to call.
    fn paths(&self, chain: &Chain) -> Vec<PathBuf> {
        let record = Record::read(&self.state_dir).ok().flatten();
        let record = record.unwrap_or_default();
        let mut paths = vec![chain.conf.conf_dir.clone(), record::path(&self.state_dir)];
        paths.extend(record.bin_dirs());
        paths.extend(record.directories().map(|it| chain.conf.conf_dir.join(it)));
        paths.extend(Some(evidence::directory(&self.state_dir)).filter(|it| it.is_dir()));
        paths
    }

    /// Waits until the configuration is another one than `present`; false: there is no daemon.
    async fn is_other(&mut self, present: Option<&Chain>) -> bool {
        let present = present.map(|chain| &chain.conf);
        let other = self
            .node
            .wait_for(|node| node.conf.chain.as_ref() != present);
        other.await.is_ok()
    }

    /// One turn; when to take another, if nothing is heard.
    async fn turn(&mut self, chain: &Chain) -> Option<Duration> {
        let mut held = std::mem::take(&mut self.held);
        let mut claim = std::mem::take(&mut self.claim);
        let of_turn = chain.clone();
        let node = self.node.borrow().clone();
        let aside = tokio::task::spawn_blocking(move || {
            let blocker = || {
                let (chain, offers) = (Some(&of_turn.conf), &node.offers);
                ipv6_prerequisite::blocker_now(&ipv6_prerequisite::parents(
                    chain,
                    offers,
                    &node.inventory,
                ))
            };
            let turn = of_turn.take(&mut held, &mut claim, blocker);
            (turn, held, claim)
        });
        let (turn, held, claim) = match aside.await {
            Ok(done) => done,
            Err(error) => {
                log::error!("a turn of the chain's reconciler ended: {error}");
                return Some(SLOWEST);
            }
        };
        self.held = held;
        self.keeps(chain, claim);
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => {
                let status = ChainStatus::NotCalled(error.to_string());
                self.say(status.to_string());
                self.status.send_replace(status);
                return Some(Duration::from_secs(1));
            }
        };
        self.tell(chain, &turn);
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

    /// Whether our plugin's program has just gone, and may come back. When it does not, our plugin is
    /// taken out of the lists.
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
                        "{:?}: {TYPE} is out of it until its program is there again",
                        chain.conf.conf_dir.join(file)
                    );
                }
            }
            Ok(Err(error)) => log::error!("{TYPE} cannot be taken out of the chain: {error}"),
            Err(error) => log::error!("a turn of the chain's reconciler ended: {error}"),
        }
        false
    }

    /// Whether the runtime's file is broken, and may still be being written.
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

    /// Goes on with this claim, and says so if it is another one's.
    fn keeps(&mut self, chain: &Chain, claim: Claim) {
        let own = &chain.conf.entry;
        if claim.is_anothers(own) && !self.claimed_by_another {
            log::warn!(
                "{:?}: install has put in another configuration of {TYPE} than this daemon's since it \
                 leads; that one is kept until another daemon leads, or this one is started anew",
                chain.conf.conf_dir
            );
        }
        self.claimed_by_another = claim.is_anothers(own);
        self.claim = claim;
    }

    fn tell(&mut self, chain: &Chain, turn: &Turn) {
        let now = Instant::now();
        self.changes.retain(|at| now.duration_since(*at) < LATELY);
        for file in &turn.changed {
            self.changes.push_back(now);
            log::debug!(
                "{:?}: {TYPE} is put in place",
                chain.conf.conf_dir.join(file)
            );
        }
        match &turn.status {
            status @ (ChainStatus::NotCalled(_) | ChainStatus::Withheld(_)) => {
                self.say(status.to_string());
            }
            status => {
                if *self.status.borrow() != *status || self.said.is_something() {
                    log::info!("{status}");
                }
                self.said.ends();
            }
        }
        let remarked = std::mem::replace(&mut self.remarked, turn.remark.clone());
        if let Some(remark) = self
            .remarked
            .iter()
            .find(|it| remarked.as_ref() != Some(it))
        {
            log::warn!("{remark}");
        }
        let is_told = self
            .told
            .is_some_and(|told| now.duration_since(told) < TOLD);
        if self.changes.len() >= DISPUTE && !is_told {
            self.told = Some(now);
            log::warn!(
                "{:?} was rewritten without {TYPE} {} times within {LATELY:?}: is another program \
                 to have the directory for itself? (Cilium: set cni.exclusive to false)",
                chain.conf.conf_dir,
                self.changes.len()
            );
        }
    }

    /// Says a sentence, unless it was the last one already.
    fn say(&mut self, sentence: String) {
        if self.said.is_news(&sentence) {
            log::warn!("{sentence}");
        }
    }

    /// How long to wait before a turn: the longer, the more there were lately.
    fn pause(&self) -> Duration {
        let doubled = u32::try_from(self.changes.len() / 8).unwrap_or(u32::MAX);
        TOGETHER
            .saturating_mul(2_u32.saturating_pow(doubled))
            .min(SLOWEST)
    }
}
