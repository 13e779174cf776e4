// SPDX-License-Identifier: Apache-2.0
//! The daemon's answers to PreStartContainer. The daemon logs an answer, and sends it to the tasks that handle refused
//! pods.

use super::{
    holder::{self, Holder},
    plugin_context::PluginContext,
};
use crate::refused::{Ids, Refused, Verdict};
use daemon_conf::ResourceName;
use kubelet_api::pod_resources::AskError;

pub(super) struct Answered {
    pub(super) resource: ResourceName,
    pub(super) ids: Vec<String>,
    /// Reason why the container must not start. `None`: the container may start.
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
                    pod: holder.container.pod.clone(),
                    why: status.message().to_owned(),
                    cure,
                });
            }
            // send nothing: kubelet does not report the pod, or does not answer
            (Some(_), _) => {}
        }
    }
}
