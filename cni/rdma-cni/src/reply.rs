//! From errors to CNI error codes, and onto standard output.

use crate::{
    apply::ApplyError,
    conf::ConfError,
    error::{Cause, Error},
    plan::Obstacle,
    select::SelectError,
};
use nix::libc;
use rdma_netns::{Op, OpError};
use serde_json::{Value, json};
use std::io::{self, Write};

/// CNI's own codes (specification, section 5, "Error").
mod code {
    pub(super) const INCOMPATIBLE_VERSION: u32 = 1;
    pub(super) const UNSUPPORTED_FIELD: u32 = 2;
    pub(super) const ENVIRONMENT: u32 = 4;
    pub(super) const IO: u32 = 5;
    pub(super) const UNDECODABLE: u32 = 6;
    pub(super) const CONFIGURATION: u32 = 7;
    pub(super) const NOT_AVAILABLE: u32 = 50;
    pub(super) const LIMITED: u32 = 51;
    pub(super) const NO_SUCH_DEVICE: u32 = 100;
    pub(super) const DEVICE_IN_USE: u32 = 101;
    pub(super) const WRONG_MODE: u32 = 102;
    pub(super) const IPAM: u32 = 104;
    pub(super) const STATE: u32 = 105;
    pub(super) const RESTORED: u32 = 106;
    pub(super) const INCOMPLETE: u32 = 107;
    /// What the reference plugins answer to a CHECK that found something.
    pub(super) const INTERNAL: u32 = 999;
}

/// The CNI error code of `error`.
pub fn code(error: &Error) -> u32 {
    match error {
        Error::Environment(_) | Error::Netns(_) => code::ENVIRONMENT,
        Error::Conf(ConfError::NotJson(_)) => code::UNDECODABLE,
        Error::Conf(ConfError::Version(_)) | Error::VerbOfVersion { .. } => {
            code::INCOMPATIBLE_VERSION
        }
        Error::Conf(ConfError::Unsupported { .. }) => code::UNSUPPORTED_FIELD,
        Error::Conf(ConfError::Value { .. } | ConfError::Missing { .. }) => code::CONFIGURATION,
        Error::Select(error) => select(error),
        Error::Exists(_) => code::DEVICE_IN_USE,
        Error::State(_) | Error::Forget(_) | Error::Newer { .. } | Error::Unreadable(_) => {
            code::STATE
        }
        Error::Observe(_) | Error::Output(_) => code::IO,
        Error::Obstacle(Obstacle::Vanished { .. }) => code::NO_SUCH_DEVICE,
        Error::Obstacle(Obstacle::NotHome { .. }) => code::DEVICE_IN_USE,
        Error::Obstacle(_) => code::CONFIGURATION,
        Error::Ipam(_) | Error::Release(_) => code::IPAM,
        Error::Add { left: Some(_), .. } | Error::Incomplete(_) => code::INCOMPLETE,
        Error::Add { cause, left: None } => match cause {
            Cause::Ipam(_) => code::IPAM,
            Cause::Apply(ApplyError::Op(error)) if cannot_move(error) => code::WRONG_MODE,
            Cause::Apply(_) | Cause::State(_) => code::RESTORED,
            Cause::Output(_) => code::IO,
        },
        Error::Drift(_) => code::INTERNAL,
        Error::NotReady { limited: false, .. } => code::NOT_AVAILABLE,
        Error::NotReady { limited: true, .. } => code::LIMITED,
        Error::Of { source, .. } => self::code(source),
        Error::Several(errors) => errors
            .iter()
            .map(self::code)
            .max()
            .unwrap_or(code::INTERNAL),
    }
}

fn select(error: &SelectError) -> u32 {
    match error {
        SelectError::NotFound(_) | SelectError::NoRdma(_) => code::NO_SUCH_DEVICE,
        SelectError::InUse { .. } | SelectError::Elsewhere(_) => code::DEVICE_IN_USE,
        SelectError::NoSubsystem | SelectError::WrongMode(_) | SelectError::CannotMove { .. } => {
            code::WRONG_MODE
        }
        SelectError::NameTaken(_) | SelectError::NameWithoutNumber { .. } => code::CONFIGURATION,
    }
}

/// Whether the kernel says that this RDMA device cannot be moved at all: `EOPNOTSUPP` of
/// `rdma_dev_change_netns()` (`drivers/infiniband/core/device.c`).
fn cannot_move(error: &OpError) -> bool {
    matches!(*error.op, Op::MoveRdma { .. }) && error.errno() == Some(libc::EOPNOTSUPP)
}

/// What a person can do about it, where that is known.
fn remedy(error: &Error) -> Option<&'static str> {
    match error {
        Error::Add {
            cause: Cause::Apply(ApplyError::Op(error)),
            ..
        } if cannot_move(error) => Some(
            "the RDMA subsystem left exclusive mode, or this driver cannot be moved (it lacks \
                 disassociate_ucontext, as rxe does): check `rdma system`, or attach the device \
                 without moving it",
        ),
        _ => None,
    }
}

/// The error object for `error`.
pub fn error(version: &str, error: &Error) -> Value {
    let mut object = json!({
        "cniVersion": version,
        "code": code(error),
        "msg": error.to_string(),
    });
    if let Some(remedy) = remedy(error) {
        object["details"] = remedy.into();
    }
    object
}

/// Writes `value` to `output`, and does not return before it is there.
pub fn write(output: &mut dyn Write, value: &Value) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    output.write_all(&text)?;
    output.flush()
}
