// SPDX-License-Identifier: Apache-2.0
//! State of the eRDMA NICs that the reconciler reports to the daemon.

use super::Discovery;
use crate::offer::Unhealthy;
use ::erdma::conf::DRIVER;
use ::erdma::{Nic, bring_up, driver::DriverStatus};
use rdma_netns::Inventory;
use std::sync::Arc;

/// State of the eRDMA NICs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// This instance's id, once known.
    pub instance: Option<String>,
    /// State of the driver.
    pub driver: DriverStatus,
    /// True before a reload of the driver, while its devices are withheld from kubelet.
    pub changing: bool,
    /// Results for the NICs to be brought up.
    pub outcomes: Vec<bring_up::Outcome>,
    /// Steps that were not possible yet, a sentence each.
    pub remarks: Vec<String>,
}

/// The node's eRDMA NICs and their state.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The discovered NICs.
    pub discovery: Discovery,
    /// Their state.
    pub report: Arc<Report>,
}

impl Report {
    /// Returns `unhealthy`, and the driver's devices while it is reloaded.
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

    /// Returns true if `other` is equal except for details that differ between observations, such as a user's process
    /// id.
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

    /// Returns the remarks for the user, a sentence each.
    pub fn sentences(&self) -> Vec<String> {
        let problem = self.driver.problem.as_ref().map(ToString::to_string);
        problem.into_iter().chain(self.remarks.clone()).collect()
    }
}

impl Side {
    /// Returns every eRDMA NIC with its state as a word.
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
