// SPDX-License-Identifier: Apache-2.0
//! Field `pkey`: the InfiniBand partition of a child. The child's port must be a member of the partition. For a virtual
//! function that moves, the subnet manager sets the partition.

use crate::{error::Error, node::Node};
use attachments::{Attachment, Rail, is_orphaned_child};
use network_conf::Conf;
use plan::select::SelectError;
use rdma_netns::{Child, Kernel, LinkChange, LinkType, NetnsSide, Observed, Op, Pkey};

const NO_PARTITION: &str = "the netdev is not InfiniBand, so it has no partitions";

/// Checks the partitions of children. The kernel accepts a child whose port is not in the partition, but the child
/// never has a carrier (`ipoib_ib_dev_open()`, `drivers/infiniband/ulp/ipoib/ipoib_ib.c`).
///
/// # Errors
/// The configuration has `pkey`, and a rail is no InfiniBand netdev, or the port of a child is not in the partition.
pub fn check<K: Kernel>(kernel: &K, conf: &Conf, rails: &[Rail]) -> Result<(), Error> {
    let Some(pkey) = conf.pkey else {
        return Ok(());
    };
    for rail in rails {
        let is_moved = rail.host_link.as_ref();
        let has_none = match &rail.shared {
            Some(_) => !rail.has_ipoib_child(),
            None => is_moved.is_some_and(|it| it.link_type != LinkType::Infiniband),
        };
        if has_none {
            return Err(Error::Select(SelectError::CannotSetUp {
                fields: "pkey".to_owned(),
                link: rail.name().clone(),
                why: NO_PARTITION,
            }));
        }
        check_port(kernel, pkey, rail)?;
    }
    Ok(())
}

fn check_port<K: Kernel>(kernel: &K, pkey: Pkey, rail: &Rail) -> Result<(), Error> {
    let (Some(shared), Some(rdma)) = (&rail.shared, &rail.rdma) else {
        return Ok(());
    };
    let mut ports = rdma.ports.iter();
    let own = ports.find(|it| it.netdev == Some(shared.parent_index));
    let port = own.map_or(1, |it| it.number);
    let partitions = kernel.partitions(&rdma.name, port)?;
    if partitions.iter().any(|it| it.is_of_partition(pkey)) {
        return Ok(());
    }
    let partitions: Vec<String> = partitions.iter().map(Pkey::to_string).collect();
    Err(Error::Select(SelectError::NotInPartition {
        pkey,
        link: shared.parent.clone(),
        rdma: rdma.name.clone(),
        port,
        partitions: partitions.join(", "),
    }))
}

/// Logs which program sets the partition of functions that move.
pub fn log(conf: &Conf, attachment: &Attachment) {
    let moves = attachment.rails.iter().any(|it| it.shared.is_none());
    if let Some(pkey) = conf.pkey.filter(|_| moves) {
        log::info!(
            "pkey {pkey}: the subnet manager sets it, as ib-kubernetes requests for networks of type ib-sriov; \
             rdma-cni changes nothing"
        );
    }
}

/// Removes `rdma-cni`'s IPoIB children that are on the host and have no record. The kernel returns such a child after
/// DEL if a process kept the pod's namespace open during DEL. The caller holds the node's lock.
pub fn remove_orphans<K: Kernel>(node: &Node<'_, K>, observed: &Observed) -> Result<(), Error> {
    let ipoib = observed.host.links.iter();
    let ipoib = ipoib.filter(|it| matches!(it.child, Some(Child::Ipoib { .. })));
    let mut ipoib = ipoib.peekable();
    if ipoib.peek().is_none() {
        return Ok(());
    }
    let keys = node.store.keys(None).map_err(Error::State)?;
    let is_orphaned = |name: &str| is_orphaned_child(name, &keys);
    for link in ipoib {
        if !is_orphaned(&link.name) && !link.alias.as_deref().is_some_and(is_orphaned) {
            continue;
        }
        let link = &link.name;
        log::warn!("removing {link}: it was the child of a pod that is gone, and has no record");
        let remove = Op::link(NetnsSide::Host, link, LinkChange::Remove);
        if let Err(error) = node.kernel.execute(&remove, None) {
            log::warn!("{error}; the next ADD tries again");
        }
    }
    Ok(())
}
