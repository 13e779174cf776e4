// SPDX-License-Identifier: Apache-2.0
//! `kubectl rdma`: this program under the name `kubectl-rdma`. It runs `kubectl` for each request, and therefore has
//! the user's cluster, identity and permissions. It queries daemons by `kubectl exec`.
//!
//! | module | owns |
//! |---|---|
//! | this module | command line, and `doctor` |
//! | `api` | runs of `kubectl`, and the daemons' pods |
//! | `nodes` | table of nodes: from the API server, and from [`doctor::facts`] |
//! | `pods` | table of pods' rails: from [`doctor::facts`] |
//! | `ping` | a short-lived pod on the daemon's node, which sends the requests |

mod api;
mod nodes;
mod ping;
mod pods;

use crate::cannot;
use anyhow::{Error, Result};
use api::{Daemons, Flags, Pod, text};
use clap::{Parser, Subcommand, ValueEnum};
use conf_reader::one_line;
use serde::Serialize;
use serde_json::Value;
use std::{
    env,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

/// Name of the program, by which `kubectl` finds the plugin.
const NAME: &str = "kubectl-rdma";

/// Shows nodes and pods with RDMA, the obstacles to RDMA, and whether rails answer
#[derive(Debug, Parser)]
#[command(name = NAME, bin_name = "kubectl rdma", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists nodes with a daemon: resources as allocatable/capacity, rails, health
    Nodes {
        /// Format of the output; default: a table
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Lists pods with rails: RDMA device, addresses, GID index of each address
    Pods {
        /// Lists pods of all namespaces
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        /// Format of the output; default: a table
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Prints the report of a node's daemon, or a pod's warnings and rails. Returns the exit code of rdma-device-plugin
    /// doctor
    Doctor {
        /// Node or pod
        #[arg(value_name = "NODE|[NAMESPACE/]POD")]
        target: String,
        /// Options of rdma-device-plugin doctor, after --
        #[arg(last = true)]
        options: Vec<String>,
    },
    /// Pings a pod's rails, or an address, over RDMA from a node or from inside a pod. A privileged pod rdma-ping-… sends
    /// the requests. The plugin deletes this pod at the end and after Ctrl-C. Exit code 0 if each request was answered
    Ping {
        /// Node or pod that sends the requests
        #[arg(value_name = "NODE|[NAMESPACE/]POD")]
        from: String,
        /// Pod or address that receives the requests
        #[arg(value_name = "[NAMESPACE/]POD|ADDRESS")]
        to: String,
        /// Options of rdma-device-plugin ping, after --
        #[arg(last = true)]
        options: Vec<String>,
    },
}

/// Output formats other than the table.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Json,
}

/// Returns true if this program was started under the name of the plugin.
pub fn is_called() -> bool {
    let name = env::args_os().next();
    name.is_some_and(|it| Path::new(&it).file_name() == Some(NAME.as_ref()))
}

/// Runs the plugin. Prints an error as one sentence on standard error, and returns the exit code 1.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.run(&arguments.flags) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{NAME}: {}", one_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(&self, flags: &Flags) -> Result<ExitCode> {
        match self {
            Self::Nodes { output } => {
                let (nodes, failed) = nodes::nodes(flags)?;
                let table = || nodes::table(&nodes);
                print(*output, &nodes, table).map(|()| reported(&failed))
            }
            Self::Pods {
                all_namespaces,
                output,
            } => {
                let (pods, failed) = pods::pods(flags, *all_namespaces)?;
                let table = || pods::table(&pods);
                print(*output, &pods, table).map(|()| reported(&failed))
            }
            Self::Doctor { target, options } => doctor(flags, target, options),
            Self::Ping { from, to, options } => ping::ping(flags, from, to, options),
        }
    }
}

fn print<T: Serialize>(
    format: Option<Format>,
    rows: &[T],
    table: impl FnOnce() -> String,
) -> Result<()> {
    let text = match format {
        Some(Format::Json) => format!("{:#}\n", serde_json::json!(rows)),
        None if rows.is_empty() => {
            eprintln!("{NAME}: no RDMA rails found");
            return Ok(());
        }
        None => table(),
    };
    write(&text)
}

fn write(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // ignore a broken pipe: the reader of the output has ended
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(cannot("write to standard output")(error))
        }
        _ => Ok(()),
    }
}

/// Prints the errors of daemons that did not answer. Returns the exit code 1 if there is such an error.
fn reported(failed: &[Error]) -> ExitCode {
    for error in failed {
        eprintln!("{NAME}: {}", one_line(&error.to_string()));
    }
    match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Prints the pod's [`warnings`] or the node's problem from the API server, and then the daemon's report.
fn doctor(flags: &Flags, target: &str, options: &[String]) -> Result<ExitCode> {
    let daemons = Daemons::get(flags)?;
    let (daemon, pod) = daemons.find(flags, target)?;
    let mut command = vec!["doctor"];
    let name = pod.as_ref().map(Pod::name);
    let problems = match &pod {
        Some(pod) => warnings(&pod.events(flags)?),
        None => {
            let problem = nodes::problem(&flags.get(&["node", target])?);
            problem.map(|it| format!("condition {}\n", one_line(&it)))
        }
    };
    command.extend(name.iter().flat_map(|it| ["pod", it]));
    write(&problems.unwrap_or_default())?;
    command.extend(options.iter().map(String::as_str));
    daemon.exec(flags, &command)
}

/// Returns the events that are warnings or come from the daemon, one line each.
fn warnings(events: &Value) -> Option<String> {
    let of_interest =
        |it: &&Value| text(it, "/type") == "Warning" || text(it, "/reason").starts_with("Rdma");
    let events = api::items(events).filter(of_interest);
    let lines = events.map(|it| {
        let line = format!("event {}: {}", text(it, "/reason"), text(it, "/message"));
        format!("{}\n", one_line(&line))
    });
    let lines: String = lines.collect();
    (!lines.is_empty()).then_some(lines)
}

#[cfg(test)]
mod tests;
