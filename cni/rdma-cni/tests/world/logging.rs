// SPDX-License-Identifier: Apache-2.0
//! What is written to the log: once, however often an ADD makes its plan.

use crate::erdma;
use log::{LevelFilter, Log, Metadata, Record};
use rdma_netns::RdmaMode;
use serde_json::json;
use std::{env, process::Command};

/// To standard error.
struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("{}", record.args());
    }

    fn flush(&self) {}
}

/// A process has one log: ADD is run in another process, whose log has nothing else.
#[test]
fn a_line_says_once_that_a_rail_is_shared() {
    let program = env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([
            "--exact",
            "logging::shared_rails_are_added",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .expect("started");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    for netdev in ["eth1", "eth2"] {
        let line = format!("{netdev} is shared: ");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
}

#[test]
#[ignore = "a_line_says_once_that_a_rail_is_shared starts it, and reads its log"]
fn shared_rails_are_added() {
    log::set_logger(&Lines).expect("the only logger");
    log::set_max_level(LevelFilter::Info);
    let node = erdma::node(RdmaMode::Shared, true);
    let config = node.config(json!({"devices": [{"driver": "erdma"}], "mode": "share"}));
    node.add(&node.pod("a"), &config).must_succeed();
}
