// SPDX-License-Identifier: Apache-2.0
//! Offer of `/dev/infiniband/rdma_cm` without a NIC, for the fabric watch. Without an allocation, the runtime lets no
//! container open this device.

use crate::{Environment, Offer, OfferedId};
use daemon_conf::{Allocate, CONNECTION_MANAGER, Conf, Ids, ResourceName};
use rdma_netns::{CharDevice, Inventory};
use rdma_resources::{ContainerLimits, Sharing};

/// Number of ids: one for the node's fabric watch, and one for its successor during an update.
const IDS: u32 = 2;

/// Returns the reason why no container can get `/dev/infiniband/rdma_cm`, and the remedy. Returns `None` if containers
/// can get this file.
pub fn manager_fault(inventory: &Inventory) -> Option<(String, &'static str)> {
    const FILE: &str = "/dev/infiniband/rdma_cm";
    let Some(manager) = &inventory.connection_manager else {
        let problem = format!("there is no {FILE} on this node");
        return Some((problem, "load the module rdma_ucm"));
    };
    let CharDevice { major, minor, .. } = manager;
    match manager.node {
        _ if manager.is_in_place() => None,
        None => Some((
            format!("there is no character device {FILE}, although the module rdma_ucm is loaded"),
            "remove any file of this name, and reload the module rdma_ucm",
        )),
        Some((other, number)) => Some((
            format!("{FILE} has the device number {other}:{number} instead of {major}:{minor}"),
            "remove this file, and reload the module rdma_ucm",
        )),
    }
}

/// Returns the offer of the connection manager, or `None` if the configuration has no `fabric`.
pub fn connection_manager(conf: &Conf, inventory: &Inventory) -> Option<Offer> {
    // `ok` hides no error: a test checks that the name is valid
    let name = ResourceName::new(CONNECTION_MANAGER).ok();
    let name = name.filter(|_| conf.fabric)?;
    let fault = manager_fault(inventory);
    let id = |number: u32| OfferedId {
        id: number.to_string(),
        devices: vec![],
        numa_nodes: vec![],
        healthy: fault.is_none(),
    };
    Some(Offer {
        name,
        kind: Ids::Shared {
            count: IDS,
            allocate: Allocate::All,
        },
        sharing: Sharing::Shared,
        devices: vec![],
        ids: (0..IDS).map(id).collect(),
        keeps_count: false,
        has_parents: false,
        cdi: false,
        umad: false,
        limits: ContainerLimits::default(),
        environment: Environment::default(),
        expected: 0,
        short: fault.map(|(problem, remedy)| format!("{problem}: {remedy}")),
    })
}
