// SPDX-License-Identifier: Apache-2.0
//! A runtime's cache of the networks that it attached, in libcni's format (`cacheAdd` in `libcni/api.go`,
//! `cniCacheV1`).

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The cache's directory, `/var/lib/cni/results` on a node.
#[derive(Debug)]
pub struct CniCache {
    directory: PathBuf,
}

impl CniCache {
    /// Makes a cache at `directory`, which this function creates.
    #[track_caller]
    pub fn new(directory: &Path) -> Self {
        fs::create_dir_all(directory).expect("a directory");
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Writes the file of a successful ADD of a list of `plugins` for the sandbox `container` of the pod
    /// `default/<pod>`. Returns the file's path.
    #[track_caller]
    pub fn add(&self, pod: &str, container: &str, network: &str, plugins: &[&str]) -> PathBuf {
        self.add_to(pod, container, (network, "eth0"), plugins)
    }

    /// Writes the file like [`Self::add`], for another interface of the sandbox.
    #[track_caller]
    pub fn add_to(
        &self,
        pod: &str,
        container: &str,
        (network, interface): (&str, &str),
        plugins: &[&str],
    ) -> PathBuf {
        let plugins: Vec<Value> = plugins.iter().map(|it| json!({"type": it})).collect();
        let list = json!({"cniVersion": "1.0.0", "name": network, "plugins": plugins});
        let cached = json!({
            "kind": "cniCacheV1",
            "containerId": container,
            "config": BASE64_STANDARD.encode(list.to_string()),
            "ifName": interface,
            "networkName": network,
            "netns": format!("/var/run/netns/cni-{container}"),
            "cniArgs": [
                ["IgnoreUnknown", "1"],
                ["K8S_POD_NAMESPACE", "default"],
                ["K8S_POD_NAME", pod],
                ["K8S_POD_INFRA_CONTAINER_ID", container],
                ["K8S_POD_UID", "7"],
            ],
            "result": {"cniVersion": "1.0.0"},
        });
        let file = self
            .directory
            .join(format!("{network}-{container}-{interface}"));
        fs::write(&file, cached.to_string()).expect("a file");
        file
    }
}
