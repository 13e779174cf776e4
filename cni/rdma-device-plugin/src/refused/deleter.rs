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
use crate::metrics::Metrics;
use kubernetes_api::{Access, AccessError, Client, Method, RequestError, client::Refusal};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::mpsc;

/// What the daemon calls itself.
const NAME: &str = "rdma-device-plugin";

/// For each request.
const LIMIT: Duration = Duration::from_secs(10);

/// What is written of it in the pod's events.
const REASON: &str = "RdmaPodDeleted";

/// The API server takes no longer ones of the new kind (`NoteLengthLimit`, 1024).
const LONGEST_MESSAGE: usize = 1000;

/// Deletes refused pods.
#[derive(Debug)]
pub struct Deleter {
    client: Result<Client, String>,
    history: History,
    metrics: Metrics,
    /// What went wrong last: it is said once.
    told: Option<String>,
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
            client: access.map(|access| Client::new(access, NAME, LIMIT)),
            history: History::default(),
            metrics,
            told: None,
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
            Ok(()) => self.told = None,
            Err(failure) => {
                self.metrics.refused_pod(&ids.resource, "failed");
                let line = failure.to_string();
                if self.told.as_ref() != Some(&line) {
                    log::error!("{name} cannot start, and cannot be deleted either: {line}");
                    self.told = Some(line);
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
        let PodName { namespace, name } = name;
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let now = rfc3339(SystemTime::now());
        let event = json!({
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"generateName": format!("{name}."), "namespace": namespace},
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name,
                "uid": pod.uid,
            },
            "reason": REASON,
            "message": message(why),
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": NAME, "host": pod.node},
            "reportingComponent": NAME,
            "reportingInstance": pod.node,
        });
        let written = self
            .client()?
            .ask(Method::POST, &path, Some(&event))
            .await?;
        let created = written["metadata"]["creationTimestamp"].as_str();
        Ok(created.ok_or(Failure::Other("an event"))?.to_owned())
    }
}

fn message(why: &str) -> String {
    let message = format!("deleted, so that another one is made: {why}");
    let end = message.floor_char_boundary(LONGEST_MESSAGE);
    message[..end].to_owned()
}

/// `2026-01-31T10:00:00Z`, as Kubernetes writes times.
fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn times_are_written_as_kubernetes_writes_them() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_772_323_200, "2026-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), written);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert!(message("short").ends_with(": short"));
        let long = message(&"\u{e9}".repeat(2000));
        assert!((LONGEST_MESSAGE - 2..=LONGEST_MESSAGE).contains(&long.len()));
    }
}
