// SPDX-License-Identifier: Apache-2.0
//! Tables of the page. Each table has a limited number of rows, and shows the number of omitted rows.

use super::{
    super::collect::Snapshot,
    nics::{Device, Numa},
    pods::{self, Pod},
    text::{count, cut, moment, text},
};
use crate::{
    chain::ChainStatus,
    history::{Change, History, Line},
};
use attachments::pods::{PodRail, RailAddress};
use rdma_ping::fabric::{LastRequest, RailState};
use std::collections::BTreeSet;

const ROWS: usize = 256;

/// Number of recent events that the page shows unfolded.
const RECENT: usize = 8;

/// Largest number of characters of a peer's name that the page shows.
const NODE: usize = 40;

/// Largest number of addresses of a rail, and of containers of a pod, that the page shows.
const LISTED: usize = 8;

pub(super) fn faults(faults: &[(String, String)]) -> String {
    if faults.is_empty() {
        return String::new();
    }
    let rows = faults
        .iter()
        .map(|(name, why)| row(&[&mono(name), &text(why).to_string()]));
    section(
        "Unhealthy now",
        &table(&["Device", "Why"], faults.len(), rows),
    )
}

pub(super) fn pods(pods: &[Pod], holders_known: bool) -> String {
    let rails = pods.iter().map(|pod| pod.rails.len()).sum();
    let rows = pods.iter().flat_map(|pod| {
        let rails = pod.rails.iter().enumerate();
        rails.map(|(place, rail)| rail_row((place == 0).then_some(pod), rail))
    });
    let heads = [
        "Pod",
        "Containers",
        "Rail",
        "RDMA device",
        "Host netdev",
        "Address",
        "GID index",
    ];
    let unknown = match holders_known {
        true => "",
        false => {
            "<p class=\"warning\">Kubelet did not report which container has which device.</p>"
        }
    };
    let table = match pods.is_empty() {
        true => "<p>No pod has a rail now.</p>".to_owned(),
        false => table(&heads, rails, rows),
    };
    section("Pods", &format!("{unknown}{table}"))
}

fn rail_row(of: Option<&Pod>, rail: &PodRail) -> String {
    let pod = of.map(|pod| text(&pod.name).to_string());
    let containers = of.map(|pod| {
        let containers = pod.containers.iter().take(LISTED).cloned();
        text(&containers.collect::<Vec<_>>().join(", ")).to_string()
    });
    let shared = if rail.shared { " (shared)" } else { "" };
    let netdev = rail.host_netdev.as_deref().unwrap_or_default();
    let each = |cell: &dyn Fn(&RailAddress) -> String| {
        let addresses = rail.addresses.iter().take(LISTED).map(cell);
        addresses.collect::<Vec<_>>().join("<br>")
    };
    let interface = pods::interface(rail);
    let addresses = match interface {
        Some(_) => each(&|it| mono(&it.ip.to_string())),
        None => "no record of rdma-cni".to_owned(),
    };
    let gid = |index: Option<u32>| index.map_or_else(|| "–".to_owned(), |it| it.to_string());
    let class = if of.is_none() { "more" } else { "" };
    row_of(
        class,
        &[
            &pod.unwrap_or_default(),
            &containers.unwrap_or_default(),
            &mono(interface.unwrap_or("–")),
            &mono(pods::device(rail)),
            &format!("{}{shared}", mono(netdev)),
            &addresses,
            &each(&|it| gid(it.gid_index)),
        ],
    )
}

pub(super) fn devices(numa: &[Numa]) -> String {
    let nics = numa.iter().flat_map(|node| &node.nics);
    let all = nics.map(|nic| 1 + nic.functions.len()).sum();
    let rows = numa.iter().flat_map(|node| {
        let number = node.number.map_or("–".to_owned(), |it| it.to_string());
        node.nics.iter().flat_map(move |nic| {
            let about = nic.about.strip_prefix(&[nic.own.address.to_string()]);
            let about = about.unwrap_or(&nic.about);
            let own = row(&[
                &number,
                &mono(&nic.own.name),
                &mono(&nic.own.address.to_string()),
                &text(nic.netdev.as_deref().unwrap_or_default()).to_string(),
                &text(&about.join(", ")).to_string(),
                &nic.link.words(),
                health(&nic.own),
                "",
            ]);
            let number = number.clone();
            let functions = nic.functions.iter().map(move |it| {
                row(&[
                    &number,
                    &format!("└ {}", mono(&it.name)),
                    &mono(&it.address.to_string()),
                    "",
                    "",
                    "",
                    health(it),
                    &text(it.pod.as_deref().unwrap_or_default()).to_string(),
                ])
            });
            std::iter::once(own).chain(functions)
        })
    });
    let heads = [
        "NUMA", "Device", "Address", "Netdev", "About", "Link", "Health", "Pod",
    ];
    let table = table(&heads, all, rows);
    format!("<details><summary>NICs and their functions as a table</summary>{table}</details>")
}

fn health(device: &Device) -> &'static str {
    match device.fault {
        None => "healthy",
        Some(_) => "<b class=\"bad\">unhealthy</b>",
    }
}

pub(super) fn resources(snapshot: &Snapshot, registered: &BTreeSet<String>) -> String {
    let offers: Vec<_> = snapshot.node.advertised().collect();
    let rows = offers.iter().map(|offer| {
        let name = offer.name.as_str();
        let healthy = offer.ids.iter().filter(|id| id.healthy).count();
        let held = snapshot.held.as_ref();
        let allocated = held.and_then(|it| it.allocated.get(name));
        row(&[
            &mono(name),
            &format!("{} of {} healthy", count(healthy), count(offer.ids.len())),
            &allocated.map_or("not known".to_owned(), ToString::to_string),
            &format!(
                "{} of {} usable",
                count(offer.usable()),
                count(offer.expected)
            ),
            match registered.contains(name) {
                true => "registered",
                false => "<b class=\"bad\">not registered</b>",
            },
        ])
    });
    let heads = ["Resource", "Ids", "Allocated", "Devices", "Kubelet"];
    let body = match offers.is_empty() {
        true => "<p>Nothing is offered to kubelet.</p>".to_owned(),
        false => table(&heads, offers.len(), rows),
    };
    section("Resources", &body)
}

pub(super) fn chain(chain: &ChainStatus, [live, ready]: &[Result<String, String>; 2]) -> String {
    let probe = |name: &str, answer: &Result<String, String>| {
        let (class, words) = match answer {
            Ok(words) => ("ok", words),
            Err(words) => ("bad", words),
        };
        let words = text(words.trim_end());
        format!("<dt>{name}</dt><dd class=\"{class}\">{words}</dd>")
    };
    let chain = text(&chain.to_string()).to_string();
    let (live, ready) = (probe("/healthz", live), probe("/readyz", ready));
    let list = format!("<dl><dt>chain</dt><dd>{chain}</dd>{live}{ready}</dl>");
    section("State of the daemon", &list)
}

/// Renders the rails of the fabric watch, each with the peers that it queried lately. Returns an empty text if there
/// are no rails.
pub(super) fn fabric(rails: &[RailState]) -> String {
    if rails.is_empty() {
        return String::new();
    }
    let rows = rails.iter().map(|it| {
        let state = match (&it.not_asked, it.is_unreachable) {
            (Some(why), _) => format!("sends no requests: {}", text(why)),
            (None, true) => "<b class=\"bad\">unreachable</b>".to_owned(),
            (None, false) => "<b class=\"ok\">reachable</b>".to_owned(),
        };
        let requests: Vec<String> = it.requests.iter().map(answer).collect();
        row(&[
            &mono(&it.device),
            &state,
            &count(it.peers),
            &requests.join(", "),
        ])
    });
    let heads = ["Device", "State", "Peers", "Last requests"];
    section("Rails of other nodes", &table(&heads, rails.len(), rows))
}

fn answer(request: &LastRequest) -> String {
    let answer = match request.seconds {
        Some(seconds) => format!("{:.2} ms", seconds * 1000.0),
        None => "<b class=\"bad\">lost</b>".to_owned(),
    };
    format!("{} {answer}", cut(&request.node, NODE))
}

pub(super) fn changes(history: &History) -> String {
    let (changes, since) = (history.changes(), moment(history.since()));
    let body = match changes.is_empty() {
        true => format!("<p>No device became unhealthy since {since}.</p>"),
        false => recent(&changes, &["When", "Device", "Became", "Why"], change_row),
    };
    section("History of health", &body)
}

fn change_row(change: &Change) -> String {
    let devices = change.devices.iter().map(|it| mono(it));
    let devices = devices.collect::<Vec<_>>().join(", ");
    let more = match change.more {
        0 => String::new(),
        more => format!(" and {} more", count(more)),
    };
    let (state, why) = match &change.reason {
        Some(why) => ("<b class=\"bad\">unhealthy</b>", why.as_str()),
        None => ("<b class=\"ok\">healthy</b>", ""),
    };
    let devices = format!("{devices}{more}");
    row(&[&moment(change.at), &devices, state, &text(why).to_string()])
}

pub(super) fn lines(history: &History) -> String {
    let (lines, since) = (history.lines(), moment(history.since()));
    let body = match lines.is_empty() {
        true => format!("<p>None since {since}.</p>"),
        false => recent(&lines, &["When", "Level", "What"], line_row),
    };
    section("Last errors and warnings", &body)
}

fn line_row(line: &Line) -> String {
    let level = match line.is_error {
        true => "<b class=\"bad\">error</b>",
        false => "<b class=\"warning\">warning</b>",
    };
    let times = match line.times {
        1 => String::new(),
        times => format!(" ({} times)", count(times)),
    };
    let text = format!("{}{times}", text(&line.text));
    row(&[&moment(line.at), level, &text])
}

/// Renders a table of events. Only the [`RECENT`] latest events are unfolded.
fn recent<T>(all: &[T], heads: &[&str], row: fn(&T) -> String) -> String {
    let (recent, older) = all.split_at(all.len().min(RECENT));
    let shown = table(heads, recent.len(), recent.iter().map(row));
    if older.is_empty() {
        return shown;
    }
    let folded = table(heads, older.len(), older.iter().map(row));
    let number = count(older.len());
    format!("{shown}<details><summary>{number} older</summary>{folded}</details>")
}

fn section(name: &str, body: &str) -> String {
    format!("<section><h2>{name}</h2>{body}</section>")
}

/// Renders a table with the first [`ROWS`] of `rows`. `all` is the number of rows.
fn table(heads: &[&str], all: usize, rows: impl Iterator<Item = String>) -> String {
    let heads: String = heads.iter().map(|it| format!("<th>{it}</th>")).collect();
    let shown: String = rows.take(ROWS).collect();
    let more = match all.saturating_sub(ROWS) {
        0 => String::new(),
        more => format!("<p>and {} more</p>", count(more)),
    };
    format!(
        "<div class=\"table\"><table><thead><tr>{heads}</tr></thead><tbody>{shown}</tbody></table></div>{more}"
    )
}

/// Renders a table row. The cells are HTML.
fn row(cells: &[&str]) -> String {
    row_of("", cells)
}

fn row_of(class: &str, cells: &[&str]) -> String {
    let cells: String = cells.iter().map(|it| format!("<td>{it}</td>")).collect();
    format!("<tr class=\"{class}\">{cells}</tr>\n")
}

fn mono(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!("<code>{}</code>", text(name)),
    }
}
