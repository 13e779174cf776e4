// SPDX-License-Identifier: Apache-2.0
//! Builds ADD's result from the rails' addresses and routes, and from the other fields of IPAM's answers.

use crate::ipam::Answer;
use attachments::{Attachment, DesiredLink};
use cni_protocol::result::RailResult;
use ipnetwork::IpNetwork;
use network_conf::ResultIps;
use rdma_netns::{Observed, link::MAIN_TABLE};
use serde_json::{Value, json};
use std::{net::IpAddr, path::Path};

/// Returns the part of the result for each rail that ADD put into the pod. `answers` are the answers of the IPAM
/// plugin, if one is configured.
pub(super) fn of_rails(
    attachment: &Attachment,
    observed: &Observed,
    answers: Option<Vec<Answer>>,
    netns: &Path,
) -> Vec<RailResult> {
    let mut answers = answers.into_iter().flatten();
    let mut results = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let answer = answers.next();
        let Some(link) = rail.in_pod(observed).filter(|_| rail.is_ours()) else {
            continue;
        };
        let table = attachment.table(index);
        let kept = answer_of(&rail.assigned, table);
        let answer = match answer {
            None => kept,
            Some(answer) => Answer {
                routes: complete(kept.routes, &answer.routes),
                ..answer
            },
        };
        let (ips, routes) = match attachment.result_ips {
            ResultIps::All => (answer.ips, answer.routes),
            ResultIps::None => (vec![], vec![]),
        };
        results.push(RailResult {
            name: rail.pod_name.to_string(),
            mac: link.mac.to_string(),
            mtu: link.mtu,
            sandbox: netns.display().to_string(),
            device: rail.device().map(ToString::to_string),
            ips,
            routes,
            dns: answer.dns,
        });
    }
    results
}

/// Returns the `routes` that ADD set. Adds to each route the other fields that the same route has in IPAM's answer.
fn complete(routes: Vec<Value>, answered: &[Value]) -> Vec<Value> {
    let destination = |route: &Value| route["dst"].as_str()?.parse::<IpNetwork>().ok();
    let network =
        |route: &Value| Some((destination(route)?.network(), destination(route)?.prefix()));
    let gateway = |route: &Value| route["gw"].as_str()?.parse::<IpAddr>().ok();
    let table = |route: &Value| route["table"].as_u64().unwrap_or(MAIN_TABLE.into());
    let mut answered = answered.to_vec();
    let complete = |set: Value| {
        let is_it = |it: &Value| {
            let same_way = it["gw"].is_null() || gateway(it) == gateway(&set);
            network(it) == network(&set) && table(it) == table(&set) && same_way
        };
        // uses each route of the answer once, so several routes to one destination keep their order
        let found = answered.iter().position(is_it);
        let mut route = found.map_or_else(|| json!({}), |index| answered.remove(index));
        for (key, value) in set.as_object().into_iter().flatten() {
            route[key] = value.clone();
        }
        route
    };
    routes.into_iter().map(complete).collect()
}

/// Returns addresses and routes in the format of an IPAM plugin's answer. Omits the routes of the rail's own `table`,
/// because they are copies of the main table's routes.
fn answer_of(desired: &DesiredLink, table: Option<u32>) -> Answer {
    let ips = desired.addresses.iter();
    let ips = ips
        .map(|a| json!({ "address": format!("{}/{}", a.ip, a.prefix) }))
        .collect();
    let routes = desired.routes.iter().filter(|it| Some(it.table) != table);
    let routes = routes.map(|route| {
        let mut value = json!({ "dst": format!("{}/{}", route.destination, route.prefix) });
        if let Some(gateway) = route.gateway {
            value["gw"] = gateway.to_string().into();
        }
        let table = Some(route.table).filter(|table| *table != MAIN_TABLE);
        let numbers = [
            ("mtu", route.mtu),
            ("advmss", route.advmss),
            ("priority", route.metric),
            ("table", table),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                value[name] = number.into();
            }
        }
        value
    });
    let routes = routes.collect();
    Answer {
        ips,
        routes,
        ..Answer::default()
    }
}
