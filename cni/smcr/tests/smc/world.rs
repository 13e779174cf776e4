// SPDX-License-Identifier: Apache-2.0
//! Makes the input of the plans from the members of a case.

use attachments::Attachment;
use rdma_netns::{GidTable, Observed, smc::SmcState};
use serde_json::{Value, json};
use smcr::decision::SmcInput;
use std::path::Path;

pub(crate) struct World {
    pub(crate) attachment: Attachment,
    pub(crate) observed: Observed,
    pub(crate) seen: SmcState,
    pub(crate) others: Vec<Attachment>,
    pub(crate) dead: bool,
    pub(crate) unreadable: bool,
    gids: Option<Vec<Option<GidTable>>>,
    primary: Option<String>,
    ueid: Option<String>,
}

impl World {
    pub(crate) fn read(case: &Path) -> Self {
        let case = cases::read(case);
        let rails = list(&case["rails"]);
        let mut attachment = record(&case, rails, 2, "a");
        attachment["smc"] = case["smc"].clone();
        let others = list(&case["others"]).iter().enumerate();
        let others = others.map(|(number, other)| {
            let cookie = match other["pod"] == "same" {
                true => 2,
                false => 10 + number,
            };
            let mut record = record(&case, &[], cookie, &format!("other{number}"));
            record["smc"] = other["smc"].clone();
            if other["smc"].is_null() {
                record.as_object_mut().unwrap().remove("smc");
            }
            let addresses: Vec<Value> = list(&other["addresses"]).iter().map(address).collect();
            record["rails"] = json!([{ "podName": "rdma0", "given": {
                "addresses": addresses, "routes": [],
            } }]);
            parse(record)
        });
        let others = others.collect();
        if case["smc"].is_null() {
            attachment.as_object_mut().unwrap().remove("smc");
        }
        let text = |key: &str| case[key].as_str().map(str::to_owned);
        Self {
            attachment: parse(attachment),
            observed: parse(observed(&case)),
            seen: parse(case["seen"].clone()),
            others,
            dead: case["dead"] == true,
            unreadable: case["unreadable"] == true,
            gids: case["gids"]
                .as_array()
                .map(|it| it.iter().map(table).collect()),
            primary: text("primary"),
            ueid: text("ueid"),
        }
    }

    pub(crate) fn input(&self) -> SmcInput<'_> {
        SmcInput {
            attachment: &self.attachment,
            others: &self.others,
            observed: &self.observed,
            smc_state: &self.seen,
            gids: self.gids.as_deref(),
            primary: self.primary.as_deref(),
            ueid: self.ueid.as_deref(),
        }
    }
}

#[track_caller]
fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn record(case: &Value, rails: &[Value], cookie: usize, container: &str) -> Value {
    let rails: Vec<Value> = rails.iter().enumerate().map(|it| rail(case, it)).collect();
    json!({
        "format": 3, "bootId": "boot", "netns": "/run/netns/a", "phase": "attached",
        "key": { "network": "rails", "container": container, "interface": "eth0" },
        "netnsId": { "device": 4, "inode": cookie, "cookie": cookie },
        "rdmaMode": case["mode"], "dad": "off", "acceptRa": false, "config": {}, "rails": rails,
    })
}

fn rail(case: &Value, (number, rail): (usize, &Value)) -> Value {
    let mut made = json!({ "podName": rail["name"] });
    if !rail["rdma"].is_null() {
        made["rdma"] = rdma(number, rail);
    }
    if !rail["home"].is_null() {
        made["home"] = link(20 + number, &rail["home"], &json!([]), &rail["mac"]);
    }
    if let Some(parent) = rail["shared"].as_str() {
        let host = case["host"].as_object().unwrap();
        let index = host.keys().position(|name| name == parent).unwrap();
        made["shared"] = json!({
            "parent": parent, "parentIndex": 20 + index, "parentMtu": 1500,
            "child": { "type": "macvlan", "mode": "bridge" },
        });
    }
    made
}

fn device(number: usize) -> String {
    format!("0000:3b:00.{number}")
}

fn rdma(number: usize, rail: &Value) -> Value {
    let port = rail["port"].as_u64().unwrap_or(1);
    let ports: Vec<Value> = (1..=port)
        .map(|it| match it == port {
            true => json!({ "number": it, "netdev": 20 + number, "state": 4 }),
            false => json!({ "number": it, "state": 4 }),
        })
        .collect();
    json!({
        "name": rail["rdma"], "index": number, "node_guid": "", "parent": device(number),
        "ports": ports,
    })
}

fn link(index: usize, name: &Value, addresses: &Value, mac: &Value) -> Value {
    let addresses: Vec<Value> = list(addresses).iter().map(address).collect();
    let mac = mac.as_str().unwrap_or("02:00:00:00:00:99");
    json!({
        "index": index, "name": name, "mac": mac, "mtu": 1500, "up": true, "addresses": addresses,
    })
}

/// Parses `"OWN/PREFIX"` or `"OWN peer OTHER/PREFIX"`.
fn address(text: &Value) -> Value {
    let (ip, prefix) = text.as_str().unwrap().split_once('/').unwrap();
    let prefix = prefix.parse::<u8>().unwrap();
    match ip.split_once(" peer ") {
        Some((ip, peer)) => json!({ "ip": ip, "peer": peer, "prefix": prefix }),
        None => json!({ "ip": ip, "prefix": prefix }),
    }
}

fn observed(case: &Value) -> Value {
    let rails = list(&case["rails"]);
    let rdma: Vec<Value> = rails
        .iter()
        .enumerate()
        .filter(|it| !it.1["rdma"].is_null())
        .map(|(number, rail)| rdma(number, rail))
        .collect();
    let devices = rails.iter().enumerate().map(|(number, rail)| {
        json!({
            "address": device(number), "driver": rail["driver"].as_str().unwrap_or("mlx5_core"),
        })
    });
    let devices: Vec<Value> = devices.collect();
    let links = |place: &str| -> Vec<Value> {
        let netdevs = case[place].as_object().into_iter().flatten().enumerate();
        let made = netdevs.map(|(number, (name, netdev))| {
            let index = 20 + number;
            let addresses = netdev["addresses"]
                .as_array()
                .map_or(netdev, |_| &netdev["addresses"]);
            let mut link = link(index, &json!(name), addresses, &netdev["mac"]);
            for key in ["kind", "master", "lower"] {
                if !netdev[key].is_null() {
                    link[key] = netdev[key].clone();
                }
            }
            link
        });
        made.collect()
    };
    let exclusive = case["mode"] == "exclusive";
    let in_pod = case["absent"] != true;
    json!({
        "boot_id": "boot", "rdma_mode": case["mode"], "devices": devices,
        "host": {
            "id": { "device": 4, "inode": 1, "cookie": 1 }, "links": links("host"),
            "rdma": if exclusive && in_pod { json!([]) } else { json!(rdma) },
        },
        "pod": {
            "id": { "device": 4, "inode": 2, "cookie": 2 }, "links": links("pod"),
            "rdma": if in_pod { json!(rdma) } else { json!([]) },
        },
    })
}

/// Parses `[kind, address, netdev]`. `"iwarp"` is a table of size 1 without GIDs.
fn table(table: &Value) -> Option<GidTable> {
    if table == "iwarp" {
        return Some(GidTable {
            size: 1,
            gids: vec![],
        });
    }
    let gids = table.as_array()?.iter().enumerate().map(|(index, gid)| {
        let kind = match gid[0] == "v1" {
            true => "ib-or-roce-v1",
            false => "roce-v2",
        };
        let ip = gid[1].as_str().unwrap();
        let ip = match ip.contains(':') {
            true => ip.to_owned(),
            false => format!("::ffff:{ip}"),
        };
        parse(json!({ "index": index, "ip": ip, "kind": kind, "netdev": gid[2] }))
    });
    Some(GidTable {
        size: 128,
        gids: gids.collect(),
    })
}
