// SPDX-License-Identifier: Apache-2.0
//! Pods and their rails. The rails are from the records of `rdma-cni`. A device without a record is from kubelet's
//! list.

use super::super::collect::Snapshot;
use attachments::pods::{PodRail, PodRails};
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
    pub(super) rails: Vec<PodRail>,
}

/// Returns the pods in the order of their names.
pub(super) fn pods(snapshot: &Snapshot, rails: &[PodRails]) -> Vec<Pod> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    for record in rails {
        let pod = pods.entry(record.pod.clone()).or_default();
        let under_way = Some(&record.phase).filter(|phase| *phase != "attached");
        pod.under_way = under_way.cloned().or(pod.under_way.take());
        pod.rails.extend(record.rails.iter().cloned());
    }
    let holders = snapshot.held.iter().flat_map(|held| &held.holders);
    for (address, holders) in holders {
        for holder in holders {
            let container = &holder.container;
            let pod = pods.entry(container.pod.to_string()).or_default();
            pod.containers.insert(container.name.clone());
            if !pod.rails.iter().any(|it| it.devices.contains(address)) {
                pod.rails.push(without_record(snapshot, address));
            }
        }
    }
    let named = pods.into_iter().map(|(name, pod)| Pod { name, ..pod });
    named.collect()
}

fn without_record(snapshot: &Snapshot, address: &DeviceAddress) -> PodRail {
    let function = snapshot.node.inventory.function(address);
    let rdma = function.and_then(|it| it.hcas.first());
    let netdev = function.and_then(|it| it.netdevs.first());
    PodRail {
        rdma: rdma.map(|it| it.name.clone()),
        host_netdev: netdev.map(|it| it.name.clone()),
        devices: vec![address.clone()],
        ..PodRail::default()
    }
}

/// Returns the name of the rail's interface in the pod. `None`: `rdma-cni` has no record of the rail.
pub(super) fn interface(rail: &PodRail) -> Option<&str> {
    Some(&*rail.name).filter(|it| !it.is_empty())
}

/// Returns the name of the rail's RDMA device. If the name is unknown, returns the device's address.
pub(super) fn device(rail: &PodRail) -> &str {
    let address = || rail.devices.first().map(|it| &**it);
    rail.rdma.as_deref().or_else(address).unwrap_or_default()
}
