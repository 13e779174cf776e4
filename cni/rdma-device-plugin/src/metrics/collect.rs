// SPDX-License-Identifier: Apache-2.0
//! Collects the data of a scrape from kubelet, sysfs and the state directory. Reads from kubelet and from drivers have
//! a time limit.

use super::{
    counters::{self, PortFigures},
    holders::{Held, held},
    limited::{self, Limited},
    pod_list::{LIMIT, PodList},
};
use crate::chain::ChainStatus;
use ::dra::Claims;
use attachments::{
    Store,
    pods::{self, PodNetns, PodRails, PodSmc},
};
use daemon_conf::chain::pod_resources;
use node_state::{
    health::{nic_faults::Reports, nic_reports},
    ipv6_prerequisite::{self, Parent},
    node::Node,
};
use parking_lot::Mutex;
use rdma_netns::{Inventory, Kernel, Linux, NetnsId, linux::inside};
use rdma_ping::fabric::{RailState, Report};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::{Semaphore, oneshot};

/// Sources of the metrics of a scrape.
#[derive(Clone)]
pub struct Sources {
    /// Function that returns the node's state without waiting.
    pub view: Arc<dyn Fn() -> View + Send + Sync>,
    /// Host name of the node.
    pub node: String,
    /// State directory: `/var/lib/cni/rdma-cni`.
    pub state_dir: PathBuf,
    /// Kubelet's directory: `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Mount point of sysfs: `/sys`.
    pub sysfs: PathBuf,
}

/// State of the node and of the chain.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// State of the node.
    pub node: Arc<Node>,
    /// Status of `rdma-cni` in the chain.
    pub chain: ChainStatus,
}

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) node: Arc<Node>,
    pub(super) chain: ChainStatus,
    /// Kubelet's allocations. `None`: kubelet did not answer.
    pub(super) held: Option<Held>,
    /// Ports by name of the RDMA device. `None`: not read within the time limit.
    pub(super) ports: Option<Ports>,
    /// Reports of NICs' drivers and PCI links. `None`: not read within the time limit.
    pub(super) reports: Option<Reports>,
    pub(super) smc: Vec<PodSmc>,
    /// Use of RDMA devices by pods with limits.
    pub(super) limited: Limited,
    /// Number of prepared claims, by resource.
    pub(super) claims: BTreeMap<String, u64>,
    /// NICs that need an IPv6 address and lack one. Empty if not read within the time limit.
    pub(super) without_ipv6: Vec<Parent>,
}

type Ports = BTreeMap<String, Vec<PortFigures>>;

/// Collector of scrapes. Scrapes may run at the same time.
pub(super) struct Collector {
    pods: PodList,
    pub(super) sources: Sources,
    /// Permit for the one thread that reads counters. If this thread hangs in a driver, no further thread hangs there.
    reading: Arc<Semaphore>,
    /// Permit for the one thread that reads NICs' reports. If this thread hangs in a driver, no further thread hangs
    /// there.
    reporting: Arc<Semaphore>,
    lost: Arc<Lost>,
}

/// Namespaces of pods in which the daemon could not read the devices' counters. The daemon does not log the error of
/// such a namespace again.
type Lost = Mutex<BTreeSet<NetnsId>>;

impl Collector {
    pub(super) fn new(sources: Sources) -> Self {
        Self {
            pods: PodList::new(pod_resources(&sources.kubelet_dir)),
            sources,
            reading: Arc::new(Semaphore::new(1)),
            reporting: Arc::new(Semaphore::new(1)),
            lost: Arc::default(),
        }
    }

    pub(super) async fn collect(&self) -> Snapshot {
        let View { node, chain } = (self.sources.view)();
        let conf = node.conf.chain.as_ref();
        let parents = ipv6_prerequisite::parents(conf, &node.offers, &node.inventory);
        let lacking = ipv6_prerequisite::lacking(parents);
        let (held, ports, reports, smc, limited, claims, lacking) = tokio::join!(
            self.held(&node),
            self.ports(&node),
            self.reports(&node),
            self.records(pods::smc),
            self.limited(),
            self.claims(),
            tokio::time::timeout(LIMIT, lacking)
        );
        Snapshot {
            node,
            chain,
            held,
            ports,
            reports,
            smc,
            limited,
            claims,
            without_ipv6: lacking.unwrap_or_default(),
        }
    }

    pub(super) async fn rails(&self) -> Vec<PodRails> {
        self.records(pods::rails).await
    }

    /// Returns the rails of the fabric watch, for the page. Returns no rails without a readable report of a watch.
    pub(super) async fn fabric(&self) -> Vec<RailState> {
        let state_dir = self.sources.state_dir.clone();
        // ignore a report that cannot be read: the health task logs it
        let read = move || Report::read(&state_dir).unwrap_or_default().rails;
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    async fn records<T: Send + 'static>(&self, read: fn(&Store, &str) -> Vec<T>) -> Vec<T> {
        let store = Store::new(&self.sources.state_dir);
        let read = tokio::task::spawn_blocking(move || {
            let boot_id = Linux::new().boot_id().unwrap_or_default();
            read(&store, &boot_id)
        });
        read.await.unwrap_or_default()
    }

    async fn limited(&self) -> Limited {
        let Sources {
            state_dir, sysfs, ..
        } = self.sources.clone();
        let read = move || limited::read(&state_dir, &sysfs.join("fs/cgroup"));
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    async fn claims(&self) -> BTreeMap<String, u64> {
        let claims = Claims::new(&self.sources.state_dir);
        let records = tokio::task::spawn_blocking(move || claims.all()).await;
        let mut counts = BTreeMap::new();
        for record in records.unwrap_or_default().0 {
            let resources = record.devices.into_iter().map(|it| it.resource);
            for resource in resources.collect::<BTreeSet<_>>() {
                *counts.entry(resource).or_default() += 1;
            }
        }
        counts
    }

    async fn held(&self, node: &Arc<Node>) -> Option<Held> {
        let pods = self.pods.get().await?;
        let (state_dir, node) = (self.sources.state_dir.clone(), node.clone());
        let read = tokio::task::spawn_blocking(move || {
            let offers = node.advertised().map(|it| (it.name.as_str(), Some(it)));
            held(&pods, offers, &state_dir)
        });
        read.await.ok()
    }

    async fn ports(&self, node: &Node) -> Option<Ports> {
        let (inventory, sources) = (node.inventory.clone(), self.sources.clone());
        let lost = self.lost.clone();
        let read = move || read(&inventory, &sources, &lost);
        in_time(&self.reading, "counters", read).await
    }

    async fn reports(&self, node: &Node) -> Option<Reports> {
        let (inventory, sysfs) = (node.inventory.clone(), self.sources.sysfs.clone());
        let read = move || nic_reports::read(&sysfs, &nic_reports::addresses(&inventory));
        in_time(&self.reporting, "reports", read).await
    }
}

/// Runs `read` on a new thread with the name `name`, after earlier threads with a permit of `turns` have ended. Returns
/// `None` if there is no result within the time limit.
async fn in_time<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    name: &str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let read = async {
        let turn = turns.clone().acquire_owned().await.ok()?;
        let (answer, answered) = oneshot::channel();
        // use no thread of the tokio runtime: its shutdown would wait for a thread that hangs in a driver
        let reader = std::thread::Builder::new().name(name.into());
        let started = reader.spawn(move || {
            // ignore the error: the receiver may be dropped
            let _ = answer.send(read());
            drop(turn);
        });
        match started {
            Ok(_) => answered.await.ok(),
            Err(error) => {
                log::warn!("cannot read {name}: {error}");
                None
            }
        }
    };
    tokio::time::timeout(LIMIT, read).await.ok().flatten()
}

/// Reads the counters of the RDMA devices. If a device is absent from `sysfs`, reads its counters in its pod's
/// namespace.
fn read(inventory: &Inventory, sources: &Sources, lost: &Lost) -> Ports {
    let sysfs = &*sources.sysfs;
    let mut ports = Ports::new();
    let mut elsewhere = Vec::new();
    for function in &inventory.functions {
        for hca in &function.hcas {
            let figures = counters::read(sysfs, &hca.name);
            if figures.is_empty() {
                elsewhere.push((&function.device.address, &hca.name));
            } else {
                ports.insert(hca.name.clone(), figures);
            }
        }
    }
    if elsewhere.is_empty() {
        return ports;
    }
    let boot_id = Linux::new().boot_id().unwrap_or_default();
    let placed = pods::read(&Store::new(&sources.state_dir), &boot_id);
    let mut pods: BTreeMap<NetnsId, (&PodNetns, Vec<&String>)> = BTreeMap::new();
    for (address, name) in elsewhere {
        if let Some(placed) = placed.iter().find(|it| it.address == *address) {
            let (_, names) = pods.entry(placed.pod.id).or_insert((&placed.pod, vec![]));
            names.push(name);
        }
    }
    let mut lost = lost.lock();
    lost.retain(|id| pods.contains_key(id));
    for (pod, names) in pods.into_values() {
        let read = |sysfs: &Path| -> Ports {
            let names = names.into_iter();
            names
                .map(|name| (name.clone(), counters::read(sysfs, name)))
                .collect()
        };
        match inside::with_sysfs(&pod.netns, pod.id, sysfs, read) {
            Ok(figures) => {
                lost.remove(&pod.id);
                ports.extend(figures);
            }
            // the pod has ended, but `rdma-cni` has not removed its record yet
            Err(error) if error.is_gone() => {}
            // log at the level debug: the daemon warned at its start, and `rdma_device_counters_known` shows the pod's
            // devices
            Err(error) if error.lacks_capability() => log::debug!("{error}"),
            Err(error) => {
                if lost.insert(pod.id) {
                    log::warn!(
                        "cannot read the counters of the devices in pod {}: {error}",
                        pod.name
                    );
                }
            }
        }
    }
    ports
}
