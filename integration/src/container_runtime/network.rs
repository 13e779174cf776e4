// SPDX-License-Identifier: Apache-2.0
//! The node's CNI directories, as a container runtime reads them: plugins, and the pods' conflist.

use crate::{
    Conflist,
    plugin::{debian, rdma_cni},
};
use serde_json::json;
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Debian's plugins for the primary network. containerd 1.7 itself calls `loopback`.
const DEBIAN: [&str; 3] = ["loopback", "bridge", "host-local"];

/// Environment variable that names the directory into which `integration/runtimes/build` has
/// installed plugins of CNI 1.1.
const PLUGINS: &str = "RDMA_LAB_CNI_PLUGINS";

/// The directories, `/opt/cni/bin` and `/etc/cni/net.d` of a node.
#[derive(Debug)]
pub struct Network {
    plugins: PathBuf,
    lists: PathBuf,
}

impl Network {
    /// Makes CNI directories below `directory`, with the plugins under test, Debian's plugins, and
    /// no conflist.
    #[track_caller]
    pub fn new(directory: &Path) -> Self {
        Self::with_debians(directory.join("bin"), directory.join("net.d")).with_ours()
    }

    /// Returns the node's own directories, and copies Debian's plugins into the plugin directory.
    #[track_caller]
    pub fn of_node() -> Self {
        Self::with_debians("/opt/cni/bin".into(), "/etc/cni/net.d".into())
    }

    /// Makes the directories, and copies Debian's plugins into the plugin directory. Files of an earlier
    /// boot stay.
    #[track_caller]
    fn with_debians(plugins: PathBuf, lists: PathBuf) -> Self {
        for directory in [&plugins, &lists] {
            fs::create_dir_all(directory).expect("a directory");
        }
        for plugin in DEBIAN.map(debian) {
            let copy = plugins.join(plugin.file_name().expect("a plugin's name"));
            if !copy.exists() {
                fs::copy(&plugin, copy).expect("a plugin");
            }
        }
        Self { plugins, lists }
    }

    /// Makes links to the plugins under test in the plugin directory.
    #[track_caller]
    pub fn with_ours(self) -> Self {
        for plugin in [rdma_cni(), rdma_cni().with_file_name("rdma-ipam")] {
            let link = self
                .plugins
                .join(plugin.file_name().expect("a plugin's name"));
            if !link.exists() {
                symlink(&plugin, link).expect("a link");
            }
        }
        self
    }

    /// Replaces Debian's plugins of CNI 1.0 for the primary network by plugins of CNI 1.1.
    #[track_caller]
    pub fn knows_cni_1_1(&self) {
        let built = env::var_os(PLUGINS);
        let built =
            built.unwrap_or_else(|| panic!("{PLUGINS} is not set: scripts/test lab sets it"));
        for plugin in ["bridge", "host-local"] {
            // renames the new file into place, because the runtime may be running the old plugin
            let new = self.plugins.join(format!("{plugin}.new"));
            fs::copy(Path::new(&built).join(plugin), &new).expect("a plugin");
            fs::rename(&new, self.plugins.join(plugin)).expect("a plugin");
        }
    }

    /// Returns the plugins' directory.
    pub fn plugins(&self) -> &Path {
        &self.plugins
    }

    /// Returns the conflists' directory.
    pub fn lists(&self) -> &Path {
        &self.lists
    }

    /// Writes `list` atomically. The runtime uses it for later pods.
    #[track_caller]
    pub fn set(&self, list: &Conflist) {
        let Conflist {
            name,
            version,
            plugins,
        } = list;
        let text = json!({ "cniVersion": version, "name": name, "plugins": plugins });
        let new = self.lists.join("10-pods.conflist.new");
        fs::write(&new, format!("{text:#}")).expect("the conflist");
        fs::rename(&new, self.lists.join("10-pods.conflist")).expect("the conflist");
    }
}
