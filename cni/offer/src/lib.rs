// SPDX-License-Identifier: Apache-2.0
//! Offers of a node to kubelet and DRA: a pure function of configuration, hardware, health and earlier offers.
//!
//! | module | owns |
//! |---|---|
//! | `select` | devices of a resource |
//! | `parent` | netdev that pods are attached to, if a resource names it |
//! | `previous` | devices of earlier offers, because the daemon cannot observe a netdev in a pod |
//! | `unnamed` | reasons for leaving a device out, mostly if no selector names it |
//! | `required` | required number of devices, and the kernel's rdma controller for limits |
//! | `sharers` | number of ids of shared devices, by their GID tables |
//! | `ids` | devices of each id |
//! | `answer` | devices and variables that a container gets for its ids, or for a claim |
//! | `environment` | variables for libraries |
//! | `grant_check` | check of a grant at a container's start |
//! | `prefer`, `accelerators`, `distance` | preferred ids of an allocation |
//! | `manager` | offer of the device `rdma_cm` alone, for the fabric watch |
//! | `cdi` | CDI entries |
//! | `loss` | devices that containers cannot use |
//! | `table` | table of offers for users |

mod accelerators;
mod answer;
mod cdi;
pub mod distance;
mod environment;
mod grant_check;
mod ids;
mod loss;
mod manager;
mod parent;
mod prefer;
mod previous;
mod required;
mod select;
mod sharers;
mod table;
mod unnamed;

pub use accelerators::Accelerators;
pub use answer::Allocation;
pub use cdi::{add_granted, cdi_entries};
pub use environment::Environment;
pub use grant_check::{Cure, Stale, still_as_granted};
pub use loss::{Loss, losses};
pub use manager::{connection_manager, manager_fault};
pub use prefer::Preference;
pub use previous::{Gone, PreviousOffers, physical_functions};
pub use select::selects;
pub use table::{columns, table};

use daemon_conf::{Allocate, Conf, Ids, MOST_IDS, ResourceConf, ResourceName};
use kubelet_api::device_plugin::{Device, HEALTHY, NumaNode, TopologyInfo, UNHEALTHY};
use rdma_netns::{DeviceAddress, Hca, Inventory, PciPath, RdmaCgroup};
use rdma_resources::{ContainerLimits, Resource, Sharing, published::Devices};
use std::collections::{BTreeMap, BTreeSet};

/// A resource that the daemon offers to kubelet or DRA, with its devices and ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Name of the resource.
    pub name: ResourceName,
    /// Scheme of the offer's ids.
    pub kind: Ids,
    /// Sharing of the devices: exclusive or shared.
    pub sharing: Sharing,
    /// True if the default number of ids must not fall until the node reboots, because pods may have the ids. False if
    /// GID tables do not limit the number of pods.
    pub keeps_count: bool,
    /// Devices in the order of their addresses.
    pub devices: Vec<OfferedDevice>,
    /// Ids in the order of advertisement.
    pub ids: Vec<OfferedId>,
    /// True if the resource has `parents`.
    pub has_parents: bool,
    /// True if containers get devices by CDI names.
    pub cdi: bool,
    /// True if containers get `umad` and `issm` too.
    pub umad: bool,
    /// Limits of containers.
    pub limits: ContainerLimits,
    /// Environment of containers.
    pub environment: Environment,
    /// Number of devices that the resource should have: the configured number, or otherwise the number of present and
    /// gone devices.
    pub expected: usize,
    /// Reason that makes all ids unhealthy: fewer healthy devices than required, RDMA limits that the node cannot set,
    /// or a missing connection manager.
    pub short: Option<String>,
}

/// A device of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedDevice {
    /// PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// RDMA device.
    pub hca: Hca,
    /// NUMA node, if known.
    pub numa_node: Option<u32>,
    /// PCI path of the device.
    pub path: PciPath,
    /// PCI path of the device's Data Direct function.
    pub data_direct: Option<PciPath>,
    /// Hardware address of the netdev, as last observed in the daemon's net namespace.
    pub mac: Option<String>,
    /// Netdev that pods are attached to, if the resource names it.
    pub parent: Option<String>,
    /// Reason why the device is unhealthy. No container gets an unhealthy device.
    pub fault: Option<String>,
}

/// An id of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedId {
    /// Kubelet's id.
    pub id: String,
    /// Devices of the id, as indices of [`Offer::devices`].
    pub devices: Vec<usize>,
    /// NUMA node that all devices of the id have in common. Empty if the NUMA nodes differ, if the NUMA node of a
    /// device is unknown, or if the resource reports no topology.
    pub numa_nodes: Vec<u32>,
    /// True if kubelet may allocate the id.
    pub healthy: bool,
}

type Selected<'a> = (&'a ResourceConf, Vec<OfferedDevice>);

/// Unhealthy devices with the reasons.
pub type Unhealthy = BTreeMap<DeviceAddress, String>;

/// Returns the offers of a node, and remarks on the configuration. A resource without devices is not offered.
///
/// `previous` are earlier offers. A device stays in its earlier resource while its netdev is in a pod, where no
/// selector can match the netdev, and while its RDMA device is absent during a move.
///
/// Devices in `hidden` belong to no resource.
pub fn offers(
    conf: &Conf,
    inventory: &Inventory,
    hidden: &BTreeSet<DeviceAddress>,
    unhealthy: &Unhealthy,
    previous: &PreviousOffers,
) -> (Vec<Offer>, Vec<String>) {
    let mut remarks = Vec::new();
    let mut taken = BTreeMap::new();
    let mut selected: Vec<Selected<'_>> = Vec::new();
    for resource in &conf.resources {
        let mut devices = select::devices(resource, inventory, previous, conf, &mut remarks);
        devices.retain(|device| {
            let is_hidden = hidden.contains(&device.address);
            if is_hidden {
                remarks.push(format!(
                    "{}: {} ({}) is not in {}, because erdma.exposedLocalERIs does not select it",
                    resource.place, device.address, device.hca.name, resource.name
                ));
            }
            !is_hidden
        });
        if resource.ids == Ids::Exclusive {
            let of_bond = |address: &DeviceAddress| {
                let function = inventory.function(address)?;
                let mut others = taken.iter();
                others.find_map(|(other, resource)| {
                    select::common_bond(function, inventory.function(other)?).map(|_| *resource)
                })
            };
            devices.retain(|device| {
                let own = taken.get(&device.address).copied();
                let other = own.or_else(|| of_bond(&device.address));
                remarks.extend(other.map(|other| {
                    format!(
                        "{}: {} is not in {}, because {other} has this device or another port of its bond",
                        resource.place, device.address, resource.name
                    )
                }));
                other.is_none()
            });
            let own = devices.iter().map(|device| device.address.clone());
            taken.extend(own.map(|address| (address, &resource.name)));
        }
        if devices.is_empty() {
            remarks.push(format!(
                "{}: {}, so {} is not offered",
                resource.place,
                select::nothing(resource),
                resource.name
            ));
            continue;
        }
        selected.push((resource, devices));
    }
    let ids = |own| sharers::ids(conf, own, &selected, previous, &mut remarks);
    let all_ids: Vec<(Ids, bool)> = selected.iter().map(ids).collect();
    let mut offers = Vec::new();
    for ((resource, devices), (kind, keeps_count)) in selected.into_iter().zip(all_ids) {
        let kind = limited(resource, kind, devices.len(), &mut remarks);
        let gone = previous.gone(resource.name.as_str(), inventory);
        let cdi = conf.cdi || conf.by_claims(&resource.name);
        remarks.extend(devices.iter().filter_map(|device| {
            let fault = device.fault.as_ref()?;
            Some(format!(
                "{}: {} ({}) cannot be used by {}: {fault}",
                resource.place, device.address, device.hca.name, resource.name
            ))
        }));
        let limiter = inventory.rdma_cgroup;
        let mut offer = offer(resource, kind, cdi, devices, &gone, unhealthy, limiter);
        offer.keeps_count = keeps_count;
        offer.environment = Environment::of(resource, conf);
        remarks.extend(offer.short.clone());
        offers.push(offer);
    }
    if offers.is_empty() && inventory.functions.iter().all(|it| it.hcas.is_empty()) {
        let nothing = "this node has no RDMA devices: nothing is offered until there are some";
        return (offers, vec![nothing.to_owned()]);
    }
    remarks.extend(twofold(&offers));
    (offers, remarks)
}

/// Returns the scheme of the resource's ids. Reduces the number of ids if kubelet would not accept so long a list.
fn limited(resource: &ResourceConf, kind: Ids, devices: usize, remarks: &mut Vec<String>) -> Ids {
    let Ids::PerNic { count, allocate } = kind else {
        return kind;
    };
    let devices = u32::try_from(devices).unwrap_or(u32::MAX);
    let most = MOST_IDS / devices.max(1);
    if count > most {
        remarks.push(format!(
            "{}: {} has {most} ids for each NIC instead of {count}: kubelet accepts no list of more \
             than {MOST_IDS} ids, and there are {devices} NICs",
            resource.place, resource.name
        ));
    }
    Ids::PerNic {
        count: count.min(most),
        allocate,
    }
}

fn offer(
    resource: &ResourceConf,
    kind: Ids,
    cdi: bool,
    mut devices: Vec<OfferedDevice>,
    gone: &[Gone],
    unhealthy: &Unhealthy,
    limiter: RdmaCgroup,
) -> Offer {
    for device in &mut devices {
        let own = unhealthy.get(&device.address).cloned();
        device.fault = own.or(device.fault.take());
    }
    let expected = required::expected(resource.require, &devices, gone);
    let short = required::short(resource, &devices, gone);
    let short = required::unlimited(resource, limiter).or(short);
    let is_healthy = |device: &OfferedDevice| short.is_none() && device.fault.is_none();
    let mut ids = ids::ids(kind, &devices, &is_healthy);
    if !resource.topology {
        for id in &mut ids {
            id.numa_nodes.clear();
        }
    }
    Offer {
        name: resource.name.clone(),
        kind,
        sharing: match kind {
            Ids::Exclusive => Sharing::Exclusive,
            Ids::Shared { .. } | Ids::PerNic { .. } => Sharing::Shared,
        },
        keeps_count: false,
        devices,
        ids,
        has_parents: !resource.parents.is_empty(),
        cdi,
        umad: resource.umad,
        limits: resource.limits,
        environment: Environment::default(),
        expected,
        short,
    }
}

/// Returns a sentence about the devices that are exclusive in one resource and shared in another one.
fn twofold(offers: &[Offer]) -> Option<String> {
    let of = |sharing| {
        let offers = offers.iter().filter(move |offer| offer.sharing == sharing);
        offers.flat_map(|offer| offer.devices.iter().map(|device| &device.address))
    };
    let shared: BTreeSet<&DeviceAddress> = of(Sharing::Shared).collect();
    let both: Vec<&str> = of(Sharing::Exclusive)
        .filter(|address| shared.contains(*address))
        .map(|address| &**address)
        .collect();
    (!both.is_empty()).then(|| {
        format!(
            "{} are exclusive in one resource and shared in another one; select them \
             for one resource only",
            both.join(", ")
        )
    })
}

impl Offer {
    /// Returns all ids as devices of kubelet's device-plugin API.
    pub fn list(&self) -> Vec<Device> {
        let device = |id: &OfferedId| Device {
            id: id.id.clone(),
            health: if id.healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
            topology: (!id.numa_nodes.is_empty()).then(|| TopologyInfo {
                nodes: id
                    .numa_nodes
                    .iter()
                    .map(|node| NumaNode {
                        id: i64::from(*node),
                    })
                    .collect(),
            }),
        };
        self.ids.iter().map(device).collect()
    }

    /// Returns the number of ids if [`keeps_count`](Self::keeps_count) is true. For `perNic`, this is the number for
    /// each device.
    fn count(&self) -> Option<u32> {
        match self.kind {
            Ids::Shared { count, .. } | Ids::PerNic { count, .. } => Some(count),
            Ids::Exclusive => None,
        }
        .filter(|_| self.keeps_count)
    }

    /// Returns the highest number of ids that contain one device. The same number of claims may have the device.
    /// `None`: the resource is exclusive.
    pub fn sharers(&self) -> Option<u32> {
        sharers::of_device(self.kind, self.devices.len())
    }

    /// Returns true if not all ids have the same devices, so that kubelet's choice matters.
    pub fn has_choice(&self) -> bool {
        let mut ids = self.ids.iter();
        let first = ids.next();
        first.is_some_and(|first| ids.any(|id| id.devices != first.devices))
    }

    /// Returns the number of usable devices.
    pub fn usable(&self) -> usize {
        self.devices.iter().filter(|it| it.fault.is_none()).count()
    }

    /// Returns the devices at the indices `places`.
    pub fn devices_at(&self, places: &[usize]) -> impl Iterator<Item = &OfferedDevice> {
        places.iter().filter_map(|it| self.devices.get(*it))
    }

    /// Returns the resource with the devices of its ids, for `rdma-cni`. If the resource has `parents`, leaves out
    /// devices without a parent netdev.
    pub fn published(&self) -> Resource {
        let can_be_attached = |it: &&OfferedDevice| !self.has_parents || it.parent.is_some();
        let all = self.devices.iter().filter(can_be_attached);
        let devices = match self.kind {
            Ids::Shared {
                allocate: Allocate::All,
                ..
            } => Devices::Every(all.map(|it| it.address.clone()).collect()),
            _ => Devices::ById(
                self.ids
                    .iter()
                    .map(|id| {
                        (
                            id.id.clone(),
                            self.devices_at(&id.devices)
                                .filter(can_be_attached)
                                .map(|it| it.address.clone())
                                .collect(),
                        )
                    })
                    .collect(),
            ),
        };
        let parents = self.devices.iter();
        let parents = parents.filter_map(|it| Some((it.address.clone(), it.parent.clone()?)));
        Resource {
            sharing: self.sharing,
            devices,
            parents: parents.collect(),
            limited: !self.limits.rdma.is_empty(),
            ids: self.count(),
        }
    }
}
