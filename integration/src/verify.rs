// SPDX-License-Identifier: Apache-2.0
//! Runs `rdma-device-plugin ping --exchange` as two pods of `conf/examples/verify.yaml` do.

use crate::{Netns, daemon::rdma_device_plugin};
use std::process::{Output, Stdio};

/// TCP port of the example.
const PORT: u16 = 7471;

/// Runs the command in both pods simultaneously, without capabilities. Returns exit code and standard output of each.
/// `addresses` are the pods' addresses. They replace the example's headless Service.
///
/// # Panics
/// A command wrote to standard error.
#[track_caller]
pub fn exchange(pods: [&Netns; 2], addresses: [&str; 2], options: &[&str]) -> [(i32, String); 2] {
    let start = |pod: usize| {
        let mut command = pods[pod].command("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--"]);
        command.arg(rdma_device_plugin());
        command.arg("ping");
        command.arg(format!("--exchange=[{}]:{PORT}", addresses[1 - pod]));
        command.arg(format!("--as=node-{pod}")).args(options);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let children = [start(0), start(1)];
    children.map(|child| {
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&stderr), "");
        let text = String::from_utf8(stdout).expect("UTF-8");
        (status.code().expect("not killed"), text)
    })
}

/// Asserts that the table has two rails on each side, and that each rail has an answer from the same rail of the
/// other side.
#[track_caller]
pub fn is_a_table_of_two_rails(text: &str, own: &str, other: &str) {
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        format!("rails of {own} (rows) to rails of {other} (columns), median times")
    );
    let words = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(str::trim).filter(|it| !it.is_empty());
        cells.map(str::to_owned).collect()
    };
    assert_eq!(words(lines[1]), ["rdma0", "rdma1"], "{text}");
    for rail in 0..2 {
        let cells = words(lines[2 + rail]);
        assert_eq!(cells[0], format!("rdma{rail}"), "{text}");
        assert!(cells[1 + rail].ends_with(" ms"), "{text}");
    }
    assert_eq!(lines.len(), 4, "{text}");
}
