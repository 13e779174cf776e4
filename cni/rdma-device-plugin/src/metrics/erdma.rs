// SPDX-License-Identifier: Apache-2.0
//! Metrics of eRDMA NICs, of their driver, and of pods' SMC-R.

use super::{Labels, collect::Snapshot, scrape::Scrape};
use ::erdma::conf::DriverMode;

/// Maximum number of characters of the label `reason`.
const LONGEST: usize = 200;

pub(super) fn add(snapshot: &Snapshot, scrape: &mut Scrape) {
    let side = &snapshot.node.erdma;
    for (nic, outcome) in side.nics() {
        let labels = vec![
            ("device", nic.rdma.clone()),
            ("netdev", nic.netdev.clone().unwrap_or_default()),
            ("outcome", outcome.to_owned()),
        ];
        let help = "Outcome of bringing up an eRDMA NIC";
        scrape.gauge("rdma_erdma_nic", help, labels, 1);
    }
    let driver = &side.report.driver;
    for (which, mode) in [("loaded", driver.loaded), ("wanted", driver.wanted)] {
        if let Some(mode) = mode.map(DriverMode::word) {
            let labels = vec![("mode", mode.to_owned()), ("which", which.to_owned())];
            let help = "Loaded or wanted mode of the eRDMA driver";
            scrape.gauge("rdma_erdma_driver_mode", help, labels, 1);
        }
    }
    if let Some(problem) = &driver.problem {
        let labels = vec![("problem", problem.word().to_owned())];
        let help = "Problem of the eRDMA driver's mode, or of its binding to functions";
        scrape.gauge("rdma_erdma_driver_problem", help, labels, 1);
    }
    for pod in &snapshot.smc {
        let mut labels: Labels = vec![
            ("namespace", pod.namespace.clone()),
            ("pod", pod.pod.clone()),
            ("state", pod.state.clone()),
        ];
        let reason = pod.reason.iter();
        labels.extend(reason.map(|it| ("reason", it.chars().take(LONGEST).collect())));
        let help = "A pod that requests SMC-R, and its state";
        scrape.gauge("rdma_pod_smcr", help, labels, 1);
    }
}
