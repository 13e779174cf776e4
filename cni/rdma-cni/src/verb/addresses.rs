// SPDX-License-Identifier: Apache-2.0
//! The rails' addresses: IPAM assigns addresses, probes check that they are free, and for those that are not IPAM
//! assigns others.

use super::Node;
use crate::{
    apply::ApplyError,
    error::Cause,
    ipam::{Answer, Ipam, Known, Master, RailCall, Rails},
    probe,
};
use attachments::{Attachment, DesiredLink};
use cni_protocol::Command;
use rdma_netns::{Conflict, Kernel, Link, Neighbour, Observed, Pod};
use std::{borrow::Cow, net::IpAddr};

/// Maximum number of requests to IPAM for a rail. Probing finds an address in use within milliseconds. One ADD in half a
/// million needs more requests if other nodes have two thirds of a /24.
const TRIES: usize = 32;

/// Returns one answer for each rail. The answer is empty for rails that an earlier plugin placed. `None`: no IPAM
/// plugin is configured. The record with the addresses is on disk before an address is used.
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
    let mut asked = 0;
    let answers = attachment.rails.iter().zip(&masters).map(|(rail, master)| {
        asked += 1;
        match master {
            Some(master) => ipam.add(&rail.pod_name, master),
            None => Ok(Answer::default()),
        }
    });
    let answers: Result<Vec<_>, _> = answers.collect();
    if let Err(error) = &answers
        && error.is_answer()
    {
        // IPAM has certainly assigned nothing to these rails, so DEL need not retry their release for ever
        let refused = attachment.rails.iter_mut().skip(asked - 1);
        refused.for_each(|rail| rail.ipam_refused = true);
        // if the undoing does not finish, DEL reads it from the record
        if let Err(error) = node.store.update(attachment) {
            log::warn!(
                "{}: {error}; DEL does not know which rails IPAM refused",
                attachment.key
            );
        }
    }
    let mut answers = answers?;
    for number in 1.. {
        calls.settle()?;
        answered(attachment, observed, &answers);
        // if this process is killed, the record has the addresses that must not be in use any more
        node.store.update(attachment)?;
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
        // the IPAM plugin remembers conflicts, because the other machine may be off later
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
            if let Some(answer) = another(&ipam, attachment, index, master, pod, &conflicts)? {
                answers[index] = answer;
            }
        }
    }
    Ok(Some(answers))
}

/// Returns the descriptions of those `links` that are `present`.
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

/// Converts IPAM's answers to the desired state of the rails.
fn answered(attachment: &mut Attachment, observed: &Observed, answers: &[Answer]) {
    let ipv6 = attachment.ipv6();
    let desired = answers
        .iter()
        .map(|answer| answer.desired.clone().with_detection(ipv6));
    let desired = plan::routed(attachment, observed, desired.collect());
    give(attachment, observed, desired);
}

/// Records the rails' desired state, and the rules and routes of the pod's other interfaces that follow from it.
pub fn give(attachment: &mut Attachment, observed: &Observed, desired: Vec<DesiredLink>) {
    for (rail, desired) in attachment.rails.iter_mut().zip(desired) {
        rail.assigned = desired;
    }
    plan::divert(attachment, observed);
}

/// Returns IPAM's next answer for the rail `index`, if `conflicts` has one of its addresses.
fn another<P: Pod>(
    ipam: &Ipam<'_>,
    attachment: &Attachment,
    index: usize,
    master: &Master<'_>,
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
        log::warn!("{conflict}; another one is taken");
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
    let answer = ipam.add(&rail.pod_name, master)?;
    let given = &answer.desired.addresses;
    let same = |conflict: &&&Conflict| given.iter().any(|it| it.ip == conflict.address);
    match own.iter().find(same) {
        // the plugin has no other address, as the reference `static`
        Some(conflict) => Err(ApplyError::InUse((*conflict).clone()).into()),
        None => Ok(Some(answer)),
    }
}
