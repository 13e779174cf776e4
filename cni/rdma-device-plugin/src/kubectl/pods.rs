// SPDX-License-Identifier: Apache-2.0
//! Pods with rails, according to the records on their nodes.

use super::api::{Daemons, Flags, Pod, items, text};
use anyhow::{Error, Result};
use attachments::pods::{PodRail, PodRails};
use doctor::facts::Facts;
use offer::columns;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    namespace: String,
    name: String,
    node: String,
    /// Name of the netdev in the pod.
    rail: String,
    device: Option<String>,
    /// Name of the netdev on the host: the moved netdev, or the parent of the child netdev.
    host_netdev: Option<String>,
    addresses: Vec<Address>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Address {
    address: IpAddr,
    gid_index: Option<u32>,
}

/// Returns the rails of the pods in the namespace of `flags`, or in all namespaces. Also returns
/// the errors of daemons that did not answer.
pub(super) fn pods(flags: &Flags, all: bool) -> Result<(Vec<Row>, Vec<Error>)> {
    let daemons = Daemons::get(flags)?;
    let pods = match all {
        true => flags.get(&["pods", "--all-namespaces"])?,
        false => flags.get(&["pods"])?,
    };
    let node = |it| text(it, "/spec/nodeName");
    let nodes: BTreeSet<&str> = items(&pods).map(node).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    let listed = items(&pods).map(|it| Pod(it.clone()).name()).collect();
    let mut rows = vec![];
    let mut failed = vec![];
    for (node, facts) in daemons.facts(flags, &nodes) {
        match facts {
            Ok(facts) => rows.extend(self::rows(node, &facts, &listed)),
            Err(error) => failed.push(error),
        }
    }
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Ok((rows, failed))
}

/// Returns the rails of the node's living pods, by `namespace/name`.
pub(super) fn rails(facts: &Facts) -> BTreeMap<String, Vec<PodRail>> {
    let mut pods: BTreeMap<String, Vec<PodRail>> = BTreeMap::new();
    for attachment in facts.living() {
        let PodRails { pod, rails, .. } = PodRails::from(&attachment);
        pods.entry(pod).or_default().extend(rails);
    }
    pods
}

/// Returns the rails of those pods of the node that are in `listed`.
fn rows(node: &str, facts: &Facts, listed: &BTreeSet<String>) -> Vec<Row> {
    let mut rows = vec![];
    for (pod, rails) in rails(facts) {
        let Some((namespace, name)) = pod.split_once('/').filter(|_| listed.contains(&pod)) else {
            continue;
        };
        rows.extend(rails.into_iter().map(|rail| {
            Row {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                node: node.to_owned(),
                rail: rail.name,
                device: rail.rdma,
                host_netdev: rail.host_netdev,
                addresses: rail
                    .addresses
                    .into_iter()
                    .map(|it| Address {
                        address: it.ip,
                        gid_index: it.gid_index,
                    })
                    .collect(),
            }
        }));
    }
    rows
}

/// Returns the rails as a table with one line for each address.
pub(super) fn table(rows: &[Row]) -> String {
    let head = [
        "NAMESPACE",
        "NAME",
        "NODE",
        "RAIL",
        "DEVICE",
        "ADDRESS",
        "GID",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    for row in rows {
        let dash = || "-".to_owned();
        let line = |address: String, gid: Option<u32>| {
            [
                row.namespace.clone(),
                row.name.clone(),
                row.node.clone(),
                row.rail.clone(),
                row.device.clone().unwrap_or_else(dash),
                address,
                gid.map_or_else(dash, |it| it.to_string()),
            ]
        };
        let addresses = row.addresses.iter();
        lines.extend(addresses.map(|it| line(it.address.to_string(), it.gid_index)));
        if row.addresses.is_empty() {
            lines.push(line(dash(), None));
        }
    }
    columns(&lines)
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
