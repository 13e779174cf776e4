// SPDX-License-Identifier: Apache-2.0
//! ADD: writes the record, moves the devices, requests addresses, sets them, and prints the result. If a step after
//! the record fails, ADD restores the recorded state.

mod answer;
mod observation;
mod second_call;

use super::{addresses, draft::give, outlast, recovery, restoring, teardown};
use crate::{
    apply::{self, ApplyError, Incomplete, Tries},
    char_devices, claims,
    error::{Cause, Error},
    gids,
    ipam::{self, Answer, Known},
    node::Node,
    open_connections, partition, ports, probe, rails, vf,
};
use attachments::{Attachment, Key, Phase, Rail, Shared, given_up, store::AttachmentLock};
use cni_protocol::{lock::UNDO_LIMIT, memory::populate, result};
use network_conf::{Dad, SmcRequirement};
use plan::{
    self,
    select::{Choice, Remark},
};
use rdma_netns::{DeviceAddress, Kernel, Observed, Pod};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    io, mem,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Time after the first missing GID in which ADD tries again if another netdev has or had a GID of the address. A try
/// can wait 5 s for GIDs, because the pod's GID can get the index of the other GID between two reads.
const GID_RETRY_TIME: Duration = Duration::from_secs(20);

/// Result of ADD.
pub enum Outcome<K: Kernel> {
    /// The pod has devices.
    Added(Box<Added<K>>),
    /// ADD attached no device: kubelet allocated none to the pod, or an earlier call in this ADD has attached the
    /// devices. Contains the result of the previous plugins.
    NothingToDo(Value),
}

/// A pod's attached devices. The runtime does not have the result yet.
#[derive(Debug)]
pub struct Added<K: Kernel> {
    /// The result for the runtime.
    pub result: Value,
    attachment: Attachment,
    pod: K::Pod,
    lock: AttachmentLock,
}

/// Attaches the configured or allocated devices.
pub fn add<K: Kernel>(node: &Node<'_, K>) -> Result<Outcome<K>, Error> {
    let (_, key) = node.target()?;
    let Some(choice) = node.choice()? else {
        log::debug!("{key}: kubelet allocated no device to the pod");
        if node.conf.smc.is_requested_by_pod() {
            log::warn!("{key}: the pod requests SMC-R, but kubelet allocated no RDMA device to it");
        }
        let network = &node.conf.network;
        // the unchanged result of the earlier plugins
        let unchanged = network.prev_result.clone();
        let empty = || result::extend(None, network.version, &[]);
        return Ok(Outcome::NothingToDo(unchanged.unwrap_or_else(empty)));
    };
    let conf = claims::of_pod(node.conf, &choice)?;
    let node = &node.with_conf(&conf);
    node.conf.check_drop_in()?;
    node.conf.check_ib_kubernetes()?;
    let smc_requirement = node.conf.smc.requirement()?;
    let pod = node.pod()?;
    if let Some(result) = second_call::result(node, &key, &pod)? {
        log::info!(
            "{key}: an earlier entry of the chain has attached the devices; passing its result on"
        );
        return Ok(Outcome::NothingToDo(result));
    }
    populate();
    let (mut budget, mut gid_deadline) = (probe::Budget::default(), None);
    let request = AddRequest {
        node,
        choice: &choice,
        smc_requirement,
        key: &key,
        pod: &pod,
    };
    loop {
        let error = match request.attempt(&mut budget) {
            Ok((result, attachment, lock)) => {
                let added = Added {
                    result,
                    attachment,
                    pod,
                    lock,
                };
                return Ok(Outcome::Added(Box::new(added)));
            }
            Err(error) => error,
        };
        match &error {
            Error::Add {
                cause: Cause::Apply(cause),
                left: None,
                held: None,
                ..
            } if starts_again(cause, budget, node.kernel.now(), &mut gid_deadline) => {
                log::warn!("{cause}; ADD starts again");
            }
            _ => return Err(error),
        }
    }
}

/// Returns true if ADD tries again. If another netdev has or had a GID of the address, this GID may have appeared or
/// disappeared while ADD set the address, and the pod's GID may have its earlier index. ADD then tries again until
/// `gid_deadline`, which the first such error sets: each try reads the GIDs of other netdevs again.
fn starts_again(
    cause: &ApplyError,
    budget: probe::Budget,
    now: Instant,
    gid_deadline: &mut Option<Instant>,
) -> bool {
    match cause {
        ApplyError::TakenMeanwhile(_) => budget.is_enough(),
        ApplyError::NoGid {
            is_shared: true,
            used,
            size,
            ..
        } => used < size && now < *gid_deadline.get_or_insert(now + GID_RETRY_TIME),
        _ => false,
    }
}

impl<K: Kernel> Added<K> {
    /// Restores everything after the result could not be written.
    pub fn take_back(mut self, node: &Node<'_, K>, error: io::Error) -> Error {
        undo(
            node,
            &mut self.attachment,
            &self.pod,
            self.lock,
            Cause::Output(error),
        )
    }
}

/// An attachment whose record is written, and the result of its move.
struct Started {
    attachment: Attachment,
    /// Addresses that IPAM plugins cannot observe.
    known: Known,
    moved: Result<Observed, Cause>,
}

/// The inputs of ADD, which are the same in each try.
struct AddRequest<'a, K: Kernel> {
    node: &'a Node<'a, K>,
    choice: &'a Choice<'a>,
    smc_requirement: SmcRequirement,
    key: &'a Key,
    pod: &'a K::Pod,
}

impl<K: Kernel> AddRequest<'_, K> {
    /// Runs one try of ADD. Returns the result for the runtime, the record and its lock. If the try fails, it restores
    /// the host, and the error lists what could not be restored.
    fn attempt(
        &self,
        budget: &mut probe::Budget,
    ) -> Result<(Value, Attachment, AttachmentLock), Error> {
        let Self { node, key, pod, .. } = *self;
        let lock = recovery::lock_own(node, key)?;
        let started = match self.begin(&lock) {
            Ok(started) => started,
            Err(error) => {
                // this try changed no device, so it must not leave a record
                return Err(match node.store.remove(key, lock) {
                    Ok(()) => error,
                    Err(left) => Error::Recorded {
                        error: Box::new(error),
                        left,
                    },
                });
            }
        };
        let Started {
            mut attachment,
            known,
            moved,
        } = started;
        let finished = match moved {
            Ok(observed) => {
                let answers =
                    addresses::obtain(node, &mut attachment, pod, &observed, &known, budget);
                answers.and_then(|answers| self.finish(&mut attachment, observed, answers, &lock))
            }
            Err(cause) => Err(cause),
        };
        match finished {
            Ok(result) => Ok((result, attachment, lock)),
            Err(cause) => Err(undo(node, &mut attachment, pod, lock, cause)),
        }
    }

    /// Runs the steps that need the node's lock: recovery, selection, record, move. Releases the addresses of recovered
    /// attachments after it has released the lock. If the selection depends on the ports of all RDMA devices, queries
    /// these ports without the lock, and then repeats the steps. If the selection by these ports fails, and the
    /// attachments that have devices have changed meanwhile, repeats the selection once.
    fn begin(&self, lock: &AttachmentLock) -> Result<Started, Error> {
        let Self { node, key, .. } = *self;
        let mut selected = None;
        let mut refused: Option<(Vec<Key>, Error)> = None;
        loop {
            let moves = node.store.lock_node(lock).map_err(Error::State)?;
            let mut recovery = recovery::recover(node, &moves, key, &node.kernel.boot_id()?)?;
            let holders = mem::take(&mut recovery.holders);
            let started = self.start(&holders, selected.as_ref());
            drop(moves);
            recovery.release(node);
            if let Some(started) = started? {
                return Ok(started);
            }
            let others: Vec<Key> = holders.iter().map(|it| it.key.clone()).collect();
            if let Some((_, error)) = refused.take_if(|(before, _)| *before == others) {
                return Err(error);
            }
            match observation::by_all_ports(self, &holders) {
                Ok(devices) => selected = Some(devices),
                Err(error @ Error::Select(_)) if refused.is_none() => {
                    refused = Some((others, error))
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs the steps under the node's lock. Returns `None` if the selection depends on the ports of all RDMA devices,
    /// and `selected` is missing.
    fn start(
        &self,
        holders: &[Attachment],
        selected: Option<&BTreeSet<DeviceAddress>>,
    ) -> Result<Option<Started>, Error> {
        let Self { node, pod, .. } = *self;
        let present = observation::present(self, holders, selected)?;
        let Some((observed, mut attachment, remarks)) = present else {
            return Ok(None);
        };
        partition::remove_orphans(node, &observed)?;
        if let Some(name) = &attachment.ipam {
            ipam::program(name, node.environment)?;
        }
        give(&mut attachment, &observed);
        // if no plan is possible, ADD fails here, before it writes a record or changes the pod's devices
        let ops = plan::attach(&attachment, &observed)?;
        open_connections::check(node.kernel, Some(pod), &ops)?;
        for rail in &mut attachment.rails {
            let host_link = rail.host_link.as_ref();
            rail.device_settings = host_link.map(|link| node.kernel.device_settings(link));
        }
        let neighbours = match &attachment.ipam {
            Some(_) => observation::neighbours(node, &observed),
            None => vec![],
        };
        smcr::apply::foresee(
            node.smcr(),
            self.smc_requirement,
            pod,
            &mut attachment,
            &observed,
        )?;
        node.store.save(&attachment).map_err(Error::State)?;
        given_up::forget(node.store.root(), &attachment);
        remarks.iter().for_each(Remark::log);
        log_rails(node.kernel, &attachment);
        partition::log(node.conf, &attachment);
        ports::report(node, &attachment, holders);
        let moved = apply::attach(node.kernel, pod, &attachment, observed);
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
        let pods = holders.iter().chain([&attachment]);
        let known = Known {
            away: pods.flat_map(Attachment::away).collect(),
            neighbours,
        };
        Ok(Some(Started {
            attachment,
            known,
            moved,
        }))
    }

    /// Runs the steps without the node's lock: addresses, GIDs, SMC-R, result.
    fn finish(
        &self,
        attachment: &mut Attachment,
        mut observed: Observed,
        answers: Option<Vec<Answer>>,
        lock: &AttachmentLock,
    ) -> Result<Value, Cause> {
        let Self { node, pod, .. } = *self;
        let before = gids::before(node, pod, attachment)?;
        if answers.is_some() {
            observed = apply::attach(node.kernel, pod, attachment, observed)?;
        }
        if attachment.dad == Dad::Wait {
            observed = apply::await_detection(node.kernel, pod, attachment, observed)?;
        }
        let gids = gids::wait(node.kernel, pod, attachment, &observed, before)?;
        for (rail, gids) in attachment.rails.iter_mut().zip(gids) {
            rail.gids = gids;
            let has_no_device =
                rail.is_ours() && rail.host_link.as_ref().is_none_or(|it| it.parent.is_none());
            let link = rail.in_pod(&observed).filter(|_| has_no_device);
            rail.pod_index = link.map(|link| link.index);
            rail.pod_origin = link.and_then(|link| link.origin);
            rail.erdma_verbs = erdma_verbs(rail, &observed);
        }
        smcr::apply::set_up(
            node.smcr(),
            self.smc_requirement,
            pod,
            attachment,
            &observed,
            lock,
        )?;
        rails::write(node.store.root(), node.store.lock_deadline(), attachment)?;
        // announce in one of the last steps, because an ADD that fails should announce no address
        apply::announce(node.kernel, pod, attachment, &observed);
        if answers.is_some() && node.conf.probe {
            // if two machines set the same address at the same time, by now at least one has received the other's
            // announcement
            let conflict = probe::conflicts_since_probe(node.kernel, pod, attachment);
            conflict.map_or(Ok(()), |it| Err(ApplyError::TakenMeanwhile(it)))?;
        }
        // the record's phase is still `attaching`: if this process is killed in this step, recovery restores the
        // devices
        claims::joined(node, attachment, self.choice, &observed)
            .map_err(|error| Cause::Claim(Box::new(error)))?;
        attachment.phase = Phase::Attached;
        node.store.update(attachment)?;
        let network = &node.conf.network;
        let rails = answer::of_rails(attachment, &observed, answers, pod.path());
        let mut result = result::extend(network.prev_result.as_ref(), network.version, &rails);
        let rails = attachment.describe_rails();
        if !rails.is_empty() {
            result["rails"] = rails.into();
        }
        Ok(result)
    }
}

/// Returns the value of [`Rail::erdma_verbs`]. Only an eRDMA device without a parent in sysfs has functions that may
/// have made it.
fn erdma_verbs(rail: &Rail, observed: &Observed) -> Option<String> {
    let rdma = plan::rdma_anywhere(rail, observed)?;
    let mut devices = observed.devices.iter();
    devices
        .find(|it| Some(&it.address) == rdma.parent.as_ref() && !it.rdma_functions.is_empty())?;
    let mut nodes = rdma.char_devices.iter();
    let verbs = nodes.find(|it| it.name.starts_with("uverbs"))?;
    Some(verbs.name.clone())
}

fn undo<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: &K::Pod,
    lock: AttachmentLock,
    cause: Cause,
) -> Error {
    // the caller logs ADD's error, with the devices that could not be restored
    log::debug!("{cause}; undoing");
    let node = &node.with_lock_deadline(UNDO_LIMIT);
    let conflicts: Vec<IpAddr> = match &cause {
        Cause::Apply(ApplyError::Duplicate(ip)) => vec![*ip],
        Cause::Apply(ApplyError::InUse(conflict) | ApplyError::TakenMeanwhile(conflict)) => {
            vec![conflict.address]
        }
        _ => vec![],
    };
    if attachment.phase == Phase::Attached {
        // this phase permits recovery to restore the devices if this process is killed
        restoring::mark(node, attachment, Phase::Detaching);
    }
    let restored = match node.store.lock_node(&lock) {
        // another verb holds the node's lock: DEL or the next ADD restores the devices
        Err(error) if error.is_held() => Err(Incomplete::of(error)),
        moves => {
            // if locking itself fails, restore without the lock, because unrestored devices do more harm than a
            // concurrent move
            if let Err(error) = &moves {
                log::warn!("{error}; undoing ADD without the node's lock");
            }
            restoring::restore(node, Some(pod), attachment, Tries::First)
                .inspect(|restored| outlast::record_restored(node, attachment, restored))
        }
    };
    let restored = outlast::managers(node, attachment, Some(pod), &lock, Tries::First, restored);
    teardown::forget_rails(node, attachment);
    let netns = pod.path().display().to_string();
    let (mut lacking, mut held) = (vec![], None);
    let left = match restored {
        Err(incomplete) => Some(incomplete),
        Ok(home) => {
            lacking = home.lacks;
            match teardown::addresses(node, attachment, Some(&netns), &conflicts) {
                Ok(()) => forget(node, &attachment.key, lock),
                // the runtime's DEL calls the IPAM plugin again, because another call now would probably fail too
                Err(error) => {
                    held = Some(error);
                    None
                }
            }
        }
    };
    Error::Add {
        cause,
        left: left.map(Box::new),
        given_up: lacking.into_iter().map(|it| it.why).collect(),
        held: held.map(Box::new),
    }
}

/// Removes the record. Returns the reason if the record could not be removed.
fn forget<K: Kernel>(node: &Node<'_, K>, key: &Key, lock: AttachmentLock) -> Option<Incomplete> {
    let removed = node.store.remove(key, lock);
    removed.err().map(Incomplete::of)
}

fn log_rails<K: Kernel>(kernel: &K, attachment: &Attachment) {
    let moved = attachment
        .rails
        .iter()
        .filter_map(|it| it.host_link.as_ref());
    let moved: Vec<u32> = moved.map(|it| it.index).collect();
    let dropped = kernel.dropped(&moved);
    for rail in &attachment.rails {
        let rdma = match &rail.rdma {
            None => "without RDMA device".to_owned(),
            Some(rdma) if attachment.moves_rdma() => format!("with RDMA device {}", rdma.name),
            Some(rdma) => format!("with RDMA device {}, shared and not moved", rdma.name),
        };
        let netns = attachment.netns.display();
        let name = &rail.pod_name;
        match (&rail.host_link, &rail.shared) {
            (Some(host_link), _) => {
                log::info!("moving {} to {netns} as {name}, {rdma}", host_link.name);
                let own = dropped.iter().filter(|it| it.0 == host_link.index);
                let mut own: Vec<String> = own.map(|it| it.1.clone()).collect();
                own.extend(crate::given_up::routes(&rail.unkept_routes));
                if let Some(dropped) = crate::given_up::some(&own) {
                    log::warn!("{} loses {dropped} permanently in the move", host_link.name);
                }
            }
            (None, Some(shared)) => {
                let Shared { parent, child, .. } = shared;
                log::info!("{name} in {netns} is {child} on {parent}, {rdma}");
                // log this: programs in a pod without an address only report a timeout
                if attachment.ipam.is_none() && !attachment.accept_ra {
                    log::warn!(
                        "{name} has only a link-local IPv6 address: a child of {parent} gets addresses from `ipam`, \
                         which is not configured; {{\"type\":\"rdma-ipam\",\"from\":\"parent\"}} assigns addresses \
                         from the prefix of {parent}"
                    );
                }
            }
            (None, None) if rail.bare => log::info!("attaching to {netns} without netdev, {rdma}"),
            (None, None) => log::info!("{name} is already in {netns}; attaching it {rdma}"),
        }
    }
}
