// SPDX-License-Identifier: Apache-2.0
//! Metrics of the daemon and of the node's RDMA devices for Prometheus (`/metrics`), the daemon's health (`/healthz`),
//! and its readiness (`/readyz`, [`Probes::ready`](crate::probes::Probes::ready)). The page (`/`, `page`) shows the
//! node to operators.
//!
//! | metric | labels | |
//! |---|---|---|
//! | `rdma_device_plugin_registrations_total` | `resource`, `outcome` (`ok`, `error`) | attempts to register with kubelet |
//! | `rdma_device_plugin_registered` | `resource` | 1: kubelet has registered the resource |
//! | `rdma_device_plugin_allocate_seconds` | `resource`, `outcome` | histogram: duration of Allocate |
//! | `rdma_device_plugin_list_updates_total` | `resource` | device lists sent to kubelet |
//! | `rdma_device_plugin_reloads_total` | `outcome` | configurations read again |
//! | `rdma_device_plugin_prepare_seconds` | `outcome` | histogram: duration of preparing a claim |
//! | `rdma_device_plugin_claims` | `resource` | prepared claims |
//! | `rdma_device_plugin_slices_kept` | | 1: the node's ResourceSlices are up to date; absent without claims |
//! | `rdma_device_plugin_refused_pods_total` | `resource`, `outcome` (`deleted`, `kept`, `failed`) | pods whose containers must not start |
//! | `rdma_device_plugin_capacity` | `resource` | ids advertised |
//! | `rdma_device_plugin_healthy` | `resource` | healthy ids |
//! | `rdma_device_plugin_allocated` | `resource` | ids that kubelet has allocated to containers |
//! | `rdma_device_plugin_devices_expected`, `…_present` | `resource` | devices that the resource should have; usable devices |
//! | `rdma_device_plugin_chained` | | 1: the runtime would call `rdma-cni`; absent if the daemon does not manage the chain |
//! | `rdma_device_plugin_nic_without_ipv6` | `device`, `netdev` | 1: the NIC lacks the IPv6 address for pods' addresses |
//! | `rdma_device_plugin_scrape_complete` | `part` (`holders`, `counters`, `reports`) | 0: kubelet or a device did not answer in time |
//! | `rdma_device_info` | `device`, `address`, `driver`, `numa_node` | 1 |
//! | `rdma_device_switch_info` | `device`, `netdev`, `switch`, `switch_port` | 1; absent without `lldp` |
//! | `rdma_device_healthy` | `device` | 1: the daemon considers the device healthy |
//! | `rdma_device_holder` | `device`, `resource`, `pod`, `namespace`, `container` | 1: the container has the device |
//! | `rdma_device_counters_known` | `device` | 0: unreadable, such as in a pod that the daemon may not enter |
//! | `rdma_port_state` | `device`, `port` | 1 down, 2 init, 3 armed, 4 active |
//! | `rdma_port_<counter>_total` | `device`, `port` (`pod`, `namespace`, `container`) | the port's counters in `ports/N/counters`; data in bytes |
//! | `rdma_nic_reporter_error` | `device`, `reporter` | 1: devlink's health reporter is in the state `error` |
//! | `rdma_nic_reporter_errors_total`, `rdma_nic_reporter_recoveries_total` | `device`, `reporter` | errors, recoveries |
//! | `rdma_nic_pci_errors_total` | `device`, `kind` (`correctable`, `nonfatal`, `fatal`) | PCI errors by AER |
//! | `rdma_erdma_nic` | `device`, `netdev`, `outcome` | 1: outcome of bringing up an eRDMA NIC |
//! | `rdma_erdma_driver_mode` | `mode`, `which` (`loaded`, `wanted`) | 1: this mode is loaded, or required |
//! | `rdma_erdma_driver_problem` | `problem` | 1: problem of the driver's mode, or of its binding to functions |
//! | `rdma_pod_smcr` | `namespace`, `pod`, `state`, `reason` | 1: a pod that requests SMC-R |
//! | `rdma_pod_handles`, `rdma_pod_objects`, `…_limit` | `device`, `pod`, `namespace` | use of a device by a pod with `limits`, and the limit |
//! | `rdma_pod_limits_left` | `pod`, `namespace` | 1: the pod's cgroup or its rdma controller is gone, and the kernel still keeps the limits |
//! | `rdma_hw_<counter>_total` | `device`, `port` (`pod`, `namespace`, `container`) | the driver's counters in `ports/N/hw_counters`; without `_total` for a present value or a maximum |
//!
//! The fabric watch has separate metrics (`fabric`) with the label `device`:
//!
//! - `rdma_fabric_requests_total`, which also has the label `result` (`answered`, `lost`)
//! - the histogram `rdma_fabric_answer_seconds`
//! - `rdma_fabric_unreachable` and `rdma_fabric_peers`
//! - `rdma_fabric_not_asked`, which also has the label `reason`
//!
//! If only one container has an exclusive device, the device's counters also have the labels of this container. The
//! following query shows a device's whole send rate for each container that has the device: `sum by (instance,
//! device) (rate(rdma_port_xmit_data_bytes_total[1m])) * on (instance, device) group_right rdma_device_holder`.
//!
//! The series of a port, counter or holder ends when its device or pod disappears.

mod collect;
pub(crate) mod counters;
mod erdma;
mod fabric;
mod health;
mod holders;
mod limited;
mod nics;
mod page;
mod pod_list;
mod scrape;
mod server;
mod text;

pub use collect::{Sources, View};
pub use fabric::Fabric;
pub(crate) use fabric::event_timeout;
pub(crate) use holders::held;
pub use server::{serve, serve_fabric, serve_probes, serve_when_free};

use crate::history::History;
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Labels such as `resource` and `outcome`.
type Labels = Vec<(&'static str, String)>;

type Latency = Family<Labels, Histogram, fn() -> Histogram>;

/// Upper bounds of the buckets for the duration of Allocate, in seconds. Allocate usually takes less than a
/// millisecond, and longer if it waits for a disk.
const LATENCIES: [f64; 10] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0,
];

/// Upper bounds of the buckets for the duration of preparing a claim, in seconds. Prepare queries the API server, and
/// may wait for devices.
const PREPARATIONS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 25.0];

/// The daemon's own metrics. Clones share the values.
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

/// Registration of a resource with kubelet, and the time since which the present state is unchanged.
#[derive(Clone, Copy, Debug)]
struct Registered {
    yes: bool,
    since: Instant,
    /// True if the daemon has sent the resource's device list to kubelet.
    listed: bool,
    /// True if kubelet keeps this daemon's registration when another daemon with the same resource ends.
    settled: bool,
}

/// Registration of a DRA driver with kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Kubelet has not confirmed the registration.
    NotYet,
    /// Kubelet has confirmed the registration.
    Yes,
    /// Kubelet refuses the registration, for this reason.
    Refused(String),
}

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
    /// Returns the metrics of a daemon that has just started.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("rdma_device_plugin");
        let all = &mut registry;
        let help = "Attempts to register a resource with kubelet";
        let registrations = added(all, "registrations", help, Family::default());
        let help = "1 if kubelet has registered the resource";
        let registered = added(all, "registered", help, Family::default());
        let times = Latency::new_with_constructor(|| Histogram::new(LATENCIES));
        let allocations = added(all, "allocate_seconds", "Duration of Allocate", times);
        let times = Latency::new_with_constructor(|| Histogram::new(PREPARATIONS));
        let help = "Duration of preparing a claim";
        let preparations = added(all, "prepare_seconds", help, times);
        let help = "1 if the node's ResourceSlices are up to date";
        let slices = added(all, "slices_kept", help, Family::default());
        let help = "Device lists sent to kubelet";
        let lists = added(all, "list_updates", help, Family::default());
        let help = "Configurations read again";
        let reloads = added(all, "reloads", help, Family::default());
        let help = "Refused pods that the daemon deleted, kept or failed to delete";
        let refused_pods = added(all, "refused_pods", help, Family::default());
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

    /// Returns the history of recent events.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Counts an attempt to register `resource` with kubelet.
    pub fn registered(&self, resource: &str, ok: bool) {
        let labels = [of(resource), outcome(ok)].concat();
        self.0.registrations.get_or_create(&labels).inc();
        self.is_registered(resource, ok);
    }

    /// Records that this daemon's registration of `resource` is no longer in effect.
    pub fn forgotten(&self, resource: &str) {
        self.is_registered(resource, false);
    }

    /// Removes the metrics of `resource`, which is no longer offered.
    pub fn withdrawn(&self, resource: &str) {
        self.0.registrations_now.lock().remove(resource);
        self.0.registered.remove(&of(resource));
        self.0.lists.remove(&of(resource));
        for ok in [true, false] {
            let labels = [of(resource), outcome(ok)].concat();
            self.0.registrations.remove(&labels);
            self.0.allocations.remove(&labels);
        }
    }

    /// Counts a call of Allocate for `resource`.
    pub fn allocated(&self, resource: &str, took: Duration, ok: bool) {
        let labels = [of(resource), outcome(ok)].concat();
        let latency = self.0.allocations.get_or_create(&labels);
        latency.observe(took.as_secs_f64());
    }

    /// Counts the preparation of a claim.
    pub fn prepared(&self, took: Duration, ok: bool) {
        let latency = self.0.preparations.get_or_create(&outcome(ok));
        latency.observe(took.as_secs_f64());
    }

    /// Records whether the ResourceSlices of the node in the API server are up to date. `None`: this daemon does not
    /// write ResourceSlices.
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

    /// Records the registration of this daemon's DRA driver `name`.
    pub fn driver(&self, name: &str, known: Known) {
        let name = name.to_owned();
        *self.0.driver.lock() = Some(Driver { name, known });
    }

    /// Counts a device list of `resource` that was sent to kubelet.
    pub fn listed(&self, resource: &str) {
        self.0.lists.get_or_create(&of(resource)).inc();
        let mut now = self.0.registrations_now.lock();
        let known = now.entry(resource.to_owned());
        let known = known.or_insert(Registered::new(false, self.0.since));
        known.listed = true;
    }

    /// Records that kubelet keeps this daemon's `resource` when another daemon ends.
    pub fn settled(&self, resource: &str) {
        if let Some(known) = self.0.registrations_now.lock().get_mut(resource) {
            known.settled = known.yes;
        }
    }

    /// Counts a reload of the configuration. `ok` is false if the daemon keeps the old configuration.
    pub fn reloaded(&self, ok: bool) {
        self.0.reloads.get_or_create(&outcome(ok)).inc();
    }

    /// Counts the outcome for a pod whose container must not start because of `resource`: `deleted`, `kept`, or
    /// `failed` if a deletion failed.
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
        let mut now = self.0.registrations_now.lock();
        let since = Instant::now();
        let entry = now.entry(resource.to_owned());
        let known = entry.or_insert(Registered::new(yes, since));
        if !yes && known.yes {
            *known = Registered::new(false, since);
        }
        if yes && !known.yes {
            // keep `listed`: the daemon may have sent the list before kubelet answered the registration
            (known.yes, known.since) = (true, since);
        }
    }
}

/// Registers `metric`, and returns it.
fn added<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn of(resource: &str) -> Labels {
    vec![("resource", resource.to_owned())]
}

fn outcome(ok: bool) -> Labels {
    let outcome = if ok { "ok" } else { "error" };
    vec![("outcome", outcome.to_owned())]
}
