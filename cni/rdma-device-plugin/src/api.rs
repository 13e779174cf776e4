// SPDX-License-Identifier: Apache-2.0
//! Access to the API server with the service account token of this process's pod. Only opt-in features send requests,
//! such as claims, events, the node's condition, the deletion of refused pods and the fabric watch.

use kubernetes_api::{Access, AccessError, Client};
use std::{path::Path, time::Duration};

/// User agent of the daemon's requests.
pub const AGENT: &str = "rdma-device-plugin";

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(10);

/// Client of the API server, and the node that the client's token names.
#[derive(Clone, Debug)]
pub struct Api {
    /// Client for the requests.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// UID of the node. `None`: the token does not have the UID.
    pub node_uid: Option<String>,
}

impl Api {
    /// Reads the token in `directory`.
    ///
    /// # Errors
    /// The environment is not a pod's environment, the directory has no token, or the token names no node.
    pub fn new(directory: &Path) -> Result<Self, AccessError> {
        let access = Access::of_pod(directory)?;
        let identity = access.identity()?;
        Ok(Self {
            node: identity.node()?.to_owned(),
            node_uid: identity.node_uid,
            client: Client::new(access, AGENT, LIMIT),
        })
    }
}
