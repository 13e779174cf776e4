// SPDX-License-Identifier: Apache-2.0
//! Protocol of a test in a node with the control plane outside, one request for each TCP connection: a [`Request`] in
//! JSON up to the end of the stream; then the [`Answer`], also in JSON.

use serde::{Deserialize, Serialize};
use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Output},
};

/// Port of [`super::ADDRESS`] for requests.
pub(super) const PORT: u16 = 8090;

#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Request {
    Question(Question),
    Change(Change),
}

/// Requests that leave the control plane's processes unchanged.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Question {
    /// A command line as an operator types it.
    Shell(String),
    /// A request to the API server.
    Api {
        method: String,
        path: String,
        body: String,
    },
    /// Last errors of its programs.
    LastErrors,
}

/// Requests that change processes.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Change {
    /// A control plane that has seen no node yet. What there was goes.
    Fresh,
    /// Asserts that they run, as do the nodes that have not lost power. The text names the awaited event.
    AssertRuns(String),
    /// The node of this number loses power.
    PowerOff(usize),
    /// The API server ends by this signal, and starts again.
    RestartApiServer(i32),
}

/// Result in the form of a process' result.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Answer {
    /// Status as `wait` returns it.
    status: i32,
    said: String,
    errors: String,
}

impl Answer {
    pub(super) fn done(said: String) -> Self {
        let errors = String::new();
        Self {
            status: 0,
            said,
            errors,
        }
    }

    pub(super) fn not_done(said: String, errors: String) -> Self {
        Self {
            status: 1 << 8,
            said,
            errors,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.status == 0
    }

    pub(super) fn said(self) -> String {
        self.said
    }
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            status: output.status.into_raw(),
            said: text(output.stdout),
            errors: text(output.stderr),
        }
    }
}

impl From<Answer> for Output {
    fn from(answer: Answer) -> Self {
        Self {
            status: ExitStatus::from_raw(answer.status),
            stdout: answer.said.into_bytes(),
            stderr: answer.errors.into_bytes(),
        }
    }
}
