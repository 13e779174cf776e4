// SPDX-License-Identifier: Apache-2.0
//! Steps of every restore: open the pod's recorded namespace, restore the devices (`restoring`), release the addresses,
//! and remove the record.

use super::{
    outlast,
    restoring::{self, Elsewhere},
};
use crate::{
    apply::{Incomplete, Tries},
    claims,
    error::Error,
    ipam::{self, Ipam, IpamError, RailCall, Rails},
    node::Node,
    rails,
};
use attachments::{Attachment, Key, Phase, store::AttachmentLock};
use cni_protocol::Command;
use network_conf::Conf;
use rdma_netns::{Kernel, Pod};
use serde_json::{Map, Value};
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// Maximum wait until the kernel returns the devices of a dying namespace.
pub(super) const NETNS_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for removing the netdevs that a pod made on its rails: a program in the pod may keep making netdevs.
const LONGEST: Duration = Duration::from_secs(60);

/// Pause without the node's lock, so that other verbs can move devices.
const PAUSE: Duration = Duration::from_millis(50);

/// Opens the namespace of `attachment`, if it still exists. Ignores a different namespace at the same path.
pub fn pod_of<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
) -> Result<Option<K::Pod>, Error> {
    let pod = node.pod_if_there(&attachment.netns)?;
    Ok(pod.filter(|pod| pod.id() == attachment.netns_id))
}

/// Restores `attachment` to the host, releases its addresses and removes its record. The record stays until all steps
/// have succeeded, so that a later verb can try again.
pub fn attachment<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    lock: AttachmentLock,
) -> Result<(), Error> {
    if attachment.phase == Phase::Attached {
        // this phase permits recovery to restore the devices if this process is killed
        attachment.phase = Phase::Detaching;
        restoring::mark(node, attachment, Phase::Detaching);
    }
    devices(node, attachment, pod, &lock)
        .inspect_err(|error| remember_named(node, attachment, error))?;
    forget_rails(node, attachment);
    let netns = pod.map(|pod| pod.path().display().to_string());
    addresses(node, attachment, netns.as_deref(), &[]).map_err(Error::Release)?;
    node.store
        .remove(&attachment.key, lock)
        .map_err(Error::Forget)
}

/// Records the netdevs that the `error` of this DEL names because they may belong to the host. The next DEL removes
/// these netdevs.
fn remember_named<K: Kernel>(node: &Node<'_, K>, attachment: &mut Attachment, error: &Error) {
    if let Error::Incomplete(Incomplete { named, .. }) = error
        && node.environment.command == Command::Del
        && !named.is_empty()
        && *named != attachment.named
    {
        attachment.named.clone_from(named);
        restoring::mark(node, attachment, attachment.phase);
    }
}

/// Removes the attachment's rails from the rails file after its devices have left the pod, even if IPAM fails later. A
/// file that stays too long does no harm. Also removes the CDI specifications of the pod's claims, so that no container
/// starts with the devices of these claims.
pub fn forget_rails<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment) {
    let (key, pod) = (&attachment.key, attachment.pod.as_deref());
    claims::left(node.store.root(), &key.container);
    remove_from_rails_file(node, key, pod);
}

/// Removes the rails of `key` from its pod's rails file. Retries a failure once, because usually no later verb removes
/// the rails. A file that a pod has created at this path does not prevent the restore of the pod's devices.
pub fn remove_from_rails_file<K>(node: &Node<'_, K>, key: &Key, pod: Option<&str>) {
    let remove = || rails::remove(node.store.root(), node.store.lock_deadline(), key, pod);
    if let Err(error) = remove().or_else(|_| remove()) {
        log::warn!("{key}: {error}; its rails file stays");
    }
}

/// Restores the devices to the host. Waits for a limited time for devices whose namespace is just ending. After a
/// reboot every device is already on the host, with the settings of the node's set-up.
pub fn devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    lock: &AttachmentLock,
) -> Result<(), Error> {
    if attachment.phase == Phase::Restored || attachment.boot_id != node.kernel.boot_id()? {
        return Ok(());
    }
    let [deadline, last] = [NETNS_EXIT_TIMEOUT, LONGEST].map(|it| node.kernel.now() + it);
    let tries = Tries::new(attachment.since_failure(node.kernel.uptime()));
    let mut has_begun = false;
    loop {
        let elsewhere = match node.kernel.now() < deadline {
            true => Elsewhere::Awaited,
            false => Elsewhere::Rebind,
        };
        let restored = {
            // a restore that only removes children affects only the pod, so it does not need the node's lock
            let has_moved = attachment.changes_host();
            let moves = has_moved.then(|| node.store.lock_node(lock));
            let _moves = moves.transpose().map_err(|error| match has_begun {
                true => Error::Unfinished(error),
                false => Error::State(error),
            })?;
            has_begun = true;
            restoring::restore_devices(node, attachment, pod, tries, elsewhere)
                .inspect(|restored| outlast::record_restored(node, attachment, restored))
        };
        match restored {
            Err(incomplete) if incomplete.continues && node.kernel.now() < last => {
                node.kernel.pause(PAUSE);
            }
            Err(incomplete) if incomplete.awaited && elsewhere == Elsewhere::Awaited => {
                node.kernel.pause(PAUSE);
            }
            restored => {
                outlast::managers(node, attachment, pod, lock, tries, restored)?;
                return Ok(());
            }
        }
    }
}

/// Releases the addresses of all rails after their devices returned to the host, with ADD's IPAM configuration. If that
/// fails, tries the present configuration, which an administrator may have corrected, in two cases: IPAM refused the
/// rail at ADD, or the plugin reports an error in its configuration. A rail that IPAM refused at ADD and that both
/// configurations refuse now has no address. Calls no other IPAM plugin for an address that may have been assigned,
/// because only ADD's plugin has its lease. `conflicts` are the rails' addresses that other machines use.
pub fn addresses<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    netns: Option<&str>,
    conflicts: &[IpAddr],
) -> Result<(), IpamError> {
    if attachment.ipam.is_some() {
        // IPAM may take long. With this mark, other pods can get the devices, and leave no shared SMC-R settings to
        // this attachment
        restoring::mark(node, attachment, Phase::Restored);
    }
    addresses_until(
        node,
        attachment,
        netns,
        conflicts,
        ipam::now() + ipam::LIMIT,
    )
}

/// Releases addresses like [`addresses`], and stops at `deadline`.
pub fn addresses_until<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    netns: Option<&str>,
    conflicts: &[IpAddr],
    deadline: Instant,
) -> Result<(), IpamError> {
    let Some(name) = &attachment.ipam else {
        return Ok(());
    };
    let present = present_ipam(node, attachment);
    let calls = Rails::default();
    let mut first = None;
    let key = &attachment.key;
    for rail in attachment.rails.iter().filter(|rail| rail.is_ours()) {
        let pod_name = &rail.pod_name;
        let is_its = |ip: &&IpAddr| rail.assigned.addresses.iter().any(|it| it.ip == **ip);
        let conflicts: Vec<IpAddr> = conflicts.iter().filter(is_its).copied().collect();
        let call = RailCall {
            container: &key.container,
            netns,
            args: attachment.args.as_deref(),
            pod_name,
            master: rail.name(),
            conflicts: &conflicts,
        };
        let del = |name, config| {
            let ipam = Ipam::find(name, node.environment, config)?;
            ipam.until(deadline).among(&calls).rail(Command::Del, call)
        };
        let Err(error) = del(name, &attachment.config) else {
            continue;
        };
        log::warn!("{key}: cannot release the addresses of {pod_name}: {error}");
        let is_corrected = present.is_some_and(|present| {
            let counts = rail.ipam_refused || error.is_configuration() && present == name;
            let log = |error: &IpamError| log::warn!("with the present configuration: {error}");
            counts && del(present, &node.conf.raw).inspect_err(log).is_ok()
        });
        if is_corrected {
            log::info!("{pod_name}: released the addresses with the present configuration");
        } else if rail.ipam_refused && attachment.phase == Phase::Restored && error.is_answer() {
            // the failed ADD already tried to release the addresses, and left the record for this verb
            log::info!("{pod_name}: IPAM refused an address at ADD: no address to release");
        } else {
            first.get_or_insert(error);
        }
    }
    if let Err(error) = calls.settle() {
        log::warn!("{key}: {error}; a power failure may undo the release of its addresses");
        first.get_or_insert(error);
    }
    first.map_or(Ok(()), Err)
}

/// Returns the present IPAM plugin of the network, if its configuration has changed since ADD. Returns `None` for an
/// unchanged configuration, and if a verb of another network recovers the attachment.
fn present_ipam<'a, K>(node: &Node<'a, K>, attachment: &Attachment) -> Option<&'a str> {
    // ignore fields that a runtime adds, because they differ from verb to verb
    let added =
        |key: &str| key == "prevResult" || key == "runtimeConfig" || key.starts_with("cni.dev/");
    let own = |config: &Map<String, Value>| {
        let mut config = config.clone();
        config.retain(|key, _| !added(key));
        config
    };
    let Conf {
        network, ipam, raw, ..
    } = node.conf;
    let is_changed = || own(raw) != own(&attachment.config);
    let name = ipam.as_deref()?;
    (network.name == attachment.key.network && is_changed()).then_some(name)
}
