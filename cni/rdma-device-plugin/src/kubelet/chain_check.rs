// SPDX-License-Identifier: Apache-2.0
//! A container that was allocated a resource of the chain's starts only if its pod's network was made
//! by the chain: else it would run, find its devices, and miss the rails.

use super::{holder::Holder, plugin_context::PluginContext};
use crate::{
    chain::{
        ChainStatus, evidence,
        record::Record,
        sandbox::{self, Made},
    },
    conf::{ResourceName, chain::Placement},
    refused::{Cure, Refused},
};
use conflist::{TYPE, placement};
use kubelet_api::pod_resources::AskError;
use std::{fs, path::Path, time::SystemTime};
use tonic::Status;

/// Whether our plugin was put into a list of this node: pods that are given something from now on have
/// their network made with it.
pub(crate) fn is_chained(state_dir: &Path) -> bool {
    let record = Record::read(state_dir).ok().flatten();
    record.is_some_and(|it| !it.lists.is_empty())
}

/// The pod with `ids` of `resource` was to have its network made by the chain; `asked` is which pod
/// it is.
///
/// # Errors
/// It was not; or kubelet does not say which pod it is, and asks again later.
pub(super) async fn check(
    context: &PluginContext,
    resource: &ResourceName,
    ids: &[String],
    asked: &Result<Option<Holder>, AskError>,
) -> Result<(), Refused> {
    let holder = asked.as_ref().map_err(|error| {
        Status::unavailable(format!(
            "which pod it is, and whether its network was made by {TYPE}, is not known: {error}"
        ))
    })?;
    // an init container's ids are told to the chain by nobody either
    let Some(holder) = holder else {
        return Ok(());
    };
    let (state_dir, cache) = (context.state_dir.clone(), context.cni_cache.clone());
    let (namespace, pod) = (holder.namespace.clone(), holder.pod.clone());
    let given = ids
        .iter()
        .filter_map(|id| context.grants.given_at(resource.as_str(), id));
    let since = given.max().unwrap_or(SystemTime::UNIX_EPOCH);
    let look = move || {
        // taken off the node since: there is nothing to insist on
        if !is_chained(&state_dir) {
            return Ok(Made::Untold);
        }
        let attachments = state_dir.join("attachments");
        sandbox::made(&cache, &attachments, (&namespace, &pod), since)
    };
    let made = tokio::task::spawn_blocking(look).await;
    let made = made.map_err(|error| Status::internal(error.to_string()))?;
    match made {
        Ok(Made::WithUs | Made::Untold) => Ok(()),
        Ok(Made::Twice { network }) => {
            log::warn!(
                "{}/{} has the network {network} twice: containerd uses the network's file and the list \
                 with {TYPE} beside it; set max_conf_num to 1 in containerd's configuration",
                holder.namespace,
                holder.pod
            );
            Ok(())
        }
        Ok(Made::WithoutUs { network }) => {
            let remedy = match is_unread(context, &network, holder).await {
                true => without_directory(context, &network),
                false => None,
            };
            let (what_to_do, cure) = remedy.unwrap_or_else(|| what_to_do(&context.chain.borrow()));
            let status = Status::failed_precondition(format!(
                "the network of {}/{} was made by a list of {network} without {TYPE}: the pod has no \
                 rails; {what_to_do}",
                holder.namespace, holder.pod,
            ));
            Err(Refused { status, cure })
        }
        Err(error) => {
            log::warn!(
                "whether the network of {}/{} was made by {TYPE} is not known: {:?}: {error}",
                holder.namespace,
                holder.pod,
                context.cni_cache
            );
            Ok(())
        }
    }
}

/// Whether the runtime does not read the directory that has our plugin's entry, as another has taken the place of
/// one that did: the network of `holder` was made after the entry was there, and without our plugin.
async fn is_unread(context: &PluginContext, network: &str, holder: &Holder) -> bool {
    let status = context.chain.borrow().clone();
    let ChainStatus::Called {
        file,
        network: of_file,
        by_others: false,
    } = status
    else {
        return false;
    };
    if !placement::is_ours(&file) || of_file != network {
        return false;
    }
    let (state_dir, cache) = (context.state_dir.clone(), context.cni_cache.clone());
    let (namespace, pod) = (holder.namespace.clone(), holder.pod.clone());
    let look = move || {
        let dir = Record::read(&state_dir).ok().flatten()?.conf_dir?;
        let written = fs::metadata(dir.join(file)).and_then(|it| it.modified());
        let attachments = state_dir.join("attachments");
        sandbox::made(&cache, &attachments, (&namespace, &pod), written.ok()?).ok()
    };
    let made = tokio::task::spawn_blocking(look).await;
    matches!(made, Ok(Some(Made::WithoutUs { .. })))
}

/// What is to be done where the directory is not read: by `auto` the entry goes into the list again, by what is
/// forgotten here.
fn without_directory(context: &PluginContext, network: &str) -> Option<(String, Cure)> {
    log::warn!(
        "the runtime does not call what is in the directory of network {network}, and did before, or \
         chain.placement is wrong: libcni 1.3 and later do (containerd 2.1)"
    );
    if let Err(error) = evidence::forget(&context.state_dir, network) {
        log::warn!("{error}");
    }
    let node = context.node.borrow();
    let chain = node.conf.chain.as_ref();
    let is_fixed = chain.is_some_and(|it| it.placement == Placement::Directory);
    let what_to_do = format!(
        "the runtime does not call what is in the directory of {network}: set chain.placement to auto, and \
         then delete the pod"
    );
    is_fixed.then_some((what_to_do, Cure::Time))
}

/// Another pod is of use only if its network would be made by the chain.
fn what_to_do(status: &ChainStatus) -> (String, Cure) {
    match status {
        ChainStatus::NotCalled(why) => {
            let later = format!(
                "delete it when the runtime calls {TYPE} again, which it does not now: {why}"
            );
            (later, Cure::Time)
        }
        status => {
            let now = "delete it, so that its network is made again".to_owned();
            let is_called = matches!(status, ChainStatus::Called { .. });
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
