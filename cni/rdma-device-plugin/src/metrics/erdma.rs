// SPDX-License-Identifier: Apache-2.0
//! The figures of eRDMA NICs, of their driver, and of pods' SMC-R.

use super::{Labels, collect::Snapshot, text::Gauges};
use ::erdma::conf::DriverMode;
use prometheus_client::registry::Registry;

/// A reason's length, in characters: it is a label.
const LONGEST: usize = 200;

pub(super) fn registry(snapshot: &Snapshot) -> Registry {
    let mut registry = Registry::default();
    let (nics, modes, problems, smc) = <(Gauges, Gauges, Gauges, Gauges)>::default();
    let side = &snapshot.node.erdma;
    for (nic, outcome) in side.nics() {
        let labels = [
            ("device", nic.rdma.clone()),
            ("netdev", nic.netdev.clone().unwrap_or_default()),
            ("outcome", outcome.to_owned()),
        ];
        nics.set(labels.to_vec(), 1);
    }
    let driver = &side.report.driver;
    for (which, mode) in [("loaded", driver.loaded), ("wanted", driver.wanted)] {
        if let Some(mode) = mode.map(DriverMode::word) {
            let labels = [("mode", mode.to_owned()), ("which", which.to_owned())];
            modes.set(labels.to_vec(), 1);
        }
    }
    if let Some(problem) = &driver.problem {
        problems.set(vec![("problem", problem.word().to_owned())], 1);
    }
    for pod in &snapshot.smc {
        let mut labels: Labels = vec![
            ("namespace", pod.namespace.clone()),
            ("pod", pod.pod.clone()),
            ("state", pod.state.clone()),
        ];
        let reason = pod.reason.iter();
        labels.extend(reason.map(|it| ("reason", it.chars().take(LONGEST).collect())));
        smc.set(labels, 1);
    }
    let nic = "An eRDMA NIC, and what became of it";
    nics.register(&mut registry, "rdma_erdma_nic", nic);
    let mode = "The mode of the eRDMA driver: as it is, and as it is to be";
    modes.register(&mut registry, "rdma_erdma_driver_mode", mode);
    let problem = "Why the eRDMA driver is not as it is to be";
    problems.register(&mut registry, "rdma_erdma_driver_problem", problem);
    let pods = "A pod that was to have SMC-R, and whether it has";
    smc.register(&mut registry, "rdma_pod_smcr", pods);
    registry
}
