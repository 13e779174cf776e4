// SPDX-License-Identifier: Apache-2.0
//! Obtains the rails' addresses. IPAM assigns addresses, and probes check that no other machine uses them. If another
//! machine uses an address, IPAM assigns another address.

use crate::{
    apply::{self, ApplyError},
    error::Cause,
    ipam::{Answer, Ipam, IpamError, Known, Master, RailCall, Rails},
    node::Node,
    probe,
};
use attachments::{Attachment, DesiredLink};
use cni_protocol::{Command, result};
use rdma_netns::{Conflict, Kernel, Link, Neighbour, Observed, Pod};
use std::{borrow::Cow, mem, net::IpAddr};

/// Maximum number of requests to IPAM for a rail. A probe finds an address in use within milliseconds. If other nodes
/// use two thirds of a /24, one ADD in half a million would need more requests.
const TRIES: usize = 32;

/// Returns one answer for each rail. A rail whose netdev an earlier plugin put into the pod, or that has no netdev,
/// gets an empty answer. Returns `None` if the configuration has no IPAM plugin. Records an address on disk before ADD
/// uses it.
pub(super) fn obtain<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: &K::Pod,
    observed: &Observed,
    known: &Known,
    budget: &mut probe::Budget,
) -> Result<Option<Vec<Answer>>, Cause> {
    let Some(name) = attachment.ipam.clone() else {
        return Ok(None);
    };
    let calls = Rails::default();
    let ipam = Ipam::find(&name, node.environment, &node.conf.raw)?.among(&calls);
    let rails = attachment.rails.iter();
    let links: Vec<Option<Link>> = rails.map(|rail| rail.on_host(observed).cloned()).collect();
    let present: Vec<&Link> = links.iter().flatten().collect();
    let mut known = Cow::Borrowed(known);
    let masters = masters(&links, &present, &known);
    let previous = node.conf.network.prev_result.as_ref();
    let previous = previous.map_or(vec![], result::addresses);
    let mut answers = vec![];
    let mut rails = attachment.rails.iter().zip(&masters);
    let requested = rails.try_for_each(|(rail, master)| {
        answers.push(match master {
            Some(master) => ipam.add(&rail.pod_name, master, &assigned(&previous, &answers))?,
            None => Answer::default(),
        });
        Ok::<_, IpamError>(())
    });
    if let Err(error) = &requested
        && error.is_answer()
    {
        // the refused rail and the later rails certainly have no address from IPAM, so a later DEL may succeed without
        // IPAM
        let refused = attachment.rails.iter_mut().skip(answers.len());
        refused.for_each(|rail| rail.ipam_refused = true);
        // if ADD cannot undo its changes, DEL learns from the record which rails IPAM refused
        if let Err(error) = node.store.update(attachment) {
            log::warn!(
                "{}: {error}; DEL does not know which rails IPAM refused",
                attachment.key
            );
        }
    }
    requested?;
    for number in 1.. {
        calls.settle()?;
        answered(attachment, observed, &answers);
        // if this process is killed, a restore learns from the record which addresses it must release
        node.store.update(attachment)?;
        if number == 1 {
            // also without probes, because ADD announces the addresses
            apply::await_carrier(node.kernel, pod, attachment, observed);
        }
        if !node.conf.probe {
            break;
        }
        let conflicts = probe::conflicts(node.kernel, pod, attachment, observed, budget);
        let Some(first) = conflicts.first() else {
            break;
        };
        if number == TRIES || !budget.is_enough() {
            return Err(ApplyError::InUse(first.clone()).into());
        }
        // the IPAM plugin must remember conflicts, because the other machine may be off during later probes
        for (rail, link) in attachment.rails.iter().zip(&links) {
            let defended = conflicts.iter().filter(|it| it.link == rail.pod_name);
            known
                .to_mut()
                .neighbours
                .extend(link.iter().flat_map(|link| {
                    defended.clone().map(|it| Neighbour {
                        index: link.index,
                        address: it.address,
                        mac: it.by.clone(),
                    })
                }));
        }
        let masters = self::masters(&links, &present, &known);
        for (index, master) in masters.iter().enumerate() {
            let Some(master) = master else { continue };
            let own = mem::take(&mut answers[index]);
            let assigned = assigned(&previous, &answers);
            let answer = another(&ipam, attachment, index, master, &assigned, pod, &conflicts)?;
            answers[index] = answer.unwrap_or(own);
        }
    }
    Ok(Some(answers))
}

/// Returns the addresses that the pod has from `previous` plugins and from IPAM's `answers`.
fn assigned(previous: &[IpAddr], answers: &[Answer]) -> Vec<IpAddr> {
    let of_rails = answers.iter().flat_map(|it| &it.desired.addresses);
    let previous = previous.iter().copied();
    previous.chain(of_rails.map(|it| it.ip)).collect()
}

/// Returns a description of each netdev in `links` that exists (`Some`).
fn masters<'a>(
    links: &[Option<Link>],
    present: &[&'a Link],
    known: &'a Known,
) -> Vec<Option<Master<'a>>> {
    let mut masters = Master::of(present, known).into_iter();
    let links = links.iter();
    links
        .map(|link| link.as_ref().and_then(|_| masters.next()))
        .collect()
}

/// Records the desired state of the rails that IPAM's answers describe.
fn answered(attachment: &mut Attachment, observed: &Observed, answers: &[Answer]) {
    let ipv6 = attachment.ipv6();
    let desired = answers
        .iter()
        .map(|answer| answer.desired.clone().with_detection(ipv6));
    let desired = plan::routed(attachment, observed, desired.collect());
    give(attachment, observed, desired);
}

/// Records the rails' desired state. Also records the rules and routes that the pod's other interfaces then need.
pub fn give(attachment: &mut Attachment, observed: &Observed, desired: Vec<DesiredLink>) {
    for (rail, desired) in attachment.rails.iter_mut().zip(desired) {
        rail.assigned = desired;
    }
    plan::divert(attachment, observed);
}

/// Releases the addresses of the rail `index`, and returns IPAM's next answer for it. Returns `None` if no address of
/// the rail is in `conflicts`.
fn another<P: Pod>(
    ipam: &Ipam<'_>,
    attachment: &Attachment,
    index: usize,
    master: &Master<'_>,
    assigned: &[IpAddr],
    pod: &P,
    conflicts: &[Conflict],
) -> Result<Option<Answer>, Cause> {
    let rail = &attachment.rails[index];
    let own: Vec<&Conflict> = conflicts
        .iter()
        .filter(|conflict| conflict.link == rail.pod_name)
        .collect();
    if own.is_empty() {
        return Ok(None);
    }
    for conflict in &own {
        log::warn!("{conflict}; requesting another address from IPAM");
    }
    let addresses: Vec<IpAddr> = own.iter().map(|conflict| conflict.address).collect();
    let netns = pod.path().display().to_string();
    let call = RailCall {
        container: &attachment.key.container,
        netns: Some(&netns),
        args: attachment.args.as_deref(),
        pod_name: &rail.pod_name,
        master: rail.name(),
        conflicts: &addresses,
    };
    ipam.rail(Command::Del, call)?;
    let answer = ipam.add(&rail.pod_name, master, assigned)?;
    let addresses = &answer.desired.addresses;
    let same = |conflict: &&&Conflict| addresses.iter().any(|it| it.ip == conflict.address);
    match own.iter().find(same) {
        // the plugin assigned the same address again, like the reference plugin `static`, which has no other address
        Some(conflict) => Err(ApplyError::InUse((*conflict).clone()).into()),
        None => Ok(Some(answer)),
    }
}
