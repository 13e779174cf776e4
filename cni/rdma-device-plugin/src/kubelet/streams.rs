// SPDX-License-Identifier: Apache-2.0
//! ListAndWatch streams of a resource.

use super::plugin_context::PluginContext;
use crate::{metrics::Metrics, peers::Role};
use conf_reader::elided;
use daemon_conf::ResourceName;
use kubelet_api::device_plugin::{Device, ListAndWatchResponse};
use node_state::node::Node;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Counts of kubelet's streams for one resource. After kubelet's restart and after a [takeover](super::takeover),
/// several streams can be open, and the daemon sends lists only on the newest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of open streams.
    pub open: usize,
    /// Number of all streams that kubelet has opened.
    pub opened: u64,
    /// True if the newest stream is open.
    pub newest_is_open: bool,
    /// Sequence number of the newest stream that has sent the device list.
    pub listed: u64,
    /// Number of kubelet's requests for the plugin's options.
    pub options_requests: u64,
}

/// Reason why the plugin of a resource ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The plugin does not end yet.
    NotYet,
    /// The daemon ends. It sends no empty list, so kubelet counts the ids in the node's capacity for some minutes:
    /// another daemon may follow and send the next list.
    Daemon,
    /// The daemon no longer offers the resource. The last list is empty: kubelet would otherwise count the ids in the
    /// node's capacity for minutes.
    Withdrawn,
}

/// Opens and counts the streams of a resource.
#[derive(Clone)]
pub struct Streams {
    resource: ResourceName,
    node: watch::Receiver<Arc<Node>>,
    metrics: Metrics,
    end: watch::Receiver<End>,
    role: watch::Receiver<Role>,
    count: watch::Sender<Count>,
}

impl Streams {
    /// Returns the streams of `resource`.
    pub fn new(resource: ResourceName, context: &PluginContext, end: watch::Receiver<End>) -> Self {
        let (count, _) = watch::channel(Count::default());
        Self {
            resource,
            node: context.node.clone(),
            metrics: context.metrics.clone(),
            end,
            role: context.role.clone(),
            count,
        }
    }

    /// Returns a receiver of the counts.
    pub fn count(&self) -> watch::Receiver<Count> {
        self.count.subscribe()
    }

    /// Counts a request of kubelet for the plugin's options.
    pub fn options_requested(&self) {
        self.count.send_modify(|count| count.options_requests += 1);
    }

    /// Opens a stream. While this daemon leads and no newer stream exists, the stream sends the whole device list at
    /// once and after each change.
    pub fn open(&self) -> ReceiverStream<Result<ListAndWatchResponse, Status>> {
        let (lists, stream) = mpsc::channel(1);
        tokio::spawn(self.clone().feed(lists));
        ReceiverStream::new(stream)
    }

    async fn feed(mut self, lists: mpsc::Sender<Result<ListAndWatchResponse, Status>>) {
        let counted = Counted::new(self.count.clone());
        let mut count = self.count.subscribe();
        let mut sent: Option<Vec<Device>> = None;
        loop {
            let end = *self.end.borrow_and_update();
            let list = match end {
                End::Daemon => return,
                End::Withdrawn => vec![],
                End::NotYet => self.list(),
            };
            // send only on the leader's newest stream: kubelet uses the list that arrives last, from whichever stream
            let is_used = self.role.borrow_and_update().leads
                && count.borrow_and_update().opened == counted.number;
            if is_used && sent.as_ref() != Some(&list) {
                log_list(&self.resource, sent.as_deref(), &list);
                self.metrics.listed(self.resource.as_str());
                let devices = list.clone();
                sent = Some(list);
                if lists
                    .send(Ok(ListAndWatchResponse { devices }))
                    .await
                    .is_err()
                {
                    return;
                }
                self.count
                    .send_modify(|count| count.listed = count.listed.max(counted.number));
            }
            if end == End::Withdrawn {
                return;
            }
            tokio::select! {
                () = lists.closed() => return,
                changed = self.node.changed() => if changed.is_err() { return },
                changed = self.end.changed() => if changed.is_err() { return },
                changed = self.role.changed() => if changed.is_err() { return },
                // a newer stream: this stream is no longer used
                _ = count.wait_for(|count| is_used && count.opened != counted.number) => {}
            }
        }
    }

    fn list(&mut self) -> Vec<Device> {
        let node = self.node.borrow_and_update().clone();
        node.offer(self.resource.as_str())
            .map(offer::Offer::list)
            .unwrap_or_default()
    }
}

/// An open stream that [`Count`] includes. Dropping this value counts the stream as ended.
struct Counted {
    count: watch::Sender<Count>,
    /// Sequence number of the stream, from 1.
    number: u64,
}

impl Counted {
    fn new(count: watch::Sender<Count>) -> Self {
        let mut number = 0;
        count.send_modify(|count| {
            count.open += 1;
            count.opened += 1;
            count.newest_is_open = true;
            number = count.opened;
        });
        Self { count, number }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.send_modify(|count| {
            count.open -= 1;
            count.newest_is_open &= count.opened != self.number;
        });
    }
}

/// Logs a device list: a summary of the first list, and later the differences from the list `before`.
fn log_list(resource: &ResourceName, before: Option<&[Device]>, now: &[Device]) {
    let healthy = now.iter().filter(|device| is_healthy(device)).count();
    let Some(before) = before else {
        log::info!(
            "{resource}: kubelet has the list: {} ids, {healthy} of them healthy",
            now.len()
        );
        return;
    };
    let difference = difference(before, now);
    log::info!(
        "{resource}: kubelet has a new list: {} ids, {healthy} of them healthy; {difference}",
        now.len()
    );
}

fn is_healthy(device: &Device) -> bool {
    device.health == kubelet_api::device_plugin::HEALTHY
}

/// Describes the differences between two lists. Names only the first few ids if there are many.
fn difference(before: &[Device], now: &[Device]) -> String {
    fn by_id(list: &[Device]) -> BTreeMap<&str, &Device> {
        list.iter().map(|it| (it.id.as_str(), it)).collect()
    }
    let (before, now) = (by_id(before), by_id(now));
    let mut kinds: [(&str, Vec<&str>); 5] = [
        ("new", vec![]),
        ("gone", vec![]),
        ("healthy again", vec![]),
        ("no longer healthy", vec![]),
        ("on another NUMA node", vec![]),
    ];
    for (id, device) in &now {
        match before.get(id) {
            None => kinds[0].1.push(id),
            Some(old) if is_healthy(old) != is_healthy(device) => {
                kinds[if is_healthy(device) { 2 } else { 3 }].1.push(id);
            }
            Some(old) if old.topology != device.topology => kinds[4].1.push(id),
            Some(_) => {}
        }
    }
    kinds[1].1 = before
        .keys()
        .filter(|id| !now.contains_key(*id))
        .copied()
        .collect();
    let changed = kinds.iter().filter(|(_, ids)| !ids.is_empty());
    let changed: Vec<_> = changed
        .map(|(kind, ids)| format!("{kind}: {}", some(ids)))
        .collect();
    if changed.is_empty() {
        return "in another order".into();
    }
    changed.join("; ")
}

/// Joins the ids. Names only the first few ids if there are many.
pub fn some<S: AsRef<str>>(ids: &[S]) -> String {
    elided(ids, 8, ", ", " and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_api::device_plugin::{HEALTHY, UNHEALTHY};

    fn device(id: &str, health: &str) -> Device {
        Device {
            id: id.into(),
            health: health.into(),
            topology: None,
        }
    }

    #[test]
    fn differences_are_grouped_by_kind() {
        let before = [
            device("a", HEALTHY),
            device("b", HEALTHY),
            device("c", UNHEALTHY),
        ];
        let now = [
            device("a", UNHEALTHY),
            device("c", HEALTHY),
            device("d", HEALTHY),
        ];
        assert_eq!(
            difference(&before, &now),
            "new: d; gone: b; healthy again: c; no longer healthy: a"
        );
    }

    #[test]
    fn a_long_list_of_ids_is_shortened() {
        let ids: Vec<_> = (0..1000).map(|id| id.to_string()).collect();
        assert_eq!(some(&ids), "0, 1, 2, 3, 4, 5, 6, 7 and 992 more");
        assert_eq!(some(&ids[..2]), "0, 1");
    }
}
