// SPDX-License-Identifier: Apache-2.0
//! The API server, asked with the token of this node's daemon: for what is opt-in (claims, events, the node's
//! condition).

use crate::node::Node;
use kubernetes_api::{Access, AccessError, Client, RequestError};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// What the daemon calls itself.
pub const AGENT: &str = "rdma-device-plugin";

/// For each request.
pub const LIMIT: Duration = Duration::from_secs(10);

/// The API server cannot be asked as this node's daemon.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No address, no token of a node, no CA.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// It does not answer, or refuses.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The API server, and as whom it is asked.
#[derive(Clone, Debug)]
pub struct Api {
    /// Asks it.
    pub client: Client,
    /// The node of the token.
    pub node: String,
    /// That node's uid.
    pub node_uid: Option<String>,
}

impl Api {
    /// With the token in `directory` as it is now.
    ///
    /// # Errors
    /// There is none, or none of a node.
    pub fn new(directory: &Path) -> Result<Self, ApiError> {
        let access = Access::of_pod(directory)?;
        let identity = access.identity()?;
        Ok(Self {
            node: identity.node()?.to_owned(),
            node_uid: identity.node_uid,
            client: Client::new(access, AGENT, LIMIT),
        })
    }
}

/// Waits for `time`. Whether `node` is still followed then; if it is not, that is known at once.
pub(crate) async fn is_followed_for(node: &mut watch::Receiver<Arc<Node>>, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        match timeout_at(end, node.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return false,
            Err(_) => return true,
        }
    }
}
