// SPDX-License-Identifier: Apache-2.0
//! Observes the kernel before ADD changes anything. Queries only the ports of RDMA devices that the selection needs.

use super::AddRequest;
use crate::{error::Error, node::Node, verb::draft::draft, vf};
use attachments::Attachment;
use plan::select::{self, Choice, Remark};
use rdma_netns::{DeviceAddress, Kernel, Neighbour, ObservationScope, Observed};
use std::collections::BTreeSet;

/// Returns the present state, the attachment's record, and remarks for the log. Queries only the ports of devices that
/// ADD may attach, because other pods wait for the node's lock. Returns `None` if the selection depends on the ports of
/// all devices, and `selected` is missing.
pub(super) fn present<K: Kernel>(
    request: &AddRequest<'_, K>,
    holders: &[Attachment],
    selected: Option<&BTreeSet<DeviceAddress>>,
) -> Result<Option<(Observed, Attachment, Vec<Remark>)>, Error> {
    let known = match selected {
        Some(selected) => Some(selected.clone()),
        None => without_ports(request, holders)?,
    };
    let Some(mut known) = known else {
        return Ok(None);
    };
    loop {
        limit_observation(request, known.clone(), holders);
        let mut observed = observe(request, holders)?;
        match new_attachment(request, &observed, holders) {
            Ok((attachment, remarks)) if attachment.devices().is_subset(&known) => {
                vf::observe(request.node.kernel, &attachment, &mut observed)?;
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
    request: &AddRequest<'_, K>,
    holders: &[Attachment],
) -> Result<Observed, Error> {
    let AddRequest { node, pod, .. } = *request;
    // the second round is for a device whose name another device had in the first round. There is no third round,
    // because a pod may rename a device again and again
    let mut tries = 0..2;
    loop {
        let mut observed = node.observe(request.choice, Some(pod))?;
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

/// Returns the devices that `request` selects without an observation of ports. Returns `None` if the selection needs
/// ports.
fn without_ports<K: Kernel>(
    request: &AddRequest<'_, K>,
    holders: &[Attachment],
) -> Result<Option<BTreeSet<DeviceAddress>>, Error> {
    let observe = || {
        limit_observation(request, BTreeSet::new(), holders);
        observe(request, holders)
    };
    Ok(match request.choice {
        Choice::Selectors(selectors) => {
            select::selected(request.node.conf, selectors, &observe()?, holders)
        }
        Choice::Allocated(meanings) if select::named(request.choice).is_none() => {
            Some(select::allocated_devices(meanings, &observe()?))
        }
        choice => select::named(choice),
    })
}

/// Limits later observations to the devices that `request` can select, and to the ports of the devices `ports`. For
/// selectors, includes the devices of other attachments: they are in no observed namespace, but a selector may match
/// their driver.
fn limit_observation<K: Kernel>(
    request: &AddRequest<'_, K>,
    ports: BTreeSet<DeviceAddress>,
    holders: &[Attachment],
) {
    let rails = holders.iter().flat_map(|it| &it.rails);
    let held = rails.filter_map(|rail| rail.host_link.as_ref()?.parent.clone());
    let besides = match request.choice {
        Choice::Selectors(_) => held.collect(),
        Choice::Address(_) | Choice::Allocated(_) => BTreeSet::new(),
    };
    let kernel = request.node.kernel;
    kernel.limit_observation(Some(ObservationScope {
        ports,
        besides,
        ..ObservationScope::default()
    }));
}

/// Returns the devices that `request` selects by the ports of all RDMA devices. The caller must not hold the node's
/// lock, because a faulty device may respond to a port query only after a minute.
pub(super) fn by_all_ports<K: Kernel>(
    request: &AddRequest<'_, K>,
    holders: &[Attachment],
) -> Result<BTreeSet<DeviceAddress>, Error> {
    request.node.kernel.limit_observation(None);
    let observed = request.node.observe(request.choice, Some(request.pod))?;
    let (attachment, _) = new_attachment(request, &observed, holders)?;
    Ok(attachment.devices())
}

fn new_attachment<K: Kernel>(
    request: &AddRequest<'_, K>,
    observed: &Observed,
    holders: &[Attachment],
) -> Result<(Attachment, Vec<Remark>), Error> {
    let AddRequest { node, key, pod, .. } = *request;
    draft(node, request.choice, key, pod, observed, holders)
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
