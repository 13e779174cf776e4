//! `rdma-cni`: a chained CNI plugin that moves RDMA netdevs and RDMA devices into pods,
//! and home again whatever happens in between.
//!
//! ```text
//! environment + stdin → conf        checked; bad input stops here
//!       kernel.observe → Observed   read-only, before anything is changed
//!         plan::attach → Vec<Op>    pure; only what is missing
//!          store::save              on disk before the first change
//!                apply              the only loop that changes anything
//!      protocol::result             prevResult + ours
//! ```
//! The record holds the state before the move, and `plan::detach` computes whatever still
//! differs from it: a failed ADD, DEL, GC and a heal after a crash are that one function.

pub mod apply;
pub mod attachment;
pub mod conf;
pub mod error;
pub mod ipam;
pub mod logging;
pub mod plan;
pub mod protocol;
pub mod reply;
pub mod select;
pub mod store;
pub mod verb;

use conf::Conf;
use error::Error;
use protocol::{Command, Environment, version::SUPPORTED};
use rdma_netns::Kernel;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};
use verb::Node;

/// What a process is started with.
#[derive(Debug)]
pub struct Input {
    /// Arguments, without the program's name.
    pub arguments: Vec<String>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
}

const USAGE: &str = "\
rdma-cni is a CNI plugin: a container runtime starts it with CNI_COMMAND and the other CNI_
variables set, and a network configuration on standard input.

By hand:
  rdma-cni --version    print the version
  rdma-cni plan         with ADD's environment and standard input: print the changes that
                        ADD would make, one a line, and make none
";

/// Runs one verb. `output` gets the one JSON object that CNI asks for.
pub fn run<K: Kernel>(
    input: Input,
    stdin: &mut dyn Read,
    output: &mut dyn Write,
    kernel: &K,
) -> ExitCode {
    let arguments: Vec<&str> = input.arguments.iter().map(String::as_str).collect();
    let by_hand = match arguments.as_slice() {
        [] => None,
        ["plan"] => Some(Command::Plan),
        ["--version" | "-V"] => {
            return by_hand(
                output,
                concat!("rdma-cni ", env!("CARGO_PKG_VERSION"), "\n"),
            );
        }
        ["--help" | "-h"] => return by_hand(output, USAGE),
        _ => {
            let _ = std::io::stderr().write_all(USAGE.as_bytes());
            return ExitCode::from(2);
        }
    };
    let mut version = SUPPORTED[SUPPORTED.len() - 1].as_str().to_owned();
    let done = catch_unwind(AssertUnwindSafe(|| {
        let environment = Environment::parse(input.environment, by_hand.is_some())?;
        let mut text = vec![];
        stdin
            .read_to_end(&mut text)
            .map_err(|error| conf::ConfError::NotJson(error.to_string()))?;
        serve(kernel, &environment, &text, output, &mut version)
    }));
    let failure = match done {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => reply::error(&version, &error),
        Err(_) => json!({
            "cniVersion": version,
            "code": 999,
            "msg": "rdma-cni has a defect and stopped; what was begun is undone by DEL. The place \
                    is on standard error",
        }),
    };
    log::error!("{}", failure["msg"].as_str().unwrap_or_default());
    // the exit code tells even where nothing can be written
    let _ = reply::write(output, &failure);
    ExitCode::FAILURE
}

fn by_hand(output: &mut dyn Write, text: &str) -> ExitCode {
    match output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve<K: Kernel>(
    kernel: &K,
    environment: &Environment,
    text: &[u8],
    output: &mut dyn Write,
    version: &mut String,
) -> Result<(), Error> {
    if environment.command == Command::Version {
        return reply::write(output, &versions(text)?).map_err(Error::Output);
    }
    let raw = conf::decode(text)?;
    conf::version_text(&raw).clone_into(version);
    let conf = Conf::parse(raw)?;
    logging::start(&conf.log, context(environment));
    let node = Node::new(kernel, environment, &conf);
    match environment.command {
        Command::Add => {
            let added = verb::add::add(&node)?;
            match reply::write(output, &added.result) {
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

/// VERSION: whatever comes on standard input, nothing included.
fn versions(text: &[u8]) -> Result<Value, Error> {
    let asked = match text.iter().all(u8::is_ascii_whitespace) {
        true => None,
        false => conf::decode(text)?
            .get("cniVersion")
            .and_then(Value::as_str)
            .map(str::to_owned),
    };
    let newest = SUPPORTED[SUPPORTED.len() - 1].as_str();
    Ok(json!({
        "cniVersion": asked.as_deref().unwrap_or(newest),
        "supportedVersions": SUPPORTED.map(protocol::SpecVersion::as_str),
    }))
}

fn context(environment: &Environment) -> String {
    let mut context = environment.command.as_str().to_owned();
    if let Some(target) = &environment.target {
        context = format!("{context} {}@{}", target.container, target.interface);
    }
    if let Some(pod) = environment.pod() {
        context = format!("{context} {pod}");
    }
    context
}
