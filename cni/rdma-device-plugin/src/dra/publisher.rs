// SPDX-License-Identifier: Apache-2.0
//! Keeps the node's ResourceSlices up to date. Kubelet deletes the slices when it starts, and after the driver was
//! absent for 30 s. The publisher detects this by a watch, and writes the slices again. Without changes, it sends one
//! list request and one watch request in half an hour.

use super::pool::Netdevs;
use crate::{api::Api, metrics::Metrics, retry::is_followed_for};
use ::dra::{
    PoolDevice,
    pool::Effect,
    slices::{self, API, Change, Owner},
};
use kubernetes_api::{Method, RequestError, Watch};
use node_state::{log_once::LogOnce, node::Node, watch::until};
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// Time after which the API server ends a watch.
const WATCHED: Duration = Duration::from_secs(1800);

/// First and longest delay after a failure.
const AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];

/// Shortest normal duration of a watch, and shortest normal time between two deletions of the slices. If the API server
/// ends a watch earlier, the reason is not the time limit. In both cases the publisher pauses before the next watch.
const SHORT: Duration = Duration::from_secs(10);

/// Delay before the next attempt if the API server cannot store the slices.
const MUCH_LATER: Duration = Duration::from_secs(600);

const TAINTS: &str = "taints";

/// Text in the error of an API server that does not support the taint effect `None` (`validateDeviceTaint` in
/// `resource/validation/validation.go`).
const REFUSED: &str = "effect: Unsupported value: \"None\"";

/// Keeps the ResourceSlices of one node.
#[derive(Debug)]
pub struct Publisher {
    node: watch::Receiver<Arc<Node>>,
    account: PathBuf,
    driver: String,
    metrics: Metrics,
    netdevs: Netdevs,
    /// True if the API server drops taints. The publisher then leaves unhealthy devices out of the slices.
    without_taints: bool,
    /// True if the API server does not support the taint effect `None` (Kubernetes before 1.35). Degraded devices then
    /// get no taint.
    without_remarks: bool,
    reported: LogOnce,
    /// True if the slices have been up to date since the last failure. After the next failure, the publisher then
    /// begins with the shortest delay.
    was_kept: bool,
    /// Time of the last write.
    written_at: Option<Instant>,
    /// True from a [`Failure::Contended`] until the slices stay unchanged for [`SHORT`].
    is_contended: bool,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] RequestError),
    #[error("the API server's answer is not a valid {0}")]
    Other(&'static str),
    #[error(
        "the API server drops the field {field} of the node's ResourceSlices, so the daemon publishes no slices; serve \
         the resources by the device plugin (remove dra from the configuration), or upgrade the cluster to \
         Kubernetes 1.36"
    )]
    Dropped { field: String },
    #[error("the API server drops or refuses taints of devices")]
    FewerTaints,
    #[error("the API server ended the watch: {0}")]
    Ended(String),
    #[error("another client wrote or deleted the ResourceSlices at the same time: {0}")]
    Stale(RequestError),
    /// The garbage collector does this if the slices' owner, the Node with the UID in the daemon's token, was deleted
    /// or registered again. Kubelet refreshes the token later.
    #[error(
        "another client changes or deletes the ResourceSlices whenever the daemon has written them"
    )]
    Contended,
}

impl Failure {
    /// Classifies the error of a write request.
    fn of_write(error: RequestError) -> Self {
        match error.code() {
            Some(404 | 409) => Self::Stale(error),
            _ => error.into(),
        }
    }
}

/// The node's slices in the API server, by name.
type Slices = BTreeMap<String, Value>;

impl Publisher {
    /// Returns a publisher for `driver` that follows `node`. The directory `account` contains the service account's
    /// token.
    pub fn new(
        node: watch::Receiver<Arc<Node>>,
        account: PathBuf,
        driver: String,
        metrics: Metrics,
    ) -> Self {
        Self {
            node,
            account,
            driver,
            metrics,
            netdevs: Netdevs::default(),
            without_taints: false,
            without_remarks: false,
            reported: LogOnce::default(),
            was_kept: false,
            written_at: None,
            is_contended: false,
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        self.keep().await;
        self.metrics.slices(None);
    }

    async fn keep(&mut self) {
        let mut wait = AGAIN[0];
        loop {
            let begun = Instant::now();
            let failure = match self.follow().await {
                // pause before the next watch if an API server ends watches at once. A change of the node still causes
                // a write.
                Ok(true) if begun.elapsed() < SHORT => {
                    tokio::select! {
                        () = sleep(wait) => wait = (wait * 2).min(AGAIN[1]),
                        changed = self.node.changed() => match changed {
                            Ok(()) => {}
                            Err(_) => return,
                        },
                    }
                    continue;
                }
                Ok(true) => {
                    wait = AGAIN[0];
                    continue;
                }
                Err(Failure::FewerTaints) => continue,
                Ok(false) => return,
                Err(failure) => failure,
            };
            let line = failure.to_string();
            let was_kept = std::mem::take(&mut self.was_kept);
            let is_contended = matches!(failure, Failure::Contended);
            let was_contended = std::mem::replace(&mut self.is_contended, is_contended);
            if was_kept && !(is_contended && was_contended) {
                wait = AGAIN[0];
            }
            // do not log the first refusal of an outdated resource version, because the next list usually corrects the
            // version; do not log a second deletion, because kubelet may have started twice
            let is_first = is_contended && !was_contended;
            let is_usual = was_kept && (is_first || matches!(failure, Failure::Stale(_)));
            self.metrics.slices(Some(is_usual));
            if !is_usual && self.reported.is_news(&line) {
                log::error!("the node's ResourceSlices are out of date: {line}");
            }
            if let Failure::Dropped { .. } = failure {
                wait = MUCH_LATER;
            }
            if !is_followed_for(&mut self.node, wait).await {
                return;
            }
            wait = (wait * 2).min(AGAIN[1]);
        }
    }

    /// Lists the slices, and updates them until their watch ends. Returns false if the sender of `node` is dropped.
    async fn follow(&mut self) -> Result<bool, Failure> {
        let api = Api::new(&self.account).map_err(RequestError::from)?;
        let owner = Owner {
            driver: self.driver.clone(),
            node: api.node.clone(),
            node_uid: api.node_uid.clone(),
        };
        let collection = format!("{API}/resourceslices?{}", owner.selector());
        let mut list = api.client.ask(Method::GET, &collection, None).await?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .map(str::to_owned);
        let version = version.ok_or(Failure::Other("list"))?;
        let items = match list["items"].take() {
            Value::Array(items) => items,
            _ => vec![],
        };
        let named = |slice: Value| Some((name(&slice)?.to_owned(), slice));
        let mut slices: Slices = items.into_iter().filter_map(named).collect();
        let path = format!(
            "{collection}&watch=true&resourceVersion={version}&timeoutSeconds={}",
            WATCHED.as_secs()
        );
        let mut watch = api.client.watch(&path).await?;
        let mut is_foreign = false;
        loop {
            let node = self.node.borrow_and_update().clone();
            self.settle(&api, &owner, &node, &mut slices, is_foreign)
                .await?;
            self.was_kept = true;
            if !self.is_contended {
                self.metrics.slices(Some(true));
                if self.reported.ends() {
                    log::info!("the node's ResourceSlices are up to date again");
                }
            }
            is_foreign = false;
            let quiet = self.written_at.map(|it| it + SHORT);
            tokio::select! {
                changed = self.node.changed() => {
                    if changed.is_err() {
                        return Ok(false);
                    }
                }
                () = until(quiet), if self.is_contended => {
                    self.is_contended = false;
                }
                event = next(&mut watch) => match event? {
                    Some((kind, object)) if !is_too_old(&kind, &object) => {
                        is_foreign = follow(&mut slices, &kind, object)?;
                    }
                    _ => return Ok(true),
                },
            }
        }
    }

    /// If the slices differ from the node's state, writes all of them, and deletes slices that are no longer needed.
    /// `is_foreign`: another client has changed the slices. Then writes at most once in [`SHORT`].
    async fn settle(
        &mut self,
        api: &Api,
        owner: &Owner,
        node: &Node,
        slices: &mut Slices,
        is_foreign: bool,
    ) -> Result<(), Failure> {
        let mut devices = ::dra::pool::devices(&self.netdevs.resources(node));
        if self.without_taints {
            devices.retain(PoolDevice::is_usable);
        }
        let is_remark = |device: &&mut PoolDevice| device.taint == Some(Effect::None);
        if self.without_taints || self.without_remarks {
            let remarks = devices.iter_mut().filter(is_remark);
            remarks.for_each(|device| device.taint = None);
        }
        let existing: Vec<Value> = slices.values().cloned().collect();
        let changes = slices::plan(owner, &devices, &existing);
        if changes.is_empty() {
            return Ok(());
        }
        if is_foreign && self.written_at.is_some_and(|it| it.elapsed() < SHORT) {
            return Err(Failure::Contended);
        }
        self.written_at = Some(Instant::now());
        for change in &changes {
            let dropped = put(api, change, slices).await;
            let is_refused = |failure: &Failure| {
                matches!(failure, Failure::Api(_)) && failure.to_string().contains(REFUSED)
            };
            if dropped.as_ref().is_err_and(is_refused) && !self.without_remarks {
                log::warn!(
                    "the API server refuses taints with the effect None: degraded devices get no taint"
                );
                self.without_remarks = true;
                return Err(Failure::FewerTaints);
            }
            if let Some(field) = dropped? {
                if field == TAINTS {
                    log::warn!(
                        "the API server ignores taints of devices: the daemon leaves unhealthy devices out of the \
                         node's ResourceSlices instead"
                    );
                    self.without_taints = true;
                    return Err(Failure::FewerTaints);
                }
                for name in std::mem::take(slices).into_keys() {
                    put(api, &Change::Delete(name), slices).await?;
                }
                return Err(Failure::Dropped { field });
            }
        }
        let unusable = devices.iter().filter(|it| !it.is_usable());
        let unusable: Vec<&str> = unusable.map(|it| &*it.name).collect();
        let degraded = devices.iter().filter(|it| it.addresses.len() == 1);
        let degraded: Vec<&str> = degraded
            .flat_map(|it| &it.degraded)
            .map(|it| &**it)
            .collect();
        let of = |what: &str, which: &[&str]| match which {
            [] => String::new(),
            some => format!(", {what}: {}", some.join(", ")),
        };
        log::info!(
            "{} devices are in the node's ResourceSlices of {}{}{}",
            devices.len(),
            owner.driver,
            of("not for new pods", &unusable),
            of("degraded", &degraded),
        );
        Ok(())
    }
}

/// Applies `change`. If the API server would drop a field, writes nothing and returns the field's name.
async fn put(api: &Api, change: &Change, slices: &mut Slices) -> Result<Option<String>, Failure> {
    let of = |name: &str| format!("{API}/resourceslices/{name}");
    let (method, path, object) = match change {
        Change::Create(object) => (Method::POST, format!("{API}/resourceslices"), object),
        Change::Replace(object) => {
            let name = name(object).ok_or(Failure::Other("slice"))?;
            (Method::PUT, of(name), object)
        }
        Change::Delete(name) => {
            match api.client.ask(Method::DELETE, &of(name), None).await {
                Err(error) if error.code() != Some(404) => return Err(error.into()),
                _ => slices.remove(name),
            };
            return Ok(None);
        }
    };
    // send a dry run first: a scheduler would at once use a slice without the dropped field
    let tried = format!("{path}?dryRun=All");
    let tried = api.client.ask(method.clone(), &tried, Some(object)).await;
    let tried = tried.map_err(Failure::of_write)?;
    if let Some(dropped) = slices::lacks(&object["spec"], &tried) {
        return Ok(Some(dropped));
    }
    let written = api.client.ask(method, &path, Some(object)).await;
    let written = written.map_err(Failure::of_write)?;
    let name = name(&written).ok_or(Failure::Other("slice"))?.to_owned();
    slices.insert(name, written);
    Ok(None)
}

async fn next(watch: &mut Watch) -> Result<Option<(String, Value)>, Failure> {
    let Some(mut event) = watch.next().await? else {
        return Ok(None);
    };
    let kind = event["type"]
        .as_str()
        .ok_or(Failure::Other("event"))?
        .to_owned();
    Ok(Some((kind, event["object"].take())))
}

/// Returns true if the API server no longer has the resource version with which the watch began. A long watch can end
/// like this.
fn is_too_old(kind: &str, object: &Value) -> bool {
    kind == "ERROR" && object["code"] == 410
}

/// Applies an event of the API server. Ignores an event that is older than the known slice, which the daemon has
/// written since. Returns true if another client caused the event.
fn follow(slices: &mut Slices, kind: &str, object: Value) -> Result<bool, Failure> {
    if kind == "ERROR" {
        let message = object["message"].as_str().unwrap_or_default().to_owned();
        return Err(Failure::Ended(message));
    }
    let name = name(&object).ok_or(Failure::Other("slice"))?.to_owned();
    let [known, new] = [slices.get(&name), Some(&object)].map(|it| it.and_then(version));
    if known > new {
        return Ok(false);
    }
    if kind == "DELETED" {
        // the daemon removes a slice that it deletes itself before the event arrives
        let is_foreign = slices.remove(&name).is_some();
        if is_foreign {
            log::info!("another client deleted ResourceSlice {name}");
        }
        return Ok(is_foreign);
    }
    slices.insert(name, object);
    Ok(known != new)
}

fn version(slice: &Value) -> Option<u64> {
    slice["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn name(slice: &Value) -> Option<&str> {
    slice["metadata"]["name"].as_str()
}
