// SPDX-License-Identifier: Apache-2.0
//! Predicts the outcome of an ADD with the selection code of `rdma-cni`: devices that ADD can attach, addresses and
//! GIDs of the rails.

use super::{
    super::facts::{Facts, PortGids},
    Findings, Severity,
    devices::is_immovable,
    kernel::AT_BOOT,
    named,
};
use attachments::{Id, Rail};
use network_conf::{Conf, Devices, Smcr};
use plan::{
    self, Obstacle,
    allocation::{Meaning, of_published},
    select::{self, Choice, SelectError},
};
use rdma_ipam::address::Family;
use rdma_netns::{GidKind, InterfaceName, Link, LinkType, Observed, RdmaMode, gid::GidTable};
use rdma_resources::published;
use serde_json::Value;
use std::collections::BTreeMap;

/// Smallest MTU that IPv6 allows, in bytes (RFC 8200, section 5).
const IPV6_MTU: u32 = 1280;

pub(super) fn examine(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let (Some(observed), Some(conf)) = (&facts.observed, conf) else {
        return;
    };
    let others = facts.living();
    let mut rails: BTreeMap<InterfaceName, Rail> = BTreeMap::new();
    let mut errors: Vec<SelectError> = vec![];
    for choice in choices(conf, facts) {
        match select::rails(conf, &choice, observed, &others) {
            Ok(found) => rails.extend(found.rails.into_iter().map(|it| (it.name().clone(), it))),
            // ignore a device that a pod has, because this is no defect of the node
            Err(SelectError::InUse { .. } | SelectError::Elsewhere(_)) => {}
            // ignore the mode and a missing subsystem, which `kernel` reports
            Err(SelectError::NoSubsystem | SelectError::WrongMode(_)) => {}
            // ignore a missing device: runtimeConfig can name another device at ADD, and the configured address may be
            // an example
            Err(SelectError::NotFound(_)) if matches!(choice, Choice::Address(_)) => {}
            Err(error) if errors.contains(&error) => {}
            Err(error) => errors.push(error),
        }
    }
    for error in &errors {
        refused(error, findings);
    }
    let rails: Vec<&Rail> = rails.values().collect();
    let shared = rails.iter().filter(|rail| rail.shared.is_some());
    let moved = rails.iter().filter(|rail| rail.host_link.is_some());
    let (refused, moved): (Vec<&&Rail>, Vec<&&Rail>) = moved.partition(|rail| {
        let is_exclusive = observed.rdma_mode == Some(RdmaMode::Exclusive);
        is_exclusive && rail.rdma.as_ref().is_some_and(is_immovable)
    });
    let [refused, shared, moved] =
        [refused, shared.collect(), moved].map(|rails| named(rails.iter().map(|it| it.name())));
    if let Some(refused) = refused {
        findings.error(
            format!(
                "ADD refuses {refused} (102): the kernel cannot move RDMA devices of siw into a pod"
            ),
            "remove siw devices from the resource or selector, or set the RDMA subsystem to shared mode",
        );
    }
    let shares = shared.map(|names| format!("shares {names}"));
    let moves = moved.map(|names| format!("moves {names}"));
    let ways: Vec<String> = shares.into_iter().chain(moves).collect();
    if !ways.is_empty() {
        findings.ok(format!("ADD {}", ways.join(" and ")));
    }
    isolation(observed, &rails, findings);
    bearers(conf, observed, &rails, findings);
    for rail in &rails {
        gids(facts, observed, rail, findings);
        mtu(conf, observed, rail, findings);
    }
    parents(conf, observed, &rails, findings);
    user_eid(facts, conf, findings);
}

/// Returns the choices of devices that an ADD can have. With `resources`, each set of devices for which a published id
/// stands is one choice.
fn choices<'a>(conf: &'a Conf, facts: &Facts) -> Vec<Choice<'a>> {
    match &conf.devices {
        Some(Devices::Address(address)) => vec![Choice::Address(address)],
        Some(Devices::Selectors(selectors)) => vec![Choice::Selectors(selectors)],
        // the device is unknown: the runtime passes it to each ADD as `deviceID`
        Some(Devices::Resources(_)) if conf.takes_device_id() => vec![],
        Some(Devices::Resources(names)) => {
            let published = facts.daemon.published.iter();
            let named = published.flat_map(|it| &it.resources);
            let named = named.filter(|(name, _)| names.contains(name));
            named
                .flat_map(|(name, resource)| meanings(name, resource))
                .map(|meaning| Choice::Allocated(vec![meaning]))
                .collect()
        }
        None => vec![],
    }
}

/// Returns the ids of the resource `name` with their devices. Omits an id that has no devices, or the same devices as
/// an earlier id.
fn meanings(name: &str, resource: &published::Resource) -> Vec<Meaning> {
    let each: Vec<(&str, &Vec<_>)> = match &resource.devices {
        published::Devices::Every(devices) => vec![("0", devices)],
        published::Devices::ById(each) => {
            let mut ids: Vec<(&str, &Vec<_>)> = vec![];
            for (id, devices) in each {
                if !ids.iter().any(|(_, known)| *known == devices) {
                    ids.push((id, devices));
                }
            }
            ids
        }
    };
    let each = each.into_iter().filter(|(_, devices)| !devices.is_empty());
    each.map(|(id, devices)| {
        let id = Id {
            resource: name.to_owned(),
            id: id.to_owned(),
        };
        of_published(id, resource, devices)
    })
    .collect()
}

/// Reports why ADD would fail. The remedy of an error that is not listed here is in the error's text.
fn refused(error: &SelectError, findings: &mut Findings<'_>) {
    let text = error.to_string();
    let remedy = match error {
        SelectError::NotFound(_) => {
            "correct devices or the daemon's selectors, or see why the device is missing (lspci, \
             dmesg)"
        }
        // the reason has its own remedy
        SelectError::CannotMove { .. } | SelectError::CannotShare { .. } if text.contains("; ") => {
            return findings.refusal(Severity::Error, error);
        }
        SelectError::CannotMove { .. } => {
            "share the port's bond (mode \"auto\"), or remove the netdev from its bridge"
        }
        SelectError::CannotShare { .. } => {
            "remove the device from the resource or selector, or, if the netdev is a port, share the netdev that has \
             the port"
        }
        SelectError::NoRdma(_) => {
            "load the netdev's RDMA driver, or set requireRdma to false to attach the netdev without RDMA"
        }
        _ => return findings.refusal(Severity::Error, error),
    };
    let what = text.split("; ").next().unwrap_or_default();
    findings.error(what, remedy);
}

/// Reports rails that ADD moves in shared mode, in which every pod sees all RDMA devices.
fn isolation(observed: &Observed, rails: &[&Rail], findings: &mut Findings<'_>) {
    let moved = rails
        .iter()
        .filter(|rail| rail.host_link.is_some() && rail.rdma.is_some());
    if let Some(moved) = named(moved.map(|rail| rail.name()))
        && observed.rdma_mode == Some(RdmaMode::Shared)
    {
        findings.warning(
            format!(
                "ADD moves {moved} while the RDMA subsystem is in shared mode: every pod sees, and can use, all RDMA \
                 devices"
            ),
            AT_BOOT,
        );
    }
}

/// Reports netdevs that cannot be the parents of pods' child netdevs.
fn bearers(conf: &Conf, observed: &Observed, rails: &[&Rail], findings: &mut Findings<'_>) {
    let mut down = vec![];
    for shared in rails.iter().filter_map(|rail| rail.shared.as_ref()) {
        let mtu = conf.mtu.unwrap_or(shared.parent_mtu);
        match plan::bearer(shared, mtu, observed) {
            Ok(_) => {}
            Err(Obstacle::ParentDown { parent }) => down.push(parent.to_string()),
            Err(obstacle @ Obstacle::MtuTooLarge { .. }) => {
                findings.error(
                    obstacle.to_string(),
                    "lower mtu in the configuration, or raise the netdev's MTU",
                );
            }
            Err(obstacle) => findings.refusal(Severity::Error, &obstacle),
        }
    }
    if let Some(parents) = named(&down) {
        let each = down.iter().map(|parent| format!("ip link set {parent} up"));
        findings.error(
            format!("pods cannot share netdevs that are down on the host: {parents}"),
            each.collect::<Vec<_>>().join("; "),
        );
    }
}

/// Reports ports without a RoCE v2 GID if their Ethernet netdev is up, and full or nearly full GID tables of shared
/// netdevs.
fn gids(facts: &Facts, observed: &Observed, rail: &Rail, findings: &mut Findings<'_>) {
    let is_ether = rail
        .on_host(observed)
        .is_some_and(|link| link.link_type == LinkType::Ether);
    let Some(rdma) = rail.rdma.as_ref().filter(|_| is_ether) else {
        return;
    };
    for PortGids {
        device,
        port,
        table,
    } in &facts.gids
    {
        // ignore iWARP: its only GID is not made from an IP address
        if *device != rdma.name || table.size <= 1 {
            continue;
        }
        let has_v2 = table.gids.iter().any(|gid| gid.kind == GidKind::RoceV2);
        let is_up = rail.on_host(observed).is_some_and(|link| link.up);
        if !has_v2 && is_up {
            let what = match table.used() {
                0 => format!("{device} port {port} ({}) has no GID at all", rail.name()),
                _ => format!(
                    "{device} port {port} ({}) has RoCE v1 GIDs only",
                    rail.name()
                ),
            };
            findings.warning(
                what,
                "check that the netdev has an address, and that the firmware has RoCE v2 enabled (cma_roce_mode, \
                 devlink): RDMA between subnets needs RoCE v2",
            );
        }
        if rail.shared.is_some() {
            room(device, *port, table, findings);
        }
    }
}

/// Reports a GID table that is full, or at least 80 % full. Each address of a pod that shares the netdev needs one
/// entry of the table for each kind of GID (RoCE v1 and v2).
fn room(device: &str, port: u32, table: &GidTable, findings: &mut Findings<'_>) {
    let (used, size) = (table.used(), table.size);
    let remedy = "limit the pods of this resource on the node (rdmaHcaMax), or give pods their own devices (VFs)";
    if used >= size {
        findings.error(
            format!(
                "the GID table of {device} port {port} is full ({size}): no further pod can share the device"
            ),
            remedy,
        );
    } else if used * 10 >= size * 8 {
        findings.warning(
            format!("the GID table of {device} port {port} is nearly full: {used} of {size}"),
            remedy,
        );
    }
}

fn mtu(conf: &Conf, observed: &Observed, rail: &Rail, findings: &mut Findings<'_>) {
    let Some(link) = rail.on_host(observed) else {
        return;
    };
    let mtu = conf.mtu.unwrap_or(link.mtu);
    let kept = conf.ipam.is_none()
        && link
            .addresses
            .iter()
            .any(|it| it.ip.is_ipv6() && it.scope == 0);
    let has_ipv6_ipam = families(conf).is_some_and(|families| families.contains(&Family::V6));
    if mtu < IPV6_MTU && (kept || has_ipv6_ipam) {
        findings.error(
            format!(
                "the MTU of {} in a pod is {mtu}, and IPv6 needs {IPV6_MTU}",
                link.name
            ),
            match conf.mtu {
                Some(_) => "raise mtu in the configuration".to_owned(),
                None => format!("ip link set {} mtu 1500, or more", link.name),
            },
        );
    }
}

/// Returns the address families in which rdma-ipam derives pods' addresses from the parents' addresses. `None`:
/// rdma-ipam derives none.
fn families(conf: &Conf) -> Option<&'static [Family]> {
    let ipam = conf.raw.get("ipam")?;
    let text = |field: &str| ipam.get(field).and_then(Value::as_str);
    if conf.ipam.as_deref() != Some("rdma-ipam") || text("from") != Some("parent") {
        return None;
    }
    Some(match text("family") {
        Some("ipv4") => &[Family::V4],
        Some("both") => &[Family::V4, Family::V6],
        _ => &[Family::V6],
    })
}

/// Reports parents without a prefix from which rdma-ipam could derive addresses. Omits a parent that is in a pod: it
/// has no prefix at this time, and cannot be a rail of another pod.
fn parents(conf: &Conf, observed: &Observed, rails: &[&Rail], findings: &mut Findings<'_>) {
    let Some(families) = families(conf) else {
        return;
    };
    for family in families {
        let has = |link: &&Link| {
            let mut addresses = link.addresses.iter();
            addresses.any(|it| it.names_a_network() && Family::of(it.ip) == *family)
        };
        let links = rails.iter().filter_map(|rail| rail.on_host(observed));
        let (with, without): (Vec<&Link>, Vec<&Link>) = links.partition(|link| has(link));
        let [with, without] =
            [with, without].map(|links| named(links.iter().map(|link| &link.name)));
        if let Some(with) = with {
            findings.ok(format!("{family} prefix on {with}"));
        }
        let Some(without) = without else {
            continue;
        };
        let remedy = match family {
            Family::V6 => {
                "give each of these netdevs a global IPv6 address (static, or by router advertisements; on Lingjun \
                 nodes, the node's IPv6 has to be switched on), or set ipam.family to ipv4 (with the daemon: \
                 chain.plugin.ipam.family), if pods are to have IPv4 addresses"
            }
            Family::V4 => {
                "give each of these netdevs a global IPv4 address, or set ipam.family to ipv6 (with the \
                 daemon: chain.plugin.ipam.family), if pods are to have IPv6 addresses"
            }
        };
        findings.error(
            format!(
                "no global {family} address on {without}: ipam.from \"parent\" has no prefix for pods"
            ),
            remedy,
        );
    }
}

/// Reports a missing user EID if the configuration requests SMC-R. Two hosts use SMC-Rv2 only if they have a common
/// EID.
fn user_eid(facts: &Facts, conf: &Conf, findings: &mut Findings<'_>) {
    let Some(smc) = &facts.smc else {
        return;
    };
    let is_requested = conf.smc.smcr == Smcr::On || conf.raw.contains_key("smcr");
    if conf.smc.smcr != Smcr::Off && is_requested && conf.smc.ueid.is_none() && smc.ueids.is_empty()
    {
        findings.advice(
            "the node has no user EID: only SMC-Rv1 works, which is not routed",
            "set smcUeid to the same value on all nodes",
        );
    }
}
