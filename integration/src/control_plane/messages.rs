// SPDX-License-Identifier: Apache-2.0
//! Protocol between a test in a node and the control plane outside of the node. A TCP connection has one [`Request`] in
//! JSON up to the end of the stream, and then the [`Answer`], also in JSON.

use serde::{Deserialize, Serialize};
use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Output},
};

/// Port at [`super::ADDRESS`] for these requests.
pub(super) const PORT: u16 = 8090;

#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Request {
    Question(Question),
    Change(Change),
}

/// Requests that leave the control plane's processes running.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Question {
    /// Run a line in an operator's shell.
    Shell(String),
    /// Send the API server a request.
    Api {
        method: String,
        path: String,
        body: String,
    },
    /// Return the last errors of the control plane's programs.
    LastErrors,
}

/// Requests that start or end processes.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Change {
    /// Replace the control plane by a new one without nodes.
    Fresh,
    /// Assert that the control plane's programs run, and that the nodes run whose power was not cut. The text names the
    /// awaited event.
    AssertRuns(String),
    /// Cut the power of the node with this number.
    PowerOff(usize),
    /// End the API server by this signal, and start it again.
    RestartApiServer(i32),
}

/// Result of a request, in the form of a process's exit status and output.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Answer {
    /// Exit status in the form in which `wait` returns it.
    status: i32,
    output: String,
    errors: String,
}

impl Answer {
    pub(super) fn done(output: String) -> Self {
        let errors = String::new();
        Self {
            status: 0,
            output,
            errors,
        }
    }

    pub(super) fn not_done(output: String, errors: String) -> Self {
        Self {
            status: 1 << 8,
            output,
            errors,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.status == 0
    }

    pub(super) fn into_output(self) -> String {
        self.output
    }
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            status: output.status.into_raw(),
            output: text(output.stdout),
            errors: text(output.stderr),
        }
    }
}

impl From<Answer> for Output {
    fn from(answer: Answer) -> Self {
        Self {
            status: ExitStatus::from_raw(answer.status),
            stdout: answer.output.into_bytes(),
            stderr: answer.errors.into_bytes(),
        }
    }
}
