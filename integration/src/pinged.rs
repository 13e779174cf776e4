// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin ping` of one address, by a pod of the lab.

use crate::{Netns, daemon::rdma_device_plugin};
use serde_json::Value;

/// The exit code of two requests from `netns` to `address`, and their pair in the document. A silence takes `timeout`
/// seconds.
///
/// # Panics
/// The command wrote to standard error, or no JSON.
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

/// RDMA alone is silent, and the pair says so.
///
/// # Panics
/// Another reason.
#[track_caller]
pub fn is_silent_rdma(pair: &Value) {
    let reason = pair["reason"].as_str().unwrap_or_default();
    assert_eq!(pair["answered"], 0, "{pair}");
    assert!(reason.starts_with("RDMA does not answer: "), "{pair}");
    assert!(reason.ends_with("; the address answers ICMP"), "{pair}");
}
