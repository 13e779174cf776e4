// SPDX-License-Identifier: Apache-2.0
//! Allocates for a container by the steps of kubelet's device manager (`devicesToAllocate` in
//! `pkg/kubelet/cm/devicemanager/manager.go`).

use super::{
    allocation::{Allocation, AllocationRequest},
    device_manager::DeviceManager,
};
use kubelet_api::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
    ContainerPreferredAllocationRequest, PreStartContainerRequest, PreferredAllocationRequest,
    device_plugin_client::DevicePluginClient,
};
use std::{collections::BTreeSet, time::Duration};
use tonic::{Status, transport::Channel};

/// Time limit for each call of a plugin.
const LIMIT: Duration = Duration::from_secs(20);

impl DeviceManager {
    /// Chooses ids, calls `Allocate`, and keeps the allocation. The caller calls [`before_start`](Self::before_start)
    /// later, when the pod's sandbox exists.
    #[track_caller]
    pub fn allocate(&self, request: &AllocationRequest) -> Result<Allocation, Status> {
        let ids = self.ids(request)?;
        let mut answer = self.ask_for(&request.resource, &[&ids])?;
        assert_eq!(
            answer.container_responses.len(),
            1,
            "one response for one container"
        );
        let allocation = Allocation {
            pod: request.pod.clone(),
            container: request.container.clone(),
            resource: request.resource.clone(),
            ids,
            given: answer.container_responses.remove(0),
        };
        self.shared()
            .change(|known| known.allocations.push(allocation.clone()));
        Ok(allocation)
    }

    /// Makes the ids of a removed pod available again.
    pub fn free(&self, pod: &str) {
        self.shared()
            .change(|known| known.allocations.retain(|it| it.pod.1 != pod));
    }

    /// Chooses the ids to allocate.
    #[track_caller]
    fn ids(&self, request: &AllocationRequest) -> Result<Vec<String>, Status> {
        let known = self.resource(&request.resource);
        let known = known.unwrap_or_else(|| panic!("{} is not known", request.resource));
        let reusable: BTreeSet<_> = request.reusable.iter().cloned().collect();
        let allocations = self.allocations();
        let used = allocations
            .iter()
            .filter(|it| it.resource == request.resource)
            .flat_map(|it| &it.ids);
        let used: BTreeSet<&str> = used.map(String::as_str).collect();
        let available: BTreeSet<String> = known
            .healthy()
            .difference(&used)
            .map(|id| (*id).to_owned())
            .collect();
        let mut chosen: BTreeSet<String> = reusable.iter().take(request.count).cloned().collect();
        if available.len() + chosen.len() < request.count {
            return Err(Status::resource_exhausted(format!(
                "requested number of devices unavailable for {}: {} of {}",
                request.resource,
                available.len(),
                request.count
            )));
        }
        let aligned = |id: &&String| {
            let device = known.devices.iter().find(|it| it.id == **id);
            let topology = device.and_then(|it| it.topology.as_ref());
            request.numa_node.is_none_or(|node| {
                topology.is_some_and(|it| it.nodes.iter().any(|it| it.id == node))
            })
        };
        let near: BTreeSet<String> = available.iter().filter(aligned).cloned().collect();
        for pool in [near, available] {
            let needed = request.count - chosen.len();
            if needed == 0 {
                break;
            }
            let pool: BTreeSet<_> = pool.difference(&chosen).cloned().collect();
            let preferred = match needed < pool.len() {
                true => self.preferred(request, &pool, &chosen, &known.options)?,
                false => vec![],
            };
            let order = preferred.into_iter().filter(|id| pool.contains(id));
            let order: Vec<_> = order.chain(pool.iter().cloned()).collect();
            for id in order {
                if chosen.len() < request.count {
                    chosen.insert(id);
                }
            }
        }
        Ok(chosen.into_iter().collect())
    }

    fn preferred(
        &self,
        request: &AllocationRequest,
        pool: &BTreeSet<String>,
        must: &BTreeSet<String>,
        options: &kubelet_api::device_plugin::DevicePluginOptions,
    ) -> Result<Vec<String>, Status> {
        if !options.get_preferred_allocation_available {
            return Ok(vec![]);
        }
        let pool: Vec<_> = pool.union(must).cloned().collect();
        let must: Vec<_> = must.iter().cloned().collect();
        self.prefer(&request.resource, &pool, &must, request.count)
    }

    /// Calls `GetPreferredAllocation` with the given arguments, for one container.
    #[track_caller]
    pub fn prefer(
        &self,
        resource: &str,
        available: &[String],
        must_include: &[String],
        count: usize,
    ) -> Result<Vec<String>, Status> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: available.to_vec(),
                must_include_device_i_ds: must_include.to_vec(),
                allocation_size: i32::try_from(count).expect("a small number"),
            }],
        };
        let answer = self.ask(resource, async |mut plugin| {
            plugin.get_preferred_allocation(request).await
        })?;
        let mut containers = answer.container_responses;
        assert_eq!(containers.len(), 1, "one response for one container");
        Ok(containers.remove(0).device_i_ds)
    }

    /// Calls `Allocate` with the given ids of each container.
    #[track_caller]
    pub fn ask_for(
        &self,
        resource: &str,
        containers: &[&[String]],
    ) -> Result<AllocateResponse, Status> {
        let requests = containers.iter().map(|ids| ContainerAllocateRequest {
            devices_i_ds: ids.to_vec(),
        });
        let request = AllocateRequest {
            container_requests: requests.collect(),
        };
        self.ask(resource, async |mut plugin| plugin.allocate(request).await)
    }

    /// Calls `PreStartContainer` with the given ids.
    #[track_caller]
    pub fn before_start(&self, resource: &str, ids: &[String]) -> Result<(), Status> {
        let request = PreStartContainerRequest {
            devices_i_ds: ids.to_vec(),
        };
        self.ask(resource, async |mut plugin| {
            plugin.pre_start_container(request).await
        })?;
        Ok(())
    }

    #[track_caller]
    fn ask<T>(
        &self,
        resource: &str,
        question: impl AsyncFnOnce(DevicePluginClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        // does not copy the ids, because there may be thousands and a test measures the duration of this call
        let known = self.shared().lock();
        let found = known.resources.get(resource);
        let found = found.map(|it| (it.stopped, it.client.clone()));
        drop(known);
        let (stopped, client) = found.unwrap_or_else(|| panic!("{resource} is not known"));
        if stopped {
            let message = format!("endpoint of {resource} is stopped");
            return Err(Status::failed_precondition(message));
        }
        let answer = async { tokio::time::timeout(LIMIT, question(client)).await };
        let answer = self.running().block_on(answer);
        let answer = answer.unwrap_or_else(|_| panic!("{resource}: no answer in {LIMIT:?}"));
        Ok(answer?.into_inner())
    }
}
