// SPDX-License-Identifier: Apache-2.0
//! Tests of the daemon's offers and answers on many node layouts. For each foreign configuration format, the tests
//! compare the daemon with the program that owns the format. Every difference is intended, and has a reason.
//!
//! - `<layout>/node.json` has the node, as a base of `bases/` and the differences from it (see the crate `cases`).
//! - `configs/` has the configurations.
//! - `<layout>/table.yaml` has the answers of both programs, and `differences.yaml` the reasons.
//! - `<layout>/preferred.yaml` has the preferred NICs beside GPUs.
//! - README.md names the sources of the other programs' answers.

mod answers;
mod erdma;
mod erdma_flags;
mod erdma_parentless;
mod notices;
mod parents;
mod preferred;
mod required;
mod selected;
mod sharers;
mod tree;
mod unnamed;

use daemon_conf::{Conf, Parsed};
use offer::{Offer, PreviousOffers, Unhealthy, offers};
use rdma_netns::Inventory;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    about: String,
    /// Layout that the daemon observed before this one.
    before: Option<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    config: String,
    resource: String,
    /// Ids that kubelet allocates.
    request: Vec<String>,
    peer: Answer,
    ours: Answer,
    differences: Vec<String>,
}

/// Answer of a program. It has no ids if the program does not advertise the resource, or advertises it without ids.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    /// Lines such as `0000:3b:00.2 numa 1`. `0..999` means a thousand ids.
    ids: Vec<String>,
    /// Lines such as `uverbs0 rw`, in the order of the names.
    devices: Vec<String>,
    env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    part: String,
    why: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes")
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn node(layout: &str) -> Inventory {
    cases::read_as(&root().join(layout).join("node.json"))
}

fn conf(name: &str) -> Parsed {
    let path = root().join("configs").join(name);
    Conf::read(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn tables() -> Vec<(String, Table)> {
    let mut tables = Vec::new();
    for entry in fs::read_dir(root()).expect("the layouts") {
        let path = entry.expect("a layout").path().join("table.yaml");
        if path.exists() {
            let layout = path.parent().and_then(Path::file_name).expect("a name");
            let table = serde_saphyr::from_str(&text(&path))
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            tables.push((layout.to_string_lossy().into_owned(), table));
        }
    }
    assert!(tables.len() >= 12, "{} layouts", tables.len());
    tables
}

/// Returns this daemon's offers and remarks on `layout`, after the daemon observed the layout `before`.
fn offered(conf: &Conf, layout: &str, before: Option<&str>) -> (Vec<Offer>, Vec<String>) {
    let healthy = Unhealthy::new();
    let previous = match before {
        None => PreviousOffers::default(),
        Some(before) => {
            let (offers, _) = offers(
                conf,
                &node(before),
                &BTreeSet::new(),
                &healthy,
                &PreviousOffers::default(),
            );
            PreviousOffers::of(&offers)
        }
    };
    offers(conf, &node(layout), &BTreeSet::new(), &healthy, &previous)
}

fn ours(case: &Case, layout: &str, before: Option<&str>) -> Answer {
    let conf = conf(&case.config).conf;
    let (offers, _) = offered(&conf, layout, before);
    let Some(offer) = offers.iter().find(|it| it.name.as_str() == case.resource) else {
        return Answer::default();
    };
    let (response, grants) = offer
        .answer(&case.request, &node(layout))
        .unwrap_or_else(|error| panic!("{layout}, {}: {error}", case.config));
    assert_eq!(grants.len(), case.request.len());
    let mut devices: Vec<String> = response
        .devices
        .iter()
        .map(|spec| {
            assert_eq!(spec.host_path, spec.container_path);
            let name = spec.host_path.strip_prefix("/dev/infiniband/");
            format!("{} {}", name.expect("an RDMA device"), spec.permissions)
        })
        .collect();
    devices.sort();
    Answer {
        ids: ids(offer),
        devices,
        env: response.envs.into_iter().collect(),
    }
}

/// Returns the ids in the form of the table: one line for ids that differ only by their number.
fn ids(offer: &Offer) -> Vec<String> {
    let mut lines: Vec<(String, u32, u32, String)> = Vec::new();
    for device in offer.list() {
        assert_eq!(device.health, "Healthy", "{}", device.id);
        let nodes = device.topology.into_iter().flat_map(|it| it.nodes);
        let numa: String = nodes.map(|node| format!(" numa {}", node.id)).collect();
        let (front, number) = match device.id.rsplit_once('/') {
            Some((front, number)) => (format!("{front}/"), number.to_owned()),
            None => (String::new(), device.id),
        };
        match (number.parse::<u32>(), lines.last_mut()) {
            (Ok(number), Some((last_front, _, last, last_numa)))
                if *last_front == front && *last_numa == numa && *last + 1 == number =>
            {
                *last = number;
            }
            (Ok(number), _) => lines.push((front, number, number, numa)),
            (Err(_), _) => lines.push((number, u32::MAX, u32::MAX, numa)),
        }
    }
    let line = |(front, first, last, numa): (String, u32, u32, String)| match (first, last) {
        (u32::MAX, _) => format!("{front}{numa}"),
        (first, last) => format!("{front}{first}..{last}{numa}"),
    };
    lines.into_iter().map(line).collect()
}

#[test]
fn our_answers_are_those_of_the_tables() {
    let mut cases = 0;
    for (layout, table) in tables() {
        for case in &table.cases {
            let found = ours(case, &layout, table.before.as_deref());
            assert_eq!(
                found, case.ours,
                "{layout} ({}), {}, {}",
                table.about, case.config, case.resource
            );
            cases += 1;
        }
    }
    assert!(cases > 40, "{cases} cases");
}

/// The daemon offers no resource that a layout's table does not have.
#[test]
fn we_offer_nothing_that_the_tables_do_not_have() {
    for (layout, table) in tables() {
        for config in ["hca.json", "sriov.json", "shared.json", "network.json"] {
            let (offers, _) = offered(&conf(config).conf, &layout, table.before.as_deref());
            let offered: BTreeSet<&str> = offers.iter().map(|it| it.name.as_str()).collect();
            let cases = table.cases.iter().filter(|case| case.config == config);
            let in_table: BTreeSet<&str> = cases
                .filter(|case| !case.ours.ids.is_empty())
                .map(|case| case.resource.as_str())
                .collect();
            assert_eq!(offered, in_table, "{layout}, {config}");
        }
    }
}

#[test]
fn every_difference_from_a_peer_has_its_reason() {
    let reasons: BTreeMap<String, Difference> =
        serde_saphyr::from_str(&text(&root().join("differences.yaml"))).expect("the reasons");
    let mut used = BTreeSet::new();
    for (layout, table) in tables() {
        for case in &table.cases {
            let Case { peer, ours, .. } = case;
            let parts = [
                ("ids", peer.ids != ours.ids),
                ("devices", peer.devices != ours.devices),
                ("env", peer.env != ours.env),
            ];
            let differ: BTreeSet<&str> = parts
                .iter()
                .filter(|(_, differs)| *differs)
                .map(|(part, _)| *part)
                .collect();
            let given: BTreeSet<&str> = case
                .differences
                .iter()
                .map(|name| {
                    used.insert(name.clone());
                    let reason = reasons.get(name);
                    reason.unwrap_or_else(|| panic!("{name} has no reason"))
                })
                .map(|reason| reason.part.as_str())
                .collect();
            assert_eq!(
                differ, given,
                "{layout}, {}, {}",
                case.config, case.resource
            );
        }
    }
    for (name, reason) in &reasons {
        assert!(used.contains(name), "{name} differs nowhere");
        assert!(reason.why.len() > 10, "{name}");
    }
}
