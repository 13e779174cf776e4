// SPDX-License-Identifier: Apache-2.0
//! Bring-up of unconfigured NICs: sets the netdev up, and sets its MTU, address, routes and `rp_filter`. The address is
//! from the cloud or from the configuration.
//!
//! ```text
//! kernel.observe → ForeignConfig          NICs that another program configures: unchanged
//! History                                 NICs that another program configured earlier: unchanged; may soon: wait
//! conf, metadata → Sources → DesiredNic   the address, its network and router
//! (Link, host, DesiredNic) → plan::give   pure: address and routes with their metrics
//!                          → plan::missing   pure: the changes
//! Records::write                          the NIC's state before the first change
//! apply                                   the only module that makes changes
//! release → put_back                      pure: the removal of the configuration
//! ```
//! All steps are idempotent: the bring-up does not change a NIC with the right configuration.

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
use attachments::{Store, pods};
use cni_protocol::lock::Held;
use history::History;
use ownership::ForeignConfig;
use plan::DesiredNic;
use rdma_netns::{DeviceAddress, HardwareAddress, InterfaceName, Kernel, LinkChange, Op};
use rdma_resources::FileError;
use record::Records;
use sources::Sources;
use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time until the next attempt for a NIC that waits for its netdev or for another program. An event can cause an
/// earlier attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time that a NIC may need to negotiate its speed until it has a carrier. After this time, the daemon reports a
/// missing carrier.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks of a NIC whose missing carrier was reported. An appearing carrier also causes an event.
const NO_CARRIER_INTERVAL: Duration = Duration::from_secs(60);

/// Bring-up of the node's NICs.
#[derive(Debug)]
pub struct BringUp<K> {
    sources: Sources,
    node: Arc<Node<K>>,
    /// Lock on the records; `None`: no attempt to take the lock has succeeded yet.
    lock: Option<Held>,
    history: History,
    /// Time at which a configured NIC was first observed without a carrier.
    no_carrier_since: BTreeMap<DeviceAddress, Instant>,
    /// Last reported sentences of each NIC.
    reported: BTreeMap<DeviceAddress, Vec<String>>,
}

/// Kernel and records that blocking threads need.
#[derive(Debug)]
struct Node<K> {
    kernel: Arc<K>,
    records: Records,
    attachments: Store,
}

/// Observed state of a NIC that the daemon may bring up.
struct Needs {
    /// Configuration of the netdev by another program. `None`: no other program has configured it.
    foreign: Option<ForeignConfig>,
    mac: HardwareAddress,
    index: u32,
    netdev: InterfaceName,
    /// True if the netdev is up although the daemon did not bring it up.
    is_new: bool,
    /// Configuration that the daemon assigned last.
    last: Option<DesiredNic>,
}

impl<K: Kernel + Send + Sync + 'static> BringUp<K> {
    /// Returns the bring-up for `conf`, and changes nothing yet. The records are below `state_dir`, the state directory
    /// of `rdma-cni`.
    ///
    /// # Errors
    /// The address of the metadata service is invalid.
    pub fn new(conf: conf::BringUp, state_dir: &Path, kernel: Arc<K>) -> Result<Self, InvalidBase> {
        Self::with_pace(conf, state_dir, kernel, Pace::default())
    }

    /// Returns the bring-up like [`BringUp::new`], with other time limits.
    ///
    /// # Errors
    /// The address of the metadata service is invalid.
    pub fn with_pace(
        conf: conf::BringUp,
        state_dir: &Path,
        kernel: Arc<K>,
        pace: Pace,
    ) -> Result<Self, InvalidBase> {
        Ok(Self {
            sources: Sources::new(conf, pace)?,
            node: Arc::new(Node {
                kernel,
                records: Records::new(state_dir),
                attachments: Store::new(state_dir),
            }),
            lock: None,
            history: History::new(pace.quiet),
            no_carrier_since: BTreeMap::new(),
            reported: BTreeMap::new(),
        })
    }

    /// Brings up those of `nics` that are unconfigured, and repairs those that the daemon brought up. Returns the
    /// outcomes in the order of the NICs' PCI addresses. The caller calls this function at the start, after a change of
    /// NICs or links, and after the shortest [`Outcome::retry_after`]. If the metadata service is needed and does not
    /// answer, the call takes some seconds.
    pub async fn settle(&mut self, nics: &[Nic]) -> Vec<Outcome> {
        let mut nics = nics.to_vec();
        nics.sort_by(|a, b| a.address.cmp(&b.address));
        let is_there = |address: &DeviceAddress| nics.iter().any(|nic| nic.address == *address);
        self.reported.retain(|address, _| is_there(address));
        self.no_carrier_since.retain(|address, _| is_there(address));
        self.history.retain(is_there);
        let mut outcomes = vec![];
        // reason why the metadata service failed: once it is set, this call sends no further requests
        let mut silent = None;
        for nic in nics {
            let settled = self.settle_one(&nic, &mut silent).await;
            let (state, remarks) = settled.unwrap_or_else(|state| (state, vec![]));
            outcomes.push(self.outcome(&nic, state, remarks));
        }
        outcomes
    }

    /// Brings `nic` up. Returns the NIC's state, and remarks. If the daemon did not configure the NIC, the NIC's state
    /// is the error.
    async fn settle_one(
        &mut self,
        nic: &Nic,
        silent: &mut Option<String>,
    ) -> Result<(State, Vec<String>), State> {
        self.take_lock()
            .map_err(|error| State::waiting(error, RETRY_INTERVAL))?;
        let needs = match self.needs(nic).await {
            Ok(needs) => needs,
            Err(state) => {
                self.no_carrier_since.remove(&nic.address);
                return Err(state);
            }
        };
        let wanted = self.sources.wanted(&needs.mac, needs.last, silent).await?;
        let (address, gateway) = (wanted.address, wanted.gateway);
        let done = self
            .blocking(nic, move |node, nic| {
                apply::bring_up(&*node.kernel, &node.records, nic, &wanted)
            })
            .await;
        let reached = done.map_err(|error| match error {
            ApplyError::Foreign(foreign) => {
                self.history.configured(&nic.address, needs.index, &foreign);
                State::left_alone(foreign)
            }
            ApplyError::Gone => State::waiting(error, RETRY_INTERVAL),
            error => State::failed(error),
        })?;
        let netdev = reached.link.name.to_string();
        let state = if reached.link.carrier {
            self.no_carrier_since.remove(&nic.address);
            State::Configured {
                netdev,
                address,
                changes: reached.changes,
            }
        } else {
            let since = self.no_carrier_since.entry(nic.address.clone());
            let since = since.or_insert_with(Instant::now).elapsed();
            let again = match since < CARRIER_TIMEOUT {
                true => CARRIER_TIMEOUT,
                false => NO_CARRIER_INTERVAL,
            };
            State::waiting(format!("{netdev} has {address}, but no carrier"), again)
        };
        Ok((state, remarks(&reached, gateway.is_some())))
    }

    /// Runs `work` on a thread that may block in the kernel or on the disk.
    async fn blocking<T: Send + 'static>(
        &self,
        nic: &Nic,
        work: impl FnOnce(&Node<K>, &Nic) -> T + Send + 'static,
    ) -> T {
        let (node, nic) = (self.node.clone(), nic.clone());
        let done = tokio::task::spawn_blocking(move || work(&node, &nic)).await;
        match done {
            Ok(done) => done,
            // continue the panic on this thread: an error means a panic, because this program cancels no task
            Err(error) => resume_unwind(error.into_panic()),
        }
    }

    fn take_lock(&mut self) -> Result<(), FileError> {
        if self.lock.is_none() {
            self.lock = Some(self.node.records.lock()?);
        }
        Ok(())
    }

    /// Returns the observed state of a NIC that the daemon may bring up, from the present and earlier observations. If
    /// the daemon must not bring the NIC up, the error is the NIC's [`State`].
    async fn needs(&mut self, nic: &Nic) -> Result<Needs, State> {
        let needs = self.blocking(nic, |node, nic| node.needs(nic)).await?;
        if let Some(foreign) = &needs.foreign {
            self.history.configured(&nic.address, needs.index, foreign);
            return Err(State::left_alone(foreign));
        }
        let netdev = (needs.index, &needs.netdev);
        self.history.bare(&nic.address, netdev, needs.is_new)?;
        Ok(needs)
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
        let since = self
            .no_carrier_since
            .get(&nic.address)
            .filter(|_| is_waiting);
        if since.is_some_and(|since| since.elapsed() < CARRIER_TIMEOUT) {
            return outcome;
        }
        let before = self.reported.insert(nic.address.clone(), words.clone());
        outcome.is_news = did_something || before != Some(words);
        outcome
    }
}

fn remarks(reached: &Reached, has_gateway: bool) -> Vec<String> {
    let name = &reached.link.name;
    let mut remarks: Vec<String> = vec![];
    if reached.record.given.mtu.is_none() {
        remarks.push(format!(
            "{name} does not support the requested MTU: it keeps MTU {}",
            reached.link.mtu
        ));
    }
    if !has_gateway {
        remarks.push(format!(
            "{name} has no default route: its network has no known gateway"
        ));
    }
    if let Some(network) = &reached.alone {
        remarks.push(format!(
            "the node's own traffic to {network} may leave by {name}: only eRDMA NICs have a route there"
        ));
    }
    let refused = reached.refused.iter();
    remarks.extend(refused.map(|error| match *error.op {
        Op::Link {
            change: LinkChange::Sysctl { .. },
            ..
        } => format!(
            "{error}; with strict reverse path filtering, the kernel may drop packets that {name} receives"
        ),
        _ => apply::not_restored(name, error),
    }));
    remarks
}

impl<K: Kernel> Node<K> {
    /// Returns the observed state of a NIC that the daemon may bring up, from the present observation. If the daemon
    /// must not bring the NIC up, the error is the NIC's [`State`].
    fn needs(&self, nic: &Nic) -> Result<Needs, State> {
        let observed = self.kernel.observe(None).map_err(State::failed)?;
        let placed = pods::read(&self.attachments, &observed.boot_id);
        if let Some(placed) = placed.iter().find(|it| it.has(&nic.address)) {
            let reason = format!("it is in pod {}", placed.pod.name);
            return Err(State::left_alone(reason));
        }
        let Some(link) = apply::netdev(nic, &observed.host) else {
            return Err(State::left_alone(
                "its netdev is not in this network namespace",
            ));
        };
        let record = apply::record_of(&self.records, nic, link, &observed.boot_id);
        let record = record.map_err(State::failed)?;
        Ok(Needs {
            foreign: ownership::foreign_config(link, &observed.host, record.as_ref()),
            mac: link.mac.clone(),
            index: link.index,
            netdev: link.name.clone(),
            is_new: link.up && record.is_none(),
            last: record.and_then(|record| DesiredNic::of(&record.given)),
        })
    }
}
