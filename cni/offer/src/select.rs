// SPDX-License-Identifier: Apache-2.0
//! Selection of a resource's devices.

use crate::{
    OfferedDevice, PreviousOffers,
    parent::{self as attached, Parent as Attached},
    unnamed,
};
use daemon_conf::{
    Chain, Conf, Ids, ResourceConf, Selector,
    selector::{Parent, Sort, Text},
};
use rdma_netns::{Device, Function, Hca, Inventory, LinkType, Netdev, RdmaMode};

/// Result of matching a selector with a device. The daemon's net namespace may show only a part of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    No,
    /// The part that decides is invisible: the netdev of the device or of its physical function is in another net
    /// namespace, or the RDMA device is missing for a moment.
    Hidden,
    Yes,
}

impl From<bool> for Fit {
    fn from(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// Returns the devices of `resource`, in the order of their addresses. Adds remarks about most of the matching devices
/// that are left out.
pub(super) fn devices(
    resource: &ResourceConf,
    inventory: &Inventory,
    previous: &PreviousOffers,
    conf: &Conf,
    remarks: &mut Vec<String>,
) -> Vec<OfferedDevice> {
    let mut found = Vec::new();
    let mut storage = Vec::new();
    let mut uplinks = Vec::new();
    for function in &inventory.functions {
        let seen = previous.device(resource.name.as_str(), &function.device.address);
        let fit = best(&resource.devices, function, inventory);
        if !(fit == Fit::Yes || (fit == Fit::Hidden && seen.is_some())) {
            continue;
        }
        let before = || seen.and_then(|seen| seen.hca.clone());
        let gone = |hca: Hca| Hca {
            ports: Vec::new(),
            char_devices: Vec::new(),
            ..hca
        };
        let Some(hca) = hca_of(function).cloned().or_else(|| before().map(gone)) else {
            continue;
        };
        // leave out a device whose name now belongs to another NIC's RDMA device: the name is part of the NIC's ids
        let is_anothers = hca_of(function).is_none() && is_name_of_one(&hca.name, inventory);
        if matches!(resource.ids, Ids::PerNic { .. }) && is_anothers {
            continue;
        }
        let unfit = unfit(resource, function, inventory, conf);
        if let Some(why) = unfit.or_else(|| another_port(resource, function, &found, inventory)) {
            remarks.push(format!(
                "{}: {} is not in {}: {why}",
                resource.place, function.device.address, resource.name
            ));
            continue;
        }
        let attached = Attached::of(resource, function);
        if attached.is_missing && resource.devices.is_empty() && before().is_none() {
            // leave out a device that was not offered before: a resource without selectors has only devices with one of
            // the `parents`
            continue;
        }
        let named = attached.name.is_some() || is_named(&resource.devices, function, inventory);
        let is_shared = matches!(resource.ids, Ids::Shared { .. });
        let why_not = match named {
            true => None,
            false if is_shared => {
                unnamed::no_rail(function).or_else(|| unnamed::not_selected(function, &hca))
            }
            false => unnamed::no_rail(function).or_else(|| unnamed::accelerator(function)),
        };
        if let Some(why) = why_not {
            remarks.push(not_named(resource, function, &hca, &why));
            continue;
        }
        let needs_a_name = is_shared && !named;
        let uplink = unnamed::uplink(function).filter(|_| needs_a_name);
        if needs_a_name
            && uplink.is_none()
            && let Some(why) = unnamed::storage(&hca)
        {
            storage.push((
                function.device.address.clone(),
                not_named(resource, function, &hca, &why),
            ));
        }
        let mac = function
            .netdevs
            .first()
            .map(|netdev| netdev.mac.to_string());
        let device = OfferedDevice {
            address: function.device.address.clone(),
            hca,
            numa_node: function.device.numa_node,
            path: function.path.clone(),
            data_direct: function.data_direct.clone(),
            mac: mac.or_else(|| seen.and_then(|seen| seen.mac.clone())),
            parent: attached.name,
            fault: attached.fault,
        };
        match uplink {
            Some(why) => {
                let remark = not_named(resource, function, &device.hca, &why);
                uplinks.push((device, remark));
            }
            None => found.push(device),
        }
    }
    // if all NICs are uplinks, offer them only if pods get no netdevs of them
    let (own, left_out): (Vec<_>, Vec<_>) = uplinks.into_iter().unzip();
    match found.is_empty() && conf.chain.is_none() {
        true => found = own,
        false => remarks.extend(left_out),
    }
    // if storage uses all devices, pods get them nevertheless
    if storage.len() < found.len() {
        found.retain(|it| !storage.iter().any(|(address, _)| *address == it.address));
        remarks.extend(storage.into_iter().map(|(_, remark)| remark));
    }
    found
}

/// Returns the reason why `resource` has no devices.
pub(super) fn nothing(resource: &ResourceConf) -> String {
    match resource.parents.as_slice() {
        [] => "no RDMA device of this node is selected".to_owned(),
        parents => format!(
            "no selected RDMA device of this node has a netdev that matches parents ({})",
            attached::required(parents)
        ),
    }
}

fn not_named(resource: &ResourceConf, function: &Function, hca: &Hca, why: &str) -> String {
    // the formats `mode` and `configList` have other fields
    let format = resource.place.split('[').next();
    let remedy = match format.unwrap_or_default() {
        "mode" => "replace mode by resources, and name it in devices (netdev, rdma, pci or pf)",
        "configList" => "name it and the resource's other netdevs in selectors.ifNames",
        _ => "name it in devices (netdev, rdma, pci or pf)",
    };
    format!(
        "{}: {} ({}) is not in {}: {why}; {remedy} to include it",
        resource.place, function.device.address, hca.name, resource.name
    )
}

/// Returns true if one of `selectors` contains names and may match `function`.
fn is_named(selectors: &[Selector], function: &Function, inventory: &Inventory) -> bool {
    let mut named = selectors.iter().filter(|it| unnamed::has_names(it));
    named.any(|it| fit(it, function, inventory) != Fit::No)
}

/// Returns the RDMA device of a function. Ignores a second RDMA device, such as soft-RoCE on the netdev of the first
/// one.
pub(super) fn hca_of(function: &Function) -> Option<&Hca> {
    function.hcas.first()
}

fn is_name_of_one(rdma: &str, inventory: &Inventory) -> bool {
    let mut hcas = inventory.functions.iter().flat_map(|it| &it.hcas);
    hcas.any(|hca| hca.name == rdma)
}

/// Returns true if `rdma-cni` moves the devices of `resource` into pods, if they are exclusive. A DeviceClass can demand
/// child netdevs instead, unless the RDMA subsystem is in exclusive mode.
fn is_moved(resource: &ResourceConf, inventory: &Inventory, conf: &Conf) -> bool {
    let chain = conf.chain.as_ref();
    let chain = chain.filter(|it| it.attaches(resource.name.as_str()));
    let may_share = |it: &Chain| it.shares() || conf.by_claims(&resource.name);
    chain.is_some_and(|it| inventory.rdma_mode == Some(RdmaMode::Exclusive) || !may_share(it))
}

/// Returns the reason why no pod can have the device exclusively. Returns `None` if a pod can have it, or if the
/// resource is not exclusive.
fn unfit(
    resource: &ResourceConf,
    function: &Function,
    inventory: &Inventory,
    conf: &Conf,
) -> Option<String> {
    if resource.ids != Ids::Exclusive {
        return None;
    }
    let virtual_functions = function.device.virtual_functions;
    if virtual_functions > 0 {
        return Some(format!(
            "it has {virtual_functions} virtual functions, which a move would affect"
        ));
    }
    if let Some(why) = hca_of(function).and_then(unnamed::storage) {
        return Some(why);
    }
    if let Some(hca) = hca_of(function).filter(|hca| !hca.sub_devices.is_empty())
        && inventory.rdma_mode == Some(RdmaMode::Exclusive)
    {
        return Some(unnamed::held_by_sub_devices(hca));
    }
    function.netdevs.iter().find_map(|netdev| {
        let name = &netdev.name;
        match &netdev.master {
            _ if netdev.default_route => unnamed::uplink(function),
            Some(bond)
                if resource.bonds
                    && netdev.taken_by.is_none()
                    && netdev.link_type == LinkType::Ether =>
            {
                let is_exclusive = inventory.rdma_mode == Some(RdmaMode::Exclusive);
                is_exclusive.then(|| {
                    format!(
                        "its netdev {name} is a port of {bond}, which cannot be moved into a pod, and the RDMA \
                         subsystem is in exclusive mode; set the RDMA subsystem to shared"
                    )
                })
            }
            Some(master) => unnamed::port(netdev).or_else(|| {
                Some(format!(
                    "its netdev {name} is a port of {master}; offer the device by a shared resource"
                ))
            }),
            None => {
                let above = netdev.above.as_ref();
                let above = above.filter(|_| is_moved(resource, inventory, conf))?;
                Some(format!(
                    "{above} lies on its netdev {name}, which rdma-cni therefore does not move"
                ))
            }
        }
    })
}

/// Returns the reason why the resource cannot offer a bond for this port: it already offers the bond for another port.
fn another_port(
    resource: &ResourceConf,
    function: &Function,
    found: &[OfferedDevice],
    inventory: &Inventory,
) -> Option<String> {
    if resource.ids != Ids::Exclusive {
        return None;
    }
    found.iter().find_map(|other| {
        let bond = common_bond(function, inventory.function(&other.address)?)?;
        Some(format!(
            "its bond {bond} is offered with the port {}",
            other.address
        ))
    })
}

/// Returns the bond whose ports include netdevs of both functions.
pub(super) fn common_bond<'a>(one: &'a Function, other: &Function) -> Option<&'a str> {
    let bonds = |function: &'_ Function| -> Vec<String> {
        let netdevs = function.netdevs.iter();
        netdevs.filter_map(|it| it.master.clone()).collect()
    };
    let others = bonds(other);
    let mut own = one.netdevs.iter().filter_map(|it| it.master.as_deref());
    own.find(|it| others.iter().any(|other| other == it))
}

/// Returns true if `selectors` certainly select `function`. The daemon's net namespace may show only a part of the
/// function.
pub fn selects(selectors: &[Selector], function: &Function, inventory: &Inventory) -> bool {
    best(selectors, function, inventory) == Fit::Yes
}

fn best(selectors: &[Selector], function: &Function, inventory: &Inventory) -> Fit {
    let fits = selectors
        .iter()
        .map(|selector| fit(selector, function, inventory));
    // all devices match if there is no selector
    fits.max().unwrap_or(Fit::Yes)
}

fn fit(selector: &Selector, function: &Function, inventory: &Inventory) -> Fit {
    let device = &function.device;
    let physical = match &device.physical_function {
        None => Some(function),
        Some(address) => inventory.function(address),
    };
    let functions: Vec<&Device> = inventory.functions_of(function).collect();
    let optional = |texts: &[Text], of: fn(&Device) -> Option<&String>| {
        let mut values = functions.iter().filter_map(|it| of(it));
        Fit::from(texts.is_empty() || values.any(|value| any(texts, value)))
    };
    let certain = functions
        .iter()
        .filter(|it| device.has_function(&it.address));
    let addresses = || certain.clone();
    let address = Fit::from(
        selector.address.is_empty() || addresses().any(|it| any(&selector.address, &it.address)),
    );
    let sort = Fit::from(selector.sort.is_none_or(|sort| is_of(sort, device)));
    let rdma = match (selector.rdma.as_slice(), function.hcas.as_slice()) {
        ([], _) => Fit::Yes,
        // the RDMA device is missing for a moment: the driver makes it again during a move
        (_, []) => Fit::Hidden,
        (texts, hcas) => hcas.iter().any(|hca| any(texts, &hca.name)).into(),
    };
    let root = parent(&selector.root, function, |text| {
        let roots = addresses().map(|it| it.physical_function.as_ref().unwrap_or(&it.address));
        { roots }.any(|root| text.fits(root)).into()
    });
    let pf = parent(&selector.pf, function, |text| match physical {
        None => Fit::Hidden,
        Some(physical) => named(physical, |name| text.fits(name)),
    });
    let netdev = match selector.netdev.as_slice() {
        [] => Fit::Yes,
        texts => named(function, |name| any(texts, name)),
    };
    // sriov-network-device-plugin matches the driver of the PCI function below which the sub-function is
    let below = |physical: Option<&Function>| match physical {
        Some(physical) if device.address.bus() == "auxiliary" => {
            let driver = physical.device.driver.as_ref();
            driver.is_some_and(|it| any(&selector.driver, it)).into()
        }
        _ => Fit::No,
    };
    let all = [
        address,
        sort,
        rdma,
        root,
        pf,
        netdev,
        link_type(&selector.link_type, function, physical),
        optional(&selector.driver, |it| it.driver.as_ref()).max(below(physical)),
        optional(&selector.vendor, |it| it.vendor.as_ref()),
        optional(&selector.device, |it| it.device.as_ref()),
    ];
    all.into_iter().min().unwrap_or(Fit::Yes)
}

fn any(texts: &[Text], value: &str) -> bool {
    texts.iter().any(|text| text.fits(value))
}

fn is_of(sort: Sort, device: &Device) -> bool {
    match sort {
        Sort::Pci => device.address.bus() == "pci",
        Sort::Virtual => device.address.bus() == "pci" && device.physical_function.is_some(),
        Sort::Auxiliary => device.address.bus() == "auxiliary",
    }
}

/// Matches `parents` with the function. `fits` matches the name of a parent. The first parent whose name matches
/// decides: its numbers must contain the function's number, as in sriov-network-device-plugin.
fn parent(parents: &[Parent], function: &Function, fits: impl Fn(&Text) -> Fit) -> Fit {
    if parents.is_empty() {
        return Fit::Yes;
    }
    let first = parents
        .iter()
        .map(|parent| (fits(&parent.text), parent))
        .find(|(fit, _)| *fit != Fit::No);
    match first {
        Some((fit, parent)) => fit.min(parent.has(function.number).into()),
        None => Fit::No,
    }
}

/// Matches the names of the function's netdevs, and of bonds and bridges that have these netdevs as ports.
fn named(function: &Function, fits: impl Fn(&str) -> bool) -> Fit {
    if function.netdevs.is_empty() {
        return Fit::Hidden;
    }
    let names = |netdev: &Netdev| fits(&netdev.name) || netdev.master.as_deref().is_some_and(&fits);
    function.netdevs.iter().any(names).into()
}

/// Matches the link type of the function's netdevs, or otherwise of its RDMA device's ports, or otherwise of its
/// physical function.
fn link_type(types: &[LinkType], function: &Function, physical: Option<&Function>) -> Fit {
    if types.is_empty() {
        return Fit::Yes;
    }
    for of in std::iter::once(function).chain(physical) {
        let netdevs = of.netdevs.iter().map(|netdev| netdev.link_type);
        let ports = of.hcas.iter().flat_map(|hca| &hca.ports);
        let mut seen: Vec<LinkType> = netdevs.collect();
        if seen.is_empty() {
            seen.extend(ports.map(|port| port.link_type));
        }
        if !seen.is_empty() {
            return seen.iter().any(|seen| types.contains(seen)).into();
        }
    }
    Fit::Hidden
}
