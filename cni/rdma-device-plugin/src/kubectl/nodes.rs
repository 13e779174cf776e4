// SPDX-License-Identifier: Apache-2.0
//! Nodes with a daemon, and their resources, rails and health.

use super::api::{Daemons, Flags, array, items, text};
use crate::report::condition::Condition;
use anyhow::{Error, Result};
use doctor::{
    examine::{Severity, counted, examine},
    facts::Facts,
};
use offer::columns;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Part of the error of `kubectl` if the API server does not serve ResourceSlices.
const NO_SLICES: &str = "doesn't have a resource type";

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    name: String,
    /// State of the daemon: `Ready`, or the reason why it is not ready.
    daemon: String,
    /// Resources that the daemon offers.
    resources: BTreeMap<String, Amount>,
    /// Number of devices that pods can have; `None`: unknown.
    rails: Option<usize>,
    /// Number of NICs whose taint in a ResourceSlice keeps new pods away. `None`: no ResourceSlice of the node has
    /// NICs.
    tainted: Option<usize>,
    /// Switches by rail, which the daemon learned by LLDP.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    switches: BTreeMap<String, String>,
    /// Health: `ok`, or the problem.
    health: String,
}

/// Numbers of a resource's ids, as Kubernetes writes them. `None`: the node's status does not have the resource, for
/// example because it is allocated by claims.
#[derive(Debug, PartialEq, Serialize)]
struct Amount {
    allocatable: Option<String>,
    capacity: Option<String>,
}

/// Returns the nodes, and the errors of daemons that did not answer.
pub(super) fn nodes(flags: &Flags) -> Result<(Vec<Node>, Vec<Error>)> {
    let daemons = Daemons::get(flags)?;
    let nodes = flags.get(&["nodes"])?;
    let slices = match flags.get(&["resourceslices.resource.k8s.io"]) {
        Err(error) if error.to_string().contains(NO_SLICES) => Value::Null,
        slices => slices?,
    };
    let names: Vec<&str> = daemons.by_node().map(|(node, _)| node.as_str()).collect();
    let mut rows = vec![];
    let mut failed = vec![];
    for (name, facts) in daemons.facts(flags, &names) {
        let node = items(&nodes).find(|it| text(it, "/metadata/name") == name);
        let daemon = daemons.on(name).map_or("", |it| it.state());
        let facts = facts.map_err(|error| failed.push(error)).ok();
        rows.push(row(
            name,
            daemon,
            node.unwrap_or(&Value::Null),
            &slices,
            facts.as_ref(),
        ));
    }
    mark_misplaced(&mut rows);
    Ok((rows, failed))
}

/// Returns the condition's text for a node that lacks rails.
pub(super) fn problem(node: &Value) -> Option<String> {
    let (condition, ..) = Condition::read(node)?;
    let message = || format!("{}: {}", condition.reason, condition.message);
    condition.is_missing.then(message)
}

fn row(name: &str, daemon: &str, node: &Value, slices: &Value, facts: Option<&Facts>) -> Node {
    let published = facts.and_then(|it| it.daemon.published.as_ref());
    let published: Vec<_> = published.iter().flat_map(|it| &it.resources).collect();
    let devices = devices(name, slices);
    let named = published.iter().map(|(name, _)| name.as_str());
    let named: BTreeSet<&str> = named
        .chain(devices.values().map(|it| it.resource))
        .collect();
    let amount = |of: &str, resource: &str| {
        let amount = node["status"][of][resource].as_str();
        amount.map(str::to_owned)
    };
    let amounts = named.into_iter().map(|name| {
        let [allocatable, capacity] = ["allocatable", "capacity"].map(|of| amount(of, name));
        let amount = Amount {
            allocatable,
            capacity,
        };
        (name.to_owned(), amount)
    });
    let offered = published.iter().flat_map(|(_, it)| it.all_devices());
    let offered = offered.collect::<BTreeSet<_>>().len();
    let sliced = (!devices.is_empty()).then_some(devices.len());
    let tainted = || devices.values().filter(|it| it.is_tainted).count();
    Node {
        name: name.to_owned(),
        daemon: daemon.to_owned(),
        resources: amounts.collect(),
        rails: sliced.or(facts.map(|_| offered)),
        tainted: sliced.map(|_| tainted()),
        switches: facts.map_or_else(BTreeMap::new, Facts::switches_of_rails),
        health: problem(node).unwrap_or_else(|| health(facts)),
    }
}

/// Adds a remark to a node if one of its rails is on a switch that, on the other nodes, serves only other rails.
/// Compares two rails only if at least one node has both.
fn mark_misplaced(nodes: &mut [Node]) {
    let mut users: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let mut kinds: BTreeSet<(String, String)> = BTreeSet::new();
    for node in &*nodes {
        for (rail, switch) in &node.switches {
            let users = users.entry(switch.clone()).or_default();
            *users.entry(rail.clone()).or_default() += 1;
            kinds.extend(node.switches.keys().map(|it| (rail.clone(), it.clone())));
        }
    }
    for node in nodes {
        for (rail, switch) in &node.switches {
            let elsewhere = users[switch].iter().filter(|(other, count)| {
                let here = usize::from(node.switches.get(*other) == Some(switch));
                **count > here && kinds.contains(&(rail.clone(), (*other).clone()))
            });
            let rails: Vec<&str> = elsewhere.map(|(other, _)| other.as_str()).collect();
            if rails.is_empty() || rails.contains(&rail.as_str()) {
                continue;
            }
            let rails = rails.join(", ");
            let words = format!("{rail} is on {switch}, which serves {rails} on other nodes");
            node.health = match node.health.as_str() {
                "ok" => words,
                health => format!("{health}; {words}"),
            };
        }
    }
}

/// Returns `ok`, or the number of errors and warnings that `doctor` reports about the node. Returns `not known` without
/// `facts`.
fn health(facts: Option<&Facts>) -> String {
    let Some(facts) = facts else {
        return "not known".to_owned();
    };
    let severities = [Severity::Error, Severity::Warning];
    counted(&examine(facts), &severities).unwrap_or_else(|| "ok".to_owned())
}

/// A device of a ResourceSlice that is one NIC.
struct Device<'a> {
    resource: &'a str,
    is_tainted: bool,
}

/// Returns the NICs in the node's ResourceSlices, by name. The daemon sets the attribute `scope` of such a device to
/// `nic`.
fn devices<'a>(node: &str, slices: &'a Value) -> BTreeMap<&'a str, Device<'a>> {
    let slices = items(slices).filter(|it| text(it, "/spec/nodeName") == node);
    let devices = slices.flat_map(|it| array(it, "/spec/devices"));
    let nics = devices.filter(|it| text(it, "/attributes/scope/string") == "nic");
    let device = |it: &'a Value| Device {
        resource: text(it, "/attributes/resource/string"),
        is_tainted: array(it, "/taints").any(|it| text(it, "/effect") != "None"),
    };
    nics.map(|it| (text(it, "/name"), device(it))).collect()
}

pub(super) fn table(nodes: &[Node]) -> String {
    let head = ["NAME", "DAEMON", "RESOURCES", "RAILS", "HEALTH"].map(str::to_owned);
    let rows = nodes.iter().map(|node| {
        let dash = "-".to_owned();
        let amount = |(name, it): (&String, &Amount)| match (&it.allocatable, &it.capacity) {
            (Some(allocatable), Some(capacity)) => format!("{name} {allocatable}/{capacity}"),
            _ => format!("{name} by claims"),
        };
        let amounts: Vec<String> = node.resources.iter().map(amount).collect();
        let rails = match (node.rails, node.tainted) {
            (Some(all), Some(tainted)) => format!("{}/{all}", all - tainted),
            (Some(all), None) => all.to_string(),
            _ => dash.clone(),
        };
        let switches: BTreeSet<&str> = node.switches.values().map(String::as_str).collect();
        let switches: Vec<&str> = switches.into_iter().collect();
        let rails = match switches.as_slice() {
            [] => rails,
            some => format!("{rails} on {}", some.join(", ")),
        };
        [
            node.name.clone(),
            node.daemon.clone(),
            if amounts.is_empty() {
                dash
            } else {
                amounts.join(", ")
            },
            rails,
            conf_reader::one_line(&node.health).into_owned(),
        ]
    });
    columns(&[vec![head], rows.collect()].concat())
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
