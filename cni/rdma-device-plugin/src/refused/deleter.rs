// SPDX-License-Identifier: Apache-2.0
//! Task that deletes refused pods one after the other. It needs only the rights to `delete` pods and to `create`
//! events. To read a pod, it sends a deletion with `dryRun`, and the API server returns the pod. A policy that allows
//! deletion only for pods of the daemon's own node therefore also restricts these reads.

use super::{
    Ids, PodName, Verdict,
    history::{History, Step},
    pod::Pod,
};
use crate::{api::Api, metrics::Metrics, report::event::Event};
use anyhow::{Context, Result};
use kubernetes_api::{Client, Method};
use node_state::log_once::LogOnce;
use offer::Cure;
use serde_json::{Value, json};
use std::{path::PathBuf, time::Instant};
use tokio::sync::mpsc;

const REASON: &str = "RdmaPodDeleted";

/// Deletes refused pods.
#[derive(Debug)]
pub struct Deleter {
    /// Directory of the service account's token.
    account: PathBuf,
    history: History,
    metrics: Metrics,
    reported: LogOnce,
}

impl Deleter {
    /// Returns a deleter. The directory `account` contains the service account's token. Without a token, the deleter
    /// deletes no pod.
    pub fn new(account: PathBuf, metrics: Metrics) -> Self {
        Self {
            account,
            history: History::default(),
            metrics,
            reported: LogOnce::default(),
        }
    }

    /// Runs until the sender of verdicts is dropped.
    pub async fn run(mut self, mut verdicts: mpsc::Receiver<Verdict>) {
        if let Err(error) = Api::new(&self.account) {
            log::warn!("cannot delete pods whose containers must not start: {error}");
        }
        while let Some(verdict) = verdicts.recv().await {
            match verdict {
                Verdict::MayStart(ids) => self.history.ended(&ids),
                Verdict::Refused {
                    ids,
                    pod,
                    why,
                    cure,
                } => self.handle(&ids, &pod, &why, cure).await,
            }
        }
    }

    async fn handle(&mut self, ids: &Ids, name: &PodName, why: &str, cure: Cure) {
        let done = match self.history.refused(ids, name, cure, Instant::now()) {
            Step::None => return,
            Step::Wait(wait) => {
                log::warn!("{name}, which cannot start, is not deleted yet: {wait}");
                return;
            }
            Step::Read => self.read(ids, name).await,
            Step::Delete { pod, event } => self.delete(ids, name, pod, event, why).await,
        };
        match done {
            Ok(()) => {
                self.reported.ends();
            }
            Err(error) => {
                self.metrics.refused_pod(&ids.resource, "failed");
                let line = error.to_string();
                if self.reported.is_news(&line) {
                    log::error!("{name} cannot start, and the daemon cannot delete it: {line}");
                }
            }
        }
    }

    /// Reads the pod `name`, to which the refused container belongs, and stores the pod's attributes.
    async fn read(&mut self, ids: &Ids, name: &PodName) -> Result<()> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]});
        let api = Api::new(&self.account)?;
        let Some(object) = request_deletion(&api.client, name, &options).await? else {
            return Ok(());
        };
        let pod = Pod::read(&object).context("the API server's answer is not a pod")?;
        let stays = pod.stays(&api.node);
        if let Some(stays) = stays {
            log::warn!("{name} cannot start, and is not deleted: {stays}");
            self.metrics.refused_pod(&ids.resource, "kept");
        }
        let now = Instant::now();
        self.history
            .is(ids.clone(), name.clone(), pod, stays.is_some(), now);
        Ok(())
    }

    async fn delete(
        &mut self,
        ids: &Ids,
        name: &PodName,
        pod: Pod,
        event: Option<String>,
        why: &str,
    ) -> Result<()> {
        let Api { client, .. } = Api::new(&self.account)?;
        let event = match event {
            Some(written) => written,
            None => {
                let written = write_event(&client, name, &pod, why).await?;
                self.history.has_event(ids, &written);
                written
            }
        };
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.uid},
        });
        match request_deletion(&client, name, &options).await? {
            None => self.history.ended(ids),
            Some(_) => {
                let owner = pod.owner.as_ref();
                let owner = owner.map(|it| format!("{} {}", it.kind, it.name));
                log::warn!(
                    "deleted pod {name}: {why}; {} creates another pod",
                    owner.unwrap_or_default()
                );
                self.metrics.refused_pod(&ids.resource, "deleted");
                self.history.deleted(&pod, &event, Instant::now());
            }
        }
        Ok(())
    }
}

/// Requests the deletion of the pod, or a dry run of the deletion, and returns the pod. Returns `None` if the pod does
/// not exist, or another pod has replaced it.
async fn request_deletion(
    client: &Client,
    PodName { namespace, name }: &PodName,
    options: &Value,
) -> Result<Option<Value>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    match client.ask(Method::DELETE, &path, Some(options)).await {
        // 404: no pod has this name; 409: a pod of this name has another UID
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(None),
        pod => Ok(Some(pod?)),
    }
}

/// Writes the pod's event. Returns the event's time by the API server's clock.
async fn write_event(client: &Client, name: &PodName, pod: &Pod, why: &str) -> Result<String> {
    let message = format!("deleted, so that its controller creates another pod: {why}");
    let event = Event {
        pod: name,
        uid: Some(&pod.uid),
        node: &pod.node,
        reason: REASON,
        is_warning: true,
        message: &message,
    };
    let written = event.write(client).await?;
    let created = written["metadata"]["creationTimestamp"].as_str();
    let created = created.context("the API server's answer is not an event")?;
    Ok(created.to_owned())
}
