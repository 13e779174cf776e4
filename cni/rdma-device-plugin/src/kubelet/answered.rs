// SPDX-License-Identifier: Apache-2.0
//! What kubelet was told of a container's start, for people and for who sees to refused pods.

use super::{
    holder::{self, Holder},
    plugin_context::PluginContext,
};
use crate::{
    conf::ResourceName,
    refused::{Ids, PodName, Refused, Verdict},
};
use kubelet_api::pod_resources::AskError;

/// What kubelet was told of a container's start.
pub(super) struct Told {
    pub(super) resource: ResourceName,
    pub(super) ids: Vec<String>,
    /// None: it may start.
    pub(super) refused: Option<Refused>,
}

impl Told {
    /// Says it in the log, and to who sees to refused pods.
    pub(super) fn tell(self, context: &PluginContext, asked: &Result<Option<Holder>, AskError>) {
        let words = match &self.refused {
            None => "may start".to_owned(),
            Some(refused) => format!("must not start: {}", refused.status.message()),
        };
        holder::tell(&self.resource, &self.ids, asked, &words);
        let ids = Ids::new(self.resource.as_str(), &self.ids);
        match (self.refused, asked) {
            (None, _) => context.verdicts.tell(&Verdict::MayStart(ids)),
            (Some(Refused { status, cure }), Ok(Some(holder))) => {
                context.verdicts.tell(&Verdict::Refused {
                    ids,
                    pod: PodName {
                        namespace: holder.namespace.clone(),
                        name: holder.pod.clone(),
                    },
                    why: status.message().to_owned(),
                    cure,
                });
            }
            // which pod it is, is not known: kubelet tries again
            (Some(_), _) => {}
        }
    }
}
