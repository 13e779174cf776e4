// SPDX-License-Identifier: Apache-2.0
//! Checks, before a container starts, that the runtime used a CNI list with `rdma-cni` for the pod's network. Without
//! `rdma-cni`, the container would have its character devices, but no rails.

use super::{holder::Holder, plugin_context::PluginContext};
use crate::{
    chain::{
        ChainStatus, evidence,
        record::Record,
        sandbox::{self, Made},
    },
    refused::{PodName, Refused},
};
use conflist::{Called, TYPE, placement};
use daemon_conf::{ResourceName, chain::Placement};
use kubelet_api::pod_resources::AskError;
use offer::Cure;
use std::{fs, path::Path, time::SystemTime};
use tonic::Status;

/// Returns true if a CNI list of this node has `rdma-cni`, according to the record of the chain. Returns false if the
/// record is unreadable.
pub(crate) fn is_chained(state_dir: &Path) -> bool {
    let record = Record::read(state_dir).ok().flatten();
    record.is_some_and(|it| !it.lists.is_empty())
}

/// Checks that the runtime used a CNI list with `rdma-cni` for the network of a pod. `holder` is the pod's container
/// that has `ids` of `resource`. Accepts a pod if the daemon cannot determine the CNI list.
///
/// # Errors
/// The CNI list has no `rdma-cni`, or kubelet does not answer.
pub(super) async fn check(
    context: &PluginContext,
    resource: &ResourceName,
    ids: &[String],
    holder: &Result<Option<Holder>, AskError>,
) -> Result<(), Refused> {
    let holder = holder.as_ref().map_err(|error| {
        Status::unavailable(format!(
            "cannot determine the container's pod, or whether {TYPE} set up the pod's network: {error}"
        ))
    })?;
    // accept an init container: kubelet does not report its ids, so `rdma-cni` cannot attach its devices either
    let Some(holder) = holder else {
        return Ok(());
    };
    let pod = &holder.container.pod;
    let (state_dir, cache) = (
        context.arguments.state_dir.clone(),
        context.arguments.cni_cache_dir.clone(),
    );
    let name = pod.clone();
    let granted = ids
        .iter()
        .filter_map(|id| context.grants.given_at(resource.as_str(), id));
    let since = granted.max().unwrap_or(SystemTime::UNIX_EPOCH);
    let read = move || {
        // no check is possible while no list has `rdma-cni`, for example because `uninstall` has removed it meanwhile
        if !is_chained(&state_dir) {
            return Ok(Made::Unknown);
        }
        let attachments = state_dir.join("attachments");
        sandbox::made(&cache, &attachments, &name, since)
    };
    let made = tokio::task::spawn_blocking(read).await;
    let made = made.map_err(|error| Status::internal(error.to_string()))?;
    match made {
        Ok(Made::WithUs | Made::Unknown) => Ok(()),
        Ok(Made::Twice { network }) => {
            log::warn!(
                "{pod} has the network {network} twice: containerd uses the network's file and also the list \
                 with {TYPE}; set max_conf_num to 1 in containerd's configuration"
            );
            Ok(())
        }
        Ok(Made::WithoutUs { network }) => {
            let remedy = match is_unread(context, &network, pod).await {
                true => without_directory(context, &network),
                false => None,
            };
            let (remedy, cure) = remedy.unwrap_or_else(|| remedy_for(&context.chain.borrow()));
            let status = Status::failed_precondition(format!(
                "the network of {pod} was made by a list of {network} without {TYPE}: the pod has no \
                 rails; {remedy}"
            ));
            Err(Refused { status, cure })
        }
        Err(error) => {
            log::warn!(
                "cannot determine whether {TYPE} set up the network of {pod}: {:?}: {error}",
                context.arguments.cni_cache_dir
            );
            Ok(())
        }
    }
}

/// Returns true if the runtime made the pod's network without `rdma-cni`, although the directory of `network` already
/// had the entry of `rdma-cni`. The runtime then does not read this directory, for example because another runtime was
/// installed.
async fn is_unread(context: &PluginContext, network: &str, pod: &PodName) -> bool {
    let status = context.chain.borrow().clone();
    let ChainStatus::Called(Called {
        file,
        network: of_file,
        by_others: false,
    }) = status
    else {
        return false;
    };
    if !placement::is_ours(&file) || of_file != network {
        return false;
    }
    let (state_dir, cache) = (
        context.arguments.state_dir.clone(),
        context.arguments.cni_cache_dir.clone(),
    );
    let pod = pod.clone();
    let read = move || {
        let dir = Record::read(&state_dir).ok().flatten()?.conf_dir?;
        let written = fs::metadata(dir.join(file)).and_then(|it| it.modified());
        let attachments = state_dir.join("attachments");
        sandbox::made(&cache, &attachments, &pod, written.ok()?).ok()
    };
    let made = tokio::task::spawn_blocking(read).await;
    matches!(made, Ok(Some(Made::WithoutUs { .. })))
}

/// Removes the evidence that the runtime reads the network's own directory. With the placement `auto`, the reconciler
/// then moves the entry back to the list. With the placement `directory`, returns the remedy.
fn without_directory(context: &PluginContext, network: &str) -> Option<(String, Cure)> {
    log::warn!(
        "the runtime no longer calls the plugins in the directory of network {network}, or chain.placement is wrong: \
         only libcni 1.3 and later (containerd 2.1) call them"
    );
    if let Err(error) = evidence::forget(&context.arguments.state_dir, network) {
        log::warn!("network {network}: {error}; the daemon may use the network's directory again");
    }
    let node = context.node.borrow();
    let chain = node.conf.chain.as_ref();
    let is_fixed = chain.is_some_and(|it| it.placement == Placement::Directory);
    let remedy = format!(
        "the runtime does not call the plugins in the directory of {network}: set chain.placement to auto, and \
         then delete the pod"
    );
    is_fixed.then_some((remedy, Cure::Time))
}

/// Returns the remedy and the cure of a refusal. Another pod is the cure only if the runtime now calls `rdma-cni`.
fn remedy_for(status: &ChainStatus) -> (String, Cure) {
    match status {
        ChainStatus::NotCalled(why) => {
            let later = format!(
                "the runtime does not call {TYPE} now ({why}); delete the pod when it does"
            );
            (later, Cure::Time)
        }
        status => {
            let now = "delete the pod, so that its network is set up again".to_owned();
            let is_called = matches!(status, ChainStatus::Called(_));
            (
                now,
                if is_called {
                    Cure::AnotherPod
                } else {
                    Cure::Time
                },
            )
        }
    }
}
