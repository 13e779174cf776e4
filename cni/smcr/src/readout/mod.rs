// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin smc`, by hand: what SMC-R has and does in a namespace. It reads the kernel, and to
//! find a pod the records; it changes nothing.

mod arguments;
mod table;
mod target;

use arguments::{Arguments, Parsed};
use rdma_netns::{ObserveError, smc};
use serde_json::json;
use std::{
    io::{self, Write},
    process::ExitCode,
};
use target::TargetError;

const USAGE: &str = "\
rdma-device-plugin smc [--json] [--state-dir DIR] [NAMESPACE|POD]

Shows of a network namespace, its own if none is given: entries of the pnet table, user EIDs,
link groups, and every SMC socket with what carries it, SMCR or TCP, and why.

  NAMESPACE          a path, or a name below /run/netns
  POD                namespace/name of a pod that has rails
  --json             as JSON
  --state-dir DIR    where the records of pods are (default /var/lib/cni/rdma-cni)
";

/// Nothing can be shown.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(
        "this kernel has no SMC, or its module smc cannot be loaded: all connections are plain TCP"
    )]
    NoSmc,
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs with the `arguments` after the word `smc`. What was asked for goes to `output`; a failure
/// is one sentence on `errors`, with exit code 1, or 2 for wrong usage.
pub fn run(arguments: &[String], output: &mut dyn Write, errors: &mut dyn Write) -> ExitCode {
    let parsed = match arguments::parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let _ = write!(errors, "rdma-device-plugin smc: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match parsed {
        Parsed::Help => print(output, USAGE).map_err(Failure::from),
        Parsed::Show(arguments) => show(&arguments, output),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(errors, "rdma-device-plugin smc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn show(arguments: &Arguments, output: &mut dyn Write) -> Result<(), Failure> {
    let netns = target::open(arguments)?;
    let overview = smc::overview(&netns)?.ok_or(Failure::NoSmc)?;
    let text = match arguments.json {
        true => format!("{:#}\n", json!(overview)),
        false => table::of(&overview),
    };
    Ok(print(output, &text)?)
}

fn print(output: &mut dyn Write, text: &str) -> io::Result<()> {
    output.write_all(text.as_bytes())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exit code, standard output, standard error.
    fn run(words: &[&str]) -> (ExitCode, String, String) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let (mut output, mut errors) = (vec![], vec![]);
        let code = super::run(&words, &mut output, &mut errors);
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (code, text(output), text(errors))
    }

    #[test]
    fn help_is_an_answer_and_wrong_usage_is_exit_code_2() {
        let (code, output, errors) = run(&["--help"]);
        assert_eq!((code, output.as_str()), (ExitCode::SUCCESS, USAGE));
        assert_eq!(errors, "");
        let (code, output, errors) = run(&["--yaml"]);
        assert_eq!((code, output.as_str()), (ExitCode::from(2), ""));
        assert!(errors.starts_with("rdma-device-plugin smc: there is no option --yaml\n"));
    }

    #[test]
    fn a_namespace_that_is_not_there_is_one_sentence() {
        let (code, output, errors) = run(&["no-such-namespace"]);
        assert_eq!((code, output.as_str()), (ExitCode::FAILURE, ""));
        assert_eq!(
            errors,
            "rdma-device-plugin smc: there is no network namespace \"no-such-namespace\" below /run/netns or /var/run/netns\n"
        );
    }
}
