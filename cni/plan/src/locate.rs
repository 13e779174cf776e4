// SPDX-License-Identifier: Apache-2.0
//! Finds a recorded device in the pod or on the host, although its name and index may have changed.

use super::Obstacle;
use attachments::{Attachment, Rail, Shared, Sibling, Stage};
use rdma_netns::{
    Child, Device, DeviceAddress, Link, LinkType, Namespace, NetnsSide, Observed, Origin,
    RdmaDevice, RdmaMode, pairing,
};

/// Present place of a recorded device.
#[derive(Debug)]
pub(super) enum Located<'a, T> {
    /// The device is in the pod or on the host.
    At(NetnsSide, &'a T),
    /// The device does not exist any more, and nothing is expected to make it again. For example, the kernel has
    /// deleted a virtual netdev with its namespace, or an administrator has removed a VF or its driver.
    Gone,
}

/// Returns the observed namespaces, first the host's.
pub(super) fn places(observed: &Observed) -> impl Iterator<Item = (NetnsSide, &Namespace)> {
    let sides = [NetnsSide::Host, NetnsSide::Pod].into_iter();
    sides.filter_map(|side| Some((side, observed.at(side)?)))
}

/// Returns the netdevs of the observed namespaces, first the host's.
pub(super) fn links(observed: &Observed) -> impl Iterator<Item = (NetnsSide, &Link)> {
    places(observed).flat_map(|(side, it)| it.links.iter().map(move |link| (side, link)))
}

/// Finds the netdev that was recorded on the host as `host_link`.
pub(super) fn link<'a>(
    rail: &Rail,
    host_link: &Link,
    observed: &'a Observed,
) -> Result<Located<'a, Link>, Obstacle> {
    let found = links(observed)
        .filter(|(side, link)| match &host_link.parent {
            Some(parent) => {
                link.parent.as_ref() == Some(parent)
                    && !is_sibling(rail, *side, link)
                    && !is_another(rail, host_link, link, observed)
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
    let device = host_link.name.clone();
    let Some(parent) = &host_link.parent else {
        // a netdev without a kind belongs to hardware on another bus than PCI, and the kernel does not delete it with
        // its namespace
        return match host_link.kind {
            None => Err(in_another_netns(&device)),
            Some(_) => Ok(Located::Gone),
        };
    };
    match observed.device(parent).filter(|it| has_netdev_driver(it)) {
        None => Ok(Located::Gone),
        Some(it) if it.has_netdev => match is_replaced(rail, parent, observed) {
            true => Ok(Located::Gone),
            false => Err(in_another_netns(&device)),
        },
        Some(_) => Err(Obstacle::NoNetdev {
            device,
            function: parent.clone(),
        }),
    }
}

fn in_another_netns(device: &str) -> Obstacle {
    let device = device.to_owned();
    Obstacle::InAnotherNetns { device }
}

/// A rail whose netdev no longer exists.
#[derive(Clone, Copy, Debug)]
pub struct GoneRail<'a> {
    /// Index of the rail.
    pub index: usize,
    /// Host state of the netdev.
    pub host_link: &'a Link,
    /// True if the netdev's function has a driver, which could make the netdev again.
    pub has_driver: bool,
    /// True if the kernel removed the netdev's function, and then found a function at the same address.
    is_replaced: bool,
}

impl GoneRail<'_> {
    /// Returns the reason why the netdev is not restored. `has_pod` is true if the pod's namespace exists.
    pub fn why(&self, has_pod: bool) -> String {
        let Link { name, parent, .. } = self.host_link;
        match parent {
            Some(function) if self.is_replaced => {
                format!(
                    "{name} no longer exists: the kernel removed {function}, and found a device there again"
                )
            }
            Some(function) => {
                format!("{name} no longer exists: {function} has no netdev in any namespace")
            }
            None if has_pod => format!(
                "{name} is gone: its pod deleted it; a netdev that the pod made in its place stays in the pod"
            ),
            None => format!(
                "{name} no longer exists: the kernel deletes a virtual netdev with its namespace"
            ),
        }
    }
}

/// Returns the rails whose netdevs no longer exist.
pub fn gone<'a>(
    attachment: &'a Attachment,
    observed: &'a Observed,
) -> impl Iterator<Item = GoneRail<'a>> {
    let rails = attachment.rails.iter().enumerate();
    let ours = rails.filter(|(_, rail)| rail.stage != Stage::Returned);
    ours.filter_map(|(index, rail)| {
        let host_link = rail.host_link.as_ref()?;
        let has_driver = match link(rail, host_link, observed) {
            Ok(Located::Gone) => false,
            Err(Obstacle::NoNetdev { .. }) => true,
            _ => return None,
        };
        Some(GoneRail {
            index,
            host_link,
            has_driver,
            is_replaced: !has_driver
                && host_link
                    .parent
                    .as_ref()
                    .is_some_and(|it| is_replaced(rail, it, observed)),
        })
    })
}

/// Returns true if the driver of `device` makes netdevs. A driver that passes the device to a virtual machine makes
/// none.
fn has_netdev_driver(device: &Device) -> bool {
    device.driver.is_some() && !device.is_passed_through()
}

/// Returns true if `link` is on the host and a recorded sibling of the rail: another netdev of the rail's PCI function.
fn is_sibling(rail: &Rail, side: NetnsSide, link: &Link) -> bool {
    let is_it = |it: &Sibling| it.name == link.name || it.index == link.index;
    side == NetnsSide::Host && rail.siblings.iter().any(is_it)
}

/// Returns true if the kernel removed the device of `rail` at `address` after ADD, and then found a device at the same
/// address. The removal ended the netdevs and RDMA devices of the removed device in all namespaces.
fn is_replaced(rail: &Rail, address: &DeviceAddress, observed: &Observed) -> bool {
    let known = rail.inodes.get(address);
    let inodes = known.zip(observed.inodes.get(address));
    inodes.is_some_and(|(known, present)| known != present)
}

/// Returns true if `link` is certainly not the netdev recorded as `host_link`, although both netdevs belong to a
/// function at the same address. The recorded netdev then no longer exists, or a pod has moved it to a namespace that
/// this program does not observe. `link` is another netdev in two cases:
///
/// - `link` has another port.
/// - `link` has another burnt-in address, and also another index or a [replaced](is_replaced) function. This case does
///   not apply to virtual functions and sub-functions, because their driver changes the burnt-in address whenever it
///   makes the netdev again.
fn is_another(rail: &Rail, host_link: &Link, link: &Link, observed: &Observed) -> bool {
    let device = link.parent.as_ref().and_then(|it| observed.device(it));
    let ports = host_link.port_name.as_ref().zip(link.port_name.as_ref());
    let is_physical = |it: &Device| it.physical_function.is_none() && it.address.bus() == "pci";
    let burnt_in = |link: &Link| {
        let address = link.permanent_mac.clone();
        // the address of an InfiniBand netdev contains the number of a queue pair
        address.filter(|it| link.link_type == LinkType::Ether && it.0.iter().any(|byte| *byte != 0))
    };
    let addresses = burnt_in(host_link).zip(burnt_in(link));
    ports.is_some_and(|(own, other)| own != other)
        || device.is_some_and(|it| {
            let is_replaced = || is_replaced(rail, &it.address, observed);
            is_physical(it) && (link.index != host_link.index || is_replaced())
        }) && addresses.is_some_and(|(own, other)| own != other)
}

/// Counts the properties that `link` and `host_link` have in common, to distinguish several netdevs of one PCI
/// function. No property is certain: a pod can change name and hardware address, and with the driver igbvf also the
/// burnt-in address. The kernel changes the index of a moved netdev if another netdev has this index.
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

/// Returns true if `link`, a netdev of the host, has the index and the origin of the virtual netdev `host_link`. In
/// this case the pod has moved the netdev to the host itself, with another name and another hardware address.
fn is_changed(host_link: &Link, link: &Link) -> bool {
    let is_virtual = host_link.parent.is_none() && link.parent.is_none();
    is_virtual
        && link.kind == host_link.kind
        && link.index == host_link.index
        && host_link.origin.is_some()
        && link.origin == host_link.origin
}

/// Returns true if `link` lies on the same netdev as `host_link` did, or has the same veth peer. Without this check a
/// pod could delete the rail, and make a netdev that leads into the pod with the rail's index, name and hardware
/// address. Ignores the origin if none was recorded, or if the lower netdev has left the host: after this move the
/// kernel reports another origin.
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
        // if the record has no pod origin yet, ignore the namespace's number in the moved netdev's origin, because pod and
        // host number the namespace of the lower netdev or veth peer differently
        NetnsSide::Pod => rail.pod_origin.unwrap_or(Origin {
            netns: link.origin.map_or(recorded.netns, |it| it.netns),
            ..recorded
        }),
    };
    link.origin == Some(known)
}

/// Finds the pod's child of a shared netdev, by its recorded index or by the rail's name. The index takes precedence,
/// because the pod can have renamed the child.
pub(super) fn child<'a>(rail: &Rail, shared: &Shared, observed: &'a Observed) -> Option<&'a Link> {
    let links = observed.pod.iter().flat_map(|pod| &pod.links);
    // the kernel reports no lower index if the lower index equals the child's own index (`nla_put_iflink()`,
    // `net/core/rtnetlink.c`). An IPoIB child can have got such an index in the pod
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

/// Finds the pod's IPoIB child on the host. The child is on the host before ADD moves it to the pod. The kernel returns
/// it to the host when the pod's namespace ends, under a name such as `dev7` or its name in the pod.
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
    match rdma(rail, rail.rdma.as_ref()?, &[], observed) {
        Ok(Located::At(NetnsSide::Host, device)) => Some(device),
        _ => None,
    }
}

/// Returns the RDMA device of `rail`, on the host or in the pod, under any name.
pub fn rdma_anywhere<'a>(rail: &Rail, observed: &'a Observed) -> Option<&'a RdmaDevice> {
    match rdma(rail, rail.rdma.as_ref()?, &[], observed) {
        Ok(Located::At(_, device)) => Some(device),
        _ => None,
    }
}

/// Returns true if the attachment moves RDMA devices. Returns false if the kernel is in shared mode now, because in
/// shared mode the kernel refuses such a move. The mode changes while pods run if ib_core is loaded again: ib_core then
/// has its default mode, and all RDMA devices are made again on the host.
pub(super) fn moves_rdma(attachment: &Attachment, observed: &Observed) -> bool {
    attachment.moves_rdma() && !is_shared(observed)
}

fn is_shared(observed: &Observed) -> bool {
    observed.rdma_mode == Some(RdmaMode::Shared)
}

/// Finds the RDMA device of `rail` that was recorded on the host as `host_device`. `others` are records of this boot
/// whose devices are not restored. In shared mode the RDMA device is on the host, although the pod also sees it.
pub(super) fn rdma<'a, 'b>(
    rail: &Rail,
    host_device: &RdmaDevice,
    others: impl IntoIterator<Item = &'b Attachment>,
    observed: &'a Observed,
) -> Result<Located<'a, RdmaDevice>, Obstacle> {
    let mut places: Vec<_> = places(observed).collect();
    if !is_shared(observed) {
        places.reverse();
    }
    let seen = || {
        let places = places.iter();
        places.flat_map(|(side, it)| it.rdma.iter().map(move |it| (*side, it)))
    };
    let is_it = |device: &RdmaDevice| {
        device.index == host_device.index && device.node_guid == host_device.node_guid
    };
    // an RDMA device that the driver has made again has another index
    let is_its =
        |device: &RdmaDevice| device.parent.is_some() && device.parent == host_device.parent;
    let found = seen().find(|(_, it)| is_it(it));
    if let Some((side, device)) = found.or_else(|| seen().find(|(_, it)| is_its(it))) {
        return Ok(Located::At(side, device));
    }
    let hardware = host_device.parent.as_ref();
    let rails = others.into_iter().flat_map(|it| &it.rails);
    let of_others: Vec<&RdmaDevice> = rails.filter_map(|rail| rail.rdma.as_ref()).collect();
    let is_anothers = |name: &String| {
        let mut devices = of_others.iter();
        devices.any(|it| it.name == *name && !is_it(it))
    };
    // the kernel reports no index of an RDMA device in another namespace. On a node with eRDMA functions, the recorded
    // device can therefore be any unpaired device that is in no observed namespace and in no other record
    let has_makers = !pairing::makers(&observed.devices).is_empty();
    let can_be_it = |name: &String| {
        let is_unseen = || seen().all(|(_, it)| it.name != *name);
        (*name == host_device.name || has_makers && is_unseen()) && !is_anothers(name)
    };
    let exists = hardware
        .and_then(|it| observed.device(it))
        .is_some_and(|it| {
            !it.rdma.is_empty() && !is_replaced(rail, &it.address, observed)
                || observed.unpaired.iter().any(can_be_it)
        });
    match exists {
        true => Err(in_another_netns(&host_device.name)),
        false => Ok(Located::Gone),
    }
}
