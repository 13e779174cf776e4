// SPDX-License-Identifier: Apache-2.0
//! A program run with a fault at one of its system calls, by ptrace(2): SIGKILL to it and to all that it started, or
//! an error in place of the call. Without a fault: which calls there are at which one makes sense.
//!
//! | module | owns |
//! |---|---|
//! | [`point`] | which system calls are points, what each of them does, and which errors it could have |
//! | `netlink` | whether a netlink request changes something |
//! | `filter` | that the kernel stops the program at the calls that can be points, and at no others |
//! | `memory` | what a stopped thread's memory and descriptors say |
//! | `registers` | what differs from CPU to CPU |
//! | `run` | the loop: every thread and child is stopped at each call that can be a point |
//!
//! Points are numbered from 1 in the order in which they come, over all threads and children. Two runs of the same
//! program have the same points as far as it does the same: what waits for the kernel may look once more.

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

/// Fault at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    /// SIGKILL before the `n`th call that changes something: it is not made.
    Kill(usize),
    /// SIGKILL after the `n`th call that changes something.
    KillAfter(usize),
    /// SIGKILL before the `n`th call that sends something to another process. They are counted by themselves: how often a
    /// program speaks differs from run to run.
    KillBeforeSend(usize),
    /// The `n`th call that can have this `errno` is not made, and fails with it. What a run does in another order than
    /// the one before, it meets nevertheless.
    Fail(usize, i32),
}

impl Fault {
    /// Returns true if it is an error that the call of `point` can have.
    pub(crate) fn is_possible_at(self, point: &Point) -> bool {
        matches!(self, Self::Fail(_, errno) if point.errors.contains(&errno))
    }

    /// Returns true if it is at a call that changes something or can lack room, so that the others need not stop the
    /// program.
    fn is_at_a_change(self) -> bool {
        !matches!(self, Self::Fail(_, errno) if errno != ENOSPC)
    }

    /// Returns the argument of a command line: `kill=3`, `kill-after=3`, `kill-before-send=3`, `fail=3=28`.
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
    /// Points in their order, up to the end that a kill brings. With a kill or `ENOSPC`: the points that change
    /// something, send something or can lack room.
    pub points: Vec<Point>,
    /// Point of the fault, or of the last one of several. `None` if the program ended before it.
    pub hit: Option<Point>,
    /// Number of faults that were met.
    pub hits: usize,
}

impl Report {
    /// The points that change something.
    pub fn changes(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.changes)
    }
}

/// `invocation`, run with `faults` by `injector`, which is the program of `src/bin/fault-injector.rs`. What it
/// reports is in the file `report` when it has ended.
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

/// The injector's command line.
#[derive(Debug)]
pub struct Arguments {
    /// File of the report. None: it is printed for readers.
    pub report: Option<PathBuf>,
    /// Faults of one run.
    pub faults: Vec<Fault>,
    /// The program and its arguments; there is a program.
    pub program: Vec<String>,
}

impl Arguments {
    /// Reads them.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
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
/// The system's.
pub fn write(report: &Report, file: &Path) -> io::Result<()> {
    fs::write(file, serde_json::to_vec(report)?)
}
