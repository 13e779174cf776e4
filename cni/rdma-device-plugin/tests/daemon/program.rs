// SPDX-License-Identifier: Apache-2.0
//! The program under test.

use integration::{Daemon, Machine};
use std::process::{Command, Output};

/// Its command line, on a made-up node.
pub(crate) fn command(machine: &Machine) -> Command {
    let program = env!("CARGO_BIN_EXE_rdma-device-plugin");
    let mut command = machine.command(program.as_ref());
    command.args(["--log-level", "debug"]);
    command
}

/// A run that ends by itself.
pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

/// The program, running.
pub(crate) fn start(machine: &Machine) -> Daemon {
    start_with(machine, &["--metrics-address", "127.0.0.1:0"])
}

/// Starts the program with these arguments.
pub(crate) fn start_with(machine: &Machine, arguments: &[&str]) -> Daemon {
    Daemon::start(command(machine).args(arguments))
}
