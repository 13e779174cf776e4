// SPDX-License-Identifier: Apache-2.0
//! Objects that a pod made on its devices, and that a restore removes before the devices leave the pod. `draft`
//! plans the removal of XDP and tcx programs. The kernel removes tc filters when a netdev moves.

use super::{
    Obstacle, Others,
    locate::{self, Located},
};
use attachments::{Attachment, Phase, Rail, Sibling};
use rdma_netns::{Link, LinkChange, NetnsSide, Observed, Op, RdmaDevice};
use std::slice;

/// Returns the pod's children of its shared netdevs that belong neither to this attachment nor to `of_pod`, the pod's
/// other attachments. Returns none if the pod continues to run: after a failed ADD, and for an interface other than
/// `eth0`. The restore removes these children. Otherwise they would receive other pods' frames as long as the namespace
/// exists. A pod with `NET_ADMIN` can make a macvlan of the host's netdev: it makes a macvlan of its own child
/// (`macvlan_common_newlink()`, `drivers/net/macvlan.c`).
///
/// One of these netdevs can be a netdev of the host that another plugin moved into the pod. Then the second value of
/// the pair is the recorded netdev, which has left the host. The recorded netdev has the child's index, or its name is
/// the child's alias: CNI's host-device stores the host name of a moved netdev in its alias, and the kernel usually
/// keeps the index.
pub(super) fn siblings<'a>(
    attachment: &'a Attachment,
    of_pod: &[Attachment],
    observed: &'a Observed,
) -> impl Iterator<Item = (&'a Link, Option<&'a Sibling>)> {
    // after a failed ADD, and after DEL of another interface, the pod continues to run and keeps the netdevs of other
    // plugins
    let ends = attachment.phase != Phase::Attaching && &*attachment.key.interface == "eth0";
    let links = observed.pod.iter().filter(move |_| ends);
    let is_on = |rail: &Rail, link: &Link| {
        rail.shared.is_some() && !rail.has_ipoib_child() && rail.pod_origin == link.origin
    };
    // the rails' own plans remove the rails
    let own = rails_in_pod(slice::from_ref(attachment), observed);
    let others = rails_in_pod(of_pod, observed);
    let links = links.flat_map(|pod| &pod.links).filter(move |link| {
        let mut rails = attachment.rails.iter();
        link.origin.is_some()
            && link.lower.is_some()
            && (link.alias.is_none() || link.name != attachment.key.interface)
            && rails.any(|rail| is_on(rail, link))
            && !own.contains(&link.index)
            && !others.contains(&link.index)
    });
    links.map(move |link| {
        let rails = attachment.rails.iter().filter(|rail| is_on(rail, link));
        let mut hosts = rails.flat_map(|rail| &rail.siblings);
        let is_it =
            |it: &Sibling| it.index == link.index || link.alias.as_deref() == Some(&*it.name);
        let is_gone = |it: &Sibling| observed.host.link_by_index(it.index).is_none();
        (link, hosts.find(|it| is_it(it) && is_gone(it)))
    })
}

/// Returns one sentence for each child that stays in the pod because it may belong to the host.
pub fn left_in_pod(attachment: &Attachment, others: &Others, observed: &Observed) -> Vec<String> {
    let siblings = siblings(attachment, &others.of_pod, observed);
    let sentences = siblings.filter_map(|(link, hosts)| {
        let (link, Sibling { name, index }) = (&link.name, hosts?);
        Some(format!(
            "{link} stays in the pod, because its index or alias is that of {name} (index {index}), which has left the \
             host since ADD: move {link} to the host, or delete {link}"
        ))
    });
    sentences.collect()
}

/// Returns the indexes in the pod of the netdevs that ADD put into the pod for `attachments`. Omits a netdev that has
/// only the name and index of a rail that left the pod.
pub(super) fn rails_in_pod(attachments: &[Attachment], observed: &Observed) -> Vec<u32> {
    let rails = attachments.iter().flat_map(|it| &it.rails);
    let indexes = rails.filter_map(|rail| {
        let child = rail.shared.as_ref();
        let child = child.and_then(|shared| locate::child(rail, shared, observed));
        let moved = rail.host_link.as_ref();
        let moved = moved.map(|host_link| locate::link(rail, host_link, observed));
        let moved = match moved {
            Some(Ok(Located::At(NetnsSide::Pod, link))) => Some(link),
            _ => None,
        };
        child.or(moved).map(|it| it.index)
    });
    indexes.collect()
}

/// Plans the deletion of an RDMA device's sub-devices, if the device has not returned to the host. The pod made these
/// sub-devices, because ADD refuses to move an RDMA device that has sub-devices. The kernel moves the RDMA device only
/// after its sub-devices are deleted, even when the namespace ends.
pub(super) fn sub_devices(
    host_device: &RdmaDevice,
    located: &Result<Located<'_, RdmaDevice>, Obstacle>,
    observed: &Observed,
) -> Vec<Op> {
    let name = match located {
        Ok(Located::At(NetnsSide::Host, _)) => return vec![],
        Ok(Located::At(NetnsSide::Pod, device)) => &device.name,
        _ => &host_device.name,
    };
    let sub_devices = observed.sub_devices_of(name);
    let ops = sub_devices.map(|(at, it)| Op::DeleteSubDevice {
        at,
        device: it.name.clone(),
    });
    ops.collect()
}

/// Plans the removal of the pod's netdevs whose lower netdev is `link`, the netdev of a rail. Most kinds of upper
/// netdevs stay in the pod when `link` leaves, and still send and receive through `link` (`macvlan_device_event()`,
/// `drivers/net/macvlan.c`; `vlan_device_event()`, `net/8021q/vlan.c`). A bridge or bond releases `link`. This plan
/// does not remove netdevs of other rails, because their own plans move them to the host. ADD refuses a rail whose
/// lower netdev is another rail.
pub(super) fn uppers(
    attachment: &Attachment,
    (side, link): (NetnsSide, &Link),
    observed: &Observed,
) -> impl Iterator<Item = Op> {
    let rails = rails_in_pod(slice::from_ref(attachment), observed);
    let pod = observed.pod.iter();
    let uppers = pod.flat_map(move |pod| pod.lying_on(side, link));
    uppers
        .filter(move |it| !rails.contains(&it.index))
        .map(|it| Op::link(NetnsSide::Pod, &it.name, LinkChange::Remove))
}

/// Returns true if `op` sets the mode or flags of an ipvlan port, and the host has another child of the same port. Mode
/// and flags apply to all children of a port (`ipvlan_nl_changelink()`, `drivers/net/ipvlan/ipvlan_main.c`).
pub fn is_of_others(op: &Op, observed: &Observed) -> bool {
    let Op::SetDeviceSetting { link, key, .. } = op else {
        return false;
    };
    let is_child = |it: &&Link| matches!(it.kind.as_deref(), Some("ipvlan" | "ipvtap"));
    let own = observed.host.link(link).filter(is_child);
    matches!(&**key, "kind/1" | "kind/2")
        && own.is_some_and(|own| {
            let mut children = observed.host.links.iter().filter(is_child);
            let is_own_port = |it: &Link| (it.lower, it.origin) == (own.lower, own.origin);
            children.any(|it| is_own_port(it) && it.index != own.index)
        })
}
