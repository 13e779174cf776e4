// SPDX-License-Identifier: Apache-2.0
//! What the daemon is told about its eRDMA NICs by whoever sees to them.

use super::Discovery;
use crate::offer::Unhealthy;
use ::erdma::conf::DRIVER;
use ::erdma::{Nic, bring_up, driver::DriverStatus};
use rdma_netns::Inventory;
use std::sync::Arc;

/// How things stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// This instance's id, once it was asked for and known.
    pub instance: Option<String>,
    /// The driver's mode.
    pub driver: DriverStatus,
    /// The driver is about to be loaded anew: nobody is given a device of it meanwhile.
    pub changing: bool,
    /// What became of the NICs that are to be brought up.
    pub outcomes: Vec<bring_up::Outcome>,
    /// What could not be done yet; a sentence each.
    pub remarks: Vec<String>,
}

/// eRDMA's part of what is known of the node.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The NICs.
    pub discovery: Discovery,
    /// How things stand with them.
    pub report: Arc<Report>,
}

impl Report {
    /// `unhealthy`, and the driver's devices while it is being loaded anew.
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

    /// Whether `other` says the same, in whatever differs from one look to the next: a user's
    /// process id is no news.
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

    /// What its user has to know; a sentence each.
    pub fn sentences(&self) -> Vec<String> {
        let problem = self.driver.problem.as_ref().map(ToString::to_string);
        problem.into_iter().chain(self.remarks.clone()).collect()
    }
}

impl Side {
    /// Every eRDMA NIC, and a word for what became of it.
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
