// SPDX-License-Identifier: Apache-2.0
//! NICs that nobody configured get what the cloud says: up, MTU, address, routes.
//!
//! ```text
//! kernel.observe → ForeignConfig          whose NIC it is; one that is configured is left alone
//! History                                 as is one that was configured a moment ago, or may be soon
//! conf, metadata → Sources → DesiredNic   the address, its network and router
//! (Link, host, DesiredNic) → plan::give   pure: address and routes with their metrics
//!                          → plan::missing   pure: the changes
//! Records::write                          how the NIC was, before the first change
//! apply                                   the only place that changes anything
//! release → put_back                      pure: what was given goes
//! ```
//! All of it can be done again at any time: what is as it should be is not touched.

mod apply;
mod history;
mod outcome;
pub mod ownership;
pub mod plan;
pub mod put_back;
pub mod record;
mod release;
mod sources;

pub use outcome::{Outcome, State};
pub use release::{End, ReleaseError, Released, release};

use super::{
    Nic,
    metadata::{InvalidBase, Pace},
};
use crate::conf;
use apply::{ApplyError, Reached};
use attachments::pods;
use cni_protocol::lock::Held;
use history::{Blocker, History};
use ownership::ForeignConfig;
use plan::DesiredNic;
use rdma_netns::{DeviceAddress, HardwareAddress, InterfaceName, Kernel};
use record::{RecordError, Records};
use sources::{Sources, Unknown};
use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Before it is looked again what is in the way, if nothing is heard of it.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// For how long a carrier may be missing before that is told: a NIC that has just gone up agrees
/// upon a speed first.
const CARRIER: Duration = Duration::from_secs(5);
/// Before a NIC without carrier is looked at again, once that was told: of a carrier is heard.
const DARK: Duration = Duration::from_secs(60);

/// Brings NICs up.
#[derive(Debug)]
pub struct BringUp<K> {
    sources: Sources,
    node: Node<K>,
    /// Held from the first NIC on.
    lock: Option<Held>,
    seen: History,
    /// Since when a NIC that is up has no carrier.
    dark: BTreeMap<DeviceAddress, Instant>,
    told: BTreeMap<DeviceAddress, Vec<String>>,
}

/// What threads that may wait need.
#[derive(Debug)]
struct Node<K> {
    kernel: Arc<K>,
    records: Records,
    attachments: PathBuf,
}

impl<K> Clone for Node<K> {
    fn clone(&self) -> Self {
        Self {
            kernel: self.kernel.clone(),
            records: self.records.clone(),
            attachments: self.attachments.clone(),
        }
    }
}

/// What is to be done with a NIC.
enum NicStatus {
    /// Nothing now.
    Is(State),
    /// The netdev with this index is somebody else's.
    Foreign(u32, ForeignConfig),
    /// It needs an address.
    Needs(Needs),
}

/// A NIC that nobody else has configured, as far as is to be seen.
struct Needs {
    mac: HardwareAddress,
    index: u32,
    netdev: InterfaceName,
    /// It is up, and not by us.
    is_new: bool,
    /// The last address that it was given, if it was.
    last: Option<DesiredNic>,
}

impl<K: Kernel + Send + Sync + 'static> BringUp<K> {
    /// As `conf` says, with records below `state_dir`, which is `rdma-cni`'s. Nothing is done yet.
    ///
    /// # Errors
    /// The metadata service's address is none.
    pub fn new(conf: conf::BringUp, state_dir: &Path, kernel: Arc<K>) -> Result<Self, InvalidBase> {
        Self::with_pace(conf, state_dir, kernel, Pace::default())
    }

    /// The same, with another patience.
    ///
    /// # Errors
    /// The metadata service's address is none.
    pub fn with_pace(
        conf: conf::BringUp,
        state_dir: &Path,
        kernel: Arc<K>,
        pace: Pace,
    ) -> Result<Self, InvalidBase> {
        Ok(Self {
            sources: Sources::new(conf, pace)?,
            node: Node {
                kernel,
                records: Records::new(state_dir),
                attachments: state_dir.join("attachments"),
            },
            lock: None,
            seen: History::new(pace.quiet),
            dark: BTreeMap::new(),
            told: BTreeMap::new(),
        })
    }

    /// Gives every NIC of `nics` what it lacks; what became of each, in order of their addresses.
    ///
    /// To be called at the start, when NICs or links change, and after the shortest
    /// [`Outcome::retry_after`]. It takes as long as the metadata service does: some seconds where
    /// that is needed and does not answer.
    pub async fn settle(&mut self, nics: &[Nic]) -> Vec<Outcome> {
        let mut nics = nics.to_vec();
        nics.sort_by(|a, b| a.address.cmp(&b.address));
        let is_there = |address: &DeviceAddress| nics.iter().any(|nic| nic.address == *address);
        self.told.retain(|address, _| is_there(address));
        self.seen.retain(is_there);
        let mut outcomes = vec![];
        // what the service has refused all is not asked of it again this time
        let mut silent = None;
        for nic in nics {
            let (state, remarks) = self.settle_one(&nic, &mut silent).await;
            outcomes.push(self.outcome(&nic, state, remarks));
        }
        outcomes
    }

    async fn settle_one(&mut self, nic: &Nic, silent: &mut Option<String>) -> (State, Vec<String>) {
        if let Err(error) = self.take_lock() {
            return (waiting(error.to_string(), LOOK_AGAIN), vec![]);
        }
        let status = self.aside(nic, |node, nic| node.status(nic)).await;
        let needs = match self.seen(nic, status) {
            Ok(needs) => needs,
            Err(state) => {
                self.dark.remove(&nic.address);
                return (state, vec![]);
            }
        };
        let index = needs.index;
        let wanted = match self.sources.wanted(&needs.mac, needs.last, silent).await {
            Ok(wanted) => wanted,
            Err(Unknown::Configured(reason)) => return (State::Failed { reason }, vec![]),
            Err(Unknown::Primary(reason)) => return (State::LeftAlone { reason }, vec![]),
            Err(Unknown::Asked(it)) => return (waiting(it.reason, it.wait), vec![]),
        };
        let address = wanted.address;
        let gateway = wanted.gateway;
        let done = self
            .aside(nic, move |node, nic| {
                apply::bring_up(&*node.kernel, &node.records, nic, &wanted)
            })
            .await;
        let reached = match done {
            Ok(reached) => reached,
            Err(ApplyError::Foreign(foreign)) => {
                self.seen.configured(&nic.address, index, &foreign);
                return (left_alone(&foreign), vec![]);
            }
            Err(error @ ApplyError::Gone) => {
                return (waiting(error.to_string(), LOOK_AGAIN), vec![]);
            }
            Err(error) => {
                let reason = error.to_string();
                return (State::Failed { reason }, vec![]);
            }
        };
        let netdev = reached.link.name.to_string();
        if reached.link.carrier {
            self.dark.remove(&nic.address);
        } else {
            let since = self.dark.entry(nic.address.clone());
            let since = since.or_insert_with(Instant::now).elapsed();
            let again = if since < CARRIER { CARRIER } else { DARK };
            let reason = format!("{netdev} has {address}, and no carrier");
            let remarks = remarks(&reached, gateway.is_some());
            return (waiting(reason, again), remarks);
        }
        let remarks = remarks(&reached, gateway.is_some());
        let changes = reached.changes;
        let state = State::Configured {
            netdev,
            address,
            changes,
        };
        (state, remarks)
    }

    /// Does `work` on a thread that may wait for the kernel and the disk.
    async fn aside<T: Send + 'static>(
        &self,
        nic: &Nic,
        work: impl FnOnce(&Node<K>, &Nic) -> T + Send + 'static,
    ) -> T {
        let (node, nic) = (self.node.clone(), nic.clone());
        let done = tokio::task::spawn_blocking(move || work(&node, &nic)).await;
        match done {
            Ok(done) => done,
            // the task is not cancelled: it has panicked, and goes on doing so here
            Err(error) => resume_unwind(error.into_panic()),
        }
    }

    fn take_lock(&mut self) -> Result<(), RecordError> {
        if self.lock.is_none() {
            self.lock = Some(self.node.records.lock()?);
        }
        Ok(())
    }

    /// What a NIC needs; or how it stands, by what is seen of it now and was seen before.
    fn seen(&mut self, nic: &Nic, status: NicStatus) -> Result<Needs, State> {
        let needs = match status {
            NicStatus::Is(state) => return Err(state),
            NicStatus::Foreign(index, foreign) => {
                self.seen.configured(&nic.address, index, &foreign);
                return Err(left_alone(&foreign));
            }
            NicStatus::Needs(needs) => needs,
        };
        let netdev = (needs.index, &needs.netdev);
        match self.seen.bare(&nic.address, netdev, needs.is_new) {
            None => Ok(needs),
            Some(Blocker::Foreign(reason)) => Err(State::LeftAlone { reason }),
            Some(Blocker::Early(reason)) => Err(waiting(reason, LOOK_AGAIN)),
        }
    }

    fn outcome(&mut self, nic: &Nic, state: State, remarks: Vec<String>) -> Outcome {
        let did_something = matches!(state, State::Configured { changes: 1.., .. });
        let mut outcome = Outcome {
            rdma: nic.rdma.clone(),
            address: nic.address.clone(),
            state,
            remarks,
            is_news: false,
        };
        let mut words = vec![outcome.to_string()];
        words.extend(outcome.remarks.iter().cloned());
        let is_waiting = matches!(outcome.state, State::Waiting { .. });
        let since = self.dark.get(&nic.address).filter(|_| is_waiting);
        if since.is_some_and(|since| since.elapsed() < CARRIER) {
            return outcome;
        }
        let before = self.told.insert(nic.address.clone(), words.clone());
        outcome.is_news = did_something || before != Some(words);
        outcome
    }
}

fn waiting(reason: String, retry_after: Duration) -> State {
    State::Waiting {
        reason,
        retry_after,
    }
}

fn left_alone(foreign: &ForeignConfig) -> State {
    let reason = foreign.to_string();
    State::LeftAlone { reason }
}

fn remarks(reached: &Reached, has_gateway: bool) -> Vec<String> {
    let name = &reached.link.name;
    let mut remarks: Vec<String> = vec![];
    if reached.record.given.mtu.is_none() {
        remarks.push(format!(
            "{name} cannot have the MTU that is asked for: it keeps {}",
            reached.link.mtu
        ));
    }
    if !has_gateway {
        remarks.push(format!(
            "{name} has no default route: its network has no gateway"
        ));
    }
    if let Some(network) = &reached.alone {
        remarks.push(format!(
            "the node's own traffic to {network} leaves by {name}: no other netdev has a route there"
        ));
    }
    let refused = reached.refused.iter();
    remarks.extend(refused.map(|error| {
        format!("{error}; with strict filtering, what comes in by {name} may be dropped")
    }));
    remarks
}

impl<K: Kernel> Node<K> {
    /// What `nic` is to the daemon now.
    fn status(&self, nic: &Nic) -> NicStatus {
        let failed = |reason: String| NicStatus::Is(State::Failed { reason });
        let alone = |reason: String| NicStatus::Is(State::LeftAlone { reason });
        let observed = match self.kernel.observe(None) {
            Ok(observed) => observed,
            Err(error) => return failed(error.to_string()),
        };
        let placed = pods::read(&self.attachments, &observed.boot_id);
        if let Some(placed) = placed.iter().find(|it| it.has(&nic.address)) {
            return alone(format!("it is in pod {}", placed.pod.name));
        }
        let Some(link) = apply::netdev(nic, &observed.host) else {
            return alone("its netdev is not in this network namespace".to_owned());
        };
        let record = match apply::record_of(&self.records, nic, link, &observed.boot_id) {
            Ok(record) => record,
            Err(error) => return failed(error.to_string()),
        };
        if let Some(foreign) = ownership::foreign_config(link, &observed.host, record.as_ref()) {
            return NicStatus::Foreign(link.index, foreign);
        }
        NicStatus::Needs(Needs {
            mac: link.mac.clone(),
            index: link.index,
            netdev: link.name.clone(),
            is_new: link.up && record.is_none(),
            last: record.and_then(|record| DesiredNic::of(&record.given)),
        })
    }
}
