// SPDX-License-Identifier: Apache-2.0
//! SMC-R for a pod: chooses, records, applies and removes it. The node's lock, which moves also take, allows only one
//! attachment at a time to change SMC-R. Several pods can share a pnet entry. The last of these pods removes the entry.

mod error;
mod take_away;

pub use error::{Error, SmcError};
pub use take_away::{log_orphaned_entries, take_away};

use crate::decision::{self, Chosen, SkipReason, SmcInput};
use attachments::{Attachment, Key, Smc, SmcStatus, Store, store::AttachmentLock};
use network_conf::{Conf, SmcRequirement, Smcr};
use plan::drift;
use rdma_netns::{
    Desired, GidTable, Kernel, Observed, OpError, Plan, Refusal, reconcile, smc::SmcState,
};
use serde_json::Value;
use std::fmt::Write as _;

/// Kernel, configuration and records of the node.
#[derive(Debug)]
pub struct Node<'a, K> {
    /// Kernel.
    pub kernel: &'a K,
    /// Configuration.
    pub conf: &'a Conf,
    /// Records.
    pub store: &'a Store,
}

impl<K> Clone for Node<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

// not derived, because `derive` would require K: Copy
impl<K> Copy for Node<'_, K> {}

/// Largest number of rounds of changes. If the state then still differs, set-up fails with [`SmcError::Unstable`].
const ROUNDS: usize = 3;

/// Checks before the first change whether the pod can have SMC-R. If not, returns an error if SMC-R is required, and
/// else writes the reason into the record.
pub fn foresee<K: Kernel>(
    node: Node<'_, K>,
    requirement: SmcRequirement,
    pod: &K::Pod,
    attachment: &mut Attachment,
    observed: &Observed,
) -> Result<(), SmcError> {
    if requirement == SmcRequirement::None {
        return Ok(());
    }
    let required = requirement == SmcRequirement::Required;
    let error = match node.kernel.smc(Some(pod)) {
        Err(error) => SmcError::from(error),
        Ok(smc_state) => {
            match decision::blocker(attachment, observed, smc_state.as_ref(), required) {
                None => return Ok(()),
                Some(blocker) => blocker.into(),
            }
        }
    };
    if required {
        return Err(error);
    }
    attachment.smc = Some(off(&attachment.key, &error));
    Ok(())
}

/// Sets up SMC-R for a pod. The rails must already be in the pod and have their GIDs. Does nothing if the pod does not
/// request SMC-R, or if [`foresee`] has recorded a reason against it.
pub fn set_up<K: Kernel>(
    node: Node<'_, K>,
    requirement: SmcRequirement,
    pod: &K::Pod,
    attachment: &mut Attachment,
    observed: &Observed,
    lock: &AttachmentLock,
) -> Result<(), Error> {
    if requirement == SmcRequirement::None || attachment.smc.is_some() {
        return Ok(());
    }
    let _moves = node.store.lock_node(lock)?;
    let others = node.store.on_this_boot(attachment)?;
    let (chosen, smc_state) = match decide(node, requirement, pod, attachment, observed, &others) {
        Ok(decided) => decided,
        Err(error) if requirement == SmcRequirement::Required => return Err(error.into()),
        Err(error) => {
            attachment.smc = Some(off(&attachment.key, &error));
            return Ok(());
        }
    };
    log_without(&attachment.key, &chosen);
    attachment.smc = Some(chosen);
    if !attachment.smc.as_ref().is_some_and(Smc::is_set) {
        return Ok(());
    }
    // save the record first: if this process is killed, DEL must find every possible change in the record
    node.store.save(attachment)?;
    match make(node, pod, attachment) {
        Ok(()) => log_active(attachment, &smc_state),
        Err(error) if requirement == SmcRequirement::Required => return Err(error.into()),
        Err(error) => {
            let smc_off = off(&attachment.key, &error);
            give_up(node, pod, attachment, smc_off);
            // save the record before the lock is released: another pod must not rely on entries that this pod has
            // removed
            node.store.update(attachment)?;
        }
    }
    Ok(())
}

/// Removes the pod's SMC-R, and sets `smc_off` in `attachment` instead. If something could not be removed, `attachment`
/// keeps all entries, so that DEL tries again.
fn give_up<K: Kernel>(
    node: Node<'_, K>,
    pod: &K::Pod,
    attachment: &mut Attachment,
    mut smc_off: Smc,
) {
    let left = take_away(node, Some(pod), attachment);
    if let Some(set) = attachment.smc.take() {
        // DEL tries again to restore these entries of other attachments and programs
        smc_off.returning = set.returning;
        if !left.is_empty() {
            log::warn!("{}", left.join("; "));
            smc_off.entries = set.entries;
            smc_off.ueid = set.ueid;
            smc_off.tcp2smc = set.tcp2smc;
            smc_off.max_links = set.max_links;
        }
    }
    attachment.smc = Some(smc_off);
}

/// Decides which SMC-R set-up the pod gets. Also returns the state of SMC from which it decided.
fn decide<K: Kernel>(
    node: Node<'_, K>,
    requirement: SmcRequirement,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
    others: &[Attachment],
) -> Result<(Smc, SmcState), SmcError> {
    let smc_state = node.kernel.smc(Some(pod))?.ok_or(SkipReason::NoSmc)?;
    let gids = gids(node, pod, attachment, observed);
    // observe after reading the GIDs: the observation then contains the addresses of all GIDs
    let observed = &node.kernel.observe(Some(pod))?;
    let Chosen { smc, without } = decision::choose(SmcInput {
        attachment,
        others,
        observed,
        smc_state: &smc_state,
        gids: Some(&gids),
        primary: Some(&primary(node, &attachment.key)),
        ueid: node.conf.smc.ueid.as_deref(),
    });
    if requirement == SmcRequirement::Required
        && let Some((name, reason)) = without.into_iter().next()
    {
        return Err(SmcError::Without { name, reason });
    }
    if requirement == SmcRequirement::Required && smc.state == SmcStatus::Off {
        return Err(SmcError::Nothing(smc.reason.unwrap_or_default()));
    }
    Ok((smc, smc_state))
}

fn log_without(key: &Key, smc: &Smc) {
    let reason = smc.reason.as_deref().unwrap_or_default();
    match smc.state {
        SmcStatus::Off => log::warn!("{key}: SMC-R: {reason}; the pod's connections use TCP"),
        SmcStatus::Active if !reason.is_empty() => {
            log::warn!("{key}: some interfaces have no SMC-R: {reason}");
        }
        SmcStatus::Active => {}
    }
}

/// Returns the GIDs of each rail's port, as the pod sees them. A value is `None` if the rail has no RDMA device, or the
/// GIDs cannot be read.
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

/// Returns the name of the pod's primary interface: the first interface that an earlier plugin made in the pod, or
/// otherwise the interface that the runtime names.
fn primary<K>(node: Node<'_, K>, key: &Key) -> String {
    let previous = node.conf.network.prev_result.as_ref();
    let interfaces = previous.and_then(|result| result["interfaces"].as_array());
    let is_in_pod = |it: &&Value| it["sandbox"].as_str().is_some_and(|it| !it.is_empty());
    let mut in_pod = interfaces.into_iter().flatten().filter(is_in_pod);
    let name = in_pod.next().and_then(|it| it["name"].as_str());
    name.unwrap_or(&key.interface).to_owned()
}

/// Applies the changes until the plan is empty.
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

/// Desired state: the chosen SMC-R.
struct Set<'a, K: Kernel> {
    kernel: &'a K,
    pod: &'a K::Pod,
    smc: &'a Smc,
}

impl<K: Kernel> Desired for Set<'_, K> {
    type Reached = ();
    type Error = SmcError;

    fn plan(&mut self) -> Result<Plan<()>, SmcError> {
        let smc_state = self.kernel.smc(Some(self.pod))?.ok_or(SkipReason::NoSmc)?;
        let ops = decision::attach(self.smc, &smc_state);
        Ok(match ops.is_empty() {
            true => Plan::Reached(()),
            false => Plan::Missing(ops),
        })
    }

    fn refused(&mut self, error: OpError) -> Refusal<SmcError> {
        Refusal::End(error.into())
    }
}

/// Returns a sentence for each difference between the record and the kernel. Only logs misfits that other pods caused.
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
    let Some(smc_state) = node.kernel.smc(Some(pod))? else {
        // if the kernel has no SMC, the pod differs from its record only if the record says that SMC-R is active
        let lost =
            (smc.state == SmcStatus::Active).then(|| format!("SMC-R: {}", SkipReason::NoSmc));
        return Ok(lost.into_iter().collect());
    };
    let ops = decision::missing(smc, &smc_state);
    let mut drift: Vec<String> = ops.iter().map(|op| drift::describe(op, observed)).collect();
    let gids = gids(node, pod, attachment, observed);
    let observed = &node.kernel.observe(Some(pod))?;
    let others = node.store.on_this_boot(attachment)?;
    let input = SmcInput {
        attachment,
        others: &others,
        observed,
        smc_state: &smc_state,
        gids: Some(&gids),
        primary: None,
        ueid: None,
    };
    // leave out differences that other pods made, because they are no drift of this pod
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
            log::warn!("{key}: SMC-R does not fit {name} because of another pod: {why}");
        }
    }
    drift.extend(
        misfits
            .iter()
            .map(|(name, why)| format!("SMC-R of {name}: {why}")),
    );
    Ok(drift)
}

/// Returns the commands by which ADD would set up SMC-R. Assumes that the GIDs fit.
pub fn preview<K: Kernel>(
    node: Node<'_, K>,
    requirement: SmcRequirement,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
    name: &str,
) -> Result<String, Error> {
    if requirement == SmcRequirement::None {
        return Ok(String::new());
    }
    let required = requirement == SmcRequirement::Required;
    let mut text = String::new();
    // do not observe if SMC is not loaded, because the observation would load the module
    let smc_state = match node.kernel.has_smc() {
        true => node.kernel.smc(Some(pod))?,
        false => {
            text += "# SMC is not loaded: ADD loads it if this kernel has it\n";
            Some(SmcState::default())
        }
    };
    if let Some(blocker) = decision::blocker(attachment, observed, smc_state.as_ref(), required) {
        return match required {
            true => Err(SmcError::from(blocker).into()),
            false => Ok(format!("# no SMC-R: {blocker}\n")),
        };
    }
    let smc_state = smc_state.unwrap_or_default();
    let others = node.store.on_this_boot(attachment)?;
    let chosen = decision::choose(SmcInput {
        attachment,
        others: &others,
        observed,
        smc_state: &smc_state,
        gids: None,
        primary: Some(&primary(node, &attachment.key)),
        ueid: node.conf.smc.ueid.as_deref(),
    });
    text += "# then SMC-R, if the GIDs of the pod's addresses allow it:\n";
    for op in decision::attach(&chosen.smc, &smc_state) {
        let _ = writeln!(text, "{}", op.command(name));
    }
    Ok(text)
}

/// Returns an error text for STATUS if the configuration requires SMC-R for all pods, and the kernel has no SMC or does
/// not report its state.
pub fn status<K: Kernel>(node: Node<'_, K>) -> Option<String> {
    if node.conf.smc.smcr != Smcr::On {
        return None;
    }
    match node.kernel.smc(None) {
        Ok(Some(_)) => None,
        Ok(None) => Some(SmcError::from(SkipReason::NoSmc).to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Logs that the pod stays without SMC-R. Returns the SMC-R part of the record.
fn off(key: &Key, error: &SmcError) -> Smc {
    log::warn!("{key}: {error}; the pod's connections use TCP");
    Smc::off(error.to_string())
}

fn log_active(attachment: &Attachment, smc_state: &SmcState) {
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
            "SMC-R: {device} port {} (pnet id {}) can carry IPv4 connections of {name}; IPv6 stays TCP \
             with SMC-Rv2 and eRDMA",
            carried.port,
            carried.pnet_id
        );
    }
    match smc_state.tcp2smc {
        Some(_) => {
            log::info!("SMC-R: the kernel turns TCP sockets into SMC sockets (net.smc.tcp2smc)")
        }
        None => log::info!(
            "SMC-R: this kernel has no net.smc.tcp2smc: it accelerates only sockets that programs open as \
             AF_SMC (smc_run does this for them), or with IPPROTO_SMC since Linux 6.11; all others stay TCP"
        ),
    }
}
