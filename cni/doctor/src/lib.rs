// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin doctor`: observes a node, and reports defects with their remedies. It changes nothing.
//!
//! ```text
//! gather   → Facts          sysfs, netlink, files, sockets; what is not visible is reported
//! examine  → Vec<Finding>   pure
//! report   → text           one screen
//! ```

mod arguments;
pub mod examine;
pub mod facts;
pub mod gather;
pub mod pod;
mod report;

pub use arguments::{Arguments, Paths, Question};
pub use report::report;

use arguments::Command;
use conf_reader::one_line;
use examine::{Finding, Severity};
use facts::{Facts, Unseen};
use rdma_netns::Linux;
use serde_json::json;
use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

/// Exit code of `doctor` after errors, and with `--strict` also after warnings.
const ERRORS: u8 = 1;
const NOT_SEEN: u8 = 2;

/// Runs `doctor`. Writes the report to `output`, or one sentence to `errors` if there is no report. `ping` runs
/// `rdma-device-plugin ARGUMENTS` and returns its exit code. Options in `arguments` override `installed`, the paths
/// in the installation's record. If `installed` is an error, the report lists the record as not seen, and `run` uses
/// the default paths.
pub fn run<E: Display>(
    arguments: &Arguments,
    installed: Result<Paths, E>,
    ping: impl FnOnce(Vec<OsString>) -> ExitCode,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> ExitCode {
    if let Some(Command::Pod(question)) = &arguments.command {
        return of_pod(question, ping, output, errors);
    }
    let (installed, unreadable) = match installed {
        Ok(installed) => (installed, None),
        Err(error) => (Paths::default(), Some(error.to_string())),
    };
    let paths = arguments.paths(installed);
    let mut facts = gather::gather(&kernel(&paths.root), &paths);
    facts.unseen.extend(unreadable.map(|why| Unseen {
        what: "the record of the installation".to_owned(),
        why,
    }));
    let findings = examine::examine(&facts);
    let text = if arguments.json {
        format!(
            "{:#}\n",
            json!({ "version": facts.version, "findings": findings, "unseen": facts.unseen })
        )
    } else if arguments.facts {
        format!("{:#}\n", json!(facts))
    } else {
        report(&facts, &findings)
    };
    let code = code(&facts, &findings, arguments.strict);
    print(&text, code, output, errors)
}

fn of_pod(
    question: &Question,
    ping: impl FnOnce(Vec<OsString>) -> ExitCode,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> ExitCode {
    let kernel = kernel(&question.root);
    match pod::answer(&kernel, question) {
        Ok((text, None)) => print(&text, 0, output, errors),
        Ok((_, Some(line))) if question.json => ping(line),
        Ok((text, Some(line))) => match print(&text, 0, output, errors) {
            code if code == ExitCode::SUCCESS => ping(line),
            code => code,
        },
        Err(error) => {
            let error = error.to_string();
            let _ = writeln!(errors, "rdma-device-plugin doctor: {}", one_line(&error));
            ExitCode::from(NOT_SEEN)
        }
    }
}

/// Returns the kernel interface that reads sysfs and device files below `root`.
fn kernel(root: &Path) -> Linux {
    Linux::with_roots(root.join("sys"), root.join("dev"))
}

/// Returns the exit code for `findings`. With `strict`, warnings count as errors.
pub fn code(facts: &Facts, findings: &[Finding], strict: bool) -> u8 {
    let worst = findings.iter().map(|it| it.severity).max();
    let bad = match strict {
        true => Severity::Warning,
        false => Severity::Error,
    };
    match worst {
        Some(worst) if worst >= bad => ERRORS,
        _ if !facts.unseen.is_empty() => NOT_SEEN,
        _ => 0,
    }
}

fn print(text: &str, code: u8, output: &mut dyn Write, errors: &mut dyn Write) -> ExitCode {
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Ok(()) => ExitCode::from(code),
        // ignore a broken pipe: the program that reads the output has ended
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(
                errors,
                "rdma-device-plugin doctor: cannot write to standard output: {error}"
            );
            ExitCode::from(NOT_SEEN)
        }
    }
}
