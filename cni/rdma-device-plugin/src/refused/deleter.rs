// SPDX-License-Identifier: Apache-2.0
//! The task that deletes refused pods, one after the other. Of the API server it asks for as little as can
//! be: `delete` of pods and `create` of events. To know a pod it has its deletion tried (`dryRun`), whose
//! answer is the pod; so a policy that holds it to the pods of its own node
//! holds for the look, too.

use super::{
    Cure, Ids, PodName, Verdict,
    history::{History, Step},
    pod::Pod,
};
use crate::{
    api::{AGENT, LIMIT},
    metrics::Metrics,
    report::event::Event,
    said::Said,
};
use kubernetes_api::{Access, AccessError, Client, Method, Refusal, RequestError};
use serde_json::{Value, json};
use std::{path::Path, time::Instant};
use tokio::sync::mpsc;

/// What is written of it in the pod's events.
const REASON: &str = "RdmaPodDeleted";

/// Deletes refused pods.
#[derive(Debug)]
pub struct Deleter {
    client: Result<Client, String>,
    history: History,
    metrics: Metrics,
    /// What went wrong last: it is said once.
    told: Said,
}

/// It cannot be done now.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Client(String),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the API server answers with something else than {0}")]
    Other(&'static str),
}

/// What a request came to.
enum Found<T> {
    It(T),
    /// There is no such pod, or it is another one.
    Gone,
}

impl Deleter {
    /// One with the token in `directory`. Without one it says so at each pod.
    pub fn new(directory: &Path, metrics: Metrics) -> Self {
        let access = Access::of_pod(directory).map_err(|error| error.to_string());
        Self {
            client: access.map(|access| Client::new(access, AGENT, LIMIT)),
            history: History::default(),
            metrics,
            told: Said::default(),
        }
    }

    /// Until nobody tells verdicts any more.
    pub async fn run(mut self, mut verdicts: mpsc::Receiver<Verdict>) {
        if let Err(failure) = self.node() {
            log::warn!("pods whose containers may not start cannot be deleted as it is: {failure}");
        }
        while let Some(verdict) = verdicts.recv().await {
            match verdict {
                Verdict::MayStart(ids) => self.history.ended(&ids),
                Verdict::Refused {
                    ids,
                    pod,
                    why,
                    cure,
                } => self.see_to(&ids, &pod, &why, cure).await,
            }
        }
    }

    async fn see_to(&mut self, ids: &Ids, name: &PodName, why: &str, cure: Cure) {
        let done = match self.history.refused(ids, name, cure, Instant::now()) {
            Step::None => return,
            Step::Told(wait) => {
                log::warn!("{name}, which cannot start, is not deleted yet: {wait}");
                return;
            }
            Step::Look => self.look(ids, name).await,
            Step::Delete { pod, event } => self.delete(ids, name, pod, event, why).await,
        };
        match done {
            Ok(()) => {
                self.told.ends();
            }
            Err(failure) => {
                self.metrics.refused_pod(&ids.resource, "failed");
                let line = failure.to_string();
                if self.told.is_news(&line) {
                    log::error!("{name} cannot start, and cannot be deleted either: {line}");
                }
            }
        }
    }

    fn client(&self) -> Result<&Client, Failure> {
        let client = self.client.as_ref();
        client.map_err(|error| Failure::Client(error.clone()))
    }

    /// The node of the token.
    fn node(&self) -> Result<String, Failure> {
        let identity = self.client()?.access().identity()?;
        Ok(identity.node()?.to_owned())
    }

    /// Sees which pod it is.
    async fn look(&mut self, ids: &Ids, name: &PodName) -> Result<(), Failure> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]});
        let Found::It(object) = self.ask_to_delete(name, &options).await? else {
            return Ok(());
        };
        let pod = Pod::read(&object).ok_or(Failure::Other("a pod"))?;
        let stays = pod.stays(&self.node()?);
        if let Some(stays) = stays {
            log::warn!("{name} cannot start, and is not deleted: {stays}");
            self.metrics.refused_pod(&ids.resource, "kept");
        }
        let now = Instant::now();
        self.history
            .is(ids.clone(), name.clone(), pod, stays.is_some(), now);
        Ok(())
    }

    /// Says it, and does it.
    async fn delete(
        &mut self,
        ids: &Ids,
        name: &PodName,
        pod: Pod,
        event: Option<String>,
        why: &str,
    ) -> Result<(), Failure> {
        let event = match event {
            Some(written) => written,
            None => {
                let written = self.write_event(name, &pod, why).await?;
                self.history.has_event(ids, &written);
                written
            }
        };
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.uid},
        });
        match self.ask_to_delete(name, &options).await? {
            Found::Gone => self.history.ended(ids),
            Found::It(_) => {
                let owner = pod.owner.as_ref();
                let owner = owner.map(|it| format!("{} {}", it.kind, it.name));
                log::warn!(
                    "{name} is deleted, and {} is to make another: {why}",
                    owner.unwrap_or_default()
                );
                self.metrics.refused_pod(&ids.resource, "deleted");
                self.history.deleted(&pod, &event, Instant::now());
            }
        }
        Ok(())
    }

    async fn ask_to_delete(
        &self,
        name: &PodName,
        options: &Value,
    ) -> Result<Found<Value>, Failure> {
        let PodName { namespace, name } = name;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let client = self.client()?;
        match client.ask(Method::DELETE, &path, Some(options)).await {
            Ok(object) => Ok(Found::It(object)),
            // not found, or of another uid
            Err(RequestError::Refused(Refusal {
                code: 404 | 409, ..
            })) => Ok(Found::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// When it was written, by the API server's clock.
    async fn write_event(&self, name: &PodName, pod: &Pod, why: &str) -> Result<String, Failure> {
        let message = format!("deleted, so that another one is made: {why}");
        let event = Event {
            pod: name,
            uid: Some(&pod.uid),
            node: &pod.node,
            reason: REASON,
            is_warning: true,
            message: &message,
        };
        let written = event.write(self.client()?).await?;
        let created = written["metadata"]["creationTimestamp"].as_str();
        Ok(created.ok_or(Failure::Other("an event"))?.to_owned())
    }
}
