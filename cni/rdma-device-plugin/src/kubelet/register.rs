// SPDX-License-Identifier: Apache-2.0
//! One registration, and when to try the next one.
//!
//! At `kubelet.sock`, which every kubelet serves, and nowhere else: a kubelet that found the resource
//! by its plugin watcher as well would make a second client for it, with a stream, and keep one
//! endpoint (`devicemanager/manager.go`). When either client ends, that endpoint is stopped for good.

use super::service::OPTIONS;
use crate::conf::ResourceName;
use kubelet_api::device_plugin::{
    RegisterRequest, VERSION, registration_client::RegistrationClient,
};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    path::Path,
    time::Duration,
};
use tonic::{Status, transport::Endpoint};

/// No registration takes longer: kubelet dials the plugin before it answers.
const LIMIT: Duration = Duration::from_secs(3);

/// What kubelet's refusal of a socket that it has a stream of begins with (1.37).
const ALREADY_CONNECTED: &str = "device plugin already connected";

/// The first and the longest time between two tries. A kubelet that has just made its socket may
/// need a moment to listen at it.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A registration did not come about.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Nobody answers at the socket.
    #[error("kubelet does not answer at {socket}: {}", root_cause(.source))]
    Away {
        /// The socket.
        socket: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// Kubelet does not want the resource.
    #[error("kubelet refuses: {}", .0.message())]
    Refused(Box<Status>),
    /// It has a stream of the same socket (`PluginConnected` in `devicemanager/manager.go`, 1.37).
    #[error("kubelet says that it is connected to this socket already")]
    Known,
    /// It did not answer in time.
    #[error("kubelet did not answer within {LIMIT:?}")]
    Silent,
}

/// What is at the bottom of an error: the layers above only say that something failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Tells kubelet at `kubelet` that `resource` is served at the socket `endpoint` beside it.
///
/// # Errors
/// Kubelet is away, silent, or refuses.
pub async fn register(
    kubelet: &Path,
    resource: &ResourceName,
    endpoint: &str,
) -> Result<(), RegisterError> {
    let request = RegisterRequest {
        version: VERSION.into(),
        endpoint: endpoint.into(),
        resource_name: resource.to_string(),
        options: Some(OPTIONS),
    };
    let call = async {
        let socket = format!("unix://{}", kubelet.display());
        let away = |source| RegisterError::Away {
            socket: kubelet.display().to_string(),
            source,
        };
        let endpoint = Endpoint::from_shared(socket).map_err(away)?;
        let channel = endpoint.connect().await.map_err(away)?;
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map(|_| ()).map_err(|status| match status.message() {
            known if known.starts_with(ALREADY_CONNECTED) => RegisterError::Known,
            _ => RegisterError::Refused(Box::new(status)),
        })
    };
    let answer = tokio::time::timeout(LIMIT, call).await;
    answer.unwrap_or(Err(RegisterError::Silent))
}

/// How long to wait after `failures` tries in a row: twice as long each time, and up to a quarter
/// more or less, so that the resources of a node do not come all at once.
pub fn back_off(failures: u32) -> Duration {
    let (first, longest) = BACK_OFF;
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let random = RandomState::new().build_hasher().finish() % 1000;
    let share = u32::try_from(750 + random / 2).unwrap_or(1000);
    doubled.min(longest).saturating_mul(share) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_to_a_limit() {
        for (failures, about) in [(1, 100), (2, 200), (3, 400), (7, 6400), (40, 10_000)] {
            let wait = back_off(failures).as_millis();
            let (least, most) = (about * 3 / 4, about * 5 / 4);
            assert!((least..=most).contains(&wait), "{failures}: {wait} ms");
        }
    }
}
