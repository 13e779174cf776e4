// SPDX-License-Identifier: Apache-2.0
//! Decides whether a netdev moves into the pod, or stays on the host and gets a child in the pod.

use super::{SelectError, error::check_free};
use attachments::{Attachment, Rail, Shared};
use network_conf::{ChildConf, Conf, Mode};
use rdma_netns::{
    Child, IpoibMode, Link, LinkType, MacvlanMode, Namespace, NetnsSide, Observed, Origin,
    RdmaDevice, RdmaMode,
};
use rdma_resources::Sharing;
use std::iter::once;

/// Returns the bond that has the host's netdev `link` as a port. Returns `link` itself in mode `move`, or if `link` has
/// no bond.
pub(super) fn bond_of<'a>(
    mode: Mode,
    host: &'a Namespace,
    side: NetnsSide,
    link: &'a Link,
) -> &'a Link {
    let master = link.master.and_then(|index| host.link_by_index(index));
    match master {
        Some(bond) if bond.is_bond() && side == NetnsSide::Host && mode != Mode::Move => bond,
        _ => link,
    }
}

/// Returns the reason why `link`, with the RDMA device `rdma`, is shared. Returns `None` if `link` is moved. `sharing`
/// is the sharing mode of the device's resource, if kubelet allocated the device.
pub(super) fn reason(
    mode: Mode,
    sharing: Option<Sharing>,
    (link, rdma): (&Link, Option<&RdmaDevice>),
    others: &[Attachment],
) -> Option<String> {
    match mode {
        Mode::Move => None,
        Mode::Share => Some("mode is \"share\"".into()),
        Mode::Auto if link.is_bond() => Some("a bond cannot be moved".into()),
        Mode::Auto if link.is_vlan() && rdma.is_some() => {
            Some("a VLAN uses the RDMA device of its lower netdev".into())
        }
        Mode::Auto => match sharing {
            Some(Sharing::Shared) => {
                Some("kubelet can allocate the device's resource to several pods".into())
            }
            Some(Sharing::Exclusive) => None,
            None => sharer(link, others)
                .map(|other| format!("{} has a child of it already", other.holder())),
        },
    }
}

/// Returns the record of a child of `link`.
pub(super) fn shared(
    conf: &Conf,
    mode: Option<RdmaMode>,
    rail: &Rail,
    link: &Link,
    others: &[Attachment],
) -> Result<Shared, SelectError> {
    if rail.rdma.is_some() && mode == Some(RdmaMode::Exclusive) {
        return Err(SelectError::Exclusive(link.name.clone()));
    }
    let cannot = |reason: String| {
        let link = link.name.clone();
        Err(SelectError::CannotShare { link, reason })
    };
    let child = match child(conf, link) {
        Ok(child) => child,
        Err(reason) => return cannot(reason.into()),
    };
    if link.master.is_some() {
        return cannot("it is a port of another netdev (a bond, a bridge, or a netdev that it accelerates), which takes all its frames".into());
    }
    if let Some(own) = link.child {
        let what = match own {
            Child::Ipoib { .. } => "an IPoIB child",
            Child::Macvlan { .. } | Child::Ipvlan { .. } => "a macvlan or ipvlan",
        };
        return cannot(format!("it is {what} itself; share its lower netdev"));
    }
    let others = others
        .iter()
        .filter_map(|other| Some((other, share_of(link, other)?)));
    for (other, shared) in others {
        if shared.child.kind() != child.kind() {
            return cannot(format!(
                "{} has a child of it with type {}, and all children of a netdev must have the same type",
                other.holder(),
                shared.child.kind(),
            ));
        }
    }
    Ok(Shared::of(link, child))
}

/// Returns the kind of the pod's child of `link`, or the reason why there can be no child.
fn child(conf: &Conf, link: &Link) -> Result<Child, &'static str> {
    let ipoib = match (link.link_type, conf.child) {
        (LinkType::Ether, None) => {
            return Ok(Child::Macvlan {
                mode: MacvlanMode::Bridge,
            });
        }
        (LinkType::Ether, Some(ChildConf::Macvlan { mode })) => return Ok(Child::Macvlan { mode }),
        (LinkType::Ether, Some(ChildConf::Ipvlan { mode })) => return Ok(Child::Ipvlan { mode }),
        (LinkType::Ether, Some(ChildConf::Ipoib { .. })) => {
            return Err("child.type \"ipoib\" needs InfiniBand; leave child out for a macvlan");
        }
        (LinkType::Infiniband, None) => None,
        (LinkType::Infiniband, Some(ChildConf::Ipoib { mode })) => mode,
        (LinkType::Infiniband, Some(_)) => {
            return Err(
                "macvlan and ipvlan need Ethernet; leave child out, or set child.type to \"ipoib\"",
            );
        }
        (LinkType::Other, _) => return Err("macvlan and ipvlan need Ethernet"),
    };
    let Some(own) = link.ipoib else {
        return Err("it is no IPoIB netdev itself; share one of its ports");
    };
    let mode = ipoib.unwrap_or(own.mode);
    if mode == IpoibMode::Connected && !takes_connections(link) {
        return Err(
            "its queue pair accepts no connections, as with mlx5's IPoIB netdevs; set child.mode to \"datagram\"",
        );
    }
    let pkey = conf.pkey.unwrap_or(own.pkey).full();
    Ok(Child::Ipoib { pkey, mode })
}

/// Returns true if the netdev supports connected mode (`IPOIB_CM_SUPPORTED()`, `drivers/infiniband/ulp/ipoib/ipoib.h`).
/// A child's queue pair has the same type as its parent's.
fn takes_connections(link: &Link) -> bool {
    const IPOIB_FLAGS_RC: u8 = 0x80;
    link.mac
        .0
        .first()
        .is_some_and(|flags| flags & IPOIB_FLAGS_RC != 0)
}

/// Returns an error if `link` cannot be moved into a pod, or if another attachment or the pod has a netdev on it.
pub(super) fn movable(
    observed: &Observed,
    (link, rdma): (&Link, Option<&RdmaDevice>),
    others: &[Attachment],
) -> Result<(), SelectError> {
    let host = &observed.host;
    let cannot = |reason| {
        let link = link.name.clone();
        Err(SelectError::CannotMove { link, reason })
    };
    if link.is_bond() {
        return cannot(
            "it is a bond, and its ports and LACP cannot move with it; use mode \"share\"",
        );
    }
    if link.master.is_some() {
        return cannot(
            "it is a port of another netdev (a bond, a bridge, or a netdev that it accelerates), which would lose \
             this port",
        );
    }
    if link.is_vlan() && rdma.is_some() {
        return cannot(
            "it is a VLAN, and uses the RDMA device of its lower netdev; use mode \"share\"",
        );
    }
    // DEL identifies the netdev by its origin, which changes with every move of the lower netdev
    if link.lower.is_some() && link.origin.is_some_and(|it| it.netns >= 0) {
        return cannot(
            "its lower netdev is in another network namespace; move the lower netdev to the host (ip -n NAMESPACE \
             link set NETDEV netns 1), or end the pod that has it",
        );
    }
    let has_upper = |it: &&Attachment| it.rails.iter().any(|it| lies_on(it, link));
    check_free(&link.name, others.iter().find(has_upper))?;
    // if the pod had an upper netdev of a rail, DEL would delete the upper netdev
    let mut pod = observed.pod.iter();
    if let Some(upper) = pod.find_map(|pod| pod.lying_on(NetnsSide::Host, link).next()) {
        return Err(SelectError::Below {
            link: link.name.clone(),
            upper: format!("{} of this pod", upper.name),
        });
    }
    // a child of the netdev's VLAN also sends through the netdev
    let is_on_it = |it: &&Link| {
        let lower = host.below_vlan(it);
        lower.is_some_and(|lower| lower.index == link.index)
    };
    let vlans = host.links.iter().filter(is_on_it);
    let holder = once(link).chain(vlans).find_map(|it| sharer(it, others));
    check_free(&link.name, holder)
}

/// Returns true if `rail` moves a netdev whose lower netdev is `link`, a netdev of the host.
fn lies_on(rail: &Rail, link: &Link) -> bool {
    let Some(host_link) = &rail.host_link else {
        return false;
    };
    let is_on_it = |origin: Origin| origin.netns < 0 && origin.index == link.index;
    host_link.lower.is_some() && host_link.origin.is_some_and(is_on_it)
}

/// Returns an error if one netdev to be moved is the lower netdev of another. DEL distinguishes the upper netdev by its
/// origin from netdevs that the pod made, and the kernel changes the origin when the lower netdev moves.
pub(super) fn apart(rails: &[Rail]) -> Result<(), SelectError> {
    let mut moved = rails.iter().filter_map(|rail| rail.host_link.as_ref());
    let below = moved.find_map(|link| Some((link, rails.iter().find(|it| lies_on(it, link))?)));
    match below {
        None => Ok(()),
        Some((link, upper)) => Err(SelectError::Below {
            link: link.name.clone(),
            upper: format!("{}, which is moved as well,", upper.name()),
        }),
    }
}

/// Returns an error if another attachment has a child of `link`, or of another netdev of the RDMA device `rdma`. The
/// caller checks this for a device that kubelet gives to one pod only, but that cannot be moved.
pub(super) fn alone(
    (link, rdma): (&Link, Option<&RdmaDevice>),
    others: &[Attachment],
) -> Result<(), SelectError> {
    let has_it = |rail: &Rail| {
        let is_same = |own: &RdmaDevice| rdma.is_some_and(|rdma| rdma.name == own.name);
        let shared = rail.shared.as_ref();
        shared.is_some_and(|shared| shared.is_of(link) || rail.rdma.as_ref().is_some_and(is_same))
    };
    let holder = others.iter().find(|it| it.rails.iter().any(has_it));
    check_free(&link.name, holder)
}

/// Returns an attachment that has a child of the netdev `link`.
fn sharer<'a>(link: &Link, others: &'a [Attachment]) -> Option<&'a Attachment> {
    others.iter().find(|other| share_of(link, other).is_some())
}

/// Returns the record of `other`'s child of `link`.
fn share_of<'a>(link: &Link, other: &'a Attachment) -> Option<&'a Shared> {
    let mut shares = other.rails.iter().filter_map(|rail| rail.shared.as_ref());
    shares.find(|shared| shared.is_of(link))
}
