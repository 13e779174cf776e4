// SPDX-License-Identifier: Apache-2.0
//! Two machines of the lab whose eRDMA functions share one fabric, as seen from inside one of them
//! (`integration/lab/pair`).

use crate::wait;
use std::{env, fs, path::PathBuf, time::Duration};

/// Time limit for a step of the other machine, which may still be booting. If a machine fails, the wait for it ends
/// earlier.
const PATIENCE: Duration = Duration::from_secs(240);

/// One of the two machines. Both run the same test, and wait for each other at named steps.
#[derive(Debug)]
pub struct ErdmaPair {
    /// Number of this machine: 1 or 2.
    pub number: usize,
    directory: PathBuf,
}

impl ErdmaPair {
    /// Makes this machine's side. `test` is a name that no other test uses.
    #[track_caller]
    pub fn new(test: &str) -> Self {
        let number = env::var("RDMA_LAB_NODE")
            .ok()
            .and_then(|it| it.parse().ok());
        let directory = env::var("RDMA_LAB_ERDMA_FABRIC").unwrap_or_default();
        let (Some(number @ 1..=2), false) = (number, directory.is_empty()) else {
            panic!("this test runs in the lab, by integration/lab/pair");
        };
        let directory = PathBuf::from(directory).join(test);
        fs::create_dir_all(&directory).expect("the directory of both machines");
        Self { number, directory }
    }

    /// Tells the other machine that this machine has done `step`.
    #[track_caller]
    pub fn has_done(&self, step: &str) {
        let file = self.directory.join(format!("{step} {}", self.number));
        fs::write(file, "").expect("the directory of both machines");
    }

    /// Waits until the other machine has done `step`.
    #[track_caller]
    pub fn wait_for(&self, step: &str) {
        let file = self.directory.join(format!("{step} {}", 3 - self.number));
        let is_done = wait::within(PATIENCE, || file.exists());
        assert!(
            is_done,
            "the other machine has not done {step:?} within {PATIENCE:?}"
        );
    }

    /// Waits until both machines have done `step`.
    #[track_caller]
    pub fn meet(&self, step: &str) {
        self.has_done(step);
        self.wait_for(step);
    }
}
