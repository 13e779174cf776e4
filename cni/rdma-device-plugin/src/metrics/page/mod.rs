// SPDX-License-Identifier: Apache-2.0
//! The page for operators (`/`): the node's NICs and links, the pods that have them, and recent events.
//!
//! | module | owns |
//! |---|---|
//! | this module | data of the page, and the page as a whole |
//! | `nics` | NUMA nodes, and NICs with their functions, links and health |
//! | `pods` | pods and their rails |
//! | `drawing` | NUMA nodes, NICs and pods as SVG |
//! | `tables` | all data as tables, including NICs and pods |
//! | `text` | external text, escaped and cut |
//!
//! The page is one HTML document. It has no scripts, and the browser loads nothing else for it. The page has a maximum
//! size for any node: it shows how many further NICs, pods, rails and rows it leaves out.

mod drawing;
mod nics;
mod pods;
mod tables;
#[cfg(test)]
mod tests;
mod text;

use super::{Metrics, collect::Snapshot};
use crate::{
    chain::ChainStatus,
    history::{Change, Line},
};
use attachments::pods::PodRails;
use nics::{Nic, Numa};
use pods::Pod;
use rdma_ping::fabric::RailState;
use std::time::SystemTime;
use text::{count, moment, text};

const STYLE: &str = include_str!("style.css");

#[derive(Debug)]
pub(super) struct Page {
    node: String,
    at: SystemTime,
    numa: Vec<Numa>,
    pods: Vec<Pod>,
    /// True if kubelet reported the containers of devices.
    holders_known: bool,
    resources: Vec<Resource>,
    chain: ChainStatus,
    /// Answers of the liveness and readiness probes.
    probes: [Result<String, String>; 2],
    since: SystemTime,
    /// Changes of health, the latest first.
    changes: Vec<Change>,
    /// Lines of the log, the latest first.
    lines: Vec<Line>,
    fabric: Vec<RailState>,
}

/// A resource that kubelet allocates.
#[derive(Debug)]
struct Resource {
    name: String,
    ids: usize,
    healthy: usize,
    /// Number of allocated ids; `None`: kubelet did not answer.
    allocated: Option<u64>,
    present: usize,
    expected: usize,
    registered: bool,
    /// Devices that this resource cannot use although other resources can, each with the reason.
    faults: Vec<(String, String)>,
}

impl Page {
    /// Returns the page of the node with the name `node`. `probes` are the answers of `/healthz` and `/readyz`.
    pub(super) fn new(
        node: &str,
        metrics: &Metrics,
        snapshot: &Snapshot,
        rails: &[PodRails],
        probes: [Result<String, String>; 2],
    ) -> Self {
        let pods = pods::pods(snapshot, rails);
        let history = metrics.history();
        Self {
            node: node.trim().to_owned(),
            at: SystemTime::now(),
            numa: nics::numa(snapshot, &pods),
            pods,
            holders_known: snapshot.held.is_some(),
            resources: resources(metrics, snapshot),
            chain: snapshot.node.chain.clone(),
            probes,
            since: history.since(),
            changes: history.changes(),
            lines: history.lines(),
            fabric: vec![],
        }
    }

    pub(super) fn with_fabric(self, fabric: Vec<RailState>) -> Self {
        Self { fabric, ..self }
    }

    pub(super) fn render(&self) -> String {
        let sections = [
            self.tiles(),
            self.unhealthy(),
            format!(
                "<section><h2>Rails</h2>{}</section>{}",
                drawing::drawing(&self.numa, &self.pods),
                tables::fabric(&self.fabric)
            ),
            tables::changes(&self.changes, self.since),
            tables::lines(&self.lines, self.since),
            tables::resources(&self.resources),
            tables::chain(&self.chain, &self.probes),
            tables::pods(&self.pods, self.holders_known),
            tables::devices(&self.numa),
        ];
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{node} - RDMA</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <header><h1>RDMA on {node}</h1><p>as of {at}, reload for a newer state</p></header>\n\
             <main>\n{sections}\n</main>\n\
             <footer>rdma-device-plugin {version} &middot; <a href=\"/metrics\">/metrics</a> &middot; \
             <a href=\"/healthz\">/healthz</a> &middot; <a href=\"/readyz\">/readyz</a></footer>\n\
             </body>\n</html>\n",
            node = text(if self.node.is_empty() {
                "this node"
            } else {
                &self.node
            }),
            at = moment(self.at),
            sections = sections.join("\n"),
            version = env!("CARGO_PKG_VERSION"),
        )
    }

    fn tiles(&self) -> String {
        let nics = || self.numa.iter().flat_map(|numa| &numa.nics);
        let functions = nics().flat_map(Nic::rdma_functions).map(|it| &it.fault);
        let own = nics().filter(|nic| nic.counts()).map(|nic| &nic.fault);
        let healths: Vec<&Option<String>> = own.chain(functions).collect();
        let unhealthy = healths.iter().filter(|it| it.is_some()).count();
        let devices = match (healths.len(), unhealthy) {
            (0, _) => tile(
                "off",
                "RDMA devices",
                "none",
                "this node has no RDMA device",
            ),
            (all, 0) => tile("ok", "RDMA devices", &count(all), "all healthy"),
            (all, bad) => {
                let of = format!("{} of {} unhealthy", count(bad), count(all));
                tile("bad", "RDMA devices", &of, "the reasons are below")
            }
        };
        let rails: usize = self.pods.iter().map(|pod| pod.rails.len()).sum();
        let rails = format!("with {} rails", count(rails));
        let pods = tile("plain", "Pods", &count(self.pods.len()), &rails);
        let registered = self.resources.iter().filter(|it| it.registered).count();
        let all = self.resources.len();
        let of = format!("{registered} of {all}");
        let kubelet = match all {
            0 => tile("off", "Resources", "none", "nothing is offered to kubelet"),
            _ if registered == all => tile("ok", "Resources", &of, "known to kubelet"),
            _ => tile("bad", "Resources", &of, "known to kubelet"),
        };
        let (class, word) = match &self.chain {
            ChainStatus::Unseen => ("off", "not known yet"),
            ChainStatus::Off => ("off", "not kept"),
            ChainStatus::Left(_) => ("bad", "left"),
            ChainStatus::Called(_) => ("ok", "called"),
            ChainStatus::NotCalled(_) => ("bad", "not called"),
            ChainStatus::Withheld(_) => ("bad", "withheld"),
        };
        let chain = match &self.chain {
            ChainStatus::Called(called) => format!("for network {}", called.network),
            _ => "the reason is below".to_owned(),
        };
        let chain = tile(class, "rdma-cni", word, &chain);
        format!("<div class=\"tiles\">{devices}{pods}{kubelet}{chain}</div>")
    }

    fn unhealthy(&self) -> String {
        let nics = self.numa.iter().flat_map(|numa| &numa.nics);
        let named = nics.flat_map(|nic| {
            let own = nic.counts().then_some((&nic.name, &nic.fault));
            let functions = nic.functions.iter().map(|it| (&it.name, &it.fault));
            own.into_iter().chain(functions)
        });
        let faults = named.filter_map(|(name, fault)| Some((name.as_str(), fault.as_deref()?)));
        let of_resources = self.resources.iter().flat_map(|it| &it.faults);
        let of_resources = of_resources.map(|(name, why)| (name.as_str(), why.as_str()));
        tables::faults(&faults.chain(of_resources).collect::<Vec<_>>())
    }
}

fn tile(class: &str, what: &str, state: &str, more: &str) -> String {
    format!(
        "<div class=\"tile {class}\"><span>{}</span><b>{}</b><span>{}</span></div>",
        text(what),
        text(state),
        text(more)
    )
}

fn resources(metrics: &Metrics, snapshot: &Snapshot) -> Vec<Resource> {
    let known = metrics.now();
    let held = snapshot.held.as_ref();
    let offers = snapshot.node.offers.iter();
    offers
        .map(|offer| Resource {
            name: offer.name.to_string(),
            ids: offer.ids.len(),
            healthy: offer.ids.iter().filter(|id| id.healthy).count(),
            allocated: held.and_then(|it| it.allocated.get(offer.name.as_str()).copied()),
            present: offer.usable(),
            expected: offer.expected,
            registered: known.get(offer.name.as_str()).is_some_and(|it| it.yes),
            faults: offer.own_faults(&snapshot.node.unhealthy),
        })
        .collect()
}
