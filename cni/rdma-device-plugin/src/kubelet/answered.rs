// SPDX-License-Identifier: Apache-2.0
//! The daemon's answers to kubelet about starts of containers. The daemon logs each answer, and sends it to the tasks
//! that handle refused pods.

use super::{
    holder::{self, Holder},
    plugin_context::PluginContext,
};
use crate::{
    conf::ResourceName,
    refused::{Ids, PodName, Refused, Verdict},
};
use kubelet_api::pod_resources::AskError;

pub(super) struct Answered {
    pub(super) resource: ResourceName,
    pub(super) ids: Vec<String>,
    /// Reason of the refusal; `None`: the container may start.
    pub(super) refused: Option<Refused>,
}

impl Answered {
    pub(super) fn publish(
        self,
        context: &PluginContext,
        holder: &Result<Option<Holder>, AskError>,
    ) {
        let words = match &self.refused {
            None => "may start".to_owned(),
            Some(refused) => format!("must not start: {}", refused.status.message()),
        };
        holder::log_verdict(&self.resource, &self.ids, holder, &words);
        let ids = Ids::new(self.resource.as_str(), &self.ids);
        match (self.refused, holder) {
            (None, _) => context.verdicts.send(&Verdict::MayStart(ids)),
            (Some(Refused { status, cure }), Ok(Some(holder))) => {
                context.verdicts.send(&Verdict::Refused {
                    ids,
                    pod: PodName {
                        namespace: holder.namespace.clone(),
                        name: holder.pod.clone(),
                    },
                    why: status.message().to_owned(),
                    cure,
                });
            }
            // send nothing: the pod is unknown, because kubelet does not report it yet. Kubelet repeats the call
            (Some(_), _) => {}
        }
    }
}
