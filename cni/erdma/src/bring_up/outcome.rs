// SPDX-License-Identifier: Apache-2.0
//! The outcome of a NIC's bring-up, for log and metrics.

use ipnetwork::Ipv4Network;
use rdma_netns::DeviceAddress;
use std::{fmt, time::Duration};

/// Interval after which a failed NIC is tried again without an event, because the cause may have disappeared without an
/// event.
const FAILED_AGAIN: Duration = Duration::from_secs(60);

/// Interval of checks of a configured NIC, because the daemon receives no events about addresses and routes.
const CONFIGURED_AGAIN: Duration = Duration::from_secs(30);

/// The outcome for one NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// RDMA device.
    pub rdma: String,
    /// PCI function.
    pub address: DeviceAddress,
    /// State of the NIC.
    pub state: State,
    /// Additional warnings, one sentence each.
    pub remarks: Vec<String>,
    /// True if the outcome differs from the last one, or changes were made. Only such outcomes are logged.
    pub is_news: bool,
}

/// The state of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Another program configures the NIC, or the NIC is in a pod.
    LeftAlone {
        /// Reason.
        reason: String,
    },
    /// The NIC is configured.
    Configured {
        /// Netdev.
        netdev: String,
        /// Address, with the length of its network's prefix.
        address: Ipv4Network,
        /// Number of changes of this call. 0: the NIC was configured already.
        changes: usize,
    },
    /// The daemon will try again.
    Waiting {
        /// Reason.
        reason: String,
        /// Time until the next try.
        retry_after: Duration,
    },
    /// An operator has to act.
    Failed {
        /// Reason.
        reason: String,
    },
}

impl State {
    pub(super) fn left_alone(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self::LeftAlone { reason }
    }

    pub(super) fn waiting(reason: impl ToString, retry_after: Duration) -> Self {
        let reason = reason.to_string();
        Self::Waiting {
            reason,
            retry_after,
        }
    }

    pub(super) fn failed(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self::Failed { reason }
    }
}

impl Outcome {
    /// Returns the time until the next call of `settle` if no event comes first. `None`: only an event requires a call.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting { retry_after, .. } => Some(*retry_after),
            State::Failed { .. } => Some(FAILED_AGAIN),
            State::Configured { .. } => Some(CONFIGURED_AGAIN),
            State::LeftAlone { .. } => None,
        }
    }

    /// Logs the outcome if it is news.
    pub fn log(&self) {
        if !self.is_news {
            return;
        }
        match &self.state {
            State::LeftAlone { .. } | State::Configured { .. } => log::info!("{self}"),
            State::Waiting { .. } => log::warn!("{self}"),
            State::Failed { .. } => log::error!("{self}"),
        }
        for remark in &self.remarks {
            log::warn!("{}: {remark}", self.rdma);
        }
    }
}

/// Prints the sentence for the log, without the remarks.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rdma = &self.rdma;
        match &self.state {
            State::LeftAlone { reason } => write!(f, "{rdma}: left alone: {reason}"),
            State::Configured {
                netdev, address, ..
            } => write!(f, "{rdma}: {netdev} has {address}"),
            State::Waiting { reason, .. } => write!(f, "{rdma}: not ready yet: {reason}"),
            State::Failed { reason } => write!(f, "{rdma}: not configured: {reason}"),
        }
    }
}
