// SPDX-License-Identifier: Apache-2.0
//! Table of the offers for operators.

use crate::{Offer, OfferedDevice, Unhealthy, select};
use daemon_conf::{Allocate, Ids, ResourceConf};
use rdma_netns::{Inventory, Netdev};
use std::fmt::Write;

const HEAD: [&str; 8] = [
    "RESOURCE", "KIND", "IDS", "DEVICE", "RDMA", "NETDEV", "NUMA", "HEALTH",
];

/// Formats one line for each device of each resource. A resource without devices has one line. Below the table are the
/// remarks.
pub fn table(
    resources: &[ResourceConf],
    offers: &[Offer],
    inventory: &Inventory,
    unhealthy: &Unhealthy,
    remarks: &[String],
) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for resource in resources {
        let Some(offer) = offers.iter().find(|it| it.name == resource.name) else {
            rows.push(nothing(resource, inventory));
            continue;
        };
        for (index, device) in offer.devices.iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            rows.push([
                once(offer.name.to_string()),
                once(kind(offer.kind).to_owned()),
                once(offer.ids.len().to_string()),
                device.address.to_string(),
                device.hca.name.clone(),
                attached(device, inventory),
                device
                    .numa_node
                    .map_or_else(|| "-".to_owned(), |node| node.to_string()),
                match &offer.short {
                    Some(_) if device.fault.is_none() => {
                        "healthy, but all ids of the resource are unhealthy".to_owned()
                    }
                    _ => health(device, unhealthy),
                },
            ]);
        }
    }
    let mut text = String::new();
    if !resources.is_empty() {
        text = columns(&rows);
    }
    for remark in remarks {
        // ignore the result: writing into a String does not fail
        let _ = writeln!(text, "- {remark}");
    }
    text
}

/// Returns the line of a resource that the daemon does not offer. The line contains the reason.
fn nothing(resource: &ResourceConf, inventory: &Inventory) -> [String; 8] {
    let why = match inventory.functions.iter().all(|it| it.hcas.is_empty()) {
        true => "not offered: this node has no RDMA devices",
        false => &format!("not offered: {}", select::nothing(resource)),
    };
    let kind = kind(resource.ids);
    let name = resource.name.to_string();
    [name.as_str(), kind, "0", "-", "-", "-", "-", why].map(str::to_owned)
}

/// Formats rows with aligned columns.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    });
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn kind(kind: Ids) -> &'static str {
    match kind {
        Ids::Shared {
            allocate: Allocate::All,
            ..
        } => "shared, all",
        Ids::Shared {
            allocate: Allocate::Numa,
            ..
        } => "shared, numa",
        Ids::PerNic {
            allocate: Allocate::All,
            ..
        } => "perNic, all",
        Ids::PerNic {
            allocate: Allocate::Numa,
            ..
        } => "perNic, numa",
        Ids::Exclusive => "exclusive",
    }
}

/// Returns the names of the device's netdevs. If the resource has `parents`, also returns the parent netdev.
fn attached(device: &OfferedDevice, inventory: &Inventory) -> String {
    let netdevs = netdevs(device, inventory);
    match &device.parent {
        Some(parent) => format!("{netdevs}, pods on {parent}"),
        None => netdevs,
    }
}

fn netdevs(device: &OfferedDevice, inventory: &Inventory) -> String {
    let function = inventory.function(&device.address);
    let netdevs = function.map_or(&[] as &[Netdev], |function| function.netdevs.as_slice());
    let name = |netdev: &Netdev| match &netdev.master {
        None => netdev.name.clone(),
        Some(master) => format!("{} ({master})", netdev.name),
    };
    match netdevs {
        [] => "in a pod, or none".to_owned(),
        netdevs => netdevs.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

fn health(device: &OfferedDevice, unhealthy: &Unhealthy) -> String {
    let fault = unhealthy.get(&device.address).or(device.fault.as_ref());
    match fault {
        Some(why) => format!("unhealthy: {why}"),
        None if device.hca.char_devices.is_empty() => {
            "unhealthy: it has no uverbs device".to_owned()
        }
        None => "healthy".to_owned(),
    }
}
