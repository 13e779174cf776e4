// SPDX-License-Identifier: Apache-2.0
//! Whether a netdev is moved, or shared by a child of it.

use super::SelectError;
use attachments::{Attachment, Rail, Shared};
use network_conf::Mode;
use rdma_netns::{Child, Link, LinkType, Namespace, NetnsSide, RdmaMode};
use rdma_resources::Sharing;

/// What is selected where `link` is: the bond that it is a port of, unless it is to be moved.
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

/// Why `link` is shared and not moved, if it is. `sharing` is kubelet's word, if it has one:
/// that other pods have the device too, or that none has.
pub(super) fn reason(
    mode: Mode,
    sharing: Option<Sharing>,
    link: &Link,
    others: &[Attachment],
) -> Option<String> {
    match mode {
        Mode::Move => None,
        Mode::Share => Some("mode is \"share\"".into()),
        Mode::Auto if link.is_bond() => Some("a bond cannot be moved".into()),
        Mode::Auto => match sharing {
            Some(Sharing::Shared) => Some("kubelet gives its resource to several pods".into()),
            Some(Sharing::Exclusive) => None,
            None => sharer(link, others)
                .map(|other| format!("{} has a child of it already", other.holder())),
        },
    }
}

/// The record of a child of `link`.
pub(super) fn shared(
    child: Child,
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
    if link.link_type != LinkType::Ether {
        return cannot("macvlan and ipvlan need Ethernet".into());
    }
    if link.master.is_some() {
        return cannot("it is a port of a bridge or bond, which takes all its frames".into());
    }
    if link.child.is_some() {
        return cannot("it is a macvlan or ipvlan itself; share the netdev that it lies on".into());
    }
    let others = others
        .iter()
        .filter_map(|other| Some((other, share_of(link, other)?)));
    for (other, shared) in others {
        if shared.child.kind() != child.kind() {
            return cannot(format!(
                "{} has an {} child of it, and the children of one netdev are of one type",
                other.holder(),
                shared.child.kind(),
            ));
        }
    }
    Ok(Shared::of(link, child))
}

/// Refuses what would not work in a pod, or be missed on the host.
pub(super) fn movable(link: &Link, others: &[Attachment]) -> Result<(), SelectError> {
    let cannot = |reason| {
        let link = link.name.clone();
        Err(SelectError::CannotMove { link, reason })
    };
    if link.is_bond() {
        return cannot("it is a bond, whose ports and LACP stay behind; use mode \"share\"");
    }
    if link.master.is_some() {
        return cannot("it is a port of a bond or bridge, which would lose it");
    }
    match sharer(link, others) {
        Some(other) => Err(SelectError::InUse {
            device: link.name.to_string(),
            holder: other.holder(),
        }),
        None => Ok(()),
    }
}

/// An attachment that has a child of `link`.
fn sharer<'a>(link: &Link, others: &'a [Attachment]) -> Option<&'a Attachment> {
    others.iter().find(|other| share_of(link, other).is_some())
}

/// What `other` has of `link`.
fn share_of<'a>(link: &Link, other: &'a Attachment) -> Option<&'a Shared> {
    let mut shares = other.rails.iter().filter_map(|rail| rail.shared.as_ref());
    shares.find(|shared| shared.is_of(link))
}
