// SPDX-License-Identifier: Apache-2.0
//! Runs of the injector, the program of `src/bin/fault-injector.rs`, by tests.

use super::fault::{CHANGES, Fault, Report};
use crate::{
    Invocation,
    wait::{self, TIMEOUT},
};
use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
};
use tempfile::NamedTempFile;

/// Returns `invocation` as a run with `faults` by `injector`. The injector writes its report to the file `report` when
/// it ends.
pub fn traced<'a>(
    invocation: Invocation<'a>,
    injector: &Path,
    faults: impl IntoIterator<Item = Fault>,
    report: &Path,
) -> Invocation<'a> {
    let mut arguments = vec![format!("--report={}", report.display())];
    arguments.extend(faults.into_iter().map(|it| format!("--{}", it.argument())));
    arguments.push("--".to_owned());
    invocation.by(injector, arguments)
}

/// Reads the injector's report in `file`.
#[track_caller]
pub fn report(file: &Path) -> Report {
    let text = fs::read(file).unwrap_or_else(|error| panic!("no report in {file:?}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"))
}

/// Runs `work`, and meanwhile the injector, which traces the running process `process`. Returns the report.
#[track_caller]
fn attached<T>(
    process: Pid,
    injector: &Path,
    fault: Option<Fault>,
    work: impl FnOnce() -> T,
) -> (T, Report) {
    let file = NamedTempFile::new().expect("a file");
    let mut command = Command::new(injector);
    command.arg(format!("--report={}", file.path().display()));
    command.args(fault.map(|it| format!("--{}", it.argument())));
    command.arg(format!("--attach={process}"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut [0]).expect("it is attached");
    let done = work();
    let ended = wait::ends(&mut child, Signal::SIGTERM, TIMEOUT);
    assert!(ended, "the injector does not end");
    (done, report(file.path()))
}

/// Returns the changes of files by the running process `process` during `work`: each system call, with the largest
/// number of its calls by one thread.
#[track_caller]
pub fn changes(
    process: Pid,
    injector: &Path,
    work: impl FnOnce(),
) -> BTreeMap<&'static str, usize> {
    let (_, report) = attached(process, injector, None, work);
    let mut changes = BTreeMap::new();
    for call in CHANGES.split(' ') {
        let calls = report.points.iter().zip(&report.threads);
        let mut counts = BTreeMap::<i32, usize>::new();
        for (_, thread) in calls.filter(|(point, _)| point.call == call) {
            *counts.entry(*thread).or_default() += 1;
        }
        changes.extend(counts.into_values().max().map(|most| (call, most)));
    }
    changes
}

/// Runs `work`. Meanwhile `kill` ends the running process `process`.
#[track_caller]
pub fn killed<T>(process: Pid, injector: &Path, kill: Fault, work: impl FnOnce() -> T) -> T {
    let (done, report) = attached(process, injector, Some(kill), work);
    assert!(report.hit.is_some(), "{kill:?} did not occur");
    done
}
