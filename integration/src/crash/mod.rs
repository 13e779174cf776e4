// SPDX-License-Identifier: Apache-2.0
//! Stories that are killed, or whose system calls are made to fail, at each of their points ([`crate::tracer`]);
//! after each one, that what comes next puts everything right, byte for byte.
//!
//! | module | its stories |
//! |---|---|
//! | [`attachment`] | ADD, DEL and GC of `rdma-cni` |
//! | [`twice`] | two of them killed, one after the other, or one that meets an error and is killed or meets another one |
//! | [`lease`] | ADD, DEL and GC of `rdma-ipam` by itself |
//! | [`program`] | `install` and `uninstall` of `rdma-device-plugin` |
//! | [`power_loss`] | any of them, and loss of power at each sync |
//! | [`daemon`] | the files that `rdma-device-plugin` writes while it runs |
//! | `sweep` | which points there are, and which of them are tried |

pub mod attachment;
pub mod daemon;
pub mod lease;
pub mod power_loss;
pub mod program;
mod sweep;
pub mod twice;

pub use sweep::{Extent, Tally, at, at_syncs, kills_and_errors, sweep};

use crate::{
    Files, Outcome,
    tracer::{Fault, Report},
};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

/// Something that is run again and again, each time with another fault.
pub trait Story {
    /// Returns the name for readers.
    fn name(&self) -> &'static str;

    /// All as the program finds it; then it runs, with `fault`.
    fn run(&mut self, fault: Option<Fault>) -> (End, Report);

    /// Makes the calls after such an end, in the `turn`th of the possible ways. Returns a sentence for each difference
    /// from the state before.
    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String>;

    /// Returns how many runs without a fault are recorded. The faults are those of the shortest: a daemon's run on a
    /// busy machine has more calls than others, and a fault at one of them is not met.
    fn recordings(&self) -> usize {
        1
    }

    /// Starts again after a difference, so that it is reported once.
    fn start_anew(&mut self) {}
}

/// End of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Ended by SIGKILL.
    Killed,
    /// Well: what it said on standard output.
    Done(String),
    /// Ended with an error: its code, 0 if it has none, and its text.
    Refused(u64, String),
}

impl End {
    /// Returns the end in `outcome`.
    pub fn of(outcome: &Outcome) -> Self {
        let Outcome {
            status,
            stdout,
            stderr,
            ..
        } = outcome;
        if status.signal().is_some() {
            Self::Killed
        } else if status.success() {
            Self::Done(stdout.clone())
        } else {
            let error: Value = serde_json::from_str(stdout).unwrap_or_default();
            let code = error["code"].as_u64().unwrap_or_default();
            let words = [&error["msg"], &error["details"]].map(|it| it.as_str().unwrap_or(""));
            let words = words.join(": ");
            Self::Refused(code, if code == 0 { stderr.clone() } else { words })
        }
    }
}

/// `files` with the record of an installation without its times, which tell when a list was last written.
fn without_times(files: Files) -> Files {
    files.with("install.json", |text| {
        let Ok(mut record) = serde_json::from_slice::<Value>(text) else {
            return text.to_owned();
        };
        let lists = record["lists"].as_object_mut();
        for (_, list) in lists.into_iter().flatten() {
            if let Some(before) = list["before"].as_object_mut() {
                before.remove("modified");
            }
        }
        record.to_string().into_bytes()
    })
}

/// `outcome` is well; else what it said.
fn must_succeed(what: &str, outcome: &Outcome) -> Vec<String> {
    match outcome.status.success() {
        true => vec![],
        false => vec![format!("{what} failed: {outcome}")],
    }
}
