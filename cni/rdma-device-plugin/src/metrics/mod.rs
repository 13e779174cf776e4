// SPDX-License-Identifier: Apache-2.0
//! What the daemon and the node's RDMA devices do, for Prometheus (`/metrics`), and whether the
//! daemon does its work (`/healthz`), and whether kubelet has its lists and the runtime would call the
//! plugin (`/readyz`). All of it is on one page (`/`, `page`) for people.
//!
//! | metric | labels | |
//! |---|---|---|
//! | `rdma_device_plugin_registrations_total` | `resource`, `outcome` (`ok`, `error`) | attempts to register with kubelet |
//! | `rdma_device_plugin_registered` | `resource` | 1: kubelet knows it |
//! | `rdma_device_plugin_allocate_seconds` | `resource`, `outcome` | histogram: how long Allocate took |
//! | `rdma_device_plugin_list_updates_total` | `resource` | device lists sent to kubelet |
//! | `rdma_device_plugin_reloads_total` | `outcome` | configurations read again |
//! | `rdma_device_plugin_prepare_seconds` | `outcome` | histogram: how long a claim took to be prepared |
//! | `rdma_device_plugin_claims` | `resource` | claims that are prepared |
//! | `rdma_device_plugin_slices_kept` | | 1: the node's ResourceSlices are as they are to be; nothing where no resource is served by claims |
//! | `rdma_device_plugin_refused_pods_total` | `resource`, `outcome` (`deleted`, `kept`, `failed`) | pods whose containers may not start |
//! | `rdma_device_plugin_capacity` | `resource` | ids advertised |
//! | `rdma_device_plugin_healthy` | `resource` | of these, healthy |
//! | `rdma_device_plugin_allocated` | `resource` | of these, kubelet has given to containers |
//! | `rdma_device_plugin_chained` | | 1: the runtime would call `rdma-cni`; nothing where the chain is not kept |
//! | `rdma_device_plugin_nic_without_ipv6` | `device`, `netdev` | 1: pods' IPv6 addresses are to come from this NIC, and it has none |
//! | `rdma_device_plugin_scrape_complete` | `part` (`holders`, `counters`) | 0: kubelet, or a device, did not answer in time; what hangs on it is missing |
//! | `rdma_device_info` | `device`, `address`, `driver`, `numa_node` | 1 |
//! | `rdma_device_healthy` | `device` | 1: as kubelet is told |
//! | `rdma_device_holder` | `device`, `resource`, `pod`, `namespace`, `container` | 1: the container was given the device |
//! | `rdma_device_counters_known` | `device` | 0: its counters and port states cannot be read, as it is inside a pod that the daemon may not enter |
//! | `rdma_port_state` | `device`, `port` | 1 down, 2 init, 3 armed, 4 active |
//! | `rdma_port_<counter>_total` | `device`, `port` (`pod`, `namespace`, `container`) | of `ports/N/counters`; data in bytes |
//! | `rdma_erdma_nic` | `device`, `netdev`, `outcome` | 1: what became of an eRDMA NIC |
//! | `rdma_erdma_driver_mode` | `mode`, `which` (`loaded`, `wanted`) | 1 |
//! | `rdma_erdma_driver_problem` | `problem` | 1: why the driver is not as it is to be |
//! | `rdma_pod_smcr` | `namespace`, `pod`, `state`, `reason` | 1: a pod that was to have SMC-R |
//! | `rdma_hw_<counter>_total` | `device`, `port` (`pod`, `namespace`, `container`) | of `ports/N/hw_counters`, or without `_total` for what is no count |
//!
//! A device that one container has for itself carries that container's labels on its counters. A
//! shared one does not, as its counters are nobody's alone:
//! `sum by (device) (rate(rdma_port_xmit_data_bytes_total[1m])) * on (device) group_right
//! rdma_device_holder` shows them beside each holder. There are as many series as there are ports, counters and holders now;
//! those of a device or a pod that is gone are gone too.

mod collect;
pub(crate) mod counters;
mod erdma;
mod health;
mod holders;
mod page;
mod pod_list;
mod scrape;
mod server;
mod text;

pub use collect::{Sources, View};
pub(crate) use holders::held;
pub use server::{Server, serve, serve_probes, serve_when_free};

use crate::history::History;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// `resource`, `outcome`…
type Labels = Vec<(&'static str, String)>;

type Latency = Family<Labels, Histogram, fn() -> Histogram>;

/// Bounds of the buckets of Allocate's latency, seconds: it takes below a millisecond, or waits
/// for a disk.
const LATENCIES: [f64; 10] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0,
];

/// The same of a claim, for which the API server is asked, and devices are waited for.
const PREPARATIONS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 25.0];

/// The daemon's own figures; a clone counts the same.
#[derive(Clone)]
pub struct Metrics(Arc<Figures>);

struct Figures {
    registry: Registry,
    registrations: Family<Labels, Counter>,
    registered: Family<Labels, Gauge>,
    allocations: Latency,
    preparations: Latency,
    slices: Family<Labels, Gauge>,
    lists: Family<Labels, Counter>,
    reloads: Family<Labels, Counter>,
    refused_pods: Family<Labels, Counter>,
    registrations_now: Mutex<BTreeMap<String, Registered>>,
    driver: Mutex<Option<Driver>>,
    since: Instant,
    history: History,
}

/// Whether kubelet knows a resource, and since when that is so.
#[derive(Clone, Copy, Debug)]
struct Registered {
    yes: bool,
    since: Instant,
    /// Its list went out.
    listed: bool,
    /// Another daemon that has it as well may end.
    settled: bool,
}

/// Whether kubelet knows a DRA driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It has not said so.
    NotYet,
    /// It has said so.
    Yes,
    /// It does not want it, and why.
    Refused(String),
}

/// The DRA driver of this daemon.
#[derive(Debug)]
struct Driver {
    name: String,
    known: Known,
}

impl Registered {
    fn new(yes: bool, since: Instant) -> Self {
        Self {
            yes,
            since,
            listed: false,
            settled: false,
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("rdma_device_plugin");
        let registrations = Family::default();
        registry.register(
            "registrations",
            "Attempts to register a resource with kubelet",
            registrations.clone(),
        );
        let registered = Family::default();
        registry.register(
            "registered",
            "Whether kubelet knows the resource",
            registered.clone(),
        );
        let allocations = Latency::new_with_constructor(|| Histogram::new(LATENCIES));
        registry.register(
            "allocate_seconds",
            "How long Allocate took",
            allocations.clone(),
        );
        let preparations = Latency::new_with_constructor(|| Histogram::new(PREPARATIONS));
        registry.register(
            "prepare_seconds",
            "How long a claim took to be prepared",
            preparations.clone(),
        );
        let slices = Family::default();
        registry.register(
            "slices_kept",
            "Whether the node's ResourceSlices are as they are to be",
            slices.clone(),
        );
        let lists = Family::default();
        registry.register(
            "list_updates",
            "Device lists sent to kubelet",
            lists.clone(),
        );
        let reloads = Family::default();
        registry.register("reloads", "Configurations read again", reloads.clone());
        let refused_pods = Family::default();
        registry.register(
            "refused_pods",
            "What became of pods whose containers may not start",
            refused_pods.clone(),
        );
        Self(Arc::new(Figures {
            registry,
            registrations,
            registered,
            allocations,
            preparations,
            slices,
            lists,
            reloads,
            refused_pods,
            registrations_now: Mutex::default(),
            driver: Mutex::default(),
            since: Instant::now(),
            history: History::default(),
        }))
    }

    /// What happened of late.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// What came of an attempt to register `resource` with kubelet.
    pub fn registered(&self, resource: &str, ok: bool) {
        let labels = [of(resource), outcome(ok)].concat();
        self.0.registrations.get_or_create(&labels).inc();
        self.is_registered(resource, ok);
    }

    /// Kubelet does not know `resource` any more: it went away, or forgot.
    pub fn forgotten(&self, resource: &str) {
        self.is_registered(resource, false);
    }

    /// `resource` is not offered any more: nothing is told of it.
    pub fn withdrawn(&self, resource: &str) {
        self.now().remove(resource);
        self.0.registered.remove(&of(resource));
        self.0.lists.remove(&of(resource));
        for ok in [true, false] {
            let labels = [of(resource), outcome(ok)].concat();
            self.0.registrations.remove(&labels);
            self.0.allocations.remove(&labels);
        }
    }

    /// An Allocate of `resource` was answered.
    pub fn allocated(&self, resource: &str, took: Duration, ok: bool) {
        let labels = [of(resource), outcome(ok)].concat();
        let latency = self.0.allocations.get_or_create(&labels);
        latency.observe(took.as_secs_f64());
    }

    /// A claim was prepared, or not.
    pub fn prepared(&self, took: Duration, ok: bool) {
        let latency = self.0.preparations.get_or_create(&outcome(ok));
        latency.observe(took.as_secs_f64());
    }

    /// Whether the API server has the node's ResourceSlices as they are to be; none: this daemon does not keep them.
    pub fn slices(&self, kept: Option<bool>) {
        let labels = Labels::new();
        match kept {
            Some(kept) => {
                self.0.slices.get_or_create(&labels).set(kept.into());
            }
            None => {
                self.0.slices.remove(&labels);
            }
        }
    }

    /// Whether kubelet knows the DRA driver `name` of this daemon.
    pub fn driver(&self, name: &str, known: Known) {
        let name = name.to_owned();
        *self.driver_now() = Some(Driver { name, known });
    }

    /// A device list of `resource` was sent to kubelet.
    pub fn listed(&self, resource: &str) {
        self.0.lists.get_or_create(&of(resource)).inc();
        let mut now = self.now();
        let known = now.entry(resource.to_owned());
        let known = known.or_insert(Registered::new(false, self.0.since));
        known.listed = true;
    }

    /// Kubelet has `resource` from this daemon, whatever becomes of another one.
    pub fn settled(&self, resource: &str) {
        if let Some(known) = self.now().get_mut(resource) {
            known.settled = known.yes;
        }
    }

    /// The configuration was read again; not `ok`: the old one stays.
    pub fn reloaded(&self, ok: bool) {
        self.0.reloads.get_or_create(&outcome(ok)).inc();
    }

    /// What became of a pod that was refused with `resource`: `deleted`, `kept`, or `failed` for an attempt
    /// that came to nothing.
    pub fn refused_pod(&self, resource: &str, outcome: &'static str) {
        let outcome = vec![("outcome", outcome.to_owned())];
        let labels = [of(resource), outcome].concat();
        self.0.refused_pods.get_or_create(&labels).inc();
    }

    fn is_registered(&self, resource: &str, yes: bool) {
        self.0
            .registered
            .get_or_create(&of(resource))
            .set(yes.into());
        let mut now = self.now();
        let since = Instant::now();
        let entry = now.entry(resource.to_owned());
        let known = entry.or_insert(Registered::new(yes, since));
        if !yes && known.yes {
            *known = Registered::new(false, since);
        }
        if yes && !known.yes {
            // the list may have gone out before kubelet answered
            (known.yes, known.since) = (true, since);
        }
    }

    fn now(&self) -> MutexGuard<'_, BTreeMap<String, Registered>> {
        let now = self.0.registrations_now.lock();
        now.unwrap_or_else(PoisonError::into_inner)
    }

    fn driver_now(&self) -> MutexGuard<'_, Option<Driver>> {
        let driver = self.0.driver.lock();
        driver.unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(resource: &str) -> Labels {
    vec![("resource", resource.to_owned())]
}

fn outcome(ok: bool) -> Labels {
    let outcome = if ok { "ok" } else { "error" };
    vec![("outcome", outcome.to_owned())]
}
