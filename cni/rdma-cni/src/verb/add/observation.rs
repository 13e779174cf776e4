// SPDX-License-Identifier: Apache-2.0
//! Observes the kernel before ADD changes anything. Queries only the ports of RDMA devices that the selection needs.

use crate::{error::Error, node::Node, verb::draft::draft, vf};
use attachments::{Attachment, Key};
use plan::select::{self, Choice, Remark};
use rdma_netns::{DeviceAddress, Kernel, Neighbour, ObservationScope, Observed};
use std::collections::BTreeSet;

/// Returns the present state, the attachment's record, and remarks for the log. Queries only the ports of devices that
/// ADD may attach, because other pods wait for the node's lock. Returns `None` if the selection depends on the ports of
/// all devices, and `selected` is missing.
pub(super) fn present<K: Kernel>(
    node: &Node<'_, K>,
    choice: &Choice<'_>,
    key: &Key,
    pod: &K::Pod,
    (holders, selected): (&[Attachment], Option<&BTreeSet<DeviceAddress>>),
) -> Result<Option<(Observed, Attachment, Vec<Remark>)>, Error> {
    let known = match selected {
        Some(selected) => Some(selected.clone()),
        None => without_ports(node, choice, pod, holders)?,
    };
    let Some(mut known) = known else {
        return Ok(None);
    };
    loop {
        limit_observation(node, choice, known.clone(), holders);
        let mut observed = observe(node, choice, pod, holders)?;
        match draft(node, choice, key, pod, &observed, holders) {
            Ok((attachment, remarks)) if attachment.devices().is_subset(&known) => {
                vf::observe(node.kernel, &attachment, &mut observed)?;
                return Ok(Some((observed, attachment, remarks)));
            }
            // a bond's RDMA device belongs to the bond's first port: the next observation queries this device too
            Ok((attachment, _)) => known.extend(attachment.devices()),
            Err(Error::Select(error)) if error.needs_no_port() => return Err(error.into()),
            Err(error) if selected.is_some() => return Err(error),
            Err(_) => return Ok(None),
        }
    }
}

/// Returns the present state after two corrections: RDMA devices of `holders` that pods have renamed get their names
/// back, and the recorded values replace temporary values of another verb.
fn observe<K: Kernel>(
    node: &Node<'_, K>,
    choice: &Choice<'_>,
    pod: &K::Pod,
    holders: &[Attachment],
) -> Result<Observed, Error> {
    // the second round is for a device whose name another device had in the first round. There is no third round,
    // because a pod may rename a device again and again
    let mut tries = 0..2;
    loop {
        let mut observed = node.observe(choice, Some(pod))?;
        for holder in holders {
            plan::without_spared(&holder.spared, &mut observed);
        }
        let ops = plan::renamed(holders, &observed);
        if ops.is_empty() || tries.next().is_none() {
            return Ok(observed);
        }
        for op in ops {
            if let Err(error) = node.kernel.execute(&op, Some(pod)) {
                log::warn!("{error}; the RDMA device keeps the name that its pod set");
            }
        }
    }
}

/// Returns the devices that `choice` selects without an observation of ports. Returns `None` if the selection needs
/// ports.
fn without_ports<K: Kernel>(
    node: &Node<'_, K>,
    choice: &Choice<'_>,
    pod: &K::Pod,
    holders: &[Attachment],
) -> Result<Option<BTreeSet<DeviceAddress>>, Error> {
    let observe = || {
        limit_observation(node, choice, BTreeSet::new(), holders);
        observe(node, choice, pod, holders)
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

/// Limits later observations to the devices that `choice` can select, and to the ports of the devices `ports`. For
/// selectors, includes the devices of other attachments: they are in no observed namespace, but a selector may match
/// their driver.
fn limit_observation<K: Kernel>(
    node: &Node<'_, K>,
    choice: &Choice<'_>,
    ports: BTreeSet<DeviceAddress>,
    holders: &[Attachment],
) {
    let rails = holders.iter().flat_map(|it| &it.rails);
    let held = rails.filter_map(|rail| rail.host_link.as_ref()?.parent.clone());
    let besides = match choice {
        Choice::Selectors(_) => held.collect(),
        Choice::Address(_) | Choice::Allocated(_) => BTreeSet::new(),
    };
    node.kernel.limit_observation(Some(ObservationScope {
        ports,
        besides,
        ..ObservationScope::default()
    }));
}

/// Returns the devices that `choice` selects by the ports of all RDMA devices. The caller must not hold the node's
/// lock, because a faulty device may respond to a port query only after a minute.
pub(super) fn by_all_ports<K: Kernel>(
    node: &Node<'_, K>,
    choice: &Choice<'_>,
    key: &Key,
    pod: &K::Pod,
    holders: &[Attachment],
) -> Result<BTreeSet<DeviceAddress>, Error> {
    node.kernel.limit_observation(None);
    let observed = node.observe(choice, Some(pod))?;
    let (attachment, _) = draft(node, choice, key, pod, &observed, holders)?;
    Ok(attachment.devices())
}

/// Returns the entries of the host's neighbour tables. Omits entries for the host's own netdevs. ADD continues without
/// entries if the tables cannot be read.
pub(super) fn neighbours<K: Kernel>(node: &Node<'_, K>, observed: &Observed) -> Vec<Neighbour> {
    let mut neighbours = node.kernel.neighbours().unwrap_or_else(|error| {
        log::warn!("{error}; IPAM plugins do not get the addresses of neighbours");
        vec![]
    });
    neighbours.retain(|it| observed.host.links.iter().all(|link| link.mac != it.mac));
    neighbours
}
