// SPDX-License-Identifier: Apache-2.0
//! Reports prepared claims to the API server: `status.devices` with the networks of the devices. Nothing on the node
//! depends on these reports. When the claim's pod has its network, the report needs one `get` and one `update` request.

use crate::{
    api::Api,
    retry::{Retry, is_followed_for},
};
use ::dra::{
    Claims, Record,
    slices::API,
    status::{has_all, is_early, merged, of_record},
};
use kubernetes_api::{Method, RequestError};
use node_state::{node::Node, watch::Watch};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{sync::watch, time::sleep};

/// Interval of checks if no failure occurred. Each change of the records starts a check earlier.
const REST: Duration = Duration::from_secs(3600);

/// Time for which a report waits for further changes.
const TOGETHER: Duration = Duration::from_millis(200);

/// Number of attempts if other clients write the claim at the same time.
const TRIES: usize = 3;

/// Reports the claims of one node.
#[derive(Debug)]
pub struct Reporter {
    node: watch::Receiver<Arc<Node>>,
    account: PathBuf,
    claims: Claims,
    /// Reported devices, by claim UID.
    reported_networks: BTreeMap<String, Vec<Value>>,
    /// True after this daemon, as the leader, has reported all claims once.
    has_reported_all: bool,
    retry: Retry,
}

impl Reporter {
    /// Returns a reporter for the claims in `state_dir`. The directory `account` contains the service account's token.
    /// [`run`](Self::run) ends when the sender of `node` is dropped.
    pub fn new(node: watch::Receiver<Arc<Node>>, account: PathBuf, state_dir: &Path) -> Self {
        Self {
            node,
            account,
            claims: Claims::new(state_dir),
            reported_networks: BTreeMap::new(),
            has_reported_all: false,
            retry: Retry::default(),
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        let mut changes = Watch::new(vec![self.claims.directory().to_owned()]);
        loop {
            let pause = match self.report().await {
                Ok(()) => {
                    self.retry.ends();
                    REST
                }
                Err(error) => self.retry.fails(error, Instant::now(), |line| {
                    log::warn!(
                        "cannot write the pods' networks into the status of their claims: {line}"
                    );
                }),
            };
            tokio::select! {
                // handle changes also during the pause: a claim that the API server refuses must not delay other claims
                () = changes.changed() => sleep(TOGETHER).await,
                followed = is_followed_for(&mut self.node, pause) => if !followed {
                    return;
                }
            }
        }
    }

    /// Sends each status that was not reported yet. After the first complete report, leaves out a claim that still
    /// awaits its network. Continues after an error of a claim, and returns the first error.
    async fn report(&mut self) -> Result<(), RequestError> {
        let claims = self.claims.clone();
        let read = tokio::task::spawn_blocking(move || claims.all()).await;
        let (records, _) = read.unwrap_or_default();
        let reported_networks = &mut self.reported_networks;
        reported_networks.retain(|uid, _| records.iter().any(|it| it.claim.uid == *uid));
        let (mut api, mut failed) = (None, None);
        for record in &records {
            let uid = &record.claim.uid;
            let own = of_record(record);
            let known = reported_networks.get(uid);
            let is_nothing = self.has_reported_all && known.is_none() && is_early(record);
            if is_nothing || known == Some(&own) {
                continue;
            }
            let api = match &api {
                Some(api) => api,
                None => api.insert(Api::new(&self.account)?),
            };
            match write(api, record, &own).await {
                Ok(()) => drop(reported_networks.insert(uid.clone(), own)),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(()), Err)?;
        self.has_reported_all = true;
        Ok(())
    }
}

/// Writes `own`, the status of the devices of `record`, to the claim. Retries if another client wrote the claim at the
/// same time.
async fn write(api: &Api, record: &Record, own: &[Value]) -> Result<(), RequestError> {
    for _ in 1..TRIES {
        match try_to_write(api, record, own).await {
            Err(error) if error.code() == Some(409) => {}
            written => return written,
        }
    }
    try_to_write(api, record, own).await
}

/// Sends one report. Sends nothing if the claim no longer exists, was replaced, no longer has these devices, or already
/// has this status.
async fn try_to_write(api: &Api, record: &Record, own: &[Value]) -> Result<(), RequestError> {
    let claim = &record.claim;
    let path = format!(
        "{API}/namespaces/{}/resourceclaims/{}",
        claim.namespace, claim.name
    );
    let mut object = match api.client.ask(Method::GET, &path, None).await {
        Err(error) if error.code() == Some(404) => return Ok(()),
        object => object?,
    };
    if object["metadata"]["uid"] != *claim.uid || !has_all(&object["status"]["allocation"], own) {
        return Ok(());
    }
    let present = &object["status"]["devices"];
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let Some(devices) = merged(own, &record.driver, present, &now) else {
        return Ok(());
    };
    object["status"]["devices"] = devices.into();
    let path = format!("{path}/status");
    match api.client.ask(Method::PUT, &path, Some(&object)).await {
        Err(error) if error.code() == Some(404) => Ok(()),
        written => written.map(drop),
    }
}
