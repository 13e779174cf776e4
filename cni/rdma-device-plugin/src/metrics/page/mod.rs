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
use crate::{chain::ChainStatus, history::History};
use attachments::pods::PodRails;
use nics::{Device, Nic, Numa};
use offer::Offer;
use pods::Pod;
use rdma_ping::fabric::RailState;
use std::{collections::BTreeSet, time::SystemTime};
use text::{count, moment, text};

const STYLE: &str = include_str!("style.css");

#[derive(Debug)]
pub(super) struct Page<'a> {
    node: &'a str,
    snapshot: &'a Snapshot,
    history: &'a History,
    numa: Vec<Numa>,
    pods: Vec<Pod>,
    /// Resources that kubelet has registered.
    registered: BTreeSet<String>,
    /// Answers of the liveness and readiness probes.
    probes: [Result<String, String>; 2],
    fabric: Vec<RailState>,
}

impl<'a> Page<'a> {
    /// Returns the page of the node with the name `node`. `probes` are the answers of `/healthz` and `/readyz`.
    pub(super) fn new(
        node: &'a str,
        metrics: &'a Metrics,
        snapshot: &'a Snapshot,
        rails: &[PodRails],
        probes: [Result<String, String>; 2],
        fabric: Vec<RailState>,
    ) -> Self {
        let pods = pods::pods(snapshot, rails);
        let registrations = metrics.0.registrations_now.lock();
        let registered = registrations.iter().filter(|(_, it)| it.yes);
        Self {
            node: node.trim(),
            snapshot,
            history: metrics.history(),
            numa: nics::numa(snapshot, &pods),
            pods,
            registered: registered.map(|(name, _)| name.clone()).collect(),
            probes,
            fabric,
        }
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
            tables::changes(self.history),
            tables::lines(self.history),
            tables::resources(self.snapshot, &self.registered),
            tables::chain(&self.snapshot.chain, &self.probes),
            tables::pods(&self.pods, self.snapshot.held.is_some()),
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
            node = text(match self.node {
                "" => "this node",
                node => node,
            }),
            at = moment(SystemTime::now()),
            sections = sections.join("\n"),
            version = env!("CARGO_PKG_VERSION"),
        )
    }

    fn tiles(&self) -> String {
        let all = self.devices().filter(|it| it.counts()).count();
        let unhealthy = self.devices().filter(|it| it.fault.is_some()).count();
        let devices = match (all, unhealthy) {
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
        let offers: Vec<_> = self.snapshot.node.advertised().collect();
        let is_registered = |it: &&&Offer| self.registered.contains(it.name.as_str());
        let registered = offers.iter().filter(is_registered).count();
        let all = offers.len();
        let of = format!("{registered} of {all}");
        let kubelet = match all {
            0 => tile("off", "Resources", "none", "nothing is offered to kubelet"),
            _ if registered == all => tile("ok", "Resources", &of, "known to kubelet"),
            _ => tile("bad", "Resources", &of, "known to kubelet"),
        };
        let chain = &self.snapshot.chain;
        let (class, word) = match chain {
            ChainStatus::Unseen => ("off", "not known yet"),
            ChainStatus::Off => ("off", "not kept"),
            ChainStatus::Left(_) => ("bad", "left"),
            ChainStatus::Called(_) => ("ok", "called"),
            ChainStatus::NotCalled(_) => ("bad", "not called"),
            ChainStatus::Withheld(_) => ("bad", "withheld"),
        };
        let more = match chain {
            ChainStatus::Called(called) => format!("for network {}", called.network),
            _ => "the reason is below".to_owned(),
        };
        let chain = tile(class, "rdma-cni", word, &more);
        format!("<div class=\"tiles\">{devices}{pods}{kubelet}{chain}</div>")
    }

    /// Renders the unhealthy devices, followed by the devices that only some resources cannot use.
    fn unhealthy(&self) -> String {
        let devices = self.devices();
        let devices = devices.filter_map(|it| Some((it.name.clone(), it.fault.clone()?)));
        let losses = self.snapshot.node.losses().into_iter();
        let of_resources = losses.filter_map(|it| {
            let name = format!("{} in {}", it.rdma?, it.resource?);
            Some((name, it.reason))
        });
        tables::faults(&devices.chain(of_resources).collect::<Vec<_>>())
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        let nics = self.numa.iter().flat_map(|numa| &numa.nics);
        nics.flat_map(Nic::devices)
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
