// SPDX-License-Identifier: Apache-2.0
//! `rdma-cni`: a chained CNI plugin that moves RDMA netdevs and RDMA devices into pods, or makes children of netdevs
//! that stay on the host. The plugin restores the devices to the host, also after a crash.
//!
//! ```text
//! environment + stdin → conf        checked: wrong input ends the verb here
//!            kubelet, allocation    the pod's allocation, if the configuration names no devices
//!       kernel.observe → Observed   reads the kernel's state before the first change
//!         plan::attach → Vec<Op>    pure: the operations that remain
//!          store::save              the record, on disk before the first change
//!                apply              the loop that moves the devices and sets their state
//!     char_devices, claims          the character devices that kubelet promised to containers
//!         ipam, routing             addresses, and the metrics, tables and rules of their routes
//!          gids, rails              names for programs in the pod
//! cni_protocol::result              prevResult and the rails
//! ```
//! The record contains the state before the first change. DEL, GC, a failed ADD and the recovery after a crash call
//! `plan::detach`, which returns the operations from the present state to the recorded state.

pub mod apply;
pub mod char_devices;
pub mod claims;
mod detect;
pub mod error;
pub mod gids;
pub mod given_up;
pub mod ipam;
pub mod kubelet;
pub mod node;
pub mod oci_hook;
pub mod open_connections;
pub mod partition;
mod ports;
pub mod probe;
pub mod rails;
pub mod reply;
pub mod verb;
pub mod vf;

use cni_protocol::{Command, Environment, Failure, Input, Mistakes, Plugin, logging, plugin};
use error::Error;
use network_conf::Conf;
use node::Node;
use rdma_netns::Kernel;
use rdma_resources::hook::HOOK;
use serde_json::{Map, Value};
use std::{
    io::{Read, Write},
    process::ExitCode,
};
use verb::add::Outcome;

const PLUGIN: Plugin = Plugin {
    name: "rdma-cni",
    version: env!("CARGO_PKG_VERSION"),
    by_hand: &[("plan", Command::Plan)],
    usage: "\
rdma-cni is a CNI plugin: a container runtime starts it with CNI_COMMAND and the other CNI_
variables set, and a network configuration on standard input.

By hand:
  rdma-cni --version    print the version
  rdma-cni plan         with ADD's environment and standard input: print the changes that
                        ADD would make, one a line, and make none

A container runtime also starts rdma-cni oci-hook, for containers whose resource has memlock or limits.
",
};

/// Runs one CNI verb, the command `plan`, or the OCI hook of a container. A verb writes its result or its error to
/// `output`.
pub fn run<K: Kernel>(
    input: Input,
    stdin: &mut dyn Read,
    output: &mut dyn Write,
    kernel: &K,
) -> ExitCode {
    match input.arguments.split_first() {
        Some((word, arguments)) if word == HOOK => return oci_hook::run(arguments, stdin),
        _ => {}
    }
    PLUGIN.run(input, stdin, output, &|environment, raw, output| {
        serve(kernel, environment, raw, output).map_err(|error| Failure::from(&error))
    })
}

fn serve<K: Kernel>(
    kernel: &K,
    environment: &Environment,
    raw: Map<String, Value>,
    output: &mut dyn Write,
) -> Result<(), Error> {
    let mut mistakes = Mistakes::of(environment.command);
    let target = environment.target.as_ref();
    let conf = Conf::read(raw, &environment.args, &mut mistakes)?;
    let conf = conf.of_attachment(target.map(|target| &target.interface));
    logging::start(PLUGIN.name, &conf.network.log, environment);
    mistakes.warn();
    if conf.detect {
        return match detect::answer(kernel, &conf, environment) {
            Some(result) => plugin::write(output, &result).map_err(Error::Output),
            None => Ok(()),
        };
    }
    let node = Node::new(kernel, environment, &conf);
    match environment.command {
        Command::Add => {
            let added = match verb::add::add(&node)? {
                Outcome::Added(added) => added,
                Outcome::NothingToDo(result) => {
                    return plugin::write(output, &result).map_err(Error::Output);
                }
            };
            match plugin::write(output, &added.result) {
                Ok(()) => Ok(()),
                Err(error) => Err(added.take_back(&node, error)),
            }
        }
        Command::Del => verb::del::del(&node),
        Command::Check => verb::check::check(&node),
        Command::Gc => verb::gc::gc(&node),
        Command::Status => verb::status::status(&node),
        Command::Plan => {
            let text = verb::plan::plan(&node)?;
            output.write_all(text.as_bytes()).map_err(Error::Output)
        }
        Command::Version => Ok(()),
    }
}
