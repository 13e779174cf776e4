// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin ping` to one address, from a pod of the lab.

use crate::{Netns, daemon::rdma_device_plugin};
use serde_json::Value;

/// Sends two requests from `netns` to `address`. Returns the exit code, and the JSON object of the pair of
/// source and target. An unanswered request takes `timeout` seconds.
///
/// # Panics
/// The command wrote to standard error, or wrote no JSON.
#[track_caller]
pub fn pinged(netns: &Netns, address: &str, timeout: &str) -> (i32, Value) {
    let mut command = netns.command(rdma_device_plugin());
    command.args(["ping", address, "--count", "2", "--interval", "0.1"]);
    let output = command.args(["--timeout", timeout, "--json"]).output();
    let output = output.expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let mut document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let code = output.status.code().expect("not killed");
    (code, document["pairs"][0].take())
}

/// Asserts that, according to the pair, the target answers, but not over RDMA.
///
/// # Panics
/// The pair reports another reason.
#[track_caller]
pub fn is_silent_rdma(pair: &Value) {
    let reason = pair["reason"].as_str().unwrap_or_default();
    assert_eq!(pair["answered"], 0, "{pair}");
    assert!(reason.starts_with("RDMA does not answer: "), "{pair}");
    assert!(reason.ends_with("; the address answers ICMP"), "{pair}");
}
