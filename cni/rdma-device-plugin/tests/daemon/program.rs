// SPDX-License-Identifier: Apache-2.0
//! The program under test.

use integration::{Daemon, Machine};
use std::process::{Command, Output};

/// Returns the command line of the program on a made-up node.
pub(crate) fn command(machine: &Machine) -> Command {
    let program = env!("CARGO_BIN_EXE_rdma-device-plugin");
    let mut command = machine.command(program.as_ref());
    command.args(["--log-level", "debug"]);
    command
}

/// Starts the program in a user namespace of its own after the shell commands `before`, which end with `&&`.
pub(crate) fn start_in_user_namespace(machine: &Machine, before: &str) -> Daemon {
    let own = command(machine);
    let script = format!("{before} exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", &script]);
    command.arg(own.get_program()).args(own.get_args());
    Daemon::start(command.args(["--metrics-address", "127.0.0.1:0"]))
}

/// Runs the program until it ends by itself.
pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

pub(crate) fn start(machine: &Machine) -> Daemon {
    start_with(machine, &["--metrics-address", "127.0.0.1:0"])
}

pub(crate) fn start_with(machine: &Machine, arguments: &[&str]) -> Daemon {
    Daemon::start(command(machine).args(arguments))
}
