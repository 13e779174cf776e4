// SPDX-License-Identifier: Apache-2.0
//! Errors of the verbs. [`crate::reply`] assigns the CNI codes.

use crate::{
    apply::{ApplyError, Incomplete},
    char_devices::CharDeviceError,
    ipam::IpamError,
    kubelet::KubeletError,
};
use attachments::{Key, store::StoreError};
use cni_protocol::{ConfError, EnvironmentError};
use network_conf::IbKubernetesError;
use plan::{Obstacle, select::SelectError};
use rdma_netns::{ObserveError, OpenPodError};
use rdma_resources::FileError;
use smcr::apply::SmcError;

/// The error with which a verb fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment is invalid.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The output could not be written. The verb changed nothing.
    #[error("cannot write the answer to standard output: {0}")]
    Output(std::io::Error),
    /// The namespace at `CNI_NETNS` cannot be opened.
    #[error("CNI_NETNS: {0}")]
    Netns(#[from] OpenPodError),
    /// The configuration is invalid.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The data from ib-kubernetes are wrong.
    #[error(transparent)]
    IbKubernetes(#[from] IbKubernetesError),
    /// Kubelet's allocation cannot be read.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// The devices cannot be selected.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// ADD was called for an attachment that exists already.
    #[error("{0} is attached already: call DEL before another ADD")]
    Exists(String),
    /// The state directory cannot be used. The verb changed nothing.
    #[error("{0}; nothing was changed")]
    State(StoreError),
    /// The state directory failed during a restore, so the restore is incomplete.
    #[error("{0}; the restore is incomplete, and the record stays: try again")]
    Unfinished(StoreError),
    /// The devices are restored, but the verb could not remove, rename or update the record.
    #[error("everything is back on the host, but {0}")]
    Forget(StoreError),
    /// A later version wrote the record. This version leaves the record unchanged.
    #[error(
        "the record of {key} has format {format}, which a newer rdma-cni wrote: use that rdma-cni"
    )]
    Newer {
        /// Key of the record.
        key: Key,
        /// Format of the record.
        format: u64,
    },
    /// GC found a record that cannot be read.
    #[error("its record cannot be read ({0}): DEL restores its devices to the host")]
    Unreadable(String),
    /// GC could not determine the addresses that the IPAM plugin must keep.
    #[error("{0}; therefore GC did not call the IPAM plugin")]
    RetainedAddresses(StoreError),
    /// The kernel's state could not be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// An obstacle makes every plan impossible. The verb changed nothing.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// SMC-R failed. The verb changed nothing.
    #[error("{0}; nothing was changed")]
    Smc(#[from] SmcError),
    /// ADD failed before its first change, and its record could not be removed.
    #[error(
        "{error}; in addition, the attachment's record could not be removed and stays until DEL: {left}"
    )]
    Recorded {
        /// Reason why ADD failed.
        error: Box<Error>,
        /// Reason why the record could not be removed.
        left: StoreError,
    },
    /// IPAM failed. No device is affected.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// ADD failed after its first change.
    #[error("{cause}; {}", outcome(left, given_up, held))]
    Add {
        /// Reason why ADD failed.
        cause: Cause,
        /// Reasons why the restore is incomplete.
        left: Option<Box<Incomplete>>,
        /// Attributes that the restored devices lack, one sentence for each.
        given_up: Box<[String]>,
        /// Reason why IPAM may still have addresses assigned to the pod.
        held: Option<Box<IpamError>>,
    },
    /// The restore is incomplete.
    #[error("restoring is incomplete: {0}")]
    Incomplete(#[from] Incomplete),
    /// The devices are restored, but the addresses could not be released.
    #[error(
        "devices are back on the host, but the IPAM plugin may still have addresses assigned to the pod: {0}"
    )]
    Release(IpamError),
    /// CHECK found differences, one sentence for each.
    #[error("{}", .0.join("; "))]
    Drift(Vec<String>),
    /// Result of STATUS: ADD would fail.
    #[error("ADD cannot work: {}", reasons.join("; "))]
    NotReady {
        /// True if running pods are affected too: the IPAM plugin reported code 51.
        limited: bool,
        /// Reasons, one sentence for each.
        reasons: Vec<String>,
    },
    /// The error of one attachment. A verb can handle several attachments.
    #[error("{key}: {source}")]
    Of {
        /// The attachment.
        key: Key,
        /// The attachment's error.
        source: Box<Error>,
    },
    /// The errors of several attachments.
    #[error("{}", each(.0))]
    Several(Vec<Error>),
}

/// Reason why ADD failed after its first change.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A change or an observation failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A container of the pod would get another device than kubelet promised, or none.
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
    /// The state directory cannot be used, for example to write the record or the rails file.
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
            smcr::apply::Error::State(error) => Self::State(error),
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
        Some(error) => format!(
            "{devices}, but the IPAM plugin may still have addresses assigned to the pod: {error}"
        ),
    }
}

fn each(errors: &[Error]) -> String {
    errors
        .iter()
        .map(Error::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// `rdma-cni` cannot write the CDI specification of a claim. The runtime then refuses to create the claim's container.
#[derive(Debug, thiserror::Error)]
#[error("the CDI specification of claim {uid} cannot be written: {source}")]
pub struct ClaimError {
    /// The claim's uid.
    pub(crate) uid: String,
    /// Reason.
    pub(crate) source: FileError,
}
