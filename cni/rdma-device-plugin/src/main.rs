// SPDX-License-Identifier: Apache-2.0
//! The program: command line, log, and the daemon's runtime.

use clap::Parser;
use cni_protocol::state_file;
use conf_reader::one_line;
use rdma_device_plugin::{
    cannot,
    chain::record::Record,
    check,
    cli::{Arguments, Command},
    daemon::Daemon,
    fabric, install, kubectl, logging,
    metrics::Metrics,
    probes::ask,
    release,
    signals::Signals,
};
use std::{
    ffi::OsString,
    fmt::Display,
    io::{stderr, stdout},
    process::ExitCode,
};

fn main() -> ExitCode {
    if kubectl::is_called() {
        return kubectl::run();
    }
    state_file::set_umask();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // ignore the error: no output is left on which to report it
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let metrics = Metrics::new();
    logging::start(arguments.log_level, metrics.history().clone());
    match &arguments.command {
        Some(Command::Install(arguments)) => return ended(install::install(arguments)),
        Some(Command::Uninstall(arguments)) => return ended(install::uninstall(arguments)),
        Some(Command::Probe(probe)) => return ended(ask::ask(probe)),
        Some(Command::Doctor(arguments)) => {
            let record = Record::read(&arguments.record_dir());
            let installed = record.map(|it| it.map(doctor::Paths::from).unwrap_or_default());
            return doctor::run(arguments, installed, ping, &mut stdout(), &mut stderr());
        }
        Some(Command::Smc(smc)) => return smc.run(&mut stdout(), &mut stderr()),
        Some(Command::Ping(arguments)) => {
            return rdma_ping::run(arguments, &mut stdout(), &mut stderr());
        }
        Some(Command::Fabric(arguments)) => return ended(fabric::run(arguments)),
        None => {}
    }
    if arguments.release {
        return ended(release::run(&arguments));
    }
    ended(match arguments.check_config {
        true => check::check(&arguments),
        false => serve(arguments, metrics),
    })
}

/// Runs `ping` with a command line from `doctor`.
fn ping(line: Vec<OsString>) -> ExitCode {
    match Arguments::parse_from(line).command {
        Some(Command::Ping(arguments)) => rdma_ping::run(&arguments, &mut stdout(), &mut stderr()),
        _ => ExitCode::FAILURE,
    }
}

fn ended(done: Result<(), impl Display>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma-device-plugin: {}", one_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Runs the daemon on one thread. Work that may wait for the disk or a lock runs on further threads, which end when
/// idle.
fn serve(arguments: Arguments, metrics: Metrics) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(std::time::Duration::from_secs(2))
        .build()
        .map_err(cannot("start"))?;
    let (served, presence) = runtime.block_on(async {
        let mut signals = match Signals::taken().map_err(cannot("handle signals")) {
            Ok(signals) => signals,
            Err(error) => return (Err(error), None),
        };
        // a signal also ends a daemon that is still starting
        let started = tokio::select! {
            () = signals.end() => return (Ok(()), None),
            started = Daemon::start(arguments, metrics) => started,
        };
        match started {
            Ok(daemon) => {
                let presence = daemon.presence();
                (daemon.run(signals).await, presence)
            }
            Err(error) => (Err(error), None),
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    drop(presence);
    served
}
