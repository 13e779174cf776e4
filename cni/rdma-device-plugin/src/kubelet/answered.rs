// SPDX-License-Identifier: Apache-2.0
//! The daemon's answers to PreStartContainer. The daemon logs an answer, and sends it to the tasks that handle refused
//! pods.

use super::{holder::Holder, plugin_context::PluginContext};
use crate::refused::{Ids, Refused, Verdict};
use daemon_conf::ResourceName;
use kubelet_api::pod_resources::AskError;

/// Publishes the answer for the container `holder` with `ids` of `resource`. `refused` is the reason why the container
/// must not start. Logs only the error if kubelet did not report the container's pod because of an error.
pub(super) fn publish(
    context: &PluginContext,
    resource: &ResourceName,
    ids: &[String],
    refused: Option<Refused>,
    holder: &Result<Option<Holder>, AskError>,
) {
    let verdict = match &refused {
        None => "may start".to_owned(),
        Some(refused) => format!("must not start: {}", refused.status.message()),
    };
    let all = ids.join(", ");
    match holder {
        Ok(Some(holder)) => log::info!("{resource}: {all} of {}: {verdict}", holder.container),
        Ok(None) => {
            log::info!("{resource}: {all} of a pod that kubelet does not report: {verdict}");
        }
        Err(error) => log::debug!("{resource}: cannot find the container of {all}: {error}"),
    }
    let ids = Ids::new(resource.as_str(), ids);
    match (refused, holder) {
        (None, _) => context.verdicts.send(&Verdict::MayStart(ids)),
        (Some(Refused { status, cure }), Ok(Some(holder))) => {
            context.verdicts.send(&Verdict::Refused {
                ids,
                pod: holder.container.pod.clone(),
                why: status.message().to_owned(),
                cure,
            });
        }
        // send nothing: kubelet does not report the pod, or does not answer
        (Some(_), _) => {}
    }
}
