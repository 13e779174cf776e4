// SPDX-License-Identifier: Apache-2.0
//! `--release`: removes the daemon's configuration from NICs, and restores the NICs' state from before the bring-up.

use super::{
    apply::{self, ApplyError},
    record::{Record, Records},
};
use attachments::{Store, pods};
use rdma_netns::{DeviceAddress, Kernel, ObserveError};
use rdma_resources::FileError;
use std::{fmt, path::Path};

/// Reason why no NIC can be released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The records cannot be read, or a running daemon would undo the release.
    #[error(transparent)]
    Record(#[from] FileError),
    /// The kernel's state cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// Outcome of the release of one NIC.
#[derive(Debug)]
pub struct Released {
    /// PCI function of the NIC; `None`: the record cannot be read.
    pub address: Option<DeviceAddress>,
    /// Name of the netdev, from the record.
    pub netdev: Option<String>,
    /// Result of the release.
    pub end: End,
}

/// Result of a release.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The NIC has its state from before the bring-up again.
    Done {
        /// Number of changes that were made.
        changes: usize,
        /// A sentence for each difference that remains because of another program.
        left: Vec<String>,
    },
    /// The NIC's netdev is no longer on the host. The configuration disappeared with the netdev.
    Gone,
    /// The node was rebooted. The reboot removed the configuration.
    Rebooted,
    /// The NIC is in this pod. The caller must release the NIC again when it is back on the host.
    InPod(String),
    /// The NIC may still have configuration of the daemon, or its record could not be removed, for this reason.
    Failed(String),
}

impl Released {
    /// Returns true if the release is complete. False: the caller must release the NIC again.
    pub fn is_complete(&self) -> bool {
        matches!(self.end, End::Done { .. } | End::Gone | End::Rebooted)
    }
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(netdev) = &self.netdev {
            write!(f, "{netdev}: ")?;
        }
        match &self.end {
            End::Done { changes, left } => {
                match changes {
                    0 => f.write_str("nothing was left to release")?,
                    1 => f.write_str("released, 1 change")?,
                    more => write!(f, "released, {more} changes")?,
                }
                left.iter().try_for_each(|left| write!(f, "; {left}"))
            }
            End::Gone => f.write_str(
                "the NIC's netdev is no longer on the host, and neither is its configuration",
            ),
            End::Rebooted => f.write_str("the node was rebooted: nothing is left to release"),
            End::InPod(pod) => write!(
                f,
                "the NIC is in pod {pod} and keeps its configuration: release it after the pod has ended"
            ),
            End::Failed(reason) => write!(f, "not released: {reason}"),
        }
    }
}

/// Releases every NIC that has a record in `state_dir`. Removes the records of completely released NICs. A later call
/// retries the other NICs.
///
/// # Errors
/// [`ReleaseError`]. The failure of a single NIC is no error: the NIC's outcome is [`End::Failed`].
pub fn release<K: Kernel>(kernel: &K, state_dir: &Path) -> Result<Vec<Released>, ReleaseError> {
    let records = Records::new(state_dir);
    let all = records.all()?;
    if all.is_empty() {
        return Ok(vec![]);
    }
    let _lock = records.lock()?;
    let boot_id = kernel.boot_id()?;
    let placed = pods::read(&Store::new(state_dir), &boot_id);
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
            None => release_one(kernel, &records, &record),
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

fn release_one<K: Kernel>(kernel: &K, records: &Records, record: &Record) -> End {
    match apply::release(kernel, records, record.clone()) {
        Ok((changes, left)) => End::Done { changes, left },
        Err(ApplyError::Gone) => End::Gone,
        Err(error) => End::Failed(error.to_string()),
    }
}
