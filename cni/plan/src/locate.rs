// SPDX-License-Identifier: Apache-2.0
//! Finds a recorded device again, in the pod or on the host. Its name and index may have changed.

use super::Obstacle;
use attachments::{Attachment, Rail, Shared, Sibling};
use rdma_netns::{Child, Device, Link, LinkType, NetnsSide, Observed, Origin, RdmaDevice, pairing};

/// Present place of a recorded device.
#[derive(Debug)]
pub(super) enum Located<'a, T> {
    /// The device is in this namespace.
    At(NetnsSide, &'a T),
    /// The device does not exist any more: a virtual netdev ends with its namespace, and a VF can be removed.
    Gone,
}

/// Finds the netdev that was `host_link` on the host.
pub(super) fn link<'a>(
    rail: &Rail,
    host_link: &Link,
    observed: &'a Observed,
) -> Result<Located<'a, Link>, Obstacle> {
    let links = [NetnsSide::Host, NetnsSide::Pod]
        .into_iter()
        .flat_map(|side| {
            let links = observed.at(side).map(|namespace| &namespace.links);
            links.into_iter().flatten().map(move |link| (side, link))
        });
    let found = links
        .filter(|(side, link)| match &host_link.parent {
            Some(parent) => {
                link.parent.as_ref() == Some(parent)
                    && !is_sibling(rail, *side, link)
                    && !is_another(host_link, link, observed.device(parent))
            }
            None => is_virtual_host_link(rail, host_link, (*side, link), observed),
        })
        .max_by_key(|(_, link)| resemblance(rail, host_link, link));
    if let Some((side, link)) = found {
        return Ok(Located::At(side, link));
    }
    let mut on_host = observed.host.links.iter();
    if let Some(link) = on_host.find(|link| is_changed(host_link, link)) {
        return Ok(Located::At(NetnsSide::Host, link));
    }
    let exists = match &host_link.parent {
        Some(parent) => observed.device(parent).is_some_and(has_netdev_driver),
        // hardware on another bus than PCI does not end with a namespace
        None => host_link.kind.is_none(),
    };
    match exists {
        true => Err(Obstacle::InAnotherNetns {
            device: host_link.name.to_string(),
        }),
        false => Ok(Located::Gone),
    }
}

/// Returns true if the driver of `device` makes netdevs. Drivers that pass the device to a virtual machine make none.
fn has_netdev_driver(device: &Device) -> bool {
    device.driver.is_some() && !device.is_passed_through()
}

/// Returns true if `link` is a recorded sibling: another netdev of the same PCI function.
fn is_sibling(rail: &Rail, side: NetnsSide, link: &Link) -> bool {
    let is_it = |it: &Sibling| it.name == link.name || it.index == link.index;
    side == NetnsSide::Host && rail.siblings.iter().any(is_it)
}

/// Returns true if `link` is certainly not the netdev recorded as `host_link`, although both belong to the function
/// `device`. The pod can have moved the recorded netdev elsewhere. `link` is another netdev if it has another port, or
/// if both its index and its burnt-in address differ. The burnt-in address of a virtual function or sub-function is
/// ignored, because it changes whenever the driver makes the netdev again.
fn is_another(host_link: &Link, link: &Link, device: Option<&Device>) -> bool {
    let ports = host_link.port_name.as_ref().zip(link.port_name.as_ref());
    let is_physical = |it: &Device| it.physical_function.is_none() && it.address.bus() == "pci";
    let burnt_in = |link: &Link| {
        let address = link.permanent_mac.clone();
        // the address of an InfiniBand netdev contains the number of a queue pair
        address.filter(|it| link.link_type == LinkType::Ether && it.0.iter().any(|byte| *byte != 0))
    };
    let addresses = burnt_in(host_link).zip(burnt_in(link));
    ports.is_some_and(|(own, other)| own != other)
        || device.is_some_and(is_physical)
            && link.index != host_link.index
            && addresses.is_some_and(|(own, other)| own != other)
}

/// Counts the properties that `link` and `host_link` have in common, to distinguish several netdevs of one PCI
/// function. Each property is uncertain: a pod can change the first two and, with igbvf, the burnt-in address; a move
/// changes an index that is taken.
fn resemblance(rail: &Rail, host_link: &Link, link: &Link) -> usize {
    let traits = [
        link.name == host_link.name || link.name == rail.pod_name,
        link.mac == host_link.mac,
        link.permanent_mac == host_link.permanent_mac,
        link.index == host_link.index,
    ];
    traits.into_iter().filter(|fits| *fits).count()
}

/// Returns true if `link`, a netdev without hardware, is the netdev recorded as `host_link`.
fn is_virtual_host_link(
    rail: &Rail,
    host_link: &Link,
    (side, link): (NetnsSide, &Link),
    observed: &Observed,
) -> bool {
    if link.parent.is_some()
        || link.kind != host_link.kind
        || !has_origin(rail, host_link, (side, link), observed)
    {
        return false;
    }
    if let (NetnsSide::Pod, Some(index)) = (side, rail.pod_index) {
        return link.index == index;
    }
    let name = link.name == rail.pod_name;
    let traits = [
        link.index == host_link.index,
        name || side == NetnsSide::Host && link.name == host_link.name,
        link.mac == host_link.mac,
    ];
    traits.into_iter().filter(|fits| *fits).count() >= 2
}

/// Returns true if `link`, a netdev of the host, has the index and the origin of the virtual netdev `host_link`. The
/// pod has then moved the netdev to the host itself, under another name and with another address.
fn is_changed(host_link: &Link, link: &Link) -> bool {
    let is_virtual = host_link.parent.is_none() && link.parent.is_none();
    is_virtual
        && link.kind == host_link.kind
        && link.index == host_link.index
        && host_link.origin.is_some()
        && link.origin == host_link.origin
}

/// Returns true if `link` lies on the same netdev as `host_link` did, or is the other end of the same pair. Otherwise a
/// pod could delete the rail, and make another netdev with the rail's index, name and hardware address that leads into
/// the pod. After a move of the lower netdev the kernel reports another origin, so the origin is ignored if the lower
/// netdev has left the host.
fn has_origin(
    rail: &Rail,
    host_link: &Link,
    (side, link): (NetnsSide, &Link),
    observed: &Observed,
) -> bool {
    let Some(recorded) = host_link.origin else {
        return true;
    };
    if recorded.netns < 0 && observed.host.link_by_index(recorded.index).is_none() {
        return true;
    }
    let known = match side {
        NetnsSide::Host => recorded,
        // not recorded yet: the pod's namespace has another number than on the host
        NetnsSide::Pod => rail.pod_origin.unwrap_or(Origin {
            netns: link.origin.map_or(recorded.netns, |it| it.netns),
            ..recorded
        }),
    };
    link.origin == Some(known)
}

/// Finds the pod's child of a shared netdev. The pod can have renamed the child. The pod cannot make other children of
/// the parent itself; only a program outside can.
pub(super) fn child<'a>(rail: &Rail, shared: &Shared, observed: &'a Observed) -> Option<&'a Link> {
    let links = observed.pod.iter().flat_map(|pod| &pod.links);
    // the kernel does not report a lower index that equals the child's own index, which an IPoIB child can have got in
    // the pod (`nla_put_iflink()`, `net/core/rtnetlink.c`)
    let hides_lower = |link: &Link| {
        link.ipoib.is_some() && link.parent.is_none() && link.index == shared.parent_index
    };
    let children = links.filter(|link| {
        (link.lower == Some(shared.parent_index) || link.lower.is_none() && hides_lower(link))
            && link.kind.as_deref() == Some(shared.child.kind())
            && (link.name == rail.pod_name || rail.pod_index == Some(link.index))
    });
    children.max_by_key(|link| rail.pod_index == Some(link.index))
}

/// Finds the pod's IPoIB child on the host. The child is there before its move to the pod. It returns there when the
/// pod's namespace ends, with the name `dev7` or its name in the pod.
pub(super) fn child_on_host<'a>(
    rail: &Rail,
    shared: &Shared,
    observed: &'a Observed,
) -> Option<&'a Link> {
    let made_as = shared.made_as.as_ref()?;
    let has_name = |link: &Link| link.name == *made_as || link.alias.as_deref() == Some(made_as);
    // a pod can have removed the alias
    let is_as_it_was = |link: &Link| {
        link.alias.is_none() && link.name == rail.pod_name && rail.pod_index == Some(link.index)
    };
    observed.host.links.iter().find(|link| {
        let is_child = matches!(link.child, Some(Child::Ipoib { .. }));
        is_child
            && link.lower == Some(shared.parent_index)
            && (has_name(link) || is_as_it_was(link))
    })
}

/// Returns the RDMA device of `rail` if it is on the host, under any name.
pub fn rdma_on_host<'a>(rail: &Rail, observed: &'a Observed) -> Option<&'a RdmaDevice> {
    match rdma(rail.rdma.as_ref()?, &[], observed) {
        Ok(Located::At(NetnsSide::Host, device)) => Some(device),
        _ => None,
    }
}

/// Returns the RDMA device of `rail`, on the host or in the pod, under any name.
pub fn rdma_anywhere<'a>(rail: &Rail, observed: &'a Observed) -> Option<&'a RdmaDevice> {
    match rdma(rail.rdma.as_ref()?, &[], observed) {
        Ok(Located::At(_, device)) => Some(device),
        _ => None,
    }
}

/// Finds the RDMA device whose host state was `host_device`. `others` are records of this boot whose devices are not
/// restored.
pub(super) fn rdma<'a>(
    host_device: &RdmaDevice,
    others: &[Attachment],
    observed: &'a Observed,
) -> Result<Located<'a, RdmaDevice>, Obstacle> {
    let seen = || {
        let sides = [NetnsSide::Pod, NetnsSide::Host].into_iter();
        sides.flat_map(|side| {
            let devices = observed.at(side).into_iter().flat_map(|it| &it.rdma);
            devices.map(move |it| (side, it))
        })
    };
    let is_it = |device: &RdmaDevice| {
        device.index == host_device.index && device.node_guid == host_device.node_guid
    };
    // an RDMA device that the driver made again has another index
    let is_its =
        |device: &RdmaDevice| device.parent.is_some() && device.parent == host_device.parent;
    let found = seen().find(|(_, it)| is_it(it));
    if let Some((side, device)) = found.or_else(|| seen().find(|(_, it)| is_its(it))) {
        return Ok(Located::At(side, device));
    }
    let hardware = host_device.parent.as_ref();
    let is_anothers = |name: &String| {
        let rails = others.iter().flat_map(|it| &it.rails);
        let mut devices = rails.filter_map(|rail| rail.rdma.as_ref());
        devices.any(|it| it.name == *name && !is_it(it))
    };
    // the kernel reports no index of an RDMA device in another namespace, so any erdma device may be the right one
    let has_makers = !pairing::makers(&observed.devices).is_empty();
    let can_be_it = |name: &String| {
        let is_unseen = || seen().all(|(_, it)| it.name != *name);
        (*name == host_device.name || has_makers && is_unseen()) && !is_anothers(name)
    };
    let exists = hardware
        .and_then(|it| observed.device(it))
        .is_some_and(|it| !it.rdma.is_empty() || observed.unpaired.iter().any(can_be_it));
    match exists {
        true => Err(Obstacle::InAnotherNetns {
            device: host_device.name.clone(),
        }),
        false => Ok(Located::Gone),
    }
}
