// SPDX-License-Identifier: Apache-2.0
//! Pods and their rails. The rails are from the records of `rdma-cni`. A device without a record is from kubelet's
//! list.

use super::super::collect::Snapshot;
use attachments::pods::{PodRail, PodRails, RailAddress};
use rdma_netns::DeviceAddress;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Pod {
    /// Name as `namespace/name`. If the name is unknown: the container's id.
    pub(super) name: String,
    /// Phase of the pod's record. `None`: ADD is complete, or the pod has no record.
    pub(super) under_way: Option<String>,
    /// Names of the containers with devices.
    pub(super) containers: BTreeSet<String>,
    /// Rails in the order of the records, followed by devices without a record.
    pub(super) rails: Vec<Rail>,
}

#[derive(Debug, Default)]
pub(super) struct Rail {
    /// Name of the interface in the pod; `None`: `rdma-cni` has no record of the rail.
    pub(super) interface: Option<String>,
    /// Name of the RDMA device. If the name is unknown: the device's address.
    pub(super) device: String,
    pub(super) host_netdev: Option<String>,
    /// True if the netdev `host_netdev` stays on the host.
    pub(super) shared: bool,
    /// PCI functions and auxiliary devices of the rail.
    pub(super) functions: Vec<DeviceAddress>,
    pub(super) addresses: Vec<RailAddress>,
}

/// Returns the pods in the order of their names.
pub(super) fn pods(snapshot: &Snapshot, rails: &[PodRails]) -> Vec<Pod> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    for record in rails {
        let pod = pods.entry(record.pod.clone()).or_default();
        let under_way = Some(&record.phase).filter(|phase| *phase != "attached");
        pod.under_way = under_way.cloned().or(pod.under_way.take());
        pod.rails.extend(record.rails.iter().map(Rail::from));
    }
    let holders = snapshot.held.iter().flat_map(|held| &held.holders);
    for (address, holders) in holders {
        for holder in holders {
            let container = &holder.container;
            let pod = pods.entry(container.pod.to_string()).or_default();
            pod.containers.insert(container.name.clone());
            if !pod.rails.iter().any(|it| it.functions.contains(address)) {
                pod.rails.push(without_record(snapshot, address));
            }
        }
    }
    let named = pods.into_iter().map(|(name, pod)| Pod { name, ..pod });
    named.collect()
}

fn without_record(snapshot: &Snapshot, address: &DeviceAddress) -> Rail {
    let function = snapshot.node.inventory.function(address);
    let rdma = function.and_then(|it| it.hcas.first());
    let netdev = function.and_then(|it| it.netdevs.first());
    Rail {
        device: rdma.map_or_else(|| address.to_string(), |it| it.name.clone()),
        host_netdev: netdev.map(|it| it.name.clone()),
        functions: vec![address.clone()],
        ..Rail::default()
    }
}

impl From<&PodRail> for Rail {
    fn from(rail: &PodRail) -> Self {
        let address = || rail.devices.first().map(ToString::to_string);
        Self {
            interface: Some(rail.name.clone()),
            device: rail.rdma.clone().or_else(address).unwrap_or_default(),
            host_netdev: rail.host_netdev.clone(),
            shared: rail.shared,
            functions: rail.devices.clone(),
            addresses: rail.addresses.clone(),
        }
    }
}
