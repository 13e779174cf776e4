//! What every way home has in common: the pod's namespace if it is still the same one,
//! devices, addresses, record.

use super::Node;
use crate::{
    apply,
    attachment::{Attachment, Phase},
    error::Error,
    ipam::{Ipam, RailCall},
    store::Lock,
};
use cni_protocol::Command;
use rdma_netns::{Kernel, Pod};
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a dying namespace's devices are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long others may move devices in between.
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

/// Brings `attachment` home, gives its addresses back and forgets it. The record stays
/// until all of that is done, so that it can be tried again.
pub fn attachment<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    pod: Option<&K::Pod>,
    lock: Lock,
) -> Result<(), Error> {
    if attachment.phase == Phase::Attached {
        // should this be killed, whoever comes next knows that the pod is done with them
        mark(node, attachment, Phase::Detaching);
    }
    devices(node, attachment, pod)?;
    let netns = pod.map(|pod| pod.path().display().to_string());
    if let Err(error) = addresses(node, attachment, netns.as_deref()) {
        mark(node, attachment, Phase::Home);
        return Err(error);
    }
    node.store
        .remove(&attachment.key, lock)
        .map_err(Error::Forget)
}

/// Writes down how far `attachment` got. What is lost if that fails is only that another
/// verb could take over earlier.
pub fn mark<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, phase: Phase) {
    let marked = Attachment {
        phase,
        ..attachment.clone()
    };
    if let Err(error) = node.store.update(&marked) {
        log::warn!("{error}");
    }
}

/// Brings the devices home, and waits a while for those of a namespace that is just dying.
/// After a reboot every device is at home, with what the node's set-up gave it.
pub fn devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    pod: Option<&K::Pod>,
) -> Result<(), Error> {
    if attachment.phase == Phase::Home || attachment.boot_id != node.kernel.boot_id()? {
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let restored = {
            let _moves = node.store.lock_node()?;
            apply::restore(node.kernel, pod, attachment)
        };
        match restored {
            Err(incomplete) if incomplete.awaited && Instant::now() < deadline => {
                thread::sleep(PAUSE);
            }
            restored => return Ok(restored?),
        }
    }
}

/// Gives the addresses of all rails back.
pub fn addresses<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    netns: Option<&str>,
) -> Result<(), Error> {
    let Some(name) = &attachment.ipam else {
        return Ok(());
    };
    let ipam = Ipam::find(name, node.environment, &attachment.config).map_err(Error::Release)?;
    let mut first = None;
    for rail in attachment.rails.iter().filter(|rail| rail.home.is_some()) {
        let call = RailCall {
            container: &attachment.key.container,
            netns,
            args: attachment.args.as_deref(),
            pod_name: &rail.pod_name,
            master: rail.name(),
        };
        if let Err(error) = ipam.rail(Command::Del, call) {
            log::warn!("{error}");
            first.get_or_insert(error);
        }
    }
    first.map_or(Ok(()), |error| Err(Error::Release(error)))
}
