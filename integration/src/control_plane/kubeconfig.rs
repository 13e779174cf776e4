// SPDX-License-Identifier: Apache-2.0
//! The kubeconfig of another project's plugin on a node.

use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Writes the kubeconfig of the service account `account` into `directory`. `server` is the API server's URL,
/// `certificate_authority` is the path of its CA certificate. Returns the path of the kubeconfig.
///
/// # Panics
/// The file cannot be written.
#[track_caller]
pub fn write(
    directory: &Path,
    account: &str,
    token: &str,
    server: &str,
    certificate_authority: &str,
) -> PathBuf {
    let cluster = json!({ "server": server, "certificate-authority": certificate_authority });
    let context = json!({ "cluster": "local", "user": account });
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": account,
        "clusters": [{ "name": "local", "cluster": cluster }],
        "users": [{ "name": account, "user": { "token": token.trim() } }],
        "contexts": [{ "name": account, "context": context }],
    });
    let path = directory.join(format!("{account}.kubeconfig"));
    fs::write(&path, kubeconfig.to_string()).expect("written");
    path
}
