//! The node's CNI directories, as containerd reads them: plugins, and the pods' conflist.

use crate::{
    Conflist,
    plugin::{debian, rdma_cni},
};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Debian's plugins that pods need: containerd itself calls `loopback`.
const DEBIAN: [&str; 3] = ["loopback", "bridge", "host-local"];

/// The directories, `/opt/cni/bin` and `/etc/cni/net.d` of a node.
#[derive(Debug)]
pub struct Network {
    plugins: PathBuf,
    lists: PathBuf,
}

impl Network {
    /// Below `directory`, with the plugins under test and Debian's, and no conflist.
    #[track_caller]
    pub fn new(directory: &Path) -> Self {
        let network = Self {
            plugins: directory.join("bin"),
            lists: directory.join("net.d"),
        };
        for directory in [&network.plugins, &network.lists] {
            fs::create_dir_all(directory).expect("a directory");
        }
        let ours = [rdma_cni(), rdma_cni().with_file_name("rdma-ipam")];
        for plugin in DEBIAN.map(debian).into_iter().chain(ours) {
            let name = plugin.file_name().expect("a plugin's name");
            symlink(&plugin, network.plugins.join(name)).expect("a link");
        }
        network
    }

    /// The node's own directories, with Debian's plugins and no conflist: what a node has before
    /// anything of ours is put there.
    #[track_caller]
    pub fn of_node() -> Self {
        let network = Self {
            plugins: "/opt/cni/bin".into(),
            lists: "/etc/cni/net.d".into(),
        };
        for directory in [&network.plugins, &network.lists] {
            fs::create_dir_all(directory).expect("a directory");
        }
        for plugin in DEBIAN.map(debian) {
            let name = plugin.file_name().expect("a plugin's name");
            fs::copy(&plugin, network.plugins.join(name)).expect("a plugin");
        }
        network
    }

    /// Where plugins are.
    pub fn plugins(&self) -> &Path {
        &self.plugins
    }

    /// Where conflists are.
    pub fn lists(&self) -> &Path {
        &self.lists
    }

    /// Pods are attached by `list` from now on; there is never half a file.
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
