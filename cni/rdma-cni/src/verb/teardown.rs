// SPDX-License-Identifier: Apache-2.0
//! Steps that every restore has: the pod's namespace if it is still the same one, devices, addresses, record.

use super::{Node, outlast, spared};
use crate::{
    apply::{self, Incomplete, Restored},
    char_devices, claims,
    error::Error,
    gids, given_up,
    ipam::{self, Ipam, IpamError, RailCall, Rails},
    rails,
};
use attachments::{Attachment, Key, Phase, Spared, Stage, given_up::Lack, store::Lock};
use cni_protocol::Command;
use network_conf::Conf;
use plan::Others;
use rdma_netns::{Asked, Kernel, Pod};
use serde_json::{Map, Value};
use std::{
    cell::RefCell,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Maximum wait for the devices of a dying namespace.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time of removing a pod's netdevs on its rails. Some program may make new ones as fast.
const LONGEST: Duration = Duration::from_secs(60);

/// Pause in which others may move devices.
const PAUSE: Duration = Duration::from_millis(50);

/// The namespace of `attachment`, if that one still exists: another one at the same path
/// is none of its business.
pub fn pod_of<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
) -> Result<Option<K::Pod>, Error> {
    let pod = node.pod_if_there(&attachment.netns)?;
    Ok(pod.filter(|pod| pod.id() == attachment.netns_id))
}

/// Restores `attachment` to the host, gives its addresses back and forgets it. The record stays
/// until all of that is done, so that it can be tried again.
pub fn attachment<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    lock: Lock,
) -> Result<(), Error> {
    if attachment.phase == Phase::Attached {
        // should this be killed, whoever comes next knows that the pod is done with them
        attachment.phase = Phase::Detaching;
        mark(node, attachment, Phase::Detaching);
    }
    devices(node, attachment, pod).inspect_err(|error| remember_named(node, attachment, error))?;
    forget_rails(node, attachment);
    let netns = pod.map(|pod| pod.path().display().to_string());
    addresses(node, attachment, netns.as_deref(), &[]).map_err(Error::Release)?;
    node.store
        .remove(&attachment.key, lock)
        .map_err(Error::Forget)
}

/// Records the netdevs that the DEL with this `error` names as they may be the host's. The next DEL removes them.
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

/// Takes the rails' file away as soon as what it tells is not the pod's any more, whatever IPAM
/// says. That it is there longer harms nobody. No container is made by the pod's claims any more.
pub fn forget_rails<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment) {
    let (key, pod) = (&attachment.key, attachment.pod.as_deref());
    claims::left(node.store.root(), &key.container);
    tell_no_more(node, key, pod);
}

/// Takes the rails of `key` out of its pod's file. Nobody would take them out later: what fails for a moment is tried
/// again. What a pod may have put there is no reason to keep its devices.
pub fn tell_no_more<K>(node: &Node<'_, K>, key: &Key, pod: Option<&str>) {
    let remove = || rails::remove(node.store.root(), node.store.patience(), key, pod);
    if let Err(error) = remove().or_else(|_| remove()) {
        log::warn!("{error}");
    }
}

/// Records how far `attachment` got, and logs a failure. Without the record another verb takes over later, DEL repeats a
/// report of netdevs that may be the host's, and one that ends at the same moment does not know which objects of SMC-R are
/// whose.
pub fn mark<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, phase: Phase) {
    let marked = Attachment {
        phase,
        ..attachment.clone()
    };
    if let Err(error) = node.store.amend(&marked) {
        log::warn!("{error}");
    }
}

/// Restores the devices to the host, and waits a while for those of a namespace that is just dying.
/// After a reboot every device is on the host, with what the node's set-up gave it.
pub fn devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
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
            false => Elsewhere::BoundAnew,
        };
        let restored = {
            // children that end concern their pod alone
            let moves = attachment.changes_host().then(|| node.store.lock_node());
            let _moves = moves.transpose().map_err(|error| match has_begun {
                true => Error::Unfinished(error),
                false => Error::State(error),
            })?;
            has_begun = true;
            restore_devices(node, attachment, pod, tried_before, elsewhere)
                .inspect(|restored| outlast::leave_to_nobody(node, attachment, restored))
        };
        match restored {
            Err(incomplete) if incomplete.continues && node.kernel.now() < last => {
                node.kernel.pause(PAUSE);
            }
            Err(incomplete) if incomplete.awaited && elsewhere == Elsewhere::Awaited => {
                node.kernel.pause(PAUSE);
            }
            restored => {
                outlast::managers(node, attachment, pod, tried_before, restored)?;
                return Ok(());
            }
        }
    }
}

/// Treatment of devices in a namespace that is neither the host's nor the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The same verb tries again: no rail is another owner's yet.
    Awaited,
    /// The devices stay there.
    Left,
    /// The drivers are bound anew, as the last resort.
    BoundAnew,
}

/// Runs `restore_once`, and records its result.
pub fn restore<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    tried_before: bool,
) -> Result<Restored, Incomplete> {
    let restored = restore_once(node, pod, attachment, tried_before);
    let restored = restored.and_then(|it| no_address_lingers(node, pod, attachment, it));
    note(node, pod, attachment, &restored);
    restored
}

/// Takes SMC-R away, so that no connection comes over a device that goes, and brings the netdevs
/// and RDMA devices back to the host, and their CDI entries; the node's lock is held by the caller, if that
/// [changes the host](Attachment::changes_host). `tried_before`: another verb did.
fn restore_once<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    tried_before: bool,
) -> Result<Restored, Incomplete> {
    // others wait for the node's lock
    node.kernel.ask_only(Some(Asked {
        no_pod_routes: true,
        ..attachment.devices().into()
    }));
    let mut left = smcr::apply::take_away(node.smcr(), pod, attachment);
    let others = || {
        let mut unrestored = node.store.on_this_boot(attachment)?;
        // nothing of a living pod gives way
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
    let restored = apply::restore(node.kernel, pod, attachment, tried_before, &others, &record);
    attachment.spared = spared.take();
    // of a verb that was killed as well
    if let Err(error) = spared::take_back(node, attachment) {
        left.push(error.to_string());
    }
    let tell = |restored: &mut Restored| {
        restored.lacks = given_up::note(node.store.root(), attachment, restored);
        // where something was given up, all is as it is: it would be tried once more each time
        restored.has_to_outlast = !restored.lacks.iter().any(Lack::was_tried)
            && plan::has_to_outlast(attachment, &restored.rails)
            && node.kernel.is_watched();
    };
    match (restored, left.is_empty()) {
        (Ok(mut restored), is_all) => {
            char_devices::settle_on_host(node.store.root(), attachment, &restored.observed);
            tell(&mut restored);
            match is_all {
                true => Ok(restored),
                false => Err(Incomplete {
                    restored: Some(Box::new(restored)),
                    ..Incomplete::from(left)
                }),
            }
        }
        (Err(mut devices), _) => {
            devices.restored.iter_mut().for_each(|it| tell(it));
            Err(Incomplete::from(left).and(devices))
        }
    }
}

/// Says in the record what a try made of the rails, as long as the node's lock is held. An ADD that was killed may have moved
/// nothing, whoever tries to restore that.
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
            Err(error) => log::warn!("{error}"),
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

/// Restores the devices to the host, as far as they can be; the caller has the lock as for [`restore`]. Before rails are left
/// to other owners, drivers are bound anew where that is to be.
pub fn restore_devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    tried_before: bool,
    elsewhere: Elsewhere,
) -> Result<Restored, Incomplete> {
    let once = |attachment: &mut Attachment| {
        let restored = restore_once(node, pod, attachment, tried_before)?;
        no_address_lingers(node, pod, attachment, restored)
    };
    let mut restored = once(attachment);
    let is_awaited = elsewhere == Elsewhere::Awaited;
    if restored
        .as_ref()
        .is_err_and(|it| it.continues || it.awaited && is_awaited)
    {
        return restored;
    }
    match bind_anew(node, pod, attachment, &restored, elsewhere) {
        Ok(false) => {}
        Ok(true) => restored = once(attachment),
        // no rail is left to others
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

/// Records the drivers that are bound anew by the next try, as [`plan::rebinds`] says after the one that `restored`, with all
/// other records of this boot whose devices are not restored. False: there are none; or there is a record that cannot be
/// read, and that may have one of them.
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
    let is_last_resort = elsewhere == Elsewhere::BoundAnew;
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
            0 => "it is in a namespace that is neither the host's nor the pod's",
            _ => "netdevs in other namespaces may lie on it",
        };
        let name = rail.name();
        log::warn!("the driver {driver} of {name} is bound anew: {why}");
        rail.stage = Stage::Rebinding { index, driver };
    }
    match node.store.update(attachment) {
        // a full disk keeps no device that is on the host; killed before its driver is bound, a function stays without
        Err(error) if !is_lost => log::warn!("{error}"),
        updated => updated?,
    }
    Ok(true)
}

/// An address of a pod that is gone, on the host's RDMA devices, says that a process keeps the pod's namespace: not all of
/// what was `restored` is.
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
            // a pod that has the same address now is not this one's namespace
            let mut lingering = in_use.iter().filter(|ip| {
                let store = &node.store;
                !store.is_given_to_another(node.kernel, attachment, **ip)
            });
            let Some(address) = lingering.next() else {
                return Ok(restored);
            };
            let kept = "is still configured: its pod's namespace is kept alive by a process";
            (format!("{address} {kept}"), true)
        }
    };
    Err(Incomplete {
        awaited,
        restored: Some(Box::new(restored)),
        ..Incomplete::from(vec![why])
    })
}

/// Gives the addresses of all rails, whose devices are on the host, back, with the configuration of ADD. Where IPAM refuses that, the
/// present one counts as well, which may have been corrected since: for a rail that IPAM refused at
/// ADD, and for any where it says that it is the configuration that it cannot do. A rail that both
/// refuse, and that was refused at ADD, holds nothing. What was given, or may have been, is never
/// forgotten: an IPAM plugin of another kind would know nothing of it. Of `conflicts`, which another machine was found to
/// have, each rail's are told with it.
pub fn addresses<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    netns: Option<&str>,
    conflicts: &[IpAddr],
) -> Result<(), IpamError> {
    if attachment.ipam.is_some() {
        // IPAM may take its time: others can have the devices meanwhile, and leave nothing to this attachment
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

/// Releases addresses as [`addresses`] does, and stops at `deadline`.
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
    for rail in attachment.rails.iter().filter(|rail| rail.is_ours()) {
        let addresses = &rail.given.addresses;
        let is_its = |ip: &&IpAddr| addresses.iter().any(|address| address.ip == **ip);
        let conflicts: Vec<IpAddr> = conflicts.iter().filter(is_its).copied().collect();
        let call = RailCall {
            container: &attachment.key.container,
            netns,
            args: attachment.args.as_deref(),
            pod_name: &rail.pod_name,
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
        log::warn!("{error}");
        let is_corrected = present.is_some_and(|present| {
            let counts = rail.ipam_refused || error.is_configuration() && present == name;
            let asked = counts.then(|| del(present, &node.conf.raw));
            let asked =
                asked.map(|it| it.inspect_err(|error| log::warn!("as configured now: {error}")));
            asked.is_some_and(|it| it.is_ok())
        });
        if is_corrected {
            log::info!(
                "{}: its addresses are given back as is configured now",
                rail.pod_name
            );
        } else if rail.ipam_refused && attachment.phase == Phase::Restored && error.is_answer() {
            // the failed ADD has asked already, and left the record to this verb
            log::info!(
                "{}: IPAM refused it an address, so that none is held",
                rail.pod_name
            );
        } else {
            first.get_or_insert(error);
        }
    }
    if let Err(error) = calls.settle() {
        log::warn!("{error}");
        first.get_or_insert(error);
    }
    first.map_or(Ok(()), Err)
}

/// The IPAM plugin that the network has now, if its configuration was changed since ADD. Another
/// network's verb that recovers it has nothing to say of it.
fn present_ipam<'a, K>(node: &Node<'a, K>, attachment: &Attachment) -> Option<&'a str> {
    // what a runtime adds differs from verb to verb
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
