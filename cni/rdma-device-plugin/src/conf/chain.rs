// SPDX-License-Identifier: Apache-2.0
//! `chain`, beside the resources of any format.
//!
//! ```yaml
//! chain:                        # without it the daemon does not touch the node's network
//!   confDir: /etc/cni/net.d
//!   runtime: containerd         # or crio
//!   network: pods               # cni_default_network of CRI-O, if it is set
//!   plugin:                     # fields of rdma-cni's configuration
//!     ipam: {type: rdma-ipam, from: parent}
//! ```

use super::{Wrong, fields::Fields, own::none_else};
use conflist::{Entry, Runtime, TYPE};
use network_conf::Devices;
use serde_json::{Map, Value};
use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

const KEYS: [&str; 4] = ["confDir", "runtime", "network", "plugin"];

/// Where `rdma-cni` has its records.
pub const STATE_DIR: &str = "/var/lib/cni/rdma-cni";

/// Where kubelet's own files are.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Kubelet's socket for questions of who has what.
pub fn pod_resources(kubelet_dir: &Path) -> PathBuf {
    kubelet_dir.join("pod-resources/kubelet.sock")
}

/// Where container runtimes look for networks.
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// The place of our plugin in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Where the runtime looks for networks.
    pub conf_dir: PathBuf,
    /// How it looks.
    pub runtime: Runtime,
    /// Our plugin's configuration.
    pub entry: Entry,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            conf_dir: CONF_DIR.into(),
            runtime: Runtime::default(),
            entry: Entry::default(),
        }
    }
}

impl Chain {
    /// The same for a node whose records and kubelet are elsewhere than by default: the plugin is told,
    /// unless the file tells it.
    pub fn located(mut self, state_dir: &Path, kubelet_dir: &Path) -> Self {
        let mut tell = |field: &str, path: PathBuf, is_default: bool| {
            if !is_default {
                let entry = std::mem::take(&mut self.entry);
                self.entry = entry.or(field, path.to_string_lossy().into());
            }
        };
        let is_default = state_dir == Path::new(STATE_DIR);
        tell("stateDir", state_dir.to_owned(), is_default);
        let is_default = kubelet_dir == Path::new(KUBELET_DIR);
        tell("podResourcesSocket", pod_resources(kubelet_dir), is_default);
        self
    }

    /// Why a pod could not be asked for at kubelet now, where the plugin asks there.
    pub fn without_kubelet(&self) -> Option<String> {
        let conf = parsed(&self.entry).ok()?;
        let socket = conf.pod_resources_socket;
        let is_socket = || fs::metadata(&socket).is_ok_and(|it| it.file_type().is_socket());
        let asks = matches!(conf.devices, Some(Devices::Resources(_)));
        (asks && !is_socket()).then(|| {
            format!(
                "kubelet's socket {socket:?} is not there (or not mounted), and every pod that asks for \
                 RDMA would fail: --kubelet-dir, or chain.plugin.podResourcesSocket, says where kubelet \
                 has its pod-resources/kubelet.sock"
            )
        })
    }

    /// Whether `rdma-cni` attaches what kubelet allocates of `resource`.
    pub fn attaches(&self, resource: &str) -> bool {
        match parsed(&self.entry).map(|conf| conf.devices) {
            Ok(Some(Devices::Resources(names))) => names.iter().any(|it| it == resource),
            _ => false,
        }
    }
}

/// Its name.
pub(super) const FIELD: &str = "chain";

/// `chain` of the whole file.
pub(super) fn of(file: &Fields<'_>) -> Result<Option<Chain>, Wrong> {
    file.object(FIELD)?.as_ref().map(read).transpose()
}

fn read(fields: &Fields<'_>) -> Result<Chain, Wrong> {
    none_else(fields, &KEYS)?;
    let conf_dir = fields.text("confDir")?.unwrap_or(CONF_DIR);
    if !conf_dir.starts_with('/') {
        return Err(fields.wrong("confDir", "must be an absolute path"));
    }
    let crio = fields.choice("runtime", &[("containerd", false), ("crio", true)])?;
    let network = fields.text("network")?;
    let runtime = match (crio.unwrap_or(false), network) {
        (true, network) => Runtime::Crio {
            network: network.map(str::to_owned),
        },
        (false, None) => Runtime::Containerd,
        (false, Some(_)) => {
            let problem = "must be left out: only CRI-O can be told a network (runtime: crio)";
            return Err(fields.wrong("network", problem));
        }
    };
    let plugin = match fields.get("plugin") {
        None => Map::new(),
        Some(Value::Object(plugin)) => plugin.clone(),
        Some(_) => return Err(fields.wrong("plugin", "must be an object")),
    };
    let place = |field: &str| format!("{}.{field}", fields.place_of("plugin"));
    for field in ["type", "name", "cniVersion", "prevResult"] {
        if plugin.contains_key(field) {
            let problem = "must be left out: it is not for the user to say";
            return Err(Wrong::new(place(field), problem));
        }
    }
    let entry = Entry::new(plugin);
    parsed(&entry).map_err(|problem| Wrong::new(fields.place_of("plugin"), problem))?;
    Ok(Chain {
        conf_dir: conf_dir.into(),
        runtime,
        entry,
    })
}

/// As the plugin itself reads it: else every pod of the node would fail by a wrong value.
fn parsed(entry: &Entry) -> Result<network_conf::Conf, String> {
    let mut whole = entry.fields().clone();
    whole.insert("cniVersion".into(), "1.1.0".into());
    whole.insert("name".into(), TYPE.into());
    let conf = network_conf::Conf::parse(whole).map_err(|error| error.to_string())?;
    conf.supported().map_err(|error| error.to_string())?;
    Ok(conf)
}
