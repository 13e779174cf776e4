// SPDX-License-Identifier: Apache-2.0
//! Determines which file of the directory a runtime uses.
//!
//! Runtimes read `.conf`, `.conflist` and `.json`, sorted by name, including hidden files. podman reads only
//! `.conflist`.
//!
//! - containerd (go-cni's `loadFromConfDir`, `max_conf_num` 1) uses the first file. If this file is broken, no pod gets
//!   a network.
//! - CRI-O (ocicni's `loadNetworks`) skips broken files, and uses the first of the others. With `cni_default_network`
//!   it uses the first file of that network. CRI-O also skips a file with a plugin whose binary is missing. This module
//!   does not check binaries.
//! - podman's CNI backend (`loadNetworks()` of containers/common, `libnetwork/cni`) and nerdctl (`pkg/netutil`) skip
//!   broken files, and use the network that the container names. podman uses the first file of a network.

use crate::{
    Directory, File,
    list::{Broken, List, Ours, missing},
    single::Single,
};
use serde_json::{Map, Value};
use std::fmt;

/// A container runtime, with its rule for choosing a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// containerd.
    #[default]
    Containerd,
    /// CRI-O.
    Crio {
        /// Value of `cni_default_network`.
        network: Option<String>,
    },
    /// podman with its CNI backend, or nerdctl. Each container names its network.
    Named {
        /// Name of the network that gets our entry.
        network: String,
    },
}

impl Runtime {
    /// Returns the name of the network, if the runtime chooses the network by name.
    pub fn network(&self) -> Option<&str> {
        match self {
            Self::Containerd => None,
            Self::Crio { network } => network.as_deref(),
            Self::Named { network } => Some(network),
        }
    }
}

/// The result of choosing a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The runtime's choice.
    pub choice: Choice,
    /// Files that the runtime does not use, in order.
    pub skipped: Vec<Skipped>,
}

/// A runtime's choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// The runtime has no file to use, so pods wait for a network.
    None,
    /// The runtime stops at a broken file, so pods wait for a network.
    Blocked {
        /// Name of the file.
        file: String,
        /// Defect of the file.
        why: Broken,
    },
    /// The runtime uses this file.
    Picked(Picked),
}

/// The file that a runtime uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Picked {
    /// Name of the file below the directory.
    pub file: String,
    /// Name of the network.
    pub network: String,
    /// Version of the CNI specification with which the runtime calls the plugins. Empty: the file has no version.
    pub version: String,
    /// Types of the plugins, in order. Empty: all plugins are in the network's own directory.
    pub types: Vec<String>,
    /// True if the file has one plugin's configuration instead of a list.
    pub single: bool,
    /// Our entry, if the file has one.
    pub ours: Option<Ours>,
    /// Fields of further entries of our plugin in the list, which a correct list does not have.
    pub again: Vec<Map<String, Value>>,
    /// Network that Multus calls from this file, as a path or a name.
    pub cluster_network: Option<String>,
    /// True if a runtime with libcni 1.3 or later also calls plugins of the network's own directory.
    pub reads_directory: bool,
}

/// A file that a runtime does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Name of the file below the directory.
    pub file: String,
    /// Reason why the runtime does not use the file.
    pub why: Skip,
}

/// The reason why a runtime does not use a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The file is broken.
    Broken(Broken),
    /// The runtime uses another network. This file belongs to the named network.
    OtherNetwork(String),
    /// The runtime uses an earlier file, or stops at it.
    Later,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => broken.fmt(f),
            Self::OtherNetwork(name) => write!(f, "it belongs to network {}", name.escape_debug()),
            Self::Later => f.write_str("another file comes before it"),
        }
    }
}

/// Chooses the file of `directory` that `runtime` uses.
pub fn pick(directory: &Directory, runtime: &Runtime) -> Pick {
    let mut skipped = vec![];
    let mut choice = Choice::None;
    for file in directory.files() {
        let name = file.name.clone();
        if choice != Choice::None {
            skipped.push(Skipped {
                file: name,
                why: Skip::Later,
            });
            continue;
        }
        let why = match (read(directory, file), runtime) {
            (Ok(picked), _) if runtime.network().is_some_and(|it| picked.network != it) => {
                Skip::OtherNetwork(picked.network)
            }
            (Ok(picked), _) => {
                choice = Choice::Picked(picked);
                continue;
            }
            (Err(why), Runtime::Containerd) => {
                choice = Choice::Blocked { file: name, why };
                continue;
            }
            (Err(why), Runtime::Crio { .. } | Runtime::Named { .. }) => Skip::Broken(why),
        };
        skipped.push(Skipped { file: name, why });
    }
    Pick { choice, skipped }
}

/// Parses `file` of `directory`.
///
/// # Errors
/// The reason why no runtime would use the file.
pub(crate) fn read(directory: &Directory, file: &File) -> Result<Picked, Broken> {
    let text = file.text.as_ref().map_err(Clone::clone)?;
    let picked = Picked::read(&file.name, text)?;
    let is_bare = picked.types.is_empty();
    if is_bare && directory.plugins_of(&picked.network).next().is_none() {
        return Err(missing("plugins"));
    }
    Ok(picked)
}

/// Returns the list whose plugins Multus finally calls. Returns `picked` if it has no Multus with `clusterNetwork`, or
/// if the list is not found. Multus reads the file of `clusterNetwork` at each call (`getNetDelegate` in
/// `k8sclient.go`). A value that is a path names a file. A value that is a name can also mean an object of the cluster,
/// so this function follows a name only to a list that has our entry. A second entry in Multus' own list would cause a
/// second call.
pub fn follow(directory: &Directory, picked: Picked) -> Picked {
    let Some(network) = &picked.cluster_network else {
        return picked;
    };
    let read = |file: &File| {
        let read = Picked::read(&file.name, file.text.as_deref().ok()?).ok();
        // skip a single configuration: Multus would not read the list that this project makes from it. Also skip a list
        // without plugins of its own
        let read = read.filter(|it| !it.single && !it.types.is_empty())?;
        // Multus calls the plugins of this list with its own libcni, which does not read the network's directory
        Some(Picked {
            reads_directory: false,
            ..read
        })
    };
    let found = match network.rsplit_once('/') {
        Some((_, name)) => directory.file(name).and_then(read),
        None => {
            let mut lists = directory.files().iter().filter_map(read);
            lists.find(|it| it.network == *network && it.ours.is_some())
        }
    };
    found.unwrap_or(picked)
}

impl Picked {
    /// Parses `text`, the content of the file named `file`, without regard to the network's own directory.
    ///
    /// # Errors
    /// The reason why no runtime would use the file.
    pub fn read(file: &str, text: &str) -> Result<Self, Broken> {
        let file = file.to_owned();
        if file.ends_with(".conflist") {
            let list = List::parse(text)?;
            return Ok(Self {
                network: named(list.name(), &file),
                version: list.version().unwrap_or_default().to_owned(),
                types: list.types().map(str::to_owned).collect(),
                single: false,
                ours: list.ours(),
                again: list.again(),
                cluster_network: list.cluster_network(),
                reads_directory: list.reads_directory(),
                file,
            });
        }
        let single = Single::parse(text)?;
        Ok(Self {
            network: named(single.name(), &file),
            version: single.version().unwrap_or_default().to_owned(),
            types: vec![single.kind().to_owned()],
            single: true,
            ours: single.ours(),
            again: vec![],
            cluster_network: single.cluster_network(),
            // `ConfFromFile()` does not read the network's own directory
            reads_directory: false,
            file,
        })
    }
}

/// Returns the network's name. If the configuration has no name, returns the file's name, as CRI-O does.
fn named(name: &str, file: &str) -> String {
    match name.is_empty() {
        true => file.to_owned(),
        false => name.to_owned(),
    }
}
