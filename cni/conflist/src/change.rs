// SPDX-License-Identifier: Apache-2.0
//! Changes of the CNI directory, and the reasons against them.

use crate::{
    IPAM, TYPE,
    list::{Broken, Refused},
    programs::{either, joined},
};
use std::{collections::BTreeSet, path::PathBuf};

/// One change of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes a file, and replaces an existing file.
    Write {
        /// Name of the file.
        file: String,
        /// New text of the whole file.
        text: String,
        /// The file from which the text was made. The new file gets this file's mode and owner. For a file in a
        /// network's own directory, this is the network's list.
        like: String,
    },
    /// Removes a file.
    Remove {
        /// Name of the file.
        file: String,
    },
}

impl Change {
    /// Returns the change that replaces the text of `file` by `text`.
    pub(crate) fn rewrite(file: &str, text: String) -> Self {
        Self::Write {
            file: file.to_owned(),
            text,
            like: file.to_owned(),
        }
    }
}

/// The reason why the daemon cannot make the runtime call our plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The directory has no network configuration that the runtime uses.
    #[error(
        "there is no network configuration yet; the daemon adds {TYPE} when there is one; without the daemon, run \
         install again after you have added a network"
    )]
    Empty,
    /// No network has the configured name, by which the runtime chooses a network.
    #[error(
        "no network in the directory is named {network:?} (networks there: {}); create it (podman network \
         create, nerdctl network create), or correct chain.network, and run install again",
        listed(.names)
    )]
    NoNetwork {
        /// The configured name.
        network: String,
        /// Names of the existing networks.
        names: Vec<String>,
    },
    /// The runtime cannot use the file.
    #[error("the runtime cannot use {file}: {why}; correct or remove that file")]
    Broken {
        /// Name of the file.
        file: String,
        /// Defect of the file.
        why: Broken,
    },
    /// Our entry cannot be added to the file that the runtime uses, or to the network's own directory.
    #[error("rdma-device-plugin does not change {file}: {why}")]
    Refused {
        /// Name of the file.
        file: String,
        /// Reason.
        why: Refused,
    },
    /// A program that the list names is missing in all plugin directories that this project knows. So the runtime
    /// probably uses other directories.
    #[error(
        "{file} names {}, not in {}: the runtime uses other plugin directories, or the network is incomplete; see \
         bin_dir or bin_dirs of `containerd config dump`, plugin_dirs of `crio config`, or cni_plugin_dirs of podman's \
         containers.conf, and install with --cni-bin-dir for each directory (the chart's chain.binDir); install writes \
         rdma-cni and rdma-ipam into the first directory: run uninstall before you make another directory the first \
         one",
        joined(.programs),
        either(.dirs)
    )]
    Elsewhere {
        /// Name of the file with the list.
        file: String,
        /// Plugin types that have no program.
        programs: BTreeSet<String>,
        /// Plugin directories.
        dirs: Vec<PathBuf>,
    },
    /// A program that our entry needs is missing.
    #[error("{} not in {}, where the runtime looks for plugins; {}", is(.programs), either(.dirs), remedy(.programs))]
    Gone {
        /// Missing programs.
        programs: BTreeSet<String>,
        /// Plugin directories.
        dirs: Vec<PathBuf>,
    },
    /// The plugin directories cannot be read.
    #[error(
        "the plugins in {} are unknown ({why}), so the network's list stays unchanged; mount that directory of the \
         node read-only into the container", either(.dirs)
    )]
    Unseen {
        /// Plugin directories.
        dirs: Vec<PathBuf>,
        /// Reason why the directories cannot be read.
        why: String,
    },
}

impl Obstacle {
    /// Returns true if the obstacle is a missing program, or plugin directories that cannot be read. The runtime may
    /// then be unable to call our plugin, even if the list has the entry.
    pub fn is_of_programs(&self) -> bool {
        matches!(
            self,
            Self::Elsewhere { .. } | Self::Gone { .. } | Self::Unseen { .. }
        )
    }

    /// Returns true if our plugin's program is missing. Every pod whose list has our entry then fails.
    pub fn is_ours_gone(&self) -> bool {
        matches!(self, Self::Gone { programs, .. } if programs.contains(TYPE))
    }
}

/// Returns advice about missing programs of the entry. `install` copies this project's two programs. The provider of
/// any other program must install it.
fn remedy(programs: &BTreeSet<String>) -> String {
    let (ours, theirs): (Vec<&String>, Vec<&String>) = programs
        .iter()
        .partition(|it| [TYPE, IPAM].contains(&it.as_str()));
    let theirs = theirs.iter().map(|it| {
        format!("install the IPAM plugin {it} there, or set ipam.type in the entry of {TYPE} to another \
                 plugin")
    });
    let ours = (!ours.is_empty()).then(|| "run install again".to_owned());
    theirs.chain(ours).collect::<Vec<_>>().join("; ")
}

fn listed(names: &[String]) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

fn is(programs: &BTreeSet<String>) -> String {
    let verb = if programs.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", joined(programs))
}

pub(crate) fn refused(file: &str, why: Refused) -> Obstacle {
    Obstacle::Refused {
        file: file.to_owned(),
        why,
    }
}
