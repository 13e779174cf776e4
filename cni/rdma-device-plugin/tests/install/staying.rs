// SPDX-License-Identifier: Apache-2.0
//! A running `uninstall --stay`.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
};

/// A running `uninstall --stay`, and the output that the test has not read yet.
pub(super) struct Staying {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
}

impl Staying {
    /// Starts `command`.
    pub(super) fn start(mut command: Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        Self {
            lines: BufReader::new(child.stdout.take().expect("its output")).lines(),
            errors: BufReader::new(child.stderr.take().expect("its errors")).lines(),
            child,
        }
    }

    /// Reads lines of the output up to a line for which `is_it` returns true. Fails if there is none.
    #[track_caller]
    pub(super) fn wait_for_log(&mut self, is_it: impl FnMut(String) -> bool) {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        assert!(lines.any(is_it), "{:?}", self.child.wait());
    }

    /// Reads lines of the output up to the report that `uninstall` has finished its work.
    #[track_caller]
    pub(super) fn finishes(&mut self) {
        self.wait_for_log(|line| line == "nothing is left to remove; waiting for SIGTERM");
    }

    /// Returns the next line of the output, or `None` at its end.
    pub(super) fn line(&mut self) -> Option<String> {
        self.lines.next()?.ok()
    }

    /// Returns the next error, or `None` after the program's end.
    pub(super) fn error(&mut self) -> Option<String> {
        self.errors.next()?.ok()
    }

    /// Fails if the program has ended.
    #[track_caller]
    pub(super) fn runs(&mut self) {
        assert_eq!(self.child.try_wait().expect("a status"), None);
    }

    /// Ends the program by SIGTERM. The program must succeed.
    #[track_caller]
    pub(super) fn end(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("a signal sent");
        assert!(self.child.wait().expect("ended").success());
    }
}
