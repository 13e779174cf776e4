// SPDX-License-Identifier: Apache-2.0
//! Offer of `/dev/infiniband/rdma_cm` without a NIC, for the fabric watch. Without an allocation, the runtime lets no
//! container open this device.

use crate::{Environment, Offer, OfferedId};
use daemon_conf::{Allocate, CONNECTION_MANAGER, Conf, Ids, ResourceName};
use rdma_netns::{CharDevice, Inventory};
use rdma_resources::{ContainerLimits, Sharing};

/// Number of ids: one for the node's fabric watch, and one for its successor during an update.
const IDS: u32 = 2;

/// Returns the offer of the connection manager, or `None` if the configuration has no `fabric`.
pub fn connection_manager(conf: &Conf, inventory: &Inventory) -> Option<Offer> {
    // `ok` hides no error: a test checks that the name is valid
    let name = ResourceName::new(CONNECTION_MANAGER).ok();
    let name = name.filter(|_| conf.fabric)?;
    let manager = inventory.connection_manager.as_ref();
    let is_there = manager.is_some_and(CharDevice::is_in_place);
    let id = |number: u32| OfferedId {
        id: number.to_string(),
        devices: vec![],
        numa_nodes: vec![],
        healthy: is_there,
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
        short: (!is_there).then(|| {
            "there is no /dev/infiniband/rdma_cm on this node: load the module rdma_ucm".to_owned()
        }),
    })
}
