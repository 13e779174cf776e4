// SPDX-License-Identifier: Apache-2.0
//! Writes events about lost and recovered rails of running pods. Sends no request if no device is unusable and nothing
//! was reported.

use super::{
    event::Event,
    pods::{self, Paths},
    rails::{News, PodKey, Reported, Troubles},
};
use crate::{
    api::Api,
    retry::{REST, Retry},
};
use anyhow::Result;
use kubernetes_api::RequestError;
use node_state::node::Node;
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

const LOST: &str = "RdmaRailLost";
const RECOVERED: &str = "RdmaRailRecovered";

/// Time for which a report waits for further changes: the functions of a NIC do not fail at exactly the same time.
const TOGETHER: Duration = Duration::from_secs(1);

/// Reports rail events to the pods of one node.
#[derive(Debug)]
pub struct RailEvents {
    node: watch::Receiver<Arc<Node>>,
    account: PathBuf,
    paths: Paths,
    reported: Reported,
    retry: Retry,
}

impl RailEvents {
    /// Returns a reporter that follows `node`. The directory `account` contains the service account's token.
    pub fn new(node: watch::Receiver<Arc<Node>>, account: PathBuf, paths: Paths) -> Self {
        Self {
            node,
            account,
            paths,
            reported: Reported::default(),
            retry: Retry::default(),
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        loop {
            let next = self.report().await.map(|next| next.unwrap_or(REST));
            let log =
                |line: &str| log::warn!("cannot report lost and recovered rails to pods: {line}");
            let rested = self.retry.rests(&mut self.node, next, TOGETHER, log);
            if !rested.await {
                return;
            }
        }
    }

    /// Writes the due events. Returns the delay until more events are due. If the API server refuses an event,
    /// continues with the other events, and returns the first refusal.
    async fn report(&mut self) -> Result<Option<Duration>> {
        let node = self.node.borrow_and_update().clone();
        let troubles = troubles(&node);
        if troubles.is_empty() && self.reported.is_empty() {
            return Ok(None);
        }
        let pods = pods::with_devices(&self.paths, &node).await?;
        let (due, mut next) = self.reported.due(&pods, &troubles, Instant::now());
        if due.is_empty() {
            return Ok(next);
        }
        let api = Api::new(&self.account)?;
        let mut refused = None;
        for news in due {
            if !self.reported.has_room(Instant::now()) {
                next = Some(Duration::ZERO);
                break;
            }
            match self.write(&api, &news).await {
                Ok(()) => self.reported.reported(news, Instant::now()),
                // the pod's namespace is gone, so the pod will soon end
                Err(error) if error.code() == Some(404) => {
                    self.reported.reported(news, Instant::now())
                }
                Err(error) if error.code().is_some() => drop(refused.get_or_insert(error)),
                Err(error) => return Err(error.into()),
            }
        }
        refused.map_or(Ok(next), |error| Err(error.into()))
    }

    async fn write(&mut self, api: &Api, news: &News) -> Result<(), RequestError> {
        let PodKey { name, uid } = &news.pod;
        for (reason, message) in [(LOST, news.loss()), (RECOVERED, news.recovery())] {
            let Some(message) = message else { continue };
            let event = Event {
                pod: name,
                uid: uid.as_deref(),
                node: &api.node,
                reason,
                is_warning: reason == LOST,
                message: &message,
            };
            event.write(&api.client).await?;
            self.reported.wrote(Instant::now());
            log::info!("reported to {name}: {message}");
        }
        Ok(())
    }
}

/// Returns the node's losses and its usable devices.
fn troubles(node: &Node) -> Troubles {
    let mut usable = BTreeSet::new();
    for offer in &node.offers {
        let devices = offer.devices.iter().filter(|it| it.fault.is_none());
        usable.extend(devices.map(|it| (offer.name.to_string(), it.address.clone())));
    }
    Troubles {
        losses: node.losses(),
        usable,
    }
}

#[cfg(test)]
#[path = "rail_events_tests.rs"]
mod tests;
