// SPDX-License-Identifier: Apache-2.0
//! What became of a NIC, for the log and the metrics.

use ipnetwork::Ipv4Network;
use rdma_netns::DeviceAddress;
use std::{fmt, time::Duration};

/// A failure is looked at again after this, if nothing happens before: what is in the way may
/// have gone without a word.
const FAILED_AGAIN: Duration = Duration::from_secs(60);

/// A NIC that has all is looked at again after this: of addresses and routes that go or come is
/// not heard.
const CONFIGURED_AGAIN: Duration = Duration::from_secs(30);

/// What became of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its RDMA device.
    pub rdma: String,
    /// Its PCI function.
    pub address: DeviceAddress,
    /// How it stands.
    pub state: State,
    /// What its user should know besides, a sentence each.
    pub remarks: Vec<String>,
    /// Whether it is another than the last time, or something was done: to be told.
    pub is_news: bool,
}

/// How a NIC stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is somebody else's to configure, or in a pod.
    LeftAlone {
        /// Whose it is.
        reason: String,
    },
    /// It has what it is to have.
    Configured {
        /// Its netdev.
        netdev: String,
        /// Its address, and the network that it is in.
        address: Ipv4Network,
        /// How many changes that took now; 0: nothing differed.
        changes: usize,
    },
    /// It will be tried again.
    Waiting {
        /// For what.
        reason: String,
        /// When.
        retry_after: Duration,
    },
    /// Somebody has to do something about it.
    Failed {
        /// What is wrong.
        reason: String,
    },
}

impl Outcome {
    /// When to settle again, if nothing is heard before; none: no need.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting { retry_after, .. } => Some(*retry_after),
            State::Failed { .. } => Some(FAILED_AGAIN),
            State::Configured { .. } => Some(CONFIGURED_AGAIN),
            State::LeftAlone { .. } => None,
        }
    }

    /// Writes it into the log, if it is news.
    pub fn tell(&self) {
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

/// The sentence for the log, without the remarks.
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
