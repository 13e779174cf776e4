// SPDX-License-Identifier: Apache-2.0
//! Tells the API server what became of prepared claims: `status.devices`, with the networks that they are in. Nothing
//! of the node depends on it. A claim costs one `get` and one `update` when its pod has its network.

use crate::{
    api::{Api, ApiError, is_followed_for},
    node::Node,
    said::Said,
    watch::Watch,
};
use ::dra::{
    Claims, Record,
    slices::API,
    status::{has_all, is_early, merged, of_record},
};
use kubernetes_api::{Method, RequestError};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, time::sleep};

/// How long is waited after a failure: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Where nothing fails, only the records' changes count; they are looked at so often all the same.
const REST: Duration = Duration::from_secs(3600);

/// Changes that come together are told together.
const TOGETHER: Duration = Duration::from_millis(200);

/// A claim that others write at the same time is tried so often.
const TRIES: usize = 3;

/// Tells of the claims of one node.
#[derive(Debug)]
pub struct Reporter {
    node: watch::Receiver<Arc<Node>>,
    account: PathBuf,
    claims: Claims,
    /// What is known to be said already, by the claims' uids.
    said: BTreeMap<String, Vec<Value>>,
    /// Whether all claims were looked at since this daemon leads.
    has_looked: bool,
    /// What went wrong last: it is said once.
    told: Said,
}

impl Reporter {
    /// One that follows the claims in `state_dir` as long as `node` is followed, with the token in `account`.
    pub fn new(node: watch::Receiver<Arc<Node>>, account: PathBuf, state_dir: &Path) -> Self {
        Self {
            node,
            account,
            claims: Claims::new(state_dir),
            said: BTreeMap::new(),
            has_looked: false,
            told: Said::default(),
        }
    }

    /// Until the node is followed no more.
    pub async fn run(mut self) {
        let mut changes = Watch::new(vec![self.claims.directory().to_owned()]);
        let mut wait = AGAIN[0];
        loop {
            let pause = match self.report().await {
                Ok(()) => {
                    wait = AGAIN[0];
                    self.told.ends();
                    REST
                }
                Err(error) => {
                    let line = error.to_string();
                    if self.told.is_news(&line) {
                        log::warn!("the claims' status does not tell of their networks: {line}");
                    }
                    let now = wait;
                    wait = (wait * 2).min(AGAIN[1]);
                    now
                }
            };
            tokio::select! {
                // a claim that is refused keeps no other from being told
                () = changes.changed() => sleep(TOGETHER).await,
                followed = is_followed_for(&mut self.node, pause) => if !followed {
                    return;
                }
            }
        }
    }

    /// Says what is not said yet. Goes on after an error, and tells the first.
    async fn report(&mut self) -> Result<(), ApiError> {
        let claims = self.claims.clone();
        let read = tokio::task::spawn_blocking(move || claims.all()).await;
        let (records, _) = read.unwrap_or_default();
        let said = &mut self.said;
        said.retain(|uid, _| records.iter().any(|it| it.claim.uid == *uid));
        let (mut api, mut failed) = (None, None);
        for record in &records {
            let uid = &record.claim.uid;
            let own = of_record(record);
            let known = said.get(uid);
            let is_nothing = self.has_looked && known.is_none() && is_early(record);
            if is_nothing || known == Some(&own) {
                continue;
            }
            let api = match &api {
                Some(api) => api,
                None => api.insert(Api::new(&self.account)?),
            };
            match say(api, record, &own).await {
                Ok(()) => drop(said.insert(uid.clone(), own)),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(()), Err)?;
        self.has_looked = true;
        Ok(())
    }
}

/// Says `own` of the devices of `record`; once more, where somebody else wrote the claim meanwhile.
async fn say(api: &Api, record: &Record, own: &[Value]) -> Result<(), ApiError> {
    for _ in 1..TRIES {
        match try_to_say(api, record, own).await {
            Err(error) if error.code() == Some(409) => {}
            said => return Ok(said?),
        }
    }
    Ok(try_to_say(api, record, own).await?)
}

/// A claim that is gone, or another one by now, or that has these devices no more, needs no word.
async fn try_to_say(api: &Api, record: &Record, own: &[Value]) -> Result<(), RequestError> {
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
