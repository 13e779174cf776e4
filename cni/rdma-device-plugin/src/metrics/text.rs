// SPDX-License-Identifier: Apache-2.0
//! The figures as OpenMetrics text.

use super::{Labels, Metrics, collect::Snapshot, counters::PortFigures, erdma, holders::Holder};
use crate::chain::ChainStatus;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{collections::BTreeMap, fmt};

/// What it is, for the answer's header.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The daemon's figures and those of one scrape.
pub(super) fn render(metrics: &Metrics, snapshot: &Snapshot) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode_registry(&mut text, &metrics.0.registry)?;
    encode_registry(&mut text, &resources(snapshot))?;
    encode_registry(&mut text, &devices(snapshot))?;
    encode_registry(&mut text, &erdma::registry(snapshot))?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// A gauge that is set once.
#[derive(Default)]
pub(super) struct Gauges(Family<Labels, Gauge>);

impl Gauges {
    pub(super) fn set(&self, labels: Labels, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.0.get_or_create(&labels).set(value);
    }

    pub(super) fn register(self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.0);
    }
}

fn resources(snapshot: &Snapshot) -> Registry {
    let mut registry = Registry::with_prefix("rdma_device_plugin");
    let (capacity, healthy, allocated) = <(Gauges, Gauges, Gauges)>::default();
    for offer in &snapshot.node.offers {
        let labels = super::of(&offer.name);
        capacity.set(labels.clone(), offer.ids.len() as u64);
        let fit = offer.ids.iter().filter(|id| id.healthy).count();
        healthy.set(labels.clone(), fit as u64);
        let held = snapshot.held.as_ref();
        if let Some(count) = held.and_then(|held| held.allocated.get(&offer.name)) {
            allocated.set(labels, *count);
        }
    }
    let (expected, present) = <(Gauges, Gauges)>::default();
    for offer in &snapshot.node.offers {
        expected.set(super::of(&offer.name), offer.expected as u64);
        present.set(super::of(&offer.name), offer.present as u64);
    }
    for (resource, gone) in &snapshot.node.gone {
        let is_offered = snapshot.node.offers.iter().any(|it| it.name == *resource);
        if !is_offered && !gone.is_empty() {
            expected.set(super::of(resource), gone.len() as u64);
            present.set(super::of(resource), 0);
        }
    }
    let chained = match snapshot.node.chain {
        ChainStatus::Unseen | ChainStatus::Off | ChainStatus::Left(_) => None,
        ChainStatus::Called { .. } => Some(1),
        ChainStatus::NotCalled(_) | ChainStatus::Withheld(_) => Some(0),
    };
    if let Some(chained_now) = chained {
        let chained = Gauge::<i64>::default();
        chained.set(chained_now);
        let help = "Whether the runtime would call rdma-cni";
        registry.register("chained", help, chained);
    }
    let claims = Gauges::default();
    for (resource, count) in &snapshot.claims {
        claims.set(super::of(resource), *count);
    }
    let without_ipv6 = Gauges::default();
    for parent in &snapshot.without_ipv6 {
        let device = ("device", parent.rdma.clone());
        without_ipv6.set(vec![device, ("netdev", parent.netdev.clone())], 1);
    }
    let complete = Gauges::default();
    for (part, is_complete) in [
        ("holders", snapshot.held.is_some()),
        ("counters", snapshot.ports.is_some()),
    ] {
        complete.set(vec![("part", part.to_owned())], is_complete.into());
    }
    capacity.register(&mut registry, "capacity", "Ids advertised");
    healthy.register(&mut registry, "healthy", "Ids advertised that are healthy");
    allocated.register(&mut registry, "allocated", "Ids that containers have");
    claims.register(&mut registry, "claims", "Claims that are prepared");
    expected.register(
        &mut registry,
        "devices_expected",
        "Devices that the resource is to have: by require, else as many as it had",
    );
    present.register(
        &mut registry,
        "devices_present",
        "Devices of the resource that are there and healthy",
    );
    without_ipv6.register(
        &mut registry,
        "nic_without_ipv6",
        "A NIC that pods' IPv6 addresses are to come from, and that has none",
    );
    complete.register(
        &mut registry,
        "scrape_complete",
        "Whether this scrape has all of it",
    );
    registry
}

fn devices(snapshot: &Snapshot) -> Registry {
    let mut registry = Registry::default();
    let (info, healthy, holders, states) = <(Gauges, Gauges, Gauges, Gauges)>::default();
    let known = Gauges::default();
    let mut counters = Counters::default();
    for function in &snapshot.node.inventory.functions {
        let device = &function.device;
        for hca in &function.hcas {
            let name = || vec![("device", hca.name.clone())];
            let numa = device.numa_node.map(|node| node.to_string());
            let about = vec![
                ("address", device.address.to_string()),
                ("driver", device.driver.clone().unwrap_or_default()),
                ("numa_node", numa.unwrap_or_default()),
            ];
            info.set([name(), about].concat(), 1);
            let is_healthy = !snapshot.node.unhealthy.contains_key(&device.address);
            healthy.set(name(), is_healthy.into());
            let held = snapshot.held.as_ref();
            let of_device = held.and_then(|held| held.holders.get(&device.address));
            for holder in of_device.into_iter().flatten() {
                let resource = vec![("resource", holder.resource.clone())];
                holders.set([name(), resource, labels(holder)].concat(), 1);
            }
            let only = held.and_then(|held| held.only.get(&device.address));
            let only = only.map(labels).unwrap_or_default();
            let ports = snapshot.ports.as_ref();
            let ports = ports.map(|ports| ports.get(&hca.name).map_or(&[][..], Vec::as_slice));
            if let Some(ports) = ports {
                known.set(name(), (!ports.is_empty()).into());
            }
            for port in ports.into_iter().flatten() {
                let labels = [name(), vec![("port", port.number.to_string())]].concat();
                if let Some(state) = port.state {
                    states.set(labels.clone(), state.into());
                }
                counters.add(&[labels, only.clone()].concat(), port);
            }
        }
    }
    // a NIC that fell off its bus is not well, and its name may be another's by now
    let functions = &snapshot.node.inventory.functions;
    let is_there = |rdma: &str| {
        let mut hcas = functions.iter().flat_map(|function| &function.hcas);
        hcas.any(|hca| hca.name == rdma)
    };
    for rdma in snapshot
        .node
        .gone
        .values()
        .flatten()
        .filter_map(|gone| gone.rdma.as_ref())
    {
        if !is_there(rdma) {
            healthy.set(vec![("device", rdma.clone())], 0);
        }
    }
    info.register(&mut registry, "rdma_device_info", "An RDMA device");
    healthy.register(
        &mut registry,
        "rdma_device_healthy",
        "Whether kubelet is told so",
    );
    holders.register(
        &mut registry,
        "rdma_device_holder",
        "A container that was given the device",
    );
    known.register(
        &mut registry,
        "rdma_device_counters_known",
        "Whether the counters and port states can be read; not those of a device inside a pod without \
         CAP_SYS_ADMIN",
    );
    states.register(
        &mut registry,
        "rdma_port_state",
        "Logical state: 1 down, 2 init, 3 armed, 4 active",
    );
    counters.register(&mut registry);
    registry
}

fn labels(holder: &Holder) -> Labels {
    vec![
        ("pod", holder.pod.clone()),
        ("namespace", holder.namespace.clone()),
        ("container", holder.container.clone()),
    ]
}

/// The ports' figures, by metric.
#[derive(Default)]
struct Counters {
    counts: BTreeMap<String, Family<Labels, Counter>>,
    levels: BTreeMap<String, Gauges>,
}

impl Counters {
    fn add(&mut self, labels: &Labels, port: &PortFigures) {
        for figure in &port.counters {
            let name = figure.name.clone();
            if figure.counts {
                let family = self.counts.entry(name).or_default();
                family.get_or_create(labels).inc_by(figure.value);
            } else {
                let family = self.levels.entry(name).or_default();
                family.set(labels.clone(), figure.value);
            }
        }
    }

    fn register(self, registry: &mut Registry) {
        const HELP: &str = "As the kernel has it under this name";
        for (name, family) in self.counts {
            registry.register(name, HELP, family);
        }
        for (name, family) in self.levels {
            family.register(registry, &name, HELP);
        }
    }
}
