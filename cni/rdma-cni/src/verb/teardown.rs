// SPDX-License-Identifier: Apache-2.0
//! Steps of every restore: open the pod's recorded namespace, restore the devices, release the addresses, and remove
//! the record.

use super::{outlast, spared};
use crate::{
    apply::{self, Incomplete, Restored, Tries},
    char_devices, claims,
    error::Error,
    gids, given_up,
    ipam::{self, Ipam, IpamError, RailCall, Rails},
    node::Node,
    rails,
};
use attachments::{Attachment, Key, Phase, Spared, Stage, given_up::Lack, store::AttachmentLock};
use cni_protocol::Command;
use network_conf::Conf;
use plan::Others;
use rdma_netns::{Kernel, ObservationScope, Pod};
use serde_json::{Map, Value};
use std::{
    cell::RefCell,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Maximum wait until the kernel returns the devices of a dying namespace.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

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
        mark(node, attachment, Phase::Detaching);
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
        mark(node, attachment, attachment.phase);
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
    let remove = || rails::remove(node.store.root(), node.store.patience(), key, pod);
    if let Err(error) = remove().or_else(|_| remove()) {
        log::warn!("{key}: {error}; its rails file stays");
    }
}

/// Records `attachment` with `phase`, and only logs a failure. After a failure, another verb repeats the work, and DEL
/// again reports netdevs that may belong to the host. Another pod that ends then also leaves shared SMC-R settings to
/// this attachment.
pub fn mark<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, phase: Phase) {
    let marked = Attachment {
        phase,
        ..attachment.clone()
    };
    if let Err(error) = node.store.amend(&marked) {
        log::warn!("{}: {error}; a later verb repeats the work", attachment.key);
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
    let [deadline, last] = [PATIENCE, LONGEST].map(|it| node.kernel.now() + it);
    let tried_before = attachment.tried;
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
            restore_devices(node, attachment, pod, tried_before, elsewhere)
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
                outlast::managers(node, attachment, pod, lock, tried_before, restored)?;
                return Ok(());
            }
        }
    }
}

/// Treatment of devices that are neither in the host's namespace nor in the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// A later try may find the devices. Until then no rail becomes free for other pods.
    Awaited,
    /// The devices stay in the other namespace.
    Left,
    /// The drivers of the devices are bound again, as the last resort.
    Rebind,
}

/// Runs `restore_once`, and records its result.
pub fn restore<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    tried_before: bool,
) -> Result<Restored, Incomplete> {
    let restored = restore_once(node, pod, attachment, Tries::new(tried_before, true, None));
    note(node, pod, attachment, &restored);
    restored
}

/// Removes SMC-R first, so that no connection uses a device that leaves the pod. Then restores netdevs and RDMA devices
/// to the host, and updates their CDI entries. The caller must hold the node's lock if the restore [changes the
/// host](Attachment::changes_host).
fn restore_once<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    tries: Tries,
) -> Result<Restored, Incomplete> {
    // observe only the record's hardware, and no routes in the pod, because other verbs wait for the node's lock
    node.kernel.limit_observation(Some(ObservationScope {
        no_pod_routes: true,
        ..attachment.devices().into()
    }));
    let mut left = smcr::apply::take_away(node.smcr(), pod, attachment);
    let others = || {
        let mut unrestored = node.store.on_this_boot(attachment)?;
        // leave out living pods, so that the plan renames none of their netdevs
        let settled = attachments::settled(node.kernel, &attachment.boot_id, &unrestored);
        let mut settled = settled.into_iter();
        unrestored.retain(|_| settled.next() == Some(false));
        let of_pod = node.store.of_same_pod(attachment)?;
        Ok(Others {
            unrestored,
            of_pod,
            keeps_aliased: node.environment.command != Command::Del,
        })
    };
    let spared = RefCell::new(attachment.spared.clone());
    let record = |them: &[Spared]| spared::record(node, attachment, &mut spared.borrow_mut(), them);
    let restored = apply::restore(node.kernel, pod, attachment, tries, &others, &record);
    attachment.spared = spared.take();
    // this also restores the temporary values of a killed verb
    if let Err(error) = spared::take_back(node, attachment) {
        left.push(error.to_string());
    }
    let note_lacks = |restored: &mut Restored| {
        restored.lacks = given_up::note(node.store.root(), attachment, restored);
        // do not wait for a network manager after a refused attribute: each restore would try the attribute again
        restored.has_to_outlast = !restored.lacks.iter().any(Lack::was_tried)
            && plan::has_to_outlast(attachment, &restored.rails)
            && node.kernel.is_watched();
    };
    match (restored, left.is_empty()) {
        (Ok(mut restored), is_all) => {
            char_devices::settle_on_host(node.store.root(), attachment, &restored.observed);
            note_lacks(&mut restored);
            match is_all {
                true => no_address_lingers(node, pod, attachment, restored),
                false => Err(Incomplete {
                    restored: Some(Box::new(restored)),
                    ..Incomplete::from(left)
                }),
            }
        }
        (Err(mut devices), _) => {
            devices.restored.iter_mut().for_each(|it| note_lacks(it));
            Err(Incomplete::from(left).and(devices))
        }
    }
}

/// Records the result of a restore: the rails' stages, and after a failure the phase and `tried`. Keeps the phase of a
/// killed ADD, because that ADD may not have moved any device.
fn note<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    restored: &Result<Restored, Incomplete>,
) {
    let before = attachment.clone();
    let mut rails = attachment.rails.iter();
    if rails.any(|it| matches!(it.stage, Stage::Rebinding { .. })) {
        match node.kernel.observe(pod) {
            Ok(observed) => {
                let rails = attachment.rails.iter_mut();
                let rebound = rails.filter(|it| plan::is_rebound(it, &observed));
                rebound.for_each(|it| it.stage = Stage::Rebound);
            }
            Err(error) => log::warn!(
                "{}: cannot check whether drivers were bound again: {error}; the next restore may bind them once more",
                attachment.key
            ),
        }
    }
    if restored.is_err() {
        attachment.tried = true;
        if attachment.phase != Phase::Attaching {
            attachment.phase = Phase::Detaching;
        }
    }
    if *attachment != before {
        mark(node, attachment, attachment.phase);
    }
}

/// Restores the devices to the host as far as possible. The caller holds the lock as for `restore_once`. With
/// `rebind_driver`, drivers are bound again before rails become free for other pods.
pub fn restore_devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    tried_before: bool,
    elsewhere: Elsewhere,
) -> Result<Restored, Incomplete> {
    let is_awaited = elsewhere == Elsewhere::Awaited;
    // `Left` binds no driver of a missing device, so it leaves the device to DEL
    let waits = is_awaited || elsewhere == Elsewhere::Left && attachment.rebind_driver;
    let tries = Tries::new(tried_before, waits, node.store.age(&attachment.key));
    let mut restored = restore_once(node, pod, attachment, tries);
    if restored
        .as_ref()
        .is_err_and(|it| it.continues || it.awaited && is_awaited)
    {
        return restored;
    }
    match bind_anew(node, pod, attachment, &restored, elsewhere) {
        Ok(false) => {}
        Ok(true) => restored = restore_once(node, pod, attachment, tries),
        // no rail becomes free for other pods
        Err(error) => {
            let error = Incomplete::from(vec![error.to_string()]);
            let incomplete = match restored {
                Ok(_) => error,
                Err(incomplete) => incomplete.and(error),
            };
            restored = Err(Incomplete {
                restored: None,
                ..incomplete
            });
        }
    }
    note(node, pod, attachment, &restored);
    restored
}

/// Records which drivers the next try binds again ([`plan::rebinds`]), from the result `restored` and all unrestored
/// records of this boot. Returns false if the next try binds no driver, or if an unreadable record may use one of the
/// functions.
fn bind_anew<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    restored: &Result<Restored, Incomplete>,
    elsewhere: Elsewhere,
) -> Result<bool, Error> {
    if !attachment.rebind_driver {
        return Ok(false);
    }
    let home = match restored {
        Ok(_) => (0..attachment.rails.len()).collect(),
        Err(incomplete) => incomplete.home().to_vec(),
    };
    let is_last_resort = elsewhere == Elsewhere::Rebind;
    let observed = node.kernel.observe(pod)?;
    let among =
        |others: &[Attachment]| plan::rebinds(attachment, others, &observed, &home, is_last_resort);
    if among(&[]).is_empty() || !node.store.unreadable()?.is_empty() {
        return Ok(false);
    }
    let rebinds = among(&node.store.on_this_boot(attachment)?);
    if rebinds.is_empty() {
        return Ok(false);
    }
    let is_lost = rebinds.iter().any(|(_, index, _)| *index == 0);
    for (rail, index, driver) in rebinds {
        let rail = &mut attachment.rails[rail];
        let why = match index {
            0 => "the rail's netdev or RDMA device is neither on the host nor in the pod",
            _ => "the netdev may have upper netdevs in other namespaces",
        };
        let name = rail.name();
        log::warn!("binding the driver {driver} of {name} again: {why}");
        rail.stage = Stage::Rebinding { index, driver };
    }
    match node.store.update(attachment) {
        // if the device is on the host, a failed write is only logged. The function then stays without a driver if this
        // process is killed while the driver is unbound
        Err(error) if !is_lost => log::warn!(
            "{}: {error}; the driver is bound again without a record",
            attachment.key
        ),
        updated => updated?,
    }
    Ok(true)
}

/// Returns `restored`. Returns an error if the host's RDMA devices still have an address of the ended pod, or if their
/// addresses cannot be read. If an address remains, a process keeps the pod's namespace alive, and the restore is
/// incomplete.
fn no_address_lingers<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &Attachment,
    restored: Restored,
) -> Result<Restored, Incomplete> {
    if pod.is_some() {
        return Ok(restored);
    }
    let (why, awaited) = match gids::lingering(node.kernel, attachment) {
        Err(error) => (error.to_string(), false),
        Ok(in_use) => {
            // ignore an address that another pod has now
            let mut lingering = in_use.iter().filter(|ip| {
                let store = &node.store;
                !store.is_given_to_another(node.kernel, attachment, **ip)
            });
            let Some(address) = lingering.next() else {
                return Ok(restored);
            };
            let kept = "is still configured: a process keeps the ended pod's namespace alive";
            (format!("{address} {kept}"), true)
        }
    };
    Err(Incomplete {
        awaited,
        restored: Some(Box::new(restored)),
        ..Incomplete::from(vec![why])
    })
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
        mark(node, attachment, Phase::Restored);
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
