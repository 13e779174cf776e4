// SPDX-License-Identifier: Apache-2.0
//! The fabric watch: each rail of this node repeatedly sends requests to the same rail of a few other nodes.
//!
//! | module | owns |
//! |---|---|
//! | this module | the loop: one thread, one request at a time |
//! | `choice` | groups, order and pace: the work of a node does not depend on the number of nodes |
//! | `watch` | rails, peers and verdicts |
//! | `peers` | ConfigMaps with the rails of nodes |
//! | `report` | the file from which the node's daemon reads the unhealthy rails |

mod choice;
mod peers;
mod report;
#[cfg(test)]
mod simulation_tests;
mod watch;

pub use peers::Account;
pub use report::Report;

use crate::rails;
use choice::{hash, mix, next};
use rdma_netns::sidr::{AskError, Request, ask};
use serde::{Deserialize, Serialize};
use std::{
    net::IpAddr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;
use watch::{Outcome, Watch};

/// Time limit of each step of a request.
const ANSWER: Duration = Duration::from_secs(1);
/// Longest normal time between two lists of peers from the API server.
const LIST: Duration = Duration::from_secs(600);

/// A rail of a node in the form of the node's ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricRail {
    /// Resource of the NIC.
    pub resource: String,
    /// Index of the NIC in its resource. Nodes with the same set-up have the same indices.
    pub number: usize,
    /// Name of the RDMA device.
    pub device: String,
    /// Addresses of the rail. Leaves out link-local addresses.
    pub addresses: Vec<IpAddr>,
    /// Verdict of the node's fabric watch on the rail, see [`RailState::is_unreachable`].
    #[serde(
        rename = "unreachable",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub is_unreachable: bool,
}

impl FabricRail {
    fn has_place_of(&self, other: &Self) -> bool {
        (&self.resource, self.number) == (&other.resource, other.number)
    }

    /// Returns true if both values are the same NIC of this node. The addresses may differ.
    fn is_same(&self, other: &Self) -> bool {
        self.has_place_of(other) && self.device == other.device
    }
}

/// State of a rail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RailState {
    /// Name of the RDMA device.
    pub device: String,
    /// True after the rail's last 12 requests were lost. The requests go to different peers, if there are enough. The
    /// value becomes false after two of the last 12 requests were answered, or after 12 successive requests could not
    /// be sent.
    pub is_unreachable: bool,
    /// True if the daemon must treat the rail as unhealthy. The value becomes true if the rail is unreachable by its
    /// own fault, and at most [`Fabric::percent`] of the cluster's rails are unreachable. The value becomes false when
    /// `is_unreachable` becomes false.
    pub is_unhealthy: bool,
    /// Number of the rail's peers.
    pub peers: usize,
    /// Reason why the rail's last request was not sent.
    pub not_asked: Option<String>,
    /// Last request to each of the rail's last peers, the latest first.
    pub requests: Vec<LastRequest>,
}

/// Last request of a rail to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastRequest {
    /// Name of the peer's node.
    pub node: String,
    /// Address of the peer's rail.
    pub address: IpAddr,
    /// Time until the answer in seconds; `None`: the request was lost.
    pub seconds: Option<f64>,
}

/// Event of the watch.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request of this device has ended. The duration is the time until the answer; `None`: the request was lost.
    Sent(&'a str, Option<Duration>),
    /// A request of this device could not be sent, for this reason.
    NotSent(&'a str, AskError),
    /// The device has become unreachable (true) or reachable (false).
    Verdict(&'a str, bool),
    /// States of all rails, at the beginning of a round or after a new verdict.
    States(Vec<RailState>),
    /// The API server has accepted this node's rails. If a list was due, the API server has also listed the peers.
    Listed,
    /// The rails in the API server, or the list of peers, are out of date for this reason.
    Problem(String),
}

/// Settings of a watch.
#[derive(Debug)]
pub struct Fabric {
    /// Name of the node, and access to the API server.
    pub account: Account,
    /// Path of the connection manager's device.
    pub manager: PathBuf,
    /// Time in which each rail sends two requests.
    pub interval: Duration,
    /// Largest percentage of the cluster's rails that may be unreachable when a rail becomes unhealthy. One unreachable
    /// rail is always allowed. 0: no rail becomes unhealthy.
    pub percent: u8,
    /// Runtime for requests to the API server.
    pub runtime: Runtime,
    /// Report of this node's previous fabric watch.
    pub before: Report,
}

struct Running<'a, T> {
    settings: &'a Fabric,
    watch: Watch,
    report: T,
    begin: Instant,
    /// Time of the last request, counted from `begin`.
    previous: Duration,
    /// This node's rails in the API server. `None`: the watch has not published them yet.
    published: Option<Vec<FabricRail>>,
    /// Time of the next list of peers, counted from `begin`.
    list_at: Duration,
}

impl Fabric {
    /// Watches forever. `rails` reads the rails of this node.
    pub fn run(
        &self,
        rails: impl Fn() -> Result<Vec<FabricRail>, String>,
        report: impl FnMut(Event<'_>),
    ) -> ! {
        let seed = hash(&self.account.node);
        let mut running = Running {
            settings: self,
            watch: Watch::new(seed, self.percent, 2 * (LIST + self.interval)),
            report,
            begin: Instant::now(),
            previous: Duration::ZERO,
            published: None,
            list_at: Duration::ZERO,
        };
        let mut before = Some(&self.before.rails);
        loop {
            match rails() {
                Ok(rails) => {
                    running.watch.has(rails);
                    before
                        .take()
                        .into_iter()
                        .for_each(|it| running.watch.had(it));
                }
                Err(problem) => running.report(Event::Problem(problem)),
            }
            running.follow();
            running.states();
            running.round();
        }
    }
}

impl<T: FnMut(Event<'_>)> Running<'_, T> {
    fn report(&mut self, event: Event<'_>) {
        (self.report)(event);
    }

    fn states(&mut self) {
        let states = self.watch.states();
        self.report(Event::States(states));
    }

    /// Publishes this node's rails if they have changed, or if a list of the peers is due. Then lists the peers if the
    /// list is due.
    fn follow(&mut self) {
        let is_due = self.begin.elapsed() >= self.list_at;
        let rails = self.watch.own();
        if !is_due && self.published.as_ref() == Some(&rails) {
            return;
        }
        let Fabric {
            account, runtime, ..
        } = self.settings;
        let followed = runtime.block_on(async {
            account.publish(self.watch.group(), &rails).await?;
            if is_due {
                self.watch.begin_list();
                while !self.watch.listed(account.list(&self.watch.groups()).await?) {}
                let now = self.begin.elapsed();
                if self.watch.is_in_doubt(now) {
                    let nodes = account.unreachable().await?;
                    self.watch.take_unreachable(&nodes, now);
                }
            }
            Ok::<_, kubernetes_api::RequestError>(())
        });
        match followed {
            Ok(()) => {
                self.published = Some(rails);
                if is_due {
                    // nodes whose watches started at the same time then list their peers at different times
                    let spread = mix(hash(&account.node)) % (LIST.as_secs() / 4);
                    self.list_at = self.begin.elapsed() + LIST - Duration::from_secs(spread);
                }
                self.report(Event::Listed);
            }
            Err(error) => self.report(Event::Problem(error.to_string())),
        }
    }

    /// Sends the requests of an interval. Waits for the interval if there are no peers.
    ///
    /// If the peer does not answer a request that was sent, sends a second one: the peer's first answer is lost while
    /// the peer's kernel resolves this node's hardware address.
    fn round(&mut self) {
        let round = self.watch.round();
        if round.is_empty() {
            self.pause(1);
        }
        for rail in round.iter().copied() {
            let Some((source, destination)) = self.watch.target(rail) else {
                continue;
            };
            self.pause(round.len());
            let mut answered = self.ask(source, destination);
            if matches!(answered, Err(AskError::Silent { .. })) {
                self.pause(usize::MAX);
                answered = self.ask(source, destination);
            }
            self.judge(rail, answered);
        }
    }

    fn judge(&mut self, rail: usize, answered: Result<Duration, AskError>) {
        let device = self.watch.device(rail).to_owned();
        let outcome = match answered {
            Ok(time) => {
                self.report(Event::Sent(&device, Some(time)));
                Outcome::Answered(time)
            }
            Err(AskError::Silent { .. } | AskError::Unresolved(_) | AskError::NoPath(_)) => {
                self.report(Event::Sent(&device, None));
                Outcome::Lost
            }
            Err(error) => {
                let reason = reason(&error);
                self.report(Event::NotSent(&device, error));
                Outcome::NotSent(reason)
            }
        };
        if let Some(is_unreachable) = self.watch.take(rail, outcome) {
            self.report(Event::Verdict(&device, is_unreachable));
            self.states();
            // list the peers soon after a new verdict, but publish the verdict first
            let soon = self.begin.elapsed() + self.settings.interval;
            self.list_at = self.list_at.min(soon);
        }
    }

    /// Waits until the next request may be sent. `requests` is the number of requests in an interval.
    fn pause(&mut self, requests: usize) {
        let now = self.begin.elapsed();
        self.previous = next(self.previous, now, self.settings.interval, requests);
        thread::sleep(self.previous.saturating_sub(now));
    }

    fn ask(&self, source: IpAddr, destination: IpAddr) -> Result<Duration, AskError> {
        let request = Request {
            source: Some(source),
            destination,
            traffic_class: None,
            timeout: ANSWER,
        };
        let iwarp = |index| {
            let mut devices = rails::devices().ok()?;
            let device = devices.remove(&index).filter(|it| it.is_iwarp);
            device.map(|it| it.name)
        };
        ask(&self.settings.manager, &request, iwarp).map(|it| it.time)
    }
}

/// Returns the value of the metric's label for a request that was not sent.
fn reason(error: &AskError) -> &'static str {
    match error {
        AskError::Open { .. } => "no-connection-manager",
        AskError::NoDevice(_) | AskError::Removed => "no-device",
        AskError::NoRoute(_) => "no-route",
        AskError::Iwarp(_) => "iwarp",
        AskError::Silent { .. }
        | AskError::Unresolved(_)
        | AskError::NoPath(_)
        | AskError::NoQp1
        | AskError::Step { .. } => "refused",
    }
}
