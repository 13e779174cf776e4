// SPDX-License-Identifier: Apache-2.0
//! Status of `rdma-cni` in the chain.

use conflist::{Called, TYPE};
use std::fmt;

/// Status of `rdma-cni` in the chain: whether the runtime would call it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainStatus {
    /// The daemon has not observed the chain yet.
    #[default]
    Unseen,
    /// The configuration has no chain.
    Off,
    /// The configuration has no chain, but this project added `rdma-cni` to these lists, and has not removed it since.
    Left(Vec<String>),
    /// The runtime would call `rdma-cni`.
    Called(Called),
    /// The runtime would not call `rdma-cni`, for this reason.
    NotCalled(String),
    /// The daemon does not add `rdma-cni`, for this reason.
    Withheld(String),
}

impl ChainStatus {
    /// Returns this status if the runtime calls `rdma-cni` by an existing entry, otherwise `other`.
    pub(super) fn unless_called(self, other: Self) -> Self {
        match self {
            called @ Self::Called(_) => called,
            _ => other,
        }
    }
}

impl fmt::Display for ChainStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen => write!(
                f,
                "the daemon has not checked yet whether the runtime calls {TYPE}"
            ),
            Self::Off => write!(
                f,
                "the daemon does not keep {TYPE} in the chain: its configuration has no chain"
            ),
            Self::Left(files) => write!(
                f,
                "chain is not configured, but install added {TYPE} to {}, and uninstall has not removed it: pods \
                 without hostNetwork may still get rails; end the pods with rails, and run rdma-device-plugin \
                 uninstall",
                files.join(", ")
            ),
            Self::Called(Called {
                file,
                network,
                by_others,
            }) => {
                let whose = if *by_others {
                    ", with an entry that another program wrote"
                } else {
                    ""
                };
                write!(
                    f,
                    "the runtime calls {TYPE} for network {network} ({file}){whose}"
                )
            }
            Self::NotCalled(why) => write!(f, "the runtime does not call {TYPE}: {why}"),
            Self::Withheld(why) => write!(f, "{TYPE} is not added to the chain: {why}"),
        }
    }
}
