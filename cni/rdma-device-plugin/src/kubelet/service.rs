// SPDX-License-Identifier: Apache-2.0
//! The device-plugin service of one resource: the answers to kubelet's calls.

use super::{
    answered, chain_check,
    environment::{self, Promised},
    holder,
    own_accelerators::Waiting,
    plugin_context::PluginContext,
    streams::{Streams, some},
};
use crate::refused::Refused;
use daemon_conf::ResourceName;
use kubelet_api::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse, Mount,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, device_plugin_server::DevicePlugin,
};
use kubelet_api::pod_resources;
use node_state::node::Node;
use offer::{Accelerators, Cure, Environment, Offer};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{
    ContainerLimits, Grant,
    container::{ContainerId, MOUNTED},
};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Options of the plugin, which kubelet gets at registration and on request.
pub const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

/// Time limit for Allocate. Kubelet has no limit (`allocate` in `devicemanager/endpoint.go`), and admits no other pod
/// while it waits.
const ALLOCATE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for finding the container for which kubelet requests a preference. Kubelet has no limit for the request.
/// After the time limit, the preference does not consider the container's accelerators.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(1);

/// Device-plugin service of one resource.
#[derive(Clone)]
pub struct Service {
    resource: ResourceName,
    streams: Streams,
    context: Arc<PluginContext>,
    waiting: Waiting,
}

impl Service {
    /// Returns the service of `resource`.
    pub fn new(resource: ResourceName, streams: Streams, context: Arc<PluginContext>) -> Self {
        Self {
            resource,
            streams,
            context,
            waiting: Waiting::default(),
        }
    }

    fn node(&self) -> Arc<Node> {
        self.context.node.borrow().clone()
    }

    /// Returns the resource's offer. Returns an error if the daemon no longer offers the resource.
    fn offer<'a>(&self, node: &'a Node) -> Result<&'a Offer, Status> {
        node.offer(self.resource.as_str())
            .ok_or_else(|| Status::unavailable(format!("{} is no longer offered", self.resource)))
    }

    /// Returns the containers' answers and grants according to the last observation of the hardware. If an id cannot be
    /// granted, or a character device is no longer in place, observes the hardware again without ports, uses the new
    /// observation, and requests an observation with ports from the health task.
    async fn answers(
        &self,
        requests: &[ContainerAllocateRequest],
    ) -> Result<(Vec<ContainerAllocateResponse>, Vec<Grant>), Status> {
        let node = self.node();
        let offer = self.offer(&node)?;
        let known = answers(offer, requests, &node.inventory);
        if known
            .as_ref()
            .is_ok_and(|(_, grants)| self.in_place(grants))
        {
            return known;
        }
        let fresh = answers(offer, requests, &self.presence().await?);
        if fresh.as_ref().ok() != known.as_ref().ok() {
            log::info!("{}: the node's devices have changed", self.resource);
        }
        self.context.observe.notify_one();
        fresh
    }

    fn in_place(&self, grants: &[Grant]) -> bool {
        let devices = grants.iter().flat_map(|grant| &grant.devices);
        devices
            .flat_map(|device| &device.char_devices)
            .all(|it| self.context.hardware.has_node(&it.name, it.major, it.minor))
    }

    /// Observes without ports: the firmware of another device may not answer, and must not delay this container.
    async fn presence(&self) -> Result<Inventory, Status> {
        let inventory = self.context.hardware.presence_blocking().await;
        inventory.map_err(|error| Status::unavailable(error.to_string()))
    }

    /// Records `grants` before kubelet gets the devices.
    async fn record(&self, mut grants: Vec<Grant>) -> Result<(), Status> {
        let store = self.context.grants.clone();
        let state_dir = self
            .is_attached()
            .then(|| self.context.arguments.state_dir.clone());
        let written = tokio::task::spawn_blocking(move || {
            let chained = state_dir.is_some_and(|it| chain_check::is_chained(&it));
            grants.iter_mut().try_for_each(|grant| {
                grant.chained = chained;
                store.write(grant)
            })
        });
        written
            .await
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::internal(format!("cannot record the grant: {error}")))
    }

    /// Returns true if `rdma-cni` attaches the resource, according to the chain's configuration.
    fn is_attached(&self) -> bool {
        let node = self.node();
        let chain = node.conf.chain.as_ref();
        chain.is_some_and(|chain| chain.attaches(self.resource.as_str()))
    }

    /// Returns the accelerators of the container for which kubelet requests a preference. Returns no accelerator if the
    /// container's accelerators are unknown, or if the preference does not depend on accelerators.
    async fn own_accelerators(&self, offer: &Offer, node: &Node) -> BTreeSet<DeviceAddress> {
        if node.inventory.accelerators.is_empty() || !offer.has_choice() {
            return BTreeSet::new();
        }
        let end = Instant::now() + HOLDER_TIMEOUT;
        let names = match timeout(
            HOLDER_TIMEOUT,
            self.context.hardware.accelerator_names_blocking(),
        )
        .await
        {
            Ok(Ok(names)) => names,
            Ok(Err(error)) => {
                log::debug!(
                    "{}: cannot read accelerators' names: {error}",
                    self.resource
                );
                return BTreeSet::new();
            }
            Err(_) => {
                log::warn!(
                    "{}: the container's accelerators do not affect the preferred ids, because their driver does not \
                     report names in time",
                    self.resource
                );
                return BTreeSet::new();
            }
        };
        let left = end.saturating_duration_since(Instant::now());
        let pods = match pod_resources::all(&self.context.arguments.pod_resources(), left).await {
            Ok(pods) => pods,
            Err(error) => {
                log::debug!(
                    "{}: cannot find the containers of accelerators: {error}",
                    self.resource
                );
                return BTreeSet::new();
            }
        };
        let waiting = &self.waiting;
        waiting.own(&pods, &self.resource, &node.inventory, &names)
    }

    async fn allocate(&self, request: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let (mut container_responses, grants) = self.answers(&request.container_requests).await?;
        let granted: Vec<_> = grants.iter().map(in_words).collect();
        self.record(grants).await?;
        if self.environment().has_files() {
            self.mount(&request.container_requests, &mut container_responses)
                .await?;
        }
        let ids = all_ids(request);
        log::info!(
            "{}: allocated: {} ({})",
            self.resource,
            some(&ids),
            some(&once(granted))
        );
        Ok(AllocateResponse {
            container_responses,
        })
    }

    fn environment(&self) -> Environment {
        let node = self.node();
        let offer = node.offer(self.resource.as_str());
        offer.map_or_else(Environment::default, |it| it.environment.clone())
    }

    /// Adds a mount to each container's answer. The daemon writes the libraries' files into the mounted directory
    /// later, before the runtime creates the container.
    async fn mount(
        &self,
        requests: &[ContainerAllocateRequest],
        responses: &mut [ContainerAllocateResponse],
    ) -> Result<(), Status> {
        for (request, response) in requests.iter().zip(responses) {
            let ids = &request.devices_i_ds;
            let containers = self.context.containers.clone();
            let (resource, ids) = (self.resource.to_string(), ids.clone());
            let make = move || {
                let container = ContainerId::of(&resource, &ids);
                container.map(|it| containers.make(it)).transpose()
            };
            let made = tokio::task::spawn_blocking(make).await;
            let made = made.map_err(|error| Status::internal(error.to_string()))?;
            let Some(directory) = made.map_err(|error| Status::internal(error.to_string()))? else {
                continue;
            };
            response.mounts.push(Mount {
                container_path: MOUNTED.to_owned(),
                host_path: directory.to_string_lossy().into_owned(),
                read_only: true,
            });
        }
        Ok(())
    }

    /// Returns the grant of `id`. Returns `None` for an id of the resource without a grant: another plugin allocated
    /// the id before this daemon.
    fn granted(&self, id: &str, node: &Node) -> Result<Option<Grant>, Refused> {
        let granted = self.context.grants.read(self.resource.as_str(), id);
        match granted.map_err(|error| Status::failed_precondition(error.to_string()))? {
            Some(grant) => Ok(Some(grant)),
            None if has(node, &self.resource, id) => {
                log::warn!(
                    "{}: a container with {id} starts without a grant, because another device plugin allocated the id",
                    self.resource
                );
                Ok(None)
            }
            None => Err(Refused {
                status: Status::failed_precondition(format!("{} has no id {id:?}", self.resource)),
                cure: Cure::DeviceOrAnotherPod,
            }),
        }
    }

    /// Checks that the devices that Allocate granted for `ids` are unchanged. Returns the promises of Allocate.
    async fn are_in_place(&self, ids: &[String]) -> Result<Promised, Refused> {
        let now = self.presence().await?;
        let node = self.node();
        let grants = ids.iter().map(|id| self.granted(id, &node));
        let grants: Vec<_> = grants.collect::<Result<_, Refused>>()?;
        let grants: Vec<&Grant> = grants.iter().flatten().collect();
        // the next check then knows the netdev of a device that was made again
        offer::still_as_granted(&grants, &now)
            .inspect_err(|_| self.context.observe.notify_one())?;
        Ok(Promised {
            network: grants.iter().any(|grant| grant.chained) && self.is_attached(),
            rails: grants.iter().any(|grant| grant.promises_rails),
            limits: grants
                .iter()
                .fold(ContainerLimits::default(), |all, grant| {
                    all.with(grant.limits)
                }),
        })
    }
}

fn has(node: &Node, resource: &ResourceName, id: &str) -> bool {
    node.offer(resource.as_str())
        .is_some_and(|offer| offer.ids.iter().any(|it| it.id == id))
}

fn answers(
    offer: &Offer,
    requests: &[ContainerAllocateRequest],
    inventory: &Inventory,
) -> Result<(Vec<ContainerAllocateResponse>, Vec<Grant>), Status> {
    let mut responses = vec![];
    let mut grants = vec![];
    for request in requests {
        let (response, granted) = offer
            .answer(&request.devices_i_ds, inventory)
            .map_err(Status::invalid_argument)?;
        responses.push(response);
        grants.extend(granted);
    }
    Ok((responses, grants))
}

/// Describes a grant, such as `mlx5_0 at 0000:3b:00.0: uverbs0 umad0`.
fn in_words(grant: &Grant) -> String {
    let devices = grant.devices.iter().map(|device| {
        let nodes: Vec<_> = device
            .char_devices
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        format!("{} at {}: {}", device.rdma, device.address, nodes.join(" "))
    });
    devices.collect::<Vec<_>>().join(", ")
}

fn once(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines.dedup();
    lines
}

fn all_ids(request: &AllocateRequest) -> Vec<&str> {
    let containers = request.container_requests.iter();
    containers
        .flat_map(|container| container.devices_i_ds.iter().map(String::as_str))
        .collect()
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.streams.options_requested();
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(self.streams.open()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let node = self.node();
        let offer = self.offer(&node)?;
        let requests = request.into_inner().container_requests;
        let own = self.own_accelerators(offer, &node).await;
        let accelerators = Accelerators::of_container(&node.inventory, &own);
        let container_responses = requests.iter().map(|request| {
            let preference = offer.prefer(
                &request.available_device_i_ds,
                &request.must_include_device_i_ds,
                usize::try_from(request.allocation_size).unwrap_or(0),
                &accelerators,
            );
            log::debug!(
                "{}: of {} ids, the daemon prefers {}",
                self.resource,
                request.available_device_i_ds.len(),
                some(&preference.ids)
            );
            for reason in &preference.reasons {
                log::debug!("{}: {reason}", self.resource);
            }
            ContainerPreferredAllocationResponse {
                device_i_ds: preference.ids,
            }
        });
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: container_responses.collect(),
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let started = Instant::now();
        let request = request.into_inner();
        let answer = timeout(ALLOCATE_TIMEOUT, self.allocate(&request)).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "no result within {ALLOCATE_TIMEOUT:?}: the disk of {:?}, or a device's driver, does not answer",
                self.context.arguments.state_dir
            )))
        });
        if let Err(status) = &answer {
            let (ids, why) = (all_ids(&request), status.message());
            log::error!("{}: not allocated: {}: {why}", self.resource, some(&ids));
        }
        let (resource, took) = (self.resource.as_str(), started.elapsed());
        self.context
            .metrics
            .allocated(resource, took, answer.is_ok());
        answer.map(Response::new)
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids = request.into_inner().devices_i_ds;
        let in_place = self.are_in_place(&ids).await;
        let socket = self.context.arguments.pod_resources();
        let environment = self.environment();
        let holder = match in_place {
            Ok(Promised { network, .. }) if network || environment.has_files() => {
                Some(holder::of(&socket, &self.resource, &ids).await)
            }
            _ => None,
        };
        let checked = match (in_place, &holder) {
            (Ok(promised), Some(holder)) if promised.network => {
                let checked = chain_check::check(&self.context, &self.resource, &ids, holder);
                checked.await.map(|()| promised)
            }
            (in_place, _) => in_place,
        };
        let checked = match checked {
            Ok(promised) => {
                let holder = holder.as_ref().and_then(|it| it.as_ref().ok()?.as_ref());
                let container = environment::Container::new(&self.resource, &ids, holder);
                let written = environment::write(&self.context, container, &environment, promised);
                written.await.map_err(Refused::from)
            }
            Err(refused) => Err(refused),
        };
        if let Err(refused) = &checked {
            let (all, why) = (ids.join(", "), refused.status.message());
            log::error!(
                "{}: a container with the ids {all} must not start: {why}",
                self.resource
            );
        }
        let refused = checked.clone().err();
        let (context, resource) = (self.context.clone(), self.resource.clone());
        match holder {
            Some(holder) => answered::publish(&context, &resource, &ids, refused, &holder),
            // find the container in the background, because kubelet waits for the answer
            None => drop(tokio::spawn(async move {
                let holder = holder::of(&socket, &resource, &ids).await;
                answered::publish(&context, &resource, &ids, refused, &holder);
            })),
        }
        checked
            .map(|()| Response::new(PreStartContainerResponse {}))
            .map_err(|refused| refused.status)
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
