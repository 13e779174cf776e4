// SPDX-License-Identifier: Apache-2.0
//! Reads records of attachments and leases of addresses, and checks whether the pods are running.

use super::{
    super::facts::{self, Lease, NOT_MOUNTED},
    view::View,
};
use attachments::{
    Attachment, Rail, Store,
    given_up::{self, Note},
    pods::is_out_of_sight,
};
use cni_protocol::state_file;
use dra::Claims;
use network_conf::Conf;
use plan::drift;
use rdma_ipam::store;
use rdma_netns::{Kernel, ObservationScope, Pod};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// Default `dataDir` of host-local and rdma-ipam.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// Directory of libcni's cache, with a file for each attachment (`libcni/api.go`, `CacheDir`).
const CACHE: &str = "/var/lib/cni/results";

/// Returns the records of attachments below `state_dir`, and the paths of unreadable records of attachments and claims
/// that were renamed.
pub(super) fn read<K: Kernel>(
    view: &mut View,
    kernel: &K,
    state_dir: &Path,
    boot_id: Option<&str>,
) -> (Vec<facts::Record>, Vec<PathBuf>) {
    let store = Store::new(&view.path(state_dir));
    let keys = view
        .keep("the records", store.keys(None))
        .unwrap_or_default();
    let mut records = vec![];
    for key in keys {
        let record = view.keep(&format!("the record of {key}"), store.load(&key));
        let Some(record) = record else {
            continue;
        };
        records.extend(match record {
            attachments::store::Record::None => None,
            attachments::store::Record::Corrupt(why) => Some(facts::Record::Corrupt { key, why }),
            attachments::store::Record::Newer(format) => Some(facts::Record::Newer { key, format }),
            attachments::store::Record::Good(attachment) => {
                let netns = view.netns(&attachment);
                let lives = boot_id.is_none_or(|boot_id| {
                    attachment.lives(kernel, &netns, boot_id)
                        || attachment.boot_id == boot_id && is_hidden(view, &attachment, &netns)
                });
                Some(facts::Record::Good {
                    changed_children: match lives {
                        true => changed_children(view, kernel, &attachment, &netns),
                        false => vec![],
                    },
                    lives,
                    busy: store.is_at_work(&key),
                    age: store.age(&key).unwrap_or_default().as_secs(),
                    attachment,
                })
            }
        });
    }
    let claims = Claims::new(store.root());
    let aside = store.aside().unwrap_or_default();
    let aside = aside.into_iter().chain(claims.aside());
    let strip = |path: PathBuf| match path.strip_prefix(view.path("/")) {
        Ok(below) => Path::new("/").join(below),
        Err(_) => path,
    };
    (records, aside.map(strip).collect())
}

/// Returns the errors of unreadable records of claims below `state_dir`.
pub(super) fn unreadable_claims(view: &View, state_dir: &Path) -> Vec<String> {
    let (_, unreadable) = Claims::new(&view.path(state_dir)).all();
    unreadable.iter().map(ToString::to_string).collect()
}

/// Returns a sentence for each macvlan or ipvlan netdev in the pod's namespace at `netns` whose mode differs from the
/// record. Returns none if the pod ends meanwhile, or cannot be observed.
fn changed_children<K: Kernel>(
    view: &mut View,
    kernel: &K,
    attachment: &Attachment,
    netns: &Path,
) -> Vec<String> {
    let has_child = |rail: &Rail| rail.shared.is_some() && !rail.has_ipoib_child();
    let has_children = attachment.rails.iter().any(has_child);
    let pod = has_children.then(|| kernel.open_pod(netns));
    let Some(Ok(pod)) =
        pod.filter(|it| it.as_ref().is_ok_and(|pod| pod.id() == attachment.netns_id))
    else {
        return vec![];
    };
    kernel.limit_observation(Some(ObservationScope {
        no_pod_routes: true,
        ..ObservationScope::default()
    }));
    let observed = kernel.observe(Some(&pod));
    kernel.limit_observation(None);
    match observed {
        Ok(observed) => drift::of_children(attachment, &observed),
        Err(error) => {
            let what = "the modes of child netdevs in pods";
            view.misses_once(what, &error.source.to_string());
            vec![]
        }
    }
}

/// Returns true if the namespace of `attachment` may be in a directory that this program cannot see. Then records
/// this directory as unseen.
fn is_hidden(view: &mut View, attachment: &Attachment, netns: &Path) -> bool {
    if !is_out_of_sight(netns) || !view.is_partial() {
        return false;
    }
    let place = attachment.netns.parent().unwrap_or(&attachment.netns);
    let why = format!("{NOT_MOUNTED}: {}", place.display());
    view.misses_once("which pods are running", &why);
    true
}

/// Returns the notes below `state_dir` on attributes that netdevs lack after their return to the host.
pub(super) fn given_up(view: &mut View, state_dir: &Path) -> Vec<Note> {
    let notes = given_up::read(&view.path(state_dir));
    view.keep("notes on netdevs that were not fully restored", notes)
        .unwrap_or_default()
}

/// Returns the directories of records and leases that are symbolic links. `rdma-cni` and `rdma-ipam` follow them, but
/// do not follow a record or a lease that is a link.
pub(super) fn links(view: &View, state_dir: &Path, conf: Option<&Conf>) -> Vec<PathBuf> {
    let attachments = state_dir.join("attachments");
    let networks = state_file::names(&view.path(&attachments)).unwrap_or_default();
    let networks = networks.iter().map(|name| attachments.join(name));
    let directories = [attachments.clone()].into_iter().chain(networks);
    let directories = directories.chain(conf.and_then(lease_directory));
    directories
        .filter(|it| view.path(it).is_symlink())
        .collect()
}

/// Returns the directory of the network's leases. `None`: the IPAM plugin does not use host-local's format.
fn lease_directory(conf: &Conf) -> Option<PathBuf> {
    let ipam = conf.ipam.as_deref();
    ipam.filter(|ipam| ["rdma-ipam", "host-local"].contains(ipam))?;
    let data_dir = conf.raw["ipam"].get("dataDir").and_then(Value::as_str);
    let data_dir = data_dir.filter(|it| !it.is_empty()).unwrap_or(DATA_DIR);
    Some(Path::new(data_dir).join(&conf.network.name))
}

/// Returns the leases of the network. Returns none if its IPAM plugin does not use host-local's format.
pub(super) fn leases(view: &mut View, conf: Option<&Conf>) -> Vec<Lease> {
    let Some(directory) = conf.and_then(lease_directory) else {
        return vec![];
    };
    let mut found = vec![];
    for name in view.names(&directory).unwrap_or_default() {
        let Ok(address) = name.parse::<IpAddr>() else {
            continue;
        };
        // skip a lease that was released after the directory was read, or that cannot be read, and a file that is not a
        // lease
        let Some(text) = view.state_text(directory.join(name)) else {
            continue;
        };
        found.extend(lease(&text, address));
    }
    found
}

/// Parses the `text` of the lease of `address`. `None`: the text is empty or not a lease.
pub fn lease(text: &str, address: IpAddr) -> Option<Lease> {
    let (container, interface) = match store::Lease::parse(text.as_bytes()) {
        store::Lease::Of(owner) => (owner.container, Some(owner.interface)),
        store::Lease::OfContainer(container) => (container, None),
        store::Lease::Empty | store::Lease::Foreign => return None,
    };
    Some(Lease {
        address,
        container,
        interface,
    })
}

pub(super) fn cached(view: &mut View) -> Option<BTreeSet<String>> {
    Some(view.names(CACHE)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rdma-ipam` neither counts nor releases a file that it cannot parse as a lease.
    #[test]
    fn a_file_that_rdma_ipam_cannot_parse_is_no_lease() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let of = |text: &str| lease(text, address).map(|it| (it.container, it.interface));
        let owner = |interface: Option<&str>| {
            let interface = interface.map(str::to_owned);
            Some(("0a1b".to_owned(), interface))
        };
        assert_eq!(of("0a1b\r\neth0"), owner(Some("eth0")));
        assert_eq!(of("0a1b\r\neth0\n"), owner(Some("eth0")));
        assert_eq!(of("0a1b\n"), owner(None));
        let foreign = [
            "",
            "\r\n",
            "two words",
            "a\nb",
            "a\r\nb\r\nc",
            "a\r\nb/c",
            "{}",
            "\u{fffd}",
        ];
        for text in foreign {
            assert_eq!(of(text), None, "{text:?}");
        }
    }
}
