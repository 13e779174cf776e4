// SPDX-License-Identifier: Apache-2.0
//! Status of our plugin in the chain.

use conflist::{Called, TYPE};
use std::fmt;

/// State of our plugin in the chain: whether the runtime would call it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainStatus {
    /// Not observed yet.
    #[default]
    Unseen,
    /// The chain is not configured.
    Off,
    /// The chain is not configured, but `install` has added our plugin to these files, and the plugin may still be
    /// there.
    Left(Vec<String>),
    /// The runtime would call it.
    Called(Called),
    /// The runtime would not call it, for this reason.
    NotCalled(String),
    /// Our plugin is deliberately not added, for this reason.
    Withheld(String),
}

impl ChainStatus {
    /// Returns the status with the reason `why` our plugin is not added. If another program has added our plugin, the
    /// runtime still calls it.
    pub(super) fn withheld(self, why: String) -> Self {
        match self {
            called @ Self::Called(_) => called,
            _ => Self::Withheld(why),
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
                "{TYPE} is not kept in the chain: chain is not configured"
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
