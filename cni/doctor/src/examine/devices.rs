// SPDX-License-Identifier: Apache-2.0
//! Examines RDMA devices, their netdevs and ports, and bonds. The result does not depend on the configuration.

use super::{
    super::facts::{Facts, ModuleState},
    Findings, count, named, some,
};
use attachments::Attachment;
use rdma_netns::{
    Device, Link, LinkType, Namespace, Observed, RdmaDevice, RdmaMode, SubDevice,
    device::RDMA_DRIVERS,
    pairing::{self, ERDMA, is_erdma_function},
};

/// State of an active port: `IB_PORT_ACTIVE` (`include/rdma/ib_verbs.h`).
const ACTIVE: u8 = 4;

/// Drivers that let a program or a virtual machine use a PCI function directly. Such a function has no netdev.
const PASSED_ON: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// Drivers that can remove a device from programs that have it open (`disassociate_ucontext`,
/// `drivers/infiniband/hw/*`). The kernel moves only devices of drivers with this function. Other drivers have it only
/// in some versions, or not at all.
const MOVABLE: [&str; 7] = [
    "bnxt_en",
    "erdma",
    "hns3",
    "ionic",
    "mana",
    "mlx4_core",
    "mlx5_core",
];

pub(super) fn examine(facts: &Facts, findings: &mut Findings<'_>) {
    let Some(observed) = &facts.observed else {
        return;
    };
    let living = facts.living();
    let is_without = observed.devices.iter().all(|it| it.rdma.is_empty());
    let in_pods = living.iter().flat_map(|it| &it.rails);
    let none_in_pods = in_pods.filter(|rail| rail.rdma.is_some()).count() == 0;
    if is_without && observed.host.rdma.is_empty() && none_in_pods {
        findings.warning(
            "there is no RDMA device on this node",
            "load the RDMA driver of the node's NICs (for example mlx5_ib), or exclude the node by the DaemonSet's \
             nodeSelector",
        );
    }
    drivers(facts, observed, findings);
    unbound(facts, observed, findings);
    here(observed, findings);
    bonds(facts, observed, findings);
    away(facts, observed, findings);
    for op in plan::renamed(&living, observed) {
        findings.warning(
            plan::drift::describe(&op, observed),
            format!(
                "a pod renamed the RDMA device: the pod's DEL or the next ADD restores the name; by hand: {op}"
            ),
        );
    }
    if observed.rdma_mode == Some(RdmaMode::Exclusive) {
        immovable(observed, findings);
    }
}

/// Returns true if `name` is a usual name of an rxe or siw device (RDMA in software).
pub(super) fn is_soft(name: &str) -> bool {
    ["rxe", "siw"].iter().any(|soft| name.starts_with(soft))
}

/// Returns the number of RDMA devices without a parent in sysfs that functions of `driver` have made, in all
/// namespaces.
fn parentless(driver: &str, observed: &Observed) -> usize {
    if driver != ERDMA {
        return 0;
    }
    let paired = observed.devices.iter();
    let paired = paired.filter(|it| !it.rdma_functions.is_empty());
    let unpaired = observed.unpaired.iter().filter(|name| !is_soft(name));
    paired.count() + unpaired.count()
}

/// Reports functions that could have an RDMA device, but have none.
fn drivers(facts: &Facts, observed: &Observed, findings: &mut Findings<'_>) {
    for (driver, module) in RDMA_DRIVERS {
        let is_bare =
            |device: &&Device| device.driver.as_deref() == Some(driver) && device.rdma.is_empty();
        let bare = observed.devices.iter().filter(is_bare);
        let bare = bare.filter(|device| !has_bonds_rdma(device, observed));
        let bare: Vec<String> = bare.map(|device| device.address.to_string()).collect();
        let made = parentless(driver, observed);
        let lacking = bare.len().saturating_sub(made);
        if lacking == 0 {
            continue;
        }
        let what = format!(
            "{} of {driver} without an RDMA device: {}{}",
            count(lacking, "function"),
            if made == 0 { "" } else { "unknown which of " },
            some(&bare)
        );
        match facts.module(module) {
            ModuleState::Loaded => findings.advice(
                what,
                "if pods need RDMA on these NICs: see dmesg, and check that the firmware does not disable RoCE \
                 (devlink dev param show)",
            ),
            _ => findings.warning(what, format!("modprobe {module}")),
        }
    }
}

/// Returns true if a netdev of `device` is a port of a bond with an RDMA device. With two ports in a bond, the driver
/// `mlx5_ib` has one RDMA device, which belongs to the function of one port. Other masters, such as a bridge, change
/// nothing.
fn has_bonds_rdma(device: &Device, observed: &Observed) -> bool {
    let host = &observed.host;
    let bonds = |device: &Device| -> Vec<&Link> {
        let links = host.links_of(&device.address, host).into_iter();
        let masters = links.filter_map(|link| host.link_by_index(link.master?));
        masters.filter(|link| link.is_bond()).collect()
    };
    // the RDMA device may be in a pod
    let has_maker = |bond: &Link| {
        let mut makers = observed.devices.iter().filter(|it| !it.rdma.is_empty());
        makers.any(|it| bonds(it).iter().any(|other| other.index == bond.index))
    };
    let mut bonds = bonds(device).into_iter();
    bonds.any(|bond| host.rdma_of(bond).is_some() || has_maker(bond))
}

/// Reports eRDMA functions without a driver, which have no RDMA device either.
fn unbound(facts: &Facts, observed: &Observed, findings: &mut Findings<'_>) {
    let is_unbound = |it: &&Device| {
        it.driver.is_none() && is_erdma_function(it.vendor.as_deref(), it.device.as_deref())
    };
    let unbound = observed.devices.iter().filter(is_unbound);
    let unbound: Vec<String> = unbound.map(|it| it.address.to_string()).collect();
    if unbound.is_empty() {
        return;
    }
    let what = format!(
        "no driver is bound to {} of eRDMA: {}",
        count(unbound.len(), "function"),
        some(&unbound)
    );
    match facts.module(ERDMA) {
        ModuleState::Loaded => findings.warning(
            what,
            "the driver can be bound only while the function's netdev is on the host: end the pod with the netdev, \
             then echo FUNCTION >/sys/bus/pci/drivers/erdma/bind",
        ),
        _ => findings.warning(what, format!("modprobe {ERDMA}")),
    }
}

/// Reports the RDMA devices of the host's namespace.
fn here(observed: &Observed, findings: &mut Findings<'_>) {
    let host = &observed.host;
    let mut active = vec![];
    let mut waiting = 0;
    for device in &host.rdma {
        let links = netdevs(host, device);
        let name = &device.name;
        let is_active = device.ports.iter().any(|port| port.state == ACTIVE);
        let Some(link) = links.first() else {
            findings.note(format!(
                "{name} has no netdev on the host: pods get at most the RDMA device, without a netdev"
            ));
            continue;
        };
        if let Some(master) = links.iter().find_map(|link| host.accelerated_by(link)) {
            findings.note(format!(
                "{name} accelerates {}, the node's own netdev: pods get {name} only if the configuration names it",
                master.name
            ));
            continue;
        }
        let label = format!("{name} ({})", link.name);
        let is_virtual = device
            .parent
            .as_ref()
            .and_then(|parent| observed.device(parent))
            .is_some_and(|device| device.physical_function.is_some());
        match (is_active, link.up) {
            (true, _) => active.push(label),
            // a virtual function is down until it is in a pod
            (false, false) if is_virtual => waiting += 1,
            (false, false) => findings.warning(
                format!("{label} is down"),
                format!(
                    "ip link set {} up: pods cannot share a netdev that is down",
                    link.name
                ),
            ),
            (false, true) if !link.carrier => findings.warning(
                format!("{label} has no carrier"),
                "check the cable or module, and the port of the switch",
            ),
            (false, true) => findings.warning(
                format!("{label} has carrier, but no active RDMA port"),
                format!("see rdma link show {name}/1, and dmesg for the driver's messages"),
            ),
        }
    }
    if !active.is_empty() {
        findings.ok(format!("{} active: {}", active.len(), some(&active)));
    }
    if waiting > 0 {
        findings.ok(format!(
            "{} down until a pod has them",
            count(waiting, "virtual function")
        ));
    }
}

/// Returns the netdevs of an RDMA device, without VLANs and representors. A bond precedes its ports.
fn netdevs<'a>(host: &'a Namespace, device: &RdmaDevice) -> Vec<&'a Link> {
    let mut links: Vec<&Link> = host.links.iter().collect();
    links.retain(|link| {
        !link.is_representor()
            && host.below_vlan(link).is_none()
            && host.rdma_of(link).is_some_and(|it| it.name == device.name)
    });
    links.sort_by_key(|link| (!link.is_bond(), !device.has_netdev(link.index), link.index));
    links
}

fn bonds(facts: &Facts, observed: &Observed, findings: &mut Findings<'_>) {
    let host = &observed.host;
    let mut bonds = vec![];
    for bond in host.links.iter().filter(|link| link.is_bond()) {
        let Some(device) = host.rdma_of(bond) else {
            continue;
        };
        let mode = facts.bond_modes.get(&*bond.name).map(String::as_str);
        bonds.push(format!(
            "{} ({})",
            bond.name,
            mode.unwrap_or("mode not known")
        ));
        let ports = host.links.iter().filter(|it| it.master == Some(bond.index));
        let down = ports.filter(|port| !port.carrier).map(|port| &port.name);
        if let (Some(down), true) = (named(down), bond.carrier) {
            findings.warning(
                format!(
                    "{} ({}) uses fewer ports than it has: no carrier on {down}",
                    bond.name, device.name
                ),
                "check the cable or module, and the port of the switch",
            );
        }
    }
    if let Some(bonds) = named(bonds) {
        findings.ok(format!("bonds, which pods share: {bonds}"));
    }
}

/// Reports RDMA devices in living pods and, in exclusive mode, RDMA devices that are neither in the host's namespace
/// nor in a record.
fn away(facts: &Facts, observed: &Observed, findings: &mut Findings<'_>) {
    let holds = |attachment: &Attachment, device: &Device| {
        attachment.rails.iter().any(|rail| {
            let rdma = rail.rdma.as_ref().and_then(|rdma| rdma.parent.as_ref());
            rail.device() == Some(&device.address) || rdma == Some(&device.address)
        })
    };
    let is_here = |name: &String| observed.host.rdma.iter().any(|it| it.name == *name);
    let living = facts.living();
    let mut lost = vec![];
    let mut held = 0;
    for device in observed.devices.iter().filter(|it| !it.rdma.is_empty()) {
        let links = observed.host.links_of(&device.address, &observed.host);
        let is_on_host = match observed.rdma_mode {
            Some(RdmaMode::Exclusive) => device.rdma.iter().any(is_here),
            _ => !links.is_empty(),
        };
        let is_passed_on = device
            .driver
            .as_deref()
            .is_some_and(|it| PASSED_ON.contains(&it));
        let is_infiniband = links.iter().any(|it| it.link_type == LinkType::Infiniband);
        if is_on_host || is_passed_on || is_infiniband {
            continue;
        }
        let is_recorded = facts.attachments().any(|it| holds(it, device));
        match living.iter().any(|it| holds(it, device)) {
            true => held += 1,
            // `records` reports the device of a stale record
            false if is_recorded => {}
            false => lost.push(format!("{} ({})", device.rdma.join(", "), device.address)),
        }
    }
    // if no PCI function makes devices without a parent, `name` is a software device in another namespace
    let has_makers = !pairing::makers(&observed.devices).is_empty();
    for name in observed.unpaired.iter().filter(|name| !is_here(name)) {
        let holds = |attachment: &Attachment| {
            let mut rdma = attachment
                .rails
                .iter()
                .filter_map(|rail| rail.rdma.as_ref());
            rdma.any(|rdma| rdma.name == *name)
        };
        match living.iter().any(holds) {
            true => held += 1,
            false if facts.attachments().any(holds) => {}
            false if is_soft(name) || !has_makers => {}
            false => lost.push(name.clone()),
        }
    }
    if held > 0 {
        findings.ok(format!("{} in pods", count(held, "device")));
    }
    // nothing to report in shared mode: `here` reports a device without a netdev
    if let (Some(lost), Some(RdmaMode::Exclusive)) = (named(lost), observed.rdma_mode) {
        findings.warning(
            format!(
                "RDMA devices are in another network namespace, and in no record of rdma-cni: {lost}"
            ),
            "find the namespace (ip netns; nsenter -t PID -n rdma dev) and end its processes, or move the devices to \
             the host (ip netns attach host 1; nsenter -t PID -n rdma dev set NAME netns host)",
        );
    }
}

/// Returns true if no version of the driver of `device` can move it: siw has no `disassociate_ucontext`
/// (`drivers/infiniband/sw/siw/siw_main.c`).
pub(super) fn is_immovable(device: &RdmaDevice) -> bool {
    device.parent.is_none() && device.name.starts_with("siw")
}

/// Reports RDMA devices that the kernel may refuse to move into a pod: software devices, devices with a sub-device, and
/// devices whose driver is not in [`MOVABLE`].
fn immovable(observed: &Observed, findings: &mut Findings<'_>) {
    let names = |is: &dyn Fn(&RdmaDevice) -> bool| {
        let found = observed.host.rdma.iter().filter(|device| is(device));
        named(found.map(|device| &device.name))
    };
    let is_soft = |device: &RdmaDevice| device.parent.is_none() && is_soft(&device.name);
    let is_doubtful = |device: &RdmaDevice| {
        let function = device.parent.as_ref().and_then(|it| observed.device(it));
        // ignore a parent that pairing found by its netdev: it is a virtio function, and erdma made the RDMA device
        let function = function.filter(|it| it.rdma_functions.is_empty());
        let driver = function.and_then(|function| function.driver.as_deref());
        driver.is_some_and(|driver| !MOVABLE.contains(&driver))
    };
    if let Some(soft) = names(&is_soft) {
        findings.note(format!(
            "the kernel cannot move these software devices into pods unless their drivers are patched: {soft}"
        ));
    }
    let sub_devices = observed.host.sub_devices.iter();
    for SubDevice { name, parent } in sub_devices {
        findings.advice(
            format!(
                "RDMA device {parent} has the sub-device {name}: the kernel cannot move {parent} into a pod, so ADD \
                 fails (102)"
            ),
            format!("rdma dev delete {name}, or set the RDMA subsystem to shared mode"),
        );
    }
    if let Some(doubtful) = names(&is_doubtful) {
        findings.note(format!(
            "{doubtful}: some versions of the driver cannot move RDMA devices into pods; with such a version ADD fails \
             (102)"
        ));
    }
}
