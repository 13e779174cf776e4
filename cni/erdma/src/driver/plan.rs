// SPDX-License-Identifier: Apache-2.0
//! Plan of the change from the driver's present mode to the configured mode.

use super::{State, User, mode};
use crate::conf::DriverMode;
use rdma_netns::{DeviceAddress, ErdmaModule};
use std::time::Duration;

/// Plan for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// No change.
    Keep,
    /// Make this change, if no device has a user.
    Change(Change),
    /// No change, because of this problem.
    Problem(Problem),
}

/// A change of the driver's mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Present module, which the change unloads first. `None`: no module is loaded.
    pub from: Option<ErdmaModule>,
    /// Mode after the change.
    pub to: DriverMode,
}

/// Reason why the driver is not loaded in the configured mode, or not bound to all functions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The node has an eRDMA NIC, but the driver is not loaded.
    #[error(
        "the eRDMA driver is not loaded: load it (modprobe erdma), or set preferDriver, and the daemon loads it; if \
         the kernel has no such module, install Alibaba Cloud's driver (erdma_installer)"
    )]
    NotLoaded,
    /// The module cannot be loaded. If it is loaded in another mode, the daemon does not unload it.
    #[error("the eRDMA driver cannot be loaded in mode {wanted}: {why}")]
    NotLoadable {
        /// Configured mode.
        wanted: DriverMode,
        /// Reason, and the package to install.
        why: String,
    },
    /// The driver supports only one mode.
    #[error(
        "the eRDMA driver has no mode {wanted}: it has no parameter compat_mode, like the driver of mainline Linux; \
         install Alibaba Cloud's driver (erdma_installer)"
    )]
    OneMode {
        /// Configured mode.
        wanted: DriverMode,
    },
    /// The mode requires another RDMA stack.
    #[error(
        "mode ofed of the eRDMA driver needs the RDMA stack of MLNX_OFED, whose module mlx_compat \
         is not loaded: install MLNX_OFED, and then the eRDMA driver again"
    )]
    NoOfed,
    /// The configuration forbids a reload.
    #[error(
        "the eRDMA driver is in mode {loaded}, but preferDriver is {wanted}, and reloadDriver is false: reload the \
         driver yourself (modprobe -r erdma; modprobe erdma compat_mode={}), or set reloadDriver to true",
        parameter(*wanted)
    )]
    Forbidden {
        /// Present mode.
        loaded: DriverMode,
        /// Configured mode.
        wanted: DriverMode,
    },
    /// A reload would remove devices that have users.
    #[error(
        "the eRDMA driver stays in mode {loaded}, although preferDriver is {wanted}: drain the node, because the \
         driver's devices are in use by {}",
        listed(users)
    )]
    InUse {
        /// Present mode.
        loaded: DriverMode,
        /// Configured mode.
        wanted: DriverMode,
        /// Users of the devices.
        users: Vec<User>,
    },
    /// The change failed.
    #[error("the eRDMA driver could not be brought into mode {wanted}: {why}")]
    Failed {
        /// Configured mode.
        wanted: DriverMode,
        /// Description of the failure and of the present state.
        why: String,
    },
    /// The driver is loaded, but not bound to some functions.
    #[error("the eRDMA driver is not bound to {function}: {why}{}", also(others))]
    Unbound {
        /// First function without the driver.
        function: DeviceAddress,
        /// Reason, and the remedy.
        why: String,
        /// Further functions without the driver.
        others: Vec<DeviceAddress>,
    },
}

impl Problem {
    /// Returns the problem's value for the metric's label.
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

    /// Returns the time until the next check of a problem that can end without an event. The end of a pod and the
    /// installation of a driver are no events. Returns `None` if the problem only ends with an event.
    pub fn passes(&self, soon: Duration) -> Option<Duration> {
        match self {
            Self::InUse { .. } | Self::Unbound { .. } => Some(soon),
            Self::NotLoadable { .. } => Some(6 * soon),
            _ => None,
        }
    }

    /// Returns true if `other` is the same problem. Ignores details that differ between observations.
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

/// Returns the value of `compat_mode` for `mode`.
pub(super) fn parameter(mode: DriverMode) -> char {
    match mode {
        DriverMode::Default => 'N',
        DriverMode::Compat | DriverMode::Ofed => 'Y',
    }
}

fn listed(users: &[User]) -> String {
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    users.join(", ")
}

fn also(others: &[DeviceAddress]) -> String {
    let others: Vec<&str> = others.iter().map(|it| &**it).collect();
    match others.is_empty() {
        true => String::new(),
        false => format!("; the driver is also not bound to {}", others.join(", ")),
    }
}

/// Plans the change to the mode `wanted` (`None`: any mode). The caller must make the change only if no device has a
/// user. `may_reload` is true if a loaded module may be unloaded.
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

/// Returns true if the loaded mode satisfies the configured mode. A driver in mode `ofed` also satisfies `compat`.
fn is_met(wanted: DriverMode, loaded: DriverMode) -> bool {
    wanted == loaded || (wanted == DriverMode::Compat && loaded == DriverMode::Ofed)
}

impl Change {
    /// Returns the problem that `users` prevent the change. Returns `None` if there are no users, or if the driver is
    /// not loaded: loading it harms no user.
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
