// SPDX-License-Identifier: Apache-2.0
//! What a scrape finds: asked of kubelet and read from sysfs at that time, and each for a bounded
//! time.

use super::{
    counters::{self, PortFigures},
    holders::{Held, held},
    pod_list::PodList,
};
use crate::{
    chain::ChainStatus,
    erdma::Side,
    ipv6_prerequisite::{self, Parent},
    node::Node,
    notices::notices,
    offer::{Gone, Offer, Unhealthy},
};
use ::dra::Claims;
use attachments::{
    Store,
    pods::{self, PodNetns, PodRails, PodSmc},
};
use rdma_netns::{Inventory, Kernel, Linux, NetnsId, linux::inside};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{Semaphore, oneshot};

/// For kubelet's answer, and for all counters; Prometheus waits 10 s.
const LIMIT: Duration = Duration::from_secs(2);

/// Where the figures are from.
#[derive(Clone)]
pub struct Sources {
    /// The node as it is now; not waited for.
    pub view: Arc<dyn Fn() -> View + Send + Sync>,
    /// The node's name.
    pub node: String,
    /// `/var/lib/cni/rdma-cni`
    pub state_dir: PathBuf,
    /// `/var/lib/kubelet`
    pub kubelet_dir: PathBuf,
    /// `/sys`
    pub sysfs: PathBuf,
}

/// The node, as far as figures go.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// What is advertised.
    pub offers: Vec<Offer>,
    /// Devices that resources had, and the node has no more, by the resources' names.
    pub gone: BTreeMap<String, Vec<Gone>>,
    /// The hardware.
    pub inventory: Arc<Inventory>,
    /// What of it is not healthy.
    pub unhealthy: Unhealthy,
    /// The eRDMA NICs.
    pub erdma: Side,
    /// Our plugin's place in the chain.
    pub chain: ChainStatus,
    /// The NICs that are to have an IPv6 address.
    pub parents: Vec<Parent>,
    /// Warnings that do not keep the daemon from being ready.
    pub notices: Vec<String>,
}

impl From<&Node> for View {
    fn from(node: &Node) -> Self {
        Self {
            offers: node.advertised().cloned().collect(),
            gone: advertised_gone(node),
            inventory: node.inventory.clone(),
            unhealthy: node.unhealthy.clone(),
            erdma: node.erdma.clone(),
            chain: ChainStatus::default(),
            parents: ipv6_prerequisite::parents(
                node.conf.chain.as_ref(),
                &node.offers,
                &node.inventory,
            ),
            notices: notices(&node.conf, &node.offers, &node.inventory),
        }
    }
}

/// What went of the resources that device plugins serve.
fn advertised_gone(node: &Node) -> BTreeMap<String, Vec<Gone>> {
    let dra = node.conf.dra.as_ref();
    let by_claims = |name: &String| dra.is_some_and(|dra| dra.serves(name));
    let gone = node.gone.iter().filter(|(name, _)| !by_claims(name));
    gone.map(|(name, gone)| (name.clone(), gone.clone()))
        .collect()
}

/// What a scrape found.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) node: View,
    /// None: kubelet did not say.
    pub(super) held: Option<Held>,
    /// By the RDMA device's name; none: not all could be read in time.
    pub(super) ports: Option<Ports>,
    /// Pods that were to have SMC-R.
    pub(super) smc: Vec<PodSmc>,
    /// Claims that are prepared, by resource.
    pub(super) claims: BTreeMap<String, u64>,
    /// NICs without an IPv6 address that are to have one.
    pub(super) without_ipv6: Vec<Parent>,
}

type Ports = BTreeMap<String, Vec<PortFigures>>;

/// Collects, for any number of scrapes at once.
pub(super) struct Collector {
    pods: PodList,
    sources: Sources,
    /// One reader of counters at a time: one that hangs in a driver must not be joined by others.
    reading: Arc<Semaphore>,
    lost: Arc<Lost>,
}

/// The pods whose devices' counters cannot be read, which is told once of each.
type Lost = Mutex<BTreeSet<NetnsId>>;

impl Collector {
    pub(super) fn new(sources: Sources) -> Self {
        let socket = sources.kubelet_dir.join("pod-resources/kubelet.sock");
        Self {
            pods: PodList::new(socket, LIMIT),
            sources,
            reading: Arc::new(Semaphore::new(1)),
            lost: Arc::default(),
        }
    }

    pub(super) async fn collect(&self) -> Snapshot {
        let node = (self.sources.view)();
        let lacking = ipv6_prerequisite::lacking(node.parents.clone());
        let (held, ports, smc, claims, lacking) = tokio::join!(
            self.held(&node),
            self.ports(&node),
            self.smc(),
            self.claims(),
            tokio::time::timeout(LIMIT, lacking)
        );
        Snapshot {
            node,
            held,
            ports,
            smc,
            claims,
            without_ipv6: lacking.unwrap_or_default(),
        }
    }

    /// The node's name.
    pub(super) fn node(&self) -> &str {
        &self.sources.node
    }

    /// The rails of the pods, which only the page shows.
    pub(super) async fn rails(&self) -> Vec<PodRails> {
        self.records(pods::rails).await
    }

    async fn smc(&self) -> Vec<PodSmc> {
        self.records(pods::smc).await
    }

    async fn records<T: Send + 'static>(&self, read: fn(&Store, &str) -> Vec<T>) -> Vec<T> {
        let store = Store::new(&self.sources.state_dir);
        let aside = tokio::task::spawn_blocking(move || {
            let boot_id = Linux::new().boot_id().unwrap_or_default();
            read(&store, &boot_id)
        });
        aside.await.unwrap_or_default()
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

    async fn held(&self, node: &View) -> Option<Held> {
        let pods = self.pods.get().await?;
        let (state_dir, offers) = (self.sources.state_dir.clone(), node.offers.clone());
        let aside = tokio::task::spawn_blocking(move || {
            let offers = offers.iter().map(|it| (it.name.as_str(), Some(it)));
            held(&pods, offers, &state_dir)
        });
        aside.await.ok()
    }

    async fn ports(&self, node: &View) -> Option<Ports> {
        let read = async {
            let turn = self.reading.clone().acquire_owned().await.ok()?;
            let (answer, ports) = oneshot::channel();
            let (inventory, sources) = (node.inventory.clone(), self.sources.clone());
            let lost = self.lost.clone();
            // not one of the runtime's threads: its end must not wait for one that hangs
            let reader = std::thread::Builder::new().name("counters".into());
            let started = reader.spawn(move || {
                // nobody may be waiting any more
                let _ = answer.send(read(&inventory, &sources, &lost));
                drop(turn);
            });
            match started {
                Ok(_) => ports.await.ok(),
                Err(error) => {
                    log::warn!("counters cannot be read: {error}");
                    None
                }
            }
        };
        tokio::time::timeout(LIMIT, read).await.ok().flatten()
    }
}

/// The counters of all RDMA devices: those of devices that are a pod's alone are read where the
/// pod is.
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
    let mut pods: Vec<(&PodNetns, Vec<&String>)> = Vec::new();
    for (address, name) in elsewhere {
        let Some(placed) = placed.iter().find(|it| it.address == *address) else {
            continue;
        };
        match pods.iter_mut().find(|(pod, _)| pod.id == placed.pod.id) {
            Some((_, names)) => names.push(name),
            None => pods.push((&placed.pod, vec![name])),
        }
    }
    let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
    lost.retain(|id| pods.iter().any(|(pod, _)| pod.id == *id));
    for (pod, names) in pods {
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
            // the chain has not heard yet that the pod is gone
            Err(error) if error.is_gone() => {}
            // told once at the start, and by the figures
            Err(error) if error.lacks_capability() => log::debug!("{error}"),
            Err(error) => {
                if lost.insert(pod.id) {
                    log::warn!("no counters of the devices in pod {}: {error}", pod.name);
                }
            }
        }
    }
    ports
}
