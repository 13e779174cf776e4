// SPDX-License-Identifier: Apache-2.0
//! A story, and the end of its program.

use crate::{
    Files, Outcome,
    tracer::{Fault, Report},
};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

/// A story.
pub trait Story {
    /// Returns the name for reports.
    fn name(&self) -> &'static str;

    /// Prepares the state, then runs the program with `fault`.
    fn run(&mut self, fault: Option<Fault>) -> (End, Report);

    /// Makes the calls that follow after `end`. `turn` selects one of several sequences of calls. Returns a sentence
    /// for each failed call and each unexpected state.
    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String>;

    /// Returns the number of recorded runs without a fault. The shortest run determines the faults: on a busy machine a
    /// daemon's run can have additional calls, and a fault at such a call would not occur in other runs.
    fn recordings(&self) -> usize {
        1
    }

    /// Replaces the state after a difference. Otherwise later runs would report the difference again.
    fn start_anew(&mut self) {}
}

/// End of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Ended by a signal.
    Killed,
    /// Succeeded, with this standard output.
    Done(String),
    /// Ended with an error: code (0 if it has none) and text.
    Refused(u64, String),
}

impl End {
    /// Returns the end that `outcome` describes.
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

/// Returns `files` without the times in the record of an installation. A time depends on when the list was last
/// written.
pub(super) fn without_times(files: Files) -> Files {
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

/// Returns nothing if `outcome` is a success. Otherwise returns its text.
pub(super) fn must_succeed(what: &str, outcome: &Outcome) -> Vec<String> {
    match outcome.status.success() {
        true => vec![],
        false => vec![format!("{what} failed: {outcome}")],
    }
}
