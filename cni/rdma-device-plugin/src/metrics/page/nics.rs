// SPDX-License-Identifier: Apache-2.0
//! The node's NICs by NUMA node, each with its RDMA device, its link and its health.

use super::{super::collect::Snapshot, pods::Pod};
use node_state::health::evaluate::ACTIVE;
use rdma_netns::{DeviceAddress, Function, Hca, LinkType, Netdev};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct Numa {
    /// Number of the NUMA node; `None`: the firmware does not report it.
    pub(super) number: Option<u32>,
    /// Number of the NUMA node's accelerators, such as GPUs.
    pub(super) accelerators: usize,
    /// NICs. NICs with RDMA or functions are first.
    pub(super) nics: Vec<Nic>,
}

/// A NIC: a physical function with its virtual functions and sub-functions. If the physical function is not visible,
/// these functions together form a NIC.
#[derive(Debug)]
pub(super) struct Nic {
    /// The physical function.
    pub(super) own: Device,
    /// Name of the netdev, such as `ens1f0 of bond0`.
    pub(super) netdev: Option<String>,
    /// Address, driver, link type, MTU, firmware version and switch ports.
    pub(super) about: Vec<String>,
    pub(super) link: Link,
    /// Virtual functions and sub-functions.
    pub(super) functions: Vec<Device>,
}

/// A PCI function or auxiliary device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) address: DeviceAddress,
    /// Name of the RDMA device, otherwise name of the netdev, otherwise the address.
    pub(super) name: String,
    /// True if the device has an RDMA device, or had one before it disappeared from its bus.
    pub(super) has_rdma: bool,
    pub(super) fault: Option<String>,
    /// Pod to which the device was moved.
    pub(super) pod: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// The link carries data. The value is the speed in Mbit/s, if known.
    Up(Option<u32>),
    /// The link carries no data, for this reason, such as `down` or `no carrier`.
    Down(&'static str),
    /// The daemon cannot observe the link, for this reason.
    Unknown(&'static str),
}

impl Device {
    /// Returns true if the page counts the device as an RDMA device.
    pub(super) fn counts(&self) -> bool {
        self.has_rdma || self.fault.is_some()
    }
}

impl Nic {
    /// Returns the physical function, followed by the other functions.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        std::iter::once(&self.own).chain(&self.functions)
    }

    /// Returns true if `functions` contains the address of one of this NIC's devices.
    pub(super) fn is_behind(&self, functions: &[DeviceAddress]) -> bool {
        self.devices().any(|it| functions.contains(&it.address))
    }
}

impl Link {
    /// Describes the link, such as `up, 400 Gbit/s`.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Up(Some(speed)) if speed % 1000 == 0 => format!("up, {} Gbit/s", speed / 1000),
            Self::Up(Some(speed)) => format!("up, {speed} Mbit/s"),
            Self::Up(None) => "up".to_owned(),
            Self::Down(word) | Self::Unknown(word) => (*word).to_owned(),
        }
    }
}

/// Returns the NUMA nodes that have NICs, in the order of their numbers. NICs without a known NUMA node are last.
pub(super) fn numa(snapshot: &Snapshot, pods: &[Pod]) -> Vec<Numa> {
    let node = &snapshot.node;
    let functions = &node.inventory.functions;
    // leave out the function of an eRDMA NIC that has only the netdev: the page shows the NIC by its RDMA device's
    // function
    let halves: BTreeSet<&DeviceAddress> = functions
        .iter()
        .flat_map(|it| it.netdev_function.iter().chain(&it.device.rdma_functions))
        .collect();
    let shown = functions.iter().filter(|function| {
        let is_faulty = node.unhealthy.contains_key(&function.device.address);
        let is_half = halves.contains(&function.device.address) && function.hcas.is_empty();
        is_faulty || !(is_half || function.device.manages_nvlink)
    });
    let held = holders(pods);
    let mut own = vec![];
    let mut by_parent: BTreeMap<&DeviceAddress, (Option<u32>, Vec<Device>)> = BTreeMap::new();
    for function in shown {
        let Some(parent) = &function.device.physical_function else {
            own.push(function);
            continue;
        };
        let first = || (function.device.numa_node, vec![]);
        let (_, functions) = by_parent.entry(parent).or_insert_with(first);
        functions.push(device(snapshot, function, &held));
    }
    let mut numa: BTreeMap<(bool, Option<u32>), Vec<Nic>> = BTreeMap::new();
    let mut add = |number: Option<u32>, nic: Nic| {
        let place = numa.entry((number.is_none(), number)).or_default();
        place.push(nic);
    };
    for function in own {
        let (number, address) = (function.device.numa_node, &function.device.address);
        let (_, functions) = by_parent.remove(address).unwrap_or_default();
        let nic = nic(snapshot, function, &held);
        add(number, Nic { functions, ..nic });
    }
    for (parent, (number, functions)) in by_parent {
        let nic = elsewhere(parent);
        add(number, Nic { functions, ..nic });
    }
    for gone in node.losses().into_iter().filter(|it| it.is_gone) {
        if node.inventory.function(&gone.address).is_none() {
            let mut nic = elsewhere(&gone.address);
            nic.own.name = gone.rdma.unwrap_or(nic.own.name);
            nic.own.has_rdma = true;
            nic.own.fault = Some(gone.reason);
            nic.link = Link::Unknown("gone");
            add(None, nic);
        }
    }
    let accelerators = &node.inventory.accelerators;
    numa.into_iter()
        .map(|((_, number), mut nics)| {
            nics.sort_by_key(|nic| !nic.own.counts() && nic.functions.is_empty());
            let here = accelerators.iter().filter(|it| it.numa_node == number);
            Numa {
                number,
                accelerators: here.count(),
                nics,
            }
        })
        .collect()
}

/// Returns the exclusive functions that are in pods, each with its pod.
fn holders(pods: &[Pod]) -> BTreeMap<&DeviceAddress, &str> {
    let mut held = BTreeMap::new();
    for pod in pods {
        for rail in pod.rails.iter().filter(|rail| !rail.shared) {
            held.extend(rail.devices.iter().map(|it| (it, pod.name.as_str())));
        }
    }
    held
}

type Holders<'a> = BTreeMap<&'a DeviceAddress, &'a str>;

fn nic(snapshot: &Snapshot, function: &Function, held: &Holders<'_>) -> Nic {
    let node = &snapshot.node;
    let address = &function.device.address;
    let hca = function.hcas.first();
    let netdev = function.netdevs.first();
    let mut about = vec![address.to_string()];
    about.extend(function.device.driver.clone());
    let port = hca.and_then(|it| it.ports.first());
    let kind = port.map(|port| match port.link_type {
        LinkType::Infiniband => "InfiniBand",
        LinkType::Ether => "Ethernet",
        LinkType::Other => "neither Ethernet nor InfiniBand",
    });
    about.extend(kind.map(str::to_owned));
    let mtu = netdev.and_then(|it| it.mtu);
    about.extend(mtu.map(|it| format!("MTU {it}")));
    let firmware = hca.and_then(|it| it.firmware.as_ref());
    about.extend(firmware.map(|it| format!("firmware {it}")));
    for seen in node.switches.of(address, &node.inventory) {
        let last = if seen.is_away { ", as last heard" } else { "" };
        let (port, switch) = (seen.neighbour.port(), seen.neighbour.switch());
        about.push(format!("port {port} of {switch}{last}"));
    }
    Nic {
        own: device(snapshot, function, held),
        netdev: netdev.filter(|_| hca.is_some()).map(of_bond),
        about,
        link: link(snapshot, function, held),
        functions: vec![],
    }
}

/// Returns the NIC at `address`, which the daemon did not observe.
fn elsewhere(address: &DeviceAddress) -> Nic {
    Nic {
        own: Device {
            address: address.clone(),
            name: address.to_string(),
            has_rdma: false,
            fault: None,
            pod: None,
        },
        netdev: None,
        about: vec!["the physical function is not on this node".into()],
        link: Link::Unknown("not known"),
        functions: vec![],
    }
}

fn device(snapshot: &Snapshot, function: &Function, held: &Holders<'_>) -> Device {
    let address = &function.device.address;
    Device {
        address: address.clone(),
        name: name(function),
        has_rdma: !function.hcas.is_empty(),
        fault: snapshot.node.unhealthy.get(address).cloned(),
        pod: held.get(address).map(|&pod| pod.to_owned()),
    }
}

fn name(function: &Function) -> String {
    let hca = function.hcas.first().map(|it| it.name.clone());
    let netdev = || function.netdevs.first().map(of_bond);
    let address = || function.device.address.to_string();
    hca.or_else(netdev).unwrap_or_else(address)
}

fn of_bond(netdev: &Netdev) -> String {
    match &netdev.master {
        Some(master) => format!("{} of {master}", netdev.name),
        None => netdev.name.clone(),
    }
}

fn link(snapshot: &Snapshot, function: &Function, held: &Holders<'_>) -> Link {
    let netdev = function.netdevs.first();
    let speed = netdev.and_then(|it| it.speed);
    let states = function.hcas.first().map(|hca| states(snapshot, hca));
    match states.as_deref() {
        Some([]) if held.contains_key(&function.device.address) => Link::Unknown("in a pod"),
        Some([]) => Link::Unknown("not known"),
        Some(states) if states.contains(&ACTIVE) => Link::Up(speed),
        Some([state, ..]) => Link::Down(match state {
            2 => "init",
            3 => "armed",
            _ => "down",
        }),
        None => match netdev {
            Some(netdev) if netdev.carrier => Link::Up(speed),
            Some(_) => Link::Down("no carrier"),
            None => Link::Unknown("no netdev"),
        },
    }
}

/// Returns the states of the ports from this scrape. If the scrape has no states, returns the last observed states.
fn states(snapshot: &Snapshot, hca: &Hca) -> Vec<u8> {
    let ports = snapshot.ports.as_ref().and_then(|it| it.get(&hca.name));
    let now = ports.into_iter().flatten().filter_map(|port| port.state);
    let now: Vec<u8> = now.collect();
    match now.is_empty() {
        true => hca.ports.iter().map(|port| port.state).collect(),
        false => now,
    }
}
