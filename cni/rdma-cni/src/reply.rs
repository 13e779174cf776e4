// SPDX-License-Identifier: Apache-2.0
//! Assigns CNI error codes to errors.

use crate::{
    apply::ApplyError,
    error::{Cause, Error},
    kubelet::KubeletError,
};
use cni_protocol::{Failure, code};
use network_conf::IbKubernetesError;
use nix::libc;
use plan::{Obstacle, select::SelectError};
use rdma_netns::{Op, OpError};
use smcr::apply::SmcError;

/// The plugin's own error codes, which its documentation promises.
mod own {
    pub(super) const NO_SUCH_DEVICE: u32 = 100;
    pub(super) const DEVICE_IN_USE: u32 = 101;
    pub(super) const WRONG_MODE: u32 = 102;
    pub(super) const POD_RESOURCES: u32 = 103;
    pub(super) const IPAM: u32 = 104;
    pub(super) const STATE: u32 = 105;
    pub(super) const RESTORED: u32 = 106;
    pub(super) const INCOMPLETE: u32 = 107;
}

/// Returns the CNI error code of `error`.
pub fn code(error: &Error) -> u32 {
    match error {
        Error::Environment(error) => error.code(),
        Error::Netns(_) => code::ENVIRONMENT,
        Error::Conf(error) => error.code(),
        Error::IbKubernetes(IbKubernetesError::Pending) => code::TRY_LATER,
        Error::IbKubernetes(IbKubernetesError::NoGuid) => code::CONFIGURATION,
        Error::Kubelet(error) => kubelet(error),
        Error::Select(error) => select(error),
        Error::Exists(_) => own::DEVICE_IN_USE,
        Error::State(error) | Error::Unfinished(error) if error.is_held() => code::TRY_LATER,
        Error::State(_)
        | Error::Forget(_)
        | Error::RetainedAddresses(_)
        | Error::Newer { .. }
        | Error::Unreadable(_) => own::STATE,
        Error::Observe(_) | Error::Output(_) | Error::Smc(SmcError::Observe(_)) => code::IO,
        Error::Smc(_) => own::WRONG_MODE,
        Error::Obstacle(
            Obstacle::Vanished { .. } | Obstacle::NoNetdev { .. } | Obstacle::ParentDown { .. },
        ) => own::NO_SUCH_DEVICE,
        Error::Obstacle(Obstacle::InAnotherNetns { .. } | Obstacle::Held { .. }) => {
            own::DEVICE_IN_USE
        }
        Error::Obstacle(Obstacle::HasSubDevice { .. }) => own::WRONG_MODE,
        Error::Obstacle(_) => code::CONFIGURATION,
        Error::Ipam(_) | Error::Release(_) => own::IPAM,
        Error::Add { left: Some(_), .. } | Error::Incomplete(_) | Error::Unfinished(_) => {
            own::INCOMPLETE
        }
        Error::Add {
            cause,
            left: None,
            held,
            ..
        } => match cause {
            Cause::Ipam(_) => own::IPAM,
            _ if held.is_some() => own::INCOMPLETE,
            Cause::State(error) if error.is_held() => code::TRY_LATER,
            Cause::Apply(ApplyError::Op(error)) if cannot_move(error) => own::WRONG_MODE,
            Cause::Apply(_)
            | Cause::CharDevice(_)
            | Cause::Claim(_)
            | Cause::Smc(_)
            | Cause::State(_) => own::RESTORED,
            Cause::Output(_) => code::IO,
        },
        Error::Drift(_) => code::INTERNAL,
        Error::NotReady { limited: false, .. } => code::NOT_AVAILABLE,
        Error::NotReady { limited: true, .. } => code::LIMITED,
        Error::Of { source, .. } | Error::Recorded { error: source, .. } => self::code(source),
        Error::Several(errors) => errors
            .iter()
            .map(self::code)
            .max()
            .unwrap_or(code::INTERNAL),
    }
}

/// Returns code 11 ("try again") for temporary errors, and other codes for errors that need an administrator.
fn kubelet(error: &KubeletError) -> u32 {
    match error {
        KubeletError::Nameless => code::CONFIGURATION,
        KubeletError::Ask { source } if !source.passes() => own::POD_RESOURCES,
        KubeletError::Ask { .. } | KubeletError::Unknown { .. } => code::TRY_LATER,
        KubeletError::File(_) => own::STATE,
        KubeletError::Allocation(_) => own::NO_SUCH_DEVICE,
    }
}

fn select(error: &SelectError) -> u32 {
    match error {
        SelectError::NotFound(_)
        | SelectError::PassedOver { .. }
        | SelectError::Allocation(_)
        | SelectError::NoParent { .. }
        | SelectError::NoNetdev { .. }
        | SelectError::NoRdma(_)
        | SelectError::NotMoved(_) => own::NO_SUCH_DEVICE,
        SelectError::InUse { .. } | SelectError::Elsewhere(_) => own::DEVICE_IN_USE,
        SelectError::NoSubsystem
        | SelectError::WrongMode(_)
        | SelectError::Exclusive(_)
        | SelectError::CannotShare { .. }
        | SelectError::NeededByHost { .. }
        | SelectError::Below { .. }
        | SelectError::NoText(_)
        | SelectError::CannotMove { .. } => own::WRONG_MODE,
        SelectError::NameTaken(_)
        | SelectError::NameWithoutNumber { .. }
        | SelectError::NoSuchRail { .. }
        | SelectError::NotInPartition { .. }
        | SelectError::CannotSetUp { .. } => code::CONFIGURATION,
    }
}

/// Returns true if the kernel cannot move this RDMA device at all: `EOPNOTSUPP` of `rdma_dev_change_netns()`
/// (`drivers/infiniband/core/device.c`).
fn cannot_move(error: &OpError) -> bool {
    matches!(*error.op, Op::MoveRdma { .. }) && error.errno() == Some(libc::EOPNOTSUPP)
}

/// Returns a remedy for the administrator. Returns `None` if none is known.
fn remedy(error: &Error) -> Option<&'static str> {
    match error {
        Error::Add {
            cause: Cause::Apply(ApplyError::Op(error)),
            ..
        } if cannot_move(error) => Some(
            "the RDMA subsystem left exclusive mode, or the driver supports no move (it lacks disassociate_ucontext, \
             like rxe): check `rdma system`, or attach the device without moving it",
        ),
        _ => None,
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            code: code(error),
            message: error.to_string(),
            details: remedy(error),
        }
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
