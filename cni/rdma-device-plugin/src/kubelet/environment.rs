// SPDX-License-Identifier: Apache-2.0
//! Writes a container's files with its limits, its pod's rails, and variables for libraries. The daemon writes them at
//! PreStartContainer, because the pod's rails are unknown at Allocate.

use super::{holder::Holder, plugin_context::PluginContext};
use crate::chain::record;
use attachments::{
    Attachment, Id, Store,
    libraries::{Allocation, Variables},
};
use daemon_conf::ResourceName;
use node_state::node::Node;
use offer::Environment;
use rdma_netns::{Kernel, LinkType, linux::Linux};
use rdma_resources::{
    ContainerLimits, Containers, Grant,
    container::{ContainerId, Edits, LibraryFile},
    grant::GrantedDevice,
};
use std::fmt::Display;
use tonic::Status;

/// Network, variables and limits that Allocate promised to a container.
#[derive(Clone, Copy)]
pub(super) struct Promised {
    /// True if `rdma-cni` must have attached the devices to the container's pod.
    pub(super) network: bool,
    /// True if the container gets environment variables with its pod's rails.
    pub(super) rails: bool,
    pub(super) limits: ContainerLimits,
}

/// A container, identified by the resources and ids that kubelet allocated to it.
pub(super) struct Container {
    resource: String,
    /// Ids of `resource` that the container has.
    ids: Vec<String>,
    /// All ids that kubelet allocated to the container, of all resources. If kubelet does not report the container:
    /// only the ids of the present call.
    allocated: Vec<(String, String)>,
}

impl Container {
    /// Returns the container with `ids` of `resource`. `holder` is kubelet's report of the container.
    pub(super) fn new(resource: &ResourceName, ids: &[String], holder: Option<&Holder>) -> Self {
        let resource = resource.to_string();
        let allocated = match holder {
            Some(holder) => holder.allocated.clone(),
            None => ids
                .iter()
                .map(|id| (resource.clone(), id.clone()))
                .collect(),
        };
        Self {
            resource,
            ids: ids.to_vec(),
            allocated,
        }
    }

    fn id(&self) -> Option<ContainerId<'_>> {
        ContainerId::of(&self.resource, &self.ids)
    }
}

/// Writes the files that `environment` requires, and the container's CDI entry if it has limits or rails. The list of
/// rails is empty for a pod with `hostNetwork`.
///
/// # Errors
/// An unreadable record may be the pod's, a file cannot be read or written, or `rdma-cni`, which sets limits, is not
/// installed. Kubelet repeats the call.
pub(super) async fn write(
    context: &PluginContext,
    container: Container,
    environment: &Environment,
    promised: Promised,
) -> Result<(), Status> {
    let has_rails = environment.has_rails() || promised.rails;
    let has_entry = has_rails || !promised.limits.is_empty();
    let has_files = environment.has_files();
    if !has_entry && !has_files {
        return Ok(());
    }
    let (state_dir, containers) = (
        context.arguments.state_dir.clone(),
        context.containers.clone(),
    );
    let (node, hardware) = (context.node.borrow().clone(), context.hardware.clone());
    let grants = context.grants.clone();
    let written = move || -> Result<(), String> {
        let _lock = containers.lock().map_err(in_words)?;
        let store = Store::new(&state_dir);
        let boot_id = Linux::new().boot_id().unwrap_or_default();
        let all = store.of_boot(&boot_id).map_err(in_words)?;
        let attachments = of_pod(&all, &container);
        // an unreadable record matters only if the container needs rails or files, and no attachment of its pod was
        // found
        let unreadable = match attachments.is_empty() && (has_rails || has_files) {
            true => store.unreadable().map_err(in_words)?,
            false => vec![],
        };
        if !unreadable.is_empty() {
            let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
            let unreadable = unreadable.join(", ");
            return Err(format!(
                "the record of the container's pod may be one of these unreadable records: {unreadable}"
            ));
        }
        if has_entry {
            let rails = attachments.iter().flat_map(|it| it.describe_rails());
            let edits = Edits {
                rails: has_rails.then(|| rails.collect()),
                hook: record::hook(&state_dir, promised.limits)?,
            };
            let held: Vec<ContainerId<'_>> = all.iter().flat_map(held).collect();
            let written =
                containers.write_entry((&container.resource, &container.ids), &edits, &held);
            written.map_err(in_words)?;
        }
        if has_files {
            let grant = |(resource, id): &(String, String)| grants.read(resource, id).transpose();
            let grants = container.allocated.iter().filter_map(grant);
            let grants = grants
                .collect::<Result<Vec<Grant>, _>>()
                .map_err(in_words)?;
            write_libraries(
                &containers,
                &container,
                hardware.kernel(),
                &node,
                &attachments,
                &grants,
            )?;
        }
        Ok(())
    };
    let written = tokio::task::spawn_blocking(written).await;
    let written = written.map_err(|error| Status::internal(error.to_string()))?;
    written.map_err(|why| {
        Status::unavailable(format!(
            "cannot set up the container's environment or limits (fields environment, memlock, limits of its \
             resource): {why}"
        ))
    })
}

fn in_words(error: impl Display) -> String {
    error.to_string()
}

/// Writes the files that the resources of `container` require. If two resources of a container have files, the runtime
/// mounts two directories at the same path, and the container may see either of them. Each file therefore describes the
/// `grants` of all resources with this file.
fn write_libraries<K: Kernel>(
    containers: &Containers,
    container: &Container,
    kernel: &K,
    node: &Node,
    attachments: &[&Attachment],
    grants: &[Grant],
) -> Result<(), String> {
    let Some(id) = container.id() else {
        return Ok(());
    };
    let port = |id: &Id, device: &GrantedDevice| {
        let offer = node.offer(&id.resource)?;
        let mut offered = offer.devices.iter();
        let first = offered
            .find(|it| it.address == device.address)?
            .hca
            .ports
            .first()?;
        Some((first.number, first.link_type == LinkType::Infiniband))
    };
    let chain = node.conf.chain.as_ref();
    for file in LibraryFile::ALL {
        let has_it = |grant: &&Grant| {
            let offer = node.offer(&grant.resource);
            offer.is_some_and(|it| it.environment.has_file(file))
        };
        let ids = grants.iter().filter(has_it).map(|grant| {
            let (resource, id) = (grant.resource.clone(), grant.id.clone());
            (Id { resource, id }, &*grant.devices)
        });
        let allocation = Allocation {
            kernel,
            attachments: attachments.to_vec(),
            ids: ids.collect(),
        };
        if allocation.ids.is_empty() {
            continue;
        }
        let attaches = |resource: &str| chain.is_some_and(|it| it.attaches(resource));
        let Variables { all, undecided } = allocation.variables(file, port, attaches);
        if let Some(why) = undecided {
            let pod = attachments.iter().find_map(|it| it.pod.as_deref());
            log::warn!("{}: {}: {why}", container.resource, pod.unwrap_or("a pod"));
        }
        let written = containers.write_library_file(id, file, all);
        written.map_err(in_words)?;
    }
    Ok(())
}

fn held(attachment: &Attachment) -> impl Iterator<Item = ContainerId<'_>> {
    let rails = attachment.rails.iter();
    let ids = rails.filter_map(|rail| rail.allocated.as_ref());
    ids.flat_map(|it| &it.ids).map(|it| ContainerId {
        resource: &it.resource,
        id: &it.id,
    })
}

/// Returns the attachments of the newest sandbox that has one of the container's ids. The sandbox may lack other ids of
/// the container: an id has no rail if its NIC is down, or if the pod did not select the NIC.
fn of_pod<'a>(all: &'a [Attachment], container: &Container) -> Vec<&'a Attachment> {
    let is_its = |held: ContainerId<'_>| {
        let mut allocated = container.allocated.iter();
        allocated.any(|(resource, id)| resource == held.resource && id == held.id)
    };
    let own = all.iter().filter(|it| held(it).any(is_its));
    let Some(last) = own.max_by_key(|it| it.observed_at) else {
        return vec![];
    };
    let of_sandbox = all.iter();
    of_sandbox
        .filter(|it| it.key.container == last.key.container)
        .collect()
}
