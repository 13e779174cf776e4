// SPDX-License-Identifier: Apache-2.0
//! ADD's decision, and the moves: recover, choose, record, move.
//!
//! What moves has the node's lock alone for all of it. What only shares netdevs of the host renumbers nothing, and has
//! the lock beside others, from its look at the records until its own is written. From then on the record says what
//! the pod has, and the lock is free while the kernel makes the children.
//!
//! Two that share at once may have decided without each other's record: each writes its own, and looks at the records
//! again. So at least one of them sees the other's. Where that would have changed its decision, it takes its record
//! back and decides anew, alone on the node.

use super::{super::Node, desired, draft};
use crate::{
    apply, char_devices,
    error::{Cause, Error},
    ipam::{Ipam, Known},
    open_connections, partition,
    verb::{
        holders::{Holders, Sight},
        recovery,
    },
    vf,
};
use attachments::{Attachment, DesiredLink, Key, Shared, given_up, store::Lock};
use network_conf::{Mode, SmcRequirement};
use plan::{
    self,
    select::{self, Choice},
};
use rdma_netns::{DeviceAddress, Kernel, Neighbour, Observed};
use std::collections::BTreeSet;

/// An attachment with its record written, and how the moves went.
pub(super) struct Started {
    pub(super) attachment: Attachment,
    pub(super) desired: Vec<DesiredLink>,
    /// What IPAM is told besides.
    pub(super) known: Known,
    pub(super) moved: Result<Observed, Cause>,
}

/// An attachment with its record written, before anything is changed.
struct Prepared {
    attachment: Attachment,
    desired: Vec<DesiredLink>,
    observed: Observed,
    known: Known,
}

/// What a decision came to.
enum Decision {
    /// The record is written; if something moves, it has moved.
    Started(Box<Started>),
    /// It has to be made alone on the node.
    Alone,
    /// Only the ports of all RDMA devices tell what is meant. Who has devices meanwhile.
    ByAllPorts(Vec<Attachment>),
}

/// What is asked for, and by whom.
struct Request<'a, K: Kernel> {
    node: &'a Node<'a, K>,
    choice: &'a Choice<'a>,
    wish: SmcRequirement,
    key: &'a Key,
    pod: &'a K::Pod,
}

/// Everything under the node's lock. Where only the ports of all RDMA devices tell what is meant, the
/// lock is free while they are asked: a refusal then counts if others have the same as before, or the second time.
pub(super) fn begin<K: Kernel>(
    node: &Node<'_, K>,
    (choice, wish): (&Choice<'_>, SmcRequirement),
    key: &Key,
    pod: &K::Pod,
) -> Result<Started, Error> {
    let request = Request {
        node,
        choice,
        wish,
        key,
        pod,
    };
    let mut meant = None;
    let mut refused: Option<(Vec<Key>, Error)> = None;
    let mut is_alone = node.conf.mode == Mode::Move;
    loop {
        let decision = match is_alone {
            true => request.alone(meant.as_ref())?,
            false => request.beside_others(meant.as_ref())?,
        };
        let holders = match decision {
            Decision::Started(started) => return Ok(*started),
            Decision::Alone => {
                is_alone = true;
                continue;
            }
            Decision::ByAllPorts(holders) => holders,
        };
        let others: Vec<Key> = holders.iter().map(|it| it.key.clone()).collect();
        if let Some((_, error)) = refused.take_if(|(before, _)| *before == others) {
            return Err(error);
        }
        match request.by_all_ports(&holders) {
            Ok(devices) => meant = Some(devices),
            Err(error @ Error::Select(_)) if refused.is_none() => refused = Some((others, error)),
            Err(error) => return Err(error),
        }
    }
}

impl<K: Kernel> Request<'_, K> {
    /// With nobody else at work: what is stale is recovered, and gives its addresses back when the lock is free
    /// again.
    fn alone(&self, meant: Option<&BTreeSet<DeviceAddress>>) -> Result<Decision, Error> {
        let node = self.node;
        let moves = node.store.lock_node()?;
        let mut recovery = recovery::recover(node, self.key, &node.kernel.boot_id()?)?;
        let holders = std::mem::take(&mut recovery.holders);
        let started = self.start(&holders, meant, moves);
        recovery.release(node);
        Ok(match started? {
            Some(started) => Decision::Started(Box::new(started)),
            None => Decision::ByAllPorts(holders),
        })
    }

    /// None: only the ports of all RDMA devices tell which ones are `meant`.
    fn start(
        &self,
        holders: &[Attachment],
        meant: Option<&BTreeSet<DeviceAddress>>,
        moves: Lock,
    ) -> Result<Option<Started>, Error> {
        let Some((observed, attachment)) = self.look(holders, meant)? else {
            return Ok(None);
        };
        partition::remove_nobodys(self.node, &observed)?;
        let prepared = self.prepare(observed, attachment, holders)?;
        let _moves = Some(moves).filter(|_| prepared.attachment.changes_host());
        Ok(Some(self.carry_out(prepared)))
    }

    /// With others at work that move nothing either.
    fn beside_others(&self, meant: Option<&BTreeSet<DeviceAddress>>) -> Result<Decision, Error> {
        let (node, key) = (self.node, self.key);
        let beside = node.store.share_node()?;
        let boot_id = node.kernel.boot_id()?;
        let Some(mut holders) = Holders::look(node, key, &boot_id)? else {
            return Ok(Decision::Alone);
        };
        let Some((observed, attachment)) = self.look(holders.all(), meant)? else {
            return Ok(Decision::ByAllPorts(holders.into_all()));
        };
        if attachment.changes_host() {
            return Ok(Decision::Alone);
        }
        let prepared = self.prepare(observed, attachment, holders.all())?;
        let stands = match holders.look_again(node, key, &boot_id) {
            Ok(Sight::Same) => Ok(true),
            Ok(Sight::Stale) => Ok(false),
            Ok(Sight::Changed) => Ok(self.stands(&prepared, holders.all())),
            Err(error) => Err(error),
        };
        if !matches!(stands, Ok(true)) {
            node.store.forget(key).map_err(Error::Forget)?;
            stands?;
            log::info!("{key}: another pod comes at the same time, and is decided about first");
            return Ok(Decision::Alone);
        }
        drop(beside);
        Ok(Decision::Started(Box::new(self.carry_out(prepared))))
    }

    /// Whether the decision is the same beside `holders`.
    fn stands(&self, prepared: &Prepared, holders: &[Attachment]) -> bool {
        let Self {
            node,
            choice,
            key,
            pod,
            ..
        } = *self;
        let again = draft(node, choice, key, pod, &prepared.observed, holders);
        let before = &prepared.attachment;
        again.is_ok_and(|it| it.rails == before.rails && it.routing == before.routing)
    }

    /// Checks all that can be known before, and writes the record.
    fn prepare(
        &self,
        observed: Observed,
        mut attachment: Attachment,
        holders: &[Attachment],
    ) -> Result<Prepared, Error> {
        let Self { node, pod, .. } = *self;
        if let Some(name) = &attachment.ipam {
            Ipam::find(name, node.environment, &node.conf.raw)?;
        }
        let desired = desired(&attachment, &observed);
        // a plan that cannot be made is found here, before anything is written or changed
        let ops = plan::attach(&attachment, &observed, &desired)?;
        open_connections::check(node.kernel, Some(pod), &ops)?;
        let neighbours = match &attachment.ipam {
            Some(_) => neighbours(node, &observed),
            None => vec![],
        };
        smcr::apply::foresee(node.smcr(), self.wish, pod, &mut attachment, &observed)?;
        node.store.save(&attachment)?;
        given_up::forget(node.store.root(), &attachment);
        let pods = holders.iter().chain([&attachment]);
        let known = Known {
            away: pods.flat_map(Attachment::away).collect(),
            neighbours,
        };
        Ok(Prepared {
            attachment,
            desired,
            observed,
            known,
        })
    }

    /// Makes the moves, or the children.
    fn carry_out(&self, prepared: Prepared) -> Started {
        let Self { node, pod, .. } = *self;
        let Prepared {
            mut attachment,
            desired,
            observed,
            known,
        } = prepared;
        log_rails(&attachment);
        partition::log(node.conf, &attachment);
        let moved = apply::attach(node.kernel, pod, &attachment, &desired, observed);
        if let Ok(observed) = &moved {
            vf::renew(&mut attachment, observed);
        }
        let moved = moved
            .and_then(|observed| apply::check_char_devices(node.kernel, pod, &attachment, observed))
            .map_err(Cause::from)
            .and_then(|observed| {
                match char_devices::settle(node.store.root(), &attachment, &observed) {
                    Ok(()) => Ok(observed),
                    Err(error) => Err(Cause::CharDevice(Box::new(error))),
                }
            });
        Started {
            attachment,
            desired,
            known,
            moved,
        }
    }

    /// The present state, and the record of the attachment. Other pods wait for the node's lock: a device
    /// that is not to be attached is not asked for its ports. None: it would have to be, as nothing is known to be
    /// `meant`.
    fn look(
        &self,
        holders: &[Attachment],
        meant: Option<&BTreeSet<DeviceAddress>>,
    ) -> Result<Option<(Observed, Attachment)>, Error> {
        let Self {
            node,
            choice,
            key,
            pod,
            ..
        } = *self;
        let known = match meant {
            Some(meant) => Some(meant.clone()),
            None => self.without_ports(holders)?,
        };
        let Some(mut known) = known else {
            return Ok(None);
        };
        loop {
            node.kernel.ask_only(Some(known.clone()));
            let mut observed = node.observe(choice, Some(pod))?;
            match draft(node, choice, key, pod, &observed, holders) {
                Ok(attachment) if attachment.devices().is_subset(&known) => {
                    vf::tell(node.kernel, &attachment, &mut observed)?;
                    return Ok(Some((observed, attachment)));
                }
                // a bond's RDMA device is that of its first port
                Ok(attachment) => known.extend(attachment.devices()),
                Err(Error::Select(error)) if error.needs_no_port() => return Err(error.into()),
                Err(error) if meant.is_some() => return Err(error),
                Err(_) => return Ok(None),
            }
        }
    }

    /// The devices that are meant, as far as that is known without a port.
    fn without_ports(
        &self,
        holders: &[Attachment],
    ) -> Result<Option<BTreeSet<DeviceAddress>>, Error> {
        let Self {
            node, choice, pod, ..
        } = *self;
        let observe = || {
            node.kernel.ask_only(Some(BTreeSet::new()));
            node.observe(choice, Some(pod))
        };
        Ok(match choice {
            Choice::Selectors(selectors) => {
                select::selected(node.conf, selectors, &observe()?, holders)
            }
            Choice::Allocated(meanings) if select::named(choice).is_none() => {
                Some(select::allocated_devices(meanings, &observe()?))
            }
            choice => select::named(choice),
        })
    }

    /// The devices that are meant, by the ports of all. The node's lock is not held by the caller: a sick one
    /// answers after a minute.
    fn by_all_ports(&self, holders: &[Attachment]) -> Result<BTreeSet<DeviceAddress>, Error> {
        let Self {
            node,
            choice,
            key,
            pod,
            ..
        } = *self;
        node.kernel.ask_only(None);
        let observed = node.observe(choice, Some(pod))?;
        Ok(draft(node, choice, key, pod, &observed, holders)?.devices())
    }
}

/// The other machines that the host knows on its networks. ADD can do without.
fn neighbours<K: Kernel>(node: &Node<'_, K>, observed: &Observed) -> Vec<Neighbour> {
    let mut neighbours = node.kernel.neighbours().unwrap_or_else(|error| {
        log::warn!("{error}");
        vec![]
    });
    neighbours.retain(|it| observed.host.links.iter().all(|link| link.mac != it.mac));
    neighbours
}

fn log_rails(attachment: &Attachment) {
    for rail in &attachment.rails {
        let rdma = match &rail.rdma {
            None => "without RDMA device".to_owned(),
            Some(rdma) if attachment.moves_rdma() => format!("with RDMA device {}", rdma.name),
            Some(rdma) => format!("RDMA device {} is shared and stays", rdma.name),
        };
        let netns = attachment.netns.display();
        let name = &rail.pod_name;
        match (&rail.host_link, &rail.shared) {
            (Some(host_link), _) => {
                log::info!("{} goes to {netns} as {name}, {rdma}", host_link.name)
            }
            (None, Some(shared)) => {
                let Shared { parent, child, .. } = shared;
                log::info!("{netns} gets {name}, {child} on {parent}, {rdma}");
            }
            (None, None) if rail.bare => log::info!("{netns} gets no netdev, {rdma}"),
            (None, None) => log::info!("{name} is in {netns} already, {rdma}"),
        }
    }
}
