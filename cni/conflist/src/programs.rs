// SPDX-License-Identifier: Apache-2.0
//! The programs that a configuration names, and the runtime's plugin directories that have them.
//!
//! A runtime searches its plugin directories for a plugin by its `type` (`CNI_PATH`; containerd's `bin_dirs`, CRI-O's
//! `plugin_dirs`), and uses the first match. A plugin finds its IPAM plugin in the same way. If the known directories
//! lack a plugin of the network, the runtime probably uses other directories. The runtime would then not find our
//! plugin, and every pod of the node would fail.

use crate::{IPAM, TYPES};
use serde_json::Value;
use std::{collections::BTreeSet, path::PathBuf};

/// Pairs of a plugin's type and an IPAM type. The IPAM type has no program, because the plugin implements it.
const BUILT_IN: [(&str, &str); 2] = [
    // `cni/network/network.go` of Azure/azure-container-networking: the plugin queries its own service
    ("azure-vnet", "azure-cns"),
    // antrea-io/antrea: the agent assigns the addresses
    ("antrea", "antrea"),
];

/// Programs in the runtime's plugin directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Directories, in the order in which the runtime searches them.
    pub dirs: Vec<PathBuf>,
    /// Names of the programs, or the reason why they are unknown.
    pub names: Result<BTreeSet<String>, String>,
}

impl Programs {
    /// Returns true if the program `name` exists, or if the names are unknown.
    pub fn has(&self, name: &str) -> bool {
        let names = self.names.as_ref();
        names.map_or(true, |names| names.contains(name))
    }

    /// Returns the `types` that have no program.
    pub fn missing(&self, types: BTreeSet<String>) -> BTreeSet<String> {
        types.into_iter().filter(|it| !self.has(it)).collect()
    }
}

/// Returns the types of plugins, IPAM plugins and delegates of Multus in `text`. `text` is a list or a single
/// configuration. Omits our own types, and the delegates of a Multus with `binDir`.
pub fn named(text: &str) -> BTreeSet<String> {
    let mut types = all(text);
    types.retain(|it| !TYPES.contains(&it.as_str()));
    types
}

/// Returns true if `text`, a list or a single configuration, names one of our plugins, `rdma-ipam` included.
pub fn names_ours(text: &str) -> bool {
    names_one_of(text, &[&TYPES[..], &[IPAM]].concat())
}

/// Returns true if `text`, a list or a single configuration, names one of the programs `names`.
pub fn names_one_of(text: &str, names: &[&str]) -> bool {
    let types = all(text);
    names.iter().any(|it| types.contains(*it))
}

fn all(text: &str) -> BTreeSet<String> {
    let mut types = BTreeSet::new();
    if let Ok(whole) = serde_json::from_str(text) {
        collect(&whole, &mut types);
    }
    types
}

/// Returns the IPAM type of a plugin's configuration, if this type has a program.
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
    // with `binDir`, Multus looks for its delegates in that directory
    if value.get("binDir").is_none() {
        let delegates = value["delegates"].as_array().into_iter().flatten();
        delegates.for_each(|delegate| collect(delegate, types));
    }
}

/// Joins names, as in `flannel and portmap`.
pub(crate) fn joined(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Joins directories, as in `"/opt/cni/bin" or "/usr/lib/cni"`.
pub(crate) fn either(dirs: &[PathBuf]) -> String {
    let names: Vec<String> = dirs.iter().map(|dir| format!("{dir:?}")).collect();
    names.join(" or ")
}
