// SPDX-License-Identifier: Apache-2.0
//! Determines whether the runtime made a pod's network by a list with `rdma-cni`. When a network program rewrites its
//! list, `rdma-cni` is missing from the list until the reconciler adds it again. A pod that starts in this moment has
//! no rails, although no program reported an error. Also finds the pods whose DEL calls `rdma-cni` with CRI-O or
//! Multus.
//!
//! libcni's cache has a file for each network of a sandbox. libcni writes the file, with the text of the list, after
//! all plugins of the list have succeeded (`cacheAdd` in `libcni/api.go`), and removes the file after DEL. A pod with
//! `hostNetwork` has no file.

use crate::refused::PodName;
use attachments::pods::{is_out_of_sight, netns_seen};
use base64::{Engine, prelude::BASE64_STANDARD};
use cni_protocol::state_file::{self, FileError, failed};
use conflist::{Picked, programs};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::Path,
    time::SystemTime,
};

/// Origin of a pod's network: the list by which the runtime made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// Unknown: the cache has no file of the pod. For example, the pod has the host's network, or the runtime has its
    /// cache in another directory.
    Unknown,
    /// The runtime made a network of the sandbox by a list with `rdma-cni`, or `rdma-cni` has a record of the sandbox.
    WithUs,
    /// The runtime made the network twice: by a list with `rdma-cni` and by a list without it. This happens if
    /// containerd's `max_conf_num` is not 1: containerd then uses the file of a single plugin, and also the list that
    /// the daemon made from this file.
    Twice {
        /// Name of both networks.
        network: String,
    },
    /// The runtime made all networks of the sandbox by lists without `rdma-cni`.
    WithoutUs {
        /// Name of the network that the runtime made last.
        network: String,
    },
}

/// Fields of `cachedInfo` in `libcni/api.go` that this module uses.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    container_id: String,
    /// Text of the list, in base64.
    config: String,
    network_name: String,
    /// Path of the network namespace. libcni 1.1 has no such field.
    #[serde(default)]
    netns: String,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
    #[serde(default)]
    result: Value,
}

impl Cached {
    fn arg(&self, key: &str) -> Option<&str> {
        let mut args = self.cni_args.iter();
        args.find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    fn pod(&self) -> Option<PodName> {
        Some(PodName {
            namespace: self.arg("K8S_POD_NAMESPACE")?.to_owned(),
            name: self.arg("K8S_POD_NAME")?.to_owned(),
        })
    }

    /// Returns true if the list names one of the programs `names`.
    fn names_one_of(&self, names: &[&str]) -> bool {
        let list = BASE64_STANDARD.decode(&self.config).unwrap_or_default();
        str::from_utf8(&list).is_ok_and(|list| programs::names_one_of(list, names))
    }

    /// Returns true if the sandbox may be alive: its namespace exists, its path is unknown, or the path's directory is
    /// not visible here. Without the field `netns`, the path is the `sandbox` of an interface in the result.
    fn may_live(&self) -> bool {
        let interfaces = self.result["interfaces"].as_array().into_iter().flatten();
        let sandboxes = interfaces.filter_map(|it| it["sandbox"].as_str());
        let mut paths = [&*self.netns].into_iter().chain(sandboxes);
        paths.find(|it| !it.is_empty()).is_none_or(|path| {
            let netns = netns_seen(path.into(), None);
            netns.try_exists().unwrap_or(true) || is_out_of_sight(&netns)
        })
    }
}

/// Returns the pods, or container ids of unknown pods, whose list in libcni's cache `cache` names one of the programs
/// `names`, and whose sandboxes may be alive. At DEL, CRI-O calls the plugins of the list in the runtime's cache
/// (ocicni's `loadNetworkFromCache`). Multus calls the plugins of its delegates at ADD (`CmdDel`,
/// `pkg/multus/multus.go`), whose lists are in Multus' own cache. Skips files that are not libcni's: for such a file
/// CRI-O uses the present list.
///
/// A file alone does not prove a living sandbox, because it outlives CRI-O's own state and a failed DEL.
///
/// # Errors
/// The directory or a file of libcni cannot be read.
pub fn of_cached_lists(cache: &Path, names: &[&str]) -> Result<BTreeSet<String>, FileError> {
    use io::ErrorKind::{InvalidData, NotFound};
    let mut pods = BTreeSet::new();
    for file in fs::read_dir(cache).map_err(failed("read", cache))? {
        let path = file.map_err(failed("read", cache))?.path();
        let text = match state_file::read(&path) {
            Ok(text) => text,
            // DEL has removed the file meanwhile, or the file is not libcni's
            Err(error) if matches!(error.kind(), NotFound | InvalidData) => continue,
            Err(error) => return Err(FileError::new("read", &path, error)),
        };
        let cached = serde_json::from_slice::<Cached>(&text);
        let cached = cached
            .ok()
            .filter(|it| it.names_one_of(names) && it.may_live());
        pods.extend(cached.map(|it| match it.pod() {
            Some(pod) => pod.to_string(),
            None => it.container_id,
        }));
    }
    Ok(pods)
}

/// Returns the origin of the network of the pod's last sandbox. `cache` is the directory of libcni's files, and
/// `attachments` is the directory of the records of `rdma-cni`. Ignores a file older than `since`, because it belongs
/// to an earlier pod of the same name.
///
/// # Errors
/// The directory of the cache exists and cannot be read.
pub fn made(
    cache: &Path,
    attachments: &Path,
    pod: &PodName,
    since: SystemTime,
) -> io::Result<Made> {
    let files = match fs::read_dir(cache) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Made::Unknown),
        files => files?,
    };
    let networks = files
        .flatten()
        .filter_map(|file| network(&file.path(), pod, since));
    let mut networks: Vec<(SystemTime, CachedNetwork)> = networks.collect();
    // use the last sandbox: sandboxes that kubelet has replaced may still exist
    networks.sort_by_key(|(made, _)| *made);
    let networks: Vec<CachedNetwork> = networks.into_iter().map(|(_, it)| it).collect();
    let Some(last) = networks.last() else {
        return Ok(Made::Unknown);
    };
    let of_last = || networks.iter().filter(|it| it.container == last.container);
    let is_twice = |one: &&CachedNetwork| {
        let mut others = of_last().filter(|other| other.network == one.network);
        one.ours && others.any(|other| !other.ours)
    };
    if let Some(twice) = of_last().find(is_twice) {
        let network = twice.network.clone();
        return Ok(Made::Twice { network });
    }
    let ours = of_last().any(|it| it.ours);
    Ok(match ours || is_recorded(attachments, &last.container) {
        true => Made::WithUs,
        false => Made::WithoutUs {
            network: last.network.clone(),
        },
    })
}

/// Returns the pod's network in libcni's cache file `path`, and the file's mtime. Returns `None` if the file is older
/// than `since`, belongs to another pod, describes a loopback, or cannot be read.
fn network(path: &Path, pod: &PodName, since: SystemTime) -> Option<(SystemTime, CachedNetwork)> {
    let made = fs::metadata(path).ok()?.modified().ok()?;
    if made < since {
        return None;
    }
    let text = state_file::read(path).ok()?;
    let network = cached_network(&text, (&pod.namespace, &pod.name))?;
    Some((made, network))
}

/// A pod's network in libcni's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedNetwork {
    /// Container id of the sandbox.
    pub container: String,
    /// Name of the network.
    pub network: String,
    /// True if the network's list has `rdma-cni`.
    pub ours: bool,
}

/// Parses the `text` of a cache file. `None`: the file belongs to another pod, describes a loopback, or is invalid.
pub fn cached_network(text: &[u8], (namespace, pod): (&str, &str)) -> Option<CachedNetwork> {
    let cached: Cached = serde_json::from_slice(text).ok()?;
    let is = |key: &str, value: &str| cached.arg(key) == Some(value);
    if !is("K8S_POD_NAMESPACE", namespace) || !is("K8S_POD_NAME", pod) {
        return None;
    }
    let text = BASE64_STANDARD.decode(&cached.config).ok()?;
    // libcni also caches a list for the file of a single plugin
    let list = Picked::read(".conflist", str::from_utf8(&text).ok()?).ok()?;
    (list.types != ["loopback"]).then_some(CachedNetwork {
        container: cached.container_id,
        network: cached.network_name,
        ours: list.ours.is_some(),
    })
}

/// Returns the UIDs of all pods that have a network in libcni's cache. The runtime passes the UIDs to plugins. Kubelet
/// does not report them. If two pods have the same name, returns the UID of the later pod.
pub fn uids(cache: &Path) -> HashMap<PodName, String> {
    let files = fs::read_dir(cache).into_iter().flatten().flatten();
    let named = files.filter_map(|file| {
        let made = file.metadata().ok()?.modified().ok()?;
        let (pod, uid) = uid(&state_file::read(&file.path()).ok()?)?;
        Some((made, pod, uid))
    });
    let mut named: Vec<_> = named.collect();
    named.sort_by_key(|(made, ..)| *made);
    named.into_iter().map(|(_, pod, uid)| (pod, uid)).collect()
}

/// Parses the pod and its UID from the `text` of a cache file.
pub fn uid(text: &[u8]) -> Option<(PodName, String)> {
    let cached: Cached = serde_json::from_slice(text).ok()?;
    Some((cached.pod()?, cached.arg("K8S_POD_UID")?.to_owned()))
}

/// Returns true if `rdma-cni` has a record of the container on any network. This finds networks of Multus, because
/// libcni's cache does not contain the lists of Multus' delegates.
fn is_recorded(attachments: &Path, container: &str) -> bool {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let mut records = entries(attachments).flat_map(|it| entries(&it.path()));
    records.any(|record| {
        let name = record.file_name();
        let name = name.to_str().unwrap_or_default();
        name.ends_with(".json") && name.split('@').next() == Some(container)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use integration::CniCache;
    use std::time::Duration;

    /// Files of a node, as libcni and `rdma-cni` write them.
    struct Node {
        cache: CniCache,
        root: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a directory");
            Self {
                cache: CniCache::new(&root.path().join("results")),
                root,
            }
        }

        /// Adds libcni's file for an ADD of `plugins` in the sandbox `container`. The file's mtime is `second`, in
        /// seconds since 1970.
        fn add(&self, pod: &str, container: &str, network: &str, plugins: &[&str], second: u64) {
            self.add_to(pod, container, (network, "eth0"), plugins, second);
        }

        /// Adds libcni's file for an ADD of one interface of the sandbox. The file's mtime is `second`.
        fn add_to(
            &self,
            pod: &str,
            container: &str,
            (network, interface): (&str, &str),
            plugins: &[&str],
            second: u64,
        ) {
            let file = self
                .cache
                .add_to(pod, container, (network, interface), plugins);
            let file = fs::File::options().append(true).open(file).expect("it");
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            file.set_modified(at).expect("its time");
        }

        fn record(&self, network: &str, container: &str) {
            let directory = self.root.path().join("attachments").join(network);
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(directory.join(format!("{container}@eth0.json")), "{}").expect("a file");
        }

        fn made(&self, pod: &str) -> Made {
            self.made_since(pod, 0)
        }

        fn made_since(&self, pod: &str, second: u64) -> Made {
            let at = |below: &str| self.root.path().join(below);
            let since = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            let made = made(&at("results"), &at("attachments"), &name(pod), since);
            made.expect("it can be read")
        }
    }

    fn name(name: &str) -> PodName {
        PodName {
            namespace: "default".into(),
            name: name.into(),
        }
    }

    fn without(network: &str) -> Made {
        Made::WithoutUs {
            network: network.into(),
        }
    }

    #[test]
    fn the_cached_list_decides() {
        let node = Node::new();
        assert_eq!(node.made("a"), Made::Unknown);
        for pod in ["a", "b", "c"] {
            node.add(pod, pod, "cni-loopback", &["loopback"], 9);
        }
        node.add("a", "a", "cbr0", &["flannel", "portmap", "rdma-cni"], 8);
        node.add("b", "b", "cbr0", &["flannel", "portmap"], 8);
        assert_eq!(node.made("a"), Made::WithUs);
        assert_eq!(node.made("b"), without("cbr0"));
        assert_eq!(node.made("c"), Made::Unknown, "the host's network");
        assert_eq!(node.made("d"), Made::Unknown);
    }

    #[test]
    fn the_last_sandbox_counts_with_all_its_networks() {
        let node = Node::new();
        node.add("a", "old", "cbr0", &["flannel"], 1);
        node.add("a", "new", "cbr0", &["flannel", "rdma-cni"], 2);
        node.add("a", "new", "more", &["bridge"], 3);
        assert_eq!(node.made("a"), Made::WithUs);
        node.add("a", "newer", "cbr0", &["flannel"], 4);
        assert_eq!(node.made("a"), without("cbr0"));
    }

    /// go-cni gives each of `max_conf_num` networks its own interface. libcni caches each interface under the network's
    /// name.
    #[test]
    fn a_network_that_was_made_twice_is_reported() {
        let node = Node::new();
        node.add("a", "a", "terway", &["terway", "rdma-cni"], 1);
        node.add_to("a", "a", ("terway", "eth1"), &["terway"], 2);
        let twice = Made::Twice {
            network: "terway".into(),
        };
        assert_eq!(node.made("a"), twice);
        // both interfaces of sandbox `a` come from lists with `rdma-cni`, and only the old sandbox has a list without
        // it
        node.add_to("a", "a", ("terway", "eth1"), &["terway", "rdma-cni"], 2);
        node.add("a", "old", "terway", &["terway"], 1);
        assert_eq!(node.made("a"), Made::WithUs);
    }

    #[test]
    fn files_of_an_earlier_pod_of_the_same_name_are_ignored() {
        let node = Node::new();
        node.add("a", "old", "cbr0", &["flannel"], 8);
        assert_eq!(node.made_since("a", 8), without("cbr0"));
        assert_eq!(node.made_since("a", 9), Made::Unknown);
    }

    #[test]
    fn a_record_counts_where_a_delegate_s_list_is_not_cached() {
        let node = Node::new();
        node.add("a", "1", "multus", &["multus-shim"], 1);
        node.record("rails", "12");
        assert_eq!(node.made("a"), without("multus"));
        node.record("rails", "1");
        assert_eq!(node.made("a"), Made::WithUs);
    }

    #[test]
    fn a_pods_uid_is_that_of_its_last_sandbox() {
        let node = Node::new();
        node.add("a", "new", "cbr0", &["flannel"], 2);
        node.add("a", "old", "cbr0", &["flannel"], 1);
        let cache = node.root.path().join("results");
        let old = cache.join("cbr0-old-eth0");
        let text = fs::read_to_string(&old).expect("a file");
        fs::write(&old, text.replace("\"7\"", "\"6\"")).expect("another pod's");
        let file = fs::File::options().append(true).open(&old).expect("it");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("its time");
        fs::write(cache.join("half"), "{").expect("a file");
        let uids = uids(&cache);
        assert_eq!(uids.get(&name("a")).map(String::as_str), Some("7"));
        assert_eq!(uids.get(&name("b")), None);
        assert!(super::uids(&cache.join("none")).is_empty());
    }

    #[test]
    fn invalid_cache_files_are_ignored() {
        let node = Node::new();
        node.add("a", "1", "cbr0", &["flannel"], 1);
        let cache = node.root.path().join("results");
        for (name, text) in [
            ("half", r#"{"kind": "cniCacheV1", "contai"#.as_bytes()),
            ("other", b"{}"),
            ("bytes", b"\xff\x00"),
        ] {
            fs::write(cache.join(name), text).expect("a file");
        }
        fs::create_dir(cache.join("directory")).expect("a directory");
        assert_eq!(node.made("a"), without("cbr0"));
    }
}
