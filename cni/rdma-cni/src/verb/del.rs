// SPDX-License-Identifier: Apache-2.0
//! DEL: restores everything to the host, even if the pod, its record or its namespace no longer exists. A missing
//! record is no error. A missing device is an error only while the kernel or its driver can still return it.

use super::teardown;
use crate::{
    claims,
    error::Error,
    ipam::{Ipam, IpamError, RailCall},
    node::Node,
};
use attachments::{
    DesiredLink, Key, Phase, Rail, Shared,
    store::{AttachmentLock, Record},
};
use cni_protocol::Command;
use network_conf::Devices;
use rdma_netns::{InterfaceName, Kernel, Link, Observed, Pod};
use rdma_resources::limited::{CGROUPS, LimitedContainers};
use serde_json::Value;
use std::path::Path;

/// Detaches the devices of the attachment.
pub fn del<K: Kernel>(node: &Node<'_, K>) -> Result<(), Error> {
    let (target, key) = node.target()?;
    let pod = match &target.netns {
        Some(path) => node.pod_if_there(path)?,
        None => None,
    };
    let limited = LimitedContainers::new(node.store.root(), Path::new(CGROUPS));
    if let Err(error) = limited.settle() {
        log::warn!("{error}; the daemon tries to lift the pod's limits of RDMA devices again");
    }
    if let Err(error) = node.store.sweep(None, None) {
        log::warn!("{error}; the next ADD, DEL or GC removes the files of killed processes");
    }
    let lock = match node.store.lock(&key) {
        // a pod without attached devices has no lock file yet: its DEL must succeed even if the disk is full
        Err(error) if error.lacks_room() && matches!(node.store.load(&key), Ok(Record::None)) => {
            log::warn!("{error}; {key} has no record");
            let released = unrecorded(node, &key);
            forget_rails(node, &key);
            return released;
        }
        lock => lock.map_err(Error::State)?,
    };
    match node.store.load(&key).map_err(Error::State)? {
        Record::Good(mut attachment) => {
            let pod = pod.filter(|pod| pod.id() == attachment.netns_id);
            let pod = match pod {
                Some(pod) => Some(pod),
                None => teardown::pod_of(node, &attachment)?,
            };
            teardown::attachment(node, &mut attachment, pod.as_ref(), lock)
        }
        Record::None => {
            let released = unrecorded(node, &key);
            forget_rails(node, &key);
            node.store.remove(&key, lock).map_err(Error::Forget)?;
            released
        }
        Record::Newer(format) => Err(Error::Newer { key, format }),
        Record::Corrupt(reason) => {
            log::warn!(
                "{key}: its record cannot be read ({reason}); restoring its devices without the record"
            );
            salvage(node, &key, pod.as_ref(), lock)
        }
    }
}

/// Does the same as [`teardown::forget_rails`] for an attachment without a record.
fn forget_rails<K>(node: &Node<'_, K>, key: &Key) {
    let pod = node.environment.pod();
    claims::left(node.store.root(), &key.container);
    teardown::remove_from_rails_file(node, key, pod.as_deref());
}

/// Releases the addresses of an attachment whose DEL has ended, or whose ADD did not begin. Usually IPAM has no address
/// for such an attachment: ADD writes the record before it calls IPAM, and DEL removes the record last. So DEL fails
/// only if a later try may succeed: a plugin that is missing or always refuses must not block the pod's end for ever
/// ("Plugins should generally complete a DEL action without error even if some resources are missing", CNI
/// specification, section 2, DEL).
fn unrecorded<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<(), Error> {
    match without_record(node, key) {
        Err(Error::Release(error)) if !error.may_pass() => {
            log::warn!("{key}: DEL continues, because there is no record");
            Ok(())
        }
        released => released,
    }
}

/// Releases the addresses that IPAM may have assigned to an attachment without a record.
fn without_record<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<(), Error> {
    let Some(name) = &node.conf.ipam else {
        return Ok(());
    };
    let names = rail_names(node);
    if names.is_empty() {
        return Ok(());
    }
    let ipam = Ipam::find(name, node.environment, &node.conf.raw);
    let ipam = ipam.inspect_err(|error| log::warn!("{key}: cannot release its addresses: {error}"));
    let ipam = ipam.map_err(Error::Release)?;
    let netns = node.target()?.0.netns.as_ref();
    let netns = netns.map(|path| path.display().to_string());
    let others = names_of_others(node, key);
    let mut first: Option<IpamError> = None;
    for pod_name in names.into_iter().filter(|name| !others.contains(name)) {
        let call = RailCall {
            container: &key.container,
            netns: netns.as_deref(),
            args: node.environment.all.get("CNI_ARGS").map(String::as_str),
            pod_name: &pod_name,
            master: "",
            conflicts: &[],
        };
        if let Err(error) = ipam.rail(Command::Del, call) {
            log::warn!("{key}: cannot release the addresses of {pod_name}: {error}");
            // a temporary error takes precedence over a permanent error
            first = first.filter(IpamError::may_pass).or(Some(error));
        }
    }
    first.map_or(Ok(()), |error| Err(Error::Release(error)))
}

/// Returns the rail names in the readable records of the pod's other attachments to the network. DEL must not release
/// leases under these names.
fn names_of_others<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Vec<InterfaceName> {
    let keys = node.store.keys(Some(&key.network)).unwrap_or_default();
    let others = keys
        .iter()
        .filter(|other| other.container == key.container && *other != key);
    let records = others.filter_map(|other| match node.store.record(other) {
        Record::Good(attachment) => Some(attachment.rails),
        _ => None,
    });
    records.flatten().map(|rail| rail.pod_name).collect()
}

/// Returns the names that this attachment's rails may have in the pod: this plugin's names in `prevResult`, the first
/// name that the configuration gives, and the name from `named_by_runtime()`. Omits the first name if kubelet
/// determines the devices and there is a `prevResult`, because a pod to which kubelet allocated nothing has no rails.
fn rail_names<K>(node: &Node<'_, K>) -> Vec<InterfaceName> {
    let result = node.conf.network.prev_result.as_ref();
    let interfaces = result.and_then(|result| result["interfaces"].as_array());
    let count = interfaces.map_or(0, Vec::len);
    let in_result = |name: &InterfaceName| {
        interfaces
            .into_iter()
            .flatten()
            .any(|interface| interface["name"] == **name)
    };
    let is_complete = result.is_some() && matches!(node.conf.devices, Some(Devices::Resources(_)));
    let names = (0..=count).filter_map(|rail| node.conf.interface_name.name(rail));
    let mut names: Vec<InterfaceName> = names
        .enumerate()
        .filter(|(rail, name)| (*rail == 0 && !is_complete) || in_result(name))
        .map(|n| n.1)
        .collect();
    names.dedup();
    names.extend(named_by_runtime(node));
    names
}

/// Returns `CNI_IFNAME` if it can be the name of the attachment's only rail: it is the pod's only interface in
/// `prevResult`, and the configuration names devices, and has IPAM, no `interfaceName`, and a `type` other than `rdma`.
fn named_by_runtime<K>(node: &Node<'_, K>) -> Option<InterfaceName> {
    let conf = node.conf;
    let is_named = matches!(
        conf.devices,
        Some(Devices::Address(_) | Devices::Selectors(_))
    ) && conf.names_no_interface()
        && conf.ipam.is_some()
        && !conf.drop_in;
    let interfaces = conf.network.prev_result.as_ref()?["interfaces"].as_array()?;
    let in_pod = |it: &&Value| it["sandbox"].as_str().is_some_and(|it| !it.is_empty());
    let mut in_pod = interfaces.iter().filter(in_pod);
    let (only, None) = (in_pod.next()?, in_pod.next()) else {
        return None;
    };
    let name = conf.attachment.clone().filter(|_| is_named)?;
    (only["name"] == *name).then_some(name)
}

/// Restores the devices of an existing pod if the record is unreadable. Finds netdevs in the pod by `rail_names()`, and
/// an RDMA device also by the configured PCI address. A netdev gets its old name if the configuration contains it and
/// no netdev on the host has it. Otherwise it gets the name that the kernel gives to netdevs of an ended namespace.
fn salvage<K: Kernel>(
    node: &Node<'_, K>,
    key: &Key,
    pod: Option<&K::Pod>,
    lock: AttachmentLock,
) -> Result<(), Error> {
    if let Some(pod) = pod {
        let observed = node.kernel.observe(Some(pod))?;
        let rails = lost_rails(node, &observed);
        for rail in &rails {
            match &rail.host_link {
                Some(link) => log::warn!(
                    "restoring {} without a record, as {} on the host",
                    rail.pod_name,
                    link.name
                ),
                None => log::warn!("detaching {} without a record", rail.pod_name),
            }
        }
        let mut attachment = node.record(key, pod, &observed, rails);
        attachment.phase = Phase::Detaching;
        // without a record it is unknown whether an earlier verb tried a restore: assume a try at the boot
        attachment.failed_at = Some(0);
        let links = observed.pod.iter().flat_map(|pod| &pod.links);
        attachment.named = links.map(|link| link.index).collect();
        smcr::apply::log_orphaned_entries(node.smcr(), &attachment);
        teardown::devices(node, &mut attachment, Some(pod), &lock)?;
    }
    without_record(node, key)?;
    forget_rails(node, key);
    // this is the last step: after any earlier failure another DEL tries again
    let aside = node.store.set_aside(key).map_err(match pod {
        Some(_) => Error::Forget,
        None => Error::Unfinished,
    })?;
    log::warn!("{key}: the unreadable record is kept as {aside:?}");
    lock.discard();
    Ok(())
}

fn lost_rails<K>(node: &Node<'_, K>, observed: &Observed) -> Vec<Rail> {
    let Some(pod) = &observed.pod else {
        return vec![];
    };
    let names = rail_names(node);
    let ours = pod.links.iter().filter(|link| names.contains(&link.name));
    let mut rails: Vec<Rail> = ours
        .map(|link| Rail {
            host_link: link
                .child
                .is_none()
                .then(|| host_link_again(node, observed, link)),
            shared: shared_again(observed, link),
            pod_index: Some(link.index),
            pod_origin: link.origin,
            rdma: pod.rdma_of(link).cloned(),
            assigned: DesiredLink {
                rules: plan::rules_of(link, pod),
                ..DesiredLink::default()
            },
            ..Rail::new(link.name.clone())
        })
        .collect();
    if let Some(Devices::Address(address)) = &node.conf.devices {
        // the drop-in moved only the RDMA device
        let is_ours = |rail: &Rail| {
            rail.rdma
                .as_ref()
                .is_some_and(|r| r.parent.as_ref() == Some(address))
        };
        if let Some(rdma) = pod
            .rdma
            .iter()
            .find(|rdma| rdma.parent.as_ref() == Some(address))
            && !rails.iter().any(is_ours)
        {
            let pod_name = node
                .environment
                .target
                .as_ref()
                .map(|target| target.interface.clone());
            rails.extend(pod_name.map(|pod_name| Rail {
                rdma: Some(rdma.clone()),
                ..Rail::new(pod_name)
            }));
        }
    }
    rails
}

/// Returns the record of the child `link` and its parent on the host. Returns `None` if `link` is no child, or if the
/// host does not have the parent.
fn shared_again(observed: &Observed, link: &Link) -> Option<Shared> {
    let child = link.child?;
    let parent = observed.host.link_by_index(link.lower?)?;
    Some(Shared::of(parent, child))
}

/// Reconstructs the recorded host state of a netdev as far as possible.
fn host_link_again<K>(node: &Node<'_, K>, observed: &Observed, link: &Link) -> Link {
    let configured = match &node.conf.devices {
        Some(Devices::Selectors(selectors)) => match selectors.as_slice() {
            [only] => only.literal_netdev(),
            _ => None,
        },
        _ => None,
    };
    // the kernel refuses a name that is an alternative name of the same netdev
    let own = |name: &InterfaceName| link.alt_names.iter().any(|alt| *alt == **name);
    let free = |name: &InterfaceName| observed.host.link(name).is_none() && !own(name);
    let fallback = InterfaceName::try_from(format!("dev{}", link.index));
    let name = [configured, fallback.ok()].into_iter().flatten().find(free);
    Link {
        name: name.unwrap_or_else(|| link.name.clone()),
        up: false,
        // the observed origin is valid only inside the pod
        origin: None,
        addresses: vec![],
        routes: vec![],
        ..link.clone()
    }
}
