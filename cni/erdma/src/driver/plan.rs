// SPDX-License-Identifier: Apache-2.0
//! From the mode that the driver is in to the one that is wanted.

use super::{State, User, mode};
use crate::conf::DriverMode;
use rdma_netns::{DeviceAddress, ErdmaModule};
use std::time::Duration;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Keep,
    /// This, if nobody uses a device.
    Change(Change),
    /// It cannot be as it should.
    Problem(Problem),
}

/// A change of the driver's mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The module as it is, to be unloaded; none: it is not loaded.
    pub from: Option<ErdmaModule>,
    /// The mode that it is to be in.
    pub to: DriverMode,
}

/// Why the driver is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is a NIC, and no driver for it.
    #[error(
        "the eRDMA driver is not loaded: load it (modprobe erdma), or say by preferDriver in which \
         mode; where the kernel has none, install Alibaba Cloud's (erdma_installer)"
    )]
    NotLoaded,
    /// The module cannot be loaded, or not again if it were unloaded.
    #[error("mode {wanted} of the eRDMA driver needs its module to be loaded, and {why}")]
    NotLoadable {
        /// The mode that is wanted.
        wanted: DriverMode,
        /// Why not, and what to install.
        why: String,
    },
    /// The driver has one mode only.
    #[error(
        "the eRDMA driver has no mode {wanted}: it has no parameter compat_mode, as that of \
         mainline Linux; install Alibaba Cloud's (erdma_installer)"
    )]
    OneMode {
        /// The mode that is wanted.
        wanted: DriverMode,
    },
    /// Another RDMA stack would be needed.
    #[error(
        "mode ofed of the eRDMA driver needs the RDMA stack of MLNX_OFED, whose module mlx_compat \
         is not loaded: install MLNX_OFED, and then the eRDMA driver anew"
    )]
    NoOfed,
    /// The configuration forbids it.
    #[error(
        "the eRDMA driver is in mode {loaded}, and {wanted} is wanted: reloadDriver is false, so \
         load it anew (modprobe -r erdma; modprobe erdma compat_mode={})",
        parameter(*wanted)
    )]
    Forbidden {
        /// The mode that it is in.
        loaded: DriverMode,
        /// The mode that is wanted.
        wanted: DriverMode,
    },
    /// This would take devices away from who has them.
    #[error(
        "the eRDMA driver stays in mode {loaded}, though {wanted} is wanted, as its devices are in \
         use: drain the node of {}",
        told(users)
    )]
    InUse {
        /// The mode that it is in.
        loaded: DriverMode,
        /// The mode that is wanted.
        wanted: DriverMode,
        /// By whom.
        users: Vec<User>,
    },
    /// It was tried.
    #[error("the eRDMA driver could not be brought into mode {wanted}: {why}")]
    Failed {
        /// The mode that is wanted.
        wanted: DriverMode,
        /// What failed, and how it is now.
        why: String,
    },
    /// The driver is loaded, and not bound to some functions.
    #[error("the eRDMA driver is not bound to {function}: {why}{}", also(others))]
    Unbound {
        /// The first one.
        function: DeviceAddress,
        /// Why not, and what ends it.
        why: String,
        /// The other ones.
        others: Vec<DeviceAddress>,
    },
}

impl Problem {
    /// The word that metrics have for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotLoaded => "not_loaded",
            Self::NotLoadable { .. } => "not_loadable",
            Self::OneMode { .. } => "one_mode",
            Self::NoOfed => "no_ofed",
            Self::Forbidden { .. } => "forbidden",
            Self::InUse { .. } => "in_use",
            Self::Failed { .. } => "failed",
            Self::Unbound { .. } => "unbound",
        }
    }

    /// How long it is before it may have passed without anything being heard of it: pods end, and
    /// drivers are installed, without a word to us. None: it does not pass so.
    pub fn passes(&self, soon: Duration) -> Option<Duration> {
        match self {
            Self::InUse { .. } | Self::Unbound { .. } => Some(soon),
            Self::NotLoadable { .. } => Some(6 * soon),
            _ => None,
        }
    }

    /// Whether it is the same, in whatever differs from one look to the next.
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }

    fn kind(&self) -> Self {
        let mut kind = self.clone();
        if let Self::InUse { users, .. } = &mut kind {
            *users = users.iter().map(User::kind).collect();
            users.sort();
            users.dedup();
        }
        kind
    }
}

/// The value of `compat_mode` for a mode.
pub(super) fn parameter(mode: DriverMode) -> char {
    match mode {
        DriverMode::Default => 'N',
        DriverMode::Compat | DriverMode::Ofed => 'Y',
    }
}

fn told(users: &[User]) -> String {
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    users.join(", ")
}

fn also(others: &[DeviceAddress]) -> String {
    let others: Vec<&str> = others.iter().map(|it| &**it).collect();
    match others.is_empty() {
        true => String::new(),
        false => format!("; the same goes for {}", others.join(", ")),
    }
}

/// How the driver comes into the mode `wanted` (none: any). A change is for when nobody uses a
/// device, and `may_reload` forbids that of a loaded module.
pub fn plan(wanted: Option<DriverMode>, state: &State, may_reload: bool) -> Plan {
    let Some(module) = state.module else {
        return match wanted {
            _ if state.functions == 0 => Plan::Keep,
            None => Plan::Problem(Problem::NotLoaded),
            Some(to) => Plan::Change(Change { from: None, to }),
        };
    };
    let loaded = mode(&module);
    let Some(wanted) = wanted.filter(|wanted| !is_met(*wanted, loaded)) else {
        return Plan::Keep;
    };
    if module.compat.is_none() {
        return Plan::Problem(Problem::OneMode { wanted });
    }
    if wanted == DriverMode::Ofed && !module.ofed {
        return Plan::Problem(Problem::NoOfed);
    }
    if !may_reload {
        return Plan::Problem(Problem::Forbidden { loaded, wanted });
    }
    if !state.holders.is_empty() {
        let users = state.holders.iter().cloned().map(User::Module);
        return Plan::Problem(Problem::InUse {
            loaded,
            wanted,
            users: users.collect(),
        });
    }
    Plan::Change(Change {
        from: Some(module),
        to: wanted,
    })
}

/// The driver of MLNX_OFED's stack in compatible mode is both.
fn is_met(wanted: DriverMode, loaded: DriverMode) -> bool {
    wanted == loaded || (wanted == DriverMode::Compat && loaded == DriverMode::Ofed)
}

impl Change {
    /// Why it is not to be made while there are `users`; none: they are none. Loading what is not
    /// loaded takes nothing from anybody.
    pub fn hindered(&self, users: Vec<User>) -> Option<Problem> {
        let loaded = mode(self.from.as_ref()?);
        let wanted = self.to;
        (!users.is_empty()).then_some(Problem::InUse {
            loaded,
            wanted,
            users,
        })
    }
}
