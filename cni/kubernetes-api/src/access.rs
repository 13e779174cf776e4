// SPDX-License-Identifier: Apache-2.0
//! Address, CA and token for requests to the API server. The address comes from the container's environment, CA and
//! token from files. Kubelet replaces these files while the program runs, so each request reads them again.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;
use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Directory in which kubelet mounts a service account's token (`DefaultAPITokenMountPath` in the API server's
/// `plugin/pkg/admission/serviceaccount`).
pub const DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Largest size of a token or CA file, bytes. These files normally have a few KB.
const LONGEST: u64 = 256 * 1024;

/// Reason why the program has no access to the API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// An environment variable is missing or wrong: the program does not run in a pod, or its environment was cleared.
    #[error(
        "the environment variable {name}, which kubelet sets in pods, is missing or wrong{}",
        .found.as_ref().map(|it| format!(": {it:?}")).unwrap_or_default()
    )]
    Environment {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        found: Option<String>,
    },
    /// The token or the CA cannot be read.
    #[error("{file:?}: {source}; mount a service account's token there")]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{file:?} {problem}")]
    Content {
        /// Path of the file.
        file: PathBuf,
        /// The problem, such as `has no certificate`.
        problem: &'static str,
    },
    /// The token names no node, for example because it is not bound to a pod.
    #[error(
        "the token names no node: use a token that kubelet mounts into a pod (Kubernetes 1.30 or later)"
    )]
    NoNode,
}

/// Address of the API server, and the directory with `token` and `ca.crt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub(crate) host: String,
    pub(crate) port: u16,
    directory: PathBuf,
}

/// Fields of a token that name its pod and node. Kubernetes sets the node since 1.30
/// (`ServiceAccountTokenPodNodeInfo`).
#[derive(Deserialize)]
struct Claims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
}

#[derive(Deserialize)]
struct Bound {
    node: Option<Named>,
    pod: Option<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    uid: Option<String>,
}

/// The pod and node that a token names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the node on which the token's pod runs.
    pub node: Option<String>,
    /// UID of the node object.
    pub node_uid: Option<String>,
    /// Name of the pod.
    pub pod: Option<String>,
}

impl Identity {
    /// Returns the identity in `token`. Returns `None` if `token` is no service account's token.
    pub fn of_token(token: &str) -> Option<Self> {
        let claims = BASE64_URL_SAFE_NO_PAD
            .decode(token.split('.').nth(1)?)
            .ok()?;
        let Claims { kubernetes } = serde_json::from_slice(&claims).ok()?;
        let (node, node_uid) = match kubernetes.node {
            Some(node) => (Some(node.name), node.uid),
            None => (None, None),
        };
        Some(Self {
            node,
            node_uid,
            pod: kubernetes.pod.map(|it| it.name),
        })
    }

    /// Returns the node of the token's pod.
    ///
    /// # Errors
    /// The token names no node.
    pub fn node(&self) -> Result<&str, AccessError> {
        self.node.as_deref().ok_or(AccessError::NoNode)
    }
}

impl Access {
    /// Returns the access for the pod in which this process runs. The address comes from the environment, CA and token
    /// from files in `directory`.
    ///
    /// # Errors
    /// The environment is not that of a pod.
    pub fn of_pod(directory: &Path) -> Result<Self, AccessError> {
        let get = |name| env::var(name).ok();
        Self::new(get(HOST), get(PORT), directory)
    }

    /// Returns the access like [`Self::of_pod`], with `host` and `port` as the values of the environment variables.
    fn new(
        host: Option<String>,
        port: Option<String>,
        directory: &Path,
    ) -> Result<Self, AccessError> {
        let unset = |name, found| AccessError::Environment { name, found };
        let host = match host {
            Some(host) if !host.is_empty() => host,
            other => return Err(unset(HOST, other)),
        };
        let number = port.as_deref().and_then(|port| port.parse().ok());
        match number.filter(|it| *it != 0) {
            Some(port) => Ok(Self {
                host: host.trim_matches(['[', ']']).to_owned(),
                port,
                directory: directory.to_owned(),
            }),
            None => Err(unset(PORT, port)),
        }
    }

    /// Reads the current token.
    ///
    /// # Errors
    /// The file cannot be read, or has no token.
    pub fn token(&self) -> Result<String, AccessError> {
        let file = self.directory.join("token");
        let token = read(&file)?;
        let token = token.trim();
        match token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Err(content(file, "has no token")),
            false => Ok(token.to_owned()),
        }
    }

    /// Returns the pod and the node that the token names. Does not verify the token, because only the API server
    /// decides what the token permits.
    ///
    /// # Errors
    /// There is no token, or it is no service account's token.
    pub fn identity(&self) -> Result<Identity, AccessError> {
        let file = || self.directory.join("token");
        Identity::of_token(&self.token()?)
            .ok_or_else(|| content(file(), "is not a service account's token"))
    }

    /// Reads the CA's certificates. Also returns the path of their file.
    pub(crate) fn certificates(&self) -> Result<(String, PathBuf), AccessError> {
        let file = self.directory.join("ca.crt");
        Ok((read(&file)?, file))
    }

    /// Returns host and port, such as `[fd00::1]:443`.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

pub(crate) fn content(file: PathBuf, problem: &'static str) -> AccessError {
    AccessError::Content { file, problem }
}

fn read(file: &Path) -> Result<String, AccessError> {
    let failed = |source| AccessError::File {
        file: file.to_owned(),
        source,
    };
    let size = fs::metadata(file).map_err(failed)?.len();
    match size > LONGEST {
        true => Err(content(file.to_owned(), "is too long")),
        false => fs::read_to_string(file).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: &str) -> Result<Access, AccessError> {
        let given = |text: &str| Some(text.to_owned());
        Access::new(given(host), given(port), Path::new("/nowhere"))
    }

    #[test]
    fn an_ipv6_address_is_in_brackets_only_where_a_port_follows() {
        for (host, port, authority) in [
            ("10.96.0.1", "443", "10.96.0.1:443"),
            ("fd00:10:96::1", "443", "[fd00:10:96::1]:443"),
            ("[fd00:10:96::1]", "6443", "[fd00:10:96::1]:6443"),
            (
                "kubernetes.default.svc",
                "443",
                "kubernetes.default.svc:443",
            ),
        ] {
            let access = at(host, port).expect(host);
            assert_eq!(access.authority(), authority);
            assert!(!access.host.contains('['));
        }
    }

    #[test]
    fn an_environment_outside_a_pod_is_reported_by_its_variable() {
        for (host, port, name) in [
            ("", "443", HOST),
            ("10.96.0.1", "", PORT),
            ("10.96.0.1", "0", PORT),
            ("10.96.0.1", "tcp://10.96.0.1:443", PORT),
        ] {
            let error = at(host, port).expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = Access::new(None, None, Path::new("/nowhere")).expect_err("no host");
        assert!(error.to_string().contains(HOST), "{error}");
    }

    fn with_token(token: &str) -> (tempfile::TempDir, Access) {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("token"), token).expect("a token");
        let access = Access::new(
            Some("10.96.0.1".into()),
            Some("443".into()),
            directory.path(),
        );
        (directory, access.expect("an environment"))
    }

    #[test]
    fn a_token_that_was_exchanged_is_the_new_one() {
        let (directory, access) = with_token("first\n");
        assert_eq!(access.token().expect("a token"), "first");
        fs::write(directory.path().join("token"), "second").expect("another");
        assert_eq!(access.token().expect("a token"), "second");
        for nonsense in ["", "\n", "two\nlines", "a\u{e9}"] {
            fs::write(directory.path().join("token"), nonsense).expect("another");
            let error = access.token().expect_err(nonsense).to_string();
            assert!(error.contains("has no token"), "{error}");
        }
        fs::remove_file(directory.path().join("token")).expect("gone");
        let error = access.token().expect_err("no file").to_string();
        assert!(
            error.contains("mount a service account's token there"),
            "{error}"
        );
    }

    #[test]
    fn a_token_names_its_node() {
        let token = |claims: &str| format!("head.{}.sign", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let bound = r#"{"sub":"x","kubernetes.io":{"namespace":"kube-system",
            "node":{"name":"rdma-1","uid":"1"},"pod":{"name":"ack-rdma-dp-ds-x","uid":"2"}}}"#;
        let (_directory, access) = with_token(&token(bound));
        let identity = access.identity().expect("claims");
        assert_eq!(identity.node.as_deref(), Some("rdma-1"));
        assert_eq!(identity.node_uid.as_deref(), Some("1"));
        assert_eq!(identity.pod.as_deref(), Some("ack-rdma-dp-ds-x"));
        // tokens of Kubernetes before 1.30 name no node, and some tokens name no pod
        let (_directory, access) = with_token(&token(r#"{"kubernetes.io":{"namespace":"x"}}"#));
        assert_eq!(access.identity().expect("claims"), Identity::default());
        for nonsense in ["opaque", "a.b.c", "head.e30.sign"] {
            let (_directory, access) = with_token(nonsense);
            let error = access.identity().expect_err(nonsense).to_string();
            assert!(error.contains("not a service account's token"), "{error}");
        }
    }
}
