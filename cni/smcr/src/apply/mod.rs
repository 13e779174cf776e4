// SPDX-License-Identifier: Apache-2.0
//! SMC-R of a pod: chosen, recorded, set, and taken away again. One at a time on a node, as moves
//! are: several pods can have the same entries, and the last one takes them away.

mod error;
mod take_away;

pub use error::{Error, SmcError};
pub use take_away::{take_away, tell_lost};

use crate::decision::{self, Blocker, Chosen, SmcInput};
use attachments::{Attachment, Key, Smc, SmcStatus, Store};
use network_conf::{Conf, SmcRequirement, Smcr};
use plan::drift;
use rdma_netns::{
    Desired, GidTable, Kernel, Observed, OpError, Plan, Refusal, reconcile, smc::SmcState,
};
use serde_json::Value;
use std::fmt::Write as _;

/// What SMC-R is set up with.
#[derive(Debug)]
pub struct Node<'a, K> {
    /// The kernel.
    pub kernel: &'a K,
    /// The configuration.
    pub conf: &'a Conf,
    /// The records.
    pub store: &'a Store,
}

impl<K> Clone for Node<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

// what it refers to need not be
impl<K> Copy for Node<'_, K> {}

/// How often is planned anew.
const ROUNDS: usize = 3;

/// Before the first change: what already tells that the pod cannot have SMC-R. It is an error
/// only where SMC-R is required; else the record says why the pod has none.
pub fn foresee<K: Kernel>(
    node: Node<'_, K>,
    wish: SmcRequirement,
    pod: &K::Pod,
    attachment: &mut Attachment,
    observed: &Observed,
) -> Result<(), SmcError> {
    if wish == SmcRequirement::None {
        return Ok(());
    }
    let required = wish == SmcRequirement::Required;
    let found = match node.kernel.smc(Some(pod)) {
        Err(error) => Err(SmcError::from(error)),
        Ok(seen) => match decision::blocker(attachment, observed, seen.as_ref(), required) {
            None => Ok(()),
            Some(blocker) => Err(blocker.into()),
        },
    };
    match found {
        Err(error) if required => Err(error),
        Err(error) => {
            attachment.smc = Some(off(&attachment.key, &error));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Sets SMC-R up for a pod whose rails are in their places, with their GIDs.
pub fn set_up<K: Kernel>(
    node: Node<'_, K>,
    wish: SmcRequirement,
    pod: &K::Pod,
    attachment: &mut Attachment,
    observed: &Observed,
) -> Result<(), Error> {
    if wish == SmcRequirement::None || attachment.smc.is_some() {
        return Ok(());
    }
    let _moves = node.store.lock_node()?;
    let others = node.store.on_this_boot(attachment)?;
    let (chosen, seen) = match decide(node, wish, pod, attachment, observed, &others) {
        Ok(decided) => decided,
        Err(error) if wish == SmcRequirement::Required => return Err(error.into()),
        Err(error) => {
            attachment.smc = Some(off(&attachment.key, &error));
            return Ok(());
        }
    };
    tell_without(&attachment.key, &chosen);
    attachment.smc = Some(chosen);
    if !attachment.smc.as_ref().is_some_and(Smc::is_set) {
        return Ok(());
    }
    // should this be killed, it is known what may be set
    node.store.save(attachment)?;
    match make(node, pod, attachment) {
        Ok(()) => tell(attachment, &seen),
        Err(error) if wish == SmcRequirement::Required => return Err(error.into()),
        Err(error) => {
            let without = off(&attachment.key, &error);
            give_up(node, pod, attachment, without);
            // nobody may leave to it, as soon as the lock is free, what it does not have any more
            node.store.update(attachment)?;
        }
    }
    Ok(())
}

/// Takes away what of SMC-R is set; what is left of it is in the record `without`, for DEL.
fn give_up<K: Kernel>(
    node: Node<'_, K>,
    pod: &K::Pod,
    attachment: &mut Attachment,
    mut without: Smc,
) {
    let left = take_away(node, Some(pod), attachment);
    if let Some(set) = attachment.smc.take() {
        // DEL tries again
        without.returning = set.returning;
        if !left.is_empty() {
            log::warn!("{}", left.join("; "));
            without.entries = set.entries;
            without.ueid = set.ueid;
            without.tcp2smc = set.tcp2smc;
            without.max_links = set.max_links;
        }
    }
    attachment.smc = Some(without);
}

/// What is to be set up, and the state that says so.
fn decide<K: Kernel>(
    node: Node<'_, K>,
    wish: SmcRequirement,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
    others: &[Attachment],
) -> Result<(Smc, SmcState), SmcError> {
    let seen = node.kernel.smc(Some(pod))?.ok_or(Blocker::NoSmc)?;
    let gids = gids(node, pod, attachment, observed);
    // after the GIDs, so that the addresses of all of them are seen
    let observed = &node.kernel.observe(Some(pod))?;
    let Chosen { smc, without } = decision::choose(SmcInput {
        attachment,
        others,
        observed,
        seen: &seen,
        gids: Some(&gids),
        primary: Some(&primary(node, &attachment.key)),
        ueid: node.conf.smc.ueid.as_deref(),
    });
    if wish == SmcRequirement::Required
        && let Some((name, reason)) = without.into_iter().next()
    {
        return Err(SmcError::Without { name, reason });
    }
    if wish == SmcRequirement::Required && smc.state == SmcStatus::Off {
        return Err(SmcError::Nothing(smc.reason.unwrap_or_default()));
    }
    Ok((smc, seen))
}

/// What goes without, told once.
fn tell_without(key: &Key, smc: &Smc) {
    let reason = smc.reason.as_deref().unwrap_or_default();
    match smc.state {
        SmcStatus::Off => log::warn!("{key}: SMC-R: {reason}; its connections are TCP"),
        SmcStatus::Active if !reason.is_empty() => {
            log::warn!("{key}: in part without SMC-R: {reason}");
        }
        SmcStatus::Active => {}
    }
}

/// The GIDs of each rail's port, as the pod sees them; what cannot be read is none.
fn gids<K: Kernel>(
    node: Node<'_, K>,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
) -> Vec<Option<GidTable>> {
    let whose = Some(pod).filter(|_| attachment.moves_rdma());
    let of_rail = |index: usize| {
        let (device, port) = decision::port_of(attachment, index, observed)?;
        let table = node.kernel.gids(whose, &device, port.into());
        table.map_err(|error| log::debug!("{error}")).ok()
    };
    (0..attachment.rails.len()).map(of_rail).collect()
}

/// The pod's primary interface: the first that the plugins before this one made in the pod, else
/// the one that the runtime names.
pub fn primary<K>(node: Node<'_, K>, key: &Key) -> String {
    let previous = node.conf.network.prev_result.as_ref();
    let interfaces = previous.and_then(|result| result["interfaces"].as_array());
    let is_in_pod = |it: &&Value| it["sandbox"].as_str().is_some_and(|it| !it.is_empty());
    let mut in_pod = interfaces.into_iter().flatten().filter(is_in_pod);
    let name = in_pod.next().and_then(|it| it["name"].as_str());
    name.unwrap_or(&key.interface).to_owned()
}

/// Makes the changes until nothing is missing.
fn make<K: Kernel>(
    node: Node<'_, K>,
    pod: &K::Pod,
    attachment: &Attachment,
) -> Result<(), SmcError> {
    let Some(smc) = &attachment.smc else {
        return Ok(());
    };
    let kernel = node.kernel;
    let mut chosen = Set { kernel, pod, smc };
    reconcile(kernel, Some(pod), ROUNDS, &mut chosen).map(|((), _)| ())
}

/// What was chosen for a pod, set.
struct Set<'a, K: Kernel> {
    kernel: &'a K,
    pod: &'a K::Pod,
    smc: &'a Smc,
}

impl<K: Kernel> Desired for Set<'_, K> {
    type Reached = ();
    type Error = SmcError;

    fn plan(&mut self) -> Result<Plan<()>, SmcError> {
        let seen = self.kernel.smc(Some(self.pod))?.ok_or(Blocker::NoSmc)?;
        let ops = decision::attach(self.smc, &seen);
        Ok(match ops.is_empty() {
            true => Plan::Reached(()),
            false => Plan::Missing(ops),
        })
    }

    fn refused(&mut self, error: OpError) -> Refusal<SmcError> {
        Refusal::End(error.into())
    }
}

/// What of SMC-R is not as the record says, in words.
pub fn drift<K: Kernel>(
    node: Node<'_, K>,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
) -> Result<Vec<String>, Error> {
    let Some(smc) = attachment
        .smc
        .as_ref()
        .filter(|smc| smc.is_set() || !smc.interfaces.is_empty())
    else {
        return Ok(vec![]);
    };
    let Some(seen) = node.kernel.smc(Some(pod))? else {
        // what is off loses nothing by that
        let lost = (smc.state == SmcStatus::Active).then(|| format!("SMC-R: {}", Blocker::NoSmc));
        return Ok(lost.into_iter().collect());
    };
    let ops = decision::missing(smc, &seen);
    let mut drift: Vec<String> = ops.iter().map(|op| drift::words(op, observed)).collect();
    let gids = gids(node, pod, attachment, observed);
    let observed = &node.kernel.observe(Some(pod))?;
    let others = node.store.on_this_boot(attachment)?;
    let input = SmcInput {
        attachment,
        others: &others,
        observed,
        seen: &seen,
        gids: Some(&gids),
        primary: None,
        ueid: None,
    };
    // what another pod brought is no drift of this one
    let of_pod = decision::without_other_pods(attachment, &others, &gids);
    let is_own = |it: &&Attachment| it.netns_id == attachment.netns_id;
    let own: Vec<Attachment> = others.iter().filter(is_own).cloned().collect();
    let misfits = decision::misfits(SmcInput {
        others: &own,
        gids: Some(&of_pod),
        ..input
    });
    for (name, why) in decision::misfits(input) {
        if !misfits.iter().any(|(it, _)| *it == name) {
            let key = &attachment.key;
            log::warn!("{key}: SMC-R of {name}, by another pod since: {why}");
        }
    }
    drift.extend(
        misfits
            .iter()
            .map(|(name, why)| format!("SMC-R of {name}: {why}")),
    );
    Ok(drift)
}

/// The changes that ADD would make for SMC-R, each as its command, if the GIDs allow them.
pub fn preview<K: Kernel>(
    node: Node<'_, K>,
    wish: SmcRequirement,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
    name: &str,
) -> Result<String, Error> {
    if wish == SmcRequirement::None {
        return Ok(String::new());
    }
    let required = wish == SmcRequirement::Required;
    let mut text = String::new();
    // a look would load it
    let seen = match node.kernel.has_smc() {
        true => node.kernel.smc(Some(pod))?,
        false => {
            text += "# SMC is not loaded: ADD loads it, if this kernel has it\n";
            Some(SmcState::default())
        }
    };
    if let Some(blocker) = decision::blocker(attachment, observed, seen.as_ref(), required) {
        return match required {
            true => Err(SmcError::from(blocker).into()),
            false => Ok(format!("# no SMC-R: {blocker}\n")),
        };
    }
    let seen = seen.unwrap_or_default();
    let others = node.store.on_this_boot(attachment)?;
    let chosen = decision::choose(SmcInput {
        attachment,
        others: &others,
        observed,
        seen: &seen,
        gids: None,
        primary: Some(&primary(node, &attachment.key)),
        ueid: node.conf.smc.ueid.as_deref(),
    });
    text += "# then SMC-R, if the GIDs of the pod's addresses allow it:\n";
    for op in decision::attach(&chosen.smc, &seen) {
        let _ = writeln!(text, "{}", op.command(name));
    }
    Ok(text)
}

/// What STATUS can tell of it: whether pods that have to have SMC-R could.
pub fn status<K: Kernel>(node: Node<'_, K>) -> Option<String> {
    if node.conf.smc.smcr != Smcr::On {
        return None;
    }
    match node.kernel.smc(None) {
        Ok(Some(_)) => None,
        Ok(None) => Some(SmcError::from(Blocker::NoSmc).to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// The pod goes without SMC-R, which is told once.
fn off(key: &Key, error: &SmcError) -> Smc {
    log::warn!("{key}: {error}; its connections are TCP");
    Smc::off(error.to_string())
}

/// What is accelerated, and what is not.
fn tell(attachment: &Attachment, seen: &SmcState) {
    let Some(smc) = attachment
        .smc
        .as_ref()
        .filter(|it| it.state == SmcStatus::Active)
    else {
        return;
    };
    for carried in &smc.interfaces {
        let (name, device) = (&carried.interface, &carried.rdma_device);
        log::info!(
            "SMC-R: IPv4 connections by {name} can go over {device} port {} (pnet id {}); IPv6 stays \
             TCP with SMC-Rv2 and eRDMA",
            carried.port,
            carried.pnet_id
        );
    }
    match seen.tcp2smc {
        Some(_) => log::info!("SMC-R: TCP sockets are made SMC sockets (net.smc.tcp2smc)"),
        None => log::info!(
            "SMC-R: this kernel has no net.smc.tcp2smc: accelerated are sockets that programs open \
             as AF_SMC (smc_run does it for them), or with IPPROTO_SMC as of Linux 6.11; all others \
             stay TCP"
        ),
    }
}
