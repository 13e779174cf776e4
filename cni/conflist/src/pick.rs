// SPDX-License-Identifier: Apache-2.0
//! Which file of the directory a runtime uses.
//!
//! Both look at `.conf`, `.conflist` and `.json`, sorted by name, hidden files too.
//!
//! - containerd (go-cni's `loadFromConfDir`, `max_conf_num` 1) takes the first one. If that is
//!   broken, it looks no further: no pod gets a network.
//! - CRI-O (ocicni's `loadNetworks`) passes over broken ones, and takes the first that is left; or,
//!   with `cni_default_network`, the first of that name. It also passes over a file with a plugin
//!   whose binary is missing, which is not looked at here.
//! - podman's CNI backend (`loadNetworks()` of containers/common, `libnetwork/cni`) and nerdctl
//!   (`pkg/netutil`) read all files, pass over broken ones, and use the network that the container
//!   names. podman takes the first file of a name, and `.conflist` alone.

use crate::{
    Directory, File,
    list::{Broken, List, Ours},
    single::Single,
};
use std::fmt;

/// A container runtime, as far as it looks for networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// containerd
    #[default]
    Containerd,
    /// CRI-O
    Crio {
        /// `cni_default_network`
        network: Option<String>,
    },
    /// podman with its CNI backend, or nerdctl: a container names its network
    Named {
        /// The network of the entry.
        network: String,
    },
}

impl Runtime {
    /// The network that is used, where its name decides.
    pub fn network(&self) -> Option<&str> {
        match self {
            Self::Containerd => None,
            Self::Crio { network } => network.as_deref(),
            Self::Named { network } => Some(network),
        }
    }
}

/// What a runtime makes of a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// What it uses.
    pub choice: Choice,
    /// The files that it does not use, in order.
    pub skipped: Vec<Skipped>,
}

/// What a runtime uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Nothing: pods wait for a network.
    None,
    /// It stops at a broken file: pods wait for a network.
    Blocked {
        /// The file's name.
        file: String,
        /// What is wrong with it.
        why: Broken,
    },
    /// This file.
    Picked(Picked),
}

/// The file that a runtime uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Picked {
    /// Its name in the directory.
    pub file: String,
    /// The network's name.
    pub network: String,
    /// The plugins' types, in order.
    pub types: Vec<String>,
    /// Whether it has one plugin's configuration, and no list.
    pub single: bool,
    /// Our plugin, if it is called.
    pub ours: Option<Ours>,
    /// The network that Multus calls from there: a file or a name.
    pub cluster_network: Option<String>,
    /// Whether a runtime with libcni 1.3 or later calls the plugins of the network's own directory too.
    pub reads_directory: bool,
}

/// A file that a runtime does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name in the directory.
    pub file: String,
    /// Why.
    pub why: Skip,
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// It is broken.
    Broken(Broken),
    /// It is another network's than the one that was named.
    OtherNetwork(String),
    /// Another file was found before.
    Later,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => broken.fmt(f),
            Self::OtherNetwork(name) => write!(f, "it is of network {}", name.escape_debug()),
            Self::Later => f.write_str("another file comes before it"),
        }
    }
}

/// What a runtime makes of `directory`.
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
        let picked = file.text.clone();
        let picked = picked.and_then(|text| Picked::read(&name, &text));
        let why = match (picked, runtime) {
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

/// The list whose plugins are called in the end: Multus reads its network's file at each call, where
/// it is told that one (`clusterNetwork`; `getNetDelegate` in its `k8sclient.go`). A path is that
/// file. A name may also be an object in the cluster, so that it counts only for a list that has our
/// plugin already: it must not be called twice.
pub fn follow(directory: &Directory, picked: Picked) -> Picked {
    let Some(network) = &picked.cluster_network else {
        return picked;
    };
    let read = |file: &File| {
        let read = Picked::read(&file.name, file.text.as_deref().ok()?).ok();
        // for a single configuration Multus does not read the list beside it
        let read = read.filter(|it| !it.single)?;
        // it is Multus who calls these, by a libcni of its own
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
    /// What the file called `file` says.
    ///
    /// # Errors
    /// No runtime would take it.
    pub fn read(file: &str, text: &str) -> Result<Self, Broken> {
        let file = file.to_owned();
        if file.ends_with(".conflist") {
            let list = List::parse(text)?;
            return Ok(Self {
                network: named(list.name(), &file),
                types: list.types().map(str::to_owned).collect(),
                single: false,
                ours: list.ours(),
                cluster_network: list.cluster_network(),
                reads_directory: list.reads_directory(),
                file,
            });
        }
        let single = Single::parse(text)?;
        Ok(Self {
            network: named(single.name(), &file),
            types: vec![single.kind().to_owned()],
            single: true,
            ours: single.ours(),
            cluster_network: single.cluster_network(),
            // `ConfFromFile()` reads none
            reads_directory: false,
            file,
        })
    }
}

/// CRI-O calls a network without a name after its file.
fn named(name: &str, file: &str) -> String {
    match name.is_empty() {
        true => file.to_owned(),
        false => name.to_owned(),
    }
}
