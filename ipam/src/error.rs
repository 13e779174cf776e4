// SPDX-License-Identifier: Apache-2.0
//! The errors of the verbs, and their CNI codes.

use crate::{
    forbidden::Why,
    parent::ParentError,
    secret::SecretError,
    store::{Lease, Owner, ReserveError, StoreError},
};
use cni_protocol::{ConfError, EnvironmentError, Failure, code};
use rdma_netns::ObserveError;
use std::{io, net::IpAddr, path::PathBuf};

/// The plugin's own error codes. Its documentation promises them.
pub mod own {
    /// The attachment already has addresses.
    pub const HOLDS: u32 = 100;
    /// The parent netdev has no prefix from which addresses can be assigned.
    pub const PARENT: u32 = 101;
    /// ADD failed, and its addresses may still be leased.
    pub const STILL_HELD: u32 = 102;
}

/// The error with which a verb fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment is invalid.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The configuration is invalid.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The data directory cannot be read or written, or its lock is held until the time limit.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node's secret cannot be read or made.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The host's addresses cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The parent netdev has no usable prefix.
    #[error(transparent)]
    Parent(#[from] ParentError),
    /// The host has no netdev named `master`.
    #[error("master: this host has no netdev {0:?}, and masterAddresses is missing")]
    NoSuchParent(String),
    /// `resolvConf` cannot be read.
    #[error("ipam.resolvConf: cannot read {path:?}: {source}")]
    ResolvConf {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// No pod may get the requested address.
    #[error("the requested address {ip} is {why}: no pod gets it; request another one")]
    Forbidden {
        /// Requested address.
        ip: IpAddr,
        /// Reason.
        why: Why,
    },
    /// No range contains the requested address.
    #[error("the requested address {ip} is not in {pools}")]
    Outside {
        /// Requested address.
        ip: IpAddr,
        /// All ranges.
        pools: String,
    },
    /// One range set contains two requested addresses. It assigns only one address.
    #[error(
        "the requested addresses {} are in one range set, {pool}, which assigns one address",
        ips.map(|ip| ip.to_string()).join(" and ")
    )]
    Several {
        /// Requested addresses.
        ips: [IpAddr; 2],
        /// Range set.
        pool: String,
    },
    /// An attachment already has the requested address.
    #[error(
        "the requested address {ip} is held by {holder}; retry when the address is free, or request another one"
    )]
    Taken {
        /// Requested address.
        ip: IpAddr,
        /// Lease of the address.
        holder: Lease,
    },
    /// Another machine uses the requested address.
    #[error(
        "the requested address {0} is in use by another machine, as duplicate address detection found; request another \
         one, or retry in an hour"
    )]
    Conflict(IpAddr),
    /// No address is free.
    #[error(
        "no address is free in {pool}: {held} addresses are in use, and the others are never assigned"
    )]
    Exhausted {
        /// Ranges.
        pool: String,
        /// Number of unavailable addresses.
        held: usize,
    },
    /// ADD was called for an attachment that already has addresses.
    #[error("{owner} already has {}: call DEL before another ADD", list(ips))]
    Holds {
        /// Attachment.
        owner: Owner,
        /// Held addresses.
        ips: Vec<IpAddr>,
    },
    /// CHECK found differences, one sentence for each.
    #[error("{}", .0.join("; "))]
    Drift(Vec<String>),
    /// Result of STATUS: ADD would fail.
    #[error("ADD cannot work: {}", .0.join("; "))]
    NotReady(Vec<String>),
    /// GC could not remove all leases.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Sweep(Vec<StoreError>),
    /// The result cannot be written.
    #[error("cannot write the answer to standard output: {0}")]
    Output(io::Error),
    /// ADD failed after it had assigned addresses, and it has released them.
    #[error("{cause}; the addresses are released")]
    TakenBack {
        /// Reason of the failure.
        cause: Box<Error>,
    },
    /// ADD failed after it had assigned addresses. The addresses are still leased, or a power loss can restore their
    /// leases.
    #[error(
        "{cause}; DEL or GC will release {}, because ADD could not: {source}",
        list(ips)
    )]
    StillHeld {
        /// Reason of the failure.
        cause: Box<Error>,
        /// Addresses that may still be leased.
        ips: Vec<IpAddr>,
        /// Reason why they could not be released.
        source: StoreError,
    },
}

/// Returns `ips`, separated by commas.
pub fn list(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    ips.join(", ")
}

impl Error {
    /// Returns the CNI error code.
    pub fn code(&self) -> u32 {
        match self {
            Self::Environment(error) => error.code(),
            Self::Conf(error) => error.code(),
            Self::Store(error) if error.is_held() => code::TRY_LATER,
            Self::Store(_)
            | Self::Secret(_)
            | Self::Observe(_)
            | Self::ResolvConf { .. }
            | Self::Sweep(_) => code::IO,
            Self::NoSuchParent(_)
            | Self::Forbidden { .. }
            | Self::Outside { .. }
            | Self::Several { .. } => code::CONFIGURATION,
            Self::Taken { .. } | Self::Conflict(_) | Self::Exhausted { .. } => code::TRY_LATER,
            Self::Parent(_) => own::PARENT,
            Self::Holds { .. } => own::HOLDS,
            Self::Drift(_) => code::INTERNAL,
            Self::NotReady(_) => code::NOT_AVAILABLE,
            Self::Output(_) => code::IO,
            Self::TakenBack { cause } => cause.code(),
            Self::StillHeld { .. } => own::STILL_HELD,
        }
    }
}

impl From<ReserveError> for Error {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Undone(cause) => Self::Store(cause),
            ReserveError::StillHeld { cause, ips, source } => Self::StillHeld {
                cause: Box::new(Self::Store(cause)),
                ips,
                source,
            },
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error)
    }
}
