// SPDX-License-Identifier: Apache-2.0
//! `rdma-ipam`, a CNI IPAM plugin. It assigns addresses from ranges, or from the prefixes of the parent netdev of the
//! pod's interface. Ranges and the directory of the leases work as in host-local.
//!
//! ```text
//! environment + stdin → conf       checked; bad input stops here
//!          host, parent → Pool       the candidates for one address
//!     forbidden, choose → address    pure: strategy, excluded and leased addresses
//!        store::reserve              a note and the leases, on disk before the result
//! ```
//! | module | owns |
//! |---|---|
//! | [`address`], [`range`] | arithmetic on addresses; ranges and pools of them |
//! | [`bounds`] | the part of a prefix that pods get |
//! | [`forbidden`] | addresses that no pod gets: gateways, the host's own, anycast… |
//! | [`choose`], [`stable`] | the order in which `rdma-ipam` tries addresses |
//! | [`occupancy`] | the addresses that are currently unavailable |
//! | [`parent`], [`host`] | pools from a netdev's prefixes, and the observation of this netdev |
//! | [`store`], [`secret`] | all files |
//! | [`conf`], [`resolv`] | the configuration |
//! | [`verb`] | ADD, DEL, CHECK, GC, STATUS |

pub mod address;
pub mod bounds;
pub mod choose;
pub mod conf;
pub mod error;
pub mod forbidden;
pub mod host;
pub mod occupancy;
pub mod parent;
pub mod range;
pub mod resolv;
pub mod secret;
pub mod stable;
pub mod store;
pub mod verb;

use cni_protocol::{
    Command, Environment, Failure, Input, Mistakes, Plugin, lock::LockDeadline, logging, plugin,
};
use conf::Place;
use error::Error;
use rdma_netns::Linux;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    process::ExitCode,
};
use store::Disk;
use verb::Node;

const PLUGIN: Plugin = Plugin {
    name: "rdma-ipam",
    version: env!("CARGO_PKG_VERSION"),
    by_hand: &[],
    usage: "\
rdma-ipam is a CNI IPAM plugin: another CNI plugin starts it, with CNI_COMMAND and the other
CNI_ variables set, and its own network configuration on standard input.

By hand:
  rdma-ipam --version   print the version
",
};

/// Runs one verb. `output` gets the one JSON object that CNI requires.
pub fn run(
    input: Input,
    stdin: &mut dyn Read,
    output: &mut dyn Write,
    disk: &dyn Disk,
    linux: &Linux,
) -> ExitCode {
    let lock_deadline = LockDeadline::of_verb();
    PLUGIN.run(input, stdin, output, &|environment, raw, output| {
        serve((disk, linux), environment, &raw, output, lock_deadline).map_err(Failure::from)
    })
}

/// Runs one verb for a program that contains this plugin. `environment` and `stdin` are those that a separate process
/// would have. Returns the output. `lock_deadline` limits the wait for locks.
///
/// # Errors
/// The output with the CNI error, if the verb fails.
pub fn call(
    environment: BTreeMap<String, String>,
    mut stdin: &[u8],
    (disk, linux): (&dyn Disk, &Linux),
    lock_deadline: LockDeadline,
) -> Result<Vec<u8>, Vec<u8>> {
    let mut output = vec![];
    let verb = |environment: &Environment, raw: Map<String, Value>, output: &mut dyn Write| {
        serve((disk, linux), environment, &raw, output, lock_deadline).map_err(Failure::from)
    };
    match PLUGIN.answer(environment, None, &mut stdin, &mut output, &verb) {
        Ok(()) => Ok(output),
        Err(_) => Err(output),
    }
}

fn serve(
    system: (&dyn Disk, &Linux),
    environment: &Environment,
    raw: &Map<String, Value>,
    output: &mut dyn Write,
    lock_deadline: LockDeadline,
) -> Result<(), Error> {
    let mut mistakes = Mistakes::of(environment.command);
    let place = Place::parse(raw, &mut mistakes)?;
    logging::start(PLUGIN.name, &place.network.log, environment);
    mistakes.warn();
    let node = Node::new(system, environment, &place, raw, lock_deadline);
    match environment.command {
        Command::Add => {
            let added = verb::add::add(&node)?;
            plugin::write(output, &added.result)
                .map_err(|error| added.take_back(&node, Error::Output(error)))
        }
        Command::Del => verb::del::del(&node),
        Command::Check => verb::check::check(&node),
        Command::Gc => verb::gc::gc(&node),
        Command::Status => verb::status::status(&node),
        Command::Version | Command::Plan => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_protocol::lock;
    use serde_json::json;
    use std::time::{Duration, Instant};
    use store::RealDisk;

    #[test]
    fn a_caller_with_little_time_gets_the_locks_holder() {
        let leases = tempfile::tempdir().expect("a directory");
        let configuration = json!({
            "cniVersion": "1.0.0", "name": "net",
            "ipam": {"type": "rdma-ipam", "dataDir": leases.path(), "subnet": "10.7.0.0/24"},
        });
        let environment = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let call = || {
            let input = configuration.to_string();
            let system: (&dyn Disk, _) = (&RealDisk, &Linux::new());
            let lock_deadline = LockDeadline::until(Instant::now());
            super::call(
                environment.clone().into(),
                input.as_bytes(),
                system,
                lock_deadline,
            )
        };
        call().expect("nobody has it");
        let path = leases.path().join("net/lock");
        let held = lock::attempt(lock::open(&path).expect("the lock")).expect("the lock");
        let started = Instant::now();
        let error = call().expect_err("somebody has it");
        // this is shorter than the wait of a caller that has a whole verb's time
        assert!(started.elapsed() < Duration::from_secs(20));
        let error: Value = serde_json::from_slice(&error).expect("JSON");
        assert_eq!(error["code"], 11, "{error}");
        drop(held);
    }
}
