// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin smc`: prints the state of SMC-R in a network namespace. The command finds a pod's namespace by
//! the pod's record.

mod arguments;
mod table;
mod target;

pub use arguments::Target;

use attachments::pods::netns::PodNetnsError;
use rdma_netns::{ObserveError, OpenPodError, smc};
use serde_json::json;
use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("there is no network namespace {0:?} below /run/netns or /var/run/netns")]
    Name(String),
    #[error(transparent)]
    Open(#[from] OpenPodError),
    #[error("cannot open the network namespace of this program: {0}")]
    Own(io::Error),
    #[error(transparent)]
    Pod(#[from] PodNetnsError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(
        "this kernel has no SMC, or its module smc cannot be loaded: all connections are plain TCP"
    )]
    NoSmc,
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Writes the state of the namespace `target` to `output`, as JSON if `json` is true. Without `target`, writes the state
/// of this program's namespace. `state_dir` contains the records of pods. On failure, writes one sentence to `errors`
/// and returns exit code 1.
pub fn run(
    target: Option<&Target>,
    json: bool,
    state_dir: &Path,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> ExitCode {
    match show(target, json, state_dir, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(errors, "rdma-device-plugin smc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn show(
    target: Option<&Target>,
    json: bool,
    state_dir: &Path,
    output: &mut dyn Write,
) -> Result<(), Failure> {
    let netns = target::open(target, state_dir)?;
    let overview = smc::overview(&netns)?.ok_or(Failure::NoSmc)?;
    let text = match json {
        true => format!("{:#}\n", json!(overview)),
        false => table::of(&overview),
    };
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_is_one_sentence() {
        let target = Target::Name("no-such-namespace".to_owned());
        let (mut output, mut errors) = (vec![], vec![]);
        let state_dir = Path::new("/nowhere");
        let code = run(Some(&target), false, state_dir, &mut output, &mut errors);
        assert_eq!((code, output), (ExitCode::FAILURE, vec![]));
        assert_eq!(
            String::from_utf8(errors).expect("UTF-8"),
            "rdma-device-plugin smc: there is no network namespace \"no-such-namespace\" below /run/netns or /var/run/netns\n"
        );
    }
}
