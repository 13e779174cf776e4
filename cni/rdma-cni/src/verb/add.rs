//! ADD: record, move, ask for addresses, set them, answer. Whatever fails after the record
//! was written is undone by planning back towards it.

use super::{Node, release, survey};
use crate::{
    apply,
    attachment::{Attachment, Key, Phase},
    conf::Dad,
    error::{Cause, Error},
    ipam::{Answer, Ipam},
    plan::{self, Wanted},
    select,
    store::Lock,
};
use cni_protocol::result::{self, RailResult};
use rdma_netns::{Kernel, Link, Observed, Pod, link::MAIN_TABLE};
use serde_json::{Value, json};
use std::{io, path::Path};

/// A pod's devices that are attached, while the runtime does not know of it yet.
#[derive(Debug)]
pub struct Added<K: Kernel> {
    /// The answer.
    pub result: Value,
    attachment: Attachment,
    pod: K::Pod,
    lock: Lock,
}

/// Attaches the configured devices.
pub fn add<K: Kernel>(node: &Node<'_, K>) -> Result<Added<K>, Error> {
    let (_, key) = node.target()?;
    node.conf.required_devices()?;
    let pod = node.pod()?;
    let lock = node.store.lock(&key)?;
    survey::heal_own(node, &key)?;
    let started = match begin(node, &key, &pod) {
        Ok(started) => started,
        Err(error) => {
            lock.discard();
            return Err(error);
        }
    };
    let Started {
        mut attachment,
        wanted,
        moved,
    } = started;
    let finished = match moved {
        Ok(observed) => finish(node, &mut attachment, &pod, observed, wanted),
        Err(cause) => Err(cause),
    };
    match finished {
        Ok(result) => Ok(Added {
            result,
            attachment,
            pod,
            lock,
        }),
        Err(cause) => Err(undo(node, &attachment, &pod, lock, cause)),
    }
}

impl<K: Kernel> Added<K> {
    /// Takes everything back, since the answer could not be given.
    pub fn take_back(self, node: &Node<'_, K>, error: io::Error) -> Error {
        undo(
            node,
            &self.attachment,
            &self.pod,
            self.lock,
            Cause::Output(error),
        )
    }
}

/// An attachment with its record written, and how the moves went.
struct Started {
    attachment: Attachment,
    wanted: Vec<Wanted>,
    moved: Result<Observed, Cause>,
}

/// Everything under the node's lock: heal, choose, record, move. What was healed gives its
/// addresses back when the lock is free again.
fn begin<K: Kernel>(node: &Node<'_, K>, key: &Key, pod: &K::Pod) -> Result<Started, Error> {
    let moves = node.store.lock_node()?;
    let survey = survey::heal(node, key, &node.kernel.boot_id()?)?;
    let started = start(node, key, pod, &survey.holders);
    drop(moves);
    survey.release(node);
    started
}

fn start<K: Kernel>(
    node: &Node<'_, K>,
    key: &Key,
    pod: &K::Pod,
    holders: &[Attachment],
) -> Result<Started, Error> {
    let observed = node.kernel.observe(Some(pod))?;
    let attachment = draft(node, key, pod, &observed, holders)?;
    if let Some(name) = &attachment.ipam {
        Ipam::find(name, node.environment, &node.conf.raw)?;
    }
    let wanted = wanted(&attachment, &observed);
    // a plan that cannot be made is found here, before anything is written or changed
    plan::attach(&attachment, &observed, &wanted)?;
    node.store.save(&attachment)?;
    log_rails(&attachment);
    let moved = apply::attach(node.kernel, pod, &attachment, &wanted, observed)
        .and_then(|observed| apply::check_char_devices(node.kernel, pod, &attachment, observed))
        .map_err(Cause::from);
    Ok(Started {
        attachment,
        wanted,
        moved,
    })
}

/// The record of an attachment that does not exist yet.
pub fn draft<K: Kernel>(
    node: &Node<'_, K>,
    key: &Key,
    pod: &K::Pod,
    observed: &Observed,
    others: &[Attachment],
) -> Result<Attachment, Error> {
    let devices = node.conf.required_devices()?;
    let rails = select::rails(node.conf, devices, observed, others)?;
    Ok(node.record(key, pod, observed, rails))
}

/// What the rails' netdevs are to have before IPAM was asked, if it is.
pub fn wanted(attachment: &Attachment, observed: &Observed) -> Vec<Wanted> {
    let kept = |home: &Link| match &attachment.ipam {
        Some(_) => Wanted::default(),
        None => Wanted::kept(home).with_detection(attachment.ipv6()),
    };
    let homes = attachment.rails.iter().map(|rail| rail.home.as_ref());
    let wanted = homes.map(|home| home.map(kept).unwrap_or_default());
    plan::beside_others(attachment, observed, wanted.collect())
}

/// Everything that other moves need not wait for: IPAM, addresses, the answer.
fn finish<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: &K::Pod,
    mut observed: Observed,
    kept: Vec<Wanted>,
) -> Result<Value, Cause> {
    let answers = ask_for_addresses(node, attachment)?;
    let given = match &answers {
        None => kept,
        Some(answers) => {
            let ipv6 = attachment.ipv6();
            let wanted = answers
                .iter()
                .map(|answer| answer.wanted.clone().with_detection(ipv6));
            let wanted = plan::beside_others(attachment, &observed, wanted.collect());
            observed = apply::attach(node.kernel, pod, attachment, &wanted, observed)?;
            wanted
        }
    };
    if attachment.dad == Dad::Wait {
        observed = apply::await_detection(node.kernel, pod, attachment, observed)?;
    }
    for (rail, given) in attachment.rails.iter_mut().zip(given) {
        rail.given = given;
        let is_virtual = rail.home.as_ref().is_some_and(|home| home.parent.is_none());
        let link = observed
            .pod
            .as_ref()
            .and_then(|pod| pod.link(&rail.pod_name));
        rail.pod_index = link.filter(|_| is_virtual).map(|link| link.index);
    }
    attachment.phase = Phase::Attached;
    node.store.update(attachment)?;
    let rails = results(attachment, &observed, answers, pod.path());
    Ok(result::extend(
        node.conf.network.prev_result.as_ref(),
        node.conf.network.version,
        &rails,
    ))
}

/// One answer for each rail, those that an earlier plugin placed left empty.
fn ask_for_addresses<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
) -> Result<Option<Vec<Answer>>, Cause> {
    let Some(name) = &attachment.ipam else {
        return Ok(None);
    };
    let ipam = Ipam::find(name, node.environment, &node.conf.raw)?;
    let answers = attachment.rails.iter().map(|rail| match &rail.home {
        Some(home) => ipam.add(&rail.pod_name, &home.name),
        None => Ok(Answer::default()),
    });
    Ok(Some(answers.collect::<Result<_, _>>()?))
}

fn results(
    attachment: &Attachment,
    observed: &Observed,
    answers: Option<Vec<Answer>>,
    netns: &Path,
) -> Vec<RailResult> {
    let mut answers = answers.into_iter().flatten();
    let mut results = vec![];
    for rail in &attachment.rails {
        let answer = answers.next();
        let Some(home) = &rail.home else { continue };
        let link = observed
            .pod
            .as_ref()
            .and_then(|pod| pod.link(&rail.pod_name))
            .unwrap_or(home);
        let answer = answer.unwrap_or_else(|| kept_answer(rail.given.clone()));
        results.push(RailResult {
            name: rail.pod_name.to_string(),
            mac: link.mac.to_string(),
            mtu: link.mtu,
            sandbox: netns.display().to_string(),
            device: home.parent.as_ref().map(ToString::to_string),
            ips: answer.ips,
            routes: answer.routes,
            dns: answer.dns,
        });
    }
    results
}

/// Kept addresses and routes, as an IPAM plugin would have answered them.
fn kept_answer(wanted: Wanted) -> Answer {
    let ips = wanted.addresses.iter();
    let ips = ips
        .map(|a| json!({ "address": format!("{}/{}", a.ip, a.prefix) }))
        .collect();
    let routes = wanted.routes.iter().map(|route| {
        let mut value = json!({ "dst": format!("{}/{}", route.destination, route.prefix) });
        if let Some(gateway) = route.gateway {
            value["gw"] = gateway.to_string().into();
        }
        let table = Some(route.table).filter(|table| *table != MAIN_TABLE);
        let numbers = [
            ("mtu", route.mtu),
            ("advmss", route.advmss),
            ("priority", route.metric),
            ("table", table),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                value[name] = number.into();
            }
        }
        value
    });
    let routes = routes.collect();
    Answer {
        ips,
        routes,
        dns: None,
        wanted,
    }
}

fn undo<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    pod: &K::Pod,
    lock: Lock,
    cause: Cause,
) -> Error {
    log::error!("{cause}; undoing");
    let restored = {
        let _moves = node.store.lock_node();
        apply::restore(node.kernel, Some(pod), attachment)
    };
    let netns = pod.path().display().to_string();
    let left = match restored {
        Err(incomplete) => Some(incomplete),
        Ok(()) => match release::addresses(node, attachment, Some(&netns)) {
            Ok(()) => {
                node.store
                    .remove(&attachment.key, lock)
                    .err()
                    .map(|error| apply::Incomplete {
                        left: vec![error.to_string()],
                        awaited: false,
                    })
            }
            // an IPAM plugin that failed ADD may well fail DEL: the runtime's DEL asks again
            Err(error) => {
                log::warn!("{error}");
                release::mark(node, attachment, Phase::Home);
                None
            }
        },
    };
    Error::Add { cause, left }
}

fn log_rails(attachment: &Attachment) {
    for rail in &attachment.rails {
        let rdma = match &rail.rdma {
            None => "without RDMA device".to_owned(),
            Some(rdma) if attachment.moves_rdma() => format!("with RDMA device {}", rdma.name),
            Some(rdma) => format!("RDMA device {} is shared and stays", rdma.name),
        };
        let netns = attachment.netns.display();
        match &rail.home {
            Some(home) => log::info!("{} goes to {netns} as {}, {rdma}", home.name, rail.pod_name),
            None => log::info!("{} is in {netns} already, {rdma}", rail.pod_name),
        }
    }
}
