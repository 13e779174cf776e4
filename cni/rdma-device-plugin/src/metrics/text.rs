// SPDX-License-Identifier: Apache-2.0
//! Metrics as OpenMetrics text.

use super::{
    Labels, Metrics, collect::Snapshot, counters::PortFigures, erdma, holders::Holder, limited,
    nics, scrape::Scrape,
};
use crate::chain::ChainStatus;
use daemon_conf::Require;
use prometheus_client::metrics::gauge::Gauge;
use std::{collections::BTreeMap, fmt};

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn render(metrics: &Metrics, snapshot: &Snapshot) -> Result<String, fmt::Error> {
    let mut scrape = Scrape::default();
    resources(snapshot, &mut scrape);
    devices(snapshot, &mut scrape);
    nics::add(snapshot, &mut scrape);
    erdma::add(snapshot, &mut scrape);
    limited::add(&snapshot.limited, &mut scrape);
    scrape.text(&metrics.0.registry)
}

fn resources(snapshot: &Snapshot, scrape: &mut Scrape) {
    let mut of = |name: &str, help: &str, resource: &str, value: u64| {
        let name = format!("rdma_device_plugin_{name}");
        scrape.gauge(&name, help, super::of(resource), value);
    };
    let expected = "Devices that the resource should have: the number in require, or otherwise the present and gone devices";
    let present = "Usable devices of the resource";
    for offer in snapshot.node.advertised() {
        let name = offer.name.as_str();
        let fit = offer.ids.iter().filter(|id| id.healthy).count();
        of("capacity", "Ids advertised", name, offer.ids.len() as u64);
        of(
            "healthy",
            "Ids advertised that are healthy",
            name,
            fit as u64,
        );
        let held = snapshot.held.as_ref();
        if let Some(count) = held.and_then(|held| held.allocated.get(name)) {
            of("allocated", "Ids that containers have", name, *count);
        }
    }
    let offers = snapshot.node.advertised();
    let offers: Vec<_> = offers.chain(snapshot.node.by_claims()).collect();
    for offer in &offers {
        let name = offer.name.as_str();
        of("devices_expected", expected, name, offer.expected as u64);
        of("devices_present", present, name, offer.usable() as u64);
    }
    let gone = snapshot.node.gone.iter();
    let gone = gone.map(|(resource, devices)| (resource.as_str(), devices.len() as u64));
    let resources = snapshot.node.conf.resources.iter();
    let required = resources.filter_map(|it| match it.require? {
        Require::Number(number) => Some((it.name.as_str(), u64::from(number))),
        Require::All => None,
    });
    // the required number replaces the number of gone devices
    let counts = gone.chain(required);
    for (resource, count) in BTreeMap::from_iter(counts) {
        let is_offered = offers.iter().any(|it| it.name.as_str() == resource);
        if !is_offered && count > 0 {
            of("devices_expected", expected, resource, count);
            of("devices_present", present, resource, 0);
        }
    }
    for (resource, count) in &snapshot.claims {
        of("claims", "Claims that are prepared", resource, *count);
    }
    let is_chained = match snapshot.chain {
        ChainStatus::Unseen | ChainStatus::Off | ChainStatus::Left(_) => None,
        ChainStatus::Called(_) => Some(true),
        ChainStatus::NotCalled(_) | ChainStatus::Withheld(_) => Some(false),
    };
    if let Some(is_chained) = is_chained {
        // register the gauge itself: a family would write `{}` if there are no labels
        let chained = Gauge::<i64>::default();
        chained.set(is_chained.into());
        let help = "1 if the runtime would call rdma-cni";
        scrape
            .registry
            .register("rdma_device_plugin_chained", help, chained);
    }
    for parent in &snapshot.without_ipv6 {
        let device = ("device", parent.rdma.clone());
        let labels = vec![device, ("netdev", parent.netdev.clone())];
        let help = "A NIC without the IPv6 address that pods' IPv6 addresses derive from";
        scrape.gauge("rdma_device_plugin_nic_without_ipv6", help, labels, 1);
    }
    for (part, is_complete) in [
        ("holders", snapshot.held.is_some()),
        ("counters", snapshot.ports.is_some()),
        ("reports", snapshot.reports.is_some()),
    ] {
        scrape.gauge(
            "rdma_device_plugin_scrape_complete",
            "1 if this scrape has all data of the part",
            vec![("part", part.to_owned())],
            is_complete.into(),
        );
    }
}

fn devices(snapshot: &Snapshot, scrape: &mut Scrape) {
    const HEALTHY: (&str, &str) = (
        "rdma_device_healthy",
        "1 if the daemon considers the device healthy",
    );
    let inventory = &snapshot.node.inventory;
    for function in &inventory.functions {
        let device = &function.device;
        let driver = &inventory.maker(function).driver;
        for hca in &function.hcas {
            let with = |labels: Labels| [vec![("device", hca.name.clone())], labels].concat();
            let numa = device.numa_node.map(|node| node.to_string());
            let about = with(vec![
                ("address", device.address.to_string()),
                ("driver", driver.clone().unwrap_or_default()),
                ("numa_node", numa.unwrap_or_default()),
            ]);
            scrape.gauge("rdma_device_info", "An RDMA device", about, 1);
            for seen in snapshot.node.switches.of(&device.address, inventory) {
                let labels = with(vec![
                    ("netdev", seen.netdev.clone()),
                    ("switch", seen.neighbour.switch().to_owned()),
                    ("switch_port", seen.neighbour.port().to_owned()),
                ]);
                let help = "Switch port that the device is connected to, from LLDP";
                scrape.gauge("rdma_device_switch_info", help, labels, 1);
            }
            let is_healthy = !snapshot.node.unhealthy.contains_key(&device.address);
            scrape.gauge(HEALTHY.0, HEALTHY.1, with(vec![]), is_healthy.into());
            let held = snapshot.held.as_ref();
            let of_device = held.and_then(|held| held.holders.get(&device.address));
            for holder in of_device.into_iter().flatten() {
                let resource = vec![("resource", holder.resource.clone())];
                let labels = with([resource, labels(holder)].concat());
                let help = "A container that has the device";
                scrape.gauge("rdma_device_holder", help, labels, 1);
            }
            let only = held.and_then(|held| held.only.get(&device.address));
            let only = only.map(labels).unwrap_or_default();
            let Some(ports) = &snapshot.ports else {
                continue;
            };
            let ports = ports.get(&hca.name).map_or(&[][..], Vec::as_slice);
            let help = "1 if the counters and port states are readable; 0 for example in a pod if the daemon \
                        lacks CAP_SYS_ADMIN";
            let known = u64::from(!ports.is_empty());
            scrape.gauge("rdma_device_counters_known", help, with(vec![]), known);
            for port in ports {
                let labels = with(vec![("port", port.number.to_string())]);
                if let Some(state) = port.state {
                    let help = "Logical state: 1 down, 2 init, 3 armed, 4 active";
                    scrape.gauge("rdma_port_state", help, labels.clone(), state.into());
                }
                counters(&[labels, only.clone()].concat(), port, scrape);
            }
        }
    }
    // a NIC that disappeared from its bus is unhealthy; another NIC may have its name now
    let functions = &snapshot.node.inventory.functions;
    let is_there = |rdma: &str| {
        let mut hcas = functions.iter().flat_map(|function| &function.hcas);
        hcas.any(|hca| hca.name == rdma)
    };
    let gone = snapshot.node.losses().into_iter().filter(|it| it.is_gone);
    for rdma in gone.filter_map(|gone| gone.rdma) {
        if !is_there(&rdma) {
            scrape.gauge(HEALTHY.0, HEALTHY.1, vec![("device", rdma)], 0);
        }
    }
}

fn labels(holder: &Holder) -> Labels {
    vec![
        ("pod", holder.container.pod.name.clone()),
        ("namespace", holder.container.pod.namespace.clone()),
        ("container", holder.container.name.clone()),
    ]
}

fn counters(labels: &Labels, port: &PortFigures, scrape: &mut Scrape) {
    const HELP: &str = "Value of the kernel's counter of this name";
    for figure in &port.counters {
        match figure.counts {
            true => scrape.counter(&figure.name, HELP, labels, figure.value),
            false => scrape.gauge(&figure.name, HELP, labels.clone(), figure.value),
        }
    }
}
