// SPDX-License-Identifier: Apache-2.0
//! Two machines of the lab whose modelled NICs are on one network, as seen from inside one of them
//! (`integration/lab/pair`).

use crate::{traffic::Serving, wait};
use std::{env, fs, path::PathBuf, time::Duration};

/// Time limit for a step of the other machine, which may still be booting. If a machine fails, `integration/lab/pair`
/// ends the other machine before this limit.
const TIMEOUT: Duration = Duration::from_secs(240);

/// One of the two machines. Both run the same test, and wait for each other at named steps.
#[derive(Debug)]
pub struct Pair {
    /// Number of this machine: 1 or 2.
    pub number: usize,
    directory: PathBuf,
}

impl Pair {
    /// Makes this machine's side. `test` is a name that no other test uses.
    #[track_caller]
    pub fn new(test: &str) -> Self {
        let number = env::var("RDMA_LAB_NODE")
            .ok()
            .and_then(|it| it.parse().ok());
        let directory = env::var("RDMA_LAB_PAIR").unwrap_or_default();
        let (Some(number @ 1..=2), false) = (number, directory.is_empty()) else {
            panic!("this test runs in the lab, by integration/lab/pair");
        };
        let directory = PathBuf::from(directory).join(test);
        fs::create_dir_all(&directory).expect("the directory of both machines");
        Self { number, directory }
    }

    /// Returns true on the machine that runs the servers: machine 2.
    pub fn serves(&self) -> bool {
        self.number == 2
    }

    /// Tells the other machine that this machine has done `step`.
    #[track_caller]
    pub fn has_done(&self, step: &str) {
        self.announce(step, "");
    }

    /// Waits until the other machine has done `step`. Returns the text that it passed to [`Self::exchange`], if any.
    #[track_caller]
    pub fn wait_for(&self, step: &str) -> String {
        let file = self.directory.join(format!("{step} {}", 3 - self.number));
        let is_done = wait::within(TIMEOUT, || file.exists());
        assert!(
            is_done,
            "the other machine has not done {step:?} within {TIMEOUT:?}"
        );
        fs::read_to_string(file).expect("the directory of both machines")
    }

    /// Waits until both machines have done `step`.
    #[track_caller]
    pub fn meet(&self, step: &str) {
        self.exchange(step, "");
    }

    /// Waits until both machines have done `step`. Sends `own` to the other machine, and returns the other machine's
    /// text.
    #[track_caller]
    pub fn exchange(&self, step: &str, own: &str) -> String {
        self.announce(step, own);
        self.wait_for(step)
    }

    /// Runs a program with a server and a client. Machine 2 calls `serve`, which returns when the server listens. Then
    /// machine 1 calls `ask`. `step` names the program.
    #[track_caller]
    pub fn run(&self, step: &str, serve: impl FnOnce() -> Serving, ask: impl FnOnce()) {
        self.meet(step);
        let listens = format!("{step} listens");
        if self.serves() {
            let serving = serve();
            self.has_done(&listens);
            serving.end();
        } else {
            self.wait_for(&listens);
            ask();
        }
    }

    /// Makes the file of `step` with `text`. The file appears with its text, by a rename.
    #[track_caller]
    fn announce(&self, step: &str, text: &str) {
        let file = self.directory.join(format!("{step} {}", self.number));
        let new = self.directory.join(format!("{} writes", self.number));
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &file));
        written.expect("the directory of both machines");
    }
}
