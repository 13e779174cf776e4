// SPDX-License-Identifier: Apache-2.0
//! `--release`: what the daemon gave to NICs goes, and they are as they were.

use super::{
    apply::{self, ApplyError},
    record::{Record, RecordError, Records},
};
use attachments::pods;
use rdma_netns::{DeviceAddress, Kernel, ObserveError};
use std::{fmt, path::Path};

/// Nothing could be released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The records cannot be read, or a daemon is running that would undo it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The kernel's state cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// What became of a NIC.
#[derive(Debug)]
pub struct Released {
    /// Its PCI function; none: its record cannot be read.
    pub address: Option<DeviceAddress>,
    /// Its netdev's name, as it was recorded.
    pub netdev: Option<String>,
    /// How it ended.
    pub end: End,
}

/// How a release ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It is as it was.
    Done {
        /// How many changes that took.
        changes: usize,
        /// What stays, being somebody else's by now; a sentence each.
        left: Vec<String>,
    },
    /// It is gone, and all that it had been given with it.
    Gone,
    /// The node was booted since: nothing is there any more.
    Rebooted,
    /// It is in this pod: release again when it has returned to the host.
    InPod(String),
    /// Not all of it is as it was.
    Failed(String),
}

impl Released {
    /// Whether nothing that was given is left; else it is to be released again.
    pub fn is_complete(&self) -> bool {
        matches!(self.end, End::Done { .. } | End::Gone | End::Rebooted)
    }
}

/// The sentence for a person.
impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(netdev) = &self.netdev {
            write!(f, "{netdev}: ")?;
        }
        match &self.end {
            End::Done { changes, left } => {
                match changes {
                    0 => f.write_str("nothing of ours was left")?,
                    1 => f.write_str("released, 1 change")?,
                    more => write!(f, "released, {more} changes")?,
                }
                left.iter().try_for_each(|left| write!(f, "; {left}"))
            }
            End::Gone => f.write_str("it is not there any more, nor is what it was given"),
            End::Rebooted => f.write_str("the node was booted since: nothing is left to release"),
            End::InPod(pod) => write!(
                f,
                "it is in pod {pod} with what it was given: release it again when that has ended"
            ),
            End::Failed(reason) => write!(f, "not released: {reason}"),
        }
    }
}

/// Takes back what every NIC was given that the records below `state_dir` tell of. The records of
/// those that are done go; what cannot be done keeps its record, for the next time.
///
/// # Errors
/// [`ReleaseError`]; what is wrong with one NIC only is its [`End::Failed`].
pub fn release<K: Kernel>(kernel: &K, state_dir: &Path) -> Result<Vec<Released>, ReleaseError> {
    let records = Records::new(state_dir);
    let all = records.all()?;
    if all.is_empty() {
        return Ok(vec![]);
    }
    let _lock = records.lock()?;
    let boot_id = kernel.boot_id()?;
    let placed = pods::read(&state_dir.join("attachments"), &boot_id);
    let mut released = vec![];
    for record in all {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                released.push(Released {
                    address: None,
                    netdev: None,
                    end: End::Failed(error.to_string()),
                });
                continue;
            }
        };
        let is_its = |it: &&pods::PodDevice| {
            it.has(&record.address) || record.parent.as_ref().is_some_and(|parent| it.has(parent))
        };
        let in_pod = placed.iter().find(is_its);
        let end = match in_pod {
            _ if record.boot_id != boot_id => End::Rebooted,
            Some(placed) => End::InPod(placed.pod.name.clone()),
            None => one(kernel, &record),
        };
        let mut done = Released {
            address: Some(record.address.clone()),
            netdev: Some(record.netdev.to_string()),
            end,
        };
        if done.is_complete()
            && let Err(error) = records.remove(&record.address)
        {
            done.end = End::Failed(error.to_string());
        }
        released.push(done);
    }
    Ok(released)
}

fn one<K: Kernel>(kernel: &K, record: &Record) -> End {
    match apply::release(kernel, record) {
        Ok((changes, left)) => End::Done { changes, left },
        Err(ApplyError::Gone) => End::Gone,
        Err(error) => End::Failed(error.to_string()),
    }
}
