// SPDX-License-Identifier: Apache-2.0
//! Table of a node's eRDMA NICs for operators. Below the table is the driver's mode.

use super::Discovery;
use ::erdma::conf::DriverMode;
use ::erdma::{Nic, driver::DriverStatus};
use offer::columns;
use rdma_netns::Inventory;

const HEAD: [&str; 5] = ["ERDMA", "DEVICE", "NETDEV", "MAC", "USED"];

/// Formats the table, and lines about the driver. `change` is the mode to which the daemon would change the driver.
pub fn table(
    found: &Discovery,
    inventory: &Inventory,
    status: &DriverStatus,
    change: Option<DriverMode>,
) -> String {
    let row = |nic: &Nic, used: &str| {
        let own = inventory.function(&nic.address);
        let of = own.and_then(|function| function.netdev_function.as_ref());
        let netdev = nic.netdev.as_deref().unwrap_or("in a pod, or none");
        [
            nic.rdma.clone(),
            nic.address.to_string(),
            of.map_or(netdev.to_owned(), |of| format!("{netdev} ({of})")),
            nic.mac.as_ref().map_or("-".to_owned(), ToString::to_string),
            used.to_owned(),
        ]
    };
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(found.nics.iter().map(|nic| row(nic, "yes")));
    let hidden = match found.needs_instance {
        true => "not exposed (the instance's id is unknown)",
        false => "not exposed",
    };
    rows.extend(found.hidden.iter().map(|nic| row(nic, hidden)));
    let mut text = String::new();
    if rows.len() > 1 {
        text.push('\n');
        text.push_str(&columns(&rows));
    }
    let lines = driver(status, change);
    if rows.len() > 1 || !lines.is_empty() {
        for line in lines {
            text.push_str("- ");
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

fn driver(status: &DriverStatus, change: Option<DriverMode>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(loaded) = status.loaded {
        let limits = match loaded {
            DriverMode::Default => "rdma_cm and SMC-R work",
            DriverMode::Compat | DriverMode::Ofed => "rdma_cm and SMC-R do not work in this mode",
        };
        lines.push(format!("the eRDMA driver is in mode {loaded}: {limits}"));
    }
    if let Some(to) = change {
        lines.push(match status.loaded {
            None => format!("the daemon loads the eRDMA driver in mode {to}"),
            Some(_) => format!(
                "the daemon reloads the eRDMA driver in mode {to} when the driver is not in use"
            ),
        });
    }
    lines.extend(status.problem.as_ref().map(ToString::to_string));
    lines
}
