// SPDX-License-Identifier: Apache-2.0
//! Errors of the verbs. [`crate::reply`] assigns the CNI codes.

use crate::{
    apply::{ApplyError, Incomplete},
    char_devices::CharDeviceError,
    claims::ClaimError,
    ipam::IpamError,
    kubelet::KubeletError,
};
use attachments::{Key, store::StoreError};
use cni_protocol::{ConfError, EnvironmentError};
use network_conf::IbKubernetesError;
use plan::{Obstacle, select::SelectError};
use rdma_netns::{ObserveError, OpenPodError};
use smcr::apply::SmcError;

/// A verb's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The output of a verb that changes nothing could not be written.
    #[error("cannot write the answer to standard output: {0}")]
    Output(std::io::Error),
    /// `CNI_NETNS`
    #[error("CNI_NETNS: {0}")]
    Netns(#[from] OpenPodError),
    /// The configuration.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The data from ib-kubernetes are wrong.
    #[error(transparent)]
    IbKubernetes(#[from] IbKubernetesError),
    /// Kubelet's allocation cannot be read.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// The devices.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// ADD for an attachment that exists.
    #[error("{0} is attached already; it needs a DEL before another ADD")]
    Exists(String),
    /// The state directory; nothing was changed.
    #[error("{0}; nothing was changed")]
    State(#[from] StoreError),
    /// The state directory failed during a restore.
    #[error("{0}; the restore is incomplete, and the record stays: try again")]
    Unfinished(StoreError),
    /// The verb is done, but its record could not be removed, or the removal could not be synced to disk.
    #[error("everything is back on the host, but {0}")]
    Forget(StoreError),
    /// The record is of a later version, and is left unchanged.
    #[error(
        "the record of {key} has format {format}, which a newer rdma-cni wrote: use that rdma-cni"
    )]
    Newer {
        /// The record's attachment.
        key: Key,
        /// The record's format.
        format: u64,
    },
    /// GC found a record that cannot be read.
    #[error("its record cannot be read ({0}): DEL restores its devices to the host")]
    Unreadable(String),
    /// GC could not determine which leases the IPAM plugin must keep.
    #[error("{0}; therefore GC did not call the IPAM plugin")]
    Unasked(StoreError),
    /// The kernel's state could not be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// No plan is possible; nothing was changed.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// SMC-R failed; nothing was changed.
    #[error("{0}; nothing was changed")]
    Smc(#[from] SmcError),
    /// ADD failed before its first change, and its record could not be removed.
    #[error("{error}; in addition, its record could not be removed and stays until DEL: {left}")]
    Recorded {
        /// Why ADD failed.
        error: Box<Error>,
        /// Reason why the record is still there.
        left: StoreError,
    },
    /// IPAM failed; no device is affected.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// ADD failed after its first change.
    #[error("{cause}; {}", outcome(left, given_up, held))]
    Add {
        /// Reason.
        cause: Cause,
        /// The devices that are not restored.
        left: Option<Box<Incomplete>>,
        /// Attributes that the restored devices lack, one sentence per attribute.
        given_up: Box<[String]>,
        /// Reason why addresses may still be assigned.
        held: Option<Box<IpamError>>,
    },
    /// The restore is incomplete.
    #[error("restoring is incomplete: {0}")]
    Incomplete(#[from] Incomplete),
    /// The devices are restored, but addresses are not released.
    #[error("devices are back on the host, but addresses may still be held: {0}")]
    Release(IpamError),
    /// CHECK found differences.
    #[error("{}", .0.join("; "))]
    Drift(Vec<String>),
    /// STATUS: ADD would fail.
    #[error("ADD cannot work: {}", reasons.join("; "))]
    NotReady {
        /// True if the IPAM plugin reports that running pods are affected too (code 51).
        limited: bool,
        /// Reasons, a sentence each.
        reasons: Vec<String>,
    },
    /// An error of one of several attachments.
    #[error("{key}: {source}")]
    Of {
        /// The attachment.
        key: Key,
        /// The attachment's error.
        source: Box<Error>,
    },
    /// Several attachments, each with its error.
    #[error("{}", each(.0))]
    Several(Vec<Error>),
}

/// Reason why ADD failed after its first change.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A change failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A container of the pod would get another device than kubelet promised.
    #[error(transparent)]
    CharDevice(Box<CharDeviceError>),
    /// A container of the pod would not get the devices of its claim.
    #[error(transparent)]
    Claim(Box<ClaimError>),
    /// IPAM failed.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// SMC-R failed, and the pod requires it.
    #[error(transparent)]
    Smc(Box<SmcError>),
    /// The record could not be written.
    #[error(transparent)]
    State(#[from] StoreError),
    /// The result could not be written.
    #[error("cannot write the result to standard output: {0}")]
    Output(std::io::Error),
}

impl From<SmcError> for Cause {
    fn from(error: SmcError) -> Self {
        Self::Smc(Box::new(error))
    }
}

impl From<smcr::apply::Error> for Error {
    fn from(error: smcr::apply::Error) -> Self {
        match error {
            smcr::apply::Error::Smc(error) => error.into(),
            smcr::apply::Error::State(error) => error.into(),
            smcr::apply::Error::Observe(error) => error.into(),
        }
    }
}

impl From<smcr::apply::Error> for Cause {
    fn from(error: smcr::apply::Error) -> Self {
        match error {
            smcr::apply::Error::Smc(error) => error.into(),
            smcr::apply::Error::State(error) => error.into(),
            smcr::apply::Error::Observe(error) => SmcError::from(error).into(),
        }
    }
}

fn outcome(
    left: &Option<Box<Incomplete>>,
    given_up: &[String],
    held: &Option<Box<IpamError>>,
) -> String {
    let devices = match left {
        None if given_up.is_empty() => "the host is as before".into(),
        None => format!(
            "all devices are back on the host, but not fully restored: {}",
            given_up.join("; ")
        ),
        Some(incomplete) => format!("restoring is incomplete: {incomplete}"),
    };
    match held {
        None => devices,
        Some(error) => format!("{devices}, but addresses may still be held: {error}"),
    }
}

fn each(errors: &[Error]) -> String {
    errors
        .iter()
        .map(Error::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
