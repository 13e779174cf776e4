// SPDX-License-Identifier: Apache-2.0
//! The program of a container runtime.

use super::{containerd, crio, network::Network, place::Place};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Environment variable that names the runtime of a lab machine. Unset: Debian's containerd.
const ENGINE: &str = "RDMA_LAB_RUNTIME";

/// Environment variable with the directory into which `integration/runtimes/build` has installed the runtime, if it is
/// not Debian's.
const PROGRAMS: &str = "RDMA_LAB_RUNTIME_PROGRAMS";

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Debian 13's containerd 1.7.
    Containerd,
    /// containerd 2.
    Containerd2,
    /// CRI-O.
    Crio,
}

impl Engine {
    /// Returns the runtime of this lab machine.
    #[track_caller]
    pub fn of_the_lab() -> Self {
        match env::var(ENGINE).as_deref() {
            Err(_) => Self::Containerd,
            Ok("containerd") => Self::Containerd2,
            Ok("crio") => Self::Crio,
            Ok(other) => panic!("{ENGINE} is {other:?}: it is containerd, crio, or not set"),
        }
    }

    /// Returns the prefix of a container's id in a pod's status.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Containerd | Self::Containerd2 => "containerd://",
            Self::Crio => "cri-o://",
        }
    }

    /// Returns true if the runtime reads plugins' configurations from a network's own directory at ADD and at DEL, as
    /// libcni 1.3 does. CRI-O does so only at ADD.
    pub fn reads_directories(self) -> bool {
        self == Self::Containerd2
    }

    #[track_caller]
    pub(super) fn programs(self, cache: &Path) -> PathBuf {
        match self {
            Self::Containerd => cache.join("containerd/root/usr/bin"),
            Self::Containerd2 | Self::Crio => {
                let programs = env::var_os(PROGRAMS).map(PathBuf::from);
                programs
                    .unwrap_or_else(|| panic!("{PROGRAMS} is not set: scripts/test lab sets it"))
            }
        }
    }

    #[track_caller]
    pub(super) fn configure(self, place: &Place, network: &Network) {
        match self {
            Self::Containerd => {
                containerd::configure(place, &containerd::version_2(place, network))
            }
            Self::Containerd2 => {
                containerd::configure(place, &containerd::version_3(place, network))
            }
            Self::Crio => crio::configure(place, network),
        }
    }

    /// Returns the command that starts the runtime.
    pub(super) fn command(self, place: &Place) -> Command {
        match self {
            Self::Containerd | Self::Containerd2 => containerd::command(place),
            Self::Crio => crio::command(place),
        }
    }

    #[track_caller]
    pub(super) fn import(self, place: &Place, archive: &Path) -> Command {
        match self {
            Self::Containerd | Self::Containerd2 => containerd::import(place, archive),
            Self::Crio => crio::import(place, archive),
        }
    }
}
