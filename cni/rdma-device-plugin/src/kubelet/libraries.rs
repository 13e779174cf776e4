// SPDX-License-Identifier: Apache-2.0
//! Selects a container's RDMA devices and GIDs from kubelet's allocation: ADD leaves out shared NICs that are down or
//! not selected by the pod, although kubelet already gave it their character devices.

use crate::node::Node;
use attachments::{Attachment, Rail};
use rdma_netns::{Kernel, LinkType};
use rdma_resources::{
    Grant,
    grant::GrantedDevice,
    nccl::{Port, Undecided},
};

/// Port of a device whose port is unknown.
const FIRST_PORT: u32 = 1;

/// A rail of a pod.
pub(super) type PodRail<'a> = (&'a Attachment, &'a Rail);

/// Returns the rails of a pod's `rails` that belong to `grants`.
pub(super) fn of_grants<'a>(rails: &[PodRail<'a>], grants: &[Grant]) -> Vec<PodRail<'a>> {
    let is_granted = |(resource, id): (&str, &str)| {
        let mut grants = grants.iter();
        grants.any(|grant| grant.resource == resource && grant.id == id)
    };
    let own = rails.iter();
    own.filter(|(_, rail)| ids(rail).any(is_granted))
        .copied()
        .collect()
}

/// Returns the allocated ids of `rail`, each with its resource.
fn ids(rail: &Rail) -> impl Iterator<Item = (&str, &str)> {
    let ids = rail.allocated.iter().flat_map(|it| &it.ids);
    ids.map(|it| (it.resource.as_str(), it.id.as_str()))
}

/// Returns the container's RDMA devices by `grants`, each with its port: the devices of its `rails` in their order, and
/// the devices that need no rail. A container of a pod without rails, as with `hostNetwork`, has all devices.
pub(super) fn devices(grants: &[Grant], rails: &[PodRail<'_>], node: &Node) -> Vec<(String, u32)> {
    let own = of_grants(rails, grants);
    let mut devices: Vec<(String, u32)> = vec![];
    for found in own.iter().filter_map(|(_, rail)| port(rail)) {
        if !devices.contains(&found) {
            devices.push(found);
        }
    }
    let has_ipoib = own.iter().any(|(_, rail)| rail.has_ipoib_child());
    let chain = node.conf.chain.as_ref();
    let is_attached = |resource: &str| {
        let mut of_pod = rails.iter().flat_map(|(_, rail)| ids(rail));
        of_pod.any(|(other, _)| other == resource)
            || !rails.is_empty() && chain.is_some_and(|it| it.attaches(resource))
    };
    for (grant, device) in grants.iter().flat_map(of) {
        let is_its = |rail: &Rail| {
            let mut rdma = rail.rdma.iter();
            rdma.any(|it| it.parent.as_ref() == Some(&device.address))
        };
        let is_known = devices.iter().any(|(name, _)| *name == device.rdma);
        if is_known || own.iter().any(|(_, rail)| is_its(rail)) {
            continue;
        }
        let offer = node.offer(&grant.resource).into_iter();
        let offered = offer.flat_map(|it| &it.devices);
        let mut offered = offered.filter(|it| it.address == device.address);
        let first = offered.next().and_then(|it| it.hca.ports.first());
        let is_infiniband = first.is_some_and(|it| it.link_type == LinkType::Infiniband);
        // InfiniBand devices have rails only with IPoIB
        let by_verbs_alone = is_infiniband && !has_ipoib;
        if by_verbs_alone || !is_attached(&grant.resource) {
            let port = first.map_or(FIRST_PORT, |it| it.number);
            devices.push((device.rdma.clone(), port));
        }
    }
    devices
}

fn of(grant: &Grant) -> impl Iterator<Item = (&Grant, &GrantedDevice)> {
    grant.devices.iter().map(move |device| (grant, device))
}

/// Returns the RDMA device of `rail` with its used port.
fn port(rail: &Rail) -> Option<(String, u32)> {
    let rdma = rail.rdma.as_ref()?;
    let of_gid = rail.gids.first().map(|gid| gid.port);
    let port = of_gid.or_else(|| rail.infiniband_port());
    let port = port.or_else(|| Some(rdma.ports.first()?.number));
    Some((rdma.name.clone(), port.unwrap_or(FIRST_PORT)))
}

/// Returns NCCL's variables for the GIDs of `rails`.
///
/// # Errors
/// No value is right on all rails.
pub(super) fn gids<K: Kernel>(
    kernel: &K,
    rails: &[PodRail<'_>],
) -> Result<Vec<(&'static str, String)>, Undecided> {
    let mut ports: Vec<((String, u32), Port)> = vec![];
    for (attachment, rail) in rails {
        let Some(port) = port(rail) else {
            continue;
        };
        let own = rail.gids.iter().map(|it| it.gid);
        // two VLANs of one NIC
        if let Some((_, known)) = ports.iter_mut().find(|(other, _)| *other == port) {
            known.own.extend(own);
            continue;
        }
        let index = match rail.infiniband_port() {
            Some(_) => Some(attachments::PORTS_OWN_GID),
            None => rail.gids.first().map(|it| it.index),
        };
        let known = Port {
            device: port.0.clone(),
            index,
            own: own.collect(),
            shared: (!attachment.moves_rdma()).then(|| {
                let table = kernel.gids(None, &port.0, port.1);
                table.map_err(|error| error.to_string())
            }),
        };
        ports.push((port, known));
    }
    let ports: Vec<Port> = ports.into_iter().map(|(_, port)| port).collect();
    rdma_resources::nccl::variables(&ports)
}
