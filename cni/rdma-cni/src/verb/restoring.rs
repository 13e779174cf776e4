// SPDX-License-Identifier: Apache-2.0
//! Restores an attachment's devices to the host, and records the result.

use super::spared;
use crate::{
    apply::{self, Incomplete, Restored, Tries},
    char_devices, gids, given_up,
    node::Node,
};
use attachments::{Attachment, Phase, Spared, Stage, given_up::Lack};
use cni_protocol::Command;
use plan::Others;
use rdma_netns::{Kernel, ObservationScope};
use std::cell::RefCell;

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

/// Runs `restore_once`, and records its result. Gives up no missing netdev.
pub fn restore<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    tries: Tries,
) -> Result<Restored, Incomplete> {
    let restored = restore_once(node, pod, attachment, tries.min(Tries::Again));
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
        let all = node.store.on_this_boot(attachment)?;
        // the plan renames only netdevs of unsettled records: a living pod keeps the names of its netdevs
        let are_settled = attachments::settled(node.kernel, &attachment.boot_id, &all);
        let mut are_settled = are_settled.into_iter();
        let is_settled = |_: &Attachment| are_settled.next() != Some(false);
        let (settled, unrestored) = all.into_iter().partition(is_settled);
        let of_pod = node.store.of_same_pod(attachment)?;
        Ok(Others {
            unrestored,
            settled,
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
            if let Some(restored) = &mut devices.restored {
                // some rails returned, and their devices have other numbers
                char_devices::settle_on_host(node.store.root(), attachment, &restored.observed);
                note_lacks(restored);
            }
            Err(Incomplete::from(left).and(devices))
        }
    }
}

/// Records the result of a restore: the rails' stages, and a failure ([`set_failed`]).
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
        set_failed(node.kernel, attachment);
    }
    if *attachment != before {
        mark(node, attachment, attachment.phase);
    }
}

/// Sets the time of the first failed restore, and the phase. Keeps the phase of a killed ADD, because that ADD may not
/// have moved any device.
pub fn set_failed<K: Kernel>(kernel: &K, attachment: &mut Attachment) {
    attachment.failed_at.get_or_insert_with(|| kernel.uptime());
    if attachment.phase != Phase::Attaching {
        attachment.phase = Phase::Detaching;
    }
}

/// Restores the devices to the host as far as possible. The caller holds the lock as for `restore_once`. With
/// `rebind_driver`, drivers are bound again before rails become free for other pods.
pub fn restore_devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    tries: Tries,
    elsewhere: Elsewhere,
) -> Result<Restored, Incomplete> {
    let is_awaited = elsewhere == Elsewhere::Awaited;
    // `Left` binds no driver of a missing device, so it leaves the device to DEL
    let waits = is_awaited || elsewhere == Elsewhere::Left && attachment.rebind_driver;
    let tries = match waits {
        true => tries.min(Tries::Again),
        false => tries,
    };
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
) -> Result<bool, Incomplete> {
    if !attachment.rebind_driver {
        return Ok(false);
    }
    let home = match restored {
        Ok(_) => (0..attachment.rails.len()).collect(),
        Err(incomplete) => incomplete.home().to_vec(),
    };
    let is_last_resort = elsewhere == Elsewhere::Rebind;
    let observed = node.kernel.observe(pod).map_err(Incomplete::of)?;
    let among =
        |others: &[Attachment]| plan::rebinds(attachment, others, &observed, &home, is_last_resort);
    let unreadable = || node.store.unreadable().map_err(Incomplete::of);
    if among(&[]).is_empty() || !unreadable()?.is_empty() {
        return Ok(false);
    }
    let others = node.store.on_this_boot(attachment);
    let rebinds = among(&others.map_err(Incomplete::of)?);
    if rebinds.is_empty() {
        return Ok(false);
    }
    let is_lost = rebinds.iter().any(|(_, index, _)| *index == 0);
    for (rail, index, driver) in rebinds {
        let rail = &mut attachment.rails[rail];
        let why = match index {
            0 => "the rail's netdev or RDMA device is neither on the host nor in the pod",
            _ => "the pod may have made netdevs on it in other namespaces",
        };
        let name = rail.name();
        log::warn!("{name}: rebinding the driver {driver}, because {why}");
        rail.stage = Stage::Rebinding { index, driver };
    }
    match node.store.update(attachment) {
        // if the device is on the host, a failed write is only logged. The function then stays without a driver if this
        // process is killed while the driver is unbound
        Err(error) if !is_lost => log::warn!(
            "{}: {error}; the driver is bound again without a record",
            attachment.key
        ),
        updated => updated.map_err(Incomplete::of)?,
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
    let (why, awaited) = match gids::lingering(node, attachment) {
        Err(error) => (error.to_string(), false),
        Ok(in_use) => {
            let Some(address) = in_use.first() else {
                return Ok(restored);
            };
            let kept = "is still configured: a process keeps the ended pod's namespace alive";
            (format!("{address} {kept}"), true)
        }
    };
    Err(Incomplete {
        awaited,
        restored: Some(Box::new(restored)),
        ..Incomplete::of(why)
    })
}
