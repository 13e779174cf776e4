// SPDX-License-Identifier: Apache-2.0
//! Section `chain`, which a configuration file of any format can have. `docs/device-plugin-conf.md` describes its
//! fields.

use crate::ResourceName;
use clap::ValueEnum;
use conf_reader::{AbsolutePath, Field, Wrong};
use conflist::{Entry, Runtime, TYPE, entry::DETECT, fields};
pub use network_conf::STATE_DIR;
use network_conf::{Devices, Mode};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// Default directory of kubelet's files.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Returns the path of kubelet's pod-resources socket.
pub fn pod_resources(kubelet_dir: &Path) -> PathBuf {
    kubelet_dir.join("pod-resources/kubelet.sock")
}

/// Default directory of the CNI lists that container runtimes use.
pub const CONF_DIR: &str = "/etc/cni/net.d";

pub(super) const FIELD: &str = "chain";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Section {
    conf_dir: Option<AbsolutePath>,
    runtime: Option<RuntimeName>,
    network: Option<String>,
    placement: Option<Placement>,
    plugin: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RuntimeName {
    Containerd,
    Crio,
    Podman,
    Nerdctl,
}

/// Value of `placement`: the place where the daemon writes the entry of `rdma-cni`. A network's own directory is
/// `<confDir>/<network>/`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The network's own directory if evidence shows that the runtime calls the plugins of this directory; otherwise
    /// the network's CNI list.
    Auto,
    /// A separate file in the network's own directory.
    Directory,
    /// The network's CNI list.
    #[default]
    List,
}

/// Configuration of `rdma-cni` in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Directory of the CNI lists that the runtime uses.
    pub conf_dir: PathBuf,
    /// Container runtime, and its rule for choosing a network.
    pub runtime: Runtime,
    /// Place where the daemon writes the entry of `rdma-cni`.
    pub placement: Placement,
    /// True if `plugin` has the field `resources`, which names the resources that `rdma-cni` attaches.
    pub names_resources: bool,
    /// Configuration of `rdma-cni`.
    pub entry: Entry,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            conf_dir: CONF_DIR.into(),
            runtime: Runtime::default(),
            placement: Placement::default(),
            names_resources: false,
            entry: Entry::default(),
        }
    }
}

impl Chain {
    /// Adds the state directory and kubelet's socket to the entry if they differ from the defaults. Does not overwrite
    /// values of the configuration file.
    pub fn located(mut self, state_dir: &Path, kubelet_dir: &Path) -> Self {
        let mut set = |field: &str, path: PathBuf, is_default: bool| {
            if !is_default {
                let entry = std::mem::take(&mut self.entry);
                self.entry = entry.or(field, path.to_string_lossy().into());
            }
        };
        let is_default = state_dir == Path::new(STATE_DIR);
        set("stateDir", state_dir.to_owned(), is_default);
        let is_default = kubelet_dir == Path::new(KUBELET_DIR);
        set("podResourcesSocket", pod_resources(kubelet_dir), is_default);
        self
    }

    /// Adds `names`, the configured resources, to the entry. Adds no name if `plugin` names the devices or resources to
    /// attach, if the runtime passes the device (`deviceID`), or if `rdma-cni` attaches all `names` by default.
    pub(super) fn attaching<'a>(
        mut self,
        names: impl Iterator<Item = &'a ResourceName> + Clone,
    ) -> Self {
        if !self.unattached(names.clone()).is_empty() {
            let names: Vec<&str> = names.map(ResourceName::as_str).collect();
            self.entry = self.entry.or("resources", names.into());
        }
        self
    }

    /// Returns the `names` that `rdma-cni` does not attach. Returns no name if `rdma-cni` does not query kubelet for a
    /// pod's devices, or if the runtime passes the device (`deviceID`).
    pub fn unattached<'a>(&self, names: impl Iterator<Item = &'a ResourceName>) -> Vec<&'a str> {
        let takes_device_id = parsed(&self.entry).is_ok_and(|conf| conf.takes_device_id());
        if !self.queries_kubelet() || takes_device_id {
            return Vec::new();
        }
        let names = names.map(ResourceName::as_str);
        names.filter(|name| !self.attaches(name)).collect()
    }

    /// Returns the reason why `rdma-cni` cannot query kubelet at present. Returns `None` if `rdma-cni` can query
    /// kubelet, or does not need kubelet to find a pod's devices.
    pub fn without_kubelet(&self) -> Option<String> {
        let conf = parsed(&self.entry).ok()?;
        let socket = conf.pod_resources_socket;
        let is_socket = || fs::metadata(&socket).is_ok_and(|it| it.file_type().is_socket());
        let asks = matches!(conf.devices, Some(Devices::Resources(_)));
        (asks && !is_socket()).then(|| {
            format!(
                "kubelet's socket {socket:?} does not exist (or is not mounted), and every pod of the network would \
                 fail: if kubelet has another directory, set --kubelet-dir or chain.plugin.podResourcesSocket"
            )
        })
    }

    /// Returns true if `rdma-cni` queries kubelet for a pod's devices. The daemon then refuses to start the containers
    /// of a pod whose network was made without `rdma-cni`.
    pub fn queries_kubelet(&self) -> bool {
        let devices = parsed(&self.entry).map(|conf| conf.devices);
        matches!(devices, Ok(Some(Devices::Resources(_))))
    }

    /// Returns the reason why `placement` must not be the network's own directory. Returns `None` if this placement is
    /// allowed, or is not configured.
    pub fn misplaced(&self) -> Option<&'static str> {
        if self.placement != Placement::Directory {
            return None;
        }
        if matches!(self.runtime, Runtime::Crio { .. }) {
            return Some(
                "must be list or auto with CRI-O, which calls the plugins of a network's own directory at ADD but \
                 not at DEL: devices of ended pods would not be restored",
            );
        }
        (!self.queries_kubelet()).then_some(
            "must be list or auto where chain.plugin names the devices: if the runtime does not read the directory, \
             pods would start without these devices and without an error",
        )
    }

    /// Returns true if `rdma-cni` attaches kubelet's allocations of `resource`.
    pub fn attaches(&self, resource: &str) -> bool {
        match parsed(&self.entry).map(|conf| conf.devices) {
            Ok(Some(Devices::Resources(names))) => names.iter().any(|it| it == resource),
            _ => false,
        }
    }

    /// Returns true if `mode` is `move`: pods get no child netdevs, and no bonds, which cannot be moved.
    pub fn moves(&self) -> bool {
        parsed(&self.entry).is_ok_and(|conf| conf.mode == Mode::Move)
    }

    /// Returns true if `mode` is `share`: pods get child netdevs.
    pub fn shares(&self) -> bool {
        parsed(&self.entry).is_ok_and(|conf| conf.mode == Mode::Share)
    }

    /// Returns the prefix of rails' names in pods. Returns `None` if names of other netdevs can begin with this prefix.
    pub fn rails_names(&self) -> Option<String> {
        let prefix = parsed(&self.entry).ok()?.interface_name.prefix().to_owned();
        let is_own = prefix.len() > 1 && !"eth".starts_with(&prefix) && !prefix.starts_with("eth");
        is_own.then_some(prefix)
    }

    /// Returns the largest number of addresses of a child netdev for `resource`: the link-local address, and one
    /// address of each IP version that IPAM can assign. Returns `None` if `rdma-cni` makes no child netdevs for the
    /// resource.
    pub fn addresses(&self, resource: &str) -> Option<u32> {
        if self.moves() || !self.attaches(resource) {
            return None;
        }
        let ipam = self.entry.fields().get("ipam");
        let is_ipv4 = ipam.is_some_and(|it| it["type"] == "rdma-ipam" && it["family"] == "ipv4");
        let is_single = is_ipv4 || self.gives_ipv6_alone();
        Some(if is_single { 2 } else { 3 })
    }

    /// Returns true if `rdma-ipam` assigns only IPv6 addresses: by `family`, or by the default of `from: parent`.
    pub fn gives_ipv6_alone(&self) -> bool {
        let Some(ipam) = self.entry.fields().get("ipam") else {
            return false;
        };
        let family = &ipam["family"];
        let is_from_parent = ipam["from"] == "parent" && family.is_null();
        ipam["type"] == "rdma-ipam" && (is_from_parent || family == "ipv6")
    }
}

pub(super) fn read(file: &Field<'_>) -> Result<Option<Chain>, Wrong> {
    let section: Option<Section> = file.get(FIELD)?;
    section
        .map(|section| section.checked(&file.at(FIELD)))
        .transpose()
}

impl Section {
    fn checked(self, field: &Field<'_>) -> Result<Chain, Wrong> {
        let runtime = match (self.runtime, self.network) {
            (Some(RuntimeName::Crio), network) => Runtime::Crio { network },
            (Some(RuntimeName::Podman), network) => named(network, "podman"),
            (Some(RuntimeName::Nerdctl), network) => named(network, "bridge"),
            (Some(RuntimeName::Containerd) | None, None) => Runtime::Containerd,
            (Some(RuntimeName::Containerd) | None, Some(_)) => {
                let sentence = "must be left out with runtime containerd, which uses the first network for pods; \
                                crio, podman and nerdctl use the network of this name";
                return Err(field.at("network").refused(sentence));
            }
        };
        let placement = self.placement.unwrap_or_default();
        let plugin = field.at("plugin");
        let own = ["type", "name", "cniVersion", "prevResult", DETECT];
        if let Some(name) = own.iter().find(|name| plugin.has(name)) {
            let sentence = "must be left out: the daemon sets it";
            return Err(plugin.at(name).refused(sentence));
        }
        let entry = Entry::new(self.plugin.unwrap_or_default());
        parsed(&entry).map_err(|problem| plugin.refused(problem))?;
        fields::check(&plugin, &whole(&entry))?;
        let chain = Chain {
            conf_dir: self.conf_dir.map_or_else(|| CONF_DIR.into(), |path| path.0),
            runtime,
            placement,
            names_resources: plugin.has("resources"),
            entry,
        };
        if matches!(chain.runtime, Runtime::Named { .. }) && chain.queries_kubelet() {
            return Err(plugin.refused(
                "must name the devices (devices or deviceID): with runtime podman or nerdctl there is no \
                 kubelet that allocates them",
            ));
        }
        chain
            .misplaced()
            .map_or(Ok(()), |why| Err(field.at("placement").refused(why)))?;
        Ok(chain)
    }
}

/// Returns a runtime that selects the network with the name `network`. Uses the name `default` if `network` is `None`.
fn named(network: Option<String>, default: &str) -> Runtime {
    let network = network.unwrap_or_else(|| default.to_owned());
    Runtime::Named { network }
}

/// Parses the entry by the code of `rdma-cni`, because a wrong value would make ADD fail for every pod of the network.
fn parsed(entry: &Entry) -> Result<network_conf::Conf, String> {
    let conf = network_conf::Conf::parse(whole(entry)).map_err(|error| error.to_string())?;
    conf.smc.check_ueid().map_err(|error| error.to_string())?;
    Ok(conf)
}

/// Returns the network configuration that the runtime passes to a plugin for `entry`.
fn whole(entry: &Entry) -> Map<String, Value> {
    let mut whole = entry.fields().clone();
    whole.insert("cniVersion".into(), "1.1.0".into());
    whole.insert("name".into(), TYPE.into());
    whole
}
