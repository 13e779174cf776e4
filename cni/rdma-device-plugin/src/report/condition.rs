// SPDX-License-Identifier: Apache-2.0
//! Condition of the node, and the time when the daemon must write it: pure functions. The status `True` means a
//! problem, as in the conditions of node-problem-detector and in kubelet's `…Pressure`.

use conf_reader::{elided, one_line};
use daemon_conf::Require;
use node_state::node::Node;
use rdma_netns::DeviceAddress;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Type of the condition.
pub const TYPE: &str = "RdmaRailsMissing";

/// Maximum number of devices that the message names.
const NAMED: usize = 8;
/// Largest number of characters of one device's sentence.
const LONGEST: usize = 200;

/// Shortest time between the last write and a write with another status. The damping of health further reduces the
/// reports about flapping devices.
const OTHER_STATUS: Duration = Duration::from_secs(10);
/// Shortest time between the last write and a write with the same status and another message.
const OTHER_SENTENCE: Duration = Duration::from_secs(60);
/// Interval of writes without a change. Kubelet uses the same interval (`nodeStatusReportFrequency`).
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
    /// Returns the condition of `node`. A rail is missing in four cases:
    /// - its device is unhealthy
    /// - one of the device's resources cannot use it
    /// - its device has disappeared from its bus
    /// - the daemon has never seen a device that the configuration requires
    pub fn of(node: &Node) -> Self {
        let devices = node.offers.iter().flat_map(|offer| &offer.devices);
        let offered: BTreeSet<&DeviceAddress> = devices.map(|it| &it.address).collect();
        // sentences by device, gone devices first
        let mut lost: BTreeMap<(bool, DeviceAddress), Vec<String>> = BTreeMap::new();
        for loss in node.losses() {
            let sentence = loss.to_string();
            let device = lost.entry((!loss.is_gone, loss.address)).or_default();
            device.push(sentence);
        }
        let gone = lost.keys().filter(|(is_there, _)| !is_there).count();
        let lacking: BTreeSet<String> = lacking(node).collect();
        let reason = match (gone, lost.len(), lacking.is_empty()) {
            (0, 0, true) => "NoRailMissing",
            (0, 0, false) => "TooFewDevices",
            (0, ..) => "DeviceUnhealthy",
            _ => "DeviceGone",
        };
        let is_missing = reason != "NoRailMissing";
        let all = offered.len() + gone;
        let causes: Vec<String> = lost
            .values()
            .map(|sentences| sentences.join("; "))
            .collect();
        let mut sentences = match (is_missing, causes.len()) {
            (false, _) => vec![format!("all of {all} RDMA devices are usable")],
            (true, 0) => vec![],
            (true, lost) => vec![format!(
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

    /// Parses the condition of a node object of the API server. Also returns its heartbeat and transition times.
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

    /// Returns the patch for the node's status. The patch is a strategic merge, which keeps other conditions.
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

/// Returns the delay until the daemon must write `condition`. Zero means now. `written` is the last write.
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

/// Returns a sentence for each resource that has fewer devices than the number in `require`. Unusable and gone devices
/// also count.
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
            format!("{name} has {found} devices, and require is {required}")
        })
    })
}

/// Joins the first [`NAMED`] of `devices`, and adds the number of the other devices.
fn listed(devices: &[String]) -> String {
    let cut = |it: &String| it.chars().take(LONGEST).collect();
    let devices: Vec<String> = devices.iter().map(cut).collect();
    elided(&devices, NAMED, "; ", "; and ")
}

#[cfg(test)]
#[path = "condition_tests.rs"]
pub(super) mod tests;
