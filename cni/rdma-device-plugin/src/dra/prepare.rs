// SPDX-License-Identifier: Apache-2.0
//! Prepares a claim: finds its devices, and records them before the daemon answers kubelet. Does not move the devices.

use super::pool;
use crate::{
    api::Api,
    chain::record,
    kubelet::{PluginContext, chain_check},
};
use ::dra::{
    Claim, ClaimName, Claims, Prepared, Record,
    claim::{AllocationResult, PodReference},
    pool::PoolDevice,
    record::{FORMAT, MetadataNames, Request, present},
    slices::API,
    store::{Removed, Unreadable},
};
use anyhow::{Error, Result, anyhow, bail};
use kubernetes_api::{Method, RequestError};
use network_conf::Mode;
use node_state::node::Node;
use offer::Offer;
use rdma_netns::{Inventory, Kernel, Linux};
use rdma_resources::{ContainerLimits, FileError, Sharing, grant::GrantedDevice};
use serde_json::Value;
use std::{fmt::Display, path::Path, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

/// Total time for which one Prepare call waits for absent devices, for all its claims together. Kubelet ends a call
/// after 45 s, and repeats it after more than a minute.
pub(super) const PREPARE_TIMEOUT: Duration = Duration::from_secs(25);

/// Error if a claim has parameters without an effect. The parameter `rails` always has an effect.
const NOT_ATTACHED: &str = "its parameters configure the attachment, but rdma-cni does not attach its pod: the pod \
                            has hostNetwork, or this node's chain does not attach the resource; remove all \
                            parameters except rails";

const MOVE_OF_SHARED: &str = "its class has mode move, which would remove the NIC from other pods: use this class \
                              only for a resource of exclusive NICs";

const VF_OF_SHARED: &str = "its class has vf settings, but its devices are shared, so that pods get children of \
                            them: use this class only for a resource of exclusive virtual functions";

/// Error if a pod without `hostNetwork` has a claim with `adminAccess` on exclusive devices.
const ADMIN_WITHOUT_HOST_NETWORK: &str = "it requests adminAccess, and rdma-cni would move the devices into its pod, \
            away from the pods that they are allocated to: set hostNetwork in the pod";

/// Interval of observations while a device is absent.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Prepares claims.
pub struct Preparer {
    /// Name of the DRA driver.
    pub driver: String,
    /// Command line, state and hardware of the daemon.
    pub context: Arc<PluginContext>,
}

impl Preparer {
    pub(super) fn driver(&self) -> &str {
        &self.driver
    }

    /// Prepares `claim`. A claim that is already prepared keeps its devices. Waits for absent devices until `end`.
    pub(super) async fn prepare(&self, claim: &ClaimName, end: Instant) -> Result<Record> {
        check_uid(claim)?;
        if let Some(record) = self.again(claim, end).await? {
            return Ok(record);
        }
        let failed =
            |error: RequestError| anyhow!("cannot read claim {claim} or its pods: {error}");
        let api = Api::new(&self.context.arguments.service_account_dir)
            .map_err(|error| failed(error.into()))?;
        let ClaimName {
            namespace, name, ..
        } = claim;
        let path = format!("{API}/namespaces/{namespace}/resourceclaims/{name}");
        let object = api.client.ask(Method::GET, &path, None).await;
        let object = object.map_err(failed)?;
        let allocated = Claim::read(&object, claim, &self.driver, &api.node)?;
        let (devices, requests) = self.devices(claim, &allocated, end).await?;
        let awaits_network = match self.are_attached(&devices).await {
            true => {
                let pods = has_own_network(&api, claim, &allocated.pods).await;
                pods.map_err(failed)?
            }
            false => false,
        };
        // all allocation results of a claim have the same parameters, except `rails`
        let parameters = allocated.results[0].parameters.attachment.clone();
        let is_shared = devices.iter().any(|it| it.sharing == Sharing::Shared);
        let moves = awaits_network && devices.iter().any(|it| it.sharing == Sharing::Exclusive);
        let problem = if moves && allocated.results.iter().any(|it| it.is_admins) {
            Some(ADMIN_WITHOUT_HOST_NETWORK)
        } else if !awaits_network && !parameters.is_empty() {
            Some(NOT_ATTACHED)
        } else if is_shared && parameters.mode == Some(Mode::Move) {
            Some(MOVE_OF_SHARED)
        } else if is_shared && !parameters.vf.is_empty() {
            Some(VF_OF_SHARED)
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(unprepared(claim, problem));
        }
        let record = Record {
            format: FORMAT,
            driver: self.driver.clone(),
            claim: claim.clone(),
            boot_id: boot_id(claim)?,
            cdi_dir: self.context.arguments.cdi_dir.clone(),
            pods: allocated.pods.into_iter().map(|pod| pod.uid).collect(),
            awaits_network,
            networks: Default::default(),
            rails: Default::default(),
            files: Default::default(),
            generation: 1,
            absent: Default::default(),
            parameters,
            devices,
            requests,
        };
        let record = self.blocking(claim, move |claims| claims.prepare(record));
        let record = record.await?;
        log::info!("claim {claim} is prepared: {}", in_words(&record));
        Ok(record)
    }

    pub(super) async fn unprepare(&self, claim: &ClaimName) -> Result<()> {
        check_uid(claim)?;
        let (uid, cdi_dir) = (claim.uid.clone(), self.context.arguments.cdi_dir.clone());
        let remove = move |claims: &Claims| claims.remove(&uid, &cdi_dir);
        match self.blocking(claim, remove).await? {
            Removed::Nothing => {}
            Removed::Record => log::info!("claim {claim} is unprepared"),
            Removed::Aside(Unreadable { file, why }) => log::error!(
                "claim {claim} is unprepared without its record: {why}; the record is kept as {file:?}: check that all \
                 devices are on the host, and remove the file"
            ),
        }
        Ok(())
    }

    /// Returns the record of a claim, or `None` if it is not prepared. If `rdma-cni` does not attach the claim's
    /// devices and the node was rebooted, the device numbers in the record are outdated. This function then waits until
    /// `end` for the present numbers.
    async fn again(&self, claim: &ClaimName, end: Instant) -> Result<Option<Record>> {
        let mut node = self.context.node.clone();
        loop {
            let (uid, boot_id) = (claim.uid.clone(), boot_id(claim)?);
            let seen = node.borrow_and_update().inventory.clone();
            let hardware = self.context.hardware.clone();
            let again = self.blocking(claim, move |claims| {
                let Some(record) = claims.read(&uid)? else {
                    return Ok(Ok(None));
                };
                // use the last known inventory if the observation fails
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
                Err(why) => next_observation(claim, &mut node, why, end).await?,
            }
        }
    }

    /// Runs `work` on a thread that may wait for the disk.
    async fn blocking<T: Send + 'static>(
        &self,
        claim: &ClaimName,
        work: impl FnOnce(&Claims) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T> {
        let claims = Claims::new(&self.context.arguments.state_dir);
        let done = tokio::task::spawn_blocking(move || work(&claims)).await;
        let done = done.map_err(|error| unprepared(claim, error))?;
        done.map_err(|error| anyhow!("cannot access the record of claim {claim}: {error}"))
    }

    /// Finds the allocated devices. Waits for absent devices until `end`.
    async fn devices(
        &self,
        claim: &ClaimName,
        allocated: &Claim,
        end: Instant,
    ) -> Result<(Vec<Prepared>, Vec<Request>)> {
        let mut node = self.context.node.clone();
        loop {
            let known = node.borrow_and_update().clone();
            // observe without reading ports: the firmware of a device that is not in this claim could delay the answer
            let why = match self.context.hardware.presence_blocking().await {
                Ok(inventory) => match prepared(
                    allocated,
                    &known,
                    &inventory,
                    &self.context.arguments.state_dir,
                ) {
                    Ok(prepared) => return Ok(prepared),
                    Err(why) => why,
                },
                Err(error) => error.to_string(),
            };
            next_observation(claim, &mut node, why, end).await?;
        }
    }

    /// Returns true if the node's chain attaches one of `devices` to a pod's network.
    async fn are_attached(&self, devices: &[Prepared]) -> bool {
        let node = self.context.node.borrow().clone();
        let chain = node.conf.chain.as_ref();
        let attaches = |it: &Prepared| chain.is_some_and(|chain| chain.attaches(&it.resource));
        if !devices.iter().any(attaches) {
            return false;
        }
        let state_dir = self.context.arguments.state_dir.clone();
        let chained = tokio::task::spawn_blocking(move || chain_check::is_chained(&state_dir));
        chained.await.unwrap_or(true)
    }
}

/// Waits for the next observation of the devices of `claim`. `why` is the reason of the wait, such as a missing device.
/// Returns `why` as the error if the next observation would be after `end`.
async fn next_observation(
    claim: &ClaimName,
    node: &mut watch::Receiver<Arc<Node>>,
    why: String,
    end: Instant,
) -> Result<()> {
    let next = Instant::now() + OBSERVE_INTERVAL;
    if next >= end {
        return Err(unprepared(claim, why));
    }
    log::debug!("claim {claim} waits: {why}");
    let _ = timeout_at(next, node.changed()).await;
    // wait a moment in any case: if the sender of `node` is dropped, `changed` returns at once
    sleep_until(next.min(Instant::now() + OBSERVE_INTERVAL / 10)).await;
    Ok(())
}

/// Finds the devices of `allocated` on `node`. `inventory` is the hardware of the node. The error describes the
/// problem, such as a missing device.
fn prepared(
    allocated: &Claim,
    node: &Node,
    inventory: &Inventory,
    state_dir: &Path,
) -> Result<(Vec<Prepared>, Vec<Request>), String> {
    let pool = ::dra::pool::devices(&pool::Netdevs::default().resources(node));
    let dra = node.conf.dra.as_ref();
    let has_metadata = dra.is_some_and(|it| it.metadata);
    let mut devices_attributes = vec![];
    let found = allocated.results.iter().map(|result| {
        let device = pool.iter().find(|it| it.name == result.device);
        let (offer, places) = find(result, device, node)?;
        let attributes = device.filter(|_| has_metadata);
        let attributes = attributes.map(|it| it.attributes.clone());
        devices_attributes.push(attributes.unwrap_or_default());
        Ok((result, offer, places))
    });
    let found: Vec<_> = found.collect::<Result<_, String>>()?;
    let mut devices = vec![];
    let mut requests: Vec<Request> = vec![];
    for ((result, offer, places), attributes) in found.iter().zip(devices_attributes) {
        let grant = offer.allocate(places, inventory)?;
        devices.push(Prepared {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share: result.share.clone(),
            resource: offer.name.to_string(),
            sharing: offer.sharing,
            attributes,
            nics: grant.devices,
        });
        if requests.iter().any(|it| it.name == result.request) {
            continue;
        }
        // the environment variables describe all devices of the request that belong to this offer
        let of_request = || found.iter().filter(|it| it.0.request == result.request);
        let limits = of_request().map(|(_, of, _)| of.limits);
        let limits = limits.fold(ContainerLimits::default(), ContainerLimits::with);
        let files = of_request().flat_map(|(_, of, _)| of.environment.files());
        let files = files.collect();
        let of_request = of_request().filter(|(_, of, _)| of.name == offer.name);
        let all: Vec<usize> = of_request
            .flat_map(|(_, _, places)| places)
            .copied()
            .collect();
        let grant = offer.allocate(&all, inventory)?;
        requests.push(Request {
            name: result.request.clone(),
            env: grant.variables,
            connection_manager: grant.connection_manager,
            files,
            metadata: has_metadata.then(|| MetadataNames {
                request: result.full_request.clone(),
                pod_claim: allocated.pod_claim.clone(),
            }),
            hook: record::hook(state_dir, limits)?,
        });
    }
    Ok((devices, requests))
}

/// Returns the offer to which an allocation result belongs, and the indices of the allocated devices in this offer.
fn find<'a>(
    result: &AllocationResult,
    device: Option<&PoolDevice>,
    node: &'a Node,
) -> Result<(&'a Offer, Vec<usize>), String> {
    let missing = || {
        format!(
            "pool {} of this node has no device {} now",
            result.pool, result.device
        )
    };
    let device = device.ok_or_else(missing)?;
    let mut offers = node.by_claims();
    let offer = offers.find(|it| it.name.as_str() == device.resource);
    let offer = offer.ok_or_else(missing)?;
    let places = offer.devices.iter().enumerate();
    let places = places.filter(|(_, it)| device.addresses.contains(&it.address));
    let mut places: Vec<usize> = places.map(|(place, _)| place).collect();
    if let Some(rails) = &result.parameters.rails {
        if let Some(none) = rails.iter().find(|rail| !places.contains(rail)) {
            let has: Vec<String> = places.iter().map(ToString::to_string).collect();
            return Err(format!(
                "its parameters request rail {none}, and device {} has only the rails {} on this node now",
                result.device,
                has.join(", ")
            ));
        }
        places.retain(|rail| rails.contains(rail));
    }
    Ok((offer, places))
}

/// Returns true if one of `pods` has its own network namespace, which the chain sets up. Ignores pods that no longer
/// exist. Also returns true if none of `pods` exists: the claim's devices then wait for a pod's network.
async fn has_own_network(
    api: &Api,
    claim: &ClaimName,
    pods: &[PodReference],
) -> Result<bool, RequestError> {
    let mut on_host = false;
    for PodReference { name, uid } in pods {
        let path = format!("/api/v1/namespaces/{}/pods/{name}", claim.namespace);
        let pod = match api.client.ask(Method::GET, &path, None).await {
            Ok(pod) if pod["metadata"]["uid"] == **uid => pod,
            Ok(_) => continue,
            Err(error) if error.code() == Some(404) => continue,
            Err(error) => return Err(error),
        };
        if pod["spec"]["hostNetwork"] != Value::Bool(true) {
            return Ok(true);
        }
        on_host = true;
    }
    Ok(!on_host)
}

fn boot_id(claim: &ClaimName) -> Result<String> {
    let boot_id = Linux::default().boot_id();
    boot_id.map_err(|error| unprepared(claim, error))
}

/// Returns an error if the claim's uid cannot be the name of a file.
fn check_uid(claim: &ClaimName) -> Result<()> {
    if !claim.has_plain_uid() {
        bail!(
            "claim {claim} has an invalid uid: it must have 1 to 128 letters, digits and hyphens"
        );
    }
    Ok(())
}

fn unprepared(claim: &ClaimName, why: impl Display) -> Error {
    anyhow!("claim {claim} cannot be prepared: {why}")
}

/// Describes the devices, such as `rdma-hca-all: mlx5_0 (uverbs0), mlx5_1 (uverbs1)`. Adds a remark if containers
/// cannot have the devices yet.
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
        false => "; containers get the devices after the pod has its network",
    };
    format!("{}{when}", devices.join("; "))
}
