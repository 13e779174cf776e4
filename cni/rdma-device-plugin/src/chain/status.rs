// SPDX-License-Identifier: Apache-2.0
//! How it stands with our plugin's place in the chain.

use conflist::TYPE;
use std::fmt;

/// Whether the runtime would call our plugin now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainStatus {
    /// Nobody has looked yet.
    #[default]
    Unseen,
    /// It is not this program's business.
    Off,
    /// The same, and `install` has put it into these files, where it still may be.
    Left(Vec<String>),
    /// It would.
    Called {
        /// The file's name.
        file: String,
        /// The network's name.
        network: String,
        /// Whether somebody else put it there.
        by_others: bool,
    },
    /// It would not: why, in a sentence.
    NotCalled(String),
    /// It would not, and is not to: why, in a sentence.
    Withheld(String),
}

impl ChainStatus {
    /// The same where our plugin is not put in, and why; somebody else may have done that.
    pub(super) fn withheld(self, why: String) -> Self {
        match self {
            called @ Self::Called { .. } => called,
            _ => Self::Withheld(why),
        }
    }
}

impl fmt::Display for ChainStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen => write!(
                f,
                "it is not known yet whether the runtime calls {TYPE}: nobody has looked so far"
            ),
            Self::Off => write!(
                f,
                "{TYPE} is not kept in the chain: chain is not configured"
            ),
            Self::Left(files) => write!(
                f,
                "chain is not configured, but install has put {TYPE} into {}, and uninstall has not taken it out: \
                 where it still is, pods without hostNetwork get rails as before; end those that have some, and run \
                 rdma-device-plugin uninstall",
                files.join(", ")
            ),
            Self::Called {
                file,
                network,
                by_others,
            } => {
                let whose = if *by_others {
                    ", as somebody else configured it"
                } else {
                    ""
                };
                write!(
                    f,
                    "the runtime calls {TYPE} for network {network} ({file}){whose}"
                )
            }
            Self::NotCalled(why) => write!(f, "the runtime does not call {TYPE}: {why}"),
            Self::Withheld(why) => write!(f, "{TYPE} is not put into the chain: {why}"),
        }
    }
}
