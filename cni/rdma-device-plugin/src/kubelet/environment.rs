// SPDX-License-Identifier: Apache-2.0
//! What a container is told of its pod's rails, before it is created: they are known by then.

use super::plugin_context::PluginContext;
use crate::{conf::ResourceName, offer::Environment};
use attachments::{Attachment, Store};
use rdma_netns::{Kernel, linux::Linux};
use rdma_resources::container::ContainerId;
use serde_json::Value;
use tonic::Status;

/// Tells the container that has `ids` of `resource`, as `environment` has it; its rails also if it `is_promised` them. A
/// pod with `hostNetwork` has none.
///
/// # Errors
/// It is not known which rails there are, or it cannot be written: kubelet asks again.
pub(super) async fn tell(
    context: &PluginContext,
    resource: &ResourceName,
    ids: &[String],
    environment: &Environment,
    is_promised: bool,
) -> Result<(), Status> {
    let has_rails = environment.has_rails() || is_promised;
    let has_nccl = environment.has_nccl();
    if !has_rails && !has_nccl {
        return Ok(());
    }
    let (state_dir, containers) = (context.state_dir.clone(), context.containers.clone());
    let (resource, ids) = (resource.to_string(), ids.to_vec());
    let write = move || -> Result<(), String> {
        let Some(container) = ContainerId::of(&resource, &ids) else {
            return Ok(());
        };
        let _lock = containers.lock().map_err(|error| error.to_string())?;
        let store = Store::new(&state_dir);
        let boot_id = Linux::new().boot_id().unwrap_or_default();
        let all = store.of_boot(&boot_id).map_err(|error| error.to_string())?;
        let rails = rails(&all, &resource, &ids);
        let unreadable = match rails.is_empty() {
            true => store.unreadable().map_err(|error| error.to_string())?,
            false => vec![],
        };
        if !unreadable.is_empty() {
            let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
            let unreadable = unreadable.join(", ");
            return Err(format!(
                "the record of its pod may be one that cannot be read: {unreadable}"
            ));
        }
        if has_rails {
            let held: Vec<ContainerId<'_>> = all.iter().flat_map(held).collect();
            let told = containers.tell_rails((&resource, &ids), &rails, &held);
            told.map_err(|error| error.to_string())?;
        }
        if has_nccl {
            let told = containers.tell_nccl(container, &rails);
            told.map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    let written = tokio::task::spawn_blocking(write).await;
    let written = written.map_err(|error| Status::internal(error.to_string()))?;
    written.map_err(|why| {
        Status::unavailable(format!(
            "the container's environment is not set up, as its resource has it (environment): {why}"
        ))
    })
}

/// Whatever kubelet gave for rails of `attachment`.
fn held(attachment: &Attachment) -> impl Iterator<Item = ContainerId<'_>> {
    let rails = attachment.rails.iter();
    let ids = rails.filter_map(|rail| rail.allocated.as_ref());
    ids.flat_map(|it| &it.ids).map(|it| ContainerId {
        resource: &it.resource,
        id: &it.id,
    })
}

/// All rails of the pod whose container has `ids`, of which some can have come to no rail: a NIC that is down, or that the
/// pod has not chosen. One whose sandbox was made anew has them by the last one.
fn rails(all: &[Attachment], resource: &str, ids: &[String]) -> Vec<Value> {
    let is_its =
        |held: ContainerId<'_>| held.resource == resource && ids.iter().any(|id| id == held.id);
    let own = all.iter().filter(|it| held(it).any(is_its));
    let Some(last) = own.max_by_key(|it| it.observed_at) else {
        return vec![];
    };
    let of_sandbox = all
        .iter()
        .filter(|it| it.key.container == last.key.container);
    of_sandbox.flat_map(Attachment::told).collect()
}
