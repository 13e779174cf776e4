// SPDX-License-Identifier: Apache-2.0
//! State of the eRDMA NICs that the reconciler reports to the daemon.

use super::Discovery;
use ::erdma::conf::DRIVER;
use ::erdma::{Nic, bring_up, driver::DriverStatus};
use offer::Unhealthy;
use rdma_netns::Inventory;
use std::sync::Arc;

/// State of the eRDMA NICs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// This instance's id; `None`: not known yet.
    pub instance: Option<String>,
    /// State of the driver.
    pub driver: DriverStatus,
    /// True while the daemon withholds the driver's devices from kubelet, before a reload of the driver.
    pub changing: bool,
    /// Result for each NIC that the daemon brings up.
    pub outcomes: Vec<bring_up::Outcome>,
    /// Sentences about the steps that are not possible yet.
    pub remarks: Vec<String>,
}

/// The node's eRDMA NICs and their state.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// NICs that the daemon discovered.
    pub discovery: Discovery,
    /// State of the discovered NICs.
    pub report: Arc<Report>,
}

impl Report {
    /// Returns `unhealthy`. Before a reload of the driver, also includes the driver's devices.
    pub fn withheld(&self, inventory: &Inventory, unhealthy: &Unhealthy) -> Unhealthy {
        let mut unhealthy = unhealthy.clone();
        if !self.changing {
            return unhealthy;
        }
        let functions = inventory.functions.iter();
        let of_driver = functions.filter(|it| it.device.driver.as_deref() == Some(DRIVER));
        for function in of_driver {
            let address = function.device.address.clone();
            let why = "the eRDMA driver is being loaded in another mode".to_owned();
            unhealthy.entry(address).or_insert(why);
        }
        unhealthy
    }

    /// Returns true if `other` is equal, without details that differ between observations, such as the process id of a
    /// device's user.
    pub fn is_like(&self, other: &Self) -> bool {
        let problems = (&self.driver.problem, &other.driver.problem);
        let is_like = match problems {
            (Some(one), Some(other)) => one.is_like(other),
            (one, other) => one == other,
        };
        let with_it = |report: &Self| Self {
            driver: DriverStatus {
                problem: None,
                ..report.driver.clone()
            },
            ..report.clone()
        };
        is_like && with_it(self) == with_it(other)
    }

    /// Returns the remarks for the operator, one sentence each.
    pub fn sentences(&self) -> Vec<String> {
        let problem = self.driver.problem.as_ref().map(ToString::to_string);
        problem.into_iter().chain(self.remarks.clone()).collect()
    }
}

impl Side {
    /// Returns every eRDMA NIC, each with one word for its state.
    pub fn nics(&self) -> impl Iterator<Item = (&Nic, &'static str)> {
        let used = self.discovery.nics.iter();
        let hidden = self.discovery.hidden.iter();
        let used = used.map(|nic| (nic, self.word(nic)));
        used.chain(hidden.map(|nic| (nic, "not_exposed")))
    }

    fn word(&self, nic: &Nic) -> &'static str {
        let mut outcomes = self.report.outcomes.iter();
        let outcome = outcomes.find(|it| it.address == nic.address);
        match outcome.map(|outcome| &outcome.state) {
            Some(bring_up::State::Configured { .. }) => "configured",
            Some(bring_up::State::LeftAlone { .. }) => "left_alone",
            Some(bring_up::State::Waiting { .. }) => "waiting",
            Some(bring_up::State::Failed { .. }) => "failed",
            None => "untouched",
        }
    }
}
