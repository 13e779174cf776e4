// SPDX-License-Identifier: Apache-2.0
//! Faults, and the report of a run.

use super::point::Point;
use nix::libc::ENOSPC;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// System calls that change which files exist, or that make such a change durable. Two changes do not count: writing
/// into a file that has no final name yet, and creating an empty directory.
pub(super) const CHANGES: &str =
    "rename renameat renameat2 link linkat unlink unlinkat fsync fdatasync";

/// A fault at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL before the `n`th call that changes something. The kernel does not execute this call.
    Kill(usize),
    /// SIGKILL after the `n`th call that changes something.
    KillAfter(usize),
    /// SIGKILL before the `n`th call that sends something to another process. These calls have a separate count,
    /// because their number differs between runs.
    KillBeforeSend(usize),
    /// SIGKILL before a thread's `n`th call of this name, a change of files. Each thread has a separate count.
    KillBefore(&'static str, usize),
    /// The kernel does not execute the `n`th call that can have this `errno`. The call fails with this `errno`. The
    /// count includes only such calls, so the fault occurs at the right call even if the order of other calls differs.
    Fail(usize, i32),
}

impl Fault {
    /// Returns true if the fault's count includes `point`.
    pub(crate) fn is_possible_at(self, point: &Point) -> bool {
        match self {
            Self::Kill(_) | Self::KillAfter(_) => point.changes,
            Self::KillBeforeSend(_) => point.sends,
            Self::KillBefore(call, _) => point.call == call,
            Self::Fail(_, errno) => point.errors.contains(&errno),
        }
    }

    /// Returns true if the fault is at a call that changes or sends something, or can lack space. Then the program need
    /// not stop at other calls.
    pub(super) fn is_at_a_change(self) -> bool {
        !matches!(self, Self::Fail(_, errno) if errno != ENOSPC)
    }

    /// Returns the fault as an argument of a command line: `kill=3`, `kill-after=3`, `kill-before-send=3`,
    /// `kill-before=rename=3`, `fail=3=28`.
    pub fn argument(self) -> String {
        match self {
            Self::Kill(number) => format!("kill={number}"),
            Self::KillAfter(number) => format!("kill-after={number}"),
            Self::KillBeforeSend(number) => format!("kill-before-send={number}"),
            Self::KillBefore(call, number) => format!("kill-before={call}={number}"),
            Self::Fail(number, errno) => format!("fail={number}={errno}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok();
        let words: Vec<&str> = text.split('=').collect();
        let fault = match words[..] {
            ["kill", at] => number(at).map(Self::Kill),
            ["kill-after", at] => number(at).map(Self::KillAfter),
            ["kill-before-send", at] => number(at).map(Self::KillBeforeSend),
            ["kill-before", call, at] => {
                let call = CHANGES.split(' ').find(|it| *it == call);
                call.and_then(|call| Some(Self::KillBefore(call, number(at)?)))
            }
            ["fail", at, errno] => number(at)
                .zip(errno.parse().ok())
                .map(|(at, it)| Self::Fail(at, it)),
            _ => None,
        };
        fault.ok_or_else(|| format!("{text:?} is no fault: see the head of fault-injector.rs"))
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
    /// Thread of each point.
    pub threads: Vec<i32>,
}

impl Report {
    /// Returns the points that change something.
    pub fn changes(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.changes)
    }
}
