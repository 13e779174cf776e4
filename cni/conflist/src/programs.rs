// SPDX-License-Identifier: Apache-2.0
//! The programs that a configuration names, and whether the runtime's directories of plugins have them.
//!
//! A runtime finds a plugin by its `type` in these directories (`CNI_PATH`; containerd's `bin_dirs`, CRI-O's
//! `plugin_dirs`), the first that has it, and a plugin finds its IPAM plugin there too. If one that the
//! network has had all along is in none of them, the runtime looks elsewhere: our plugin would not be found
//! either, and every pod of the node would fail.

use crate::TYPES;
use serde_json::Value;
use std::{collections::BTreeSet, fmt, path::PathBuf};

/// IPAM types that are no programs: the plugin named first serves them itself.
const BUILT_IN: [(&str, &str); 2] = [
    // `cni/network/network.go` of Azure/azure-container-networking: it asks its own service
    ("azure-vnet", "azure-cns"),
    // antrea-io/antrea: its agent gives the addresses
    ("antrea", "antrea"),
];

/// The runtime's directories of plugins, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Where they are, in the order in which the runtime looks.
    pub dirs: Vec<PathBuf>,
    /// The names of the programs in them; else why they are not known.
    pub names: Result<BTreeSet<String>, String>,
}

impl Programs {
    /// Whether `name` is there; where that is not known, it is not said to be missing.
    pub fn has(&self, name: &str) -> bool {
        let names = self.names.as_ref();
        names.map_or(true, |names| names.contains(name))
    }

    /// Those of `types` that are not there.
    pub fn missing(&self, types: BTreeSet<String>) -> BTreeSet<String> {
        types.into_iter().filter(|it| !self.has(it)).collect()
    }
}

/// The types that `text` names, a list or a single configuration: plugins, their IPAM plugins, and
/// what Multus calls in turn. Ours are not among them.
pub fn named(text: &str) -> BTreeSet<String> {
    let mut types = BTreeSet::new();
    if let Ok(whole) = serde_json::from_str(text) {
        collect(&whole, &mut types);
    }
    types.retain(|it| !TYPES.contains(&it.as_str()));
    types
}

/// The IPAM type of a plugin's configuration.
pub fn ipam(plugin: &Value) -> Option<&str> {
    let kind = plugin.get("ipam")?.get("type")?.as_str()?;
    let owner = plugin.get("type").and_then(Value::as_str);
    let is_built_in = BUILT_IN.contains(&(owner.unwrap_or_default(), kind));
    (!kind.is_empty() && !is_built_in).then_some(kind)
}

fn collect(value: &Value, types: &mut BTreeSet<String>) {
    for plugin in value["plugins"].as_array().into_iter().flatten() {
        collect(plugin, types);
    }
    let kind = value["type"].as_str().filter(|kind| !kind.is_empty());
    types.extend(kind.into_iter().chain(ipam(value)).map(str::to_owned));
    // Multus looks for these in a directory of its own, if it has one
    if value.get("binDir").is_none() {
        let delegates = value["delegates"].as_array().into_iter().flatten();
        delegates.for_each(|delegate| collect(delegate, types));
    }
}

/// `flannel and portmap`
pub(crate) struct Names<'a>(pub &'a BTreeSet<String>);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(String::as_str).collect();
        match names.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, others)) => write!(f, "{} and {last}", others.join(", ")),
            None => Ok(()),
        }
    }
}

/// How the right directory is found and said.
pub(crate) struct Elsewhere<'a>(pub &'a [PathBuf]);

impl fmt::Display for Elsewhere<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not in {}: the runtime looks for plugins elsewhere, or the network is not complete; bin_dir \
             or bin_dirs of `containerd config dump`, plugin_dirs of `crio config`, or cni_plugin_dirs of \
             podman's containers.conf says where: install with --cni-bin-dir for each of them (the chart's \
             chain.binDir). The first has our plugins; to have another first one, uninstall before",
            Dirs(self.0)
        )
    }
}

/// `"/opt/cni/bin" or "/usr/lib/cni"`
pub(crate) struct Dirs<'a>(pub &'a [PathBuf]);

impl fmt::Display for Dirs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(|dir| format!("{dir:?}")).collect();
        f.write_str(&names.join(" or "))
    }
}
