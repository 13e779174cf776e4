// SPDX-License-Identifier: Apache-2.0
//! Observes every device, on the host and in pods. Entering a pod's namespace is expensive. The daemon therefore
//! observes a pod again only if its devices may have changed: after an event or a change of its record, after an
//! observation of a device whose recovery causes no event, after a failed observation, and while events are missing.

use super::evaluate::{Carrier, DeviceState};
use attachments::pods::{PodDevice, PodNetns};
use rdma_netns::{
    DeviceAddress, Function, HcaPort, Link, LinkType, NetnsId,
    linux::{
        inside::{self, InsideError},
        monitor::{Monitor, Nsid, WatchError},
        nldev::PortInfo,
    },
};
use std::{collections::BTreeMap, io};

#[derive(Debug, Default)]
pub(super) struct Pods {
    placed: Vec<PodDevice>,
    seen: Vec<Pod>,
}

/// State of a pod's namespace.
#[derive(Debug)]
struct Pod {
    place: PodNetns,
    nsid: Option<Nsid>,
    /// Netdevs of the pod's devices.
    links: Vec<Link>,
    ports: BTreeMap<String, Vec<PortInfo>>,
    /// True if the daemon must observe the pod again.
    stale: bool,
    /// True if the last observation failed. The log contains the reason.
    failed: bool,
}

impl Pods {
    pub(super) fn update(&mut self, placed: Vec<PodDevice>, mut monitor: Option<&mut Monitor>) {
        let is_in = |id: NetnsId| placed.iter().any(|it| it.pod.id == id);
        self.seen.retain(|pod| {
            let stays = is_in(pod.place.id);
            if let (false, Some(nsid), Some(monitor)) = (stays, pod.nsid, &mut monitor) {
                monitor.forget(nsid);
            }
            stays
        });
        for it in &placed {
            match self.seen.iter_mut().find(|pod| pod.place.id == it.pod.id) {
                Some(pod) => pod.place = it.pod.clone(),
                None => self.seen.push(Pod {
                    place: it.pod.clone(),
                    nsid: None,
                    links: Vec::new(),
                    ports: BTreeMap::new(),
                    stale: true,
                    failed: false,
                }),
            }
        }
        for pod in &mut self.seen {
            let id = pod.place.id;
            pod.stale |= own(&self.placed, id).ne(own(&placed, id));
        }
        self.placed = placed;
    }

    /// Marks the pod of `namespace` for observation after an event.
    pub(super) fn mark_stale(&mut self, namespace: Nsid) {
        for pod in &mut self.seen {
            pod.stale |= pod.nsid == Some(namespace);
        }
    }

    /// Marks all pods for observation.
    pub(super) fn mark_all_stale(&mut self) {
        for pod in &mut self.seen {
            pod.stale = true;
        }
    }

    /// Removes the id of an ended namespace from its pod, because the kernel may reuse the id for another namespace.
    /// Also marks the pod for observation.
    pub(super) fn ended(&mut self, namespace: Nsid) {
        for pod in &mut self.seen {
            if pod.nsid == Some(namespace) {
                pod.nsid = None;
                pod.stale = true;
            }
        }
    }

    /// Removes the ids of all namespaces after events were lost: a namespace may have ended, and the kernel may have
    /// reused its id for another namespace. Also marks all pods for observation.
    pub(super) fn lost(&mut self, mut monitor: Option<&mut Monitor>) {
        for pod in &mut self.seen {
            let nsid = pod.nsid.take();
            if let (Some(nsid), Some(monitor)) = (nsid, &mut monitor) {
                monitor.forget(nsid);
            }
            pod.stale = true;
        }
    }

    pub(super) fn are_none(&self) -> bool {
        self.seen.is_empty()
    }

    /// Returns true if the last observation of a pod failed. No event reports that the next observation would succeed:
    /// for example, a pod removes netdevs of its own.
    pub(super) fn have_failed(&self) -> bool {
        self.seen.iter().any(|pod| pod.failed)
    }

    /// Returns true if the namespace belongs to a pod with devices.
    pub(super) fn follow(&self, namespace: Nsid) -> bool {
        self.seen.iter().any(|pod| pod.nsid == Some(namespace))
    }

    /// Returns true if `link` belongs to a device of the pod with this namespace.
    pub(super) fn has(&self, namespace: Nsid, link: &Link) -> bool {
        let pod = self.seen.iter().find(|pod| pod.nsid == Some(namespace));
        pod.is_some_and(|pod| own(&self.placed, pod.place.id).any(|it| is(it, link)))
    }

    /// Observes the pods that are marked for observation, and the pods whose last observation failed.
    pub(super) fn observe(&mut self, mut monitor: Option<&mut Monitor>) {
        for pod in self.seen.iter_mut().filter(|pod| pod.stale || pod.failed) {
            pod.stale = false;
            let seen = pod.observe(&self.placed, monitor.as_deref_mut());
            let failed_before = std::mem::replace(&mut pod.failed, seen.is_err());
            if let (false, Err(why)) = (failed_before, seen) {
                log::info!(
                    "the daemon keeps the last health of the devices in pod {}: {why}",
                    pod.place.name
                );
            }
        }
    }

    /// Marks the pod of the device at `address` for the next observation.
    pub(super) fn doubt(&mut self, address: &DeviceAddress) {
        let Some(placed) = self.placed.iter().find(|it| it.address == *address) else {
            return;
        };
        let id = placed.pod.id;
        if let Some(pod) = self.seen.iter_mut().find(|pod| pod.place.id == id) {
            pod.stale = true;
        }
    }

    /// Returns the state of `function`. `host` are the netdevs in the host's namespace.
    pub(super) fn state(&self, function: &Function, host: &[Link]) -> DeviceState {
        let address = &function.device.address;
        let placed = self.placed.iter().find(|it| it.address == *address);
        let rdma = function.hcas.first().map(|hca| hca.name.clone());
        let Some(placed) = placed else {
            let of = function.netdev_function.as_ref().unwrap_or(address);
            let own = |link: &&Link| link.parent.as_ref() == Some(of);
            return DeviceState {
                netdevs: carriers(host.iter().filter(own).map(|link| bond_of(link, host))),
                netdev_is_gone: is_netdev_gone(function),
                ports: host_ports(function),
                rdma,
                ..DeviceState::default()
            };
        };
        let pod = self.seen.iter().find(|pod| pod.place.id == placed.pod.id);
        let links = pod.map(|pod| pod.links.as_slice()).unwrap_or_default();
        let netdevs = carriers(links.iter().filter(|link| is(placed, link)));
        let is_ib = netdevs
            .iter()
            .any(|it| it.link_type == LinkType::Infiniband);
        let inside = pod
            .zip(rdma.as_ref())
            .and_then(|(pod, rdma)| pod.ports.get(rdma));
        DeviceState {
            pod: Some(placed.pod.name.clone()),
            moving: placed.pod.moving,
            ports: match inside {
                None => host_ports(function),
                Some(ports) => ports
                    .iter()
                    .map(|port| HcaPort {
                        number: port.number,
                        state: port.state,
                        link_type: if is_ib {
                            LinkType::Infiniband
                        } else {
                            LinkType::Ether
                        },
                        gids: 0,
                    })
                    .collect(),
            },
            netdevs,
            netdev_is_gone: is_netdev_gone(function),
            rdma,
        }
    }
}

/// Returns true if an RDMA device without a parent in sysfs has its netdev in no namespace: the kernel is removing the
/// netdev's function. The driver `erdma` keeps such an RDMA device until the driver is unloaded. The removal of the
/// function waits for the unloading.
fn is_netdev_gone(function: &Function) -> bool {
    !function.device.rdma_functions.is_empty() && !function.device.has_netdev
}

/// Returns the devices of `placed` that are in the namespace `pod`.
fn own(placed: &[PodDevice], pod: NetnsId) -> impl Iterator<Item = &PodDevice> {
    placed.iter().filter(move |it| it.pod.id == pod)
}

/// Returns true if `link` is the netdev of `device`. `link` is a netdev in the pod.
fn is(device: &PodDevice, link: &Link) -> bool {
    match &link.parent {
        Some(parent) => *parent == device.netdev,
        None => device.index == Some(link.index),
    }
}

impl Pod {
    /// Observes the pod again. A value that cannot be read becomes unknown. The error is the first reason other than a
    /// missing capability.
    fn observe(
        &mut self,
        placed: &[PodDevice],
        monitor: Option<&mut Monitor>,
    ) -> Result<(), String> {
        let links = monitor.map_or(Ok(Vec::new()), |monitor| self.links(placed, monitor));
        let ports = match self.place.exclusive {
            true => inside::ports(&self.place.netns, self.place.id),
            false => Ok(Vec::new()),
        };
        // do not report a missing capability here: the daemon reported it at its start. If the namespace is gone, another
        // observation of it would not help
        let is_failure = |it: &&InsideError| !it.lacks_capability() && !it.is_gone();
        let of_ports = ports.as_ref().err().filter(is_failure);
        let why = [
            links.as_ref().err().cloned(),
            of_ports.map(ToString::to_string),
        ];
        self.links = links.unwrap_or_default();
        self.ports = ports.unwrap_or_default().into_iter().collect();
        why.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// Returns the netdevs of the pod's devices. Leaves out netdevs that the pod made, because their number and size
    /// are the pod's choice.
    fn links(&mut self, placed: &[PodDevice], monitor: &mut Monitor) -> Result<Vec<Link>, String> {
        let nsid = match self.nsid {
            Some(nsid) => nsid,
            None => match monitor.watch(&self.place.netns, self.place.id) {
                Ok(nsid) => nsid,
                // the namespace is gone, but the pod's record still exists: `rdma-cni` or the kernel moves the devices
                // to the host
                Err(WatchError::Open { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error.to_string()),
            },
        };
        self.nsid = Some(nsid);
        let is_own = |link: &Link| own(placed, self.place.id).any(|it| is(it, link));
        let links = monitor.links(self.nsid, is_own);
        links.map_err(|error| format!("cannot read the pod's netdevs: {error}"))
    }
}

/// Returns the bond if `link` is a port of a bond, otherwise `link`. The bond's carrier decides about health: the RDMA
/// device works as long as one port of the bond has a carrier.
fn bond_of<'a>(link: &'a Link, host: &'a [Link]) -> &'a Link {
    let master = host.iter().find(|it| Some(it.index) == link.master);
    master.filter(|it| it.is_bond()).unwrap_or(link)
}

fn carriers<'a>(links: impl Iterator<Item = &'a Link>) -> Vec<Carrier> {
    let own = links.filter(|link| !link.is_representor());
    own.map(|link| Carrier {
        name: link.name.to_string(),
        up: link.up,
        carrier: link.carrier,
        link_type: link.link_type,
    })
    .collect()
}

fn host_ports(function: &Function) -> Vec<HcaPort> {
    let ports = function.hcas.iter().flat_map(|hca| &hca.ports);
    ports.cloned().collect()
}
