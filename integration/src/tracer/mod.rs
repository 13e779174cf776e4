// SPDX-License-Identifier: Apache-2.0
//! Runs a program with faults at some of its system calls, by ptrace(2). A fault is a SIGKILL to the program and to all
//! programs that it started, or an error in place of the call. Without a fault, the run reports the calls at which a
//! fault is possible.
//!
//! | module | owns |
//! |---|---|
//! | [`point`] | system calls that are points, their effects, and their possible errors |
//! | `netlink` | detection of netlink requests that change something |
//! | `filter` | the filter by which the kernel stops the program at only those calls that can be points |
//! | `memory` | reads of a stopped thread's memory and descriptors |
//! | `registers` | differences between CPUs |
//! | `run` | the loop that stops every thread and child at each call that can be a point |
//!
//! A fault has the number of its point, counted from 1 over all threads and children. Each kind of fault counts only
//! the points at which it is possible. Two runs of a program have the same points as long as they do the same. A run
//! that waits for the kernel may read the kernel's state more often.

mod filter;
mod memory;
mod netlink;
pub mod point;
mod registers;
mod run;

pub use run::{Traced, run};

use crate::Invocation;
use nix::libc::ENOSPC;
use point::Point;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

/// A fault at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    /// SIGKILL before the `n`th call that changes something. The kernel does not execute this call.
    Kill(usize),
    /// SIGKILL after the `n`th call that changes something.
    KillAfter(usize),
    /// SIGKILL before the `n`th call that sends something to another process. These calls have a separate count,
    /// because their number differs between runs.
    KillBeforeSend(usize),
    /// The kernel does not execute the `n`th call that can have this `errno`. The call fails with this `errno`. The
    /// count includes only such calls, so the fault occurs at the right call even if the order of other calls differs.
    Fail(usize, i32),
}

impl Fault {
    /// Returns true if the fault is an error that the call of `point` can have.
    pub(crate) fn is_possible_at(self, point: &Point) -> bool {
        matches!(self, Self::Fail(_, errno) if point.errors.contains(&errno))
    }

    /// Returns true if the fault is at a call that changes or sends something, or can lack space. Then the program need
    /// not stop at other calls.
    fn is_at_a_change(self) -> bool {
        !matches!(self, Self::Fail(_, errno) if errno != ENOSPC)
    }

    /// Returns the fault as an argument of a command line: `kill=3`, `kill-after=3`, `kill-before-send=3`, `fail=3=28`.
    pub fn argument(self) -> String {
        match self {
            Self::Kill(number) => format!("kill={number}"),
            Self::KillAfter(number) => format!("kill-after={number}"),
            Self::KillBeforeSend(number) => format!("kill-before-send={number}"),
            Self::Fail(number, errno) => format!("fail={number}={errno}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no fault: kill=N, kill-after=N, kill-before-send=N, fail=N=ERRNO")
        };
        let number = |text: &str| text.parse().map_err(|_| wrong());
        let (what, rest) = text.split_once('=').ok_or_else(wrong)?;
        match (what, rest.split_once('=')) {
            ("kill", None) => Ok(Self::Kill(number(rest)?)),
            ("kill-after", None) => Ok(Self::KillAfter(number(rest)?)),
            ("kill-before-send", None) => Ok(Self::KillBeforeSend(number(rest)?)),
            ("fail", Some((at, errno))) => {
                let errno = errno.parse().map_err(|_| wrong())?;
                Ok(Self::Fail(number(at)?, errno))
            }
            _ => Err(wrong()),
        }
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Points in their order, up to a kill. With a kill or `ENOSPC`, only points that change something, send something
    /// or can lack space.
    pub points: Vec<Point>,
    /// Point of the fault, or of the last of several faults. `None`: the program ended before the fault.
    pub hit: Option<Point>,
    /// Number of faults that occurred.
    pub hits: usize,
}

impl Report {
    /// Returns the points that change something.
    pub fn changes(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.changes)
    }
}

/// Returns `invocation` as a run with `faults` by `injector`, the program of `src/bin/fault-injector.rs`. The injector
/// writes its report to the file `report` when it ends.
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

/// Command line of the injector.
#[derive(Debug)]
pub struct Arguments {
    /// File of the report. `None`: the injector prints the report as text.
    pub report: Option<PathBuf>,
    /// Faults of one run.
    pub faults: Vec<Fault>,
    /// The program and its arguments. Not empty.
    pub program: Vec<String>,
}

impl Arguments {
    /// Reads the arguments.
    ///
    /// # Errors
    /// The error is a sentence about the first wrong argument, or about the missing program.
    pub fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut report, mut faults) = (None, vec![]);
        for word in words.by_ref() {
            if word == "--" {
                break;
            }
            let option = word.strip_prefix("--");
            let option = option.ok_or_else(|| format!("{word:?}: the program comes after a --"))?;
            match option.strip_prefix("report=") {
                Some(path) => report = Some(PathBuf::from(path)),
                None => faults.push(option.parse()?),
            }
        }
        let program: Vec<String> = words.collect();
        if program.is_empty() {
            return Err("there is no program to be run: it comes after a --".to_owned());
        }
        Ok(Self {
            report,
            faults,
            program,
        })
    }
}

/// Writes a report.
///
/// # Errors
/// The system's error.
pub fn write(report: &Report, file: &Path) -> io::Result<()> {
    fs::write(file, serde_json::to_vec(report)?)
}
