// SPDX-License-Identifier: Apache-2.0
//! Outcome of a NIC's bring-up, for log and metrics.

use ipnetwork::Ipv4Network;
use rdma_netns::DeviceAddress;
use std::{fmt, time::Duration};

/// Interval of retries for a failed NIC. Some causes end without an event.
const FAILED_AGAIN: Duration = Duration::from_secs(60);

/// Interval of checks of a configured NIC. The daemon gets no events about IPv4 addresses and routes.
const CONFIGURED_AGAIN: Duration = Duration::from_secs(30);

/// Outcome for one NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the RDMA device.
    pub rdma: String,
    /// PCI function.
    pub address: DeviceAddress,
    /// State of the NIC.
    pub state: State,
    /// Additional warnings, one sentence each.
    pub remarks: Vec<String>,
    /// True if the outcome differs from the last reported outcome, or if the daemon made changes. A missing carrier is
    /// reported only after some seconds. The daemon logs only outcomes that are news.
    pub is_news: bool,
}

/// State of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The daemon does not change the NIC, for example because another program configures it, or because it is in a
    /// pod.
    LeftAlone {
        /// Reason.
        reason: String,
    },
    /// The NIC is configured.
    Configured {
        /// Name of the netdev.
        netdev: String,
        /// Address, with the prefix length of its network.
        address: Ipv4Network,
        /// Number of changes that the last call made. 0: the NIC already had this configuration.
        changes: usize,
    },
    /// The NIC is not ready yet. The daemon retries.
    Waiting {
        /// Reason.
        reason: String,
        /// Time until the next attempt.
        retry_after: Duration,
    },
    /// The NIC could not be configured.
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
    /// Returns the time after which the caller must call `settle` if no event causes an earlier call. `None`: a call is
    /// necessary only after an event.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting { retry_after, .. } => Some(*retry_after),
            State::Failed { .. } => Some(FAILED_AGAIN),
            State::Configured { .. } => Some(CONFIGURED_AGAIN),
            State::LeftAlone { .. } => None,
        }
    }

    /// Logs the outcome if [`Outcome::is_news`].
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

/// Formats the sentence for the log, without the remarks.
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
