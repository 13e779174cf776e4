// SPDX-License-Identifier: Apache-2.0
//! What a test in a node asks of the control plane outside, one question a connection of TCP: a [`Request`] in JSON up
//! to the end of what it sends; then the [`Answer`], in JSON as well.

use serde::{Deserialize, Serialize};
use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Output},
};

/// Where it is asked: a port of [`super::ADDRESS`].
pub(super) const PORT: u16 = 8090;

#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Request {
    Question(Question),
    Change(Change),
}

/// What leaves the control plane's processes alone.
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
    /// What its programs complained of at last.
    LastErrors,
}

/// What concerns them.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Change {
    /// A control plane that has seen no node yet. What there was goes.
    Fresh,
    /// They run, and so do the nodes that have not lost power; they were waited for until this.
    AssertRuns(String),
    /// The node of this number loses power.
    PowerOff(usize),
    /// The API server ends by this signal, and starts again.
    RestartApiServer(i32),
}

/// What came of it, as a process would have it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Answer {
    /// As `wait` returns it.
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
