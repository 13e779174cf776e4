// SPDX-License-Identifier: Apache-2.0
//! What a claim is prepared with. Nothing moves: the claim's devices are looked up, and recorded before kubelet
//! hears of them.

use super::pool;
use crate::{
    api::{Api, ApiError},
    hardware::Hardware,
    kubelet::chain_check,
    node::Node,
    offer::Offer,
};
use ::dra::{
    Claim, ClaimError, ClaimName, Claims, Prepared, Record,
    claim::{AllocationResult, PodReference},
    pool::PoolDevice,
    record::{FORMAT, Request, present},
    slices::API,
    store::{Removed, Unreadable},
};
use kubernetes_api::Method;
use network_conf::Mode;
use rdma_netns::{Inventory, Kernel, Linux};
use rdma_resources::{FileError, Sharing, grant::GrantedDevice};
use serde_json::Value;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

/// Kubelet gives a call 45 s, and comes again after more than a minute: so a device that is just coming is waited
/// for here, by all of a call's claims together.
pub(super) const PATIENCE: Duration = Duration::from_secs(25);

/// Why parameters other than `rails` cannot be had.
const NOT_ATTACHED: &str = "its parameters say how a pod is attached, and rdma-cni attaches none here: it has \
                            hostNetwork, or the chain of this node does not attach the resource; take out all but rails";

/// Why `mode` cannot be `move`.
const OTHERS_HAVE_IT: &str = "its class says mode move, which would take the NIC from other pods that have it: use the \
                              class for a resource of exclusive NICs";

/// Why there can be no `vf`.
const NO_FUNCTIONS: &str = "its class says vf, how virtual functions are set up, and its devices are shared, of which pods \
                            get children: use the class for a resource of exclusive virtual functions";

/// Why a claim with `adminAccess` on exclusive devices is for pods with `hostNetwork`.
const ADMINS: &str = "it asks for adminAccess, and rdma-cni would take the devices into its pod's network, away from the \
                      pods that they are allocated to: give the pod hostNetwork";

/// The hardware is looked at so often meanwhile.
const LOOKS: Duration = Duration::from_secs(1);

/// Prepares claims.
#[derive(Debug)]
pub struct Preparer {
    /// The driver's name.
    pub driver: String,
    /// Where the token is.
    pub account: PathBuf,
    /// The state directory of `rdma-cni`.
    pub state_dir: PathBuf,
    /// Where the runtime looks for CDI specifications.
    pub cdi_dir: PathBuf,
    /// What is known of the node.
    pub node: watch::Receiver<Arc<Node>>,
    /// The hardware.
    pub hardware: Hardware,
}

/// A claim is not prepared, or not given up.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// An id that is no id.
    #[error("claim {0} has no usable uid")]
    Uid(ClaimName),
    /// The API server.
    #[error("what claim {claim} was allocated is not known: {source}")]
    Api {
        /// The claim.
        claim: ClaimName,
        /// Why.
        source: Box<ApiError>,
    },
    /// Nothing to prepare.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// Its devices are not there.
    #[error("claim {claim} cannot be prepared: {why}")]
    Devices {
        /// The claim.
        claim: ClaimName,
        /// What is missing.
        why: String,
    },
    /// The record.
    #[error("what claim {claim} is given cannot be recorded: {source}")]
    Record {
        /// The claim.
        claim: ClaimName,
        /// Why.
        source: FileError,
    },
    /// The kernel, or this program.
    #[error("claim {claim} cannot be prepared: {problem}")]
    System {
        /// The claim.
        claim: ClaimName,
        /// What went wrong.
        problem: String,
    },
}

impl Preparer {
    pub(super) fn driver(&self) -> &str {
        &self.driver
    }

    /// Prepares `claim`; one that is prepared stays as it is. Devices that are not there are waited for until `end`.
    pub(super) async fn prepare(
        &self,
        claim: &ClaimName,
        end: Instant,
    ) -> Result<Record, PrepareError> {
        if !claim.has_plain_uid() {
            return Err(PrepareError::Uid(claim.clone()));
        }
        if let Some(record) = self.again(claim, end).await? {
            return Ok(record);
        }
        let failed = |source: ApiError| PrepareError::Api {
            claim: claim.clone(),
            source: Box::new(source),
        };
        let api = Api::new(&self.account).map_err(failed)?;
        let ClaimName {
            namespace, name, ..
        } = claim;
        let path = format!("{API}/namespaces/{namespace}/resourceclaims/{name}");
        let object = api.client.ask(Method::GET, &path, None).await;
        let object = object.map_err(|error| failed(error.into()))?;
        let allocated = Claim::read(&object, claim, &self.driver, &api.node)?;
        let (devices, requests) = self.devices(claim, &allocated, end).await?;
        let awaits_network = match self.are_attached(&devices).await {
            true => {
                let pods = has_own_network(&api, claim, &allocated.pods).await;
                pods.map_err(failed)?
            }
            false => false,
        };
        // the same of all
        let parameters = allocated.results[0].parameters.attachment.clone();
        let is_shared = devices.iter().any(|it| it.sharing == Sharing::Shared);
        let moves = awaits_network && devices.iter().any(|it| it.sharing == Sharing::Exclusive);
        let problem = if moves && allocated.results.iter().any(|it| it.is_admins) {
            Some(ADMINS)
        } else if !awaits_network && !parameters.is_empty() {
            Some(NOT_ATTACHED)
        } else if is_shared && parameters.mode == Some(Mode::Move) {
            Some(OTHERS_HAVE_IT)
        } else if is_shared && !parameters.vf.is_empty() {
            Some(NO_FUNCTIONS)
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(PrepareError::Devices {
                claim: claim.clone(),
                why: problem.to_owned(),
            });
        }
        let record = Record {
            format: FORMAT,
            driver: self.driver.clone(),
            claim: claim.clone(),
            boot_id: boot_id(claim)?,
            cdi_dir: self.cdi_dir.clone(),
            pods: allocated.pods.into_iter().map(|pod| pod.uid).collect(),
            awaits_network,
            networks: Default::default(),
            rails: Default::default(),
            absent: Default::default(),
            parameters,
            devices,
            requests,
        };
        let written = record.clone();
        self.aside(claim, move |claims| claims.prepare(&written))
            .await?;
        log::info!("claim {claim} is prepared: {}", in_words(&record));
        Ok(record)
    }

    /// Gives `claim` up.
    pub(super) async fn unprepare(&self, claim: &ClaimName) -> Result<(), PrepareError> {
        if !claim.has_plain_uid() {
            return Err(PrepareError::Uid(claim.clone()));
        }
        let (uid, cdi_dir) = (claim.uid.clone(), self.cdi_dir.clone());
        let remove = move |claims: &Claims| claims.remove(&uid, &cdi_dir);
        match self.aside(claim, remove).await? {
            Removed::Nothing => {}
            Removed::Record => log::info!("claim {claim} is given up"),
            Removed::Aside(Unreadable { file, why }) => log::error!(
                "claim {claim} is given up without its record: {why}; the record is kept as {file:?}: look whether all \
                 devices are on the host, and remove the file"
            ),
        }
        Ok(())
    }

    /// The record of a claim that was prepared already. In another boot devices have other numbers: those that no
    /// network corrects are waited for until `end`.
    async fn again(&self, claim: &ClaimName, end: Instant) -> Result<Option<Record>, PrepareError> {
        let mut node = self.node.clone();
        loop {
            let (uid, boot_id) = (claim.uid.clone(), boot_id(claim)?);
            let seen = node.borrow_and_update().inventory.clone();
            let hardware = self.hardware.clone();
            let again = self.aside(claim, move |claims| {
                let Some(record) = claims.read(&uid)? else {
                    return Ok(Ok(None));
                };
                // without a look the last numbers count
                let inventory = hardware.presence();
                let inventory = inventory.as_ref().unwrap_or(&seen);
                let now = |nic: &GrantedDevice| present(nic, inventory);
                match record.missing(&boot_id, now) {
                    Some(nic) => Ok(Err(format!(
                        "RDMA device {} ({}) is not on this node now",
                        nic.rdma, nic.address
                    ))),
                    None => claims.again(&uid, &boot_id, now).map(Ok),
                }
            });
            match again.await? {
                Ok(record) => return Ok(record),
                Err(why) => next_look(claim, &mut node, why, end).await?,
            }
        }
    }

    /// On a thread that may wait for the disk.
    async fn aside<T: Send + 'static>(
        &self,
        claim: &ClaimName,
        work: impl FnOnce(&Claims) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, PrepareError> {
        let claims = Claims::new(&self.state_dir);
        let done = tokio::task::spawn_blocking(move || work(&claims)).await;
        let done = done.map_err(|error| PrepareError::System {
            claim: claim.clone(),
            problem: error.to_string(),
        })?;
        done.map_err(|source| PrepareError::Record {
            claim: claim.clone(),
            source,
        })
    }

    /// What was allocated, as it is on the node now; what is not there is waited for.
    async fn devices(
        &self,
        claim: &ClaimName,
        allocated: &Claim,
        end: Instant,
    ) -> Result<(Vec<Prepared>, Vec<Request>), PrepareError> {
        let mut node = self.node.clone();
        loop {
            let known = node.borrow_and_update().clone();
            // no device's firmware is waited for: it may be another claim's
            let why = match self.hardware.presence_aside().await {
                Ok(inventory) => match prepared(allocated, &known, &inventory) {
                    Ok(prepared) => return Ok(prepared),
                    Err(why) => why,
                },
                Err(error) => error.to_string(),
            };
            next_look(claim, &mut node, why, end).await?;
        }
    }

    /// Whether the chain of this node attaches one of `devices` to a pod's network.
    async fn are_attached(&self, devices: &[Prepared]) -> bool {
        let node = self.node.borrow().clone();
        let chain = node.conf.chain.as_ref();
        let attaches = |it: &Prepared| chain.is_some_and(|chain| chain.attaches(&it.resource));
        if !devices.iter().any(attaches) {
            return false;
        }
        let state_dir = self.state_dir.clone();
        let look = tokio::task::spawn_blocking(move || chain_check::is_chained(&state_dir));
        look.await.unwrap_or(true)
    }
}

/// Waits until the node is to be looked at once more for `claim`, of which `why` says what is missing; that is the
/// error, if `end` comes first.
async fn next_look(
    claim: &ClaimName,
    node: &mut watch::Receiver<Arc<Node>>,
    why: String,
    end: Instant,
) -> Result<(), PrepareError> {
    let next = Instant::now() + LOOKS;
    if next >= end {
        return Err(PrepareError::Devices {
            claim: claim.clone(),
            why,
        });
    }
    log::debug!("claim {claim} waits: {why}");
    let _ = timeout_at(next, node.changed()).await;
    // a node that is followed no more does not change
    sleep_until(next.min(Instant::now() + LOOKS / 10)).await;
    Ok(())
}

/// What `allocated` is on `node`, whose hardware is `inventory`; else what is missing.
fn prepared(
    allocated: &Claim,
    node: &Node,
    inventory: &Inventory,
) -> Result<(Vec<Prepared>, Vec<Request>), String> {
    let pool = ::dra::pool::devices(&pool::Netdevs::default().resources(node));
    let found = allocated.results.iter().map(|result| {
        let (offer, places) = find(result, &pool, node)?;
        Ok((result, offer, places))
    });
    let found: Vec<_> = found.collect::<Result<_, String>>()?;
    let mut devices = vec![];
    let mut requests: Vec<Request> = vec![];
    for (result, offer, places) in &found {
        let given = offer.give(places, inventory)?;
        devices.push(Prepared {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share: result.share.clone(),
            resource: offer.name.to_string(),
            sharing: offer.sharing,
            nics: given.devices,
        });
        if requests.iter().any(|it| it.name == result.request) {
            continue;
        }
        // variables tell of all that a request has
        let of_request = found
            .iter()
            .filter(|(other, of, _)| other.request == result.request && of.name == offer.name);
        let all: Vec<usize> = of_request
            .flat_map(|(_, _, places)| places)
            .copied()
            .collect();
        let given = offer.give(&all, inventory)?;
        requests.push(Request {
            name: result.request.clone(),
            env: given.variables,
            connection_manager: given.connection_manager,
        });
    }
    Ok((devices, requests))
}

/// Which devices of which resource a result is.
fn find<'a>(
    result: &AllocationResult,
    pool: &[PoolDevice],
    node: &'a Node,
) -> Result<(&'a Offer, Vec<usize>), String> {
    let missing = || {
        format!(
            "device {} of pool {} is not on this node now",
            result.device, result.pool
        )
    };
    let device = pool.iter().find(|it| it.name == result.device);
    let device = device.ok_or_else(missing)?;
    let mut offers = pool::offers(node);
    let offer = offers.find(|it| it.name.as_str() == device.resource);
    let offer = offer.ok_or_else(missing)?;
    let places = offer.devices.iter().enumerate();
    let places = places.filter(|(_, it)| device.addresses.contains(&it.address));
    let mut places: Vec<usize> = places.map(|(place, _)| place).collect();
    if let Some(rails) = &result.parameters.rails {
        if let Some(none) = rails.iter().find(|rail| !places.contains(rail)) {
            let has: Vec<String> = places.iter().map(ToString::to_string).collect();
            return Err(format!(
                "its parameters name rail {none}, and device {} has rails {} on this node now",
                result.device,
                has.join(", ")
            ));
        }
        places.retain(|rail| rails.contains(rail));
    }
    Ok((offer, places))
}

/// Whether one of `pods` has a network namespace of its own, which the chain makes. A pod that is gone has none;
/// without any pod it is not known, and the network is waited for.
async fn has_own_network(
    api: &Api,
    claim: &ClaimName,
    pods: &[PodReference],
) -> Result<bool, ApiError> {
    let mut on_host = false;
    for PodReference { name, uid } in pods {
        let path = format!("/api/v1/namespaces/{}/pods/{name}", claim.namespace);
        let pod = match api.client.ask(Method::GET, &path, None).await {
            Ok(pod) if pod["metadata"]["uid"] == **uid => pod,
            Ok(_) => continue,
            Err(error) if error.code() == Some(404) => continue,
            Err(error) => return Err(error.into()),
        };
        if pod["spec"]["hostNetwork"] != Value::Bool(true) {
            return Ok(true);
        }
        on_host = true;
    }
    Ok(!on_host)
}

fn boot_id(claim: &ClaimName) -> Result<String, PrepareError> {
    Linux::default()
        .boot_id()
        .map_err(|error| PrepareError::System {
            claim: claim.clone(),
            problem: error.to_string(),
        })
}

/// `rdma-hca-all: mlx5_0 (uverbs0), mlx5_1 (uverbs1); after its network`
pub(super) fn in_words(record: &Record) -> String {
    let device = |device: &Prepared| {
        let nics = device.nics.iter().map(|nic| {
            let nodes: Vec<&str> = nic.char_devices.iter().map(|it| &*it.name).collect();
            format!("{} ({})", nic.rdma, nodes.join(" "))
        });
        format!("{}: {}", device.device, nics.collect::<Vec<_>>().join(", "))
    };
    let devices: Vec<String> = record.devices.iter().map(device).collect();
    let when = match record.is_begun() {
        true => "",
        false => ", when the pod has its network",
    };
    format!("{}{when}", devices.join("; "))
}
