// SPDX-License-Identifier: Apache-2.0
//! Condition of the node: a pure function of the node's offers and of the times of its writes.
//!
//! The condition is `True` if there is a problem, as with the conditions of node-problem-detector and kubelet's
//! `…Pressure`.

use crate::{
    conf::Require,
    node::Node,
    offer::{Gone, Offer, OfferedDevice},
};
use conf_reader::one_line;
use rdma_netns::DeviceAddress;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Type of the condition.
pub const TYPE: &str = "RdmaRailsMissing";

/// Number of named devices.
const NAMED: usize = 8;
/// Largest number of characters of one device's sentence.
const LONGEST: usize = 200;

/// Shortest time between the last write and another status; health damps flapping devices too.
const OTHER_STATUS: Duration = Duration::from_secs(10);
/// Shortest time between the last write and another message of the same status.
const OTHER_SENTENCE: Duration = Duration::from_secs(60);
/// Interval of writes without a change, as often as kubelet's (`nodeStatusReportFrequency`).
const HEARTBEAT: Duration = Duration::from_secs(300);

/// Condition of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// True if rails are missing.
    pub is_missing: bool,
    /// Reason in one word.
    pub reason: String,
    /// Message that names the devices.
    pub message: String,
}

impl Condition {
    /// Returns the condition of `node`. A rail is missing if its device is unhealthy, unusable for one of its
    /// resources, gone from its bus, or never seen although the configuration requires it.
    pub fn of(node: &Node) -> Self {
        let mut devices: BTreeMap<&DeviceAddress, BTreeSet<String>> = BTreeMap::new();
        for offer in &node.offers {
            for device in &offer.devices {
                let faults = devices.entry(&device.address).or_default();
                faults.extend(faulty(node, offer, device));
            }
        }
        let gone: BTreeMap<&DeviceAddress, &Gone> = node
            .gone
            .values()
            .flatten()
            .map(|gone| (&gone.address, gone))
            .collect();
        let faults = devices.values().filter(|faults| !faults.is_empty());
        let faults: Vec<String> = faults
            .map(|faults| Vec::from_iter(faults.iter().map(String::as_str)).join("; "))
            .collect();
        let lacking: BTreeSet<String> = lacking(node).collect();
        let reason = match (gone.is_empty(), faults.is_empty(), lacking.is_empty()) {
            (false, ..) => "DeviceGone",
            (true, false, _) => "DeviceUnhealthy",
            (true, true, false) => "TooFewDevices",
            (true, true, true) => "NoRailMissing",
        };
        let is_missing = reason != "NoRailMissing";
        let all = devices.len() + gone.len();
        let lost = faults.len() + gone.len();
        let gone = gone
            .values()
            .map(|gone| format!("{gone} is no longer on this node"));
        let causes: Vec<String> = gone.chain(faults).collect();
        let mut sentences = match (is_missing, lost) {
            (false, _) => vec![format!("all of {all} RDMA devices are usable")],
            (true, 0) => vec![],
            (true, _) => vec![format!(
                "{lost} of {all} RDMA devices are unusable: {}",
                listed(&causes)
            )],
        };
        sentences.extend(lacking);
        Self {
            is_missing,
            reason: reason.to_owned(),
            message: one_line(&sentences.join("; ")).into_owned(),
        }
    }

    /// Parses the condition in the API server's node, with its heartbeat and transition times.
    pub fn read(node: &Value) -> Option<(Self, &str, &str)> {
        let mut all = node["status"]["conditions"].as_array()?.iter();
        let own = all.find(|it| it["type"] == TYPE)?;
        let text = |field: &str| own[field].as_str().unwrap_or_default();
        let condition = Self {
            is_missing: text("status") == "True",
            reason: text("reason").to_owned(),
            message: text("message").to_owned(),
        };
        Some((
            condition,
            text("lastHeartbeatTime"),
            text("lastTransitionTime"),
        ))
    }

    /// Returns the patch of the node's status: a strategic merge, which keeps other conditions.
    pub fn patch(&self, heartbeat: &str, transition: &str) -> Value {
        json!({"status": {"conditions": [{
            "type": TYPE,
            "status": if self.is_missing { "True" } else { "False" },
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": heartbeat,
            "lastTransitionTime": transition,
        }]}})
    }
}

/// Returns the delay until `condition` must be written; zero: now. `written` is the last write.
pub fn due(
    written: Option<(&Condition, Instant)>,
    condition: &Condition,
    now: Instant,
) -> Duration {
    let Some((before, at)) = written else {
        return Duration::ZERO;
    };
    let pause = if before.is_missing != condition.is_missing {
        OTHER_STATUS
    } else if before != condition {
        OTHER_SENTENCE
    } else {
        HEARTBEAT
    };
    (at + pause).saturating_duration_since(now)
}

/// Describes a fault: `0000:3b:00.0 (mlx5_0): its netdev ens1 has no carrier`. If the device itself is healthy:
/// `0000:3b:00.0 (mlx5_0) in rdma/a: bond0.100 is down`.
fn faulty(node: &Node, offer: &Offer, device: &OfferedDevice) -> Option<String> {
    let fault = device.fault.as_ref()?;
    let by = match node.unhealthy.contains_key(&device.address) {
        true => String::new(),
        false => format!(" in {}", offer.name),
    };
    Some(format!(
        "{} ({}){by}: {fault}",
        device.address, device.hca.name
    ))
}

/// Returns the resources that have fewer devices than required, usable or not.
fn lacking(node: &Node) -> impl Iterator<Item = String> {
    node.conf.resources.iter().filter_map(|resource| {
        let Some(Require::Number(required)) = resource.require else {
            return None;
        };
        let devices = node
            .offer(resource.name.as_str())
            .map_or(0, |it| it.devices.len());
        let gone = node.gone.get(resource.name.as_str()).map_or(0, Vec::len);
        let (found, required) = (devices + gone, required as usize);
        (found < required).then(|| {
            let name = &resource.name;
            format!("{name} has {found} devices, and require requires {required}")
        })
    })
}

/// Joins the first of `devices`, and the number of the others.
fn listed(devices: &[String]) -> String {
    let cut = |it: &String| it.chars().take(LONGEST).collect::<String>();
    let mut listed: Vec<String> = devices.iter().take(NAMED).map(cut).collect();
    let more = devices.len() - listed.len();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    listed.join("; ")
}

#[cfg(test)]
#[path = "condition_tests.rs"]
pub(super) mod tests;
