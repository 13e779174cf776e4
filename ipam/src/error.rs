// SPDX-License-Identifier: Apache-2.0
//! What a verb can fail with, and which CNI code that is.

use crate::{
    forbidden::Why,
    parent::ParentError,
    secret::SecretError,
    store::{Lease, Owner, StoreError},
};
use cni_protocol::{ConfError, EnvironmentError, Failure, code};
use rdma_netns::ObserveError;
use std::{io, net::IpAddr, path::PathBuf};

/// The plugin's own codes, promised in its documentation.
pub mod own {
    /// The attachment has addresses already.
    pub const HOLDS: u32 = 100;
    /// The parent netdev has no prefix to give addresses from.
    pub const PARENT: u32 = 101;
    /// ADD failed, and what it had given may still be held.
    pub const STILL_HELD: u32 = 102;
}

/// A verb's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The configuration.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The data directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node's secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The host's addresses.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The parent's prefixes.
    #[error(transparent)]
    Parent(#[from] ParentError),
    /// `master` names nothing.
    #[error("master: this host has no netdev {0:?}, and masterAddresses are not told")]
    NoSuchParent(String),
    /// `resolvConf`
    #[error("ipam.resolvConf: cannot read {path:?}: {source}")]
    ResolvConf {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A requested address that no pod ever gets.
    #[error("the requested address {ip} is {why}, which no pod gets: ask for another one")]
    Forbidden {
        /// Which.
        ip: IpAddr,
        /// What it is.
        why: Why,
    },
    /// A requested address that is in no range.
    #[error("the requested address {ip} is not in {pools}, where addresses are given from")]
    Outside {
        /// Which.
        ip: IpAddr,
        /// All ranges.
        pools: String,
    },
    /// Two requested addresses of one range set.
    #[error(
        "the requested addresses {} are of one range set, {pool}, which gives one address",
        ips.map(|ip| ip.to_string()).join(" and ")
    )]
    Several {
        /// Both.
        ips: [IpAddr; 2],
        /// The set.
        pool: String,
    },
    /// A requested address that is held.
    #[error("the requested address {ip} is held by {holder}; it is free after that one's DEL")]
    Taken {
        /// Which.
        ip: IpAddr,
        /// By whom.
        holder: Lease,
    },
    /// A requested address that another machine uses.
    #[error(
        "the requested address {0} is in use by another machine, as duplicate address detection found"
    )]
    Conflict(IpAddr),
    /// No address is left.
    #[error("no address is free in {pool}: {held} are held, the rest is never given out")]
    Exhausted {
        /// The ranges.
        pool: String,
        /// How many of their addresses are held.
        held: usize,
    },
    /// ADD for an attachment that has addresses.
    #[error(
        "{owner} holds {} already; it needs a DEL before another ADD",
        list(ips)
    )]
    Holds {
        /// Whose.
        owner: Owner,
        /// Which.
        ips: Vec<IpAddr>,
    },
    /// CHECK found differences, a sentence each.
    #[error("{}", .0.join("; "))]
    Drift(Vec<String>),
    /// STATUS: ADD would fail.
    #[error("ADD cannot work: {}", .0.join("; "))]
    NotReady(Vec<String>),
    /// GC: what could not be freed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Sweep(Vec<StoreError>),
    /// The answer could not be given.
    #[error("cannot write the answer to standard output: {0}")]
    Output(io::Error),
    /// ADD failed when it had its addresses; they are free again.
    #[error("{cause}; the addresses are given back")]
    TakenBack {
        /// Why.
        cause: Box<Error>,
    },
    /// ADD failed when it had its addresses; they are held, or are so again after a loss of power.
    #[error(
        "{cause}; nor could {} be given back, which DEL or GC does: {source}",
        list(ips)
    )]
    StillHeld {
        /// Why.
        cause: Box<Error>,
        /// Which.
        ips: Vec<IpAddr>,
        /// Why they are.
        source: StoreError,
    },
}

/// Addresses in words.
pub fn list(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    ips.join(", ")
}

impl Error {
    /// Its CNI error code.
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
            details: None,
        }
    }
}
